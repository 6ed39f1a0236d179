"""How far results are from each other, and from the truth."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from perfnb.bench.distances import differ, errors_between, kept, worst_difference
from perfnb.bench.values import DIFFERENT, NOISE, judge_values

ONE = torch.tensor([1.0, 2.0, 4.0])
ZERO = torch.zeros(3)
MASKED = torch.tensor([-torch.inf, 2.0, 4.0])


@dataclass
class Output:
    """What a model may return."""

    logits: torch.Tensor
    kind: str = "x"


class Cache:
    """What does not tell whether it is equal."""


def quantized(value: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings(action="ignore"):  # torch calls quantized tensors deprecated
        return torch.quantize_per_tensor(value, 0.5, 0, torch.qint8)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ONE, ONE.clone()),
        (ONE, ONE + 3e-6),
        (ONE, ONE.to(torch.float64)),
        (ONE.to("cpu", torch.bfloat16), ONE),
        ((ONE, {"a": 2.0}), (ONE, {"a": 2.0})),
        ((ONE, None), (ONE, None)),
        ((ONE, "word"), (ONE, "word")),
        (torch.tensor([torch.nan, 1.0]), torch.tensor([torch.nan, 1.0])),
        (torch.tensor([torch.inf]), torch.tensor([torch.inf])),
        (torch.zeros(0), torch.zeros(0)),
        (3, 3.0000001),
        (np.array([1.0, 2.0]), np.array([1.0, 2.0])),
        ((1.0, np.array([1.0, 2.0], ">f4")), (1.0, torch.tensor([1.0, 2.0]))),
        (MASKED, MASKED.clone()),
        (Output(ONE), Output(ONE.clone())),
        (ONE[0], 1.0),
        (1.0, ONE[0]),
        (ONE.to_sparse(), ONE.clone().to_sparse()),
    ],
)
def test_what_agrees(first: Any, second: Any) -> None:
    worst = worst_difference(first, second, 1e-6)
    assert worst.known
    assert worst.relative <= 1e-6


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (ONE, ONE * 1.01, "the result differs by up to 0.01 times the largest value"),
        (ONE, ONE[:2], "the result has shape (2,) instead of (3,)"),
        (ONE, torch.tensor([1.0, 2.0, torch.nan]), "the result differs in 1 place where one value is infinite or"),
        ((ONE, ONE), (ONE, ONE + 1), "the result[1] differs by up to 0.25"),
        ({"a": ONE}, {"b": ONE}, "the result has different keys"),
        ((ONE,), (ONE, ONE), "the result has 2 elements instead of 1"),
        (ONE, 1.0, "the result has type float instead of Tensor"),
        (np.array([1.0, 2.0]), np.array([1.0, 3.0]), "the result differs by up to 0.5 times the largest value"),
        (torch.zeros(2), torch.full((2,), 1e-9), "the result differs by up to 1e-09 where the first is all zeros"),
        (torch.tensor([torch.inf]), torch.tensor([1.0]), "the result differs in 1 place where one value is infinite"),
        (torch.tensor([torch.inf]), -torch.tensor([torch.inf]), "the result differs in 1 place where one value is"),
        (MASKED, MASKED + 1, "the result differs by up to 0.25 times the largest value"),
        (Output(ONE), Output(ONE * 1.01), "the result.logits differs by up to 0.01"),
        (Output(ONE), Output(ONE, "y"), "the result.kind differs (str)"),
        (ONE[0], 1.01, "the result differs by up to 0.01"),
        (ONE.to_sparse(), (ONE * 2).to_sparse(), "the result differs by up to 1 times"),
        (quantized(ONE), quantized(ONE + 1), "the result differs by up to 0.25 times"),
    ],
)
def test_differences_are_described(first: Any, second: Any, words: str) -> None:
    worst = worst_difference(first, second, 1e-6)
    assert worst.relative > 1e-6
    assert worst.words.startswith(words)


@pytest.mark.parametrize(
    ("first", "second", "tolerance", "dtype"),
    [
        (ONE, ONE, 1e-4, "float32"),
        (ONE.double(), ONE.double(), 1e-6, "float64"),
        (ONE, ONE.to(torch.bfloat16), 2e-2, "bfloat16"),
        (ONE.half(), ONE, 2e-2, "float16"),
        (1.0, 1.0, 1e-4, "float32"),
        (3, 3, 0.0, ""),
        (torch.tensor([1, 2]), torch.tensor([1, 2]), 0.0, ""),
        (ONE.to(torch.complex64), ONE.to(torch.complex64), 1e-4, "float32"),
    ],
)
def test_the_tolerance_is_that_of_the_coarser_dtype(first: Any, second: Any, tolerance: float, dtype: str) -> None:
    found = worst_difference(first, second)

    assert (found.relative, found.tolerance, found.dtype) == (0.0, tolerance, dtype)


def test_the_worst_part_is_the_one_farthest_beyond_its_tolerance() -> None:
    first = {"wide": ONE.to(torch.bfloat16), "exact": torch.tensor([1000])}
    near = {"wide": ONE.to(torch.bfloat16) * 1.01, "exact": torch.tensor([1000])}
    off = {**near, "exact": torch.tensor([1001])}

    by_rounding, by_one = worst_difference(first, near), worst_difference(first, off)
    assert 0 < by_rounding.relative <= by_rounding.tolerance
    assert by_one.words == "the result['exact'] differs by up to 0.001 times the largest value"
    assert by_one.relative > by_one.tolerance == 0.0
    allowed = worst_difference(first, off, 0.1)
    assert allowed.relative <= 0.1


@pytest.mark.parametrize(
    ("value", "other", "words"),
    [
        (ONE * torch.nan, ONE * torch.nan, "the result is NaN in both"),
        ({"a": ONE, "b": float("nan")}, {"a": ONE, "b": float("nan")}, "the result['b'] is NaN in both"),
        ((ONE, Cache()), (ONE, Cache()), "the result[1] cannot be compared (Cache)"),
        ((ONE, pd.Series([1.0])), (ONE, pd.Series([1.0])), "the result[1] cannot be compared (Series)"),
        (Decimal(1), Decimal(1), "the result cannot be compared ("),
        (torch.ones(2, device="meta"), torch.ones(2, device="meta"), "the result cannot be compared ("),
    ],
)
def test_what_cannot_be_compared_neither_agrees_nor_differs(value: Any, other: Any, words: str) -> None:
    worst = worst_difference(value, other)

    assert not worst.known
    assert worst.words.startswith(words)
    off = worst_difference((value, ONE), (other, ONE + 1))
    assert off.known
    assert off.words.startswith("the result[1] differs by up to 0.25")


@pytest.mark.parametrize(
    ("first", "second"), [(None, ONE), (ONE, None), (None, None), ((), ()), (["word", None], ["word", None])]
)
def test_results_without_numbers_are_not_compared(first: Any, second: Any) -> None:
    worst = worst_difference(first, second)

    assert not worst.known
    assert worst.words == "a step does not return any tensor or number"


def test_a_kept_result_is_a_copy_in_float64() -> None:
    value = ONE.double()
    copy = kept(value)
    value += 1
    assert copy.tolist() == [1.0, 2.0, 4.0]
    assert kept(ONE).dtype == torch.float64


def test_a_masked_place_hides_no_distance_from_the_truth() -> None:
    errors = errors_between({"logits": MASKED}, {"logits": MASKED * 1.5}, {"logits": MASKED.double()})

    assert errors.own == {"logits": 0.0}
    assert errors.other == {"logits": 0.5}
    assert judge_values(errors).verdict == DIFFERENT


def test_distances_from_the_truth_are_relative_to_its_length() -> None:
    """One element of three may be off without hiding behind the others, and without weighing as much as all."""
    near = ONE + torch.tensor([0.0, 0.0, 2e-4])
    errors = errors_between({"loss": ONE}, {"loss": near}, {"loss": ONE.double()})

    assert worst_difference(ONE, near).relative == pytest.approx(2e-4 / 4, rel=1e-2)
    assert errors.worst == pytest.approx(2e-4 / 21**0.5, rel=1e-2)
    assert judge_values(errors).verdict == NOISE


def test_what_was_lost_on_the_way_is_named() -> None:
    own = {"a": ONE, "b": ONE, "c": ONE, "d": ZERO, "e": None, "f": ONE * math.inf}
    found = {"a": ONE * math.nan, "b": ZERO, "c": None, "d": ZERO, "e": None, "f": ONE * math.inf}
    truth = {name: None if value is None else value.double() for name, value in own.items()}

    errors = errors_between(own, found, truth, random=True)

    assert errors.not_finite == ("a",)
    # b and a have no number above 0 left, and c is missing; f has no finite number that could vanish.
    assert errors.vanished == ("a", "b", "c")
    assert errors.other["b"] == 1.0
    assert errors.other["c"] == errors.other["a"] == math.inf
    assert errors.own == dict.fromkeys(own, 0.0)
    assert (errors.other["d"], errors.other["e"], errors.other["f"]) == (0.0, 0.0, 0.0)
    assert errors.random
    assert not errors.equal


def test_a_result_without_a_true_value_is_infinitely_far_from_it() -> None:
    errors = errors_between({"a": ONE, "b": None}, {"a": ONE, "b": None}, {"b": ONE.double()})

    assert errors.equal
    assert errors.own == errors.other == {"a": math.inf, "b": math.inf}


def test_numbers_a_thousand_times_smaller_than_their_kind_may_be_noise() -> None:
    def error(name: str) -> float:
        own = {"grad.large": ONE * 1000, "grad.small": ZERO, "loss.small": ZERO}
        truth = {key: value.double() for key, value in own.items()}
        found = own | {name: ONE * 1e-2}
        return errors_between(own, found, truth, kind_of=lambda key: key.partition(".")[0]).other[name]

    assert error("grad.small") == pytest.approx(1e-2)  # relative to a thousandth of 1,000 times the size of ONE
    assert error("loss.small") == math.inf


@pytest.mark.parametrize(("least", "vanished"), [(1e-5, ()), (1e-2, ("small",))])
def test_noise_may_vanish(least: float, vanished: tuple[str, ...]) -> None:
    own = {"large": ONE * 1000, "small": ONE * least}
    truth = {name: value.double() for name, value in own.items()}

    assert errors_between(own, own | {"small": ZERO}, truth, kind_of=lambda _: "grad").vanished == vanished


@pytest.mark.parametrize(
    ("a", "b", "differs"),
    [
        ({"x": ONE}, {"x": ONE.clone()}, False),
        ({"x": ONE * math.nan}, {"x": ONE * math.nan}, False),
        ({"x": None}, {"x": None}, False),
        ({}, {}, False),
        ({"x": ONE}, {"x": ONE + 1e-6}, True),
        ({"x": ONE}, {"x": None}, True),
        ({"x": None}, {"x": ONE}, True),
        ({"x": ONE}, {"x": ONE, "y": None}, True),
        ({"x": ONE, "y": ONE}, {"x": ONE, "y": ZERO}, True),
    ],
)
def test_results_differ_in_a_bit_or_a_name(a: Any, b: Any, differs: bool) -> None:
    assert differ(a, b) == differs
