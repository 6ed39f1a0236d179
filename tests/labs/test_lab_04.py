"""Lab 4: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from perfnb import Profile, estimate_memory, profile_step
from perfnb.labs import lab_04
from perfnb.labs.lab_04 import saved_bytes, trained_bytes
from perfnb.labs.ledger import exercise_of
from perfnb.recording.schema import CATEGORIES
from tests.labs.judging import hint, said_of
from tests.labs.lab_04_answers import stepping

MIB = 2**20

pytestmark = pytest.mark.usefixtures("one_thread")


def layered(widths: tuple[int, ...] = (16, 64, 64, 64, 8)) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@pytest.fixture(scope="module")
def profile() -> Profile:
    return profile_step(stepping(layered(), 512, 16), steps=1, warmup=1, traced=1, flops=False)


def at_its_peak(profile: Profile) -> dict[str, Any]:
    memory = profile.memory
    return {"most": memory["total"].max(), "sum_of_most": memory[list(CATEGORIES)].max().sum(), "phase": "backward"}


@pytest.mark.slow
def test_the_peak(profile: Profile) -> None:
    assert hint("4.1", at_its_peak(profile), profile=profile) == ""
    assert at_its_peak(profile)["sum_of_most"] > at_its_peak(profile)["most"]


def by_rule(model: nn.Module, parameter: float = 4, gradient: float = 4, state: float = 8) -> dict[str, float]:
    count = sum(each.numel() for each in model.parameters())
    return {"parameters": parameter * count, "gradients": gradient * count, "optimizer_state": state * count}


def counted(model: nn.Module) -> dict[str, int]:
    every = list(model.parameters())
    learned = sum(each.nbytes for each in every if each.requires_grad)
    there = sum(each.nbytes for each in (*every, *model.buffers()))
    return {"parameters": there, "gradients": learned, "optimizer_state": 2 * learned}


def with_counters(model: nn.Module) -> dict[str, int]:
    found = counted(model)
    learned = sum(each.requires_grad for each in model.parameters())
    return found | {"optimizer_state": found["optimizer_state"] + 4 * learned}


def test_what_adam_needs() -> None:
    assert hint("4.2", counted) == ""
    assert hint("4.2", with_counters) == ""


def without_buffers(model: nn.Module) -> dict[str, int]:
    return counted(model) | {"parameters": sum(each.nbytes for each in model.parameters())}


def shared_twice(model: nn.Module) -> dict[str, int]:
    every = [each for module in model.modules() for each in module.parameters(recurse=False)]
    learned = sum(each.nbytes for each in every if each.requires_grad)
    there = sum(each.nbytes for each in (*every, *model.buffers()))
    return {"parameters": there, "gradients": learned, "optimizer_state": 2 * learned}


def weights_alone(model: nn.Module) -> dict[str, int]:
    count = sum(each.numel() for name, each in model.named_parameters() if "weight" in name)
    return {"parameters": 4 * count, "gradients": 4 * count, "optimizer_state": 8 * count}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (by_rule, "frozen"),
        (lambda model: by_rule(model, 1, 1, 2), "plain"),
        (lambda model: by_rule(model, 4 / MIB, 4 / MIB, 8 / MIB), "not KiB"),
        (lambda model: by_rule(model, 4 / 2**10, 4 / 2**10, 8 / 2**10), "not KiB"),
        (lambda model: counted(model) | {"gradients": 0}, "gradients differ from what a step leaves"),
        (weights_alone, "weights and biases"),
        (without_buffers, "buffers"),
        (shared_twice, "exists only once"),
        (lambda model: None, "dictionary"),
    ],
)
def test_what_it_does_not_need(answer: Callable[..., Any], says: str) -> None:
    assert says in hint("4.2", answer)


def test_what_each_model_keeps() -> None:
    """Of two layers of 24 x 24 weights and 24 biases, and one of 7 x 24 and 7."""
    norm = 4 * (1375 + 48)
    sizes = ((5500, 5500), (5500, 3100), (norm + 4 * 48 + 8, norm), (2750, 2750), (3196, 3196))
    for name, (there, trained), counters in zip(lab_04.TRIALS, sizes, (24, 16, 32, 24, 20), strict=True):
        wanted = {"parameters": there, "gradients": trained, "optimizer_state": 2 * trained}
        assert trained_bytes(name) == (wanted, counters), name


def test_a_rule_that_holds_in_float32_alone() -> None:
    def of_float32(model: nn.Module) -> dict[str, float]:
        learned = sum(4 * each.numel() for each in model.parameters() if each.requires_grad)
        there = sum(4 * each.numel() for each in model.parameters()) + sum(each.nbytes for each in model.buffers())
        return {"parameters": there, "gradients": learned, "optimizer_state": 2 * learned}

    assert "element_size" in hint("4.2", of_float32)


def hidden(batch: int, widths: tuple[int, ...]) -> int:
    return 4 * batch * sum(widths[1:-1])


def kept(batch: int, widths: tuple[int, ...], activation: str) -> int:
    return hidden(batch, widths) * (1 if activation == "relu" else 2)


def test_what_backward_needs() -> None:
    assert hint("4.3", kept) == ""


@pytest.mark.slow
def test_the_profile_counts_the_same(profile: Profile) -> None:
    """What the lab shows of a profile is what its check counts."""
    inner = profile.layers[profile.layers["depth"] == 1]

    # Of the last layer the loss keeps something, and here it is no layer's own.
    assert inner["activation_bytes"].iloc[:-1].sum() == saved_bytes(512, (16, 64, 64, 64, 8), "relu")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda batch, widths, activation: 2 * hidden(batch, widths), "kept twice"),
        (lambda batch, widths, activation: hidden(batch, widths), "output or its input"),
        (lambda batch, widths, activation: kept(batch, widths, activation) + 4 * batch * widths[0], "batch itself"),
        (
            lambda batch, widths, activation: kept(batch, widths, activation) + 4 * batch * widths[-1],
            "the last layer's output",
        ),
        (lambda batch, widths, activation: 8 * batch * sum(widths[1:]), "the last layer's output"),
        (lambda batch, widths, activation: kept(batch, widths, activation) / 4, "float32"),
        (lambda batch, widths, activation: kept(1, widths, activation), "a single row"),
        (lambda batch, widths, activation: kept(batch, widths, activation) / 2**10, "autograd keeps"),
        (7680, "function itself"),
    ],
)
def test_what_it_does_not(answer: Any, says: str) -> None:
    assert says in hint("4.3", answer)


def test_what_gelu_keeps_twice_is_recognised() -> None:
    """By made-up bytes, so that no other mistake comes to the same."""
    sizes = [3, [7, 11, 5], "gelu"]
    for more, says in ((8 * 3 * 7, "the batch itself is included"), (8 * 3 * 5, "the last layer's output")):
        case = {"sizes": sizes, "wanted": 100_003, "said": 100_003 + more}
        assert says in said_of("4.3", {"cases": [case] * len(lab_04.NETWORKS)})


def narrow_step(batch: int) -> Callable[[], torch.Tensor]:
    return stepping(layered(), batch, 16)


@pytest.mark.deep
@pytest.mark.slow
def test_the_largest_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a line through two measurements, as in the lab; the batch is run."""
    monkeypatch.setattr(lab_04, "LIMIT", 2 * MIB)
    small, large = (lab_04.measured_peak(narrow_step(batch)) for batch in (512, 1024))
    batch = int(1024 + (2 * MIB - large) / (large - small) * 512)
    estimate = estimate_memory(layered(), torch.randn(512, 16), "adam", loss=lambda output: output.square().mean())

    assert small == pytest.approx(estimate.peak_bytes, rel=1e-3)
    assert hint("4.4", batch, make_step=narrow_step) == ""
    assert "so does one with" in hint("4.4", batch // 2, make_step=narrow_step)


def test_the_peak_leaves_out_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = pd.DataFrame({"total": [10, 50, 45, 7], "other": [1, 30, 4, 1]})
    monkeypatch.setattr(lab_04, "profile_step", lambda step, **options: SimpleNamespace(memory=memory))

    assert lab_04.measured_peak(print) == 41


@pytest.mark.parametrize(
    ("batch", "fixed", "peaks"),
    [
        (1400, 0, {"1400": 1400 * 2**13, "1442": 1442 * 2**13}),  # 1.03 times as many rows fit as well
        (2048, 0, {"2048": 16 * MIB, "2110": 2110 * 2**13}),  # exactly the limit
        (2049, 0, {"2049": 2049 * 2**13, "2048": 16 * MIB}),  # a row too many
        (2, 17 * MIB, {"2": 17 * MIB + 2**14, "1": 17 * MIB + 2**13}),
        (10_000, 0, {"10000": 10_000 * 2**13, "9999": 9999 * 2**13}),
        (1, 17 * MIB, {"1": 17 * MIB + 2**13}),  # there is no batch with a row less
    ],
)
def test_which_batches_are_run(monkeypatch: pytest.MonkeyPatch, batch: int, fixed: int, peaks: dict[str, int]) -> None:
    monkeypatch.setattr(lab_04, "measured_peak", lambda step: fixed + step() * 2**13)

    facts = exercise_of("4.4").measure(batch, make_step=lambda rows: lambda: rows)

    assert facts == {"batch": batch, "peaks": peaks}


@pytest.mark.parametrize(
    ("answer", "says"),
    [(1488.0, "give an int: 1488.0 is a float"), (0, "from 1 to"), (10_001, "10,000"), (1.5, "whole")],
)
def test_answers_that_are_not_batches_get_a_hint(answer: Any, says: str) -> None:
    assert says in hint("4.4", answer, make_step=narrow_step)
