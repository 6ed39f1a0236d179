"""Something works for a step while the other one runs: gains that only pairs would show are not believed."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader

import perfnb
from perfnb.bench.design import (
    MOST_WARMUP,
    Prefetching,
    _pilot_blocks,
    planned_blocks,
    planned_rounds,
    slower_back_to_back,
    warm_up,
)
from perfnb.bench.rounds import batches_ready, prefetching
from perfnb.errors import CaptureError
from perfnb.stats.planning import Planned, plan_pairs
from tests.fake_clock import FakeClock
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.filterwarnings("ignore:This DataLoader will create")]


class Ahead(queue.Queue[float]):
    """Batches of which one is made every `pace_ms` of the clock, by nobody, and up to `depth` lie prepared."""

    def __init__(self, clock: FakeClock, pace_ms: float, depth: int = 2) -> None:
        super().__init__(depth)
        self._clock, self._pace_ns, self._depth = clock, round(pace_ms * 1e6), depth
        self._made_ns = clock.now_ns
        self._taken: list[int] = []

    def get(self, block: bool = True, timeout: float | None = None) -> float:
        room = self._taken[-self._depth] if len(self._taken) >= self._depth else 0
        self._made_ns = max(self._made_ns, room) + self._pace_ns
        self._clock.now_ns = max(self._clock.now_ns, self._made_ns)
        self._taken.append(self._clock.now_ns)
        return 1.0


def stepping(clock: FakeClock, ms: float, ahead: Ahead | None = None) -> Callable[..., float]:
    """Return a step that takes a batch, if it has a queue of its own, and so many milliseconds."""

    def step(*_: Any) -> float:
        total = 1.0 if ahead is None else ahead.get()
        clock.sleep(ms / 1e3)
        return total

    return step


def test_a_worker_without_benefit_is_not_accepted(clock: FakeClock, tmp_path: Path) -> None:
    none, one = stepping(clock, 12), stepping(clock, 0.1, Ahead(clock, 12))
    report = perfnb.ab_test(none, one, limits={}, change="a worker", budget_s=5, equal_within=0.15)

    assert report.decision != "accept"
    assert report.ratio == pytest.approx(1, abs=0.03)  # in turns it would be about 0.01
    assert report.turns > 1
    assert "Threads may work for one step while the other runs" in str(report)
    loaded = perfnb.load(report.save(tmp_path / "report"))
    assert isinstance(loaded, perfnb.results.ABTest)
    assert str(loaded) == str(report)
    assert loaded.turns == report.turns
    pd.testing.assert_frame_equal(loaded.pairs, report.pairs)


def test_what_prepares_batches_for_both_favours_none(clock: FakeClock) -> None:
    class Shared:
        def __init__(self) -> None:
            self.ahead = Ahead(clock, 6)

        def __iter__(self) -> Iterator[float]:
            while True:
                yield self.ahead.get()

    test = perfnb.ab_test(stepping(clock, 4), stepping(clock, 2), batches=Shared(), budget_s=1)

    assert test.turns == 1
    assert test.verdict == "faster"
    assert test.ratio == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("turn_ms", "left_s", "lead", "turns", "count", "most_s"),
    [
        ((5.0, 15.0), 5.761, 4, 24, 10, 11.522),
        ((5.0, 15.0), 5.759, 4, 20, 11, 11.518),  # 12 rounds of 24 turns of 20 ms take 5.76 s, of which 4 do not count
        ((5.0, 15.0), 100.0, 4, 64, 40, 200.0),
        ((5.0, 15.0), 2.0, 4, 8, 8, 4.0),  # at least twice what may be prefetched
        ((5.0, 15.0), 1.441, 4, 8, 6, 2.882),
        ((5.0, 15.0), 1.439, 4, 8, 6, 1.439),  # 5 are planned, but 6 may fit
        ((5.0, 15.0), 0.241, 4, 8, 6, 0.241),
        ((5.0, 15.0), 0.239, 0, 1, 1, 0.478),  # a pair of turns, which has no verdict
        ((5.0, 15.0), -1.0, 0, 1, 1, 0.0),
        ((0.3, 0.1), 2.0, 4, 200, 24, 4.0),  # the shortest block takes 20 ms
        (None, 2.0, 0, 1, 1, 4.0),
    ],
)
def test_blocks_are_as_long_as_twelve_of_them_fit_the_budget(
    turn_ms: tuple[float, float] | None,
    left_s: float,
    lead: int,
    turns: int,
    count: int,
    most_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, Any] = {}
    bench = SimpleNamespace(count=2, blocks=lambda orders, **options: asked.update(options) or np.ones((2, 1)))
    monkeypatch.setattr("perfnb.bench.design.time", SimpleNamespace(perf_counter=lambda: 100.0))
    monkeypatch.setattr("perfnb.bench.design._pilot_blocks", lambda *_: None)

    found = Prefetching("threads", 4)
    plan, blocks, _ = planned_blocks(bench, 99.0, left_s + 1, found, None if turn_ms is None else np.array(turn_ms))

    assert (blocks.who, blocks.lead, blocks.turns) == ("threads", lead, turns)
    assert (asked["lead"], asked["turns"], asked["planned"]) == (lead, turns, count)
    assert asked["until"] == pytest.approx(100 + most_s)
    assert plan == Planned(count, max(count, 6))


#: The milliseconds of rounds on a machine whose speed changes, and what a single step adds to their logarithms.
SPEEDS, NOISE = np.array([10.0, 20.0, 40.0, 10.0, 20.0]), np.array([0.03, -0.03, 0.03, -0.03, 0.0])


@pytest.mark.parametrize(
    ("pilot", "left_s", "plan", "until"),
    [
        # What slows all steps of a round does not matter, and the noisiest pair decides.
        (np.array([SPEEDS, 2 * SPEEDS]), 1e3, Planned(12, 6), 2e3),
        (np.array([SPEEDS, 2 * SPEEDS, SPEEDS * np.exp(NOISE)]), 1e3, plan_pairs(NOISE, power=0.8), 2e3),
        (np.array([SPEEDS * np.exp(NOISE), SPEEDS]), 1e3, plan_pairs(NOISE, power=0.8), 2e3),
        (np.array([20 * np.exp(NOISE)]), 1e3, plan_pairs(NOISE, power=0.8), 2e3),  # a single step is judged alone
        # The median round takes 60 ms.
        (np.array([SPEEDS, 2 * SPEEDS]), 0.425, Planned(7, 6), 0.85),
        (np.array([SPEEDS, 2 * SPEEDS]), 0.01, Planned(6, 6), 0.12),
        (np.array([SPEEDS, 2 * SPEEDS]), -0.5, Planned(6, 6), 0.12),
        (np.array([[20.0, 20.0], [40.0, 40.0]]), 1e3, Planned(12, 6), 2e3),
        # A single round has no spread.
        (np.array([[20.0], [40.0]]), 0.61, Planned(10, 10), 1.22),
        (np.array([[20.0], [40.0]]), 1e3, Planned(100, 100), 2e3),
    ],
)
def test_a_pilot_plans_the_rounds_that_tell_any_two_steps_apart(
    pilot: np.ndarray, left_s: float, plan: Planned, until: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, dict[str, Any]]] = []

    def rounds(orders: Any, **options: Any) -> np.ndarray:
        asked.append((len(list(orders)), options))
        return pilot * len(asked)

    monkeypatch.setattr("perfnb.bench.design.time", SimpleNamespace(perf_counter=lambda: 100.0))
    found, times = planned_rounds(SimpleNamespace(count=len(pilot), rounds=rounds), 99.0, left_s + 1, 0.02, power=0.8)

    assert found == plan
    assert times is not None
    assert times.tolist() == (2 * pilot).tolist()
    (pilots, first), (count, second) = asked
    assert (pilots, first) == (10, {"pass_name": "pilot", "until": pytest.approx(99 + 0.4 * (left_s + 1))})
    assert (count, second) == (plan.count, {"planned": plan.count, "until": pytest.approx(100 + until)})


def test_without_time_for_blocks_there_is_no_verdict(clock: FakeClock) -> None:
    report = perfnb.ab_test(stepping(clock, 400), stepping(clock, 1, Ahead(clock, 100, 8)), limits={}, budget_s=0.6)

    assert report.decision == "inconclusive"
    assert "a fair comparison needs blocks, and there was no time for any" in report.reason
    assert report.reason.endswith("Raise budget_s.")


class Unseen:
    """Batches that are prepared where nobody looks."""

    __slots__ = ("_ahead",)

    def __init__(self, ahead: Ahead) -> None:
        self._ahead = ahead

    def take(self) -> float:
        return self._ahead.get()


def test_what_nobody_sees_is_felt(clock: FakeClock) -> None:
    unseen = Unseen(Ahead(clock, 4, 3))
    test = perfnb.ab_test(stepping(clock, 4), lambda: unseen.take(), budget_s=5)

    assert test.turns > 1
    assert test.ratio == pytest.approx(1, abs=0.03)  # in turns it would be about 0.01
    assert "A step is slower back to back than interleaved" in str(test)


def test_steps_that_nobody_works_for_run_in_pairs(clock: FakeClock) -> None:
    assert perfnb.ab_test(stepping(clock, 2), stepping(clock, 1), budget_s=1).turns == 1


def test_what_works_for_a_step_is_found_where_it_lies() -> None:
    filled: queue.Queue[int] = queue.Queue(5)
    filled.put(1)

    assert prefetching([lambda: filled.get()]) == Prefetching("threads", 6)
    assert prefetching([lambda: 1]) is None


def test_the_workers_of_a_loader_are_found_where_it_lies() -> None:
    def endless(loader: DataLoader[torch.Tensor]) -> Iterator[torch.Tensor]:
        while True:
            for batch in loader:  # noqa: UP028 - as users write it: the iterator lies in no variable
                yield batch

    batches = endless(DataLoader(torch.ones(10_000, 4), num_workers=2))  # type: ignore[arg-type]

    def step() -> torch.Tensor:
        return next(batches)

    assert prefetching([step]) is None  # a generator has nothing before its first turn
    step()
    assert prefetching([lambda: step()]) == Prefetching("worker processes", 4)
    assert prefetching([lambda: 1], batches) is None
    assert prefetching([lambda: 1]) == Prefetching("processes", 16)  # somebody's
    wait_until(lambda: batches_ready(step) in (None, 4))


@pytest.mark.parametrize(("ahead", "sizes"), [(0, [1]), (1, [1, 2]), (3, [1, 2, 4, 8]), (4, [1, 2, 4, 8])])
def test_pilot_blocks_grow_until_half_of_one_uses_up_what_was_prefetched(ahead: int, sizes: list[int]) -> None:
    asked: list[tuple[list[int], int, int]] = []

    def blocks(orders: list[list[int]], *, lead: int, turns: int, pass_name: str) -> np.ndarray:
        asked.append((orders[0], lead, turns))
        assert pass_name == "pilot"
        return np.full((2, 1), float(len(asked)))

    bench = SimpleNamespace(count=2, blocks=blocks)
    turn_ms = _pilot_blocks(bench, time.perf_counter(), 1e6, ahead)

    assert turn_ms is not None
    assert turn_ms.tolist() == [len(sizes)] * 2
    assert [(lead, lead + turns) for _, lead, turns in asked] == [(size // 2, size) for size in sizes]
    assert [order for order, *_ in asked] == [[0, 1] if place % 2 == 0 else [1, 0] for place in range(len(sizes))]
    asked.clear()
    assert (_pilot_blocks(bench, time.perf_counter() - 1, 1e-9, ahead) is None) == (ahead > 0)
    assert len(asked) == 1


def warmed(
    monkeypatch: pytest.MonkeyPatch,
    series: Callable[[int], tuple[float, ...]],
    *,
    budget_s: float = 1e9,
    each_s: float = 0,
) -> tuple[bool | None, list[list[int]]]:
    """Return whether steps of the given times became steady, and the orders of the rounds until then."""
    orders: list[list[int]] = []
    now = [100.0]

    def rounds(given: list[list[int]], *, pass_name: str, keep_results: bool) -> np.ndarray:
        assert (pass_name, keep_results) == ("warmup", True)
        now[0] += each_s
        orders.extend(given)
        return np.array(series(len(orders)))[:, None]

    monkeypatch.setattr("perfnb.bench.design.time", SimpleNamespace(perf_counter=lambda: now[0]))
    return warm_up(SimpleNamespace(count=2, rounds=rounds), 100.0, budget_s), orders


def test_rounds_run_until_every_step_is_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    steady, orders = warmed(monkeypatch, lambda done: (2.0, 3.0))
    assert steady is True
    assert orders == [[1, 0], [0, 1]] * 10  # as many as are compared

    steady, orders = warmed(monkeypatch, lambda done: (2.0, 9.0 if done <= 15 else 3.0))
    assert steady is True
    assert len(orders) == 35

    assert warmed(monkeypatch, lambda done: (2.0, float(done)))[0] is False
    assert len(warmed(monkeypatch, lambda done: (2.0, 1.1**done))[1]) == MOST_WARMUP


@pytest.mark.parametrize(
    ("series", "budget_s", "steady", "count"),
    [
        ((2.0, 3.0), 5.0, None, 2),  # the second ends after a fifth of the budget
        ((2.0, 3.0), 4.0, None, 2),
        ((2.0, 3.0), 1.0, None, 2),  # never fewer
        ((2.0, 3.0), 30.0, True, 7),
        ((2.0, 3.0), 24.9, None, 5),
        ((2.0, 3.0), 25.0, True, 6),
    ],
)
def test_a_warm_up_ends_after_a_fifth_of_the_budget(
    series: tuple[float, ...], budget_s: float, steady: bool | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, orders = warmed(monkeypatch, lambda done: series, budget_s=budget_s, each_s=1.0)

    assert (found, len(orders)) == (steady, count)


def test_a_clock_that_stands_still_in_the_warm_up_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CaptureError, match="The clock stood still for 200 steps"):
        warmed(monkeypatch, lambda done: (2.0, 0.0))


@pytest.mark.parametrize(
    ("runs", "budget_s", "found"),
    [
        ([1.0, 1.3, 1.0, 1.3, 1.0], 10.0, None),  # as slow as is allowed
        ([1.0, 1.4, 1.0, 1.4, 1.0], 10.0, 1.4),
        ([1.0, 1.4, 1.0, 1.2, 1.0], 10.0, None),  # slow only once
        ([1.0, 1.4, 1.2, 1.6], 10.0, None),  # the interleaved turns after it are slow as well
        ([1.0, 1.4, 1.0, 1.4, 1.2], 10.0, None),
        ([1.0, 2.6, 2.0, 9.0], 10.0, None),  # by as much as is allowed
        ([1.0, 3.0, 1.0, 2.6, 2.0], 10.0, None),
        ([1.0], 0.15, None),  # too little time
        ([1.0, 1.4, 1.0, 1.4, 1.0], 0.16, 1.4),
    ],
)
def test_hidden_prefetching_is_what_makes_a_step_slower_in_each_row_than_in_the_turns_around_it(
    runs: list[float], budget_s: float, found: float | None
) -> None:
    """The second step never changes; each takes a millisecond, and rows have four parts of which one is fast.

    Interleaved turns count by their mean or their median, whichever is longer.
    """
    left, asked = list(runs), list[tuple[int, int, int]]()

    def rounds(orders: Any, *, pass_name: str, until: float) -> np.ndarray:
        assert len(list(orders)) == 8
        usual = left.pop(0)
        uneven = [usual] * 5 + [0.0] * 3 if len(left) % 4 else [usual / 2] * 6 + [2.5 * usual] * 2
        return np.array([uneven, [1.0] * 8])

    def blocks(orders: Any, *, lead: int, turns: int, parts: int, pass_name: str) -> np.ndarray:
        assert [sorted(order) for order in orders] == [[0, 1]]
        asked.append((lead, turns, parts))
        slow = left.pop(0)
        return np.array([[slow, slow + 0.2, slow, slow + 0.2], [1.0] * 4])

    seen = slower_back_to_back(SimpleNamespace(count=2, rounds=rounds, blocks=blocks), budget_s)

    assert not left or found is None
    if found is None:
        assert seen is None
    else:
        half = 32 if budget_s == 10 else 4
        assert seen is not None
        assert seen[0] == Prefetching("something", half)
        assert seen[1].tolist() == pytest.approx([found + 0.1, 1.0])
        assert asked == [(half, half // 4, 4)] * 2
