"""What a budget allows, on the fake clock: all steps together stay within it, and a long step gets few levers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import perfnb
from perfnb.remedies.lever import Lever
from perfnb.remedies.subject import Subject
from tests.fake_clock import FakeClock
from tests.remedies import hard_steps
from tests.remedies.hard_steps import plant, switched

NAMES = ["threads", "autocast", "channels_last", "fused_optimizer", "foreach_optimizer", "gc_freeze"]


def taken(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, step_s: float, budget_s: float, levers: str | list[str]
) -> tuple[float, int, perfnb.LeverTrials]:
    """Seconds that pass, the steps that ran, and the result."""
    steps = 0

    def pause() -> None:
        nonlocal steps
        steps += 1
        clock.sleep(step_s)

    monkeypatch.setattr(hard_steps, "pause", pause)
    hard = hard_steps.batch_norm()
    begin = clock.now_ns
    found = perfnb.try_levers(hard.step, hard.loader, levers=levers, budget_s=budget_s)
    return (clock.now_ns - begin) / 1e9, steps, found


@pytest.mark.slow
@pytest.mark.parametrize("levers", [NAMES, "auto"], ids=["a list", "auto"])
@pytest.mark.parametrize(("step_s", "budget_s"), [(1.0, 60), (1.0, 120), (0.2, 60), (0.02, 10), (5.0, 300), (5.0, 120)])
def test_all_steps_together_stay_within_the_budget(
    step_s: float, budget_s: float, levers: str | list[str], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, steps, found = taken(clock, monkeypatch, step_s, budget_s, levers)
    print(f"{seconds:.1f} s of {budget_s}, {steps} steps, {(found.table['verdict'] != 'not tried').sum()} levers")
    assert seconds <= 1.2 * budget_s


def test_a_step_of_five_seconds_gets_a_sensible_subset(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, _, found = taken(clock, monkeypatch, 5.0, 120.0, NAMES)
    tried = found.table["verdict"] != "not tried"
    assert 1 <= tried.sum() < len(NAMES)
    assert found.table.loc[~tried, "why_not"].str.len().gt(0).all()
    assert seconds <= 144


@pytest.mark.parametrize(("step_s", "budget_s"), [(0.2, 20), (2.0, 120)])
def test_confirming_what_helps_stays_within_the_budget_too(
    step_s: float, budget_s: float, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    on: set[str] = set()

    def helping(name: str) -> Lever:
        @contextmanager
        def switch(_: Subject) -> Iterator[None]:
            on.add(name)
            yield
            on.remove(name)

        return switched(name, switch)

    monkeypatch.setattr(hard_steps, "pause", lambda: clock.sleep(step_s * 0.8 ** len(on)))
    plant(monkeypatch, *[helping(name) for name in "abc"])
    hard = hard_steps.batch_norm()
    begin = clock.now_ns
    found = perfnb.try_levers(hard.step, hard.loader, levers=["a", "b", "c"], budget_s=budget_s)
    seconds = (clock.now_ns - begin) / 1e9
    print(f"{seconds:.1f} s of {budget_s}, {found.best}")
    assert found.best
    assert seconds <= 1.2 * budget_s
