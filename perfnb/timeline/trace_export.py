"""Write a profile as a Chrome trace that contains the original events and perfnb's results about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from perfnb.attribution.device_work import column, text
from perfnb.attribution.events import all_events
from perfnb.recording.from_trace import KEY, layers_written
from perfnb.recording.nesting import NONE, Ints
from perfnb.recording.recording import Recording
from perfnb.recording.schema import LOSS_ROW
from perfnb.timeline.timeline import OF_EVENTS, Timeline, Track
from perfnb.trace import chrome_writer as writer
from perfnb.trace.chrome_json import OWN_NAME
from perfnb.trace.chrome_writer import Column, Flow, Json, TextColumn
from perfnb.trace.kineto import DERIVED, INSTANT, MEMORY
from perfnb.trace.trace_steps import step_of
from perfnb.trace_names import DATA_SPAN, LAYER_SPAN, SPAN_CATEGORY, STEP_SPAN, number_behind

#: The names that traces use for numeric columns.
_ARGUMENTS = {
    "device": "device", "stream": "stream", "correlation": "correlation", "external_id": "External id",
    "sequence": "Sequence number", "forward_thread": "Fwd thread id", "wait_stream": "wait_on_stream",
    "wait_correlation": "wait_on_cuda_event_record_corr_id", "bytes": "bytes", "elements": "In msg nelems",
}  # fmt: skip
_TEXTS = {
    "shapes": "Input Dims", "collective": "Collective name", "group": "Process Group Name", "dtype": "dtype",
}  # fmt: skip
#: The process number for perfnb's own tracks. If it is taken, the next free number is used.
_OWN_PROCESS = 1_000_000_000
#: The same as `_ARGUMENTS`, but for allocations and frees.
_OF_MEMORY = {
    "reserved": "Total Reserved", "allocated": "Total Allocated", "bytes": "Bytes", "address": "Addr",
    "device": "Device Id", "device_type": "Device Type",
}  # fmt: skip
_NAMED_FLOWS = {"launch": "ac2g", "forward": "fwdbwd"}


def trace_text(recording: Recording, timeline: Timeline) -> Iterator[bytes]:
    """Yield the JSON of a trace that can be opened with chrome://tracing, Perfetto and `perfnb.load`.

    The trace contains the recording's events. Steps, phases and layers are on separate tracks, which `perfnb.load`
    ignores and recomputes. Arrows lead from launches to the launched work, and from ops to their backward.
    """
    return writer.document(_parts(recording, timeline), _facts(recording))


def _facts(recording: Recording) -> dict[str, Any]:
    meta = recording.meta
    facts: dict[str, Any] = {"baseTimeNanoseconds": int(meta.get("base_ns", 0))}
    if meta.get("devices"):
        facts["deviceProperties"] = meta["devices"]
    if meta.get("trace", {}).get("rank_known"):
        job = {"rank": recording.rank, "world_size": meta["trace"].get("world_size")}
        facts["distributedInfo"] = {name: value for name, value in job.items() if value is not None}
    if len(recording.modules) and _own_spans(recording, recording.events).any():
        facts[KEY] = layers_written(recording)
    return facts


def _parts(recording: Recording, timeline: Timeline) -> Iterator[str]:
    events = all_events(recording)
    rows = timeline.rows
    used = np.unique(column(events, "process"))
    own = next(number for number in range(_OWN_PROCESS, _OWN_PROCESS + len(used) + 1) if number not in used)
    yield from _names(recording, timeline, events, own)
    yield from _events(recording, timeline, events)
    yield from _derived(timeline, own)
    first = 1
    for link, category in _NAMED_FLOWS.items():
        ends = rows[(rows[link] != NONE).to_numpy()]
        begins = rows.iloc[ends[link].to_numpy()]
        yield from writer.flows(category, _places(events, begins), _places(events, ends), first)
        first += len(ends)
    if (changes := recording.trace_memory) is not None:
        yield from writer.instants(
            MEMORY,
            INSTANT,
            Flow(*(changes[name].to_numpy() for name in ("process", "thread", "time_ns"))),
            {key: changes[name].to_numpy() for name, key in _OF_MEMORY.items()},
        )
    for curve in timeline.memory:
        word = "CPU" if curve.device == "cpu" else curve.device
        yield from writer.counter(f"Memory, {word}", own, curve.times_ns + timeline.zero_ns, curve.bytes, "bytes")


def _places(events: pd.DataFrame, rows: pd.DataFrame) -> Flow:
    event = rows["event"].to_numpy()
    process, thread, start = (column(events, name)[event] for name in ("process", "thread", "start_ns"))
    return Flow(process, thread, start)


def _own_spans(recording: Recording, events: pd.DataFrame) -> Any:
    """Return a flag for each event that is one of perfnb's layer spans. Their names in a trace contain their numbers.

    Module calls recorded by torch are included if perfnb added layers inside them.
    """
    ours = (events["category"] == SPAN_CATEGORY) & (events["name"] == LAYER_SPAN)
    return (ours.to_numpy(dtype=bool) | recording.derived_spans.any()) & (column(events, "span") != NONE)


def _events(recording: Recording, timeline: Timeline, events: pd.DataFrame) -> Iterator[str]:
    start = column(events, "start_ns")
    order = np.argsort(start, kind="stable")
    args: dict[str, Column] = {key: column(events, name)[order] for name, key in _ARGUMENTS.items()}
    for name, key in _TEXTS.items():
        if name in events:
            value, texts = text(events, name)
            args[key] = (Json if name == "shapes" else TextColumn)(list(map(str, texts)), value[order])
    found = _found_out(timeline, len(events), order)
    args |= found
    names, (codes, labels) = _names_of(recording, events), text(events, "category")
    shown = _readable(names, recording, events, found["layer"], order)
    own = np.where(shown.codes < len(names.texts), NONE, names.codes)
    args[OWN_NAME] = TextColumn(names.texts, own[order])
    yield from writer.slices(
        TextColumn(shown.texts, shown.codes[order]),
        TextColumn(list(map(str, labels)), codes[order]),
        start_ns=start[order],
        duration_ns=column(events, "duration_ns")[order],
        process=column(events, "process")[order],
        thread=column(events, "thread")[order],
        args=args,
    )


def _names_of(recording: Recording, events: pd.DataFrame) -> TextColumn:
    """Return the names of the events in the trace."""
    codes, labels = text(events, "name")
    spans = np.flatnonzero(_own_spans(recording, events))
    numbers = column(events, "span")[spans]
    codes = codes.copy()
    codes[spans] = len(labels) + np.arange(len(spans))
    return TextColumn([*map(str, labels), *(f"{LAYER_SPAN}{number}" for number in numbers.tolist())], codes)


def _readable(
    names: TextColumn, recording: Recording, events: pd.DataFrame, layer: TextColumn, order: Ints
) -> TextColumn:
    """Replace the names of perfnb's own marks with the names of the steps or layers that they mark.

    New names are appended at the end.
    """
    of_ops = (events["category"] == SPAN_CATEGORY).to_numpy(dtype=bool)
    texts, codes = list(names.texts), names.codes.copy()
    for code, name in enumerate(names.texts):
        step = number_behind(STEP_SPAN, name)
        if step != NONE or name == DATA_SPAN:
            texts.append(f"step {step}" if step != NONE else "data")
            codes[of_ops & (names.codes == code)] = len(texts) - 1
    owner = np.full(len(codes), NONE, dtype=np.int64)
    owner[order] = layer.codes
    loss = recording.spans["loss"].reindex(column(events, "span"), fill_value=False).to_numpy(dtype=bool)
    owner = np.where((owner == NONE) & loss, len(layer.texts), owner)
    spans = _own_spans(recording, events) & (owner != NONE)
    codes[spans] = len(texts) + owner[spans]
    return TextColumn([*texts, *layer.texts, LOSS_ROW], codes)


def _found_out(timeline: Timeline, size: int, order: Ints) -> Mapping[str, TextColumn]:
    """Return each event's layer, phase and step."""
    of_events = [track.kind in OF_EVENTS for track in timeline.tracks]
    rows = timeline.rows[np.repeat(of_events, [track.count for track in timeline.tracks])]
    found = {}
    for key, name, labels in (("layer", "layer", timeline.layers), ("phase", "kind", timeline.kinds)):
        codes = np.full(size, NONE, dtype=np.int64)
        codes[rows["event"].to_numpy()] = rows[name].to_numpy()
        found[key] = TextColumn(labels, codes[order])
    steps = timeline.rows_on(timeline.of("steps")[0]).sort_values("start")
    # Device work belongs to the step that launched it.
    begin = np.where(rows["launch"] != NONE, timeline.rows["start"].to_numpy()[rows["launch"]], rows["start"])
    codes = np.full(size, NONE, dtype=np.int64)
    codes[rows["event"].to_numpy()] = step_of(
        begin, steps["start"].to_numpy(), (steps["start"] + steps["duration"]).to_numpy()
    )
    found["step"] = TextColumn([timeline.names[name] for name in steps["name"]], codes[order])
    return found


