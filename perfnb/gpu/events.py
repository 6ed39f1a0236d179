"""The events behind the tables of GPU time and the critical path."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from perfnb.attribution.attribution import Attribution, blocks_of_events
from perfnb.attribution.blocks import marks_step
from perfnb.attribution.device_work import DeviceWork, device_work, is_in, matching, step_rows, step_windows
from perfnb.attribution.events import all_events, owners
from perfnb.recording.from_trace import rows_of_trace
from perfnb.recording.nesting import NONE, Bools
from perfnb.recording.recording import Recording
from perfnb.trace_names import CALLS, DATA_SPAN, DEVICE_WORK, LAYER_SPAN, OPS, SYNCHRONISATION

_OWN_SPANS = re.compile(rf"{LAYER_SPAN}|{DATA_SPAN}$")


@dataclass(frozen=True)
class GpuEvents:
    """What ran on devices, and the host events related to it.

    Attributes
    ----------
    events : DataFrame
        Device work, runtime calls, ops, and the marks of the steps that count, of one rank, with the columns of
        `Recording.events`; ``start_ns`` is relative to the first step. Has ``layer`` if an attribution was given.
    in_steps : ndarray
        Whether each event is part of a step.
    steps : tuple of int
        Step numbers.
    only_step : int or None
        Number of the one step that stands for the whole trace, if there is one.
    """

    events: pd.DataFrame
    in_steps: Bools
    steps: tuple[int, ...]
    only_step: int | None

    @cached_property
    def work(self) -> DeviceWork:
        """The device work."""
        return device_work(self.events)

    @cached_property
    def of_steps(self) -> GpuEvents:
        """The same, restricted to events that are part of a step."""
        if self.in_steps.all():
            return self
        rows = np.flatnonzero(self.in_steps)
        return replace(self, events=self.events.iloc[rows].reset_index(drop=True), in_steps=self.in_steps[rows])


def gpu_events(recording: Recording, attribution: Attribution | None = None) -> GpuEvents:
    """Choose the events of a recording that show what its GPUs did and waited for.

    Spans of layers and data are left out, so that host time between ops shows as such, and so are step marks that do
    not count as steps.
    """
    events = all_events(recording)
    in_trace = rows_of_trace(recording.events)
    in_steps = np.arange(len(events)) < len(in_trace)
    if attribution is not None:
        layer = owners(recording, attribution, blocks_of_events(recording.events, attribution.host))["layer"]
        codes = np.full(len(events), NONE, dtype=np.int64)
        codes[: len(in_trace)] = layer.codes[in_trace]
        events["layer"] = pd.Categorical.from_codes(codes, layer.categories)
    is_op = is_in(events, OPS)
    marks = marks_step(events)
    kept = is_in(events, (*DEVICE_WORK, *CALLS, *SYNCHRONISATION)) | (is_op & ~_spans(events)) | marks
    rows = np.flatnonzero(kept & (marks | ~step_rows(events)))
    first = _first_step(recording)
    chosen = events.iloc[rows].reset_index(drop=True)
    chosen["start_ns"] = chosen["start_ns"].to_numpy() - first
    if recording.is_loaded and not recording.meta["trace"]["steps_marked"]:
        only = [int(number) for number in recording.steps["step"].head(1)]
        return GpuEvents(chosen, in_steps[rows], tuple(only), only[0] if only else None)
    numbers = step_windows(chosen)["number"].tolist()
    return GpuEvents(chosen, in_steps[rows], tuple(dict.fromkeys(numbers)), None)


def _spans(events: pd.DataFrame) -> Bools:
    spans = matching(events, _OWN_SPANS)
    return spans | (events["span"] != NONE).to_numpy() if "span" in events else spans


def _first_step(recording: Recording) -> int:
    """Start of the first step, the zero of the frame ``events``."""
    marks = marks_step(recording.events)
    starts = recording.events["start_ns"].to_numpy()
    return int(starts[marks].min()) if marks.any() else int(starts.min(initial=0))
