"""Convert a capture to a recording: read its traces, select the events inside steps, and build the data frames."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from perfnb.arguments import storable
from perfnb.errors import CaptureError
from perfnb.recording.compiled_layers import graph_keys, region_ids, with_compiled_regions
from perfnb.recording.from_trace import event_frame
from perfnb.recording.raw_frames import NUMBERS, TEXTS, frame_of_rows, raw_frame
from perfnb.recording.recording import ArithmeticRecord, MemoryRecord, PythonRecord, Recording
from perfnb.recording.samples import watch_record
from perfnb.recording.text import TEXT
from perfnb.step.arithmetic import OpCall
from perfnb.step.capture import Capture
from perfnb.step.compiler import compiled_code, compiled_graphs, missing_names, objects_are_frozen
from perfnb.step.data_waits import ExecutedStep, total
from perfnb.step.environment import place_in_job
from perfnb.step.layers import Layer
from perfnb.step.memory import Known, WatchedMemory
from perfnb.step.stack_sampler import StackSampler
from perfnb.step.tracer import Tracer
from perfnb.telemetry.watcher import Watcher
from perfnb.trace.columns import MISSING, Ints, TraceColumns
from perfnb.trace.trace_steps import is_in, numbered_spans, steps_of_events
from perfnb.trace_names import DEVICE_EVENTS, DEVICE_KINDS, MARK_SPAN, OPS, STEP_SPAN

#: The name and category used for allocations and frees in the table of events.
CHANGE_NAME, CHANGE_CATEGORY = "[memory]", "memory"


def recording_of(capture: Capture, name: str, watcher: Watcher | None = None) -> Recording:
    """Return the recording of a capture, along with a watcher's telemetry, and close the capture.

    Raises
    ------
    CaptureError
        If the trace does not contain the traced steps.
    """
    try:
        trace = None if capture.tracer is None else capture.tracer.read()
        memory = None if capture.memory is None else _memory(*capture.memory, capture.places)
        arithmetic = None if capture.arithmetic is None else _arithmetic(*capture.arithmetic)
    finally:
        capture.close()
    spans = frame_of_rows(
        "spans", [(number, MISSING if layer is None else layer, loss, False) for number, layer, loss in capture.spans]
    )
    meta = dict(capture.meta) | {"name": name, "rank": 0}
    if (job := place_in_job()) is not None:
        meta |= {"rank": job["rank"], "job": job}
    timed = [step for step in capture.steps if step.pass_name == "timed"]
    if (tokens := total([step.tokens for step in timed])) is not None:
        meta["tokens"] = tokens
    if timed and (usual := statistics.mode(step.batches for step in timed)) > 1:
        meta["batches"] = usual
    if capture.memory is not None:
        meta["allocator"] = capture.memory[0].allocator
    if trace is not None:
        meta |= {"base_ns": trace.base_ns, "devices": trace.devices}
    events = _no_events() if trace is None else _steps_of_trace(trace)[0]
    if region_ids(events) and (missing := missing_names()):
        meta["compiler_lacks"] = missing[0]
    if region_ids(events) and objects_are_frozen():
        meta["frozen"] = True
    steps = _steps(capture)
    if trace is not None:
        # A traced step lasts as long as its mark, which is the sum of its phases, or longer if it waits for a device.
        marks = _last_of_each(trace, STEP_SPAN)
        marked_ms = steps["step"].map({number: trace.duration_ns[row] / 1e6 for number, row in marks.items()})
        steps["wall_ms"] = np.fmax(steps["wall_ms"], marked_ms.astype("float64"))
    recording = Recording(events, steps, _modules(capture.layers), spans, meta, memory, arithmetic)
    code = compiled_code(region_ids(events), capture.called)
    recording = with_compiled_regions(recording, compiled_graphs(graph_keys(events)), code)
    return with_later(recording, capture, watcher)


def with_later(recording: Recording, capture: Capture, watcher: Watcher | None = None) -> Recording:
    """Return the recording with results that became available later: sampled steps, and telemetry from a watcher."""
    meta, steps, watch, python = dict(recording.meta), _steps(capture), recording.watch, recording.python
    steps["wall_ms"] = recording.steps["wall_ms"].reindex(steps.index).fillna(steps["wall_ms"])
    if watcher is not None:
        # Both clocks start at the first step.
        zero = capture.steps[0].begin_ns if capture.steps else 0
        watch = watch_record(watcher.columns(), [], (watcher.zero_ns - zero) / 1e9)
        meta["watch"] = watcher.meta
    if capture.sampler is not None:
        python = _python(capture, capture.sampler)
        meta["python"] = {
            "steps": int((steps["pass"] == "sampled").sum()),
            "samples": int(python.tree["samples"].sum()),
            "workers": len({stack.worker for stack in capture.workers}),
            "unreached_workers": capture.unreached_workers,
        }
    return replace(recording, steps=steps, meta=meta, watch=watch, python=python)


def _steps(capture: Capture) -> pd.DataFrame:
    executed = pd.DataFrame(capture.steps, columns=ExecutedStep._fields)
    begin_ns, traced = executed["begin_ns"].astype("int64"), executed["pass_name"] == "traced"
    return raw_frame(
        "steps",
        {
            "pass": executed["pass_name"].tolist(),
            "start_s": (begin_ns - begin_ns.min()) / 1e9,
            "wall_ms": executed["wall_ns"].astype("float64") / 1e6,
            "data_ms": executed["data_ns"].astype("float64") / 1e6,
            "samples": executed["samples"].astype("Int64"),
            "step": (traced.cumsum() - 1).astype("Int64").where(traced),
        },
    )


def _steps_of_trace(trace: TraceColumns) -> tuple[pd.DataFrame, Ints]:
    """Return the events inside the steps of a trace, and their positions in the trace.

    GPU work is excluded if its launch is not in the trace, because it was launched before the steps.

    Raises
    ------
    CaptureError
        If the trace does not contain a step.
    """
    marks = np.array(list(_last_of_each(trace, STEP_SPAN).values()), dtype=np.int64)
    if len(marks) == 0:
        raise CaptureError(
            "The trace does not contain any of the traced steps: torch's profiler lost them. Profile again. If this "
            "happens repeatedly, check whether the step uses another profiler or tracer."
        )
    step = steps_of_events(trace, trace.start_ns[marks], trace.start_ns[marks] + trace.duration_ns[marks])
    on_device = is_in(trace, DEVICE_EVENTS)
    launches = np.append(trace.correlation[~on_device], MISSING)
    rows = np.flatnonzero((step != MISSING) & ~(on_device & ~np.isin(trace.correlation, launches)))
    return event_frame(trace, rows, OPS), rows


def _no_events() -> pd.DataFrame:
    """Return the table of events for a recording that does not contain a traced step."""
    text = pd.Categorical.from_codes([], categories=pd.Index([], dtype=TEXT))
    empty = np.array([], dtype=np.int64)
    texts, numbers = dict.fromkeys(TEXTS, text), dict.fromkeys(NUMBERS, empty)
    return pd.DataFrame({"name": text, "category": text} | numbers | texts | {"span": empty})


def _arithmetic(calls: list[OpCall], tracer: Tracer) -> ArithmeticRecord:
    frame = frame_of_rows(
        "arithmetic_calls", [(call.number, call.op, call.flops, call.bytes, call.dtype) for call in calls]
    )
    return ArithmeticRecord(_steps_of_trace(tracer.read())[0], frame)


def _python(capture: Capture, sampler: StackSampler) -> PythonRecord:
    calls = sampler.calls(capture.layers, capture.places, capture.workers)
    rows = [
        (call.parent, call.kind, *map(storable, (call.name, call.file)), call.line, storable(call.code), *call[6:])
        for call in calls
    ]
    return PythonRecord(frame_of_rows("python_tree", rows))


def _modules(layers: Sequence[Layer]) -> pd.DataFrame:
    depth: list[int] = []
    for layer in layers:  # parents come first
        depth.append(0 if layer.parent is None else depth[layer.parent] + 1)
    return frame_of_rows(
        "modules",
        [
            (
                storable(layer.name),
                storable(layer.module),
                MISSING if layer.parent is None else layer.parent,
                depth[place],
                *(layer.parameters, layer.parameter_bytes, layer.compiled),
            )
            for place, layer in enumerate(layers)
        ],
    )


def _memory(watched: WatchedMemory, tracer: Tracer, places: Mapping[int, int]) -> MemoryRecord:
    """Return a record that includes memory changes among the events, and times instead of marks for known blocks.

    Parameters
    ----------
    watched : WatchedMemory
        The results of watching memory.
    tracer : Tracer
        The session that recorded memory.
    places : mapping of int to int
        The row of each layer, keyed by the ``id`` of its module.
    """
    trace = tracer.read()
    marks = _moments(trace, MARK_SPAN)
    known = [(marks[mark], block) for mark, block in watched.known if mark in marks]
    # The offset between the two clocks is computed from the start of the first step.
    begin = min(_moments(trace, STEP_SPAN).values(), default=None)
    shift = begin - watched.step_begins[0] if begin is not None and watched.step_begins else 0
    events, place = _with_changes(trace)
    resident = np.array(watched.resident, dtype=np.int64).reshape(-1, 2)
    return MemoryRecord(
        events,
        _changes(trace, place),
        _known(known, places),
        raw_frame("memory_resident", {"time_ns": resident[:, 0] + shift, "bytes": resident[:, 1]}),
    )


def _moments(trace: TraceColumns, label: str) -> dict[int, int]:
    """Return the start of each perfnb span with the given label, keyed by the span's number."""
    return {number: int(trace.start_ns[row]) for number, row in _last_of_each(trace, label).items()}


