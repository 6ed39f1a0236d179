"""The columns of a trace as the frame of events that analysis works on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from perfnb.recording.text import TEXT
from perfnb.trace.columns import MISSING, Ints, TraceColumns
from perfnb.trace_names import LAYER_SPAN, number_behind

#: Columns of whole numbers, -1 where an event carries none.
NUMBERS = (
    *("start_ns", "duration_ns", "process", "thread", "device", "stream", "correlation", "external_id"),
    *("sequence", "forward_thread", "wait_stream", "wait_correlation", "bytes"),
)
#: Columns of text, missing where an event carries none.
TEXTS = ("shapes", "collective", "group")


def event_frame(trace: TraceColumns, rows: Ints, span: Ints | None = None) -> pd.DataFrame:
    """The events at some places of a trace: names, times, and what each carries; see `Recording.events`.

    Parameters
    ----------
    trace : TraceColumns
    rows : ndarray
    span : ndarray, optional
        Number of the layer span that each of the rows is; -1 for those that are none.
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
    """Names with the layer spans' numbers taken off, and the number of the span that each name code stands for."""
    numbers = np.array([number_behind(LAYER_SPAN, name) for name in trace.names], dtype=np.int64)
    names = [LAYER_SPAN if number != MISSING else name for name, number in zip(trace.names, numbers, strict=True)]
    return names, numbers


def categorical(labels: Sequence[str], codes: Ints) -> pd.Categorical:
    """Codes with their labels, missing where below 0; equal labels become one, unused ones go."""
    used = np.flatnonzero(np.bincount(codes[codes != MISSING], minlength=len(labels))) if len(codes) else codes
    unique, merged = np.unique(np.array([labels[code] for code in used], dtype=object), return_inverse=True)
    place = np.full(len(labels) + 1, MISSING, dtype=np.int32)  # the last is for what is missing
    place[used] = merged
    return pd.Categorical.from_codes(place[codes], categories=pd.Index(unique, dtype=TEXT))
