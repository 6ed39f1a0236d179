"""What trials say: verdicts on values, and comparisons that raise no false alarm however many levers are tried."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from perfnb.bench.values import DIFFERENT, NOISE, REDUCED, SAME, UNCHECKED, Errors, Values, judge_values
from perfnb.remedies.budget import LeverPlan, TrialBudget, plan_for
from perfnb.remedies.lever import Lever, PreparedLever, always
from perfnb.remedies.verdicts import (
    LeverTrial,
    as_its_interval,
    fewest_rounds,
    keepable,
    memory_verdict,
    worth_trying,
)
from perfnb.stats.comparisons import compare_with_first
from tests.fake_clock import FakeClock


def test_a_verdict_agrees_with_its_interval() -> None:
    assert as_its_interval("slower", (0.99, 1.22)) == "inconclusive"
    assert as_its_interval("slower", (1.01, 1.22)) == "slower"
    assert as_its_interval("faster", None) == "faster"


def errors(own: float, lever: float, **rest: object) -> Errors:
    return Errors(**{"equal": False, "own": {"loss": own}, "other": {"loss": lever}, **rest})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "options", "verdict"),
    [
        (errors(1e-7, 1e-7, equal=True), {}, SAME),
        (errors(1e-7, 1e-5), {}, NOISE),
        (errors(1e-7, 1e-3), {}, DIFFERENT),
        (errors(1e-2, 2.5e-2), {}, NOISE),
        (errors(1e-7, 1e-2), {"lowers": "bfloat16"}, REDUCED),
        (errors(1e-7, 0.9), {"lowers": "bfloat16"}, DIFFERENT),
        (errors(1e-7, 1e-2, not_finite=("loss",)), {"lowers": "bfloat16"}, DIFFERENT),
        (errors(1e-7, 1e-7, vanished=("gradient",)), {}, DIFFERENT),
        (errors(1e-7, 0.3, random=True), {"reorders": True}, UNCHECKED),
        (errors(1e-7, 0.3, random=True), {}, DIFFERENT),
        (errors(1e-7, float("inf")), {}, DIFFERENT),
    ],
)
def test_a_verdict_on_values(found: Errors, options: dict[str, object], verdict: str) -> None:
    assert judge_values(found, **options).verdict == verdict  # type: ignore[arg-type]


def test_a_verdict_names_the_worst_result() -> None:
    found = Errors(False, {"a": 1e-7, "b": 1e-7}, {"a": 1e-2, "b": 0.5})
    assert judge_values(found).why.startswith("b is off by 0.5")


@pytest.mark.parametrize(
    ("verdict", "listed", "quality", "kept"),
    [
        (SAME, False, None, True),
        (NOISE, False, None, True),
        (REDUCED, False, None, False),
        (REDUCED, True, None, True),
        (REDUCED, False, True, True),
        (NOISE, False, False, False),
        (UNCHECKED, False, None, False),
        (UNCHECKED, True, None, True),
        (DIFFERENT, True, None, False),
        (DIFFERENT, False, True, True),
    ],
)
def test_what_may_be_kept(verdict: str, listed: bool, quality: bool | None, kept: bool) -> None:
    assert (keepable(Values(verdict, 0.1), listed, quality) == "") is kept


@pytest.mark.parametrize("levers", [1, 2, 5, 10, 20])
def test_the_fewest_rounds_can_reach_the_corrected_level(levers: int) -> None:
    rounds = fewest_rounds(levers)
    assert levers * 2 / 2**rounds <= 0.05
    rows = np.vstack([np.full(rounds, 10.0), *[np.full(rounds, 9.0) + 0.01 * np.arange(rounds)] * levers])
    assert {found.verdict for found in compare_with_first(rows)} == {"faster"}


def test_levers_that_do_nothing_are_seldom_called_faster() -> None:
    """Ten levers, tried in as many rounds as a small budget allows; noise with a heavy tail and drift."""
    numbers = np.random.default_rng(3)
    families, wrong = 1000, 0
    for _ in range(families):
        noise = np.exp(0.03 * numbers.standard_t(3, size=(11, fewest_rounds(10))))
        drift = np.linspace(1.0, 1.2, noise.shape[1])
        wrong += any(found.verdict == "faster" for found in compare_with_first(10 * noise * drift))
    assert wrong <= 50 + 3 * np.sqrt(families * 0.05 * 0.95)


def test_a_lever_that_saves_a_tenth_is_found_among_ten() -> None:
    numbers = np.random.default_rng(4)
    times = 10 * np.exp(0.01 * numbers.standard_normal((11, 20)))
    times[4] *= 0.9
    verdicts = [found.verdict for found in compare_with_first(times)]
    assert verdicts[3] == "faster"
    assert "faster" not in verdicts[:3] + verdicts[4:]


def lever(name: str = "a", **traits: Any) -> Lever:
    return Lever(name, "a lever of a test", lambda _: "", always(lambda _: nullcontext()), lambda _: [], **traits)


def allowed(
    plan: LeverPlan, levers: Sequence[Lever], step_s: float, budget_s: float, clock: FakeClock, each_s: float = 0.0
) -> list[str]:
    """The levers that are tried, as in the loop, if preparing one takes what is planned."""
    budget, ready = TrialBudget(budget_s, "time"), list[PreparedLever]()
    budget.plan, budget.step_s, budget.each_s = plan, step_s, each_s
    for one in levers:
        if budget.allows(one, ready):
            clock.sleep(plan.each * step_s + each_s)
            ready.append(PreparedLever(one, nullcontext, switching_s=0.0))
    return [one.lever.name for one in ready]


def test_a_long_step_gets_as_many_levers_as_the_budget_allows(clock: FakeClock) -> None:
    names = list("abcdefghij")
    ten = [lever(name) for name in names]
    assert allowed(LeverPlan(), ten, 0.01, 60, clock) == names
    few = len(allowed(LeverPlan(), ten, 1.0, 60, clock))
    assert 1 <= few < 10
    assert (few + 1) * fewest_rounds(few) * 1.0 <= 60
    assert allowed(plan_for("time", 5.0, 110), ten, 5.0, 100, clock) == ["a"]
    assert allowed(plan_for("time", 5.0, 60), ten, 5.0, 60, clock) == []
    assert allowed(plan_for("memory", 5.0, 110), ten, 5.0, 80, clock) == ["a", "b", "c", "d"]
    assert allowed(LeverPlan(), ten[:2], 0.1, 60, clock, each_s=40) == ["a"]


def test_a_lever_that_needs_many_steps_makes_room_for_the_next(clock: FakeClock) -> None:
    ahead = lever("ahead", in_blocks=True)
    assert allowed(LeverPlan(), [ahead, lever("b"), lever("c")], 1.0, 60, clock) == ["b", "c"]


@pytest.mark.parametrize(
    ("peak", "own", "said"),
    [(50, 100, "less"), (100, 100, "same"), (995, 1000, "same"), (200, 100, "more"), (None, 100, ""), (5, None, "")],
)
def test_a_verdict_on_memory(peak: int | None, own: int | None, said: str) -> None:
    assert memory_verdict(peak, own) == said


def test_levers_that_answer_a_finding_come_first() -> None:
    levers = [
        lever("a", answers=("x",)),
        lever("b"),
        lever("c", answers=("y", "z"), costly=True),
        lever("d", answers=("y",), costly=True),
        lever("e", for_memory=True, costly=True),
    ]
    bounds = {"x": 2.0, "z": 5.0}
    assert [one.name for one in worth_trying(levers, bounds, "time")] == ["c", "a", "b"]
    assert [one.name for one in worth_trying(levers, bounds, "memory")] == ["e", "c", "a", "b"]


@pytest.mark.parametrize(
    ("setup", "saves", "steps"), [(21.0, 2.26, 9293), (0.0, 1.0, 0), (3.0, 0.0, None), (None, 1.0, None)]
)
def test_after_how_many_steps_a_preparation_pays(setup: float | None, saves: float, steps: int | None) -> None:
    assert LeverTrial("a", "faster", saves_ms=saves, setup_s=setup).pays_after_steps == steps
