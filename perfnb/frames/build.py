"""From a capture to a recording: read the trace, keep what belongs to the traced steps, name what perfnb named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from perfnb.capture.arithmetic import OpCall
from perfnb.capture.layers import LABEL, SPAN_CATEGORY
from perfnb.capture.memory import MARK, WatchedMemory
from perfnb.capture.run import Capture
from perfnb.capture.tracer import STEP_SPAN, Tracer
from perfnb.errors import CaptureError, TraceError
from perfnb.frames.recording import ArithmeticRecord, MemoryRecord, Recording
from perfnb.traces import kineto
from perfnb.traces.kineto import MISSING, Ints, TraceColumns

#: What torch's C++ exporter writes for a name outside ASCII.
_LOST_NAME = "unknown"
#: Name and category of an allocation or a free among the events.
CHANGE_NAME, CHANGE_CATEGORY = "[memory]", "memory"
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync")


def recording_of(capture: Capture, name: str) -> Recording:
    """The recording of a capture, which is closed.

    Raises
    ------
    CaptureError
        If the trace does not hold the traced steps.
    """
    try:
        trace = None if capture.tracer is None else _read(capture.tracer)
        memory = None if capture.memory is None else _memory(*capture.memory, capture)
        arithmetic = None if capture.arithmetic is None else _arithmetic(*capture.arithmetic)
    finally:
        capture.close()
    steps = pd.DataFrame(
        {
            "pass": pd.Categorical([step.pass_name for step in capture.steps]),
            "wall_ms": np.array([step.wall_ns / 1e6 for step in capture.steps], dtype=np.float64),
            "data_ms": np.array([step.data_ns / 1e6 for step in capture.steps], dtype=np.float64),
            "samples": pd.array([step.samples for step in capture.steps], dtype="Int64"),
        }
    )
    spans = pd.DataFrame(
        {
            "layer": np.array([MISSING if layer is None else layer for _, layer, _ in capture.spans], dtype=np.int64),
            "loss": np.array([loss for _, _, loss in capture.spans], dtype=bool),
        },
        index=pd.Index([number for number, _, _ in capture.spans], dtype="int64", name="span"),
    )
    meta = dict(capture.meta) | {"name": name, "rank": 0}
    if capture.memory is not None:
        meta["allocator"] = capture.memory[0].allocator
    if trace is not None:
        meta |= {"base_ns": trace.base_ns, "devices": trace.devices}
    events = no_events() if trace is None else steps_of_trace(trace)
    return Recording(events, steps, _modules(capture), spans, meta, memory, arithmetic)


def _read(tracer: Tracer) -> TraceColumns:
    trace: TraceColumns | None = None
    try:
        trace = kineto.decode(tracer.export())
        if _LOST_NAME not in trace.names:
            return trace
    except TraceError:
        pass  # a name with a quote in it; the slow exporter writes it right
    try:
        return kineto.decode(tracer.export(exact=True))
    except CaptureError:
        if trace is None:
            raise
        return trace  # an older torch: all but the names outside ASCII is there


def _memory(watched: WatchedMemory, tracer: Tracer, capture: Capture) -> MemoryRecord:
    """The changes of memory as events among the others, and what was known of blocks with times instead of marks."""
    trace = _read(tracer)
    changes = trace.memory
    instants = len(changes)
    nowhere = np.full(instants, MISSING, dtype=np.int64)
    fields = {
        "name": (np.full(instants, len(trace.names)), trace.name),
        "category": (np.full(instants, len(trace.categories)), trace.category),
        "start_ns": (changes.time_ns, trace.start_ns),
        "duration_ns": (np.zeros(instants, dtype=np.int64), trace.duration_ns),
        "thread": (changes.thread, trace.thread),
    }
    others = ("device", "stream", "correlation", "sequence", "forward_thread")
    columns: dict[str, Any] = {name: np.concatenate([a.astype(np.int64), b]) for name, (a, b) in fields.items()}
    columns |= {name: np.concatenate([nowhere, getattr(trace, name)]) for name in others}
    names, categories = [*trace.names, CHANGE_NAME], [*trace.categories, CHANGE_CATEGORY]
    merged = replace(trace, names=names, categories=categories, **columns)
    events, rows = _steps_of_trace(merged)
    place = np.full(instants, MISSING, dtype=np.int64)
    is_change = rows < instants
    place[rows[is_change]] = np.flatnonzero(is_change)
    cpu = changes.device_type == 0
    device = np.array([f"cuda:{index}" for index in range(int(changes.device.max(initial=0)) + 1)], dtype=object)
    labels = np.where(cpu, "cpu", device[np.maximum(changes.device, 0)])
    marks = {
        int(trace.names[code].removeprefix(MARK)): int(start)
        for code, start in zip(trace.name.tolist(), trace.start_ns.tolist(), strict=True)
        if trace.names[code].startswith(MARK) and trace.names[code].removeprefix(MARK).isdecimal()
    }
    known = [block for block in watched.known if block.mark in marks]
    layers = [MISSING if block.module is None else capture.places.get(block.module, MISSING) for block in known]
    begins = sorted(trace.start_ns[[trace.names[code].startswith(STEP_SPAN) for code in trace.name]].tolist())
    # The two clocks run alike; where the first step began on both says how far they are apart.
    shift = begins[0] - watched.step_begins[0] if begins and watched.step_begins else 0
    return MemoryRecord(
        events,
        pd.DataFrame(
            {
                "event": place,
                "time_ns": changes.time_ns,
                "address": changes.address,
                "bytes": changes.bytes,
                "device": pd.Categorical(labels),
                "allocated": np.where(cpu, MISSING, changes.allocated),
                "reserved": np.where(cpu, MISSING, changes.reserved),
            }
        ),
        pd.DataFrame(
            {
                "time_ns": np.array([marks[block.mark] for block in known], dtype=np.int64),
                "address": np.array([block.address for block in known], dtype=np.int64),
                "bytes": np.array([block.bytes for block in known], dtype=np.int64),
                "device": pd.Categorical([block.device for block in known]),
                "category": pd.Categorical([block.category for block in known]),
                "layer": np.array(layers, dtype=np.int64),
                "name": pd.Series([block.name for block in known], dtype="object"),
            }
        ),
        pd.DataFrame(
            {
                "time_ns": np.array([moment + shift for moment, _ in watched.resident], dtype=np.int64),
                "bytes": np.array([size for _, size in watched.resident], dtype=np.int64),
            }
        ),
    )


def _arithmetic(calls: list[OpCall], tracer: Tracer) -> ArithmeticRecord:
    frame = pd.DataFrame(
        {
            "op": pd.Categorical([call.op for call in calls]),
            "flops": pd.array([call.flops for call in calls], dtype="Int64"),
            "bytes": np.array([call.bytes for call in calls], dtype=np.int64),
            "dtype": pd.Categorical([call.dtype for call in calls]),
        },
        index=pd.Index([call.number for call in calls], dtype="int64", name="number"),
    )
    return ArithmeticRecord(steps_of_trace(_read(tracer)), frame)


def _modules(capture: Capture) -> pd.DataFrame:
    layers = capture.layers
    depth: list[int] = []
    for layer in layers:  # parents come first
        depth.append(0 if layer.parent is None else depth[layer.parent] + 1)
    return pd.DataFrame(
        {
            "name": pd.Series([layer.name for layer in layers], dtype="str"),
            "module": pd.Series([layer.module for layer in layers], dtype="str"),
            "parent": np.array([MISSING if layer.parent is None else layer.parent for layer in layers], dtype=np.int64),
            "depth": np.array(depth, dtype=np.int64),
            "parameters": np.array([layer.parameters for layer in layers], dtype=np.int64),
            "parameter_bytes": np.array([layer.parameter_bytes for layer in layers], dtype=np.int64),
            "compiled": np.array([layer.compiled for layer in layers], dtype=bool),
        }
    )


def steps_of_trace(trace: TraceColumns) -> pd.DataFrame:
    """The events inside the steps of a trace, on the host by time, on a device by the launch that they follow."""
    return _steps_of_trace(trace)[0]


def no_events() -> pd.DataFrame:
    """The events of a recording without a traced step."""
    text = pd.Categorical.from_codes([], categories=pd.Index([], dtype="str"))
    numbers = (
        *("start_ns", "duration_ns", "thread", "device", "stream", "correlation"),
        *("sequence", "forward_thread", "span"),
    )
    empty = np.array([], dtype=np.int64)
    return pd.DataFrame({"name": text, "category": text} | dict.fromkeys(numbers, empty))


def _steps_of_trace(trace: TraceColumns) -> tuple[pd.DataFrame, Ints]:
    """The events inside the steps, and the place that each has in the trace."""
    categories = np.array(trace.categories)
    may_be_ours = (categories == SPAN_CATEGORY)[trace.category]
    is_step = np.array([name.startswith(STEP_SPAN) for name in trace.names], dtype=bool)[trace.name] & may_be_ours
    if not is_step.any():
        raise CaptureError(
            "The trace holds none of the traced steps: torch's profiler lost them; profile again, and if it stays so, "
            "look for another profiler or tracer in the step."
        )
    on_device = np.isin(categories, _ON_DEVICE)[trace.category]
    inside = _inside(trace.start_ns, trace.start_ns[is_step], trace.start_ns[is_step] + trace.duration_ns[is_step])
    launches = np.unique(trace.correlation[inside & ~on_device & (trace.correlation != MISSING)])
    correlated = trace.correlation != MISSING
    keep = np.where(on_device & correlated, np.isin(trace.correlation, launches), inside)
    rows = np.flatnonzero(keep)
    names, span = _names(trace)
    events = pd.DataFrame(
        {
            "name": _categorical(names, trace.name[rows]),
            "category": _categorical(trace.categories, trace.category[rows]),
            "start_ns": trace.start_ns[rows],
            "duration_ns": trace.duration_ns[rows],
            "thread": trace.thread[rows],
            "device": trace.device[rows],
            "stream": trace.stream[rows],
            "correlation": trace.correlation[rows],
            "sequence": trace.sequence[rows],
            "forward_thread": trace.forward_thread[rows],
            "span": np.where(may_be_ours, span[trace.name], MISSING)[rows],
        }
    )
    return events, rows


def _inside(times: Ints, begins: Ints, ends: Ints) -> np.ndarray:
    """Whether each time lies in one of the disjoint windows."""
    order = np.argsort(begins)
    place = np.searchsorted(begins[order], times, side="right") - 1
    return (place >= 0) & (times < ends[order][place])


def _names(trace: TraceColumns) -> tuple[list[str], Ints]:
    """Names with the layer spans' numbers taken off, and the number of the span that each name code stands for."""
    numbers = np.full(len(trace.names), MISSING, dtype=np.int64)
    names = list(trace.names)
    for code, name in enumerate(names):
        if name.startswith(LABEL) and name[len(LABEL) :].isdecimal():
            numbers[code] = int(name[len(LABEL) :])
            names[code] = LABEL
    return names, numbers


def _categorical(labels: list[str], codes: Ints) -> pd.Categorical:
    """Codes with their labels; equal labels become one, unused ones go."""
    used, codes = np.unique(codes, return_inverse=True)
    unique, merged = np.unique(np.array([labels[code] for code in used], dtype=object), return_inverse=True)
    return pd.Categorical.from_codes(merged[codes], categories=pd.Index(unique, dtype="str"))
