"""Decide whether a replacement computes the same values as the original step or model.

The original is computed in float64, which serves as the true result. The replacement's distance from it may be at most
a few times as large as the distance of the original in its own precision. All functions in this module are pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: For each dtype, the distance between two results, relative to the largest value, that rounding in a different order
#: can explain. All other values, such as integers, must be equal.
TOLERANCES = {"float64": 1e-6, "float32": 1e-4, "float16": 2e-2, "bfloat16": 2e-2}
#: A replacement with the same dtype may be this many times as far from float64 as the original, plus the tolerance of
#: float32: PyTorch's own benchmark suite allows 3 times and a tenth of 1e-3.
FARTHER = 3.0
#: The error that lower precision may cause, in units of the dtype's rounding (the gap between 1 and the next number).
ROUNDINGS = 64
_EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10, "int8": 1 / 127}

SAME, NOISE, REDUCED, DIFFERENT, UNCHECKED = "exact", "within noise", "reduced precision", "different", "not checked"
#: The verdicts, from the best to the worst.
FROM_EXACT = (SAME, NOISE, REDUCED, UNCHECKED, DIFFERENT)


@dataclass(frozen=True)
class Errors:
    """The distances of the original and its replacement from the true values, for each result."""

    equal: bool  # whether all results are bit-for-bit identical
    own: Mapping[str, float]
    other: Mapping[str, float]
    not_finite: tuple[str, ...] = ()  # finite in the original, but infinite or NaN in the replacement
    vanished: tuple[str, ...] = ()  # not all zero in the original, but zero or missing in the replacement
    random: bool = False  # whether the original draws random numbers

    @property
    def worst(self) -> float:
        """The replacement's largest distance from the true values."""
        return max(self.other.values(), default=0.0)


@dataclass(frozen=True)
class Values:
    """A verdict on a replacement's values, with the reason for it."""

    verdict: str
    error: float | None = None
    why: str = ""


def judge_values(errors: Errors, lowers: str = "", reorders: bool = False) -> Values:
    """Return a verdict on whether the replacement computes the same values.

    Parameters
    ----------
    lowers : str
        The lower-precision dtype that the replacement deliberately uses, or an empty string if it keeps the dtype.
    reorders : bool
        Whether the replacement may draw random numbers in a different order, as compiled code does.
    """
    worst = errors.worst
    if errors.equal:
        return Values(SAME, 0.0)
    if errors.not_finite:
        return Values(DIFFERENT, worst, f"{errors.not_finite[0]} is infinite or NaN")
    if errors.vanished:
        return Values(DIFFERENT, worst, f"{errors.vanished[0]} is zero or missing")
    if lowers:
        most = max(ROUNDINGS * _EPSILON[lowers], TOLERANCES["float32"])
        far = [name for name, error in errors.other.items() if error > max(most, FARTHER * errors.own[name])]
        said = f"{far[0]} is off by {errors.other[far[0]]:.2g}, which is more than {lowers} explains" if far else ""
        return Values(DIFFERENT if far else REDUCED, worst, said)
    allowed = {name: FARTHER * own + TOLERANCES["float32"] for name, own in errors.own.items()}
    far = [name for name, error in errors.other.items() if error > allowed[name]]
    if not far:
        return Values(NOISE, worst)
    if errors.random and reorders:
        return Values(UNCHECKED, worst, "the step draws random numbers, and compiled code draws them in another order")
    worst_name = max(far, key=lambda name: errors.other[name] / allowed[name])
    return Values(DIFFERENT, worst, f"{worst_name} is off by {errors.other[worst_name]:.2g} times its norm")
