"""Lab 5: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from notebooks.labs import build
from perfnb.results import ArchitectureComparison
from tests.labs.judging import expect, hint
from tests.labs.lab_05_answers import RATIO, USES


def test_the_three_models_have_about_as_many_parameters() -> None:
    """As the lab claims, whose width of the MLP is given."""
    names: dict[str, Any] = {"nn": nn, "torch": torch}
    exec(cell_of_lab_5("def make_cnn"), names)

    counts = [names["count"](model) for model in names["models"].values()]
    assert counts == [25_791, 25_866, 26_410]


def cell_of_lab_5(begin: str) -> str:
    """The code of a cell of the students' notebook, by what it holds."""
    (found,) = [
        text
        for cell in json.loads(build.built()[build.HERE / "05_architectures.ipynb"])["cells"]
        if begin in (text := "".join(cell["source"])) and cell["cell_type"] == "code"
    ]
    return found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda n, uses: uses, ""),
        (lambda n, uses: 2 * uses, "two FLOPs"),
        (lambda n, uses: 64 * uses, "whole batch"),
        (lambda n, uses: 128 * uses, "one image, and two FLOPs per use"),
        (lambda n, uses: uses if n != "cnn" else 2.9847 * uses, "cnn: It includes backward"),
        (lambda n, uses: uses if n != "cnn" else 1.9847 * uses, "cnn: Is it the backward pass"),
        (lambda n, uses: uses if n != "cnn" else 2 * uses, "cnn: A use is a product and an addition"),
        (lambda n, uses: uses if n != "transformer" else 1.0, "transformer: Check it"),
    ],
)
def test_uses_of_a_weight(comparison: ArchitectureComparison, change: Callable[..., Any], words: str) -> None:
    answer = {name: change(name, uses) for name, uses in USES.items()}

    expect("5.1", words, answer, comparison=comparison, images=torch.ones(64, 1, 8, 8))


@pytest.mark.parametrize(
    ("time", "arithmetic", "per_flop", "words"),
    [
        (1.5, RATIO, 1.5 / RATIO, ""),
        (1.5, 54_829_056 / 77_004_800, 2.1, "only the forward pass"),
        (1.5, RATIO, 1.5 * RATIO, "multiplies"),
    ],
)
def test_time_by_arithmetic(
    comparison: ArchitectureComparison, time: float, arithmetic: float, per_flop: float, words: str
) -> None:
    answer = {"time": time, "arithmetic": arithmetic, "per_flop": per_flop}

    expect("5.2", words, answer, comparison=comparison)


def test_a_comparison_of_other_models_is_not_taken(comparison: ArchitectureComparison) -> None:
    other = replace(comparison, ratios=comparison.ratios.assign(b="mlp"))

    answer = {"time": 1.5, "arithmetic": RATIO, "per_flop": 1.5 / RATIO}

    assert "does not have the three models" in hint("5.2", answer, comparison=other)
