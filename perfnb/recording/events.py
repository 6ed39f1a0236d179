"""The events of a trace's steps, as frames."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from perfnb.errors import CaptureError, TraceError
from perfnb.recording.event_frame import NUMBERS, TEXTS, event_frame, inside, span_names
from perfnb.recording.text import TEXT
from perfnb.step.layers import SPAN_CATEGORY
from perfnb.step.tracer import STEP_SPAN, Tracer
from perfnb.trace import kineto
from perfnb.trace.kineto import MISSING, Ints, TraceColumns
from perfnb.trace.trace_steps import ON_DEVICE

#: What torch's C++ exporter writes for a name outside ASCII.
_LOST_NAME = "unknown"


def read_trace(tracer: Tracer) -> TraceColumns:
    """The columns of a session's trace.

    Sequence numbers count the operators of one thread. Those of backward nodes whose operators ran in a thread that was
    not recorded are left out: the same numbers stand at other operators.
    """
    trace = _decoded(tracer)
    unseen = (trace.forward_thread > 0) & ~np.isin(trace.forward_thread, list(tracer.threads()))
    return replace(trace, sequence=np.where(unseen, MISSING, trace.sequence)) if unseen.any() else trace


def _decoded(tracer: Tracer) -> TraceColumns:
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
    on_device = np.isin(categories, ON_DEVICE)[trace.category]
    in_step = inside(trace.start_ns, trace.start_ns[is_step], trace.start_ns[is_step] + trace.duration_ns[is_step])
    launches = np.unique(trace.correlation[in_step & ~on_device & (trace.correlation != MISSING)])
    correlated = trace.correlation != MISSING
    keep = np.where(on_device & correlated, np.isin(trace.correlation, launches), in_step)
    rows = np.flatnonzero(keep)
    _, span = span_names(trace)
    return event_frame(trace, rows, np.where(may_be_ours, span[trace.name], MISSING)[rows]), rows


def no_events() -> pd.DataFrame:
    """The events of a recording without a traced step."""
    text = pd.Categorical.from_codes([], categories=pd.Index([], dtype=TEXT))
    empty = np.array([], dtype=np.int64)
    return pd.DataFrame(
        {"name": text, "category": text} | dict.fromkeys((*NUMBERS, "span"), empty) | dict.fromkeys(TEXTS, text)
    )
