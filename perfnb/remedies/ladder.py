"""What trials of levers say: verdicts on values, comparisons with the step as it is, which levers to keep. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfnb.stats.comparisons import PairedComparison, compare_pairs, holm, judge
from perfnb.stats.intervals import Floats

#: A lever that keeps the dtype may be so many times as far from float64 as the step itself, plus a tolerance: PyTorch's
#: own benchmark suite allows 3 times and a tenth of 1e-3.
FARTHER, TOLERANCE = 3.0, 1e-4
#: What lower precision may cost, in units of the dtype's rounding (the gap between 1 and the next number).
ROUNDINGS = 64
_EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "int8": 1 / 127}

#: Steps that the yardstick takes, that each lever takes before it is timed, and rounds that do not count.
_YARDSTICK, _PREPARE, _WARM = 3, 3, 2

SAME, NOISE, REDUCED, DIFFERENT, UNCHECKED = "exact", "within noise", "reduced precision", "different", "not checked"


@dataclass(frozen=True)
class Errors:
    """Distances from the truth by result, of the step itself and with a lever on."""

    equal: bool  # whether all results are the same bit by bit
    own: Mapping[str, float]
    lever: Mapping[str, float]
    not_finite: tuple[str, ...] = ()  # finite in the step itself, infinite or NaN with the lever
    vanished: tuple[str, ...] = ()  # not all zero in the step itself, zero or missing with the lever
    random: bool = False  # whether the step draws random numbers

    @property
    def worst(self) -> float:
        """The largest distance with the lever on."""
        return max(self.lever.values(), default=0.0)


@dataclass(frozen=True)
class Values:
    """A verdict on values, and why."""

    verdict: str
    error: float | None = None
    why: str = ""


def judge_values(errors: Errors, lowers: str = "", reorders: bool = False) -> Values:
    """Whether a lever computes the same.

    Parameters
    ----------
    lowers : str
        The dtype in which it computes on purpose; empty if it keeps the dtype.
    reorders : bool
        Whether it may draw random numbers in another order, as compiled code does.
    """
    worst = errors.worst
    if errors.equal:
        return Values(SAME, 0.0)
    if errors.not_finite:
        return Values(DIFFERENT, worst, f"{errors.not_finite[0]} is infinite or NaN")
    if errors.vanished:
        return Values(DIFFERENT, worst, f"{errors.vanished[0]} is zero or missing")
    if lowers:
        most = ROUNDINGS * _EPSILON[lowers]
        far = [name for name, error in errors.lever.items() if error > max(most, FARTHER * errors.own[name])]
        said = f"{far[0]} is off by {errors.lever[far[0]]:.2g}, more than {lowers} explains" if far else ""
        return Values(DIFFERENT if far else REDUCED, worst, said)
    allowed = {name: FARTHER * own + TOLERANCE for name, own in errors.own.items()}
    far = [name for name, error in errors.lever.items() if error > allowed[name]]
    if not far:
        return Values(NOISE, worst)
    if errors.random and reorders:
        return Values(UNCHECKED, worst, "the step draws random numbers, and compiled code draws them in another order")
    worst_name = max(far, key=lambda name: errors.lever[name] / allowed[name])
    return Values(DIFFERENT, worst, f"{worst_name} is off by {errors.lever[worst_name]:.2g} of its length")


def fewest_rounds(levers: int, level: float = 0.05) -> int:
    """The fewest pairs in which the smallest signed-rank p-value, 2 / 2**n, stands Holm's correction."""
    return max(6, math.ceil(1 + math.log2(max(1, levers) / level)))


def steps_to_confirm() -> int:
    """The fewest steps in which levers are confirmed on fresh pairs."""
    return 2 * (_WARM + fewest_rounds(1))


def steps_to_try(levers: int) -> int:
    """The fewest steps in which levers are prepared, checked and tried, each as often as its level demands."""
    return _YARDSTICK + _PREPARE * levers + (levers + 1) * (_WARM + fewest_rounds(levers))


def affordable(levers: int, step_s: float, budget_s: float) -> int:
    """How many levers can be tried and confirmed; at least one."""
    while levers > 1 and (steps_to_try(levers) + steps_to_confirm()) * step_s > budget_s:
        levers -= 1
    return levers


def compare_levers(*groups_ms: Floats, equal_within: float = 0.02) -> list[PairedComparison]:
    """Each lever's row of times against the first row of its group, the step as it is, with Holm's p-values over all.

    Intervals are simultaneous (Bonferroni). A lever is faster or slower if its interval or its corrected p-value says
    so.
    """
    logs = [np.log(row) - np.log(group[0]) for group in groups_ms for row in group[1:]]
    each = 1 - 0.05 / max(1, len(logs))
    found = [compare_pairs(row, equal_within, each) for row in logs]
    adjusted = holm([one.p_value for one in found])
    return [
        PairedComparison(
            **{
                **{name: getattr(one, name) for name in one.__dataclass_fields__},
                "p_value": float(p),
                "verdict": judge(one.ratio_ci, one.ratio, one.equivalent, significant=bool(p <= 0.05)),
            }
        )
        for one, p in zip(found, adjusted, strict=True)
    ]


def pays_after(setup_s: float | None, saves_ms: float | None) -> int | None:
    """After how many steps what a lever saves has paid for its preparation; ``None`` if never."""
    if setup_s is None or saves_ms is None or saves_ms <= 0:
        return None
    return math.ceil(setup_s * 1e3 / saves_ms)


def keepable(values: Values, listed: bool, quality: bool | None) -> str:
    """Why a lever's results forbid to keep it; empty if they do not.

    Parameters
    ----------
    listed : bool
        Whether the user asked for it by name.
    quality : bool or None
        Whether the user's own test of quality passes with it; ``None`` without one.
    """
    if quality is not None:
        return "" if quality else "quality is outside the limit"
    if values.verdict in (SAME, NOISE) or (listed and values.verdict in (REDUCED, UNCHECKED)):
        return ""
    if values.verdict == REDUCED:
        return "lower precision: pass quality=, or name it in levers="
    return values.why or values.verdict


def in_order(names: Sequence[str], answers: Mapping[str, Sequence[str]], bounds: Mapping[str, float]) -> list[str]:
    """Levers that answer a finding first, the largest bound first; the others in their own order."""

    def bound(name: str) -> float:
        return max((bounds.get(each, 0.0) for each in answers[name]), default=0.0)

    return sorted(names, key=lambda name: -bound(name))
