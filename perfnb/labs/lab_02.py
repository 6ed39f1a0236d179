"""Checks of lab 2, *Where does a step's time go?*"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pandas as pd
import torch

from perfnb import Profile
from perfnb.labs.answers import (
    AnswerFigure,
    as_function,
    as_number,
    as_numbers,
    as_word,
    close,
    outcome,
    ratio_of,
    require,
)
from perfnb.labs.exercise import Exercise, Facts, Hint, all_there
from perfnb.labs.workloads import agree, shortest_ms, time_ratio
from perfnb.quantities import share

PARTS = ("forward", "backward", "optimizer", "rest")


def measure_prediction(answer: Any) -> Facts:
    return as_numbers(answer, PARTS)


def judge_prediction(facts: Facts) -> None:
    total = sum(facts[part] for part in PARTS)
    if min(facts[part] for part in PARTS) < 0:
        raise Hint("No part of a step can take negative time.")
    if close(total, 100.0, 0.02):
        raise Hint("They add up to 100, so they are percent; give fractions, which add up to 1.")
    if not close(total, 1.0, 0.02):
        raise Hint(
            f"The four shares add up to {total:.3g}; the parts make up the whole step, so they must add up to 1."
        )


def measure_ratio(answer: Any, profile: Any = None) -> Facts:
    given = _profile(profile)
    phases, layers, shares = given.phases["ms"], given.layers, given.phases["share"]
    ways = [[float(rows[f"{way}_ms"].sum()) for way in ("forward", "backward")] for rows in (layers[:1], layers)]
    return {
        "ratio": as_number(answer, "The ratio"),
        "forward_ms": float(phases["forward"]),
        "backward_ms": float(phases["backward"]),
        "of_layers": [backward / forward for forward, backward in ways if forward],
        "of_shares": [float(shares["backward"] / shares["forward"])] if shares["forward"] else [],
    }


def judge_ratio(facts: Facts) -> None:
    forward, backward = facts["forward_ms"], facts["backward_ms"]
    ratio = AnswerFigure(facts["ratio"], backward / forward, 0.03)
    if ratio.right:
        return
    ratio.not_instead((backward, forward), "It is the time of one direction; give the ratio of the two.", 0.01)
    of_layers = "This is a ratio of layer times. The phases include more than the layers: take them from p.phases."
    ratio.not_instead(facts["of_layers"], of_layers, 0.002)
    of_shares = "This is the ratio of the shares, which are corrected for tracing overhead; use the column ms."
    ratio.not_instead(facts["of_shares"], of_shares, 0.005)
    ratio.required("")


#: Total and self time of a tree with the usual traps: three levels, and a name that is a prefix of another.
TREE = {
    "net": (100.0, 10.0),
    "net.body": (60.0, 5.0),
    "net.body.conv": (35.0, 35.0),
    "net.body.norm": (20.0, 20.0),
    "net.body2": (30.0, 0.0),
    "net.body2.conv": (30.0, 30.0),
    "(loss)": (5.0, 5.0),
}
MADE_UP = "a second tree that you have not seen"


def measure_self_times(answer: Any, profile: Any = None) -> Facts:
    function = as_function(answer, "self_times(layers)")
    layers = _profile(profile).layers
    made = pd.DataFrame.from_dict(TREE, "index", columns=["total_ms", "self_ms"]).rename_axis("layer")
    made["forward_ms"], made["backward_ms"] = made["total_ms"] * 0.4, made["total_ms"] * 0.6
    cases = []
    for frame in (layers, made):
        returned = outcome(function, frame.drop(columns="self_ms").copy())
        if not isinstance(returned, Mapping) and not isinstance(returned, pd.Series):
            raise Hint("Return a dictionary or series with a time for each layer name.")
        said = {str(name): as_number(ms, f"The time of {name}") for name, ms in dict(returned).items()}
        times = frame[["self_ms", "total_ms"]].astype(float).itertuples()
        cases.append(
            {str(name): {"self": own, "total": all_, "said": said.get(str(name))} for name, own, all_ in times}
        )
    return {"cases": cases}


def judge_self_times(facts: Facts) -> None:
    for tree, case in zip(("your profile", MADE_UP), facts["cases"], strict=True):
        step = sum(row["self"] for row in case.values())
        for name, row in all_there(case, len(TREE) if tree is MADE_UP else 1, or_more=True).items():
            if row["said"] is None:
                raise Hint(f"In {tree}, the row {name} is missing; rows without inner layers have self time too.")
            over = row["said"] - row["self"]
            if abs(over) <= 1e-3 * step:
                continue
            if close(row["said"], row["total"], 1e-3):
                raise Hint(f"In {tree}, the time of {name} still includes the layers inside it.")
            if over < 0 and close(-row["said"], row["total"] - row["self"], 1e-3) and "." not in name:
                raise Hint(
                    f"In {tree}, {name} lost its self time too. It has no parent: what does your code take for the "
                    "parent of a name without a dot?"
                )
            if over < 0:
                raise Hint(
                    f"In {tree}, the time of {name} is too small. Is too much subtracted? Only *direct* children "
                    "count, and one name can start like another without being inside it."
                )
            raise Hint(
                f"In {tree}, the time of {name} is too large: which inner layers were not, or only partly, subtracted?"
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
        raise Hint("The profile has no model.stem.conv and model.body.conv; pass the first one, profile=p.")
    return {"said": said, "flops": counted}


def judge_arithmetic(facts: Facts) -> None:
    wanted = [backward / forward for forward, backward in facts["flops"].values()]
    said = [facts["said"][name] for name in facts["flops"]]
    if wanted[0] != wanted[1] and all(close(*pair, 1e-3) for pair in zip(said, reversed(wanted), strict=True)):
        raise Hint("The two ratios are swapped: check which numbers belong to which row.")
    if close(facts["said"]["stem"], 2.0, 1e-3) and not close(wanted[0], 2.0, 1e-3):
        raise Hint("stem: that is the textbook ratio. Which of the two gradients does this layer not need?")
    for name, own, right in zip(facts["flops"], said, wanted, strict=True):
        counted = "this is not the counted backward_flops / forward_flops, which are exact counts."
        AnswerFigure(own, right, 1e-3).required(f"{name}: {counted}")


FROZEN, TRAINED = ("stem.conv", "body.conv"), "head"
#: The op that runs once per trained tensor, and how many of these the head has: weights and bias.
GIVEN_A_GRADIENT, OF_THE_HEAD = "torch::autograd::AccumulateGrad", 2


def measure_frozen(answer: Any, profile: Any = None) -> Facts:
    before, after = _profile(profile), _profile(answer)
    learned = round(float(after.ops["calls"].get(GIVEN_A_GRADIENT, 0)))
    return {"before": _flops(before), "after": _flops(after), "learned": learned}


def _flops(profile: Profile) -> dict[str, list[int]]:
    layers = profile.layers
    found = {}
    for part in (*FROZEN, TRAINED):
        rows = layers[layers.index.str.endswith(f".{part}")]
        if len(rows) != 1:
            raise Hint(f"A profile has {len(rows)} layers named .{part}; pass p and the frozen model's profile.")
        counted = rows[["forward_flops", "backward_flops"]].fillna(0).iloc[0]
        found[part] = [int(each) for each in counted]
    return found


def judge_frozen(facts: Facts) -> None:
    before, after = facts["before"], facts["after"]
    for part, (forward, _) in before.items():
        if after[part][0] != forward:
            raise Hint(f"The forward pass of {part} differs from before: is it the same batch and net?")
    if after[TRAINED][1] == 0:
        what = "The weights of the head have no backward pass" if facts["learned"] else "Nothing is trained at all now"
        raise Hint(f"{what}; the whole head should still learn.")
    for part in FROZEN:
        if after[part][1] > 0:
            raise Hint(
                f"{part} still has a backward pass: which parameter, in its block or before it, still requires a "
                "gradient?"
            )
    if after[TRAINED][1] >= before[TRAINED][1]:
        raise Hint(
            "The head's backward pass computes as much as before, including a gradient for its input. Does anything "
            "before the head still require a gradient?"
        )
    if facts["learned"] < OF_THE_HEAD:
        raise Hint("Part of the head no longer learns: its weights and its bias both need a gradient.")


def measure_suspect(answer: Any, profile: Any = None) -> Facts:
    layer = as_word(answer, "layer", "layer, a name from the frame, and at_most, a number")
    given = _profile(profile)
    layers, phases = given.layers, given.phases["ms"]
    free = layers[(layers["parameters"].fillna(0) == 0) & layers["calls"].notna()].dropna(subset=["self_ms", "share"])
    return {
        "layer": layer,
        "names": [str(name) for name in layers.index],
        "at_most": as_numbers(answer, ("at_most",))["at_most"],
        "self_ms": {str(name): float(ms) for name, ms in free["self_ms"].items()},
        "shares": {str(name): float(share) for name, share in free["share"].items()},
        "steps_ms": [float(phases.sum()), float(layers["self_ms"].sum()), given.timing.median_ms],
    }


def judge_suspect(facts: Facts) -> None:
    layer, own = facts["layer"], facts["self_ms"]
    if layer not in facts["names"]:
        raise Hint(f"The frame has no row {layer!r}; give the full name from the index, starting with the model.")
    if layer not in own:
        is_not = "a layer but a separate row" if layer.startswith("(") else "a called layer without parameters"
        raise Hint(f"{layer} is not {is_not}; look for a layer without parameters.")
    if own[layer] < max(own.values()):
        raise Hint(f"{layer} is not the one: another layer without parameters has more self time.")
    share, said = facts["shares"][layer], facts["at_most"]
    wanted, vanished = 1 / (1 - share), "If that share vanished, how much"
    if close(said * share, 1.0, 1e-3) and not close(said, wanted, 1e-3):  # near one half the two are close too
        raise Hint(f"at_most is 1 / share. {vanished} of the step would be left, and what is 1 divided by that?")
    at_most = AnswerFigure(said, wanted, 0.02)
    left = [1 - own[layer] / step for step in facts["steps_ms"]]
    traced = "at_most fits the milliseconds, which include tracing overhead. The column share is corrected for it."
    at_most.not_instead([1 / part for part in left if part > 0], traced, 0.002)
    at_most.not_instead(
        share, f"at_most is the layer's share. {vanished} would be left, and what is 1 divided by that?", 0.03
    )
    remains = "at_most is what would be left of the step. How much faster is a step that takes only that?"
    at_most.not_instead(1 - share, remains, 0.03)
    plus = "at_most is 1 plus the share. Try it on a layer that takes half the step: how much faster would that be?"
    at_most.not_instead(1 + share, plus)
    at_most.required("at_most does not match that share.", relative=0.03)


#: Shapes of the inputs for a rewritten layer; the last is timed.
SHAPES = ((5, 32), (17, 100), (1, 64), (128, 256))
ROUNDS = 10
#: Largest fraction of the old time that a rewritten layer may take.
MOST = 0.5


def measure_rewritten(answer: Any, slow: Any = None) -> Facts:
    new = as_function(answer, "layer(x)")
    old = as_function(slow, "layer(x)")
    generator = torch.Generator().manual_seed(4)

    def fresh(shape: tuple[int, int]) -> tuple[Any, Any]:
        x = torch.randn(shape, generator=generator) * 3 + 1
        return x, torch.randn(shape, generator=generator)

    cases = [_same(old, new, *fresh(shape)) for shape in SHAPES]
    inputs = [fresh(SHAPES[-1]) for _ in range(ROUNDS + 1)]
    ratio = time_ratio(partial(_ran, new), partial(_ran, old), inputs)
    cases.append(_same(old, new, *fresh(SHAPES[-1])))  # still right, with nothing cached
    return {"cases": cases, "ratio": ratio}


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
            raise Hint(f"Forward is right, but the gradient of the input is missing or differs from Rescale's {on}.")
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


#: How far minimum times and ratios of the two steps may be off when they run again, as machines change pace.
PACE = 2.0


def measure_verified(answer: Any, test: Any = None, steps: Any = ()) -> Facts:
    ratio = ratio_of(test)
    return {
        "speedup": as_number(answer, "The speed-up"),
        **ratio,
        "verdict": str(test.verdict),
        "check": None if test.check is None else str(test.check),
        "tested_ms": [float(test.pairs[column].min()) for column in ("a_ms", "b_ms")],
        "own_ms": shortest_ms(steps),
    }


def judge_verified(facts: Facts) -> None:
    if facts["check"] is None:
        raise Hint("The test did not compare the results: pass check=1e-3, and let both steps return the loss.")
    if facts["check"]:
        raise Hint(
            f"The two steps return different results: {facts['check'].rstrip('.')}. Do both models start from "
            "the same weights, each with its own optimizer?"
        )
    if facts["ratio_ci"][0] > 1:
        raise Hint("In this test the second step is slower: are the two in the right order?")
    if facts["ratio_ci"][1] >= 1:
        raise Hint("This test shows no difference. If the two steps do differ, raise budget_s.")
    (tested, tested_new), (own, own_new) = facts["tested_ms"], facts["own_ms"]
    if not 1 / PACE < tested / own < PACE:
        raise Hint(
            f"The test's first step took at least {tested:.2g} ms; make_step(Rescale()) takes {own:.2g} ms now. "
            "If you compared whole training steps, the machine changed pace: rerun the test."
        )
    if not 1 / PACE < tested_new / tested * own / own_new < PACE:
        raise Hint(
            f"In this test the second step is {tested / tested_new:.2g} times as fast; "
            f"make_step(RescaleAtOnce()) is now {own / own_new:.2g} times as fast as make_step(Rescale()). Did "
            "you compare these two?"
        )
    AnswerFigure(facts["speedup"], 1 / facts["ratio"], 0.03).required("The speed-up does not match the test.")


def _profile(given: Any) -> Profile:
    return require(given, Profile, "Pass a profile, as bound by %%profile_step --into NAME: profile=p.")


EXERCISES = (
    Exercise("2.1", "A prediction", measure_prediction, judge_prediction, accepted="noted"),
    Exercise("2.2", "Backward divided by forward", measure_ratio, judge_ratio),
    Exercise("2.3", "Self and total", measure_self_times, judge_self_times),
    Exercise("2.4", "Arithmetic of backward", measure_arithmetic, judge_arithmetic),
    Exercise("2.5", "A frozen body", measure_frozen, judge_frozen),
    Exercise("2.6", "The suspect", measure_suspect, judge_suspect),
    Exercise("2.7", "The same, faster", measure_rewritten, judge_rewritten, timed=True),
    Exercise("2.8", "Did it help?", measure_verified, judge_verified, timed=True),
)
