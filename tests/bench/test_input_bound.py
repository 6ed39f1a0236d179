"""Loaders and models that are slow by plan: does the trial find them, and leave nothing behind?"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

import perfnb
from perfnb.errors import BatchesExhaustedError, CaptureError

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)  # threads that wait for each other would be what is measured on a busy machine


@pytest.fixture
def feeders_end(nothing_left: None) -> Iterator[None]:
    """Wait for the threads that feed a loader's workers: multiprocessing ends them a moment after the workers."""
    import threading

    yield
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(60)


class Sleeping(Dataset[Any]):
    """Samples that take a while."""

    def __init__(self, ms: float, count: int = 400) -> None:
        self.ms, self.count = ms, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(self.ms / 1e3)
        return torch.full((8,), float(index)), index % 2


class Model(nn.Module):
    """A small model that takes a while."""

    def __init__(self, ms: float) -> None:
        super().__init__()
        self.ms = ms
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.ms / 1e3)
        out: Tensor = self.layers(x)
        return out


def trainer(model: nn.Module) -> Callable[[Any], None]:
    optimizer = torch.optim.Adam(model.parameters())

    def step(batch: Any) -> None:
        x, y = batch
        optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def state_of(model: nn.Module) -> list[Any]:
    grads = [None if each.grad is None else each.grad.clone() for each in model.parameters()]
    return [{name: value.clone() for name, value in model.state_dict().items()}, grads, torch.get_rng_state()]


@pytest.mark.usefixtures("clock")
def test_a_loader_that_sleeps_is_found_and_the_model_is_as_it_was() -> None:
    model = Model(3)
    step, before = trainer(model), state_of(model)
    test = perfnb.confirm_input_bound(step, DataLoader(Sleeping(7.5), batch_size=4), model, budget_s=5)

    torch.testing.assert_close(state_of(model), before, rtol=0, atol=0)
    assert model.training
    assert test.verdict == "input-bound"
    assert test.times.index.tolist() == ["together", "loader", "model", "rest", "iteration"]
    times = test.times["median_ms"]
    expected = {"together": 33, "loader": 30, "model": 3, "rest": 0, "iteration": 30}
    assert times.to_dict() == pytest.approx(expected, rel=0.01, abs=0.1)
    assert test.saved_ms == pytest.approx(30, rel=0.01)
    assert test.saved_share == pytest.approx(30 / 33, rel=0.01)
    assert test.saved_ci_ms is not None
    assert test.saved_ci_ms[0] <= test.saved_ms <= test.saved_ci_ms[1]
    assert test.rounds["together"].median() == times["together"]
    assert "Input-bound: a perfect loader would save up to " in repr(test)
    assert "loader alone" in test._repr_mimebundle_()["text/html"]


@pytest.mark.slow
@pytest.mark.usefixtures("feeders_end")
def test_a_loader_with_workers_is_tried_in_all_kinds_of_blocks() -> None:
    model = Model(0)
    step, before = trainer(model), state_of(model)
    test = perfnb.confirm_input_bound(step, DataLoader(Sleeping(1), batch_size=4, num_workers=2), model, budget_s=1)

    torch.testing.assert_close(state_of(model), before, rtol=0, atol=0)
    assert (test.times["median_ms"] > 0).all()
    assert (test.times["steps"] % 2 == 0).all()  # whole bursts of the two workers


@pytest.mark.usefixtures("clock")
def test_a_model_that_sleeps_is_found() -> None:
    model = Model(20)
    loader = DataLoader(Sleeping(0), batch_size=4)
    test = perfnb.confirm_input_bound(trainer(model), loader, model, budget_s=4)

    times = test.times["median_ms"]
    assert test.verdict == "compute-bound"
    assert times.to_dict() == pytest.approx(
        {"together": 20, "model": 20} | {"loader": 0, "rest": 0, "iteration": 0}, rel=0.01, abs=0.1
    )
    assert abs(test.saved_ms) < 0.2


def test_without_budget_one_round_is_run_and_nothing_is_claimed() -> None:
    model = nn.Linear(8, 2)
    test = perfnb.confirm_input_bound(lambda x: model(x), [torch.ones(2, 8)], {"net": model}, budget_s=1e-3)

    assert len(test.rounds) == 1
    assert test.saved_ci_ms is None
    assert test.verdict == "inconclusive"


@pytest.mark.parametrize("fails_at", [1, 2, 5, 20])
def test_an_error_of_the_step_leaves_nothing_behind(fails_at: int) -> None:
    model = Model(0)
    train, before, count = trainer(model), state_of(model), 0

    def step(batch: Any) -> None:
        nonlocal count
        count += 1
        train(batch)
        if count == fails_at:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        perfnb.confirm_input_bound(step, DataLoader(Sleeping(0), batch_size=4), model, budget_s=2)

    torch.testing.assert_close(state_of(model), before, rtol=0, atol=0)
    assert "forward" not in vars(model)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not sys.modules[Optimizer.__module__]._global_optimizer_pre_hooks


@pytest.mark.usefixtures("clock")
def test_a_disturbed_pilot_does_not_reduce_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    from perfnb.bench.input_trial import InputTrial

    block, pilot = InputTrial.block, 2

    def disturbed(self: InputTrial, kind: str, steps: int) -> float:
        told = block(self, kind, steps)
        if steps != pilot:
            return told
        time.sleep(0.1)
        return told + 50

    monkeypatch.setattr(InputTrial, "block", disturbed)
    model = nn.Linear(8, 2)
    test = perfnb.confirm_input_bound(lambda x: model(x), [torch.ones(2, 8)], model, budget_s=1.5)

    assert len(test.rounds) >= 12


def test_what_cannot_be_tried_is_refused_in_a_sentence() -> None:
    model, other = nn.Linear(8, 2), nn.Linear(8, 2)
    batches = [torch.ones(2, 8)]
    with pytest.raises(CaptureError, match="calls neither the given model nor any module inside it"):
        perfnb.confirm_input_bound(lambda x: model(x), batches, other, budget_s=1)
    with pytest.raises(BatchesExhaustedError, match="is empty"):
        perfnb.confirm_input_bound(lambda x: model(x), [], model, budget_s=1)
    with pytest.raises(BatchesExhaustedError, match="cannot start again"):
        perfnb.confirm_input_bound(lambda x: model(x), iter(batches), model, budget_s=1)
    with pytest.raises(TypeError, match="model must be a torch module"):
        perfnb.confirm_input_bound(lambda x: model(x), batches, 7, budget_s=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="needs the model"):
        perfnb.confirm_input_bound(lambda x: model(x), batches, None, budget_s=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="budget_s"):
        perfnb.confirm_input_bound(lambda x: model(x), batches, model, budget_s=-1)
    with pytest.raises(TypeError, match="step must be a function"):
        perfnb.confirm_input_bound(7, batches, model, budget_s=1)  # type: ignore[arg-type]
