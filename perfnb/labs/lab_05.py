"""Checks for lab 5, *Architectures*."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from torch import nn, ones

from perfnb import Timing
from perfnb.labs.answers import as_fields, as_function, as_number, as_pair, evidence, outcome, result_of
from perfnb.labs.exercise import Exercise, Facts, Hint
from perfnb.labs.judging import Number, all_there, close, hint_if
from perfnb.labs.lab_03 import counted
from perfnb.quantities import share
from perfnb.results import ArchitectureComparison, ScalingStudy


def measure_uses(answer: Any, comparison: Any = None, images: Any = None) -> Facts:
    table = evidence(comparison, ArchitectureComparison).table
    batch = as_number(len(images) if hasattr(images, "__len__") else images, "The number of images")
    counts = table[["parameters", "forward_flops", "backward_flops"]].astype(int)
    said = as_fields(answer, **dict.fromkeys(map(str, table.index), float))
    return {"said": said, "batch": batch, "models": counts.to_dict("index")}


def judge_uses(facts: Facts) -> None:
    for name, number in all_there(facts["said"], 1, or_more=True).items():
        model, batch = facts["models"][name], facts["batch"]
        wanted = model["forward_flops"] / 2 / model["parameters"] / batch
        both = (model["forward_flops"] + model["backward_flops"]) / model["forward_flops"]
        said = Number(number, wanted, 0.01, f"{name}:")
        slips = (
            (both, "It includes backward; count only the forward pass."),
            (both - 1, "Is it the backward pass? Count the forward pass."),
            (2.0, "A use is a product and an addition, which are two FLOPs."),
            (batch, f"That is for the whole batch of {batch:g} images; give it for one image."),
            (2 * batch, f"That is FLOPs per parameter, for {batch:g} images. Take one image, and two FLOPs per use."),
        )
        for factor, words in sorted(slips, key=lambda slip: abs(number - slip[0] * wanted)):  # some are nearly equal
            said.slip(factor * wanted, words)
        said.wrong()


def measure_decomposition(answer: Any, comparison: Any = None) -> Facts:
    given = evidence(comparison, ArchitectureComparison)
    said = as_fields(answer, time=float, arithmetic=float, per_flop=float)
    pairs = given.ratios.set_index(["a", "b"])["ratio"]
    if ("cnn", "transformer") not in pairs.index:
        raise Hint("The comparison does not have the three models; pass comparison=comparison.")
    table = given.table.assign(both=given.table["forward_flops"] + given.table["backward_flops"])
    columns = (table[name] for name in ("median_ms", "both", "forward_flops"))
    time, arithmetic, forward = (float(column["transformer"]) / float(column["cnn"]) for column in columns)
    times = [float(pairs["cnn", "transformer"]), time]
    return {"said": said, "time": times, "arithmetic": arithmetic, "forward": forward}


def judge_decomposition(facts: Facts) -> None:
    said = facts["said"]
    Number(said["time"], facts["time"], 0.02).wrong("time is not the measured ratio.")
    arithmetic = Number(said["arithmetic"], facts["arithmetic"], 2e-3, "arithmetic")
    arithmetic.slip(facts["forward"], "counts only the forward pass, but a training step was timed.", 1e-3)
    arithmetic.wrong("is not the ratio of the counts.")
    per_flop = Number(said["per_flop"], said["time"] / facts["arithmetic"], 0.02, "per_flop")
    product = "multiplies instead of dividing: time = arithmetic × per_flop."
    per_flop.slip(said["time"] * facts["arithmetic"], product)
    per_flop.wrong("does not match the other two.")


#: Lengths and widths of blocks.
BLOCKS = ((64, 64), (512, 64), (7, 12), (100, 32), (1, 4))


def measure_block(answer: Any) -> Facts:
    function = as_function(answer, "block_flops(length, width)")
    cases = []
    for length, width in BLOCKS:
        parts = "the FLOPs of the linear layers, and the FLOPs of attention's two products"
        said = as_pair(outcome(function, length, width), parts)
        cases.append({"sizes": [length, width], "said": said, "counted": _counted_block(length, width)})
    return {"cases": cases}


def _counted_block(length: int, width: int) -> list[int]:
    def linears() -> None:
        for inputs, outputs in ((1, 3), (1, 1), (1, 4), (4, 1)):
            nn.Linear(inputs * width, outputs * width)(ones(1, length, inputs * width))

    def products() -> None:
        query, key, value = (ones(1, length, width) for _ in range(3))
        (query @ key.transpose(1, 2)) @ value

    return [counted(linears), counted(products)]


def judge_block(facts: Facts) -> None:
    for case in all_there(facts["cases"], len(BLOCKS)):
        length, width = case["sizes"]
        (linear, square), (all_linear, all_square) = case["said"], case["counted"]
        where = f"For a length of {length} and a width of {width}: the"
        layers = Number(linear, all_linear, 1e-9, f"{where} linear layers.")
        products = Number(square, all_square, 1e-9, f"{where} products of attention.")
        if not layers.right and close(linear, all_square, 1e-9) and close(square, all_linear, 1e-9):
            raise Hint("The two parts are swapped: the linear layers come first.")
        for left_out, words in (
            (1, "the layer after attention, `out`"),
            (3, "`qkv`"),
            (4, "one of the MLP's layers (or both others)"),
        ):
            without = all_linear - left_out * 2 * length * width**2
            layers.slip(without, f"One part seems to be missing: {words}.")
        for number, wanted in ((layers, all_linear), (products, all_square)):
            if number is products:
                number.slip(wanted / 2, "They are half of what is needed. Count both products, and two FLOPs per use.")
            number.slip(3 * wanted, "This is three times too large: count only the forward pass.")
            number.wrong("", "It does not match: how do length and width enter the size of each product?")


def _of_lengths(comparison: Any) -> ArchitectureComparison:
    """Return the given comparison of one block at several lengths, or raise a `Hint` if it has no lengths."""
    given = evidence(comparison, ArchitectureComparison)
    if not any(name.isdecimal() for name in given.profiles):
        raise Hint("The comparison has no lengths; pass the second one, comparison=at_lengths.")
    return given


def _shares(given: ArchitectureComparison) -> dict[str, float]:
    """Return attention's share of the time at each length."""
    found = given.shares.query("by == 'kind' and part == 'attention'").set_index("name")["share"]
    return {str(name): float(fraction) for name, fraction in found.items()}


