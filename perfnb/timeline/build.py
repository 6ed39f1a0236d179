"""Build the timeline of a recording: every event with its layer, its phase, and what caused it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from perfnb.attribution.attribution import Attribution
from perfnb.memory.allocations import Watched
from perfnb.recording.nesting import NONE, Ints
from perfnb.recording.recording import Recording
from perfnb.timeline.events import event_rows, shape_texts
from perfnb.timeline.layers import layer_rows, phase_rows, step_rows
from perfnb.timeline.memory import curves_of_trace, memory_curves
from perfnb.timeline.timeline import KINDS, OF_EVENTS, Labels, Timeline, Track, joined, layer_names

LAYERS_NOTE = "forward: module calls; backward: the autograd nodes of each layer's ops"


def timeline_of(recording: Recording, attribution: Attribution, watched: Watched | None = None) -> Timeline:
    """The timeline of a recording with at least one traced step.

    Parameters
    ----------
    recording : Recording
    attribution : Attribution
        Of its events.
    watched : Watched, optional
        Memory, watched in steps of its own; its curve is mapped onto every traced step. A loaded trace has its own
        curves.
    """
    names, categories = Labels(), Labels()
    whole = [
        ("steps", "Steps", step_rows(recording, attribution, names, categories), ""),
        ("phases", "Phases", phase_rows(attribution, names, categories), ""),
        ("layers", "Layers", layer_rows(recording, attribution, names, categories), ""),
        *((one.kind, one.title, one.rows, one.thread) for one in event_rows(recording, attribution, names, categories)),
    ]
    named = len(recording.modules) > 0
    tables = [one for one in whole if len(one[2]) and (named or one[0] != "layers")]
    rows = joined([rows for _, _, rows, _ in tables])
    steps = tables[0][2]
    zero = int(steps["start"].iloc[0])
    rows = rows.assign(
        start=rows["start"] - zero,
        launch=_places(rows["event"].to_numpy(), rows["launch"].to_numpy(), _of_events(tables)),
        forward=_places(rows["event"].to_numpy(), rows["forward"].to_numpy(), _of_events(tables)),
    )
    curves = curves_of_trace(recording) if watched is None else memory_curves(recording, attribution, watched)
    return Timeline(
        tracks=_tracks(tables),
        rows=rows,
        names=tuple(names),
        categories=tuple(categories),
        kinds=KINDS,
        layers=tuple(layer_names(recording)),
        details=tuple(shape_texts(recording)),
        memory=tuple(replace(curve, times_ns=curve.times_ns - zero) for curve in curves),
        zero_ns=zero,
    )


def _tracks(tables: Sequence[tuple[str, str, pd.DataFrame, str]]) -> tuple[Track, ...]:
    firsts = np.cumsum([0, *(len(rows) for _, _, rows, _ in tables)]).tolist()
    return tuple(
        Track(
            kind, title, first, len(rows), int(rows["depth"].max()) + 1, LAYERS_NOTE if kind == "layers" else "", thread
        )
        for (kind, title, rows, thread), first in zip(tables, firsts, strict=False)
    )


def _of_events(tables: Sequence[tuple[str, str, pd.DataFrame, str]]) -> np.ndarray:
    """Whether each row is an event of the trace; only those are targets of links."""
    return np.repeat([kind in OF_EVENTS for kind, *_ in tables], [len(rows) for _, _, rows, _ in tables])


def _places(event: Ints, wanted: Ints, of_events: np.ndarray) -> Ints:
    """Rows of the timeline for rows of the events."""
    place = np.full(max(int(event.max(initial=NONE)), int(wanted.max(initial=NONE))) + 2, NONE, dtype=np.int64)
    rows = np.flatnonzero(of_events)
    place[event[rows]] = rows
    return np.where(wanted != NONE, place[wanted], NONE)
