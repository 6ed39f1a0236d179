"""The events of a trace as intervals: one track per thread and stream, and which event caused which."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.attribution.attribution import Attribution, blocks_of_events
from perfnb.attribution.blocks import Kind
from perfnb.attribution.device_work import calls_of, column, first_match, is_in, pairs, text
from perfnb.attribution.events import all_events
from perfnb.attribution.owners import forward_ops
from perfnb.recording.from_trace import rows_of_trace
from perfnb.recording.labels import of_labels
from perfnb.recording.nesting import NONE, Bools, Forest, Ints, innermost, nest_cutting
from perfnb.recording.recording import Recording
from perfnb.timeline.timeline import (
    DEEPEST,
    OTHER,
    Labels,
    apart,
    kinds_of,
    lanes,
    layer_names,
    layers_of,
    rows_of,
)
from perfnb.trace_names import DEVICE_EVENTS, OPS, PYTHON_CALLS, own_word

#: As written by torch's profiler and perfnb.
_THREAD_NAME = re.compile(r"[Tt]hread -?[0-9]+(?: \((.*)\))?")


@dataclass(frozen=True)
class EventRows:
    """The events of one thread or stream.

    Attributes
    ----------
    kind : str
        ``thread``, ``stream`` or ``python``: the Python calls of a thread.
    title : str
    rows : DataFrame
        Output of `rows_of`; ``launch`` and ``forward`` are rows of `all_events`.
    thread : str
        Title of the thread whose Python calls these are.
    """

    kind: str
    title: str
    rows: pd.DataFrame
    thread: str = ""


def event_rows(recording: Recording, attribution: Attribution, names: Labels, categories: Labels) -> list[EventRows]:
    """All events of the trace: the step's thread first, then other threads, streams, and Python calls."""
    events = all_events(recording)
    kept = rows_of_trace(recording.events)
    block = np.full(len(events), NONE, dtype=np.int64)
    block[: len(kept)] = blocks_of_events(recording.events, attribution.host)[kept]
    on_device = is_in(events, DEVICE_EVENTS)
    start = column(events, "start_ns")
    end = start + np.maximum(column(events, "duration_ns"), 0)
    host = np.flatnonzero(~on_device)
    thread = pairs(column(events, "process")[host], column(events, "thread")[host])
    forest, end[host] = nest_cutting(thread, start[host], end[host])
    depth = np.zeros(len(events), dtype=np.int64)
    is_python = is_in(events, PYTHON_CALLS)[host]
    depth[host] = np.minimum(_depths_apart(forest, is_python, thread, start[host], end[host]), DEEPEST)
    # Python calls are not attributed: they belong to the block that they run in.
    around = innermost(forest, block[host] != NONE)
    block[host] = np.where(block[host] != NONE, block[host], np.where(around != NONE, block[host][around], NONE))
    codes = {
        "kind": np.append(kinds_of(attribution), OTHER)[block],
        "layer": np.append(layers_of(recording, attribution), NONE)[block],
        "launch": _launches(events, on_device),
        "forward": _forwards(recording, attribution, kept, len(events)),
        "detail": text(events, "shapes")[0] if "shapes" in events else np.full(len(events), NONE, dtype=np.int64),
    }
    codes["name"], codes["category"] = _names(recording, events, codes["layer"], names, categories)

    def table(rows: Ints) -> pd.DataFrame:
        given = {name: values[rows] for name, values in codes.items()}
        return apart(rows_of(start[rows], end[rows], depth=depth[rows], event=rows, **given))

    main = _main_thread(recording, attribution)
    found, python = [], []
    for title, members in _threads(recording, events, host, thread, main, block, attribution):
        calls, others = members[is_python[members]], members[~is_python[members]]
        found += [EventRows("thread", title, table(host[others]))] if len(others) else []
        whose = f"Python calls of {title[0].lower()}{title[1:]}"
        python += [EventRows("python", whose, table(host[calls]), title)] if len(calls) else []
    for title, members in _streams(events, np.flatnonzero(on_device)):
        order = members[np.lexsort((-end[members], start[members]))]
        end[order] = _without_slivers(start[order], end[order], recording.meta.get("trace", {}).get("unit_ns", 1))
        depth[order] = lanes(start[order], end[order])
        found.append(EventRows("stream", title, table(order)))
    return [*found, *python]


def _depths_apart(forest: Forest, is_python: Bools, thread: Ints, start: Ints, end: Ints) -> Ints:
    """Nesting depth of each event among its own sort: Python calls, or everything else."""
    depth = forest.depth
    if is_python.any() and not is_python.all():
        depth = depth.copy()
        for chosen in (is_python, ~is_python):
            depth[chosen] = nest_cutting(thread[chosen], start[chosen], end[chosen])[0].depth
    return depth


def shape_texts(recording: Recording) -> list[str]:
    """The texts that ``detail`` refers to."""
    events = all_events(recording)
    return list(map(str, text(events, "shapes")[1])) if "shapes" in events else []