def measure_share(answer: Any, comparison: Any = None) -> Facts:
    given = _of_lengths(comparison)
    said = as_fields(answer, time=float, arithmetic=float, per_flop=float)
    longest = max((name for name in given.profiles if name.isdecimal()), key=int)
    layers = given.profiles[longest].layers
    flops = layers["forward_flops"].fillna(0) + layers["backward_flops"].fillna(0)
    inside = flops[flops.index.str.endswith(".attention")]
    products = inside.sum() - flops[flops.index.str.contains(r"\.attention\.")].sum()
    return {
        "said": said,
        "longest": longest,
        "shares": _shares(given),
        "arithmetic": float(inside.sum() / flops[longest]),
        "products": float(products / flops[longest]),
        "forward": float(layers["forward_flops"][inside.index].sum() / flops[longest]),
    }


#: Maximum rounding error of a share that is given with two digits.
ROUNDED = 0.00501


def _per_flop(time: float, arithmetic: float) -> float:
    """Return a part's time per FLOP relative to the rest, given its shares of the time and of the FLOPs."""
    return (time / (1 - time)) / (arithmetic / (1 - arithmetic))


def judge_share(facts: Facts) -> None:
    said, shares, arithmetic = facts["said"], facts["shares"], facts["arithmetic"]
    time = shares[facts["longest"]]
    of_time = Number(said["time"], time, 0.02, "time")
    for name, fraction in shares.items():
        of_time.slip(fraction, f"is the share at length {name}; give it for the longest.", 0.005)
    of_time.wrong("is not the share of the kind attention.")
    of_flops = Number(said["arithmetic"], arithmetic, 5e-3, "arithmetic", absolute=ROUNDED)
    products = "has only the two products, but the time includes the layers `qkv` and `out`."
    of_flops.slip(facts["products"], products)
    of_flops.slip(1 - facts["products"], "is the share of the linear layers.")
    of_flops.slip(facts["forward"], "counts only the forward pass of attention, but both passes of the block.")
    of_flops.wrong("is not the share of the attention layer.")
    rounded = said["time"], said["arithmetic"]
    if max(rounded) < 1 and close(said["per_flop"], _per_flop(*rounded), 0.02):
        return  # the answer was computed from its own rounded shares
    per_flop = Number(said["per_flop"], _per_flop(time, arithmetic), 0.05, "per_flop")
    whole = "compares attention with the whole block, which includes it; compare it with the rest."
    per_flop.slip(time / arithmetic, whole, 0.03)
    per_flop.wrong("does not match the two shares.")


