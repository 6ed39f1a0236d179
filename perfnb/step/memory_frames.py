"""What was seen of memory, as frames: every change, whose blocks were known, and what the process held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from perfnb.recording.event_frame import NUMBERS, TEXTS
from perfnb.recording.events import read_trace, steps_of_trace
from perfnb.recording.recording import MemoryRecord
from perfnb.step.known import Known
from perfnb.step.layers import SPAN_CATEGORY
from perfnb.step.memory import MARK, WatchedMemory
from perfnb.step.tracer import STEP_SPAN, Tracer
from perfnb.trace.kineto import MISSING, Ints, TraceColumns

#: Name and category of an allocation or a free among the events.
CHANGE_NAME, CHANGE_CATEGORY = "[memory]", "memory"


def memory_record(watched: WatchedMemory, tracer: Tracer, places: Mapping[int, int]) -> MemoryRecord:
    """The changes of memory as events among the others, and what was known of blocks with times instead of marks.

    Parameters
    ----------
    places : mapping of int to int
        Row of each layer, by the ``id`` of its module.
    """
    trace = read_trace(tracer)
    marks = _moments(trace, MARK)
    known = [block for block in watched.known if str(block.mark) in marks]
    times = [marks[str(block.mark)] for block in known]
    # The two clocks run alike; where the first step began on both says how far they are apart.
    begin = min(_moments(trace, STEP_SPAN).values(), default=None)
    shift = begin - watched.step_begins[0] if begin is not None and watched.step_begins else 0
    events, place = _with_changes(trace)
    resident = np.array(watched.resident, dtype=np.int64).reshape(-1, 2)
    return MemoryRecord(
        events,
        _changes(trace, place),
        _known(known, times, places),
        pd.DataFrame({"time_ns": resident[:, 0] + shift, "bytes": resident[:, 1]}),
    )


def _moments(trace: TraceColumns, label: str) -> dict[str, int]:
    """When each range began whose name is `label` and a number, by the number's digits."""
    numbers = {
        code: name.removeprefix(label)
        for code, name in enumerate(trace.names)
        if name.startswith(label) and name.removeprefix(label).isdecimal()
    }
    rows = np.flatnonzero(np.isin(trace.name, list(numbers)))
    return {
        numbers[code]: start
        for code, start in zip(trace.name[rows].tolist(), trace.start_ns[rows].tolist(), strict=True)
    }


def _with_changes(trace: TraceColumns) -> tuple[pd.DataFrame, Ints]:
    """The events of the steps, changes of memory among them, and for each change its row among those, -1 for none."""
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
    on_host = np.array(trace.categories, dtype=object)[trace.category] == SPAN_CATEGORY
    process = trace.process[on_host][:1] if on_host.any() else [MISSING]  # a live profile is of one
    fields["process"] = (np.repeat(process, instants), trace.process)
    others = (*(name for name in NUMBERS if name not in fields), *TEXTS)
    columns: dict[str, Any] = {
        name: np.concatenate([np.asarray(a, dtype=np.int64), b]) for name, (a, b) in fields.items()
    }
    columns |= {name: np.concatenate([nowhere, getattr(trace, name)]) for name in others}
    names, categories = [*trace.names, CHANGE_NAME], [*trace.categories, CHANGE_CATEGORY]
    events, rows = steps_of_trace(replace(trace, names=names, categories=categories, **columns))
    place = nowhere.copy()
    is_change = rows < instants
    place[rows[is_change]] = np.flatnonzero(is_change)
    return events, place


def _changes(trace: TraceColumns, place: Ints) -> pd.DataFrame:
    changes = trace.memory
    cpu = changes.device_type == 0
    device = np.array([f"cuda:{index}" for index in range(int(changes.device.max(initial=0)) + 1)], dtype=object)
    return pd.DataFrame(
        {
            "event": place,
            "time_ns": changes.time_ns,
            "address": changes.address,
            "bytes": changes.bytes,
            "device": pd.Categorical(np.where(cpu, "cpu", device[np.maximum(changes.device, 0)])),
            "allocated": np.where(cpu, MISSING, changes.allocated),
            "reserved": np.where(cpu, MISSING, changes.reserved),
        }
    )


def _known(known: Sequence[Known], times: Sequence[int], places: Mapping[int, int]) -> pd.DataFrame:
    layers = [MISSING if block.module is None else places.get(block.module, MISSING) for block in known]
    return pd.DataFrame(
        {
            "time_ns": np.array(times, dtype=np.int64),
            "address": np.array([block.address for block in known], dtype=np.int64),
            "bytes": np.array([block.bytes for block in known], dtype=np.int64),
            "device": pd.Categorical([block.device for block in known]),
            "category": pd.Categorical([block.category for block in known]),
            "layer": np.array(layers, dtype=np.int64),
            "name": pd.Series([block.name for block in known], dtype="object"),
        }
    )
