"""How many steps each pass runs: as asked for, as many as needed, and never for longer than the budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import perfnb
from perfnb.errors import CaptureError
from perfnb.step.budget import MOST_WARMUP, Plan, require_passing_time
from perfnb.step.ceilings import measure_ceilings
from tests.fake_clock import FakeClock

MS = 1_000_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"warmup": -1},
        {"warmup": 1.5},
        {"warmup": True},
        {"steps": 0},
        {"steps": "3"},
        {"traced": 0},
        {"traced": -2},
        {"budget_s": 0},
        {"budget_s": -1},
        {"budget_s": float("nan")},
        {"budget_s": float("inf")},
        {"budget_s": "30"},
        {"budget_s": None},
    ],
)
def test_a_wrong_number_is_refused_in_one_sentence_that_names_it(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=rf"^{name} must be a (whole )?number .*, not .*\.$"):
        perfnb.profile_step(lambda: pytest.fail("ran"), **wrong)


def test_an_automatic_warm_up_goes_on_until_steady_or_a_fifth_of_the_budget_is_spent() -> None:
    plan = Plan(budget_s=10)
    falling = [100 - 10 * number for number in range(9)]

    assert plan.goes_on_warming([], spent_s=0, gpu=False)
    assert plan.goes_on_warming(falling, spent_s=1.9, gpu=False)
    assert not plan.goes_on_warming(falling, spent_s=2.0, gpu=False)
    assert plan.goes_on_warming([5] * 5, spent_s=1, gpu=False)
    assert not plan.goes_on_warming([5] * 6, spent_s=1, gpu=False)
    assert plan.goes_on_warming([5] * 9, spent_s=1, gpu=True)
    assert not plan.goes_on_warming([5] * 10, spent_s=1, gpu=True)


def test_an_explicit_warm_up_runs_as_asked_unless_it_takes_half_of_the_budget() -> None:
    plan = Plan(warmup=3, budget_s=10)

    assert [plan.goes_on_warming([1] * done, 1.0, False) for done in range(5)] == [True, True, True, False, False]
    assert [plan.goes_on_warming([1], spent_s, False) for spent_s in (4.9, 5.0)] == [True, False]
    assert not Plan(warmup=0).goes_on_warming([], 0.0, False)


def test_timed_steps_follow_the_spread_of_the_warm_up() -> None:
    plan = Plan()
    even, uneven = [10.0] * 20, [9.0, 11.0] * 10

    assert plan.timed_steps([]) == 20
    assert plan.timed_steps(uneven[:5]) == 20
    assert plan.timed_steps(uneven[:6]) == 200
    assert plan.timed_steps(even) == 20
    # Quartiles 9 and 11 around 10: a spread of 0.148; (1.96 * 1.2533 * 0.148 / 0.02)^2 = 331, above the bound.
    assert plan.timed_steps(uneven) == 200
    slightly = [9.6, 10.4] * 10  # a spread of 0.0593: 53.05 steps
    assert plan.timed_steps([*uneven, *slightly]) == 54  # only the last 20 count
    assert plan.timed_steps([0.0] * 20) == 20  # the clock stood still
    # Quartiles 160.75 and 179.25 around 170, the mean of the two in the middle: a spread of 0.0807.
    assert plan.timed_steps([*range(156, 166), *range(175, 185)]) == 99
    assert Plan(steps=np.int64(7)).timed_steps(uneven) == 7  # a number of numpy's is a number


def test_timing_ends_when_what_is_left_is_needed_for_the_other_passes() -> None:
    plan = Plan(traced=3, budget_s=10, memory=False, flops=False)

    assert plan.goes_on_timing(done=0, wanted=50, spent_s=99, step_s=99)
    # From six steps on four of 1.5 s are kept back; with the step itself 3 s may be spent.
    assert plan.goes_on_timing(done=6, wanted=50, spent_s=3.0, step_s=1)
    assert not plan.goes_on_timing(done=6, wanted=50, spent_s=3.1, step_s=1)
    assert not plan.goes_on_timing(done=6, wanted=6, spent_s=0, step_s=1)
    # And three counted steps of 2 s: nothing may be spent before.
    assert Plan(traced=3, budget_s=13).goes_on_timing(done=6, wanted=50, spent_s=0.0, step_s=1)
    assert not Plan(traced=3, budget_s=13).goes_on_timing(done=6, wanted=50, spent_s=0.1, step_s=1)


def test_up_to_the_steps_for_an_interval_timing_leaves_one_step_to_each_other_pass() -> None:
    plan = Plan(traced=3, budget_s=30)

    assert plan.goes_on_timing(done=5, wanted=50, spent_s=18.5, step_s=3)  # and 9 s for one traced, two counted
    assert not plan.goes_on_timing(done=5, wanted=50, spent_s=20.0, step_s=3)
    assert not plan.goes_on_timing(done=3, wanted=3, spent_s=0.0, step_s=3)
    without = Plan(traced=3, budget_s=30, memory=False, flops=False)
    assert without.goes_on_timing(done=5, wanted=50, spent_s=25.0, step_s=3)


def test_a_warm_up_of_long_steps_ends_when_timing_needs_what_is_left() -> None:
    plan = Plan(budget_s=30)

    assert plan.goes_on_warming([4 * 1000 * MS], spent_s=4.0, gpu=False)  # the first step may be unlike the others
    assert plan.goes_on_warming([4 * 1000 * MS, 20 * MS], spent_s=4.02, gpu=False)
    assert not plan.goes_on_warming([2500 * MS] * 2, spent_s=5.2, gpu=False)
    assert plan.goes_on_warming([2500 * MS] * 2, spent_s=5.0, gpu=False)  # 5 + (1 + 6 + 3) * 2.5 = 30
    assert Plan(warmup=3, budget_s=30).goes_on_warming([2500 * MS] * 2, spent_s=5.2, gpu=False)


def test_traced_steps_are_at_least_one_and_the_lead_in_is_the_first_to_go() -> None:
    plan = Plan(traced=3, budget_s=10, memory=False, flops=False)

    assert plan.traced_steps(spent_s=0, step_s=1) == (3, True)
    assert plan.traced_steps(spent_s=5.5, step_s=1) == (3, False)
    assert plan.traced_steps(spent_s=7.0, step_s=1) == (2, False)
    assert plan.traced_steps(spent_s=50, step_s=1) == (1, False)
    assert plan.traced_steps(spent_s=0, step_s=0) == (3, True)
    assert Plan(traced=3, budget_s=10).traced_steps(spent_s=5.0, step_s=1) == (2, False)  # two counted steps come after


@pytest.mark.parametrize(
    ("spent_s", "step_s", "count"),
    [(0, 0.5, 4), (0, 0.6, 3), (0, 0.75, 0), (0, 0.1, 10), (0, 0, 10), (28, 0.2, 3), (28.2, 0.2, 0), (31, 0.001, 0)],
)
def test_a_trial_takes_a_tenth_of_the_budget_or_half_of_what_is_left(spent_s: float, step_s: float, count: int) -> None:
    assert Plan(budget_s=30).steps_to_try(spent_s, step_s) == count


@pytest.mark.parametrize(
    ("spent_s", "step_s", "count"),
    [(0, 0.02, 150), (0, 0.001, 2000), (26, 0.02, 100), (30, 0.02, 25), (0, 5, 1), (0, 0, 20)],
)
def test_stacks_are_sampled_for_three_seconds_or_half_of_what_is_left(
    spent_s: float, step_s: float, count: int
) -> None:
    assert Plan(memory=False, flops=False).sampled_steps(spent_s, step_s) == count


def test_sampling_leaves_time_for_the_counted_steps() -> None:
    assert Plan(flops=False).sampled_steps(spent_s=20, step_s=1) == 3  # (30 - 20 - 4) / 2
    assert Plan().sampled_steps(spent_s=20, step_s=1) == 1  # (30 - 20 - 8) / 2
    assert Plan(memory=False).sampled_steps(spent_s=22, step_s=1) == 2  # (30 - 22 - 4) / 2


@pytest.mark.parametrize(
    ("spent_s", "step_s", "timed", "count"),
    [
        (0, 0.01, 20, 60),
        (0, 0.01, 5, 30),
        (0, 0.01, 1000, 150),
        (0, 1e-5, 1000, 2000),
        (0, 1e-5, 600, 1800),
        (29.5, 0.01, 20, 50),
        (29.6, 0.01, 20, 0),
        (0, 0, 20, 0),
        (29, 1.1, 20, 0),
        (29, 1.0, 20, 1),
        (0, 1.6, 20, 1),
    ],
)
def test_unasked_stacks_are_sampled_briefly(spent_s: float, step_s: float, timed: int, count: int) -> None:
    assert Plan(budget_s=30).briefly_sampled_steps(spent_s, step_s, timed) == count


def test_a_lead_in_step_needs_time_for_all_counted_steps() -> None:
    assert Plan().affords_lead_in(spent_s=24.0, step_s=1)
    assert not Plan().affords_lead_in(spent_s=24.1, step_s=1)
    assert Plan(flops=False).affords_lead_in(spent_s=26.0, step_s=1)
    assert not Plan(flops=False).affords_lead_in(spent_s=26.1, step_s=1)


def test_passes_that_exceed_the_budget_are_announced_after_the_first_step() -> None:
    plan = Plan(budget_s=10)
    assert plan.why_longer(spent_s=2, step_s=2) is None
    assert plan.why_longer(spent_s=2.4, step_s=2) == (
        "a step takes 2.00 s: the remaining passes (timed, traced, memory, FLOPs) need at least one step each, about "
        "8.00 s in total, which exceeds the budget of 10 s"
    )
    few = Plan(budget_s=10, memory=False, flops=False).why_longer(spent_s=6.1, step_s=2)
    assert few is not None
    assert "(timed, traced) need at least one step each, about 4.00 s" in few


def test_a_clock_that_stands_still_is_an_error() -> None:
    require_passing_time([])
    require_passing_time([0, 0, 1])
    with pytest.raises(CaptureError, match=r"^The clock stood still for 2 steps, so they cannot be timed: "):
        require_passing_time([0, 0])


@pytest.mark.slow
def test_of_a_long_step_most_runs_are_timed(clock: FakeClock, nothing_left: None) -> None:
    def step() -> None:
        clock.pass_exactly(3000)

    p = perfnb.profile_step(step, budget_s=30)

    passes = p.steps["pass"].tolist()
    assert passes == ["warmup", *["timed"] * 6, "traced", "counted", "counted"]
    assert p.timing.samples_ms == pytest.approx((3000.0,) * 6)
    assert p.timing.ci_ms is not None
    text = " ".join(str(p).split())
    assert "step 3.00 s [3.00, 3.00] (95 % interval, median of 6 timed steps)" in text
    assert "The budget of 30 s ended the timed pass after 6 steps" in text


@given(
    warmup=st.none() | st.integers(0, 300),
    steps=st.none() | st.integers(1, 300),
    traced=st.integers(1, 20),
    budget_s=st.floats(0.1, 100),
    step_s=st.floats(1e-6, 50),
)
def test_no_plan_spends_more_than_its_budget_and_a_step_of_each_pass(
    warmup: int | None, steps: int | None, traced: int, budget_s: float, step_s: float
) -> None:
    plan = Plan(warmup=warmup, steps=steps, traced=traced, budget_s=budget_s)
    spent, warm, timed = 0.0, 0, 0
    while plan.goes_on_warming([step_s] * warm, spent, gpu=False):
        warm, spent = warm + 1, spent + step_s
    wanted = plan.timed_steps([step_s] * warm)
    while plan.goes_on_timing(timed, wanted, spent, step_s):
        timed, spent = timed + 1, spent + step_s
    count, lead_in = plan.traced_steps(spent, step_s)

    assert warm <= (300 if warmup is None else warmup)
    assert 1 <= timed <= wanted
    assert 1 <= count <= traced
    assert spent + (count + lead_in) * step_s <= max(budget_s, 0) + 3 * step_s + 1e-6


def test_an_automatic_warm_up_ends_after_so_many_steps_steady_or_not() -> None:
    rising = [1] * (MOST_WARMUP - 20) + list(range(1, 21))

    assert Plan().goes_on_warming(rising[1:], spent_s=0, gpu=False)
    assert not Plan().goes_on_warming(rising, spent_s=0, gpu=False)


MODEL, BATCH = nn.Linear(4, 4), torch.ones(2, 4)
RUN = [
    pytest.param(lambda step: perfnb.profile_step(step), id="profile_step"),
    pytest.param(lambda step: perfnb.profile_step(step, warmup=3, steps=3), id="profile_step, few steps"),
    pytest.param(lambda step: perfnb.time_step(step), id="time_step"),
    pytest.param(lambda step: perfnb.ab_test(step, lambda: step()), id="ab_test"),
    pytest.param(lambda step: perfnb.scaling_study(lambda size: step, [1, 2, 3, 4]), id="scaling_study"),
    pytest.param(
        lambda step: perfnb.confirm_input_bound(lambda batch: step(MODEL), [BATCH] * 3, MODEL), id="confirm_input_bound"
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("run", RUN)
def test_a_clock_that_stands_still_ends_in_a_sentence_after_a_bounded_number_of_steps(
    run: Callable[[Callable[..., Any]], Any], monkeypatch: pytest.MonkeyPatch, nothing_left: None
) -> None:
    calls = 0

    def step(model: nn.Module | None = None) -> None:
        nonlocal calls
        calls += 1
        if calls > 2_000:
            pytest.fail("the steps have no end")
        if model is not None:
            model(BATCH)

    monkeypatch.setattr(time, "perf_counter", lambda: 5.0)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 5 * 10**9)
    with pytest.raises(CaptureError, match=r"^The clock stood still for \d+ steps"):
        run(step)
    assert calls


def test_ceilings_are_unknown_if_the_clock_stands_still(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PERFNB_CACHE", str(tmp_path))  # where nothing was measured before
    monkeypatch.setattr(time, "perf_counter", lambda: 5.0)

    assert measure_ceilings(["float32"], "cpu", refresh=True)["flops_per_s"] == {}