#: A share that falls by no more than this from one length to the next still counts as rising.
FLAT = 0.02


def doubts_of_share(facts: Facts) -> str:
    """Explain why a measurement is unreliable if attention's share does not rise with the length.

    The result is empty if the share rises.
    """
    shares = [facts["shares"][name] for name in sorted(facts["shares"], key=float)]
    if all(later > earlier - FLAT for earlier, later in itertools.pairwise(shares)):
        return ""
    return (
        "attention's share of time should rise with the length, as its share of the FLOPs does; yours is "
        f"{', '.join(map(share, shares))}. The machine was probably busy: rerun the cell"
    )


#: The share of a block that attention should reach, the block's width, and the answer according to its FLOPs.
REACHED, WIDTH, AT_FLOPS = 0.73, 64, 565


def measure_lengths(answer: Any, comparison: Any = None) -> Facts:
    given = _of_lengths(comparison)
    return {"said": as_fields(answer, flops=float, time=float), "shares": _shares(given)}


def judge_lengths(facts: Facts) -> None:
    said, shares = facts["said"], facts["shares"]
    at_flops = Number(said["flops"], AT_FLOPS, 1e-9, "flops")
    at_flops.slip(AT_FLOPS - 1, "is one position short: there, the share is still just below 73 %.", 1.7e-3)
    products = "is the length for the two products alone, but the layer includes `qkv` and `out`."
    at_flops.slip(6 * WIDTH * REACHED / (1 - REACHED), products, 2e-3)
    at_flops.slip(AT_FLOPS / WIDTH, "is a multiple of the width; give the length for a width of 64.", 0.01)
    at_flops.wrong("is not that length. Which parts of the block grow with the length, and which with its square?")
    lengths = sorted(shares, key=int)
    rising = [shares[name] for name in lengths]
    at_time = Number(said["time"], float(np.interp(REACHED, rising, [int(name) for name in lengths])), 0.05, "time")
    at_time.slip(AT_FLOPS, "is the length by FLOPs; take the measured shares of the time.")
    for name in lengths:
        at_time.slip(float(name), "is a measured length; 73 % is reached between two of them.", 0.001)
    at_time.wrong("does not follow from the measured shares.")


#: The lengths that the law is fitted to, and the held-out length on which it is tested.
FITTED, HELD_OUT = (32, 64, 128, 192, 256), 512


def measure_held_out(answer: Any, study: Any = None, held_out: Any = None) -> Facts:
    table, fit = evidence(study, ScalingStudy).table, study.fit
    prediction = study.predict(HELD_OUT)
    return as_fields(answer, off_by=float, inside=bool) | {
        "sizes": table["size"].astype(float).tolist(),
        "medians_ms": table["median_ms"].astype(float).tolist(),
        "last_residual": float(fit["residual"].iloc[-1]),
        "predicted_ms": prediction.median_ms,
        "ci_ms": [min(float(end), 1e300) for end in prediction.ci_ms],  # JSON has no infinity
        "measured_ms": evidence(held_out, Timing).median_ms,
    }


