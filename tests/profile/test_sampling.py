"""When a profile samples Python's stacks without having been asked to, and what it then says."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

import perfnb
from perfnb.profile import analysis, profiling
from perfnb.step.budget import BRIEFLY_S, Plan

pytestmark = pytest.mark.usefixtures("nothing_left")


def slow_metric() -> None:
    time.sleep(0.02)


def profile_of(sleeps: bool = True, **options: Any) -> perfnb.Profile:
    model, x = nn.Linear(4, 4), torch.ones(2, 4)

    def step() -> None:
        model(x).sum().backward()
        if sleeps:
            slow_metric()

    return perfnb.profile_step(step, **{"warmup": 0, "steps": 6, "memory": False, "flops": False, **options})


def sampled(p: perfnb.Profile) -> int:
    return int((p.steps["pass"] == "sampled").sum())


@pytest.mark.slow
def test_a_brief_sampled_pass_knows_the_function_and_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "unnamed_share", lambda _: 0.9)  # what findings say of samples: test_host_time.py
    p = profile_of()

    line = p.lines[p.lines["function"] == "slow_metric"].iloc[0]
    assert line["code"] == "time.sleep(0.02)"
    assert line["file"].endswith("test_sampling.py")
    assert sampled(p) > 0
    assert f"{sampled(p)} sampled" in str(p)
    assert "python_function" not in set(p.events["category"])
    assert p.meta["stacks"] is False


def test_stacks_are_sampled_if_the_host_takes_long_and_the_budget_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "unnamed_share", lambda _: 0.16)
    monkeypatch.setattr("perfnb.step.budget.BRIEFLY_S", 0.5)

    p = profile_of(sleeps=False)

    assert sampled(p) > 0
    assert p.meta["stacks"] is False


def test_an_error_while_sampling_reaches_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "unnamed_share", lambda _: 0.9)
    asked = []
    decide = profiling.Profile

    def told(*given: Any) -> Any:
        asked.append(True)
        return decide(*given)

    monkeypatch.setattr(profiling, "Profile", told)

    def step() -> None:
        torch.ones(3).sum()
        if asked:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        perfnb.profile_step(step, warmup=0, steps=6, memory=False, flops=False)


@pytest.mark.parametrize(
    ("spent_s", "step_s", "timed", "steps"),
    [
        *[(0.0, 0.1, 6, 15), (29.0, 0.1, 6, 10), (29.6, 0.1, 6, 0), (0.0, 2.0, 6, 1), (29.0, 2.0, 6, 0)],
        *[(0.0, 0.0, 6, 0), (0.0, 1e-6, 5000, 2000), (0.0, 1e-6, 200, 600), (0.0, 1e-6, 1, 30)],
    ],
)
def test_brief_sampling_keeps_to_the_budget_and_the_timed_steps(
    spent_s: float, step_s: float, timed: int, steps: int
) -> None:
    assert Plan(budget_s=30.0).briefly_sampled_steps(spent_s, step_s, timed) == steps
    assert steps * step_s <= max(BRIEFLY_S, step_s)


@pytest.mark.parametrize("value", ["yes", "Auto", 2, None, [1]])
def test_stacks_takes_three_values(value: Any) -> None:
    with pytest.raises(TypeError, match=r'^stacks must be True, False or "auto", not '):
        perfnb.profile_step(lambda: None, stacks=value)


def test_batches_that_cannot_start_again_are_not_used_up_by_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "briefly_sampled_steps", lambda *_: 1_000)

    def step(_: torch.Tensor) -> None:
        sum(range(200_000))

    p = perfnb.profile_step(
        step, (torch.ones(2) for _ in range(12)), warmup=1, steps=6, traced=2, memory=False, flops=False
    )

    assert "sampled" not in set(p.steps["pass"])
