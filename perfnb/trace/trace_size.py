"""What no trace of a real run has: so many threads, streams, devices or steps, or events so deep in each other.

The views of a profile give each of them a line or a level, so that a small file of millions would keep a report busy
for hours or fill the memory. `perfnb.trace.trace_file.Limits` caps what a file may take to read.
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
#: Steps times devices: each pair has a row of its own in the tables of GPUs.
MOST_STEPS_OF_DEVICES = 20_000
#: Events on one thread that run inside each other: Python itself allows about 1,000 calls.
MOST_NESTED = 2_000
#: Layers inside each other, and letters of the names of all layers, in which those around each one are repeated.
MOST_LAYERS_NESTED = 500
MOST_LETTERS = 32 * 2**20


def refuse_odd_trace(trace: TraceColumns, source: str) -> None:
    """Refuse a trace with more of something than a real run has.

    Raises
    ------
    TraceError
        With what it has too much of; the message names `source`.
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
    """As `refuse_odd_trace`, of layers that lie so deep in each other, whose names have so many letters together."""
    levels = max(depth, default=-1) + 1
    if levels > MOST_LAYERS_NESTED:
        raise TraceError(_odd(source, f"{levels:,} layers inside each other", MOST_LAYERS_NESTED))
    if letters > MOST_LETTERS:
        raise TraceError(_odd(source, f"{letters:,} letters in the names of its layers", MOST_LETTERS))


def _odd(source: str, what: str, most: int) -> str:
    return (
        f"{source} was not read: it has {what}, and {most:,} is the most that perfnb shows; record fewer steps, or cut "
        "it into parts."
    )


def _numbered(*keys: Ints) -> tuple[Ints, int]:
    """A number for each row's combination of keys, and how many there are."""
    codes = pd.DataFrame(dict(enumerate(keys))).groupby(list(range(len(keys))), sort=False).ngroup().to_numpy()
    return codes.astype(np.int64), int(codes.max(initial=-1)) + 1


def _deepest(thread: Ints, start: Ints, duration: Ints) -> int:
    """The most events that are open at once on a thread."""
    # An end and a begin at one time do not overlap; what takes no time does so for a nanosecond.
    time = np.concatenate([start, start + np.maximum(duration, 1)])
    opens = np.repeat([1, -1], len(start))
    order = np.lexsort((opens, time, np.tile(thread, 2)))
    # What a thread opens it closes, so that the sum is 0 where the next thread begins.
    return int(np.cumsum(opens[order]).max(initial=0))
