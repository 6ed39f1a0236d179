"""A sleep planted in one place of a step is found there; tests/accuracy tells whether whole, and nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import perfnb
from perfnb.recording.schema import PHASES
from tests.step.models import three_linears
from tests.step.timed import Sleep

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


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
    traced: int = 2,
) -> perfnb.Profile:
    model = three_linears(middle)
    optimizing = optimizer(model.parameters(), lr=0.1)
    target = torch.rand(4, 8).softmax(1)

    def step(batch: Tensor | None = None) -> None:
        optimizing.zero_grad()
        loss(model(torch.ones(4, 8) if batch is None else batch), target).backward()
        optimizing.step()

    return perfnb.profile_step(step, batches, warmup=1, steps=1, traced=traced)


class SleepingSGD(torch.optim.SGD):
    """Sleeps in each step."""

    sleep: Sleep

    def step(self, closure: Any = None) -> Any:
        self.sleep()
        return super().step(closure)


class SleepingIterable:
    def __init__(self, sleep: Sleep) -> None:
        self.sleep = sleep

    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(3):
            self.sleep()
            yield torch.ones(4, 8)


def sleeping_loss(kind: str, sleep: Sleep) -> Callable[[Tensor, Tensor], Tensor]:
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

    return {"function": function, "module without parameters": Plain(), "torch's class": Torchs()}[kind]


def in_the_optimizer(sleep: Sleep, traced: int) -> perfnb.Profile:
    sleeping = type("Sleeping", (SleepingSGD,), {"sleep": sleep})
    return profile_of(optimizer=sleeping, traced=traced)


def in_a_generator(sleep: Sleep, traced: int) -> perfnb.Profile:
    batches = (batch for _ in range(20) for batch in [torch.ones(4, 8), sleep()][:1])
    return profile_of(batches=batches, traced=traced)


#: Where a sleep is planted: the profile of a step with it, then the layer and the phase that it belongs to.
PLANTED: dict[str, tuple[Callable[[Sleep, int], perfnb.Profile], str | None, str]] = {
    "forward": (lambda sleep, traced: profile_of(SleepsForward(sleep), traced=traced), "model.1", "forward"),
    "backward": (lambda sleep, traced: profile_of(SleepsBackward(sleep), traced=traced), "model.1", "backward"),
    **{
        f"loss: {kind}": (
            lambda sleep, traced, kind=kind: profile_of(loss=sleeping_loss(kind, sleep), traced=traced),
            None,
            "loss",
        )
        for kind in ("function", "module without parameters", "torch's class")
    },
    "optimizer": (in_the_optimizer, None, "optimizer"),
    "iterable": (lambda sleep, traced: profile_of(batches=SleepingIterable(sleep), traced=traced), None, "data"),
    "generator": (in_a_generator, None, "data"),
}
#: So much longer than the rest of the step that nothing else can come near, however busy the machine is.
LONG_MS = 100


@pytest.mark.parametrize("place", PLANTED)
def test_a_sleep_belongs_to_its_layer_and_its_phase(place: str) -> None:
    profiled, layer, phase = PLANTED[place]
    p = profiled(Sleep(LONG_MS), 2)

    assert list(p.phases.index) == list(PHASES)
    assert p.phases["ms"].idxmax() == p.phases["share"].idxmax() == phase
    # Whatever else takes long, the sleep itself is nowhere else.
    assert p.phases.loc[phase, "ms"] >= LONG_MS
    own = p.layers["self_ms"].astype(float)
    assert list(p.layers.index[:4]) == ["model", "model.0", "model.1", "model.2"]
    assert all(name.startswith("(") for name in p.layers.index[4:])
    if layer is not None:
        assert own.idxmax() == layer
        row = p.layers.loc[layer]
        assert row[f"{phase}_ms"] >= LONG_MS
        assert row["forward_ms" if phase == "backward" else "backward_ms"] < row[f"{phase}_ms"]
        assert p.layers.loc["model", f"{phase}_ms"] >= row[f"{phase}_ms"]
    if phase == "data":
        assert (p.steps["data_ms"].astype(float) >= LONG_MS).all()
