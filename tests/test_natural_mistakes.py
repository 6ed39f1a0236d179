"""Mistakes that are easily made with a step: what perfnb says of them, and when."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

import perfnb
from perfnb.errors import CaptureError
from perfnb.profile import profiling

pytestmark = pytest.mark.usefixtures("nothing_left")

SHORT: dict[str, Any] = {"warmup": 1, "steps": 1, "traced": 1, "memory": False, "flops": False}


class Told:
    """Replaces the progress line, and remembers its calls."""

    def __init__(self, enabled: bool = True) -> None:
        self.updates: list[tuple[Any, ...]] = []

    def __enter__(self) -> Told:
        return self

    def __call__(self, *update: Any) -> None:
        self.updates.append(update)

    def __exit__(self, *exc_info: object) -> None:
        return


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    made = Told()
    monkeypatch.setattr(profiling, "Progress", lambda enabled, **_: made)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(("times", "loop"), [(1, False), (5, False), (20, True)])
def test_a_loop_in_the_step_is_reported_while_it_first_runs_and_in_the_profile(
    told: Told, times: int, loop: bool
) -> None:
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def epoch() -> None:
        for _ in range(times):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()

    p = perfnb.profile_step(epoch, **SHORT)

    assert ("profile one iteration, not the whole loop" in str(p)) == loop
    notes = [update[3] for update in told.updates if len(update) > 3]
    assert bool(notes) == loop
    if loop:
        assert "Your step called optimizer.step() 20 times" in str(p)
        assert told.updates[0][:2] == ("warmup", 0)
        assert "has called optimizer.step() 9 times already" in notes[0]
        assert "calls optimizer.step() 20 times" in notes[-1]


@pytest.mark.slow
def test_an_optimizer_in_a_loop_is_called_as_the_step_calls_it_or_by_its_class() -> None:
    model = nn.Linear(4, 4)
    optimizers = {"head": torch.optim.SGD(model.parameters(), lr=0.1)}

    def kept() -> None:
        for _ in range(20):
            optimizers["head"].step()

    def made_anew() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(20):
            optimizer.step()

    assert "Your step called optimizers['head'].step() 20 times" in str(perfnb.profile_step(kept, **SHORT))
    assert "Your step called SGD.step() 20 times" in str(perfnb.profile_step(made_anew, **SHORT))


@pytest.mark.deep
def test_an_optimizer_that_the_counted_step_leaves_out_is_reported() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def every(calls: int, seen: int) -> str:
        def step() -> None:
            nonlocal seen
            model(torch.ones(2, 4)).sum().backward()
            seen += 1
            if seen % calls == 0:
                optimizer.step()

        return str(perfnb.profile_step(step, **SHORT | {"memory": True}))

    says = "SGD ran in other steps, but not in the step whose memory was counted"
    # Of two steps in a row whose memory is watched, the last is the counted one.
    assert [says in every(2, seen) for seen in (0, 1)].count(True) == 1
    assert says not in every(1, 0)


def test_several_optimizers_that_step_once_each_are_no_loop(told: Told) -> None:
    models, x = [nn.Linear(4, 4) for _ in range(12)], torch.ones(2, 4)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]

    def step() -> None:
        for model, optimizer in zip(models, optimizers, strict=True):
            model(x).sum().backward()
            optimizer.step()

    assert "whole loop" not in str(perfnb.profile_step(step, **SHORT))


def test_a_step_too_long_for_the_budget_says_so_after_its_first_execution(told: Told) -> None:
    x = torch.ones(2, 4)

    perfnb.profile_step(lambda: x + 1, budget_s=1e-9, memory=False, flops=False)

    assert told.updates[0][:2] == ("warmup", 1)
    assert "exceeds the budget" in told.updates[0][3]


def test_a_step_that_prints_shows_its_first_lines(capsys: pytest.CaptureFixture[str]) -> None:
    x, stdout = torch.ones(2, 4), sys.stdout

    def step() -> None:
        for line in range(8):
            print("line", line)
        torch.add(x, 1)

    perfnb.profile_step(step, **SHORT)

    lines = capsys.readouterr().out.splitlines()
    assert lines[:10] == [f"line {line % 8}" for line in range(10)]
    assert lines[10:] == ["[perfnb: 22 more lines printed by the step]"]
    assert sys.stdout is stdout


def test_a_step_that_raises_shows_what_it_printed_last(capsys: pytest.CaptureFixture[str]) -> None:
    model, x, stdout = nn.Linear(4, 4), torch.ones(2, 4), sys.stdout
    runs = iter(range(100))

    def step() -> None:
        print("run", run := next(runs))
        model(x)
        if run == 30:
            raise KeyError("the 31st")

    with pytest.raises(KeyError, match="the 31st"):
        perfnb.profile_step(step, steps=60, memory=False, flops=False)

    assert capsys.readouterr().out.splitlines()[-1] == "run 30"
    assert sys.stdout is stdout


def test_a_model_without_data_is_named_where_its_step_fails() -> None:
    with torch.device("meta"):
        net = nn.Linear(4, 4)
    x = torch.ones(2, 4)

    with pytest.raises(RuntimeError) as raised:
        perfnb.profile_step(lambda: net(x).sum().backward())

    (note,) = raised.value.__notes__
    assert note.startswith("perfnb: net is on the meta device, where tensors have no data. Call model.to_empty(")


def test_a_step_that_runs_without_data_is_refused_in_a_sentence() -> None:
    with torch.device("meta"):
        model, x = nn.Linear(4, 4), torch.ones(2, 4)

    with pytest.raises(CaptureError, match="runs on the meta device, where tensors have no data"):
        perfnb.profile_step(lambda: model(x).sum().backward(), **SHORT)


def test_a_model_on_meta_that_is_only_a_skeleton_for_other_weights_is_profiled() -> None:
    model = nn.Linear(4, 4)
    weights, skeleton, x = dict(model.named_parameters()), nn.Linear(4, 4, device="meta"), torch.ones(2, 4)

    p = perfnb.profile_step(lambda: torch.func.functional_call(skeleton, weights, (x,)), **SHORT)

    assert "skeleton" in p.layers.index
