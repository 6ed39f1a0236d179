"""What trials say: verdicts on values, and comparisons that raise no false alarm however many levers are tried."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from perfnb.bench.values import DIFFERENT, NOISE, REDUCED, SAME, UNCHECKED, Values
from perfnb.remedies import lever as lever_module
from perfnb.remedies import values
from perfnb.remedies.budget import LeverPlan, TrialBudget, plan_for
from perfnb.remedies.lever import Compiled, Lever, PreparedLever, Switch, always
from perfnb.remedies.levers import by_name
from perfnb.remedies.measuring import time_levers
from perfnb.remedies.subject import Subject
from perfnb.remedies.verdicts import (
    LeverFigures,
    LeverTrial,
    as_its_interval,
    bound_of,
    fewest_rounds,
    keepable,
    memory_verdict,
    not_hopeless,
    over_a_limit,
    worth_trying,
)
from perfnb.stats.comparisons import compare_with_first
from tests.fake_clock import FakeClock


def allowed(
    plan: LeverPlan, levers: Sequence[Lever], step_s: float, budget_s: float, clock: FakeClock, each_s: float = 0.0
) -> list[str]:
    """Return the levers that are tried, as in the loop, if preparing one takes what is planned."""
    budget, ready = TrialBudget(budget_s, "time"), list[PreparedLever]()
    budget.plan, budget.step_s, budget.each_s = plan, step_s, each_s
    for one in levers:
        if budget.allows(one, ready):
            clock.sleep(plan.each * step_s + each_s)
            ready.append(PreparedLever(one, nullcontext, switching_s=0.0))
    return [one.lever.name for one in ready]


def test_a_verdict_agrees_with_its_interval() -> None:
    assert as_its_interval("slower", (1.0, 1.22)) == as_its_interval("faster", (0.9, 1.0)) == "inconclusive"
    assert as_its_interval("slower", (1.01, 1.22)) == "slower"
    assert as_its_interval("faster", (0.9, 0.99)) == as_its_interval("faster", None) == "faster"
    assert as_its_interval("same", (0.99, 1.01)) == "same"


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


def lever(name: str = "a", **traits: Any) -> Lever:
    return Lever(name, "a lever of a test", lambda _: "", always(lambda _: nullcontext()), lambda _: [], **traits)


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
    [
        (990, 1000, "less"),
        (991, 1000, "same"),
        (1009, 1000, "same"),
        (1010, 1000, "more"),
        (None, 1, ""),
        (5, None, ""),
    ],
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
    assert LeverTrial("a", "same", saves_ms=saves, setup_s=setup).pays_after_steps is None
    figures = LeverFigures("step", step_ms=10.0)
    assert (figures.own_ms(True), figures.own_ms(False)) == (10.0, 10.0)
    figures.fed_ms = 12.0
    assert (figures.own_ms(True), figures.own_ms(False)) == (12.0, 10.0)


def test_how_many_steps_each_part_takes() -> None:
    plain, blocks, settles = lever("a"), lever("b", in_blocks=True), lever("c", settles=True)
    full, brief = LeverPlan(), plan_for("time", 1.0, 59.9)
    assert plan_for("time", 1.0, 60.0) == full
    assert (full.own, full.each) == (2 + 3 * 4, 2 + 3 + 2)
    assert (brief.own, brief.each, brief.timed) == (2, 2, True)
    assert [full.turn(one) for one in (plain, blocks, settles)] == [1, 10, 4]
    assert [brief.turn(one) for one in (plain, blocks, settles)] == [1, 10, 1]
    assert [full.a_round(levers) for levers in ([], [plain], [plain] * 2, [blocks, settles, plain])] == [0, 2, 3, 30]
    assert [fewest_rounds(count) for count in (0, 1, 2, 4, 20)] == [6, 6, 7, 8, 10]
    assert full.timing([plain]) == 2 * (2 + 6)
    assert full.timing([plain] * 2) == 3 * (2 + 7)
    assert (full.confirming(), full.confirming(settles=True), brief.confirming(settles=True)) == (18, 72, 16)
    memory = plan_for("memory", 1.0, 59.9)
    assert (memory.weighed, memory.timed, memory.timing([plain]), memory.confirming()) == (2, False, 0, 0)


def test_a_lever_is_tried_if_it_fits_into_what_is_left(clock: FakeClock) -> None:
    budget = TrialBudget(100.0, "time")
    clock.pass_exactly(10_000)
    budget.divide(1.0)
    budget.each_s = 0.5
    budget.keep_for_confirming()
    assert budget.kept_s == pytest.approx(22.5, abs=1e-5)
    plain, ready = lever(), PreparedLever(lever("b"), nullcontext, switching_s=1.0)
    # Within 1.1 times the 67.5 s that are left: 0.5 s, 7 steps to prepare and 16 to time it.
    assert budget.allows(plain, beside=50)
    assert not budget.allows(plain, beside=51)
    # With another one 27 steps to time both, and 9 rounds, where both switch.
    assert budget.allows(plain, [ready], beside=21)
    assert not budget.allows(plain, [ready], beside=22)
    budget.compiled(5.0)
    budget.compiled(9.0)  # only the first is not counted
    assert budget.left_s == pytest.approx(95.0, abs=1e-5)
    assert budget.allows(plain, beside=56)
    assert not budget.allows(plain, beside=57)
    settles = lever(settles=True)
    # A round takes 8 steps, and the lever is compiled once more.
    assert budget.allows(settles, beside=3)
    assert not budget.allows(settles, beside=4)
    assert not budget.allows(by_name()["compile_max_autotune"])  # 20 compilations
    assert budget.allows(by_name()["compile_reduce_overhead"])


def test_the_budget_that_would_do_for_all_levers(clock: FakeClock) -> None:
    budget = TrialBudget(100.0, "time")
    clock.pass_exactly(10_000)
    budget.divide(1.0)
    budget.each_s = 0.5
    # 10 s before and 14 + 7 + 16 steps, or 28.5 s by the brief plan that so short a budget would take, and 10 steps.
    assert budget.need_s([lever()], False, 1.0) == 47  # 1.2 * 38.5
    # With 18 steps to confirm, or a quarter of all.
    assert budget.need_s([lever()], True, 1.0) == 79  # 1.2 * 65.5
    assert budget.need_s([lever()] * 20, True, 1.0) == 682  # 1.2 * (10 + 14 + 140 + 252 + 10) / 0.75


def test_levers_many_times_slower_are_timed_no_further() -> None:
    pilot = np.array([[10.0, 12.0], [50.0, 90.0], [90.0, 50.1], [10.0, 99.0]])
    assert not_hopeless(pilot) == [0, 1, 3]


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({}, ""),
        ({"median_ms": 11.0, "peak_memory_bytes": 100.0}, ""),
        ({"median_ms": 10.9}, "median_ms is 11, above the limit of 10.9"),
        ({"peak_memory_bytes": 99.0}, "peak_memory_bytes is 100, above the limit of 99"),
        ({"p95_ms": 99.0}, "p95_ms has a limit but was not measured"),
    ],
)
def test_limits_on_time_and_memory(limits: dict[str, float], why: str) -> None:
    tried = LeverTrial("a", "faster", times_ms=(10.0, 11.0, 12.0), peak_bytes=100)
    assert over_a_limit(tried, limits) == why
    assert over_a_limit(LeverTrial("a", "faster"), {"median_ms": 9.0}) == "median_ms has a limit but was not measured"
    many = LeverTrial("a", "faster", times_ms=(10.0,) * 59 + (20.0,) * 6)
    assert over_a_limit(many, {"median_ms": 10.0, "p95_ms": 19.0}) == "p95_ms is 20, above the limit of 19"


def test_what_helps_depends_on_the_goal() -> None:
    faster, less = LeverTrial("a", "faster"), LeverTrial("b", "same", memory="less", unconfirmed=True)
    assert [one.helps("time") for one in (faster, less)] == [True, False]
    assert [one.helps("memory") for one in (faster, less)] == [False, True]
    assert not LeverTrial("a", "faster", why_not="it failed").helps("time")
    figures = LeverFigures("step", trials=[faster, less], kept=("a",))
    assert figures.best == ("a",)
    figures.confirms = False
    assert figures.best == ("b",)
    assert bound_of(lever(answers=("x", "y")), {"x": 1.0, "y": 3.0, "z": 9.0}) == 3.0
    assert bound_of(lever(answers=("x",)), {"z": 9.0}) is None


def test_what_a_timed_lever_saves_is_of_the_median_step() -> None:
    own, times = np.array([10.0, 10.5, 9.5, 10.0, 10.2, 9.8]), np.full(6, 8.0)
    found = compare_with_first(np.vstack([own, times]))[0]
    tried = LeverTrial("a", "not timed")
    tried.timed(found, own, times)
    assert (tried.verdict, tried.times_ms) == ("faster", (8.0,) * 6)
    assert tried.saves_ms == pytest.approx(10.0 * (1 - found.ratio))


@pytest.mark.parametrize(
    ("kind", "available", "limit", "free"),
    [("cpu", 500, None, 500), ("cpu", 500, 400, 370), ("cpu", 300, 400, 300), ("cuda", 0, None, 900)],
)
def test_memory_that_is_free(
    kind: str, available: int, limit: int | None, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory: Any = SimpleNamespace(available=available, memory_info=lambda: SimpleNamespace(rss=30))
    monkeypatch.setattr(values, "psutil", SimpleNamespace(virtual_memory=lambda: memory, Process=lambda: memory))
    monkeypatch.setattr(values, "memory_limit_bytes", lambda: limit)
    monkeypatch.setattr(values, "capacity_bytes", {"cuda": 1000, "none": 1000}.get)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda: 100)
    assert values.free_bytes(kind) == free
    assert values.free_bytes("none") is values.free_bytes("mps") is None


def test_a_compilation_is_counted_only_if_torch_has_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = {"stats": {"unique_graphs": 3}, "graph_break": {"item": 1, "print": 4}}
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters=counters))  # type: ignore[misc]
    assert lever_module._compiled() == (3, 5)
    counters["stats"] = {}
    assert lever_module._compiled() == (0, 5)
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils")
    assert lever_module._compiled() == (0, 0)


@pytest.mark.parametrize(
    ("first", "later", "notes"),
    [
        ((0, 0), (0, 0), []),
        ((1, 0), (1, 0), ["1 graph, 0 graph breaks"]),
        ((2, 1), (3, 1), ["2 graphs, 1 graph break", "recompiled 1 time since"]),
        ((0, 0), (2, 0), ["recompiled 2 times since"]),
    ],
)
def test_notes_of_a_compilation(first: tuple[int, int], later: tuple[int, int], notes: list[str]) -> None:
    one = PreparedLever(by_name()["compile"], nullcontext)
    one.at_first, one.until_now = Compiled(*first), Compiled(*later)
    assert one.notes == notes


def test_if_all_levers_are_hopeless_nothing_more_is_timed(clock: FakeClock) -> None:
    def step() -> None:
        runs.append(len(runs))
        clock.pass_exactly(10 if torch.is_grad_enabled() else 501)

    runs = list[int]()
    subject = Subject(step, None, {}, {}, None)
    alone = time_levers(subject, [torch.no_grad], 10.0, lambda *_: None, warm=2, block=1, ahead=False)
    assert np.isnan(alone).all()
    assert (alone.shape, len(runs)) == ((2, 2), 4)


def test_a_hopeless_lever_leaves_its_time_to_the_others(clock: FakeClock) -> None:
    factor = [1.0]
    subject = Subject(lambda: clock.pass_exactly(10 * factor[-1]), None, {}, {}, None)

    def slower(by: float) -> Switch:
        @contextmanager
        def on() -> Iterator[None]:
            factor.append(by)
            yield
            factor.pop()

        return on

    both = time_levers(subject, [slower(50), slower(2)], 2.0, lambda *_: None, warm=2, block=1, ahead=False)
    assert np.isnan(both).all(axis=1).tolist() == [False, True, False]
    assert np.median(both[2] / both[0]) == pytest.approx(2, rel=0.01)
    assert both.shape[1] == pytest.approx((2.0 - 2 * 0.53) / 0.03, abs=1)


@pytest.mark.slow
def test_levers_that_do_nothing_are_seldom_called_faster() -> None:
    """Ten levers, tried in as many rounds as a small budget allows; noise with a heavy tail and drift."""
    numbers = np.random.default_rng(3)
    families, wrong = 100, 0
    for _ in range(families):
        noise = np.exp(0.03 * numbers.standard_t(3, size=(11, fewest_rounds(10))))
        drift = np.linspace(1.0, 1.2, noise.shape[1])
        wrong += any(found.verdict == "faster" for found in compare_with_first(10 * noise * drift))
    assert wrong <= 0.05 * families + 3 * np.sqrt(families * 0.05 * 0.95)
