"""Check of a rewritten layer: same results and gradients, in less time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from perfnb.labs.answers import as_function, outcome
from perfnb.labs.exercise import Facts, Hint, all_there
from perfnb.labs.workloads import agree, interleaved, one_thread
from perfnb.quantities import share

#: Shapes of the inputs for a rewritten layer; the last is timed.
SHAPES = ((5, 32), (17, 100), (1, 64), (128, 256))
ROUNDS = 10
#: Largest fraction of the old time that a rewritten layer may take.
MOST = 0.5


def measure_rewritten(answer: Any, slow: Any = None) -> Facts:
    import torch

    new = as_function(answer, "layer(x)")
    old = as_function(slow, "layer(x)")
    generator = torch.Generator().manual_seed(4)

    def fresh(shape: tuple[int, int]) -> tuple[Any, Any]:
        x = torch.randn(shape, generator=generator) * 3 + 1
        return x, torch.randn(shape, generator=generator)

    cases = [_same(old, new, *fresh(shape)) for shape in SHAPES]
    inputs = [fresh(SHAPES[-1]) for _ in range(ROUNDS + 1)]
    with one_thread():
        old_ms, new_ms = interleaved(lambda *given: _ran(old, *given), lambda *given: _ran(new, *given), inputs)
    cases.append(_same(old, new, *fresh(SHAPES[-1])))  # still right, with nothing cached
    return {"cases": cases, "ratio": min(new_ms) / min(old_ms)}


def _same(old: Callable[..., Any], new: Callable[..., Any], x: Any, weights: Any) -> Facts:
    wanted, wanted_gradient, _ = _ran(old, x, weights)
    got, gradient, changed = _ran(new, x, weights)
    return {
        "shape": list(x.shape),
        "returned": type(got).__name__,
        "returned_shape": list(got.shape) if hasattr(got, "detach") else None,
        "forward": hasattr(got, "detach") and agree(wanted, got),
        "off": _off(wanted.detach(), got.detach()) if hasattr(got, "detach") and got.shape == wanted.shape else None,
        "backward": gradient is not None and agree(wanted_gradient, gradient),
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


def _ran(layer: Callable[..., Any], x: Any, weights: Any) -> tuple[Any, Any, bool]:
    """The layer's output, its input's gradient (``None`` if there is none), and whether it changed the input."""
    import torch

    leaf = x.clone().requires_grad_()
    given = leaf * 1.0  # unlike a leaf, this may be changed in place
    kept = given.detach().clone()
    output = outcome(layer, given)
    changed = not torch.equal(given.detach(), kept)
    if changed or not isinstance(output, torch.Tensor) or output.shape != weights.shape or not output.requires_grad:
        return output, None, changed
    (gradient,) = outcome(lambda: torch.autograd.grad((output * weights).sum(), leaf, allow_unused=True))
    return output, gradient, changed


def judge_rewritten(facts: Facts) -> None:
    for case in all_there(facts["cases"], len(SHAPES) + 1):
        on = f"on an input of {' x '.join(map(str, case['shape']))}"
        if case["input_changed"]:
            raise Hint(f"The layer changes its input ({on}), which other code may still need.")
        if case["returned"] == "NoneType":
            raise Hint("The layer returns nothing yet.")
        if case["returned_shape"] is None:
            raise Hint(f"The layer returns a {case['returned']}, not a tensor.")
        if case["returned_shape"] != case["shape"]:
            raise Hint(f"The layer returns shape {' x '.join(map(str, case['returned_shape']))} {on}.")
        if not case["forward"]:
            raise Hint(f"The layer's output differs from Rescale's {on} of fresh numbers. {_how(case['off'])}")
        if not case["backward"]:
            raise Hint(f"Forward is right, but the gradient of the input differs from Rescale's {on}.")
    if facts["ratio"] > MOST:
        raise Hint(
            f"The result is right, but forward and backward take {share(facts['ratio'])} of the original time; "
            f"get below {share(MOST)}. What is done row by row that could be done for all rows at once?"
        )


#: Differences of the row means, and relative differences of their standard deviations, that are rounding.
ROUNDING = 1e-4


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
