"""Levers with known figures, for the tests of what shows them."""

from __future__ import annotations

from typing import Any

from perfnb.bench.values import Values
from perfnb.remedies.try_levers import LeverTrials
from perfnb.remedies.verdicts import LeverFigures, LeverTrial

CODE = ["for group in opt.param_groups: group['fused'] = True"]
TRIALS = [
    LeverTrial("threads", "same", 1.002, (0.99, 1.01), -0.02, Values("exact", 0.0), 0.0),
    LeverTrial("autocast", "slower", 1.4, (1.31, 1.5), -4.0, Values("reduced precision", 0.03), 0.1, "lower precision"),
    LeverTrial("fused_optimizer", "faster", 0.86, (0.83, 0.89), 1.4, Values("within noise", 2e-7), 0.02, "", CODE, 2.0),
    LeverTrial("compile", "inconclusive", 0.9, None, 1.0, Values("exact", 0.0), 21.0),
    LeverTrial("attention", "not tried", why_not="no <b>attention</b>"),
]
KEPT = LeverTrial("fused_optimizer", "faster", 0.87, (0.84, 0.9), 1.3)


def lever_trials(
    trials: list[LeverTrial] = TRIALS, confirmed: LeverTrial | None = KEPT, name: str = "step", **figures: Any
) -> LeverTrials:
    kept = () if confirmed is None else tuple(confirmed.lever.split(" and "))
    options: dict[str, Any] = {"step_ms": 10.0, "rounds": 40, "kept": kept, "confirmed": confirmed} | figures
    return LeverTrials(LeverFigures(name, trials=trials, **options))
