"""From the columns of a trace, whoever wrote it, to the frames of a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pandas as pd

from perfnb.recording.recording import Recording
from perfnb.recording.text import TEXT
from perfnb.recording.trace_layers import layers_read
from perfnb.trace.columns import MISSING, Ints, TraceColumns
from perfnb.trace.trace_steps import TraceSteps, belongs_to_steps, is_in, steps_of
from perfnb.trace_names import (
    CALLS,
    DEVICE_EVENTS,
    DEVICE_RANGES,
    DEVICE_WORK,
    LAYER_SPAN,
    LOADER,
    OPS,
    PYTHON_CALLS,
    RANGES,
    SPAN_CATEGORY,
    number_behind,
)

#: Columns of whole numbers, -1 for missing values.
NUMBERS = (
    *("start_ns", "duration_ns", "process", "thread", "device", "stream", "correlation", "external_id"),
    *("sequence", "forward_thread", "wait_stream", "wait_correlation", "bytes"),
)
#: Columns of text, missing for events without one.
TEXTS = ("shapes", "collective", "group")
#: Category of an event that is not in the trace: the step that stands for all of it.
WHOLE_TRACE = "whole trace"
#: Names are kept of this many threads.
_MOST_NAMES = 1000


def event_frame(trace: TraceColumns, rows: Ints, span: Ints | None = None) -> pd.DataFrame:
    """Make the frame of some of a trace's events; see `Recording.events`.

    Parameters
    ----------
    trace : TraceColumns
    rows : ndarray
    span : ndarray, optional
        Number of the layer span that each row is, -1 for other events.
    """
    names, _ = span_names(trace)
    texts = {"shapes": trace.shape_texts, "collective": trace.collective_names, "group": trace.group_names}
    return pd.DataFrame(
        {
            "name": categorical(names, trace.name[rows]),
            "category": categorical(trace.categories, trace.category[rows]),
            **{name: getattr(trace, name)[rows] for name in NUMBERS},
            **{name: categorical(labels, getattr(trace, name)[rows]) for name, labels in texts.items()},
            "span": np.full(len(rows), MISSING, dtype=np.int64) if span is None else span,
        },
        copy=False,  # millions of rows
    )


def span_names(trace: TraceColumns) -> tuple[list[str], Ints]:
    """Return the names without the numbers of layer spans, and the span number of each name, -1 for others."""
    numbers = np.array([number_behind(LAYER_SPAN, name) for name in trace.names], dtype=np.int64)
    names = [LAYER_SPAN if number != MISSING else name for name, number in zip(trace.names, numbers, strict=True)]
    return names, numbers


def categorical(labels: Sequence[str], codes: Ints) -> pd.Categorical:
    """Make categories of codes and labels, missing below 0; equal labels are merged, unused ones dropped."""
    used = np.flatnonzero(np.bincount(codes[codes != MISSING], minlength=len(labels))) if len(codes) else codes
    unique, merged = np.unique(np.array([labels[code] for code in used], dtype=object), return_inverse=True)
    place = np.full(len(labels) + 1, MISSING, dtype=np.int32)  # the last is for missing values
    place[used] = merged
    return pd.Categorical.from_codes(place[codes], categories=pd.Index(unique, dtype=TEXT))


def with_places(trace: TraceColumns) -> TraceColumns:
    """Give device ranges without a device and stream those of work with the same pid and tid.

    torch writes such ranges beside their work without saying which stream they are on.
    """
    lost = np.flatnonzero(is_in(trace, DEVICE_RANGES) & (trace.device == MISSING) & (trace.stream == MISSING))
    known = np.flatnonzero(is_in(trace, DEVICE_WORK) & (trace.device != MISSING) & (trace.stream != MISSING))
    if len(lost) == 0 or len(known) == 0:
        return trace
    rows, first = np.unique(_pairs(trace, known), axis=0, return_index=True)
    place = {(pid, tid): int(at) for (pid, tid), at in zip(rows.tolist(), known[first], strict=True)}
    asked, which = np.unique(_pairs(trace, lost), axis=0, return_inverse=True)
    beside = np.array([place.get((pid, tid), MISSING) for pid, tid in asked.tolist()], dtype=np.int64)
    beside = beside[which.reshape(-1)]
    device, stream = trace.device.copy(), trace.stream.copy()
    for values in (device, stream):
        values[lost] = np.where(beside == MISSING, MISSING, values[beside])
    return replace(trace, device=device, stream=stream)


def _pairs(trace: TraceColumns, rows: Ints) -> Ints:
    return np.stack([trace.process[rows], trace.thread[rows]], axis=1)


def recording_of_trace(
    trace: TraceColumns, name: str, rank: int | None = None, caveats: Sequence[str] = ()
) -> Recording:
    """Make the recording of a trace, with no layers except those that perfnb wrote into it.

    Parameters
    ----------
    trace : TraceColumns
    name : str
        Of the file.
    rank : int, optional
        Used if the trace has none.
    caveats : sequence of str
        What its format cannot tell.
    """
    trace = with_places(trace)
    steps = steps_of(trace)
    part = belongs_to_steps(trace, steps)
    _, span = span_names(trace)
    span = np.where(is_in(trace, (SPAN_CATEGORY,)), span[trace.name], MISSING)
    rows, rest = np.flatnonzero(part), np.flatnonzero(~part)
    events = event_frame(trace, rows, span[rows])
    marks = np.full(len(trace), MISSING, dtype=np.int64)
    if steps.marked:
        marks[steps.rows] = steps.numbers
    events["marks_step"] = marks[rows]
    if not steps.marked and len(trace):
        events = _with_whole_step(events, steps)
    outside = event_frame(trace, rest, span[rest]).assign(marks_step=marks[rest])
    modules, spans = layers_read(trace.perfnb) or (_no_modules(), _no_spans())
    meta = _meta(trace, steps, name, rank)
    if caveats:
        meta["trace"]["caveats"] = list(caveats)
    memory = {field.name: getattr(trace.memory, field.name) for field in fields(trace.memory)}
    return Recording(
        events,
        _steps_frame(trace, steps),
        modules,
        spans,
        meta,
        outside=outside if len(outside) else None,
        trace_memory=pd.DataFrame(memory) if len(trace.memory) else None,
    )


def _with_whole_step(events: pd.DataFrame, steps: TraceSteps) -> pd.DataFrame:
    """Put an event that stands for the whole trace before the others."""
    whole = pd.DataFrame({column: [MISSING] for column in events.columns if events[column].dtype == np.int64})
    whole["start_ns"], whole["duration_ns"] = steps.starts, steps.ends - steps.starts
    whole["process"], whole["thread"], whole["marks_step"] = steps.process, steps.thread, steps.numbers
    values: dict[str, Any] = {}
    for column in events.columns:
        kind = events[column].dtype
        if isinstance(kind, pd.CategoricalDtype):
            text = WHOLE_TRACE if column in ("name", "category") else None
            labels = kind.categories if text is None or text in kind.categories else [*kind.categories, text]
            dtype = pd.CategoricalDtype(pd.Index(labels, dtype=TEXT))
            code = MISSING if text is None else dtype.categories.get_loc(text)
            codes = np.concatenate([[code], events[column].cat.codes.to_numpy()])
            values[column] = pd.Categorical.from_codes(codes, dtype=dtype)
        else:
            values[column] = np.concatenate([whole[column].to_numpy(dtype=np.int64), events[column].to_numpy()])
    return pd.DataFrame(values)


def _steps_frame(trace: TraceColumns, steps: TraceSteps) -> pd.DataFrame:
    wall = (steps.ends - steps.starts) / 1e6
    first = steps.starts[0] if len(steps.starts) else 0
    return pd.DataFrame(
        {
            "pass": pd.Categorical(["traced"] * len(wall)),
            "start_s": (steps.starts - first) / 1e9,
            "wall_ms": wall,
            "data_ms": _waits_for_data(trace, steps),
            "samples": pd.array([None] * len(wall), dtype="Int64"),
            "step": pd.array(steps.numbers, dtype="Int64"),
        }
    )


def _waits_for_data(trace: TraceColumns, steps: TraceSteps) -> np.ndarray:
    """Return how many ms each step waited for a torch data loader on its own thread; a mark may cut a wait."""
    is_wait = np.array([name.startswith(LOADER) for name in trace.names], dtype=bool)
    if not is_wait.any():
        return np.zeros(len(steps.starts))
    rows = np.flatnonzero(is_wait[trace.name] & is_in(trace, (*RANGES, *OPS)))
    rows = rows[(trace.thread[rows] == steps.thread) & (trace.process[rows] == steps.process)]
    rows = rows[np.lexsort((-trace.duration_ns[rows], trace.start_ns[rows]))]
    if len(rows) == 0:
        return np.zeros(len(steps.starts))
    reached = np.maximum.accumulate(trace.start_ns[rows] + trace.duration_ns[rows])
    outside = np.append(True, trace.start_ns[rows][1:] >= reached[:-1])  # a wait may be inside another
    starts, durations = trace.start_ns[rows][outside], trace.duration_ns[rows][outside]
    before = np.concatenate([[0], np.cumsum(durations)])

    def waited_until(time: Ints) -> Ints:
        place = np.searchsorted(starts, time, side="right") - 1
        within = np.minimum(time - starts[place], durations[place])
        return np.where(place >= 0, before[place] + within, 0)

    return np.asarray((waited_until(steps.ends) - waited_until(steps.starts)) / 1e6)


def _no_modules() -> pd.DataFrame:
    text = pd.Series([], dtype=TEXT)
    whole, flag = np.array([], dtype=np.int64), np.array([], dtype=bool)
    columns = {"name": text, "module": text, "parent": whole, "depth": whole, "parameters": whole}
    return pd.DataFrame({**columns, "parameter_bytes": whole, "compiled": flag})


def _no_spans() -> pd.DataFrame:
    empty = pd.DataFrame({"layer": np.array([], dtype=np.int64), "loss": np.array([], dtype=bool)})
    return empty.set_index(pd.Index([], dtype="int64", name="span"))


def _meta(trace: TraceColumns, steps: TraceSteps, name: str, rank: int | None) -> dict[str, Any]:
    own_rank = rank if trace.rank is None else trace.rank
    return {
        "name": name,
        "rank": 0 if own_rank is None else own_rank,
        "base_ns": trace.base_ns,
        "devices": trace.devices,
        "environment": {"gpus": _gpus(trace)},
        "options": {},
        "trace": {
            "file": name,
            "rank_known": own_rank is not None,
            "rank": own_rank,
            "world_size": trace.world_size,
            "events": len(trace),
            "unit_ns": trace.unit_ns,
            "steps_marked": steps.marked,
            "steps_ignored": steps.ignored,
            "negative_durations": trace.negative_durations,
            "host_events": int(is_in(trace, (*OPS, *RANGES, *PYTHON_CALLS)).sum()),
            "host_calls": int(is_in(trace, CALLS).sum()),
            "device_events": int(is_in(trace, DEVICE_WORK).sum()),
            "process_names": [[pid, text] for pid, text in trace.process_names.items()][:_MOST_NAMES],
            "process_labels": [[pid, text] for pid, text in trace.process_labels.items()][:_MOST_NAMES],
            "thread_names": [[pid, tid, text] for (pid, tid), text in trace.thread_names.items()][:_MOST_NAMES],
        },
    }


def _gpus(trace: TraceColumns) -> list[str]:
    """Return the names of the devices that something ran on, as far as the trace tells them.

    Device numbers in the trace are not always those of its list; if all devices in the list have one name, it is right.
    """
    used = np.unique(trace.device[is_in(trace, DEVICE_EVENTS)]) if len(trace) else np.array([], dtype=np.int64)
    by_number: dict[Any, Any] = {device.get("id"): device.get("name") for device in trace.devices if _plain(device)}
    kinds = {name for name in by_number.values() if name}
    only = kinds.pop() if len(kinds) == 1 else None
    return [str(by_number.get(number) or only or f"GPU {number}") for number in used.tolist() if number != MISSING]


def _plain(device: dict[str, Any]) -> bool:
    return isinstance(device.get("id"), int) and isinstance(device.get("name"), str)


def rows_of_trace(events: pd.DataFrame) -> Ints:
    """Return the positions of the events in the trace: all but the step that stands for it."""
    if "marks_step" not in events:
        return np.arange(len(events))
    stands_for_it = (events["category"] == WHOLE_TRACE) & (events["marks_step"] != MISSING)
    return np.flatnonzero(~stands_for_it.to_numpy(dtype=bool))
