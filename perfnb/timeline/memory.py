"""Create memory curves from a loaded trace, or by mapping the counted step onto the traced steps.

This mapping is necessary because the counted step ran the same ops at a different speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from perfnb.attribution.attribution import Attribution
from perfnb.attribution.blocks import Kind
from perfnb.attribution.tables import phase_stretches
from perfnb.memory.allocations import Watched
from perfnb.memory.from_trace import memory_of_trace
from perfnb.memory.table import memory_table
from perfnb.recording.nesting import NONE, Bools, Ints
from perfnb.recording.recording import Recording
from perfnb.recording.text import of_labels
from perfnb.trace_names import OWN_PREFIX

_AS_RECORDED = "from the trace"
_BY_OP = "from the counted step, aligned by op"
_BY_PHASE = "from the counted step, aligned by phase"
_STRETCHED = "from the counted step, stretched to fit"
#: The start and end of a step.
_Window = tuple[int, int]


@dataclass(frozen=True)
class MemoryCurve:
    """The number of bytes that are alive on a device over time.

    Attributes
    ----------
    device : str
        The device, such as ``cpu`` or ``cuda:0``.
    note : str
        The source of the curve.
    times_ns, bytes : ndarray of int64
        The times at which the level changes, and the level from each time until the next one.
    """

    device: str
    note: str
    times_ns: Ints
    bytes: Ints


class _Ops(NamedTuple):
    """The ops in a recording in chronological order, with their names, start times and threads."""

    name: np.ndarray
    start: Ints
    main: Bools

    def between(self, begin: int, end: int, everywhere: bool) -> tuple[np.ndarray, Ints]:
        """Return the names and start times of a step's ops."""
        first, last = np.searchsorted(self.start, (begin, end))
        chosen = slice(None) if everywhere else self.main[first:last]
        return self.name[first:last][chosen], self.start[first:last][chosen]


def memory_curves(recording: Recording, attribution: Attribution, watched: Watched) -> list[MemoryCurve]:
    """Return the curve of each device over all traced steps.

    If the same ops ran in the same order in both steps, the curve is aligned op by op and interpolated in between.
    Otherwise, it is aligned phase by phase, or as a whole.
    """
    blocks = attribution.host.blocks
    steps = blocks[blocks["kind"] == Kind.STEP].sort_values("start")
    counted, traced = _ops(watched.recording, watched.attribution), _ops(recording, attribution)
    placed = []
    for step in zip(steps["start"].tolist(), steps["end"].tolist(), strict=True):
        known, meant, note = _matching(watched, attribution, counted, traced, step)
        placed.append((_increasing(known, (watched.begin, watched.end)), _increasing(meant, step), note))
    note = max({note for *_, note in placed}, key=(_BY_OP, _BY_PHASE, _STRETCHED).index)
    curves = []
    for device, line in memory_table(watched).groupby("device", observed=True, sort=True):
        moments = np.rint(line["t_ms"].to_numpy(dtype=float) * 1e6) + watched.begin
        sizes = line["total"].to_numpy(dtype=np.int64)
        times = [np.rint(np.interp(moments, known, meant)).astype(np.int64) for known, meant, _ in placed]
        curves.append(MemoryCurve(str(device), note, np.concatenate(times), np.tile(sizes, len(times))))
    return curves


def curves_of_trace(recording: Recording) -> list[MemoryCurve]:
    """Return the curve of each device in a loaded trace.

    It contains all recorded totals, inside and outside the steps.
    """
    return [
        MemoryCurve(line.device, _AS_RECORDED, line.times_ns, line.allocated) for line in memory_of_trace(recording)
    ]


def _matching(
    watched: Watched, attribution: Attribution, counted: _Ops, traced: _Ops, step: _Window
) -> tuple[Ints, Ints, str]:
    """Return times in the counted step, the corresponding times in a traced step, and the method of matching."""
    window = (watched.begin, watched.end)
    for everywhere in (True, False):
        (names, known), (others, meant) = counted.between(*window, everywhere), traced.between(*step, everywhere)
        if len(names) and len(names) == len(others) and (names == others).all():
            return known, meant, _BY_OP
    ours, theirs = phase_stretches(watched.attribution, *window), phase_stretches(attribution, *step)
    if [name for name, *_ in ours] == [name for name, *_ in theirs]:
        known, meant = (np.array([start for _, start, _ in one], dtype=np.int64) for one in (ours, theirs))
        return known, meant, _BY_PHASE
    return np.array([], dtype=np.int64), np.array([], dtype=np.int64), _STRETCHED


def _increasing(moments: Ints, window: _Window) -> Ints:
    """Return the times between the start and end of a step. They are adjusted where necessary to be increasing."""
    return np.maximum.accumulate(np.concatenate([window[:1], moments, window[1:]]))


def _ops(recording: Recording, attribution: Attribution) -> _Ops:
    host = attribution.host
    names = recording.events["name"].cat
    labels = names.categories.to_numpy(dtype=object)
    own = of_labels(recording.events["name"], lambda name: name.startswith(OWN_PREFIX))
    codes = names.codes.to_numpy()[host.rows]
    rows = np.flatnonzero(host.is_op & (host.block != NONE) & ~own[host.rows])
    rows = rows[np.argsort(host.starts[rows], kind="stable")]
    steps = host.blocks.loc[host.blocks["kind"] == Kind.STEP, "thread"]
    return _Ops(labels[codes[rows]], host.starts[rows], np.isin(host.thread[rows], steps))
