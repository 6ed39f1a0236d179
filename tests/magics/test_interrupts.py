"""Interrupts at random instants of every pass: the cell ends, the queue stops, nothing stays, the next is whole."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.magics.bench import ALL, TIMED, WARMUP, Bench, assert_whole

pytestmark = pytest.mark.slow


def where(functions: list[str]) -> str:
    """Return the part of a profile that the functions belong to."""
    for name in ("warm_up", "time", "trace", "_ipython_display_", "recording_of"):
        if name in functions:
            return name
    return "between"


def instants(count: int, chance: random.Random, step_s: float, tail_s: float) -> Iterator[tuple[int, float, bool]]:
    """Yield when to interrupt: so many steps have begun, and so many seconds later; whether that is after the last
    step.
    """
    for number in range(count):
        if number % 4 == 3:
            yield ALL, step_s + chance.uniform(0.0, tail_s), True
        else:
            first, last = [(1, WARMUP), (WARMUP + 1, TIMED), (TIMED + 1, ALL)][number % 4]
            yield chance.randint(first, last), chance.uniform(0.0, 0.9 * step_s), False


@pytest.mark.deep
@pytest.mark.parametrize("count", [6, pytest.param(14, marks=pytest.mark.simulation)])
def test_at_random_instants(bench: Bench, count: int) -> None:
    kernel = bench.kernel
    hit: Counter[str] = Counter()
    for steps, delay_s, in_tail in instants(count, random.Random(20261121), *durations(bench)):
        profile, queued = bench.begin()
        bench.reach(steps)
        time.sleep(delay_s)
        kernel.manager.interrupt_kernel()
        in_tail = in_tail or bench.begun() >= ALL  # the tests themselves may be late
        reply, after = kernel.wait(profile), kernel.wait(queued)

        at = f"an interrupt {delay_s * 1e3:.1f} ms after step {steps} began"
        if reply.status == "ok":
            assert in_tail, f"{at} was lost"
            hit["too late"] += 1
        else:
            assert (reply.status, reply.error, reply.message) == ("error", "KeyboardInterrupt", ""), at
            assert after.status == "aborted", f"{at}: the next cell ran"
            hit[where(kernel.inside("interrupted_in()"))] += 1
        assert_whole(kernel)
    print("interrupts by where they were raised:", dict(hit))
    assert sum(hit.values()) == count
    assert hit["too late"] < count  # which of them is late depends on the machine


def durations(bench: Bench) -> tuple[float, float]:
    """Return seconds that a step takes, and all that comes after the last one."""
    profile, queued = bench.begin()
    bench.reach(ALL)
    begin = time.monotonic()
    assert bench.kernel.wait(profile).status == bench.kernel.wait(queued).status == "ok"
    step_s = bench.kernel.value("float(p.steps['wall_ms'].median())") / 1e3
    return step_s, max(time.monotonic() - begin - step_s, step_s)