def judge_held_out(facts: Facts) -> None:
    sizes, predicted, measured = facts["sizes"], facts["predicted_ms"], facts["measured_ms"]
    if max(sizes) >= HELD_OUT:
        raise Hint(f"The law was fitted to sizes up to {max(sizes):g}, so {HELD_OUT} is not held out: use FITTED.")
    hint_if(len(sizes) < 5, f"A law fitted to only {len(sizes)} sizes cannot be checked; use all of FITTED.")
    if sorted(sizes) != list(FITTED):
        raise Hint(f"The law was fitted to the sizes {', '.join(f'{size:g}' for size in sizes)}; fit it to FITTED.")
    if measured <= facts["medians_ms"][-1]:
        raise Hint(f"held_out takes no longer than size {max(sizes):g}: is it the step of make_step({HELD_OUT})?")
    off_by = Number(facts["off_by"], measured / predicted - 1, 0.01, "off_by", absolute=0.01)
    off_by.slip(measured / predicted, "is the ratio; by which fraction is it above the prediction?")
    relative = "is relative to the measured time; make it relative to the predicted one."
    off_by.slip(1 - predicted / measured, relative)
    off_by.slip(predicted / measured - 1, "is the wrong way round: compare measured with predicted.")
    off_by.slip(measured - predicted, "is in milliseconds; give a fraction.")
    off_by.slip(facts["last_residual"], "is the law's error at a size it was fitted to.")
    off_by.wrong("does not match the prediction and the measurement.", within=0.02)
    low, high = facts["ci_ms"]
    if facts["inside"] != (low <= measured <= high):
        raise Hint("inside does not follow: is the measured median between the ends of the prediction's ci_ms?")


#: The laws that the reader's function is tested on (constant, per position, per pair of positions), the lengths whose
#: times it receives, their relative noise, and the lengths to predict.
LAWS = ((0.9, 0.012, 2e-5), (0.0, 0.02, 1e-5), (900.0, 3.0, 0.05), (2.0, 0.0, 4e-5))
LENGTHS, DEVIATIONS = (32, 64, 128, 192, 256, 512), (0.03, -0.03, 0.02, -0.02, 0.03, -0.03)
PLACES = (48, 512, 1024, 2048)
#: Maximum relative error with noisy times. The error is at most 7 % with the right weights, and at least 12 % with
#: wrong ones.
NOISY = 0.09


def measure_law(answer: Any) -> Facts:
    predict = as_function(answer, "predict(lengths, times_ms, length)")
    cases = []
    for (constant, position, pair), noisy in itertools.product(LAWS, (False, True)):
        lengths = np.array(LENGTHS[::-1] if noisy else LENGTHS, dtype=float)
        true = constant + position * lengths + pair * lengths**2
        times = true * (1 + np.array(DEVIATIONS) * noisy)
        slope, level = np.polyfit(np.log(lengths), np.log(times), 1)
        for place in PLACES:
            said = result_of(predict, lengths.copy(), times.copy(), place)
            wanted = constant + position * place + pair * place**2
            power = float(np.exp(level + slope * np.log(place)))
            cases.append({"length": place, "noisy": noisy, "said": said, "wanted": wanted, "power": power})
    return {"cases": cases}


def judge_law(facts: Facts) -> None:
    cases = all_there(facts["cases"], 2 * len(LAWS) * len(PLACES))
    for case in sorted(cases, key=lambda case: bool(case["noisy"])):
        said, wanted, length = case["said"], case["wanted"], case["length"]
        if close(said, wanted, NOISY if case["noisy"] else 0.01):
            continue
        if close(said, case["power"], 0.01):
            raise Hint("That is a single power of the length again. Fit a constant, a linear and a quadratic term.")
        if case["noisy"]:
            raise Hint(
                f"Exact times are predicted well, but with 3 % noise you are {100 * (said / wanted - 1):+.0f} % off "
                f"at length {length}. Is each size weighted by its relative error, and is no term negative?"
            )
        raise Hint(f"At length {length} a made-up step takes {wanted:.4g} ms; you predict {said:.4g}.")


EXERCISES = (
    Exercise("5.1", "How often a weight is used", measure_uses, judge_uses),
    Exercise("5.2", "Time by arithmetic", measure_decomposition, judge_decomposition),
    Exercise("5.3", "Arithmetic of a block", measure_block, judge_block),
    Exercise("5.4", "Attention's share", measure_share, judge_share, doubts=doubts_of_share),
    Exercise("5.5", "At which length?", measure_lengths, judge_lengths, doubts=doubts_of_share),
    Exercise("5.6", "A held-out size", measure_held_out, judge_held_out, timed=True),
    Exercise("5.7", "A law that knows more", measure_law, judge_law),
)
