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
from perfnb.step import stack_sampler
from perfnb.step.layers import Layer
from perfnb.step.stack_sampler import Call, Frame, Sample, StackSampler, phases_of
from perfnb.step.worker_stacks import WorkerStack
from tests.fake_clock import FakeClock

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
        *("other", "forward", "loss", "backward")
    ]


def test_inference_has_no_loss() -> None:
    marks = [(10, "forward", True), (20, "forward", False)]
    assert phases_of([sample(15), sample(25)], marks) == ["forward", "other"]


def test_the_spans_between_marks_leave_out_what_is_recomputed_or_never_ends() -> None:
    marks = [
        *((1, "forward", True), (2, "loss", True), (3, "loss", False), (4, "forward", False), (5, "loss", False)),
        *((6, "backward", True), (7, "forward", True), (8, "forward", False), (9, "forward", True)),
        *((10, "backward", False), (11, "forward", True)),
    ]
    assert stack_sampler._spans(marks) == [(2, 3, "loss"), (1, 4, "forward"), (6, 10, "backward")]


def test_a_sample_at_a_mark_belongs_to_the_phase() -> None:
    marks = [(10, "forward", True), (20, "forward", False), (30, "backward", True), (40, "backward", False)]
    marks += [(50, "forward", True), (60, "forward", False), (70, "backward", True), (80, "backward", False)]
    times = {9: "other", 10: "forward", 20: "forward", 21: "loss", 29: "loss", 30: "backward", 40: "backward"}
    times |= {41: "other", 49: "other", 61: "loss", 80: "backward", 81: "other"}
    assert phases_of([sample(now) for now in times], marks) == list(times.values())


def test_samples_are_merged_into_a_tree_of_layers_and_functions() -> None:
    call, add, unwrap = nn.Module._call_impl.__code__, slow_penalty.__code__, inspect.unwrap.__code__
    layers = [Layer("net", "Sequential", None, 0, 0, False), Layer("net.1", "Slow", 0, 0, 0, False)]
    net, slow, other = (call, 1, (7, "Sequential")), (call, 1, (8, "Slow")), (call, 1, (8, "Gone"))
    line = add.co_firstlineno + 1
    wrapped = nn.Module._wrapped_call_impl.__code__, 3, None
    sampler = StackSampler()
    sampler._samples = [
        [Sample(1, 5, (wrapped, net, slow, (add, line, None)), False), Sample(2, 7, (net, other), False)],
        [
            Sample(3, 11, (net, slow, (add, line, None)), False),
            Sample(4, 13, ((inspect.unwrap.__code__, 9, None),), True),
        ],
    ]
    sampler._marks = [[], []]
    stacks = [WorkerStack(1, (("f.<locals>.g", __file__, 1, line),), 2, 30), WorkerStack(1, (), 1, 4)]

    calls = sampler.calls(layers, {7: 0, 8: 1}, stacks)

    code = "time.sleep(LONG_S)  # the planted line"
    assert calls == [
        Call(-1, "phase", "forward", "", -1, "", 0, 0),
        Call(0, "layer", "net", "", -1, "", 7, 1),  # the module is no longer the layer
        Call(1, "layer", "net.1", "", -1, "", 0, 0),
        Call(2, "own", "slow_penalty", __file__, line, code, 16, 2),
        Call(-1, "phase", "data", "", -1, "", 0, 0),
        Call(4, "other", "unwrap", unwrap.co_filename, unwrap.co_firstlineno, "", 13, 1),
        Call(-1, "worker", "loader worker 1", "", -1, "", 4, 1),
        Call(6, "own", "f.g", __file__, line, code, 30, 2),
    ]
    assert sampler.count == 4


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        (stack_sampler.__file__, "perfnb"), (__file__, "own"), ("/srv/me/cell.py", "own"), ("", "other"),
        ("<string>", "other"), ("<__array_function__ internals>", "other"), ("/x/dist-packages/a.py", "other"),
        (inspect.__file__, "other"),
    ],
)  # fmt: skip
def test_code_is_the_users_if_it_is_not_installed(file: str, kind: str) -> None:
    assert stack_sampler._kind(file) == kind


def runs(work: Callable[[], Any]) -> Any:
    """Stands for the function that runs a step."""
    return work()


def fetches(work: Callable[[], Any]) -> Any:
    return work()


def test_each_sample_covers_the_time_of_steps_since_the_last_one(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_sampler, "_RUN", runs.__code__)
    monkeypatch.setattr(stack_sampler, "_FETCHING", (fetches.__code__,))
    sampler, naps = StackSampler(), list[float]()
    sampler._watched = threading.get_ident()

    def nap(seconds: float) -> None:
        naps.append(seconds)
        clock.now_ns += 10**6
        sampler._stopped = len(naps) % 3 == 0

    monkeypatch.setattr(stack_sampler, "sleep", nap)
    sampler._sample()  # outside of a step
    with sampler.step():
        sampler._stopped = False
        sampler._sample()  # a step, but the code that runs it is not on the stack
        sampler._stopped = False
        runs(sampler._sample)
    clock.now_ns += 10**9
    with sampler.step():
        sampler._stopped = False
        runs(lambda: fetches(sampler._sample))

    first, second = sampler._samples
    assert [each.waits_for_data for each in (*first, *second)] == [False] * 3 + [True] * 3
    weights = [each.weight_ns for each in (*first, *second)]
    assert weights == pytest.approx([4e6, 1e6, 1e6, 1e6, 1e6, 1e6], abs=5_000)
    assert all(0.005 <= seconds <= 0.015 for seconds in naps)
    assert [code.co_name for code, *_ in second[0].frames] == ["<lambda>", "_sample"]


def test_marks_are_those_of_the_thread_that_runs_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    net, loss = nn.Sequential(nn.Linear(1, 1)), nn.MSELoss()
    one = torch.ones(1, 1)

    def train() -> None:
        loss(net(one), one).backward()

    with StackSampler([(net, False), (loss, True)]) as sampler:
        train()  # outside of a step
        thread = threading.Thread(target=train)
        with sampler.step():
            train()
            thread.start()
            thread.join()
    (marks,) = sampler._marks
    assert [(kind, starts) for _, kind, starts in marks] == [
        *(("forward", True), ("forward", False), ("loss", True), ("loss", False)),
        *(("backward", True), ("backward", False)),
    ]
    monkeypatch.delattr(torch.autograd, "_engine_run_backward")
    with StackSampler():
        assert not hasattr(torch.autograd, "_engine_run_backward")


def test_a_recording_without_samples_has_no_stacks(profile: perfnb.Profile) -> None:
    from dataclasses import replace

    assert step_stacks(replace(profile._recording, python=None)) is None