def _last_of_each(trace: TraceColumns, label: str) -> dict[int, int]:
    """Return the row of each perfnb span with the given label, keyed by the span's number.

    If two spans have the same number, the first one belongs to a step that did not take place.
    """
    rows, numbers = numbered_spans(trace, label, OPS)
    order = np.argsort(trace.start_ns[rows], kind="stable")
    return dict(zip(numbers[order].tolist(), rows[order].tolist(), strict=True))


def _with_changes(trace: TraceColumns) -> tuple[pd.DataFrame, Ints]:
    """Add the memory changes in a trace to the events inside its steps.

    Return the events, and the row of each memory change among them, or -1 if it is not inside a step.
    """
    changes = trace.memory
    instants = len(changes)
    nowhere = np.full(instants, MISSING, dtype=np.int64)
    fields: dict[str, tuple[Any, Ints]] = {
        "name": (np.full(instants, len(trace.names)), trace.name),
        "category": (np.full(instants, len(trace.categories)), trace.category),
        "start_ns": (changes.time_ns, trace.start_ns),
        "duration_ns": (np.zeros(instants, dtype=np.int64), trace.duration_ns),
        "thread": (changes.thread, trace.thread),
    }
    on_host = is_in(trace, OPS)
    process = trace.process[on_host][:1] if on_host.any() else [MISSING]  # a live profile belongs to one process
    fields["process"] = (np.repeat(process, instants), trace.process)
    others = (*(name for name in NUMBERS if name not in fields), *TEXTS)
    columns: dict[str, Any] = {
        name: np.concatenate([np.asarray(a, dtype=np.int64), b]) for name, (a, b) in fields.items()
    }
    columns |= {name: np.concatenate([nowhere, getattr(trace, name)]) for name in others}
    names, categories = [*trace.names, CHANGE_NAME], [*trace.categories, CHANGE_CATEGORY]
    events, rows = _steps_of_trace(replace(trace, names=names, categories=categories, **columns))
    place = nowhere.copy()
    is_change = rows < instants
    place[rows[is_change]] = np.flatnonzero(is_change)
    return events, place


