"""Python's stacks of a step: which phase, layer and line a sample belongs to, and that nothing stays behind."""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import perfnb
from perfnb.flame.step_stacks import step_stacks
from perfnb.step.stack_sampler import Frame, Sample, StackSampler, phases_of

pytestmark = pytest.mark.usefixtures("nothing_left")

LONG_S = 0.04


class Slow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(LONG_S)
        return x * 2


def slow_penalty(x: torch.Tensor) -> torch.Tensor:
    time.sleep(LONG_S)  # the planted line
    return x.sum()


def planted_step() -> Callable[[], None]:
    net = nn.Sequential(nn.Linear(4, 4), Slow())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        out = net(torch.ones(2, 4))
        slow_penalty(out).backward()
        optimizer.step()

    return step


def line_of(words: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if words in line and "line_of" not in line)


@pytest.fixture(scope="module")
def profile() -> perfnb.Profile:
    # A step of at least 60 ms, of which half is planted in the loss and half in the last layer.
    return perfnb.profile_step(
        planted_step(), stacks=True, warmup=0, steps=2, traced=1, memory=False, flops=False, budget_s=4
    )


def test_the_planted_function_is_the_widest_of_its_phase_and_its_line_is_named(profile: perfnb.Profile) -> None:
    lines = profile.lines
    loss = lines[lines["phase"] == "loss"]
    widest = loss.iloc[0]
    assert (widest["function"], widest["line"]) == ("slow_penalty", line_of("# the planted line"))
    assert widest["code"] == "time.sleep(LONG_S)  # the planted line"
    assert widest["file"] == __file__
    assert widest["self_ms"] == loss["self_ms"].max()


def test_layers_stand_around_the_code_that_they_run(profile: perfnb.Profile) -> None:
    assert profile.python is not None
    stacks = profile.python.stacks["stack"]
    inside = stacks[stacks.str.contains("Slow.forward")]
    assert len(inside)
    assert inside.str.contains("net;Sequential.forward;net.1;Slow.forward", regex=False).all()
    assert inside.str.startswith("forward;").all()


def test_samples_and_times_add_up(profile: perfnb.Profile) -> None:
    found = profile.python
    assert found is not None
    stacks = found.stacks
    assert found.samples == stacks["samples"].sum() == profile.meta["python"]["samples"]
    assert (profile.steps["pass"] == "sampled").sum() == profile.meta["python"]["steps"]
    in_functions = stacks["stack"].str.contains(";")  # a sample may find a phase with no function running
    assert stacks.loc[in_functions, "ms"].sum() == pytest.approx(found.functions["self_ms"].sum())


def test_saved_with_the_profile(profile: perfnb.Profile, tmp_path: Path) -> None:
    again = perfnb.load(profile.save(tmp_path / "p"))
    assert again.lines.equals(profile.lines)
    assert again.python is not None
    assert again.python.functions.equals(profile.python.functions)  # type: ignore[union-attr]
    assert "slow_penalty" in str(again)
    assert "Flame graph" in again.to_html(tmp_path / "p.html").read_text()


@pytest.mark.parametrize("stacks", ["auto", 0])
def test_without_stacks_there_are_none(stacks: Any) -> None:
    p = perfnb.profile_step(
        lambda: torch.ones(2).sum(), warmup=0, steps=1, traced=1, memory=False, flops=False, stacks=stacks
    )
    assert p.python is None
    assert p.lines.empty
    assert "sampled" not in set(p.steps["pass"])


def test_everything_is_removed_after_an_error() -> None:
    net, engine, switch = nn.Linear(2, 2), torch.autograd._engine_run_backward, sys.getswitchinterval()
    sampler = StackSampler([(net, False)])
    seen = []

    def interrupted() -> None:
        with sampler:
            seen.extend([len(net._forward_hooks), torch.autograd._engine_run_backward is not engine])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert seen == [1, True]
    assert not net._forward_hooks
    assert not net._forward_pre_hooks
    assert torch.autograd._engine_run_backward is engine
    assert sys.getswitchinterval() == switch
    assert not [thread for thread in threading.enumerate() if thread.name == "perfnb-stacks"]


def sample(time_ns: int, *functions: object, data: bool = False, module: bool = False) -> Sample:
    frames: list[Frame] = [(inspect.unwrap(function).__code__, 1, None) for function in functions]  # type: ignore
    if module:
        frames.append((slow_penalty.__code__, 1, (1, "Linear")))
    return Sample(time_ns, 1, tuple(frames), data)


def test_phases_by_marks() -> None:
    marks = [
        *((10, "forward", True), (20, "forward", False), (30, "loss", True), (40, "loss", False)),
        # Recomputed in backward: not forward.
        *((50, "backward", True), (60, "forward", True), (65, "forward", False), (70, "backward", False)),
    ]
    samples = [
        *(sample(5, data=True), sample(7), sample(15), sample(25), sample(35), sample(45), sample(55), sample(62)),
        *(sample(75), sample(80, torch.optim.Optimizer.zero_grad), sample(90)),
    ]
    assert phases_of(samples, marks) == [
        *("data", "other", "forward", "loss", "loss", "loss", "backward", "backward"),
        *("other", "optimizer", "other"),
    ]


def test_phases_of_code_that_no_hook_sees() -> None:
    # A compiled model has no hooks: its frames tell.
    marks = [(50, "backward", True), (70, "backward", False)]
    assert phases_of([sample(5), sample(15, module=True), sample(30), sample(60)], marks) == [
        *("other", "forward", "loss", "backward"),
    ]


def test_inference_has_no_loss() -> None:
    marks = [(10, "forward", True), (20, "forward", False)]
    assert phases_of([sample(15), sample(25)], marks) == ["forward", "other"]


def test_a_recording_without_samples_has_no_stacks(profile: perfnb.Profile) -> None:
    from dataclasses import replace

    assert step_stacks(replace(profile._recording, python=None)) is None
