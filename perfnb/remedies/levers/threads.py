"""The lever for the number of threads that torch's operators use."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from perfnb import quantities as fmt
from perfnb.findings.proposed_code import lever_line
from perfnb.remedies.lever import Lever, Switch
from perfnb.remedies.subject import Subject
from perfnb.remedies.switches import THREADS as NUMBER
from perfnb.remedies.switches import switched
from perfnb.step.environment import usable_cpus

#: The number of steps with each number of threads while searching; one if a step takes longer than this many seconds.
_RUNS, _LONG_S = 3, 0.5


def candidates() -> list[int]:
    """Return the numbers of threads to try, excluding the current number.

    These are one thread per core, half and a quarter as many, and one.
    """
    cores, now = max(1, int(usable_cpus())), torch.get_num_threads()
    return [count for count in dict.fromkeys((cores, cores // 2, cores // 4, 1)) if count >= 1 and count != now]


def _refuses(_: Subject) -> str:
    return "" if candidates() else "torch already uses one thread per core, and there is only one core"


def _fastest(subject: Subject, counts: list[int]) -> int:
    """Return the fastest number of threads. A trial on fresh pairs later determines whether it helps."""
    __tracebackhide__ = True
    best: dict[int, float] = {}
    with subject.restored(), subject.gate.opened():
        for _ in range(_RUNS):
            for count in counts:
                begin = time.perf_counter()
                with switched(NUMBER, count):
                    subject.run()
                taken = time.perf_counter() - begin
                best[count] = min(taken, best.get(count, taken))
            if min(best.values()) > _LONG_S:
                break
    return min(best, key=lambda count: best[count])


def _best(subject: Subject) -> int:
    __tracebackhide__ = True
    counts = candidates()
    return counts[0] if len(counts) == 1 else _fastest(subject, counts)


@contextmanager
def _prepared(subject: Subject) -> Iterator[Switch]:
    __tracebackhide__ = True
    wanted = subject.once("threads", _best)
    yield lambda: switched(NUMBER, wanted)


THREADS = Lever(
    "threads",
    "another number of threads for torch's operators: the fastest of one per core, half, a quarter, and one",
    _refuses,
    _prepared,
    lambda subject: [lever_line("threads", subject.chosen["threads"])],
    answers=("threads and cores",),
    says=lambda subject: [fmt.counted(subject.chosen["threads"], "thread")],
)