def _changes(trace: TraceColumns, place: Ints) -> pd.DataFrame:
    changes = trace.memory
    cpu = changes.device_type == 0
    places = list(zip(changes.device_type.tolist(), changes.device.tolist(), strict=True))
    names = {place: _device_name(*place) for place in dict.fromkeys(places)}
    return raw_frame(
        "memory_changes",
        {
            "event": place,
            "time_ns": changes.time_ns,
            "address": changes.address,
            "bytes": changes.bytes,
            "device": [names[place] for place in places],
            "allocated": np.where(cpu, MISSING, changes.allocated),
            "reserved": np.where(cpu, MISSING, changes.reserved),
        },
    )


def _device_name(kind: int, index: int) -> str:
    """Return torch's name for a device, such as ``cuda:0``. The CPU does not have a number."""
    return "cpu" if kind == 0 else f"{DEVICE_KINDS.get(kind, f'device of type {kind}')}:{max(index, 0)}"


def _known(known: Sequence[tuple[int, Known]], places: Mapping[int, int]) -> pd.DataFrame:
    """Return the blocks with a known owner, along with the time at which each block was found."""
    rows = [
        (time, *block[:4], places.get(block.module or 0, MISSING), block.name and storable(block.name))
        for time, block in known
    ]
    return frame_of_rows("memory_known", rows)
