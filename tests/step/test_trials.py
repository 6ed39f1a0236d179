"""The pass that tries another number of threads, and the one that samples stacks although nobody asked for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from perfnb.step import session
from perfnb.step.budget import Plan
from perfnb.step.session import Session
from perfnb.step.steps import StepRunner
from tests.fake_clock import FakeClock

MS = 1_000_000


class Threads:
    """Stands for torch's threads, and notes each change of their number."""

    def __init__(self, count: int) -> None:
        self.counts = [count]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> Callable[..., Threads]:
    """Return a function that pretends that torch uses so many threads on so many cores."""

    def pretend(threads: int, cores: float, accelerator: bool = False) -> Threads:
        made = Threads(threads)
        monkeypatch.setattr(torch, "get_num_threads", lambda: made.counts[-1])
        monkeypatch.setattr(torch, "set_num_threads", made.counts.append)
        monkeypatch.setattr(session, "usable_cpus", lambda: cores)
        monkeypatch.setattr(session, "accelerator_in_use", lambda: accelerator)
        return made

    return pretend


def tried(clock: FakeClock, timed_ms: float | None = 10, steps_ms: Iterator[float] | None = None) -> dict[str, Any]:
    """Return the facts after trying threads on steps that take these times, where a timed step took `timed_ms`."""
    steps_ms = iter([10.0] * 100) if steps_ms is None else steps_ms
    one = Session(Plan())
    timed_ns = [] if timed_ms is None else [round(timed_ms * MS)] * 6
    StepRunner(lambda: clock.pass_exactly(next(steps_ms)), None).drive(one.try_threads(timed_ns))
    assert {step.pass_name for step in one.capture.steps} <= {"trial"}
    return {"runs": len(one.capture.steps), **one.capture.meta.get("threads_tried", {})}


@pytest.mark.parametrize(
    ("threads", "cores", "with_threads"),
    [
        (4, 4, None),
        (5, 4, 4),
        (3, 4, None),
        (2, 4, None),
        (1, 4, 4),
        (2, 5, 5),
        (1, 2.9, None),  # a limit of 2.9 CPUs has two whole cores
        (1, 3.0, 3),
        (3, 2.9, 2),
        (1, 0.5, None),
        (2, 0.5, 1),
    ],
)
def test_one_thread_per_core_is_tried_with_more_threads_or_less_than_half(
    threads: int, cores: float, with_threads: int | None, machine: Callable[..., Threads], clock: FakeClock
) -> None:
    found = machine(threads, cores)
    facts = tried(clock)
    if with_threads is None:
        assert facts == {"runs": 0}
        assert found.counts == [threads]
    else:
        assert (facts["threads"], len(facts["steps_ms"]), facts["runs"]) == (with_threads, 10, 12)
        assert found.counts == [threads, with_threads, threads]


def test_the_first_two_steps_with_other_threads_are_not_counted(
    machine: Callable[..., Threads], clock: FakeClock
) -> None:
    machine(1, 4)
    facts = tried(clock, steps_ms=iter([700.0, 700.0, *[float(ms) for ms in range(10, 20)]]))
    assert facts["steps_ms"] == pytest.approx(list(range(10, 20)), abs=0.01)


@pytest.mark.parametrize(("timed_ms", "runs"), [(None, 0), (601, 0), (600, 5), (500, 6)])
def test_threads_are_tried_only_if_a_tenth_of_the_budget_is_enough(
    timed_ms: float | None, runs: int, machine: Callable[..., Threads], clock: FakeClock
) -> None:
    found = machine(1, 4)
    assert tried(clock, timed_ms)["runs"] == runs
    assert found.counts == ([1, 4, 1] if runs else [1])


def test_threads_are_not_tried_where_an_accelerator_computes(machine: Callable[..., Threads], clock: FakeClock) -> None:
    machine(1, 4, accelerator=True)
    assert tried(clock) == {"runs": 0}


def test_the_number_of_threads_is_restored_after_an_error(machine: Callable[..., Threads], clock: FakeClock) -> None:
    found = machine(1, 4)
    with pytest.raises(StopIteration):
        tried(clock, steps_ms=iter([10.0] * 5))
    assert found.counts == [1, 4, 1]


def sampled(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, worth: bool, timed_ms: float = 10, judging_ms: float = 0
) -> tuple[list[int], int]:
    """Return the numbers of steps that were sampled, and how often their worth was judged."""
    counts: list[int] = []

    def sample(self: Session, count: int) -> Iterator[Any]:
        counts.append(count)
        yield from ()

    judged = 0

    def judge(_: object) -> bool:
        nonlocal judged
        judged += 1
        clock.pass_exactly(judging_ms)
        return worth

    monkeypatch.setattr(Session, "_sample", sample)
    one = Session(Plan(warmup=1, steps=6, budget_s=10))
    runner = StepRunner(lambda: clock.pass_exactly(timed_ms), None)
    runner.drive(one.time([]))
    runner.drive(one.sample_if(judge))
    return counts, judged


def test_stacks_are_sampled_unasked_if_they_are_worth_it_and_time_is_left(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sampled(clock, monkeypatch, worth=True) == ([30], 1)
    assert sampled(clock, monkeypatch, worth=False) == ([], 1)
    assert sampled(clock, monkeypatch, worth=True, timed_ms=4900) == ([1], 1)
    assert sampled(clock, monkeypatch, worth=True, timed_ms=5000) == ([], 0)  # no time is left for another step
    assert sampled(clock, monkeypatch, worth=True, judging_ms=9_000) == ([30], 1)
    assert sampled(clock, monkeypatch, worth=True, judging_ms=9_600) == ([], 1)  # less than half a second is left
