"""Lab 5: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from notebooks.labs import build
from perfnb.labs.lab_05 import mlp_parameters
from perfnb.results import ArchitectureComparison
from tests.labs.judging import expect, hint
from tests.labs.lab_05_answers import CNN, RATIO, USES, accuracy


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (127, ""),
        (torch.tensor(127), ""),
        (126, "neighbouring width is closer"),
        (128, "neighbouring width is closer"),
        (64, "Count again"),
        (254, "Count again"),
        (347, "Count again"),  # one hidden layer alone
        (127.4, "whole number"),
        (0, "whole number"),
        ("127", "must be a number"),
    ],
)
def test_as_many_parameters(width: Any, words: str) -> None:
    expect("5.1", words, width, like=CNN)


@pytest.mark.parametrize("parameters", [25_791, 330, 4_634])
def test_the_model_to_compare_with_is_the_lab_s(parameters: int) -> None:
    """And none whose parameters are as many as those of the width that was answered."""
    other = nn.Linear(parameters, 1, bias=False)

    assert f"{parameters:,} parameters, so it is not the lab's CNN" in hint("5.1", 127, like=other)


def cell_of_lab_5(begin: str) -> str:
    """The code of a cell of the students' notebook, by what it holds."""
    (found,) = [
        text
        for cell in json.loads(build.built()[build.HERE / "05_architectures.ipynb"])["cells"]
        if begin in (text := "".join(cell["source"])) and cell["cell_type"] == "code"
    ]
    return found


def test_the_lab_s_cnn() -> None:
    names: dict[str, Any] = {"nn": nn, "torch": torch}
    exec(cell_of_lab_5("def make_cnn"), names)

    assert hint("5.1", 127, like=names["cnn"]) == ""


@pytest.mark.slow
@pytest.mark.parametrize("width", [127, 127.0, torch.tensor(127), np.int64(127)])
def test_a_width_that_is_right_is_the_one_used(width: Any) -> None:
    names: dict[str, Any] = {"nn": nn, "torch": torch}
    exec(cell_of_lab_5("def make_cnn"), names)
    names["width"] = width
    exec(cell_of_lab_5("mlp = make_mlp("), names)

    assert names["count"](names["mlp"]) == 25_791
    assert hint("5.1", width, like=names["cnn"]) == ""


def test_the_mlp_is_that_of_the_notebook() -> None:
    mlp = nn.Sequential(nn.Linear(64, 127), nn.ReLU(), nn.Linear(127, 127), nn.ReLU(), nn.Linear(127, 10))

    assert mlp_parameters(127) == sum(each.numel() for each in mlp.parameters())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda n, uses: uses, ""),
        (lambda n, uses: round(uses, 2), ""),
        (lambda n, uses: 2 * uses, "two FLOPs"),
        (lambda n, uses: uses if n != "cnn" else 2 * uses, "cnn: A use is a product and an addition"),
        (lambda n, uses: uses / 2, "half"),
        (lambda n, uses: 64 * uses, "whole batch"),
        (lambda n, uses: 128 * uses, "one image, and two FLOPs per use"),
        (lambda n, uses: uses if n != "cnn" else 2.9847 * uses, "cnn: It includes backward"),
        (lambda n, uses: uses if n != "cnn" else 1.9847 * uses, "cnn: Is it the backward pass"),
        (lambda n, uses: uses if n != "transformer" else 1.0, "transformer: Check it"),
        (lambda n, uses: 1 / uses, "inverse"),
        (lambda n, uses: ... if n == "mlp" else uses, "no value"),
    ],
)
def test_uses_of_a_weight(comparison: ArchitectureComparison, change: Callable[..., Any], words: str) -> None:
    answer = {name: change(name, uses) for name, uses in USES.items()}

    expect("5.2", words, answer, comparison=comparison, images=torch.ones(64, 1, 8, 8))


@pytest.mark.parametrize(
    ("time", "arithmetic", "per_flop", "words"),
    [
        (1.5, RATIO, 1.5 / RATIO, ""),
        (1.52, RATIO, 1.52 / RATIO, ""),
        (1.5, 0.715, 2.1, ""),
        (1 / 1.5, RATIO, 2.1, "time is not the measured ratio. It looks like the inverse"),
        (15.0, RATIO, 2.1, "time is not"),
        (1.5, 54_829_056 / 77_004_800, 2.1, "only the forward pass"),
        (1.5, 1 / RATIO, 2.1, "inverse"),
        (1.5, 2 * RATIO, 2.1, "twice"),
        (1.5, RATIO, 1.5 * RATIO, "multiplies"),
        (1.5, RATIO, RATIO / 1.5, "inverse"),
        (1.5, RATIO, 210, "percent"),
    ],
)
def test_time_by_arithmetic(
    comparison: ArchitectureComparison, time: float, arithmetic: float, per_flop: float, words: str
) -> None:
    answer = {"time": time, "arithmetic": arithmetic, "per_flop": per_flop}

    expect("5.3", words, answer, comparison=comparison)


def in_training_mode(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def left_in_evaluation(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    return in_training_mode(model.eval(), images, labels)


def left_in_training(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    found = left_in_evaluation(model, images, labels)
    model.train()
    return found


def remembering() -> Callable[..., float]:
    known: dict[int, float] = {}
    return lambda model, images, labels: known.setdefault(0, accuracy(model, images, labels))


def with_gradients(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    mode = model.training
    nn.functional.cross_entropy(model.eval()(images), labels).backward()
    model.train(mode)
    return accuracy(model, images, labels)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (accuracy, ""),
        (lambda *given: torch.tensor(accuracy(*given)), ""),
        (in_training_mode, "Is it run in evaluation mode"),
        (left_in_evaluation, "was in training mode and is left in evaluation mode"),
        (left_in_training, "was in evaluation mode and is left in training mode"),
        (lambda *given: 100 * accuracy(*given), "percent"),
        (lambda *given: accuracy(*given) * len(given[2]), "how many are right"),
        (lambda *given: 1 - accuracy(*given), "mistakes"),
        (lambda *given: accuracy(given[0], given[1][:10], given[2][:10]), "you return"),
        (lambda *given: 0.1, "you return"),
        (remembering(), "you return"),
        (with_gradients, "gradients"),
        (lambda *given: None, "no value"),
        (lambda model, images, labels: (model(images).argmax(0) == labels).float().mean(), "RuntimeError"),
        (0.97, "function itself"),
    ],
)
def test_accuracy(answer: Any, words: str) -> None:
    expect("5.4", words, answer)
