"""Compute a profile's GPU tables, and select the events that the tables are based on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from perfnb.attribution.attribution import Attribution, blocks_of_events
from perfnb.attribution.blocks import marks_step
from perfnb.attribution.device_work import DeviceWork, column, device_work, is_in, matching, step_rows, step_windows
from perfnb.attribution.events import all_events, owners
from perfnb.gpu.critical_path import WaitGraph, Window, path_in, prepare, window_of
from perfnb.gpu.device_time import gpu_time, gpu_time_by_step, idle_time
from perfnb.gpu.launches import kernels_by_op, launches, launches_by_op, queue_lengths
from perfnb.gpu.path_savings import By, savings_in
from perfnb.recording.from_trace import rows_of_trace
from perfnb.recording.nesting import NONE, Bools
from perfnb.recording.recording import Recording
from perfnb.recording.schema import conform
from perfnb.trace_names import CALLS, DATA_SPAN, DEVICE_WORK, LAYER_SPAN, OPS, PIECE, SYNCHRONISATION

#: How the frame ``path_savings`` splits a critical path.
_PARTS: tuple[By, ...] = ("kind", "op")
_OWN_SPANS = re.compile(rf"{LAYER_SPAN}|{DATA_SPAN}$|{PIECE}$")


@dataclass(frozen=True)
class GpuEvents:
    """The events on devices, and the host events that are related to them."""

    #: Device work, runtime calls, ops and step marks of one rank. The columns are those of `Recording.events`, with
    #: ``start_ns`` relative to the first step, and ``layer`` if an attribution was passed.
    events: pd.DataFrame
    #: Whether each event is part of a step.
    in_steps: Bools
    #: The step numbers.
    steps: tuple[int, ...]
    #: The number of the only step if it represents the whole trace.
    only_step: int | None

    @cached_property
    def work(self) -> DeviceWork:
        """The device work."""
        return device_work(self.events)

    @cached_property
    def launches(self) -> pd.DataFrame:
        """The launch of each piece of the work."""
        return launches(self.events, self.work)

    @cached_property
    def waits(self) -> WaitGraph:
        """The dependencies between the events, which determine the critical path."""
        return prepare(self.events, self.work)

    def window_of(self, number: int) -> Window:
        """Return the interval from a step's start until the host and the devices have finished its work."""
        return window_of(self.waits, None if self.only_step is not None else number)

    @cached_property
    def of_steps(self) -> GpuEvents:
        """The same events, restricted to those that are part of a step."""
        if self.in_steps.all():
            return self
        rows = np.flatnonzero(self.in_steps)
        return replace(self, events=self.events.iloc[rows].reset_index(drop=True), in_steps=self.in_steps[rows])


def gpu_events(recording: Recording, attribution: Attribution | None = None) -> GpuEvents:
    """Select the events in a recording that show the work and the waits of its GPUs.

    Spans of layers and of data loading are left out, because they would hide the host time between ops. Step marks that
    do not count as steps are also left out.
    """
    events = all_events(recording)
    in_trace = rows_of_trace(recording.events)
    in_steps = np.arange(len(events)) < len(in_trace)
    if attribution is not None:
        layer = owners(recording, attribution, blocks_of_events(recording.events, attribution.host))["layer"]
        codes = np.full(len(events), NONE, dtype=np.int64)
        codes[: len(in_trace)] = layer.codes[in_trace]
        events["layer"] = pd.Categorical.from_codes(codes, layer.categories)
    spans = matching(events, _OWN_SPANS) | (column(events, "span") != NONE)
    marks = marks_step(events)
    kept = is_in(events, (*DEVICE_WORK, *CALLS, *SYNCHRONISATION)) | (is_in(events, OPS) & ~spans) | marks
    rows = np.flatnonzero(kept & (marks | ~step_rows(events)))
    chosen = events.iloc[rows].reset_index(drop=True)
    of_recording, starts = marks_step(recording.events), recording.events["start_ns"].to_numpy()
    zero = starts[of_recording].min() if of_recording.any() else starts.min(initial=0)
    chosen["start_ns"] = chosen["start_ns"].to_numpy() - int(zero)
    if recording.is_from_trace and not recording.meta["trace"]["steps_marked"]:
        only = recording.steps["step"].head(1).tolist()
        return GpuEvents(chosen, in_steps[rows], tuple(only), only[0] if only else None)
    numbers = step_windows(chosen)["number"].tolist()
    return GpuEvents(chosen, in_steps[rows], tuple(dict.fromkeys(numbers)), None)


