"""Checks of laws by which a step's time grows with a length: one put to the test, and one that knows more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from perfnb import ScalingStudy, Timing
from perfnb.labs.exercise import Facts, Hint, all_there, as_function, as_number, as_numbers, close, outcome, slip

#: The lengths to which the law is fitted, and the one at which it is put to the test.
FITTED, HELD_OUT = (32, 64, 128, 192, 256), 512


def measure_held_out(answer: Any, study: Any = None, held_out: Any = None) -> Facts:
    if not isinstance(study, ScalingStudy):
        raise Hint("Give the study as well: study=study, what perfnb.scaling_study returned.")
    if not isinstance(held_out, Timing):
        raise Hint("Give the timing as well: held_out=held_out, what perfnb.time_step returned.")
    said = as_numbers(answer, ("off_by",))
    if not isinstance(answer.get("inside"), (bool, np.bool_)):
        raise Hint("inside must be True or False.")
    foretold = study.predict(HELD_OUT)
    return {
        **said,
        "inside": bool(answer["inside"]),
        "sizes": study.table["size"].astype(float).tolist(),
        "medians_ms": study.table["median_ms"].astype(float).tolist(),
        "last_residual": float(study.fit["residual"].iloc[-1]),
        "predicted_ms": foretold.median_ms,
        "ci_ms": [min(float(end), 1e300) for end in foretold.ci_ms],  # JSON knows no infinity
        "measured_ms": held_out.median_ms,
    }


def judge_held_out(facts: Facts) -> None:
    sizes, predicted, measured = facts["sizes"], facts["predicted_ms"], facts["measured_ms"]
    if max(sizes) >= HELD_OUT:
        raise Hint(
            f"The law was fitted to sizes up to {max(sizes):g}, so {HELD_OUT} is not held out: a law is tested on what "
            "it has not seen."
        )
    if len(sizes) < 5:
        raise Hint(f"A law fitted to {len(sizes)} sizes has no test of its own; use all of FITTED.")
    if sorted(sizes) != list(FITTED):
        raise Hint(f"The law was fitted to the sizes {', '.join(f'{size:g}' for size in sizes)}; fit it to FITTED.")
    if measured <= facts["medians_ms"][-1]:
        raise Hint(f"held_out takes no longer than size {max(sizes):g} did: is it the step of make_step({HELD_OUT})?")
    wanted, said = measured / predicted - 1, facts["off_by"]
    if abs(said - wanted) > 0.01 * max(1.0, abs(wanted)):
        for value, words in (
            (measured / predicted, "off_by is the ratio; what of it is more than what was foretold?"),
            (1 - predicted / measured, "off_by is a share of what was measured; take that of what was foretold."),
            (predicted / measured - 1, "off_by is turned round: measured by foretold is asked for."),
            (measured - predicted, "off_by is in milliseconds; a share is asked for."),
            (facts["last_residual"], "That is how far off the law is at a size to which it was fitted."),
        ):
            if abs(said - value) <= 0.01 * max(1.0, abs(value)):
                raise Hint(words)
        raise Hint(f"off_by does not follow. {slip(said, wanted, 0.02)}")
    low, high = facts["ci_ms"]
    if facts["inside"] != (low <= measured <= high):
        raise Hint("inside does not follow: is the measured median between the two ends of the prediction's ci_ms?")


#: Laws that the reader's function is tried on (constant, per position, per pair of positions), the lengths at which it
#: gets times, the share by which these deviate, and the lengths that are asked for.
LAWS = ((0.9, 0.012, 2e-5), (0.0, 0.02, 1e-5), (900.0, 3.0, 0.05), (2.0, 0.0, 4e-5))
LENGTHS, DEVIATIONS = (32, 64, 128, 192, 256, 512), (0.03, -0.03, 0.02, -0.02, 0.03, -0.03)
PLACES = (48, 512, 1024, 2048)
#: Largest relative error where times deviate: at most 7 % with each size weighted as asked for, at least 12 % without.
NOISY = 0.09


def measure_law(answer: Any) -> Facts:
    foretell = as_function(answer, "foretell(lengths, times_ms, length)")
    return {"cases": list(_tried(foretell))}


def _tried(foretell: Callable[..., Any]) -> Iterable[Facts]:
    for constant, position, pair in LAWS:
        for noisy in (False, True):
            lengths = np.array(LENGTHS[::-1] if noisy else LENGTHS, dtype=float)
            true = constant + position * lengths + pair * lengths**2
            times = true * (1 + np.array(DEVIATIONS) * noisy)
            for place in PLACES:
                said = outcome(foretell, lengths.copy(), times.copy(), place)
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
            raise Hint(
                "That is one power of the length again. Fit a constant, a part that grows with it, and a square."
            )
        if case["noisy"]:
            raise Hint(
                "Exact times you foretell, but where they deviate by 3 % you are "
                f"{100 * (said / wanted - 1):+.0f} % off at a length of {length}. Does each size count by its relative "
                "deviation, and is no part negative?"
            )
        raise Hint(f"At a length of {length} a made-up step takes {wanted:.4g} ms; you say {said:.4g}.")
