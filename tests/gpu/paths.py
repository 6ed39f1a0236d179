"""The critical path of the events of a trace, and its savings, in one call each."""

from __future__ import annotations

import pandas as pd

from perfnb.attribution.device_work import step_windows
from perfnb.gpu.critical_path import WaitGraph, Window, main_thread, path_in, prepare, until_done, window_of
from perfnb.gpu.path_savings import By, savings_in


def window_in(
    graph: WaitGraph, step: int | None = None, window: tuple[int, int] | None = None, tail: bool = False
) -> Window:
    """Return a given interval or that of a step, which ends with the host unless its tail counts; or the whole
    trace.
    """
    if step is None and window is None:
        return window_of(graph, None)
    steps = step_windows(graph.events)
    steps = steps[steps["number"] == step]
    begin, end = window or (int(steps["start"].min()), int(steps["end"].max()))
    by_host = Window(begin, end, main_thread(graph.events))
    return until_done(graph, by_host) if tail else by_host


def critical_path(
    events: pd.DataFrame, step: int | None = None, window: tuple[int, int] | None = None, tail: bool = False
) -> pd.DataFrame:
    graph = prepare(events)
    return path_in(graph, window_in(graph, step, window, tail))


def path_savings(
    events: pd.DataFrame,
    step: int | None = None,
    window: tuple[int, int] | None = None,
    tail: bool = False,
    by: By = "kind",
    most: int = 12,
) -> pd.DataFrame:
    graph = prepare(events)
    return savings_in(graph, window_in(graph, step, window, tail), by, most)