def step_table(gpu: GpuEvents) -> pd.DataFrame:
    """Return the table ``gpu_steps``. A trace without step marks counts as one step."""
    if gpu.only_step is None:
        return conform(gpu_time_by_step(gpu.events, gpu.work), "gpu_steps")
    return conform(gpu_time(gpu.events, gpu.work).assign(step=gpu.only_step), "gpu_steps")


def idle_table(gpu: GpuEvents) -> pd.DataFrame:
    """Return the table ``gpu_idle``: why each device was idle in each step.

    A device's rows add up to its idle time.
    """
    idle = idle_time(gpu.events, by_step=gpu.only_step is None, work=gpu.work)
    if gpu.only_step is not None:
        idle["step"] = gpu.only_step
    key = ["rank", "device", "step"]
    table = step_table(gpu)[key].merge(conform(idle, "gpu_idle"), on=key, how="outer", sort=True)
    # A device that was never idle in a step has a row of zeros.
    figures = table.columns.difference(key)
    table[figures] = table[figures].fillna(0)
    return conform(table, "gpu_idle")


def launch_table(gpu: GpuEvents) -> pd.DataFrame:
    """Return the table ``launches`` by launching op, per step."""
    sums = ("calls", "launched", "call_ms", "gpu_ms", "short")
    return conform(_per_step(launches_by_op(gpu.of_steps.launches), sums, gpu), "launches")


def kernel_op_table(gpu: GpuEvents) -> pd.DataFrame:
    """Return the table ``kernel_ops`` by op and input shapes, per step."""
    sums = ("op_calls", "calls", "total_ms")
    return conform(_per_step(kernels_by_op(gpu.of_steps.launches), sums, gpu), "kernel_ops")


def queue_table(gpu: GpuEvents) -> pd.DataFrame:
    """Return the table ``queue``: the length of each stream's queue of work that had not started, at each change."""
    return conform(queue_lengths(gpu.events, gpu.work).rename(columns={"time_ns": "start_ns"}), "queue")


def path_table(gpu: GpuEvents) -> pd.DataFrame:
    """Return the table ``critical_path``: each step's path, including device work after the end on the host."""
    parts = [path.assign(rank=gpu.events["rank"].iloc[0], step=number) for number, _, path in _paths(gpu)]
    table = pd.concat(parts, ignore_index=True).drop(columns="event") if parts else pd.DataFrame()
    return conform(table, "critical_path")


def saving_table(gpu: GpuEvents) -> pd.DataFrame:
    """Return the table ``path_savings``: the parts of each step's path, by kind and by op."""
    parts = [
        savings_in(gpu.waits, window, by, path=path).rename(columns={by: "part"}).assign(step=number, by=by)
        for number, window, path in _paths(gpu)
        for by in _PARTS
    ]
    table = pd.concat(parts, ignore_index=True).assign(rank=gpu.events["rank"].iloc[0]) if parts else pd.DataFrame()
    return conform(table, "path_savings")


def _paths(gpu: GpuEvents) -> Iterator[tuple[int, Window, pd.DataFrame]]:
    """Yield each step's number, interval and critical path."""
    if gpu.events.empty:  # the recording only contains ranges marked by the user
        return
    for number in gpu.steps:
        window = gpu.window_of(number)
        yield number, window, path_in(gpu.waits, window)


def _per_step(table: pd.DataFrame, sums: tuple[str, ...], gpu: GpuEvents) -> pd.DataFrame:
    return table.assign(**(table[[*sums]].astype("Float64") / np.float64(max(len(gpu.steps), 1))))
