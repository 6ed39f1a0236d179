"""Checks of lab 2, *Where does a step go?*"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from perfnb import Profile
from perfnb.labs.exercise import (
    Exercise,
    Facts,
    Hint,
    as_function,
    as_number,
    as_numbers,
    close,
    outcome,
    ratio_of,
    slip,
)
from perfnb.labs.workloads import agree, interleaved, one_thread

PARTS = ("forward", "backward", "optimizer", "rest")


def measure_prediction(answer: Any) -> Facts:
    return as_numbers(answer, PARTS)


def judge_prediction(facts: Facts) -> None:
    total = sum(facts[part] for part in PARTS)
    if min(facts[part] for part in PARTS) < 0:
        raise Hint("No part of a step takes less than no time.")
    if close(total, 100.0, 0.02):
        raise Hint("They add up to 100, so these are percent; write shares, which add up to 1.")
    if not close(total, 1.0, 0.02):
        raise Hint(f"The four shares add up to {total:.3g}; a step has nothing beside its parts, so they must be 1.")


def measure_ratio(answer: Any, profile: Any = None) -> Facts:
    given = _profile(profile)
    phases, layers = given.phases["ms"], given.layers
    ways = [[float(rows[f"{way}_ms"].sum()) for way in ("forward", "backward")] for rows in (layers[:1], layers)]
    return {
        "ratio": as_number(answer, "The ratio"),
        "forward_ms": float(phases["forward"]),
        "backward_ms": float(phases["backward"]),
        "of_layers": [backward / forward for forward, backward in ways if forward],
    }


def judge_ratio(facts: Facts) -> None:
    wanted = facts["backward_ms"] / facts["forward_ms"]
    if close(facts["ratio"], wanted, 0.03):
        return
    if close(facts["ratio"], facts["backward_ms"], 0.01) or close(facts["ratio"], facts["forward_ms"], 0.01):
        raise Hint("It is the time of one direction; asked for is how many times as long the other takes.")
    if any(close(facts["ratio"], of_layers, 0.002) for of_layers in facts["of_layers"]):
        raise Hint("This is by the times of layers. The phases hold more than the layers do: take them from p.phases.")
    raise Hint(slip(facts["ratio"], wanted, 0.03))


#: A tree with what goes wrong in others: three levels, and a name that begins as another one does.
TREE = {
    "net": 100.0,
    "net.body": 60.0,
    "net.body.conv": 35.0,
    "net.body.norm": 20.0,
    "net.body2": 30.0,
    "net.body2.conv": 30.0,
    "(loss)": 5.0,
}
ITS_SELF = {
    "net": 10.0,
    "net.body": 5.0,
    "net.body.conv": 35.0,
    "net.body.norm": 20.0,
    "net.body2": 0.0,
    "net.body2.conv": 30.0,
    "(loss)": 5.0,
}


def measure_self_times(answer: Any, profile: Any = None) -> Facts:
    function = as_function(answer, "self_times(layers)")
    layers = _profile(profile).layers
    made = pd.DataFrame({"total_ms": TREE}).rename_axis("layer")
    made["forward_ms"], made["backward_ms"] = made["total_ms"] * 0.4, made["total_ms"] * 0.6
    cases = []
    for frame, wanted in ((layers, layers["self_ms"].to_dict()), (made, ITS_SELF)):
        returned = outcome(function, frame.drop(columns="self_ms", errors="ignore").copy())
        if not isinstance(returned, Mapping) and not isinstance(returned, pd.Series):
            raise Hint("Return a dictionary, or a series, with a time for each layer's name.")
        said = {str(name): as_number(ms, f"The time of {name}") for name, ms in dict(returned).items()}
        total = frame["total_ms"].to_dict()
        cases.append(
            {
                str(name): {"self": float(ms), "total": float(total[name]), "said": said.get(str(name))}
                for name, ms in wanted.items()
            }
        )
    return {"cases": cases}


def judge_self_times(facts: Facts) -> None:
    for tree, case in zip(("your profile", "the other tree, which you have not seen"), facts["cases"], strict=True):
        step = sum(row["self"] for row in case.values())
        for name, row in case.items():
            if row["said"] is None:
                raise Hint(
                    f"In {tree}, the row {name} is missing; rows without layers inside have a time of their own too."
                )
            over = row["said"] - row["self"]
            if abs(over) <= 1e-3 * step:
                continue
            if close(row["said"], row["total"], 1e-3):
                raise Hint(f"In {tree}, the time of {name} still holds the layers inside it.")
            if over < 0:
                raise Hint(
                    f"In {tree}, too much was taken from {name}. Only layers *directly* inside count, for their own "
                    "totals hold what is inside them; and a name may begin as another does without being inside it."
                )
            raise Hint(
                f"In {tree}, the time of {name} is too large: which layers inside it were not taken off, or only in "
                "part?"
            )


def measure_arithmetic(answer: Any, profile: Any = None) -> Facts:
    layers = _profile(profile).layers
    said = as_numbers(answer, ("stem", "body"))
    counted = {
        name: [int(layers[f"{way}_flops"][f"model.{name}.conv"]) for way in ("forward", "backward")]
        for name in said
        if f"model.{name}.conv" in layers.index
    }
    if set(counted) != set(said):
        raise Hint("The profile has no model.stem.conv and model.body.conv; give the first one, profile=p.")
    return {"said": said, "flops": counted}


def judge_arithmetic(facts: Facts) -> None:
    wanted = [backward / forward for forward, backward in facts["flops"].values()]
    said = [facts["said"][name] for name in facts["flops"]]
    if wanted[0] != wanted[1] and all(close(*pair, 1e-3) for pair in zip(said, reversed(wanted), strict=True)):
        raise Hint("Each is the ratio of the other convolution: read off again which numbers stand in which row.")
    for name, (forward, backward) in facts["flops"].items():
        if not close(facts["said"][name], backward / forward, 1e-3):
            raise Hint(
                f"{name}: not the ratio of backward_flops to forward_flops that was counted. These are exact numbers, "
                f"not times. {slip(facts['said'][name], backward / forward, 1e-3)}"
            )


FROZEN, TRAINED = ("stem.conv", "body.conv"), "head"


def measure_frozen(answer: Any, profile: Any = None) -> Facts:
    return {"before": _flops(_profile(profile)), "after": _flops(_profile(answer))}


def _flops(profile: Profile) -> dict[str, list[int]]:
    layers = profile.layers
    found = {}
    for part in (*FROZEN, TRAINED):
        rows = layers[layers.index.str.endswith(f".{part}")]
        if len(rows) != 1:
            raise Hint(f"A profile has {len(rows)} layers named .{part}; give p, and that of the frozen model.")
        counted = rows[["forward_flops", "backward_flops"]].fillna(0).iloc[0]
        found[part] = [int(each) for each in counted]
    return found


def judge_frozen(facts: Facts) -> None:
    before, after = facts["before"], facts["after"]
    for part, (forward, _) in before.items():
        if after[part][0] != forward:
            raise Hint(f"The forward pass of {part} computes something else than before: is it the same batch and net?")
    if after[TRAINED][1] == 0:
        raise Hint("Nothing is learned at all now: the head has no backward pass. It should go on learning.")
    for part in FROZEN:
        if after[part][1] > 0:
            raise Hint(f"{part} still has a backward pass: a parameter in its block still asks for a gradient.")
    if not 0 < after[TRAINED][1] < before[TRAINED][1]:
        raise Hint(
            "The head still computes a gradient for its input, so something before it, nearer the images, learns."
        )


def measure_suspect(answer: Any, profile: Any = None) -> Facts:
    if not isinstance(answer, Mapping) or not isinstance(answer.get("layer"), str):
        raise Hint("The answer is a dictionary with layer, a name as in the frame, and at_most, a number.")
    given = _profile(profile)
    layers, phases = given.layers, given.phases["ms"]
    free = layers[(layers["parameters"].fillna(0) == 0) & layers["calls"].notna()].dropna(subset=["self_ms", "share"])
    return {
        "layer": answer["layer"],
        "names": [str(name) for name in layers.index],
        "at_most": as_numbers(answer, ("at_most",))["at_most"],
        "self_ms": {str(name): float(ms) for name, ms in free["self_ms"].items()},
        "shares": {str(name): float(share) for name, share in free["share"].items()},
        "steps_ms": [float(phases.sum()), float(layers["self_ms"].sum()), given.timing.median_ms],
    }


def judge_suspect(facts: Facts) -> None:
    layer, own = facts["layer"], facts["self_ms"]
    if layer not in facts["names"]:
        raise Hint(f"The frame has no row {layer!r}; write the name as it stands in the index, from the model on.")
    if layer not in own:
        raise Hint(f"{layer} has parameters, or is no layer.")
    if own[layer] < max(own.values()):
        raise Hint(f"{layer} is not the one: another layer without parameters has more time of its own.")
    share, said = facts["shares"][layer], facts["at_most"]
    if close(said * share, 1.0, 1e-3) and not close(said, 1 / (1 - share), 1e-3):  # near one half they are near too
        raise Hint("at_most is 1 by the share. The share vanishes: how much of the step is left, and what is 1 by it?")
    if close(said, 1 / (1 - share), 0.02):
        return
    left = [1 - own[layer] / step for step in facts["steps_ms"]]
    if any(part > 0 and close(said, 1 / part, 0.002) for part in left):
        raise Hint(
            "at_most comes from milliseconds, which hold the cost of tracing. The column share is corrected for it."
        )
    if close(said, share, 0.03):
        raise Hint("at_most is the layer's share. If that share vanished, how much would be left, and what is 1 by it?")
    if close(said, 1 - share, 0.03):
        raise Hint("at_most is what would be left of the step. How many times as fast is a step that takes so little?")
    if close(said, 1 + share, 0.02):
        raise Hint("at_most adds the share to 1. Try it on a layer that takes half of the step: how much faster?")
    raise Hint(f"at_most does not follow from that share. {slip(facts['at_most'], 1 / (1 - share), 0.03)}")


#: Shapes of the inputs that a rewritten layer is tried on; the last is timed.
SHAPES = ((5, 32), (17, 100), (1, 64), (128, 256))
ROUNDS = 10
#: The most that a rewritten layer may take of the time before.
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
    cases.append(_same(old, new, *fresh(SHAPES[-1])))  # still right, and nothing remembered
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
    """How far an output is off: the largest difference, and by rows that of the means and of the deviations' ratio."""
    ratio = got.double().std(1) / wanted.double().std(1)
    return {
        "largest": float((got - wanted).abs().max()),
        "means": float((got.double().mean(1) - wanted.double().mean(1)).abs().max()),
        "deviations": float((ratio - 1).abs().max()),
    }


