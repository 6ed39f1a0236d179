"""Convert a trace from any program into the tables of a recording, with the layers that the trace implies.

With ``with_stack=True``, torch records a module call as ``nn.Module: Linear_3``, which means the fourth `Linear` that
the program called. Lightning's profiler marks calls with the module's own name, as
``[pl][module]torch.nn.modules.linear.Linear: encoder.head``. perfnb's own spans contain only numbers, so perfnb stores
their layers separately, next to the list of events.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pandas as pd
from msgspec import Meta, Struct

from perfnb.recording.nesting import NONE, nest_cutting
from perfnb.recording.raw_frames import NUMBERS, TEXTS, frame_of_rows, raw_frame
from perfnb.recording.recording import Recording
from perfnb.recording.text import TEXT, found, is_one_of
from perfnb.trace.columns import MISSING, Ints, TraceColumns
from perfnb.trace.trace_steps import TraceSteps, belongs_to_steps, is_in, refuse_odd_layers, steps_of
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

#: The category of an added event: a step that represents the whole trace.
WHOLE_TRACE = "whole trace"
#: A clock that shows a time before 2015 does not count from 1970, but for example from the time when the machine was
#: booted.
_EARLIEST_S = 1.42e9
#: The maximum number of threads whose names are stored.
_MOST_NAMES = 1000

_CALL = re.compile(r"nn\.Module: (?P<name>.*)", re.DOTALL)
_LIGHTNING = re.compile(r"\[pl\]\[module\](?:[\w<>]+\.)*(?P<kind>[\w<>]+): (?P<name>.+)")
_NUMBER = re.compile(r"_[0-9]+$")
#: The key, next to the list of events, under which perfnb writes layers.
KEY = "perfnb"


def event_frame(trace: TraceColumns, rows: Ints, spans: Sequence[str]) -> pd.DataFrame:
    """Make a table from some of a trace's events, as described in `Recording.events`.

    Parameters
    ----------
    trace : TraceColumns
    rows : ndarray
    spans : sequence of str
        The categories of perfnb's layer spans. The numbers in their names are moved to ``span``.
    """
    numbers = np.array([number_behind(LAYER_SPAN, name) for name in trace.names], dtype=np.int64)
    names = [LAYER_SPAN if number != MISSING else name for number, name in zip(numbers, trace.names, strict=True)]
    span = _no_numbers(len(rows))
    if (numbers != MISSING).any():
        span = np.where(is_in(trace, tuple(spans)), numbers[trace.name], MISSING)[rows]
    texts = {"shapes": trace.shape_texts, "collective": trace.collective_names, "group": trace.group_names}
    texts |= {"dtype": trace.dtype_names, "module": trace.module_names}
    return pd.DataFrame(
        {
            "name": categorical(names, trace.name[rows]),
            "category": categorical(trace.categories, trace.category[rows]),
            **{name: _of_rows(getattr(trace, name), rows) for name in NUMBERS},
            **{name: categorical(labels, getattr(trace, name)[rows]) for name, labels in texts.items()},
            "span": span,
        },
        copy=False,  # millions of rows
    )


def _of_rows(values: Ints, rows: Ints) -> Ints:
    """Return some of a column's values, without copying them if all values are requested in order.

    A column with a single value for all rows needs no memory.
    """
    if values.strides == (0,) and len(rows):
        return _no_numbers(len(rows), values[0])
    return values if len(rows) == len(values) and (np.diff(rows) == 1).all() else values[rows]


def categorical(labels: Sequence[str], codes: Ints) -> pd.Categorical:
    """Make categories from codes and labels.

    Negative codes are missing, equal labels are merged, and unused labels are dropped.
    """
    used = np.flatnonzero(np.bincount(codes[codes != MISSING], minlength=len(labels))) if len(codes) else codes
    unique, merged = np.unique(np.array([labels[code] for code in used], dtype=object), return_inverse=True)
    place = np.full(len(labels) + 1, MISSING, dtype=np.int32)  # the last code represents missing values
    place[used] = merged
    return pd.Categorical.from_codes(place[codes], categories=pd.Index(unique, dtype=TEXT))


def with_places(trace: TraceColumns) -> TraceColumns:
    """Fill in the device and stream of device ranges that lack them, based on work with the same pid and tid.

    torch writes such ranges next to the work that they contain, but does not name their stream.
    """
    lost = np.flatnonzero(is_in(trace, DEVICE_RANGES) & (trace.device == MISSING) & (trace.stream == MISSING))
    known = np.flatnonzero(is_in(trace, DEVICE_WORK) & (trace.device != MISSING) & (trace.stream != MISSING))
    if len(lost) == 0 or len(known) == 0:
        return trace
    tracks = pd.DataFrame({"process": trace.process, "thread": trace.thread})
    first = tracks.iloc[known].drop_duplicates().rename_axis("row").reset_index()
    beside = tracks.iloc[lost].merge(first, how="left")["row"].fillna(MISSING).to_numpy(dtype=np.int64)
    device, stream = trace.device.copy(), trace.stream.copy()
    for values in (device, stream):
        values[lost] = np.where(beside == MISSING, MISSING, values[beside])
    return replace(trace, device=device, stream=stream)


def recording_of_trace(
    trace: TraceColumns, name: str, rank: int | None = None, caveats: Sequence[str] = ()
) -> Recording:
    """Make a recording from a trace, without layers except for those that perfnb wrote to it.

    Parameters
    ----------
    trace : TraceColumns
    name : str
        The file's name.
    rank : int, optional
        The rank to use if the trace does not contain one.
    caveats : sequence of str
        Notes on data that the trace's format cannot record. There are none for torch.profiler traces.
    """
    trace = with_places(trace)
    steps = steps_of(trace)
    part, meta = belongs_to_steps(trace, steps), _meta(trace, steps, name, rank)
    if caveats:
        meta["trace"]["foreign"] = True
    if caveats := [*caveats, *trace.caveats]:
        meta["trace"]["caveats"] = caveats
    if not steps.marked:
        trace, part = _with_whole_step(trace, steps), np.append(True, part)
    marks = np.full(len(trace), MISSING, dtype=np.int64)
    marks[np.maximum(steps.rows, 0)] = steps.numbers
    layers, empty = layers_read(trace.perfnb), (frame_of_rows("modules", []), frame_of_rows("spans", []))
    frames = []
    for rows in (np.flatnonzero(part), np.flatnonzero(~part)):
        frame = event_frame(trace, rows, (SPAN_CATEGORY, *PYTHON_CALLS) if layers else ())
        frame["marks_step"] = _of_rows(marks, rows)
        frames.append(frame)
    events, outside = frames
    return Recording(
        events,
        _steps_frame(trace, steps),
        *(layers or empty),
        meta,
        outside=outside if len(outside) else None,
        trace_memory=raw_frame("trace_memory", vars(trace.memory)) if len(trace.memory) else None,
    )


def _with_whole_step(trace: TraceColumns, steps: TraceSteps) -> TraceColumns:
    """Insert an event that represents the whole trace before the other events."""
    first: dict[str, Any] = {
        **{"name": len(trace.names), "category": len(trace.categories), "start_ns": steps.starts[0]},
        **{"duration_ns": steps.ends[0] - steps.starts[0], "process": steps.process, "thread": steps.thread},
    }
    columns: dict[str, Any] = {}
    for name in ("name", "category", *NUMBERS, *TEXTS):
        value, values = first.get(name, MISSING), getattr(trace, name)
        alike = values.strides == (0,) and values[0] == value
        columns[name] = _no_numbers(len(values) + 1, value) if alike else np.concatenate([[value], values])
    names, categories = [*trace.names, WHOLE_TRACE], [*trace.categories, WHOLE_TRACE]
    return replace(trace, names=names, categories=categories, **columns)


def _no_numbers(count: int, value: int = MISSING) -> Ints:
    """Return a column with a single value, which needs no memory."""
    return np.broadcast_to(np.int64(value), count)


def _steps_frame(trace: TraceColumns, steps: TraceSteps) -> pd.DataFrame:
    wall = (steps.ends - steps.starts) / 1e6
    first = steps.starts[0] if len(steps.starts) else 0
    return raw_frame(
        "steps",
        {
            "pass": ["traced"] * len(wall),
            "start_s": (steps.starts - first) / 1e9,
            "wall_ms": wall,
            "data_ms": _waits_for_data(trace, steps),
            "samples": [None] * len(wall),
            "step": steps.numbers,
        },
    )


def _waits_for_data(trace: TraceColumns, steps: TraceSteps) -> np.ndarray:
    """Return the time in milliseconds that each step spent waiting for a torch data loader on its own thread.

    A wait that extends beyond a step is counted in part.
    """
    is_wait = np.array([name.startswith(LOADER) for name in trace.names], dtype=bool)
    if not is_wait.any():
        return np.zeros(len(steps.starts))
    rows = np.flatnonzero(is_wait[trace.name] & is_in(trace, (*RANGES, *OPS)))
    rows = rows[(trace.thread[rows] == steps.thread) & (trace.process[rows] == steps.process)]
    rows = rows[np.lexsort((-trace.duration_ns[rows], trace.start_ns[rows]))]
    if len(rows) == 0:
        return np.zeros(len(steps.starts))
    reached = np.maximum.accumulate(trace.start_ns[rows] + trace.duration_ns[rows])
    outside = np.append(True, trace.start_ns[rows][1:] >= reached[:-1])  # waits may be nested
    starts, durations = trace.start_ns[rows][outside], trace.duration_ns[rows][outside]
    before = np.concatenate([[0], np.cumsum(durations)])

    def waited_until(time: Ints) -> Ints:
        place = np.searchsorted(starts, time, side="right") - 1
        within = np.minimum(time - starts[place], durations[place])
        return np.where(place >= 0, before[place] + within, 0)

    return np.asarray((waited_until(steps.ends) - waited_until(steps.starts)) / 1e6)


def _meta(trace: TraceColumns, steps: TraceSteps, name: str, rank: int | None) -> dict[str, Any]:
    own_rank = rank if trace.rank is None else trace.rank
    return {
        "name": name,
        "rank": 0 if own_rank is None else own_rank,
        "base_ns": trace.base_ns,
        "devices": trace.devices,
        "environment": {"gpus": _gpus(trace), **_date(trace)},
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


def _date(trace: TraceColumns) -> dict[str, str]:
    """Return the time when the trace starts, if its clock counts from 1970."""
    start_s = (trace.base_ns + int(trace.start_ns.min())) / 1e9 if len(trace) else 0.0
    if not _EARLIEST_S < start_s < time.time():
        return {}
    return {"at": datetime.fromtimestamp(start_s, UTC).isoformat()}


def _gpus(trace: TraceColumns) -> list[str]:
    """Return the names of the devices that ran any work, if the trace contains them.

    The device numbers of events do not always match those in the trace's list of devices. A name is therefore only
    certain if all devices in the list have the same name.
    """
    used = np.unique(trace.device[is_in(trace, DEVICE_EVENTS)]) if len(trace) else np.array([], dtype=np.int64)
    by_number: dict[Any, Any] = {device.get("id"): device.get("name") for device in trace.devices if _plain(device)}
    kinds = {name for name in by_number.values() if name}
    only = kinds.pop() if len(kinds) == 1 else None
    return [str(by_number.get(number) or only or f"GPU {number}") for number in used.tolist() if number != MISSING]


def _plain(device: dict[str, Any]) -> bool:
    return isinstance(device.get("id"), int) and isinstance(device.get("name"), str)


def rows_of_trace(events: pd.DataFrame) -> Ints:
    """Return the positions of the events in the trace, except the step that represents the whole trace."""
    if "marks_step" not in events:
        return np.arange(len(events))
    stands_for_it = (events["category"] == WHOLE_TRACE) & (events["marks_step"] != MISSING)
    return np.flatnonzero(~stands_for_it.to_numpy(dtype=bool))


def with_module_layers(recording: Recording) -> Recording:
    """Add the layers that a trace's module calls imply. If there are none, return the recording unchanged.

    Each module becomes one layer, regardless of how often it is called, and its parent is the layer that called it
    first. The layer's name is the path to it, such as ``ResNet_0.Sequential_1.BasicBlock_2``, or the name in the model
    if Lightning recorded it. A top-level module whose class name ends in ``Loss`` is the loss.
    """
    if len(recording.modules):
        return recording  # perfnb wrote the trace, with its layers
    events = recording.events
    for pattern, categories in ((_CALL, PYTHON_CALLS), (_LIGHTNING, RANGES)):
        rows = np.flatnonzero(found(events["name"], pattern.fullmatch) & is_one_of(events["category"], categories))
        if len(rows):
            return _of_calls(recording, rows, pattern)
    return recording


def _of_calls(recording: Recording, rows: Ints, pattern: re.Pattern[str]) -> Recording:
    """Add the layers whose calls are in these rows. A name from Lightning is already the layer's full path."""
    calls, whole = recording.events.iloc[rows], pattern is _LIGHTNING
    start = calls["start_ns"].to_numpy()
    thread = np.asarray(calls.groupby(["process", "thread"]).ngroup(), dtype=np.int64)
    forest, _ = nest_cutting(thread, start, start + calls["duration_ns"].to_numpy())
    order = np.lexsort((forest.depth, start))  # outer calls first
    key = calls.groupby(["process", "name"], sort=False, observed=True).ngroup().to_numpy()
    module = np.empty(len(rows), dtype=np.int64)
    module[order], _ = pd.factorize(key[order])
    first = order[np.unique(module[order], return_index=True)[1]]  # the first call of each module
    above = forest.parent[first]
    parent = np.where(above != NONE, module[above], NONE)
    matches = [match for name in calls["name"].iloc[first] if (match := pattern.fullmatch(str(name)))]
    labels = [match["name"] for match in matches]
    kinds = [match["kind"] if whole else _NUMBER.sub("", match["name"]) for match in matches]
    loss = np.array([kind.endswith("Loss") for kind in kinds])[module] & (forest.parent == NONE)
    for level in forest.by_depth()[1:]:
        loss[level] |= loss[forest.parent[level]]  # everything inside a loss belongs to the loss
    kept = np.unique(module[~loss])
    place = np.full(len(labels) + 1, NONE, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    labels, kinds, parents = [labels[old] for old in kept], [kinds[old] for old in kept], place[parent[kept]].tolist()
    depth = _depths(parents)
    letters: list[int] = []
    for text, outer in zip(labels, parents, strict=True):
        letters.append(len(text) if outer == NONE or whole else letters[outer] + 1 + len(text))
    refuse_odd_layers(depth, sum(letters), recording.meta["trace"]["file"])  # each name contains those around it
    columns = {"name": _names(labels, parents, whole), "module": kinds, "parent": parents, "depth": depth}
    unknown = {"parameters": [None] * len(kept), "parameter_bytes": [None] * len(kept), "compiled": [False] * len(kept)}
    modules = raw_frame("modules", columns | unknown)
    columns = {"span": range(len(rows)), "layer": np.where(loss, NONE, place[module]), "loss": loss}
    spans = raw_frame("spans", columns | {"derived": np.zeros(len(rows), dtype=bool)})
    numbers = np.full(len(recording.events), NONE, dtype=np.int64)
    numbers[rows] = np.arange(len(rows))
    return replace(recording, events=recording.events.assign(span=numbers), modules=modules, spans=spans)


def _depths(parents: Sequence[int]) -> list[int]:
    """Return each layer's depth, given the row of each layer's parent. Parents must come first."""
    depth: list[int] = []
    for row, above in enumerate(parents):
        if not MISSING <= above < row:
            raise ValueError("parents come first")
        depth.append(0 if above == MISSING else depth[above] + 1)
    return depth


def _names(label: list[str], parent: list[int], whole: bool) -> list[str]:
    """Return the path to each layer. Layers from several processes are distinguished by a number."""
    names: list[str] = []
    taken: dict[str, int] = {}
    for text, above in zip(label, parent, strict=True):
        name = text if above == NONE or whole else f"{names[above]}.{text}"
        taken[name] = taken.get(name, 0) + 1
        names.append(name if taken[name] == 1 else f"{name} ({taken[name]})")
    return names


_Whole = Annotated[int, Meta(gt=-(2**31), lt=2**62)]


class _Modules(Struct):
    name: list[str]
    module: list[str | None]
    parent: list[_Whole]
    parameters: list[_Whole | None]
    parameter_bytes: list[_Whole | None]
    compiled: list[bool]


class _Spans(Struct):
    span: list[_Whole]
    layer: list[_Whole]
    loss: list[bool]
    derived: list[bool] | None = None


class _Written(Struct):
    version: Literal[1]
    modules: _Modules
    spans: _Spans


def layers_written(recording: Recording) -> dict[str, Any]:
    """Return a recording's layers and spans, ready to be written as JSON."""
    modules = recording.modules.drop(columns="depth").astype(object)
    return {
        "version": 1,
        "modules": modules.where(modules.notna(), None).to_dict("list"),
        "spans": recording.spans[["layer", "loss"]]
        .assign(derived=recording.derived_spans)
        .reset_index(names="span")
        .to_dict("list"),
    }


def layers_read(written: Any) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Return a recording's tables ``modules`` and ``spans``, or ``None`` if perfnb did not write them."""
    try:
        whole = msgspec.convert(written, _Written)
        its, calls = msgspec.structs.asdict(whole.modules), whole.spans
        if len(set(map(len, its.values()))) > 1 or len(set(calls.span)) < len(calls.span):
            return None
        modules = raw_frame("modules", its | {"depth": _depths(its["parent"])})
        derived = [False] * len(calls.span) if calls.derived is None else calls.derived  # missing in earlier versions
        spans = raw_frame("spans", msgspec.structs.asdict(calls) | {"derived": derived})
    except (msgspec.MsgspecError, ValueError, OverflowError):
        return None
    return (modules, spans) if spans["layer"].between(MISSING, len(modules) - 1).all() else None
