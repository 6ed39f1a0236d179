"""Checks for lab 2, *Where does a step's time go?*"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd
import torch

from perfnb import Profile
from perfnb.labs.answers import ab_facts, as_fields, as_function, as_number, evidence, outcome
from perfnb.labs.exercise import Exercise, Facts, Hint
from perfnb.labs.judging import Number, all_there, close, hint_if, judge_checked
from perfnb.labs.rewritten import judge_layer, run_layer, same_layer
from perfnb.labs.workloads import shortest_ms, time_ratio
from perfnb.quantities import share
from perfnb.results import ABTest

PARTS = ("forward", "backward", "optimizer", "rest")


def measure_prediction(answer: Any) -> Facts:
    return as_fields(answer, **dict.fromkeys(PARTS, float))


def judge_prediction(facts: Facts) -> None:
    total = sum(facts[part] for part in PARTS)
    hint_if(min(facts[part] for part in PARTS) < 0, "No part of a step can take negative time.")
    hint_if(close(total, 100.0, 0.02), "They add up to 100, so they are percent; give fractions, which add up to 1.")
    if not close(total, 1.0, 0.02):
        raise Hint(f"The four shares add up to {total:.3g}; together they make up the whole step, which is 1.")


def measure_ratio(answer: Any, profile: Any = None) -> Facts:
    given = evidence(profile, Profile)
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
    ratio = Number(facts["ratio"], backward / forward, 0.03)
    if ratio.right:
        return
    ratio.slip((backward, forward), "It is the time of only one direction; give the ratio of the two.", 0.01)
    of_layers = "This is a ratio of layer times. The phases include more than the layers: take them from p.phases."
    ratio.slip(facts["of_layers"], of_layers, 0.002)
    of_shares = "This is the ratio of the shares, which are corrected for tracing overhead; use the column ms."
    ratio.slip(facts["of_shares"], of_shares, 0.005)
    ratio.wrong()


#: Total and self times of a tree with the usual traps, which are three levels and a name that is a prefix of another.
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
    layers = evidence(profile, Profile).layers
    made = pd.DataFrame.from_dict(TREE, "index", columns=["total_ms", "self_ms"]).rename_axis("layer")
    made["forward_ms"], made["backward_ms"] = made["total_ms"] * 0.4, made["total_ms"] * 0.6
    cases = []
    for frame in (layers, made):
        returned = outcome(function, frame.drop(columns="self_ms").copy())
        if not isinstance(returned, (Mapping, pd.Series)):
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
                    f"In {tree}, {name} lost its own self time as well. It has no parent: which parent does your code "
                    "find for a name without a dot?"
                )
            if over < 0:
                raise Hint(
                    f"In {tree}, the time of {name} is too small. Is too much subtracted? Only *direct* children "
                    "count, and one name can start like another without being inside it."
                )
            raise Hint(f"In {tree}, the time of {name} is too large: which inner layers were not (fully) subtracted?")


#: The layers, by the name of their ratio in the answer.
COUNTED = {"stem": "model.stem", "up": "model.blocks.0.up"}


def measure_arithmetic(answer: Any, profile: Any = None) -> Facts:
    layers = evidence(profile, Profile).layers
    said = as_fields(answer, **dict.fromkeys(COUNTED, float))
    counted = {
        name: [int(layers[f"{way}_flops"][layer]) for way in ("forward", "backward")]
        for name, layer in COUNTED.items()
        if layer in layers.index
    }
    if set(counted) != set(said):
        raise Hint(f"The profile has no {' and '.join(COUNTED.values())}; pass the first one, profile=p.")
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
        Number(own, right, 1e-3, f"{name}:").wrong(counted)


FROZEN, TRAINED = ("stem", "blocks"), "head"
#: The op that runs once per trained tensor, and the number of trained tensors in the head (weights and bias).
GIVEN_A_GRADIENT, OF_THE_HEAD = "torch::autograd::AccumulateGrad", 2


def measure_frozen(answer: Any, profile: Any = None) -> Facts:
    before, after = evidence(profile, Profile), evidence(answer, Profile)
    learned = round(float(after.ops["calls"].get(GIVEN_A_GRADIENT, 0)))
    return {"before": _flops(before), "after": _flops(after), "learned": learned}


def _flops(profile: Profile) -> dict[str, list[int]]:
    layers = profile.layers
    flops = {}
    for part in (*FROZEN, TRAINED):
        rows = layers[layers.index.str.endswith(f".{part}")]
        if len(rows) != 1:
            raise Hint(f"A profile has {len(rows)} layers named .{part}; pass p and the frozen model's profile.")
        counted = rows[["forward_flops", "backward_flops"]].fillna(0).iloc[0]
        flops[part] = [int(count) for count in counted]
    return flops


def judge_frozen(facts: Facts) -> None:
    before, after = all_there(facts["before"], len(FROZEN) + 1), facts["after"]
    for part, (forward, _) in before.items():
        if after[part][0] != forward:
            raise Hint(f"The forward pass of {part} differs from before: is it the same model, with the same batch?")
    if after[TRAINED][1] == 0:
        what = "The weights of the head have no backward pass" if facts["learned"] else "Nothing is trained at all now"
        raise Hint(f"{what}; the whole head should still learn.")
    for part in before:
        if part != TRAINED and after[part][1] > 0:
            raise Hint(f"{part} still has a backward pass: which parameter in it or before it needs a gradient?")
    if after[TRAINED][1] >= before[TRAINED][1]:
        raise Hint(
            "The head's backward pass computes as much as before, including a gradient for its input. Does anything "
            "before the head still require a gradient?"
        )
    if facts["learned"] < OF_THE_HEAD:
        raise Hint("Part of the head no longer learns: its weights and its bias both need a gradient.")


def measure_suspect(answer: Any, profile: Any = None) -> Facts:
    given = evidence(profile, Profile)
    layers, phases = given.layers, given.phases["ms"]
    free = layers[(layers["parameters"].fillna(0) == 0) & layers["calls"].notna()].dropna(subset=["self_ms", "share"])
    return as_fields(answer, layer=str, at_most=float) | {
        "names": [str(name) for name in layers.index],
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
        raise Hint(f"{layer} is not the suspect: another layer without parameters has more self time.")
    share = facts["shares"][layer]
    at_most = Number(facts["at_most"], 1 / (1 - share), 0.02, "at_most")
    exactly = Number(facts["at_most"], 1 / (1 - share), 1e-3, "at_most")  # the next two are close near 0.5
    vanished = "If that share vanished, how much of the step would be left, and what is 1 divided by that?"
    exactly.slip(1 / share, f"is 1 / share. {vanished}")
    left = [1 - own[layer] / step for step in facts["steps_ms"]]
    traced = "fits the milliseconds, which include tracing overhead. The column share is corrected for it."
    at_most.slip([1 / part for part in left if part > 0], traced, 0.002)
    at_most.slip(share, f"is the layer's share. {vanished}", 0.03)
    remains = "is what would be left of the step. How much faster is a step that takes only that?"
    at_most.slip(1 - share, remains, 0.03)
    plus = "is 1 plus the share. Try it on a layer that takes half the step: how much faster would that be?"
    at_most.slip(1 + share, plus)
    at_most.wrong("does not match that share.", within=0.03)


#: Shapes of the inputs for a rewritten layer. The last one is timed.
SHAPES = ((5, 32), (17, 100), (1, 64), (128, 256))
ROUNDS = 10
#: Maximum time of a rewritten layer as a fraction of the original time.
MOST = 0.5


def measure_rewritten(answer: Any, slow: Any = None) -> Facts:
    new, old = as_function(answer, "layer(x)"), as_function(slow, "layer(x)")
    generator = torch.Generator().manual_seed(4)

    def fresh(shape: tuple[int, int]) -> tuple[Any, Any]:
        x = torch.randn(shape, generator=generator) * 3 + 1
        return x.requires_grad_(), torch.randn(shape, generator=generator)

    cases = [same_layer(old, new, *fresh(shape)) for shape in SHAPES]
    inputs = [fresh(SHAPES[-1]) for _ in range(ROUNDS + 1)]
    ratio = time_ratio(partial(run_layer, new), partial(run_layer, old), inputs)
    cases.append(same_layer(old, new, *fresh(SHAPES[-1])))  # still right, and nothing was cached
    return {"cases": cases, "ratio": ratio}


def judge_rewritten(facts: Facts) -> None:
    for case in all_there(facts["cases"], len(SHAPES) + 1):
        judge_layer(case, "layer", "the gradient of its input is missing or differs from the original's.")
    if facts["ratio"] > MOST:
        raise Hint(
            f"The result is right, but forward and backward take {share(facts['ratio'])} of the original time; "
            f"get below {share(MOST)}. What is done row by row that could be done for all rows at once?"
        )


#: The factor by which the two steps' minimum times and ratios may differ in another run, because machines change pace.
PACE = 2.0


def measure_verified(answer: Any, test: Any = None, steps: Any = ()) -> Facts:
    given = evidence(test, ABTest)
    return ab_facts(given) | {
        "speedup": as_number(answer, "The speed-up"),
        "tested_ms": [float(given.pairs[column].min()) for column in ("a_ms", "b_ms")],
        "own_ms": shortest_ms(steps),
    }


def judge_verified(facts: Facts) -> None:
    judge_checked(facts["check"])
    hint_if(facts["ratio_ci"][0] > 1, "In this test the second step is slower: are the two in the right order?")
    hint_if(facts["ratio_ci"][1] >= 1, "This test shows no difference. If the two steps do differ, raise budget_s.")
    (tested, tested_new), (own, own_new) = facts["tested_ms"], facts["own_ms"]
    if not 1 / PACE < tested / own < PACE:
        raise Hint(
            f"The first step of the test took at least {tested:.2g} ms; make_step(Rescale()) takes {own:.2g} ms now. "
            "If you did compare whole training steps, the machine has changed its pace: run the test again."
        )
    if not 1 / PACE < tested_new / tested * own / own_new < PACE:
        raise Hint(
            f"In this test the second step is {tested / tested_new:.2g} times as fast; make_step(RescaleAtOnce()) is "
            f"now {own / own_new:.2g} times as fast as make_step(Rescale()). Did you compare these two?"
        )
    Number(facts["speedup"], 1 / facts["ratio"], 0.03).wrong("The speed-up does not match the test.")


EXERCISES = (
    Exercise("2.1", "A prediction", measure_prediction, judge_prediction, accepted="noted"),
    Exercise("2.2", "Backward divided by forward", measure_ratio, judge_ratio),
    Exercise("2.3", "Self and total", measure_self_times, judge_self_times),
    Exercise("2.4", "Arithmetic of backward", measure_arithmetic, judge_arithmetic),
    Exercise("2.5", "Frozen blocks", measure_frozen, judge_frozen),
    Exercise("2.6", "The suspect", measure_suspect, judge_suspect),
    Exercise("2.7", "The same, faster", measure_rewritten, judge_rewritten, timed=True),
    Exercise("2.8", "Did it help?", measure_verified, judge_verified, timed=True),
)
