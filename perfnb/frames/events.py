"""The events of a trace's steps, as frames."""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfnb.capture.layers import LABEL, SPAN_CATEGORY
from perfnb.capture.tracer import STEP_SPAN, Tracer
from perfnb.errors import CaptureError, TraceError
from perfnb.traces import kineto
from perfnb.traces.kineto import MISSING, Ints, TraceColumns

#: What torch's C++ exporter writes for a name outside ASCII.
_LOST_NAME = "unknown"
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync")


def read_trace(tracer: Tracer) -> TraceColumns:
    """The columns of a session's trace."""
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


def steps_of_trace(trace: TraceColumns) -> tuple[pd.DataFrame, Ints]:
    """The events inside the steps of a trace, and the place that each has in it.

    What runs on the host is inside by its time, what runs on a device by the launch that it follows.

    Raises
    ------
    CaptureError
        If the trace holds no step.
    """
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


def no_events() -> pd.DataFrame:
    """The events of a recording without a traced step."""
    text = pd.Categorical.from_codes([], categories=pd.Index([], dtype="str"))
    numbers = (
        *("start_ns", "duration_ns", "thread", "device", "stream", "correlation"),
        *("sequence", "forward_thread", "span"),
    )
    empty = np.array([], dtype=np.int64)
    return pd.DataFrame({"name": text, "category": text} | dict.fromkeys(numbers, empty))


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
