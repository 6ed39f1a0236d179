"""What two steps return agrees, or how it differs is said."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from perfnb.capture.agreement import disagreement

ONE = torch.tensor([1.0, 2.0, 4.0])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ONE, ONE.clone()),
        (ONE, ONE + 3e-6),
        (ONE, ONE.to(torch.float64)),
        (ONE.to("cpu", torch.bfloat16), ONE),
        ((ONE, {"a": 2.0}), (ONE, {"a": 2.0})),
        (None, None),
        ("word", "word"),
        (torch.tensor([torch.nan, 1.0]), torch.tensor([torch.nan, 1.0])),
        (torch.tensor([torch.inf]), torch.tensor([torch.inf])),
        (torch.zeros(0), torch.zeros(0)),
        (3, 3.0000001),
    ],
)
def test_what_agrees_has_no_words(first: Any, second: Any) -> None:
    assert disagreement(first, second, 1e-6) == ""


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (ONE, ONE * 1.01, "the result differs by up to 0.01 of the largest value"),
        (ONE, ONE[:2], "the result has the shape (2,) instead of (3,)"),
        (ONE, torch.tensor([1.0, 2.0, torch.nan]), "the result is not a number in 1 other places"),
        ((ONE, ONE), (ONE, ONE + 1), "the result[1] differs by up to 0.25"),
        ({"a": ONE}, {"b": ONE}, "the result has other keys"),
        ((ONE,), (ONE, ONE), "the result has 2 parts instead of 1"),
        (ONE, 1.0, "the result is float and not the same Tensor"),
        (torch.zeros(2), torch.ones(2), "the result differs by up to inf"),
        (torch.tensor([torch.inf]), torch.tensor([1.0]), "the result differs by up to 1 "),
    ],
)
def test_what_differs_is_said(first: Any, second: Any, words: str) -> None:
    assert disagreement(first, second, 1e-6).startswith(words)
