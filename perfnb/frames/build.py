"""From a capture to a recording: read the trace, keep what belongs to the traced steps, name what perfnb named."""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfnb.capture.layers import LABEL, SPAN_CATEGORY
from perfnb.capture.run import Capture
from perfnb.capture.tracer import STEP_SPAN
from perfnb.errors import CaptureError, TraceError
from perfnb.frames.recording import Recording
from perfnb.traces import kineto
from perfnb.traces.kineto import MISSING, Ints, TraceColumns

#: What torch's C++ exporter writes for a name outside ASCII.
_LOST_NAME = "unknown"
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync")


def recording_of(capture: Capture, name: str) -> Recording:
    """The recording of a capture, which is closed.

    Raises
    ------
    CaptureError
        If the trace does not hold the traced steps.
    """
    try:
        trace = _read(capture)
    finally:
        capture.close()
    steps = pd.DataFrame(
        {
            "pass": pd.Categorical([step.pass_name for step in capture.steps]),
            "wall_ms": [step.wall_ns / 1e6 for step in capture.steps],
            "data_ms": [step.data_ns / 1e6 for step in capture.steps],
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
    meta = dict(capture.meta) | {"name": name, "base_ns": trace.base_ns, "devices": trace.devices, "rank": 0}
    return Recording(_events(trace), steps, _modules(capture), spans, meta)


def _read(capture: Capture) -> TraceColumns:
    trace: TraceColumns | None = None
    try:
        trace = kineto.decode(capture.tracer.export())
        if _LOST_NAME not in trace.names:
            return trace
    except TraceError:
        pass  # a name with a quote in it; the slow exporter writes it right
    try:
        return kineto.decode(capture.tracer.export(exact=True))
    except CaptureError:
        if trace is None:
            raise
        return trace  # an older torch: all but the names outside ASCII is there


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


def _events(trace: TraceColumns) -> pd.DataFrame:
    """The events inside the traced steps, on the host by time, on a device by the launch that they follow."""
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
    return pd.DataFrame(
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
