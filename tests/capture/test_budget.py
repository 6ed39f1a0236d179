"""How many steps each pass runs: as asked for, as many as needed, and never for longer than the budget."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfnb
from perfnb.capture.budget import FEWEST_TIMED, MOST_TIMED, Plan

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
    assert not plan.goes_on_warming([1], spent_s=5.0, gpu=False)
    assert not Plan(warmup=0).goes_on_warming([], 0.0, False)


def test_timed_steps_follow_the_spread_of_the_warm_up() -> None:
    plan = Plan()
    even, uneven = [10.0] * 20, [9.0, 11.0] * 10

    assert plan.timed_steps([]) == FEWEST_TIMED
    assert plan.timed_steps([1.0] * 3) == FEWEST_TIMED
    assert plan.timed_steps(even) == FEWEST_TIMED
    # Quartiles 9 and 11 around 10: a spread of 0.148; (1.96 * 1.2533 * 0.148 / 0.02)^2 = 331, above the bound.
    assert plan.timed_steps(uneven) == MOST_TIMED
    slightly = [9.6, 10.4] * 10  # a spread of 0.0593: 53.05 steps
    assert plan.timed_steps(slightly) == 54
    assert Plan(steps=7).timed_steps(uneven) == 7


def test_timing_ends_when_what_is_left_is_needed_for_tracing() -> None:
    plan = Plan(traced=3, budget_s=10, memory=False, flops=False)

    assert plan.goes_on_timing(done=0, wanted=5, spent_s=99, step_s=99)
    assert plan.goes_on_timing(done=4, wanted=5, spent_s=0, step_s=1)
    assert not plan.goes_on_timing(done=5, wanted=5, spent_s=0, step_s=1)
    # Kept back: four steps of 1.5 s. With the step itself 3 s may be spent.
    assert plan.goes_on_timing(done=1, wanted=5, spent_s=3.0, step_s=1)
    assert not plan.goes_on_timing(done=1, wanted=5, spent_s=3.1, step_s=1)
    # And three counted steps of 2 s: nothing may be spent before.
    assert Plan(traced=3, budget_s=13).goes_on_timing(done=1, wanted=5, spent_s=0.0, step_s=1)
    assert not Plan(traced=3, budget_s=13).goes_on_timing(done=1, wanted=5, spent_s=0.1, step_s=1)


def test_traced_steps_are_at_least_one_and_the_lead_in_is_the_first_to_go() -> None:
    plan = Plan(traced=3, budget_s=10)

    assert plan.traced_steps(spent_s=0, step_s=1) == (3, True)
    assert plan.traced_steps(spent_s=5.5, step_s=1) == (3, False)
    assert plan.traced_steps(spent_s=7.0, step_s=1) == (2, False)
    assert plan.traced_steps(spent_s=50, step_s=1) == (1, False)
    assert plan.traced_steps(spent_s=0, step_s=0) == (3, True)


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


@pytest.mark.alone
def test_a_slow_step_runs_only_a_handful_of_times_and_the_profile_says_so(nothing_left: None) -> None:
    p = perfnb.profile_step(lambda: time.sleep(0.5), budget_s=2)

    executed = p.steps["pass"].value_counts()
    assert len(p.steps) <= 6
    assert executed["timed"] >= 1
    assert executed["traced"] >= 1
    text = " ".join(str(p).split())
    assert f"ran {len(p.steps)} times" in text
    assert "The budget of 2 s ended the timed pass after 1 step; raise it with budget_s or --budget." in text
    assert f"The budget allowed only {executed['traced']} step" in text


@pytest.mark.slow
def test_explicit_numbers_of_steps_are_honoured(nothing_left: None) -> None:
    p = perfnb.profile_step(lambda: None, warmup=4, steps=9, traced=2)

    executed = p.steps["pass"].value_counts()
    assert executed[["warmup", "timed", "lead_in", "traced", "counted"]].tolist() == [4, 9, 2, 2, 2]
    assert p.timing.steps == 9
    assert p.timing.ci_ms is not None
    assert p.meta["options"]["steps"] == 9


@pytest.mark.slow
def test_a_step_of_no_length_runs_between_20_and_200_times(nothing_left: None) -> None:
    p = perfnb.profile_step(lambda: None, budget_s=5)

    assert FEWEST_TIMED <= p.timing.steps <= MOST_TIMED
    assert (p.steps["pass"] == "warmup").sum() >= 6


def test_after_the_first_step_a_budget_that_is_too_short_is_told() -> None:
    told = Plan(budget_s=10).why_longer(12.0, 12.0)

    assert told == (
        "a step takes 12 s: it will run at least 4 times more, for about 48 s, past the budget of 10 s, because each "
        "pass needs one (timed, traced, memory, FLOPs)"
    )
    assert Plan(budget_s=10).why_longer(1.0, 1.0) is None
    assert "2 times more" in str(Plan(budget_s=10, memory=False, flops=False).why_longer(6.0, 6.0))