def _derived(timeline: Timeline, process: int) -> Iterator[str]:
    """Yield the steps, phases and layers as threads of a separate process."""
    for track, thread, rows in _own_threads(timeline):
        none = np.full(len(rows), NONE, dtype=np.int64)
        args: dict[str, Column] = {"layer": TextColumn(timeline.layers, rows["layer"].to_numpy())}
        if track.kind != "steps":
            args["phase"] = TextColumn(timeline.kinds, rows["kind"].to_numpy())
        yield from writer.slices(
            TextColumn(timeline.names, rows["name"].to_numpy()),
            TextColumn([DERIVED], np.zeros_like(none)),
            start_ns=rows["start"].to_numpy() + timeline.zero_ns,
            duration_ns=rows["duration"].to_numpy(),
            process=np.full_like(none, process),
            thread=np.full_like(none, thread),
            args=args,
        )


def _own_threads(timeline: Timeline) -> Iterator[tuple[Track, int, pd.DataFrame]]:
    """Yield each track with a number and its rows. If a track's intervals cross, its lines have separate numbers."""
    number = 0
    for track in timeline.tracks:
        if track.kind in OF_EVENTS:
            continue
        rows = timeline.rows_on(track)
        parts = [rows] if _nest(rows) else [rows[rows["depth"] == depth] for depth in range(track.depth)]
        for part in parts:
            number += 1
            yield track, number, part.sort_values(["start", "depth"], kind="stable")


