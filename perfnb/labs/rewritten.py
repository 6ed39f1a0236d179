"""A layer that the reader wrote against the one that it replaces: the same results and gradients for fresh numbers."""

from __future__ import annotations

import math
from typing import Any

import torch

from perfnb.labs.answers import outcome
from perfnb.labs.exercise import Facts, Hint
from perfnb.labs.judging import hint_if
from perfnb.labs.workloads import agree

#: Differences of the row means, and relative differences of their standard deviations, that are rounding.
ROUNDING = 1e-4


def run_layer(layer: Any, x: Any, weights: Any, *, parameters: bool = False) -> tuple[Any, list[Any], bool]:
    """A layer's output, the gradients of `x` and, on request, its `parameters`, and whether it changed `x`.

    The loss is the sum of the output times `weights`. If the output needs no gradient, there are none.
    """
    leaf = x.detach().clone().requires_grad_(x.requires_grad)
    given = leaf * 1.0  # unlike a leaf, this may be changed in place
    kept = given.detach().clone()
    trained = [part for part in (*(layer.parameters() if parameters else ()), leaf) if part.requires_grad]
    for part in trained:
        part.grad = None
    output = outcome(layer, given)
    changed = not torch.equal(given.detach(), kept)
    if changed or not isinstance(output, torch.Tensor) or output.shape != weights.shape or not output.requires_grad:
        return output, [], changed
    outcome((output * weights).sum().backward)
    return output, [part.grad for part in trained], changed


def same_layer(old: Any, new: Any, x: Any, weights: Any, *, parameters: bool = False) -> Facts:
    """Whether two layers give the same output and gradients (see `run_layer`) for `x`, and leave it unchanged."""
    wanted, wanted_gradients, _ = run_layer(old, x, weights, parameters=parameters)
    got, gradients, changed = run_layer(new, x, weights, parameters=parameters)
    is_tensor = isinstance(got, torch.Tensor)
    return {
        "shape": list(x.shape),
        "returned": type(got).__name__,
        "returned_shape": list(got.shape) if is_tensor else None,
        "forward": is_tensor and agree(wanted, got),
        "off": _off(wanted.detach(), got.detach()) if is_tensor and got.shape == wanted.shape else None,
        "backward": len(gradients) == len(wanted_gradients)
        and all(one is not None and agree(right, one) for one, right in zip(gradients, wanted_gradients, strict=True)),
        "input_changed": changed,
    }


def _off(wanted: Any, got: Any) -> Facts:
    """Error of an output: the largest difference, and per row the error of the mean and of the standard deviation."""
    ratio = got.double().std(1) / wanted.double().std(1)
    return {
        "largest": float((got - wanted).abs().max()),
        "means": float((got.double().mean(1) - wanted.double().mean(1)).abs().max()),
        "deviations": float((ratio - 1).abs().max()),
    }


def judge_layer(case: Facts, what: str, no_gradient: str) -> None:
    """Raise a `Hint` unless the new layer, called `what`, computes the same; `no_gradient` is one for its gradients."""
    on = f"on an input of {' x '.join(map(str, case['shape']))}"
    hint_if(case["input_changed"], f"The {what} changes its input ({on}), which other code may still need.")
    hint_if(case["returned"] == "NoneType", f"The {what} returns nothing yet.")
    hint_if(case["returned_shape"] is None, f"The {what} returns a {case['returned']}, not a tensor.")
    if case["returned_shape"] != case["shape"]:
        raise Hint(f"The {what} returns shape {' x '.join(map(str, case['returned_shape']))} {on}.")
    if not case["forward"]:
        raise Hint(f"The {what}'s output differs from the original's {on} of fresh numbers. {_how(case['off'])}")
    hint_if(not case["backward"], f"The output is right, but {no_gradient}")


def _how(off: Facts) -> str:
    """How an output is off, in words."""
    if not all(map(math.isfinite, off.values())):
        return "It contains infinities or NaN."
    means, deviations = off["means"] > ROUNDING, off["deviations"] > ROUNDING
    return (
        f"The largest difference is {off['largest']:.2g}: the rows' means are "
        + (f"off by up to {off['means']:.2g}" if means else "right")
        + ", their standard deviations "
        + (f"off by up to {100 * off['deviations']:.2g} %." if deviations else "right.")
        + ("" if means or deviations else " Is every value in its place, and computed from this input?")
    )
