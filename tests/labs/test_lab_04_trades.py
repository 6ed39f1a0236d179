"""Lab 4, checkpoints, their price and a leak: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from perfnb import Profile, profile_step
from perfnb.labs import lab_04
from perfnb.labs.ledger import exercise_of
from perfnb.results import Leaks
from perfnb.stats.slope import Slope
from tests.labs.judging import expect, expect_of, hint
from tests.labs.lab_04_answers import outputs

pytestmark = pytest.mark.usefixtures("one_thread")


def short(step: Callable[[], Any]) -> Profile:
    return profile_step(step, steps=1, warmup=1, traced=1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.act(self.up(x)))


class Tower(nn.Module):
    def __init__(self, blocks: nn.ModuleList, run: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.blocks, self.run = blocks, run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(list(self.blocks), x)


def one_by_one(blocks: list[Block], x: torch.Tensor) -> torch.Tensor:
    for block in blocks:
        x = block(x)
    return x


def each_checkpointed(blocks: list[Block], x: torch.Tensor) -> torch.Tensor:
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    return x


def all_in_one(blocks: list[Block], x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda x: one_by_one(blocks, x), x, use_reentrant=False)


def without_gradients(blocks: list[Block], x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return one_by_one(blocks, x)


def cut_in_between(blocks: list[Block], x: torch.Tensor) -> torch.Tensor:
    return one_by_one(blocks[6:], one_by_one(blocks[:6], x).detach())


def in_place(blocks: list[Block], x: torch.Tensor) -> torch.Tensor:
    """Right, but its input is lost."""
    y = each_checkpointed(blocks, x)
    x.data.zero_()  # which autograd does not notice
    return y


def in_half_precision(blocks: list[Block], x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return each_checkpointed(blocks, x).float()


def reentrant(blocks: list[Block], x: torch.Tensor) -> torch.Tensor:
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=True)
    return x


def remembering() -> Callable[..., torch.Tensor]:
    known: dict[Any, torch.Tensor] = {}

    def run(blocks: list[Block], x: torch.Tensor) -> torch.Tensor:
        y = each_checkpointed(blocks, x)
        return y + (known.setdefault(x.shape, y.detach()) - y).detach()

    return run


ROWS = torch.zeros(512, 16)


@pytest.fixture(scope="module")
def blocks() -> nn.ModuleList:
    torch.manual_seed(3)
    return nn.ModuleList(Block() for _ in range(8))


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "says"), [(each_checkpointed, ""), (one_by_one, "still takes 100 %"), (all_in_one, "together")]
)
def test_a_tower_by_its_memory(blocks: nn.ModuleList, run: Callable[..., Any], says: str) -> None:
    expect("4.5", says, Tower(blocks, run), plain=Tower(blocks, one_by_one), rows=ROWS)


def test_a_right_tower_is_measured_as_it_trains_the_batch(
    blocks: nn.ModuleList, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, old = Tower(blocks, each_checkpointed), Tower(blocks, one_by_one)
    seen = []

    def peak_of(step: Callable[[], Any]) -> int:
        with_gradient = nn.utils.parameters_to_vector(blocks.parameters())
        step()
        first = [part.grad.clone() for part in blocks.parameters() if part.grad is not None]
        step()
        again = [part.grad for part in blocks.parameters() if part.grad is not None]
        assert len(first) == len(again) == len(list(blocks.parameters()))
        assert all(torch.allclose(one, other) for one, other in zip(first, again, strict=True))  # they do not add up
        assert torch.equal(with_gradient, nn.utils.parameters_to_vector(blocks.parameters()))
        seen.append(step)
        return 100 * len(seen)

    monkeypatch.setattr(lab_04, "measured_peak", peak_of)

    facts = exercise_of("4.5").measure(new, plain=old, rows=ROWS[:5])

    assert facts["ratio"] == 2.0  # of the new tower, which is measured last
    assert [(case["forward"], case["backward"], case["input_changed"]) for case in facts["cases"]] == [
        (True, True, False)
    ] * 5
    expect_of("4.5", "", facts | {"ratio": 0.4999})
    expect_of("4.5", "still takes 50 % of the memory", facts | {"ratio": 0.5})


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("run", "says"),
    [
        (lambda blocks, x: each_checkpointed(blocks[::2], x), "differs"),
        (in_half_precision, "differs"),
        (remembering(), "differs"),
        (in_place, "The tower changes its input"),
        (without_gradients, "gradient"),
        (cut_in_between, "gradient"),
        (reentrant, "gradient"),
    ],
)
def test_a_tower_that_is_not_the_same(blocks: nn.ModuleList, run: Callable[..., Any], says: str) -> None:
    assert says in hint("4.5", Tower(blocks, run), plain=Tower(blocks, one_by_one), rows=ROWS)


class WithSettings:
    parameters: ClassVar = {"blocks": 8}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize("answer", [lambda x: x, WithSettings()])
def test_a_function_is_not_accepted_as_a_tower(blocks: nn.ModuleList, answer: Any) -> None:
    assert "both modules and a batch" in hint("4.5", answer, plain=Tower(blocks, one_by_one), rows=ROWS)


def found_leaks(verdict: str = "leak") -> Leaks:
    rows = [("net.body.3", 131072.0), ("net", 4.0)]
    return Leaks(
        verdict=verdict,
        reason="kept",
        allocator=Slope(131076.0, None, None, 40),
        process=Slope(136533.0, 133376.0, 140799.0, 40),
        survivors=pd.DataFrame(rows, columns=["layer", "bytes_per_step"]),
        steps=pd.DataFrame({"step": range(40)}),
    )


@pytest.mark.parametrize(
    ("layer", "kib", "says"),
    [
        ("net.body.3", 128.0, ""),
        ("net.body.3", 133.3, "seems to be the growth of the whole process"),
        (3, 128, "text in quotes"),
    ],
)
def test_a_leak_found(layer: Any, kib: float, says: str) -> None:
    expect("4.7", says, {"layer": layer, "kib_per_step": kib}, leaks=found_leaks())


def test_no_leak_is_to_be_found_elsewhere() -> None:
    answer = {"layer": "net.body.3", "kib_per_step": 128}

    assert "no leak seen" in hint("4.7", answer, leaks=found_leaks("no leak seen"))
    made_up = SimpleNamespace(**{name: getattr(found_leaks(), name) for name in ("verdict", "survivors", "allocator")})
    assert "Pass the report" in hint("4.7", answer, leaks=3)
    assert "Pass the report" in hint("4.7", answer, leaks=made_up)


def monitor_of(record: Callable[[list[Any], torch.Tensor], Any], strengths: Any = None) -> Callable[..., Any]:
    """Return a class of monitors that record what the test asks for."""

    class Monitor:
        def __init__(self, layer: nn.Module) -> None:
            self.strengths: Any = [] if strengths is None else strengths()
            layer.register_forward_hook(lambda module, inputs, output: record(self.strengths, output))

    return Monitor


def strength(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def with_its_output(strengths: list[Any], output: torch.Tensor) -> None:
    strengths.append(strength(output).item())
    outputs.append(output.detach())


Leaky = monitor_of(lambda strengths, output: strengths.append(strength(output)))


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize(
    ("monitor", "says"),
    [
        (monitor_of(lambda strengths, output: strengths.append(strength(output).detach())), ""),
        (Leaky, "still grows"),
        (monitor_of(with_its_output), "still grows"),
    ],
)
def test_a_monitor_by_its_memory(monitor: Callable[..., Any], says: str) -> None:
    expect("4.8", says, monitor, leaky=Leaky)
    outputs.clear()


@pytest.mark.parametrize(
    ("monitor", "says"),
    [
        (monitor_of(lambda strengths, output: strengths.append(strength(output).item()), lambda: deque(maxlen=3)), "3"),
        (monitor_of(lambda strengths, output: strengths.append(output.detach().mean().item())), "different values"),
        (monitor_of(lambda strengths, output: strengths.append(output.detach())), "must be one number"),
        (
            monitor_of(lambda strengths, output: strengths.append(strength(output).item()) or output * 0.5),
            "no longer trains as before",
        ),
        (lambda layer: SimpleNamespace(), "no longer has a list"),
    ],
)
def test_a_monitor_that_does_not_do_its_work(
    monkeypatch: pytest.MonkeyPatch, monitor: Callable[..., Any], says: str
) -> None:
    monkeypatch.setattr(lab_04, "find_leaks", lambda *_, **__: pytest.fail("watched"))
    assert says in hint("4.8", monitor, leaky=Leaky)


@pytest.mark.parametrize(
    ("leaks", "allocated", "process"),
    [
        (found_leaks(), 131076.0, 133376.0),
        (replace(found_leaks(), allocator=None), None, 133376.0),
        (replace(found_leaks(), process=None), 131076.0, None),
    ],
)
def test_what_a_right_monitor_is_watched_for(
    monkeypatch: pytest.MonkeyPatch, leaks: Leaks, allocated: float | None, process: float | None
) -> None:
    def watched(step: Callable[[Any], None], inputs: Iterator[Any], steps: int) -> Leaks:
        for _ in range(steps):
            step(next(inputs))
        return leaks

    monkeypatch.setattr(lab_04, "find_leaks", watched)

    torch.manual_seed(1)
    facts = exercise_of("4.8").measure(Leaky, leaky=Leaky)

    assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(1))
    assert facts["said"] == facts["wanted"]
    assert len(facts["said"]) == 12
    assert facts["training"]
    assert (facts["allocated"], facts["process"], facts["batch"]) == (allocated, process, 128 * 64 * 4)