def _nest(rows: pd.DataFrame) -> bool:
    """Check for each row whether it lies within a row at the next higher level."""
    depth, start = rows["depth"].to_numpy(), rows["start"].to_numpy()
    end = start + rows["duration"].to_numpy()
    for level in range(1, int(depth.max(initial=0)) + 1):
        outer, inner = depth == level - 1, depth == level
        place = np.searchsorted(start[outer], start[inner], side="right") - 1
        if (place < 0).any() or (end[outer][place] < end[inner]).any():
            return False
    return True


def _names(recording: Recording, timeline: Timeline, events: pd.DataFrame, own: int) -> Iterator[str]:
    """Yield the names of processes and threads.

    They come from the loaded trace, or from the timeline if there is none.
    """
    yield from writer.process_name(own, "perfnb", place=-1)
    for track, number, rows in _own_threads(timeline):
        deeper = f" {int(rows['depth'].iloc[0])}" if len(rows) < track.count and len(rows) else ""
        yield from writer.thread_name(own, number, f"{track.title}{deeper}", place=number)
    facts = recording.meta.get("trace", {})
    processes = dict(facts.get("process_names", []))
    threads = {(pid, tid): name for pid, tid, name in facts.get("thread_names", [])}
    process, thread = column(events, "process"), column(events, "thread")
    for track in timeline.tracks:
        if track.kind in OF_EVENTS and track.count:
            event = int(timeline.rows["event"].iloc[track.first])
            pid, tid = int(process[event]), int(thread[event])
            if not recording.is_from_trace:
                threads.setdefault((pid, tid), track.title)
                if track.kind == "stream":
                    processes.setdefault(pid, track.title.partition(",")[0])
            elif track.kind == "stream" and tid < 0:
                threads.setdefault((pid, tid), track.title)  # old traces have names instead of numbers
    for pid, name in processes.items():
        yield from writer.process_name(int(pid), str(name))
    for pid, labels in facts.get("process_labels", []):
        yield from writer.process_labels(int(pid), str(labels))
    for (pid, tid), name in threads.items():
        yield from writer.thread_name(int(pid), int(tid), str(name))
