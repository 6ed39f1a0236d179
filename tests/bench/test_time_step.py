"""`time_step` measures until the time is known as promised, or until the budget is spent; by a made-up clock."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import perfnb
from perfnb.bench import rounds as bench
from perfnb.bench import timing
from perfnb.stats.planning import Planned, steps_in_block, still_needed

pytestmark = pytest.mark.usefixtures("nothing_left")


class Clock:
    """A clock that only the steps move on."""

    def __init__(self) -> None:
        self.now_ns = 10**12

    def perf_counter(self) -> float:
        return self.now_ns / 1e9

    def perf_counter_ns(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(bench, "time", clock)
    monkeypatch.setattr(timing, "time", clock)
    return clock


def step_of(clock: Clock, draw: Callable[[np.random.Generator], float]) -> Callable[[], None]:
    """Return a step that takes as many microseconds as are drawn."""
    rng = np.random.default_rng(5)

    def step() -> None:
        clock.now_ns += round(1e3 * draw(rng))

    return step


def half_width(made: perfnb.Timing) -> float:
    assert made.ci_ms is not None
    assert made.median_ms is not None
    return max(made.ci_ms[1] - made.median_ms, made.median_ms - made.ci_ms[0]) / made.median_ms


def test_a_short_step_without_noise_is_timed_in_twenty_blocks_of_a_millisecond(clock: Clock) -> None:
    made = perfnb.time_step(step_of(clock, lambda rng: 20.0))

    assert made.block == 50
    assert made.samples_ms == (0.02,) * 20
    assert (made.steps, made.warmup_ms) == (1000, (0.02,) * 23)  # the steady ones were not timed in blocks
    assert "step 20.0 µs [20.0, 20.0] (95 % interval, median of 20 blocks of 50 steps)" in str(made)
    assert made.quantile_ms(0.5) is None


@pytest.mark.slow
def test_a_short_step_is_timed_until_the_interval_is_as_promised(clock: Clock) -> None:
    begin = clock.now_ns

    # The noise comes in stretches longer than a block, as from a neighbour on the machine: blocks do not average it.
    slow, ran = np.random.default_rng(1).lognormal(0.0, 0.1, 100_000).tolist(), itertools.count()
    made = perfnb.time_step(step_of(clock, lambda rng: 20.0 * slow[next(ran) // 200]))

    assert made.block > 1
    assert half_width(made) <= 0.02
    assert len(made.samples_ms) > 200
    assert (clock.now_ns - begin) / 1e9 < 10
    assert "budget" not in str(made)


@pytest.mark.slow
def test_the_budget_ends_the_timing_of_a_noisy_step_and_the_result_says_so(clock: Clock) -> None:
    begin = clock.now_ns

    made = perfnb.time_step(step_of(clock, lambda rng: 3000 * rng.lognormal(0.0, 1.5)), budget_s=4.0)

    spent_s = (clock.now_ns - begin) / 1e9
    assert 3.9 < spent_s < 4.5
    assert half_width(made) > 0.02
    assert made.wanted is not None
    assert made.steps < made.wanted
    assert "The budget ended before the" in str(made)


def test_long_steps_do_not_overrun_the_budget(clock: Clock) -> None:
    begin = clock.now_ns

    made = perfnb.time_step(step_of(clock, lambda rng: 1e6 * rng.uniform(0.8, 1.2)), budget_s=10.0)

    assert 8.5 < (clock.now_ns - begin) / 1e9 < 10.5
    assert made.steps >= 6


def test_as_many_steps_as_asked_for_are_timed_each_by_itself(clock: Clock) -> None:
    made = perfnb.time_step(step_of(clock, lambda rng: 20.0), steps=30)

    assert (made.block, len(made.samples_ms), made.wanted, len(made.warmup_ms)) == (1, 30, 30, 3)


def test_with_batches_each_step_has_its_own(clock: Clock) -> None:
    step = step_of(clock, lambda rng: 20.0)

    made = perfnb.time_step(lambda batch: step(), [1, 2])

    assert (made.block, made.steps) == (1, 20)


@pytest.mark.parametrize(
    ("given", "needed", "more", "left_s", "ran", "wanted"),
    [
        (10, 50, [0], 1000, [30], 40),
        (45, 50, [0], 1000, [], 40),
        (10, 50, [15, 0], 1000, [30, 15], 55),
        (10, 50, [15], 61, [30], 55),  # after 30 blocks, there is no time for another one
        (10, 99, [15], 61, [30], 99),
        (10, 50, [15, 12], 62, [30, 1], 55),
        (10, 50, [35, 35], 1000, [30, 30], 70),  # no more than 70 are allowed
    ],
)
def test_blocks_are_timed_until_no_more_are_needed_or_affordable(
    given: int, needed: int, more: list[int], left_s: int, ran: list[int], wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pilot plans 40 blocks, each of which takes two steps of a second."""
    now, asked, pilot = SimpleNamespace(s=100.0), list[int](), [1000.0, 999.0]

    def rounds(orders: Iterable[object], *, pass_name: str, planned: int, until: float, repeat: int) -> np.ndarray:
        assert (len(list(orders)), pass_name, until, repeat) == (planned, "timed", 100.0 + left_s, 2)
        asked.append(planned)
        now.s += 2 * planned
        return np.full((1, planned), 2000.0)

    plans = {(*pilot, left_s / 2): Planned(40, needed)}
    monkeypatch.setattr(timing, "plan_steps", lambda pilot, budget_s: plans[(*pilot, budget_s)])
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now.s))
    monkeypatch.setattr(timing, "still_needed", lambda samples: more.pop(0))
    monkeypatch.setattr(timing, "MOST_SAMPLES", 70)
    bench = SimpleNamespace(rounds=rounds)
    samples, steps = timing._until_known(bench, [1000.0] * given, pilot, 100.0 + left_s, 2)
    assert (samples, steps, asked) == ([1000.0] * max(40, 10 + sum(ran)), 2 * wanted, ran)


def test_a_clock_that_stands_still_asks_for_no_more() -> None:
    assert still_needed([0.0] * 20) == 0
    assert steps_in_block(0.0) == 10_000
    bench = SimpleNamespace(rounds=lambda orders, *, planned, **_: np.zeros((1, planned)))
    assert timing._until_known(bench, [], [0.0, 1.0], 0.0, 1) == ([0.0] * 20, 20)


def test_more_is_asked_for_by_the_square_of_what_the_interval_is_too_wide() -> None:
    narrow, wide = [10.0] * 20 + [10.1] * 20, [10.0] * 20 + [10.4] * 20

    assert still_needed(narrow) == 0
    assert still_needed(wide, half_width=0.02) == 0  # 10.0 to 10.4 around 10.2: 1.96 %
    assert still_needed(wide, half_width=0.0175) == 11  # 40 * (0.2 / 10.2 / 0.0175)² = 50.2
    assert still_needed(wide, half_width=0.001) == 40  # no more than there are
    assert still_needed([1.0, 2.0]) == 2


def test_blocks_are_saved_and_what_was_saved_before_there_were_any_still_loads(clock: Clock, tmp_path: Path) -> None:
    made = perfnb.time_step(step_of(clock, lambda rng: 20.0))

    saved = made.save(tmp_path / "timing")
    assert str(perfnb.load(saved)) == str(made)

    (meta,) = saved.glob("*.json")
    facts = json.loads(meta.read_text("utf-8"))
    meta.write_text(json.dumps({**facts, "meta": {n: v for n, v in facts["meta"].items() if n != "block"}}), "utf-8")
    assert perfnb.load(saved).block == 1
