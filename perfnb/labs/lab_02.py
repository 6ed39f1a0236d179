"""Checks of lab 2, *Where does a step's time go?*"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from perfnb import Profile
from perfnb.labs.answers import as_function, as_number, as_numbers, as_word, close, outcome, ratio_of, require, slip
from perfnb.labs.exercise import Exercise, Facts, Hint, all_there
from perfnb.labs.rewritten import judge_rewritten, measure_rewritten
from perfnb.labs.workloads import interleaved

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
    wanted = facts["backward_ms"] / facts["forward_ms"]
    if close(facts["ratio"], wanted, 0.03):
        return
    if close(facts["ratio"], facts["backward_ms"], 0.01) or close(facts["ratio"], facts["forward_ms"], 0.01):
        raise Hint("It is the time of one direction; give the ratio of the two.")
    if any(close(facts["ratio"], of_layers, 0.002) for of_layers in facts["of_layers"]):
        raise Hint("This comes from layer times. The phases include more than the layers: take them from p.phases.")
    if any(close(facts["ratio"], by_share, 0.005) for by_share in facts["of_shares"]):
        raise Hint("This comes from shares, which are corrected for tracing overhead; use the column ms.")
    raise Hint(slip(facts["ratio"], wanted, 0.03))


#: A tree with the usual traps: three levels, and a name that is a prefix of another.
TREE = {
    "net": 100.0,
    "net.body": 60.0,
    "net.body.conv": 35.0,
    "net.body.norm": 20.0,
    "net.body2": 30.0,
    "net.body2.conv": 30.0,
    "(loss)": 5.0,
}
MADE_UP = "a second tree that you have not seen"
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
            raise Hint("Return a dictionary or series with a time for each layer name.")
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
                    f"In {tree}, too much was subtracted from {name}. Only *direct* children count, and one name can "
                    "start like another without being inside it."
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
    for name, (forward, backward) in facts["flops"].items():
        if not close(facts["said"][name], backward / forward, 1e-3):
            raise Hint(
                f"{name}: this is not the counted backward_flops / forward_flops, which are exact counts. "
                f"{slip(facts['said'][name], backward / forward, 1e-3)}"
            )


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
        raise Hint("Nothing is trained at all now: the head has no backward pass, but should still learn.")
    for part in FROZEN:
        if after[part][1] > 0:
            raise Hint(f"{part} still has a backward pass: a parameter in its block still requires a gradient.")
    if not 0 < after[TRAINED][1] < before[TRAINED][1]:
        raise Hint("The head still computes a gradient for its input, so something before it still learns.")
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
        has = "is a separate row, not a layer" if layer.startswith("(") else "has parameters"
        raise Hint(f"{layer} {has}; look for a layer without parameters.")
    if own[layer] < max(own.values()):
        raise Hint(f"{layer} is not the one: another layer without parameters has more self time.")
    share, said = facts["shares"][layer], facts["at_most"]
    if close(said * share, 1.0, 1e-3) and not close(said, 1 / (1 - share), 1e-3):  # near one half the two are close too
        raise Hint(
            "at_most is 1 / share. If that share vanished, how much of the step would be left, and what is 1 "
            "divided by that?"
        )
    if close(said, 1 / (1 - share), 0.02):
        return
    left = [1 - own[layer] / step for step in facts["steps_ms"]]
    if any(part > 0 and close(said, 1 / part, 0.002) for part in left):
        raise Hint(
            "at_most comes from milliseconds, which include tracing overhead. The column share is corrected for it."
        )
    if close(said, share, 0.03):
        raise Hint(
            "at_most is the layer's share. If that share vanished, how much would be left, and what is 1 "
            "divided by that?"
        )
    if close(said, 1 - share, 0.03):
        raise Hint("at_most is what would be left of the step. How much faster is a step that takes only that?")
    if close(said, 1 + share, 0.02):
        raise Hint(
            "at_most is 1 plus the share. Try it on a layer that takes half the step: how much faster would that be?"
        )
    raise Hint(f"at_most does not match that share. {slip(facts['at_most'], 1 / (1 - share), 0.03)}")


#: Interleaved rounds in which the two steps run again, and how far minimum times and ratios may be off, as machines
#: change pace.
TURNS, PACE = 12, 2.0


def measure_verified(answer: Any, test: Any = None, steps: Any = ()) -> Facts:
    ratio = ratio_of(test)
    said = as_number(answer, "The speed-up")
    if not isinstance(steps, list | tuple) or len(steps) != 2:
        raise Hint("Run the check unchanged: it also needs the two steps.")
    old, new = (as_function(step, "step()") for step in steps)
    own = interleaved(lambda: outcome(old), lambda: outcome(new), [()] * (TURNS + 1))
    return {
        "speedup": said,
        **ratio,
        "verdict": str(test.verdict),
        "check": None if test.check is None else str(test.check),
        "tested_ms": [float(test.pairs[column].min()) for column in ("a_ms", "b_ms")],
        "own_ms": [min(times) for times in own],
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
    if not close(facts["speedup"], 1 / facts["ratio"], 0.03):
        raise Hint(f"The speed-up does not match the test. {slip(facts['speedup'], 1 / facts['ratio'], 0.03)}")


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