def _ran(layer: Callable[..., Any], x: Any, weights: Any) -> tuple[Any, Any, bool]:
    """The layer's output, the gradient of its input (``None`` without one), and whether it changed the input."""
    import torch

    leaf = x.clone().requires_grad_()
    given = leaf * 1.0  # may be changed in place, as no leaf may
    kept = given.detach().clone()
    output = outcome(layer, given)
    changed = not torch.equal(given.detach(), kept)
    if changed or not isinstance(output, torch.Tensor) or output.shape != weights.shape or not output.requires_grad:
        return output, None, changed
    (gradient,) = outcome(lambda: torch.autograd.grad((output * weights).sum(), leaf, allow_unused=True))
    return output, gradient, changed


def judge_rewritten(facts: Facts) -> None:
    for case in facts["cases"]:
        on = f"on an input of {' x '.join(map(str, case['shape']))}"
        if case["input_changed"]:
            raise Hint(f"The layer changes its input ({on}); somebody else may still need it.")
        if case["returned"] == "NoneType":
            raise Hint("The layer returns nothing yet.")
        if case["returned_shape"] is None:
            raise Hint(f"The layer returns a {case['returned']}, not a tensor.")
        if case["returned_shape"] != case["shape"]:
            raise Hint(f"The layer returns the shape {' x '.join(map(str, case['returned_shape']))} {on}.")
        if not case["forward"]:
            raise Hint(f"The layer returns something else than Rescale {on} of fresh numbers. {_how(case['off'])}")
        if not case["backward"]:
            raise Hint(f"Forward is right, but the gradient of the layer's input is not that of Rescale, {on}.")
    if facts["ratio"] > MOST:
        raise Hint(
            f"The result is right. Forward and backward take {facts['ratio']:.0%} of the time before; get below "
            f"{MOST:.0%}. What is done once for each row, and could be done for all of them at once?"
        )


