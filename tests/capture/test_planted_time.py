"""A sleep planted in one place of a step is found there, whole, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import perfnb
from perfnb.frames.schema import PHASES
from tests.capture.models import three_linears
from tests.capture.timed import TOLERANCE_MS, Sleep, judged_on_time

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("nothing_left")]

#: Traced steps: enough that one of them disturbed by other work does not spoil the mean.
TRACED = 10


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """A second thread that waits for a busy core would add milliseconds of its own to tiny ops."""
    torch.set_num_threads(1)


class SleepsForward(nn.Module):
    def __init__(self, sleep: Sleep) -> None:
        super().__init__()
        self.sleep = sleep

    def forward(self, x: Tensor) -> Tensor:
        self.sleep()
        return x * 2


class SleepsBackward(nn.Module):
    def __init__(self, sleep: Sleep) -> None:
        super().__init__()

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x.clone()

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Tensor:
                sleep()
                return grad

        self.function = Function

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(x)


def profile_of(
    middle: nn.Module | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] = mse_loss,
    optimizer: type[torch.optim.SGD] = torch.optim.SGD,
    batches: Any = None,
) -> perfnb.Profile:
    model = three_linears(middle)
    optimizing = optimizer(model.parameters(), lr=0.1)
    target = torch.rand(4, 8).softmax(1)

    def step(batch: Tensor | None = None) -> None:
        optimizing.zero_grad()
        loss(model(torch.ones(4, 8) if batch is None else batch), target).backward()
        optimizing.step()

    return perfnb.profile_step(step, batches, warmup=1, steps=1, traced=TRACED)


def assert_only(p: perfnb.Profile, layer: str | None, phase: str, sleep: Sleep) -> None:
    """All of the sleep is in that layer (its own time) and phase, none in another."""
    planted = sleep.mean_ms(TRACED)
    own = p.layers["self_ms"].astype(float)
    for name, ms in own.items():
        assert abs(ms - (planted if name == layer else 0.0)) < TOLERANCE_MS, own
    for name, ms in p.phases["ms"].items():
        assert abs(ms - (planted if name == phase else 0.0)) < TOLERANCE_MS, p.phases


@judged_on_time
def test_a_sleep_in_forward_is_the_layers_forward_time() -> None:
    sleep = Sleep(20)
    p = profile_of(SleepsForward(sleep))

    assert_only(p, "model.1", "forward", sleep)
    row = p.layers.loc["model.1"]
    assert row["forward_ms"] == pytest.approx(sleep.mean_ms(TRACED), abs=TOLERANCE_MS)
    assert row["backward_ms"] < TOLERANCE_MS
    assert row["share"] > 0.85
    assert p.layers.loc["model", "forward_ms"] >= row["forward_ms"]


@judged_on_time
def test_a_sleep_in_backward_is_the_layers_backward_time() -> None:
    sleep = Sleep(20)
    p = profile_of(SleepsBackward(sleep))

    assert_only(p, "model.1", "backward", sleep)
    row = p.layers.loc["model.1"]
    assert row["backward_ms"] == pytest.approx(sleep.mean_ms(TRACED), abs=TOLERANCE_MS)
    assert row["forward_ms"] < TOLERANCE_MS
    assert p.layers.loc["model", "backward_ms"] >= row["backward_ms"]


def sleeping_losses(sleep: Sleep) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    class Plain(nn.Module):
        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            sleep()
            return mse_loss(output, target)

    class Torchs(nn.CrossEntropyLoss):
        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            sleep()
            return super().forward(output, target)

    def function(output: Tensor, target: Tensor) -> Tensor:
        sleep()
        return mse_loss(output, target)

    return {"function": function, "module without parameters": Plain(), "torch's class": Torchs()}


@pytest.mark.parametrize("kind", ["function", "module without parameters", "torch's class"])
@judged_on_time
def test_a_sleep_in_the_loss_is_the_phase_loss(kind: str) -> None:
    sleep = Sleep(10)
    p = profile_of(loss=sleeping_losses(sleep)[kind])

    assert_only(p, None, "loss", sleep)
    assert list(p.layers.index[:4]) == ["model", "model.0", "model.1", "model.2"]
    assert all(name.startswith("(") for name in p.layers.index[4:])


@judged_on_time
def test_a_sleep_in_the_optimizer_is_the_phase_optimizer() -> None:
    sleep = Sleep(10)

    class Sleeping(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            sleep()
            return super().step(closure)

    assert_only(profile_of(optimizer=Sleeping), None, "optimizer", sleep)


class SleepingIterable:
    def __init__(self, sleep: Sleep) -> None:
        self.sleep = sleep

    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(3):
            self.sleep()
            yield torch.ones(4, 8)


@judged_on_time
def test_a_sleep_in_an_iterable_is_the_phase_data() -> None:
    sleep = Sleep(10)
    p = profile_of(batches=SleepingIterable(sleep))

    assert_only(p, None, "data", sleep)
    waited = p.steps["data_ms"].to_numpy(float)
    assert len(waited) == len(sleep.slept_ms)
    assert waited == pytest.approx(sleep.slept_ms, abs=TOLERANCE_MS)


@judged_on_time
def test_a_sleep_in_a_generator_is_the_phase_data() -> None:
    sleep = Sleep(10)
    p = profile_of(batches=(batch for _ in range(20) for batch in [torch.ones(4, 8), sleep()][:1]))

    assert list(p.phases.index) == list(PHASES)
    assert_only(p, None, "data", sleep)
