"""What ran when: every event of a trace as an interval on a track, with its layer, phase, and what caused it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from perfnb.attribution.attribution import Attribution
from perfnb.memory.allocations import Watched
from perfnb.recording.nesting import NONE, Ints
from perfnb.recording.recording import Recording
from perfnb.timeline.events import event_rows, shape_texts
from perfnb.timeline.layers import layer_rows, phase_rows, step_rows
from perfnb.timeline.memory import MemoryCurve, curves_of_trace, memory_curves
from perfnb.timeline.rows import KINDS, Labels, joined, layer_names

#: Kinds of tracks that hold the events of the trace, each once.
OF_EVENTS = ("thread", "stream", "python")
LAYERS_NOTE = "forward by calls, backward by the nodes that a layer's ops made"


@dataclass(frozen=True)
class Track:
    """A line of a timeline, or several where intervals lie in others.

    Attributes
    ----------
    kind : str
        ``steps``, ``phases``, ``layers``, ``thread``, ``stream`` or ``python``.
    title : str
        May quote a name of the trace.
    first, count : int
        Its rows in the timeline's.
    depth : int
        How many lines it takes.
    note : str
        What to know about it.
    thread : str
        Title of the track of the thread whose Python calls these are.
    """

    kind: str
    title: str
    first: int
    count: int
    depth: int
    note: str = ""
    thread: str = ""


@dataclass(frozen=True)
class Timeline:
    """Intervals on tracks.

    Attributes
    ----------
    tracks : tuple of Track
        In the order in which they are shown.
    rows : DataFrame
        One row an interval, by track, depth and begin. ``start`` (nanoseconds from the begin of the first traced step)
        and ``duration``; what ends later than the event around it is cut. ``depth``; ``name``, ``category``, ``kind``,
        ``layer`` and ``detail`` are places in the texts below, ``launch`` and ``forward`` rows of this frame: the call
        that launched work on a device, and the op whose backward this is; ``event`` is the row of
        `perfnb.attribution.events.all_events`. -1 stands for none.
    names, categories, kinds, layers, details : tuple of str
        Texts; `kinds` are phases and ``recompute``, `details` shapes of inputs.
    memory : tuple of MemoryCurve
        Where it was watched, or a loaded trace tells of it.
    zero_ns : int
        What to add to ``start`` to have the trace's own time.
    """

    tracks: tuple[Track, ...]
    rows: pd.DataFrame
    names: tuple[str, ...]
    categories: tuple[str, ...]
    kinds: tuple[str, ...]
    layers: tuple[str, ...]
    details: tuple[str, ...]
    memory: tuple[MemoryCurve, ...] = ()
    zero_ns: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, kind: str) -> list[Track]:
        """The tracks of a kind."""
        return [track for track in self.tracks if track.kind == kind]

    def rows_on(self, track: Track) -> pd.DataFrame:
        """The rows of a track."""
        return self.rows.iloc[track.first : track.first + track.count]

    @property
    def span_ns(self) -> tuple[int, int]:
        """When the first interval begins and the last one ends."""
        if self.rows.empty:
            return 0, 0
        return int(self.rows["start"].min()), int((self.rows["start"] + self.rows["duration"]).max())


def timeline_of(recording: Recording, attribution: Attribution, watched: Watched | None = None) -> Timeline:
    """The timeline of a recording that holds a traced step.

    Parameters
    ----------
    recording : Recording
    attribution : Attribution
        Of its events.
    watched : Watched, optional
        What was seen of memory, in steps of its own; its curve is placed on every traced step. A loaded trace has its
        own curves.
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
    """Whether each row is an event of the trace; only those are what a link leads to."""
    return np.repeat([kind in OF_EVENTS for kind, *_ in tables], [len(rows) for _, _, rows, _ in tables])


def _places(event: Ints, wanted: Ints, of_events: np.ndarray) -> Ints:
    """Rows of the timeline for rows of the events."""
    place = np.full(max(int(event.max(initial=NONE)), int(wanted.max(initial=NONE))) + 2, NONE, dtype=np.int64)
    rows = np.flatnonzero(of_events)
    place[event[rows]] = rows
    return np.where(wanted != NONE, place[wanted], NONE)
