"""Decide whether there is enough evidence to report a rank as the one that the others wait for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import special

#: The probability of reporting a straggler if all ranks are equally fast.
_ERROR = 0.1
#: The minimum number of steps for an interval.
_STEPS = 3


@dataclass(frozen=True)
class Lateness:
    """How much longer the other ranks waited than this rank in shared collectives.

    Attributes
    ----------
    rank : int
    more_ms : float
        The average difference per step.
    low_ms, high_ms : float or None
        The interval of this average. It is ``None`` if there are fewer than three steps or if the interval includes 0.
    longer : int
        The number of collectives where the other rank waited longer.
    steps, collectives : int
        The numbers of steps and collectives.
    certain : bool
        Whether the difference is unlikely to be due to chance. This is the case if the interval excludes 0, or if the
        sign of the difference is the same in nearly all collectives.
    too_few : bool
        Whether there are too few values to decide.
    """

    rank: int
    more_ms: float
    low_ms: float | None
    high_ms: float | None
    longer: int
    steps: int
    collectives: int
    certain: bool
    too_few: bool


def judge_lateness(rank: int, more: pd.DataFrame, ranks: int) -> Lateness:
    """Decide whether the differences from `waited_beyond` show that a rank is late.

    With more `ranks`, stronger evidence is required, because it is more likely that one of them is late by chance.
    """
    error = _ERROR / max(ranks, 2)
    each = more["more_ms"].to_numpy(dtype=float)
    by_step = more.groupby("step")["more_ms"].sum().to_numpy(dtype=float)
    low = high = None
    if len(by_step) >= _STEPS:
        half = float(special.stdtrit(len(by_step) - 1, 1 - error)) * by_step.std(ddof=1) / np.sqrt(len(by_step))
        low, high = float(by_step.mean() - half), float(by_step.mean() + half)
    longer, shorter = int((each > 0).sum()), int((each < 0).sum())
    by_interval = low is not None and low > 0
    # The probability of at least this many positive differences if both signs were equally likely.
    by_sign = longer > 0 and float(special.bdtr(shorter, longer + shorter, 0.5)) <= error
    return Lateness(
        rank,
        float(by_step.mean()) if len(by_step) else 0.0,
        low if by_interval else None,
        high if by_interval else None,
        longer,
        len(by_step),
        len(each),
        bool(by_interval or by_sign),
        len(by_step) < _STEPS and 0.5 ** len(each) > error,
    )