def _names(
    recording: Recording, events: pd.DataFrame, layer: Ints, names: Labels, categories: Labels
) -> tuple[Ints, Ints]:
    """Numbers of names and categories; perfnb's own spans are named after what they mark."""
    found, labels = text(events, "name")
    category, sorts = text(events, "category")
    result = np.append(names.all_of(labels), NONE)[found]
    sort = np.append(categories.all_of(sorts), NONE)[category]
    ours = is_in(events, OPS)
    if not recording.is_loaded:
        own = of_labels(events["name"], own_word, "")
        for word in ("step", "data"):
            is_own = (own == word) & ours
            result[is_own], sort[is_own] = names[word], categories[word]
    spans = np.flatnonzero((column(events, "span") != NONE) & ours & (layer != NONE))
    of_layers = names.all_of(layer_names(recording)) if len(spans) else layer
    result[spans], sort[spans] = of_layers[layer[spans]], categories["layer"]
    return result, sort


def _launches(events: pd.DataFrame, on_device: Bools) -> Ints:
    """The call that launched each piece of device work, else the op that the profiler assigns it to."""
    launch = np.full(len(events), NONE, dtype=np.int64)
    device = np.flatnonzero(on_device)
    launch[device] = calls_of(events, device)
    external, correlation = column(events, "external_id"), column(events, "correlation")
    # Without an op, Kineto writes the correlation id as the external id.
    lost = device[(launch[device] == NONE) & (external[device] != NONE)]
    lost = lost[external[lost] != correlation[lost]]
    ops = np.flatnonzero(is_in(events, OPS) & (external != NONE))
    if len(lost) and len(ops):
        key = pairs(column(events, "rank"), external)
        launch[lost] = np.append(ops, NONE)[first_match(key[ops], key[lost])]
    return launch


def _forwards(recording: Recording, attribution: Attribution, kept: Ints, size: int) -> Ints:
    """The forward op of each op and node of a backward pass."""
    result = np.full(size, NONE, dtype=np.int64)
    events, host = recording.events, attribution.host
    place = np.full(len(events) + 1, NONE, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    number, thread = column(events, "sequence"), column(events, "forward_thread")
    asked = host.rows[(number[host.rows] != NONE) & (thread[host.rows] > 0)]
    op = forward_ops(events, host, asked)
    result[place[asked]] = place[np.append(host.rows, NONE)[op]]
    return result


def _main_thread(recording: Recording, attribution: Attribution) -> tuple[int, int]:
    """Process and thread of the steps."""
    blocks = attribution.host.blocks
    event = int(blocks.loc[blocks["kind"] == Kind.STEP, "event"].iloc[0])
    return tuple(int(column(recording.events, name)[event]) for name in ("process", "thread"))  # type: ignore[return-value]


def _threads(
    recording: Recording,
    events: pd.DataFrame,
    host: Ints,
    thread: Ints,
    main: tuple[int, int],
    block: Ints,
    attribution: Attribution,
) -> list[tuple[str, Ints]]:
    """Title of each thread and places of its events in `host`."""
    process, number = column(events, "process"), column(events, "thread")
    several = len(np.unique(process[host])) > 1
    facts = recording.meta.get("trace", {})
    named = {(pid, tid): str(name) for pid, tid, name in facts.get("thread_names", [])}
    processes = {pid: str(name) for pid, name in facts.get("process_names", [])}
    is_node = np.append((attribution.host.blocks["kind"] == Kind.NODE).to_numpy(), False)
    found = []
    for members in _groups(thread):
        first = host[members[0]]
        pid, tid = int(process[first]), int(number[first])
        extra = ["main"] if (pid, tid) == main else []
        extra += ["backward"] if not extra and is_node[block[host[members]]].any() else []
        extra += [word] if (word := _own_name(named.get((pid, tid), ""), tid)) not in ("", *extra) else []
        title = f"Thread {tid}" if tid >= 0 else "Thread without a number"
        title += f" ({', '.join(extra)})" if extra else ""
        if several:
            known = f" ({processes[pid]})" if pid in processes else ""
            title = f"Process {pid}{known}, {title[0].lower()}{title[1:]}"
        found.append(((pid != main[0], pid, (pid, tid) != main, tid), title, members))
    return [(title, members) for _, title, members in sorted(found, key=lambda one: one[0])]


def _own_name(name: str, number: int) -> str:
    """A thread's name beyond its number: ``python3`` of ``thread 12 (python3)``."""
    found = _THREAD_NAME.fullmatch(name)
    inner = name if found is None else found[1] or ""
    return "" if inner.strip() in (str(number), f"thread {number}") else inner


def _streams(events: pd.DataFrame, rows: Ints) -> list[tuple[str, Ints]]:
    """Title of each stream and the events on it."""
    device, stream = column(events, "device")[rows], column(events, "stream")[rows]
    found = []
    for members in _groups(pairs(device, stream)):
        gpu, number = int(device[members[0]]), int(stream[members[0]])
        title = f"GPU {gpu}" if gpu != NONE else "Device without a number"
        title += f", stream {number}" if number != NONE else ", no stream"
        found.append(((gpu == NONE, gpu, number), title, rows[members]))
    return [(title, members) for _, title, members in sorted(found, key=lambda one: one[0])]


def _groups(key: Ints) -> Sequence[Ints]:
    """Places of each value, in ascending order of value."""
    if len(key) == 0:
        return []
    order = np.argsort(key, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(key[order])) + 1)


def _without_slivers(start: Ints, end: Ints, unit: int) -> Ints:
    """Ends cut to the next start if they overlap by no more than the rounding of the file's times."""
    over = end[:-1] - start[1:]
    cut = (over > 0) & (over <= unit) & (start[1:] > start[:-1])
    result = end.copy()
    result[:-1][cut] = start[1:][cut]
    return result
