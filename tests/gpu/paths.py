"""The critical path of the events of a trace, and its savings, in one call each."""

from __future__ import annotations

import pandas as pd

from perfnb.gpu.critical_path import path_in, prepare, window_of
from perfnb.gpu.path_savings import By, savings_in


def critical_path(
    events: pd.DataFrame, step: int | None = None, window: tuple[int, int] | None = None, tail: bool = False
) -> pd.DataFrame:
    run = prepare(events)
    return path_in(run, window_of(run, step, window, tail))


def path_savings(
    events: pd.DataFrame,
    step: int | None = None,
    window: tuple[int, int] | None = None,
    tail: bool = False,
    by: By = "kind",
    most: int = 12,
) -> pd.DataFrame:
    run = prepare(events)
    return savings_in(run, window_of(run, step, window, tail), by, most)