#: Difference of rows' means, and relative one of their standard deviations, that is rounding.
ROUNDING = 1e-4


def _how(off: Facts) -> str:
    """Which way an output is off, in words."""
    if not all(map(math.isfinite, off.values())):
        return "Some of it is infinite, or not a number (NaN)."
    means, deviations = off["means"] > ROUNDING, off["deviations"] > ROUNDING
    return (
        f"The largest difference is {off['largest']:.2g}: the rows' means are "
        + (f"off by up to {off['means']:.2g}" if means else "right")
        + ", their standard deviations "
        + (f"off by up to {100 * off['deviations']:.2g} %." if deviations else "right.")
        + ("" if means or deviations else " Are these the numbers of this input, each in its place?")
    )


def measure_verified(answer: Any, test: Any = None) -> Facts:
    ratio = ratio_of(test)
    said = as_number(answer, "The speed-up")
    return {
        "speedup": said,
        **ratio,
        "verdict": str(test.verdict),
        "check": None if test.check is None else str(test.check),
    }


def judge_verified(facts: Facts) -> None:
    if facts["check"] is None:
        raise Hint("The test did not compare the results: give it check=1e-3, and let both steps return the loss.")
    if facts["check"]:
        raise Hint(
            f"The two steps do not return the same: {facts['check']} Do both models begin with the same weights, and "
            "has each step a model and an optimizer of its own?"
        )
    if facts["ratio_ci"][0] > 1:
        raise Hint("By this test the second step is the slower one: which comes first, and which second?")
    if facts["ratio_ci"][1] >= 1:
        raise Hint("This test shows no difference. Are the two steps different? If so, give it more budget_s.")
    if not close(facts["speedup"], 1 / facts["ratio"], 0.03):
        raise Hint(f"The speed-up is not that of the test. {slip(facts['speedup'], 1 / facts['ratio'], 0.03)}")


def _profile(given: Any) -> Profile:
    if not isinstance(given, Profile):
        raise Hint("A profile is needed: what %%profile_step --into NAME bound, as in profile=p.")
    return given


EXERCISES = (
    Exercise("2.1", "A prediction", measure_prediction, judge_prediction, accepted="noted"),
    Exercise("2.2", "Backward by forward", measure_ratio, judge_ratio),
    Exercise("2.3", "Self and total", measure_self_times, judge_self_times),
    Exercise("2.4", "Arithmetic of backward", measure_arithmetic, judge_arithmetic),
    Exercise("2.5", "A frozen body", measure_frozen, judge_frozen),
    Exercise("2.6", "The suspect", measure_suspect, judge_suspect),
    Exercise("2.7", "The same, faster", measure_rewritten, judge_rewritten),
    Exercise("2.8", "Did it help?", measure_verified, judge_verified),
)
