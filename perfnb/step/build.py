"""From a capture to a recording: read the traces, keep what belongs to the steps, name what perfnb named."""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfnb.recording.events import no_events, read_trace, steps_of_trace
from perfnb.recording.recording import ArithmeticRecord, Recording, WatchRecord
from perfnb.recording.samples import watch_record
from perfnb.recording.text import TEXT
from perfnb.step.arithmetic import OpCall
from perfnb.step.memory_frames import memory_record
from perfnb.step.run import Capture
from perfnb.step.tracer import Tracer
from perfnb.telemetry.watcher import Watcher
from perfnb.trace.kineto import MISSING
from perfnb.trace.storable import storable


def recording_of(capture: Capture, name: str, watcher: Watcher | None = None) -> Recording:
    """The recording of a capture, which is closed, with what a watcher read meanwhile.

    Raises
    ------
    CaptureError
        If the trace does not hold the traced steps.
    """
    try:
        trace = None if capture.tracer is None else read_trace(capture.tracer)
        memory = None if capture.memory is None else memory_record(*capture.memory, capture.places)
        arithmetic = None if capture.arithmetic is None else _arithmetic(*capture.arithmetic)
    finally:
        capture.close()
    zero = capture.steps[0].begin_ns if capture.steps else 0
    passes = np.array([step.pass_name for step in capture.steps], dtype=object)
    steps = pd.DataFrame(
        {
            "pass": pd.Categorical(passes),
            "start_s": np.array([(step.begin_ns - zero) / 1e9 for step in capture.steps], dtype=np.float64),
            "wall_ms": np.array([step.wall_ns / 1e6 for step in capture.steps], dtype=np.float64),
            "data_ms": np.array([step.data_ns / 1e6 for step in capture.steps], dtype=np.float64),
            "samples": pd.array([step.samples for step in capture.steps], dtype="Int64"),
            "step": pd.Series(np.cumsum(passes == "traced") - 1, dtype="Int64").where(passes == "traced"),
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
    events = no_events() if trace is None else steps_of_trace(trace)[0]
    watch: WatchRecord | None = None
    if watcher is not None:
        # One time for both: the first step's begin is 0.
        watch = watch_record(watcher.columns(), [], (watcher.zero_ns - zero) / 1e9)
        meta["watch"] = watcher.meta
    return Recording(events, steps, _modules(capture), spans, meta, memory, arithmetic, watch)


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
    return ArithmeticRecord(steps_of_trace(read_trace(tracer))[0], frame)


def _modules(capture: Capture) -> pd.DataFrame:
    layers = capture.layers
    depth: list[int] = []
    for layer in layers:  # parents come first
        depth.append(0 if layer.parent is None else depth[layer.parent] + 1)
    return pd.DataFrame(
        {
            "name": pd.Series([storable(layer.name) for layer in layers], dtype=TEXT),
            "module": pd.Series([storable(layer.module) for layer in layers], dtype=TEXT),
            "parent": np.array([MISSING if layer.parent is None else layer.parent for layer in layers], dtype=np.int64),
            "depth": np.array(depth, dtype=np.int64),
            "parameters": np.array([layer.parameters for layer in layers], dtype=np.int64),
            "parameter_bytes": np.array([layer.parameter_bytes for layer in layers], dtype=np.int64),
            "compiled": np.array([layer.compiled for layer in layers], dtype=bool),
        }
    )
