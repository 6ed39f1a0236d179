"""Checks of scaling laws for a step's time: one tested on a held-out size, and one with more terms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from perfnb import ScalingStudy, Timing
from perfnb.labs.answers import as_flag, as_function, as_number, as_numbers, close, outcome, require, slip
from perfnb.labs.exercise import Facts, Hint, all_there

#: The lengths that the law is fitted to, and the held-out length that it is tested on.
FITTED, HELD_OUT = (32, 64, 128, 192, 256), 512


def measure_held_out(answer: Any, study: Any = None, held_out: Any = None) -> Facts:
    require(study, ScalingStudy, "Pass the study as well: study=study, the result of perfnb.scaling_study.")
    require(held_out, Timing, "Pass the timing as well: held_out=held_out, the result of perfnb.time_step.")
    said = as_numbers(answer, ("off_by",))
    inside = as_flag(answer, "inside")
    prediction = study.predict(HELD_OUT)
    return {
        **said,
        "inside": inside,
        "sizes": study.table["size"].astype(float).tolist(),
        "medians_ms": study.table["median_ms"].astype(float).tolist(),
        "last_residual": float(study.fit["residual"].iloc[-1]),
        "predicted_ms": prediction.median_ms,
        "ci_ms": [min(float(end), 1e300) for end in prediction.ci_ms],  # JSON has no infinity
        "measured_ms": held_out.median_ms,
    }


def judge_held_out(facts: Facts) -> None:
    sizes, predicted, measured = facts["sizes"], facts["predicted_ms"], facts["measured_ms"]
    if max(sizes) >= HELD_OUT:
        raise Hint(
            f"The law was fitted to sizes up to {max(sizes):g}, so {HELD_OUT} is not held out: test a law on a "
            "size it has not seen."
        )
    if len(sizes) < 5:
        raise Hint(f"A law fitted to only {len(sizes)} sizes cannot be checked; use all of FITTED.")
    if sorted(sizes) != list(FITTED):
        raise Hint(f"The law was fitted to the sizes {', '.join(f'{size:g}' for size in sizes)}; fit it to FITTED.")
    if measured <= facts["medians_ms"][-1]:
        raise Hint(f"held_out takes no longer than size {max(sizes):g}: is it the step of make_step({HELD_OUT})?")
    wanted, said = measured / predicted - 1, facts["off_by"]
    if abs(said - wanted) > 0.01 * max(1.0, abs(wanted)):
        for value, words in (
            (measured / predicted, "off_by is the ratio; how much of it is above the prediction?"),
            (
                1 - predicted / measured,
                "off_by is relative to the measured time; make it relative to the predicted one.",
            ),
            (predicted / measured - 1, "off_by is the wrong way round: compare measured with predicted."),
            (measured - predicted, "off_by is in milliseconds; give a fraction."),
            (facts["last_residual"], "That is the law's error at a size it was fitted to."),
        ):
            if abs(said - value) <= 0.01 * max(1.0, abs(value)):
                raise Hint(words)
        raise Hint(f"off_by does not match the prediction and the measurement. {slip(said, wanted, 0.02)}")
    low, high = facts["ci_ms"]
    if facts["inside"] != (low <= measured <= high):
        raise Hint("inside does not follow: is the measured median between the ends of the prediction's ci_ms?")


#: Laws to test the reader's function on (constant, per position, per pair of positions), the lengths whose times it
#: gets, their relative noise, and the lengths to predict.
LAWS = ((0.9, 0.012, 2e-5), (0.0, 0.02, 1e-5), (900.0, 3.0, 0.05), (2.0, 0.0, 4e-5))
LENGTHS, DEVIATIONS = (32, 64, 128, 192, 256, 512), (0.03, -0.03, 0.02, -0.02, 0.03, -0.03)
PLACES = (48, 512, 1024, 2048)
#: Largest relative error with noisy times: right weights give at most 7 %, wrong ones at least 12 %.
NOISY = 0.09


def measure_law(answer: Any) -> Facts:
    predict = as_function(answer, "predict(lengths, times_ms, length)")
    return {"cases": list(_tried(predict))}


def _tried(predict: Callable[..., Any]) -> Iterable[Facts]:
    for constant, position, pair in LAWS:
        for noisy in (False, True):
            lengths = np.array(LENGTHS[::-1] if noisy else LENGTHS, dtype=float)
            true = constant + position * lengths + pair * lengths**2
            times = true * (1 + np.array(DEVIATIONS) * noisy)
            for place in PLACES:
                said = outcome(predict, lengths.copy(), times.copy(), place)
                wanted = constant + position * place + pair * place**2
                slope, level = np.polyfit(np.log(lengths), np.log(times), 1)
                yield {
                    "length": place,
                    "noisy": noisy,
                    "said": as_number(said, "The result of your function"),
                    "wanted": wanted,
                    "power": float(np.exp(level + slope * np.log(place))),
                }


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
                f"at length {length}. Does each size count by its relative error, and is no term negative?"
            )
        raise Hint(f"At length {length} a made-up step takes {wanted:.4g} ms; you predict {said:.4g}.")
