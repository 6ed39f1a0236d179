"""Limits that no trace of a real run exceeds: threads, streams, devices, steps, and events inside each other.

A report gives each of them a row or a level, so a small file with millions of them would keep it busy for hours or
fill the memory. `perfnb.trace.trace_file.Limits` bounds what reading a file takes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from perfnb.errors import TraceError
from perfnb.trace.columns import Ints, TraceColumns
from perfnb.trace.trace_steps import is_in, steps_of
from perfnb.trace_names import DEVICE_EVENTS

MOST_THREADS = 2_000
MOST_STREAMS = 2_000
MOST_DEVICES = 256
MOST_STEPS = 5_000
#: Steps times devices: each pair has a row in the GPU tables.
MOST_STEPS_OF_DEVICES = 20_000
#: Events on one thread inside each other: Python itself allows about 1,000 calls.
MOST_NESTED = 2_000
#: Layers inside each other, and letters in the names of all layers: each name repeats those around it.
MOST_LAYERS_NESTED = 500
MOST_LETTERS = 32 * 2**20


def refuse_odd_trace(trace: TraceColumns, source: str) -> None:
    """Refuse a trace that has more of something than a real run.

    Raises
    ------
    TraceError
        With what there is too much of; the message names `source`.
    """
    on_device = is_in(trace, DEVICE_EVENTS)
    host, device = np.flatnonzero(~on_device), np.flatnonzero(on_device)
    thread, threads = _numbered(trace.process[host], trace.thread[host])
    _, streams = _numbered(trace.device[device], trace.stream[device])
    memory, working = trace.memory, len(np.unique(trace.device[device]))
    devices = max(working, _numbered(memory.device_type, memory.device)[1])
    steps = len(steps_of(trace).starts)
    for count, most, what in (
        (threads, MOST_THREADS, "threads"),
        (streams, MOST_STREAMS, "streams of devices"),
        (devices, MOST_DEVICES, "devices"),
        (steps, MOST_STEPS, "steps"),
        (steps * working, MOST_STEPS_OF_DEVICES, "steps of devices"),
        (_deepest(thread, trace.start_ns[host], trace.duration_ns[host]), MOST_NESTED, "events inside each other"),
    ):
        if count > most:
            raise TraceError(_odd(source, f"{count:,} {what}", most))


def refuse_odd_layers(depth: Sequence[int], letters: int, source: str) -> None:
    """Refuse layers nested too deeply, or whose names have too many letters in all; as `refuse_odd_trace`."""
    levels = max(depth, default=-1) + 1
    if levels > MOST_LAYERS_NESTED:
        raise TraceError(_odd(source, f"{levels:,} layers inside each other", MOST_LAYERS_NESTED))
    if letters > MOST_LETTERS:
        raise TraceError(_odd(source, f"{letters:,} letters in the names of its layers", MOST_LETTERS))


def _odd(source: str, what: str, most: int) -> str:
    return f"{source} was not read: it has {what}, and perfnb shows at most {most:,}; record fewer steps, or split it."


def _numbered(*keys: Ints) -> tuple[Ints, int]:
    """Number each row's combination of keys, and count the combinations."""
    codes = pd.DataFrame(dict(enumerate(keys))).groupby(list(range(len(keys))), sort=False).ngroup().to_numpy()
    return codes.astype(np.int64), int(codes.max(initial=-1)) + 1


def _deepest(thread: Ints, start: Ints, duration: Ints) -> int:
    """Return the most events that are open at once on a thread."""
    # An end and a start at the same time do not overlap; an event without duration lasts a nanosecond here.
    time = np.concatenate([start, start + np.maximum(duration, 1)])
    opens = np.repeat([1, -1], len(start))
    order = np.lexsort((opens, time, np.tile(thread, 2)))
    # A thread closes what it opens, so the sum is 0 where the next thread starts.
    return int(np.cumsum(opens[order]).max(initial=0))
