"""Graph breaks, small regions and recompilations: no bound is below what removing the cause saves.

Both sides are compiled for profiling, so that kernels cost the same. Entering a region takes longer in the traced steps
that a bound comes from, so a bound may be further above the saving than those of uncompiled steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

import perfnb
from tests.accuracy.judging import Figures
from tests.accuracy.test_bounds_hold import SHARE, Cause, explained_share, saving

#: How many times the high end of the saving a bound may be.
FACTOR = 3.0

#: torch does this itself while it compiles.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


@pytest.fixture(autouse=True)
def _compile_anew() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    """A block that can break between its layers."""

    def __init__(self, width: int, breaks: bool = False) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        self.breaks = breaks

    def forward(self, x: Tensor) -> Tensor:
        hidden = gelu(self.up(self.norm(x)))
        if self.breaks:
            torch._dynamo.graph_break()
        result: Tensor = x + self.down(hidden)
        return result


class Gated(nn.Module):
    """What is left of a break is fused with what is right of it, past a product in between."""

    def __init__(self, width: int, breaks: bool) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(width, width) for _ in range(3))
        self.breaks = breaks

    def forward(self, x: Tensor) -> Tensor:
        gate, up = torch.sigmoid(self.gate(x)), self.up(x)
        if self.breaks:
            torch._dynamo.graph_break()
        result: Tensor = x + self.down(gate * up)
        return result


class Branching(nn.Module):
    def __init__(self, width: int, breaks: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width)
        self.breaks = breaks

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if not self.breaks:
            hidden = torch.where(hidden.sum() > 0, hidden * 2, hidden * 3)
        elif hidden.sum() > 0:
            hidden = hidden * 2
        else:
            hidden = hidden * 3
        result: Tensor = self.last(hidden.relu()).tanh()
        return result


def stack(block: Callable[[int, bool], nn.Module], count: int, width: int) -> Callable[[bool], nn.Module]:
    return lambda breaks: nn.Sequential(*(block(width, breaks) for _ in range(count)))


#: A model with graph breaks or without, and the shape of its batch.
BREAKS: dict[str, tuple[Callable[[bool], nn.Module], tuple[int, int]]] = {
    "small blocks": (stack(Block, 4, 64), (32, 64)),
    "gates": (stack(Gated, 3, 128), (1024, 128)),
    "branches": (stack(Branching, 3, 128), (256, 128)),
}


def training(model: nn.Module, x: Tensor, compiled: Callable[[Tensor], Tensor]) -> Callable[[], None]:
    """Return a step that has run, so that it is compiled."""

    def step() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        compiled(x).square().mean().backward()

    with perfnb.compile_for_profiling():
        step()
        step()
    return step


@pytest.mark.parametrize("name", BREAKS)
def test_the_bound_of_a_graph_break_is_not_below_what_removing_it_saves(name: str, figure: Figures) -> None:
    make, shape = BREAKS[name]
    x, models = torch.randn(*shape), (make(True), make(False))
    cause = Cause(*(training(model, x, torch.compile(model)) for model in models), ("graph breaks",))
    p = perfnb.profile_step(cause.step, warmup=5, steps=30, traced=5, memory=False, stacks=False, budget_s=10)
    low, high = saving(cause)

    bound = explained_share(p.findings, cause)
    print(p)
    figure(f"graph breaks: {name}: bound", bound, within=(max(low, 0.0), FACTOR * high + SHARE), unit="%")


def test_the_bound_of_small_regions_is_not_below_what_compiling_the_whole_saves(figure: Figures) -> None:
    blocks, x = nn.Sequential(*(Block(64) for _ in range(6))), torch.randn(32, 64)
    parts = nn.Sequential(*(torch.compile(block) for block in blocks))
    cause = Cause(training(blocks, x, parts), training(blocks, x, torch.compile(blocks)), ("small regions",))
    p = perfnb.profile_step(cause.step, warmup=5, steps=30, traced=5, memory=False, stacks=False, budget_s=10)
    low, high = saving(cause)

    bound = explained_share(p.findings, cause)
    print(p)
    figure(
        "six small blocks compiled one by one: bound", bound, within=(max(low, 0.0), FACTOR * high + SHARE), unit="%"
    )


def test_the_bound_of_recompilations_is_what_they_add_to_a_step(figure: Figures) -> None:
    model, x = nn.Linear(64, 64), torch.randn(32, 64)
    calls = 0

    def forward(x: Tensor, mode: str) -> Tensor:
        result: Tensor = model(x) * len(mode)
        return result

    compiled = torch.compile(forward, backend="aot_eager")

    def step() -> None:
        nonlocal calls
        calls += 1
        compiled(x, f"mode {calls}" if calls in (15, 25) else "mode").sum().backward()

    p = perfnb.profile_step(step, warmup=10, steps=20, traced=1, memory=False, flops=False, stacks=False)
    steps_ms = p.steps.loc[p.steps["pass"] == "timed", "wall_ms"].sort_values()
    added = float((steps_ms.iloc[-2:] - steps_ms.iloc[:-2].median()).sum()) / len(steps_ms)
    found = p.findings[p.findings["bottleneck"] == "recompilation"]
    bound = float(found["bound_ms"].max()) if len(found) else 0.0
    figure("two recompilations in twenty steps: bound / what they added", bound / added, within=(0.95, 1.1))
