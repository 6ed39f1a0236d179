"""What a budget allows, on the fake clock: all steps together stay within it, and a long step gets few levers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import perfnb
from perfnb.remedies import lever as lever_module
from perfnb.remedies.lever import Compiled, Lever
from perfnb.remedies.subject import Subject
from tests.fake_clock import FakeClock
from tests.remedies import hard_steps
from tests.remedies.hard_steps import lever, plant

NAMES = ["threads", "autocast", "channels_last", "fused_optimizer", "foreach_optimizer", "gc_freeze"]


def taken(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, step_s: float, budget_s: float, levers: str | list[str]
) -> tuple[float, int, perfnb.results.LeverTrials]:
    """Return seconds that pass, the steps that ran, and the result."""
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


def tiny() -> tuple[nn.Module, Callable[[], None]]:
    """Return a step of 600 parameters, whose own time is negligible compared with perfnb's work around it."""
    net = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 8))
    opt, x = torch.optim.SGD(net.parameters(), lr=0.1), torch.ones(4, 16)

    def step() -> None:
        hard_steps.pause()
        opt.zero_grad()
        net(x).square().sum().backward()
        opt.step()

    return net, step


def slow(clock: FakeClock, name: str, *, preparing_s: float = 0.0, switching_s: float = 0.0, **options: Any) -> Lever:
    """Return a lever that takes its time, but not in the step."""

    @contextmanager
    def switch() -> Iterator[None]:
        clock.sleep(switching_s)
        yield

    @contextmanager
    def prepared(_: Subject) -> Iterator[Callable[[], AbstractContextManager[None]]]:
        clock.sleep(preparing_s)
        yield switch

    return lever(name, prepared, **options)


@pytest.mark.parametrize(("preparing_s", "switching_s"), [(0.0, 0.5), (15.0, 0.0)], ids=lambda value: f"{value:g} s")
def test_the_budget_holds_where_perfnb_s_own_work_takes_longer_than_steps(
    preparing_s: float, switching_s: float, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"slow_{letter}" for letter in "abcdefgh"]
    made = [slow(clock, name, preparing_s=preparing_s, switching_s=switching_s) for name in names]
    plant(monkeypatch, *made)
    monkeypatch.setattr(hard_steps, "pause", lambda: clock.sleep(0.0003))
    begin = clock.now_ns

    found = perfnb.try_levers(tiny()[1], levers=names, budget_s=30)

    seconds = (clock.now_ns - begin) / 1e9
    table = found.table
    print(f"{seconds:.1f} s", table["verdict"].tolist(), table["why_not"].tolist())
    assert seconds <= 1.2 * 30 + preparing_s  # one lever's preparation cannot be foreseen
    assert table["ratio"].notna().sum() >= 1
    assert table.loc[table["ratio"].isna(), "why_not"].str.contains("raise budget_s").all()


def test_only_one_compilation_is_not_counted(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = 0

    def compiled() -> Compiled:
        return Compiled(graphs, 0)

    def compiling(name: str) -> Lever:
        @contextmanager
        def prepared(_: Subject) -> Iterator[Callable[[], AbstractContextManager[None]]]:
            made = False

            @contextmanager
            def switch() -> Iterator[None]:
                nonlocal made, graphs
                if not made:
                    clock.sleep(45.0)
                    made, graphs = True, graphs + 1
                yield

            yield switch

        return lever(name, prepared, settles=True)

    monkeypatch.setattr(lever_module, "_compiled", compiled)
    plant(monkeypatch, *[compiling(f"compiling_{letter}") for letter in "abc"])
    monkeypatch.setattr(hard_steps, "pause", lambda: clock.sleep(0.0003))
    begin = clock.now_ns

    found = perfnb.try_levers(tiny()[1], levers=[f"compiling_{letter}" for letter in "abc"], budget_s=30)

    assert (clock.now_ns - begin) / 1e9 <= 1.2 * 30 + 45
    assert found.table["verdict"].tolist().count("not tried") == 2
    assert found.table["ratio"].notna().tolist() == [True, False, False]


def test_a_step_too_long_for_the_budget_is_not_run_on_and_the_result_says_what_would_do(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, steps, found = taken(clock, monkeypatch, 10.0, 30.0, ["threads", "gc_freeze"])
    assert steps <= 3
    assert seconds <= 36
    assert found.table["why_not"].str.contains(r"about [\d,]+ s would be enough for all").all()
    assert found.figures.step_ms == pytest.approx(10_000.0, rel=0.01)
