"""Compare a layer that the reader wrote with the layer that it replaces.

Both layers must return the same results and gradients for random inputs that the reader has not seen.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from perfnb.labs.answers import outcome
from perfnb.labs.exercise import Facts, Hint
from perfnb.labs.judging import hint_if
from perfnb.labs.workloads import agree

#: Differences up to this size are rounding errors. This applies to row means, and relatively to standard deviations.
ROUNDING = 1e-4


def run_layer(layer: Any, x: Any, weights: Any, *, parameters: bool = False) -> tuple[Any, list[Any], bool]:
    """Run a layer forward and backward.

    Return the layer's output, the gradients of `x` and, on request, of the layer's `parameters`, and whether the layer
    changed `x`. The loss is the sum of the output times `weights`. The list of gradients is empty if the output does
    not require a gradient.
    """
    leaf = x.detach().clone().requires_grad_(x.requires_grad)
    given = leaf * 1.0  # unlike a leaf, this tensor may be changed in place
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
    """Compare the output and gradients of two layers (see `run_layer`), and check that `x` is left unchanged."""
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
    """Return an output's largest error, and the largest errors of its row means and row standard deviations."""
    ratio = got.double().std(1) / wanted.double().std(1)
    return {
        "largest": float((got - wanted).abs().max()),
        "means": float((got.double().mean(1) - wanted.double().mean(1)).abs().max()),
        "deviations": float((ratio - 1).abs().max()),
    }


def judge_layer(case: Facts, what: str, no_gradient: str) -> None:
    """Raise a `Hint` unless the new layer, called `what`, computes the same as the original.

    `no_gradient` is the hint for a layer whose output is right but whose gradients are not.
    """
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
    """Describe in words how an output differs from the right one."""
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
