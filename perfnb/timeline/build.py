"""Build a recording's timeline, including the layer, phase and cause of every event."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfnb.attribution.attribution import Attribution, blocks_of_events, layer_of_spans
from perfnb.attribution.backward_links import accumulates, forward_ops
from perfnb.attribution.blocks import Kind
from perfnb.attribution.device_work import column, is_in, launches_of, of_external_id, pairs, text
from perfnb.attribution.events import all_events
from perfnb.memory.allocations import Watched
from perfnb.recording.from_trace import rows_of_trace
from perfnb.recording.nesting import NONE, Bools, Forest, Ints, innermost, innermost_over_time, nest_cutting
from perfnb.recording.recording import Recording
from perfnb.recording.schema import LOSS_ROW
from perfnb.recording.text import TEXT, of_labels
from perfnb.timeline.memory import curves_of_trace, memory_curves
from perfnb.timeline.timeline import (
    DEEPEST,
    KINDS,
    OF_EVENTS,
    OTHER,
    TextNumbers,
    Timeline,
    Track,
    apart,
    joined,
    kinds_of,
    lanes,
    layer_names,
    layers_of,
    rows_of,
)
from perfnb.trace_names import DEVICE_EVENTS, OPS, PIECE, PYTHON_CALLS, own_word

_RECOMPUTE, _BACKWARD = KINDS.index("recompute"), KINDS.index("backward")
LAYERS_NOTE = "forward: module calls; backward: the autograd nodes of each layer's ops"


class _TrackRows(NamedTuple):
    """A track under construction. `thread` is the thread to which the events belong if they are Python calls."""

    kind: str
    title: str
    rows: pd.DataFrame
    thread: str = ""


def timeline_of(recording: Recording, attribution: Attribution, watched: Watched | None = None) -> Timeline:
    """Build the timeline of a recording with at least one traced step.

    Parameters
    ----------
    recording : Recording
    attribution : Attribution
        The attribution of the recording's events.
    watched : Watched, optional
        The memory that was watched in separate steps. Its curve is mapped onto every traced step. A loaded trace
        contains its own curves instead.
    """
    names, categories, events = TextNumbers(), TextNumbers(), all_events(recording)
    lines = [
        _TrackRows("steps", "Steps", step_rows(recording, attribution, names, categories)),
        _TrackRows("phases", "Phases", phase_rows(attribution, names, categories)),
        _TrackRows("layers", "Layers", layer_rows(recording, attribution, names, categories)),
        *_event_lines(recording, events, attribution, names, categories),
    ]
    lines = [line for line in lines if len(line.rows) and (line.kind != "layers" or len(recording.modules))]
    tracks: list[Track] = []
    first = 0
    for line in lines:
        depth, note = int(line.rows["depth"].max()) + 1, LAYERS_NOTE if line.kind == "layers" else ""
        tracks.append(Track(line.kind, line.title, first, len(line.rows), depth, note, line.thread))
        first += len(line.rows)
    rows = joined([line.rows for line in lines])
    # Links lead from one event to another. The last element represents a missing link.
    place = np.full(int(rows[["event", "launch", "forward"]].to_numpy().max()) + 2, NONE, dtype=np.int64)
    of_events = np.flatnonzero(np.repeat([one.kind in OF_EVENTS for one in tracks], [one.count for one in tracks]))
    place[rows["event"].to_numpy()[of_events]] = of_events
    zero = int(lines[0].rows["start"].iloc[0])
    rows = rows.assign(start=rows["start"] - zero, **{name: place[rows[name]] for name in ("launch", "forward")})
    curves = curves_of_trace(recording) if watched is None else memory_curves(recording, attribution, watched)
    return Timeline(
        tracks=tuple(tracks),
        rows=rows,
        names=tuple(names),
        categories=tuple(categories),
        kinds=KINDS,
        layers=tuple(layer_names(recording)),
        details=tuple(map(str, text(events, "shapes")[1])) if "shapes" in events else (),
        memory=tuple(replace(curve, times_ns=curve.times_ns - zero) for curve in curves),
        zero_ns=zero,
    )


def step_rows(
    recording: Recording, attribution: Attribution, names: TextNumbers, categories: TextNumbers
) -> pd.DataFrame:
    """Return one interval per step, such as ``step 3``. Steps have the same numbers as in the tables."""
    blocks = attribution.host.blocks
    steps = blocks[blocks["kind"] == Kind.STEP].sort_values("start")
    number = np.arange(len(steps))
    if "marks_step" in recording.events:
        number = recording.events["marks_step"].to_numpy()[steps["event"]]
    labels = names.all_of(f"step {one}" for one in number.tolist())
    return rows_of(steps["start"].to_numpy(), steps["end"].to_numpy(), name=labels, category=categories["step"])


def phase_rows(attribution: Attribution, names: TextNumbers, categories: TextNumbers) -> pd.DataFrame:
    """Return the steps' phases as intervals that do not overlap. Their lengths add up to the times in ``phases``."""
    blocks = attribution.host.blocks
    start, end, block = _segments(attribution, blocks["main"].to_numpy(dtype=bool))
    phase = kinds_of(attribution)[block]
    phase = np.where(phase == _RECOMPUTE, _BACKWARD, phase)
    step = blocks["step"].to_numpy()[block]
    first, last = _runs(start[1:] == end[:-1], phase, step)
    labels = names.all_of(KINDS)[phase[first]]
    return rows_of(start[first], end[last], name=labels, category=categories["phase"], kind=phase[first])


def layer_rows(
    recording: Recording, attribution: Attribution, names: TextNumbers, categories: TextNumbers
) -> pd.DataFrame:
    """Return nested layer calls for forward, and the time of each layer's nodes for backward.

    In backward, adjacent nodes of the same layer form a single interval. Nodes that only accumulate gradients do not
    separate them.
    """
    forward = _forward(recording, attribution)
    rows = apart(joined([forward, *_backward(recording, attribution)]))
    labels = [*_short_names(recording), LOSS_ROW]
    modules = len(recording.modules)
    titles = names.all_of([*labels[:modules], *layer_names(recording)[modules:]])
    return rows.assign(name=titles[rows["layer"]], category=categories["layer"])


def _forward(recording: Recording, attribution: Attribution) -> pd.DataFrame:
    blocks = attribution.host.blocks
    spans = np.flatnonzero(((blocks["kind"] == Kind.SPAN) & ~blocks["in_backward"]).to_numpy())
    start, end, event = (blocks[name].to_numpy()[spans] for name in ("start", "end", "event"))
    layer = _span_layers(recording, attribution)[spans]
    depth, kind = attribution.spans.depth[spans], kinds_of(attribution)[spans]
    return rows_of(start, end, depth=depth, layer=layer, kind=kind, event=event)


def _backward(recording: Recording, attribution: Attribution) -> list[pd.DataFrame]:
    """Return a table for each depth of layers."""
    host = attribution.host
    kind, in_backward = host.blocks["kind"].to_numpy(), host.blocks["in_backward"].to_numpy()
    again = (kind == Kind.SPAN) & in_backward
    chosen = ((kind == Kind.NODE) | again) & ~accumulates(recording.events, host)
    start, end, block = _segments(attribution, chosen)
    if len(block) == 0:
        return []
    order = np.lexsort((start, host.blocks["thread"].to_numpy()[block]))
    start, end, block = start[order], end[order], block[order]
    engine = innermost(host.forest, kind == Kind.ENGINE)[block]
    thread = host.blocks["thread"].to_numpy()[block]
    span, special = attribution.cells["span"].to_numpy()[block], layers_of(recording, attribution)[block]
    of_span, runs_again = _span_layers(recording, attribution), again[block]
    above = span
    tables = []
    depths = np.where(span != NONE, attribution.spans.depth[span], 0)
    for depth in range(int(depths.max()), -1, -1):
        here = (above != NONE) & (attribution.spans.depth[above] == depth)
        layer = np.where(here, of_span[above], special if depth == 0 else NONE)
        part = np.where(here & runs_again & again[above], _RECOMPUTE, _BACKWARD)
        first, last = _runs(np.ones(len(layer) - 1, dtype=bool), layer, part, engine, thread)
        first, last = first[layer[first] != NONE], last[layer[first] != NONE]
        tables.append(rows_of(start[first], end[last], depth=depth, layer=layer[first], kind=part[first]))
        above = np.where(here, attribution.spans.parent[above], above)
    return tables


def _span_layers(recording: Recording, attribution: Attribution) -> Ints:
    """Return the layer number of each span. A span without a layer belongs to the loss."""
    blocks = attribution.host.blocks
    layer = layer_of_spans(recording, attribution.host)
    loss = layer_names(recording).index(LOSS_ROW, len(recording.modules))
    return np.where((layer == NONE) & (blocks["kind"] == Kind.SPAN).to_numpy(), loss, layer)


def _short_names(recording: Recording) -> list[str]:
    """Return the part of each layer's name that follows its parent's name."""
    whole, parents = recording.modules["name"].astype(TEXT).tolist(), recording.modules["parent"].tolist()
    return [
        name.removeprefix(f"{whole[above]}.") if above != NONE else name
        for name, above in zip(whole, parents, strict=True)
    ]


def _segments(attribution: Attribution, chosen: Bools) -> tuple[Ints, Ints, Ints]:
    """Cut blocks wherever another block starts or ends, and return each piece's start, end and innermost block."""
    host = attribution.host
    begin, finish, thread = (host.blocks[name].to_numpy() for name in ("start", "end", "thread"))
    kept = chosen & (finish > begin)
    members = np.flatnonzero(kept)
    above = innermost(host.forest, kept)
    # A node on another thread belongs to an engine run, but is not shown on its thread.
    above = np.where((above != NONE) & (thread[above] == thread), above, NONE)
    parts = (values[members] for values in (thread, begin, finish, host.forest.depth, np.arange(len(kept)), above))
    of_thread, time, now = innermost_over_time(*parts)
    real = (now[:-1] != NONE) & (of_thread[1:] == of_thread[:-1])
    return time[:-1][real], time[1:][real], now[:-1][real]


def _runs(meets: Bools, *keys: Ints) -> tuple[Ints, Ints]:
    """Return the first and last row of each run of adjacent rows that are equal.

    For each row except the last, `meets` specifies whether a run may continue with the next row.
    """
    size = len(keys[0])
    new = np.ones(size, dtype=bool)
    new[1:] = ~meets | np.any([key[1:] != key[:-1] for key in keys], axis=0)
    first = np.flatnonzero(new)
    return first, np.append(first, size)[1:] - 1


#: The names that torch's profiler and perfnb write for threads.
_THREAD_NAME = re.compile(r"[Tt]hread -?[0-9]+(?: \((.*)\))?")


def _event_lines(
    recording: Recording, events: pd.DataFrame, attribution: Attribution, names: TextNumbers, categories: TextNumbers
) -> list[_TrackRows]:
    """Return all events in the trace.

    The step's thread comes first, followed by other threads, streams, and Python calls.
    """
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
    # Python calls are not attributed, so they belong to the block where they run.
    around = innermost(forest, block[host] != NONE)
    block[host] = np.where(block[host] != NONE, block[host], np.append(block[host], NONE)[around])
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

    found, python = [], []
    for title, members in _threads(recording, events, host, thread, block, attribution):
        calls, others = members[is_python[members]], members[~is_python[members]]
        found += [_TrackRows("thread", title, table(host[others]))] if len(others) else []
        whose = f"Python calls of {title[0].lower()}{title[1:]}"
        python += [_TrackRows("python", whose, table(host[calls]), title)] if len(calls) else []
    for title, members in _streams(events, np.flatnonzero(on_device)):
        order = members[np.lexsort((-end[members], start[members]))]
        end[order] = _without_slivers(start[order], end[order], recording.meta.get("trace", {}).get("unit_ns", 1))
        depth[order] = lanes(start[order], end[order])
        found.append(_TrackRows("stream", title, table(order)))
    return [*found, *python]


def _depths_apart(forest: Forest, is_python: Bools, thread: Ints, start: Ints, end: Ints) -> Ints:
    """Return each event's nesting depth. Python calls are only nested in each other, and so are all other events."""
    depth = forest.depth
    if is_python.any() and not is_python.all():
        depth = depth.copy()
        for chosen in (is_python, ~is_python):
            depth[chosen] = nest_cutting(thread[chosen], start[chosen], end[chosen])[0].depth
    return depth


def _names(
    recording: Recording, events: pd.DataFrame, layer: Ints, names: TextNumbers, categories: TextNumbers
) -> tuple[Ints, Ints]:
    """Return the numbers of names and categories. perfnb's spans are named after the steps or layers they mark."""
    found, labels = text(events, "name")
    category, sorts = text(events, "category")
    result = np.append(names.all_of(labels), NONE)[found]
    sort = np.append(categories.all_of(sorts), NONE)[category]
    ours = is_in(events, OPS)
    if not recording.is_from_trace:
        own = of_labels(events["name"], own_word, "")
        for word in ("step", "data"):
            is_own = (own == word) & ours
            result[is_own], sort[is_own] = names[word], categories[word]
    is_span = (column(events, "span") != NONE) | (events["name"] == PIECE).to_numpy()
    spans = np.flatnonzero(is_span & ours & (layer != NONE))
    of_layers = names.all_of(layer_names(recording)) if len(spans) else layer
    result[spans], sort[spans] = of_layers[layer[spans]], categories["layer"]
    return result, sort


def _launches(events: pd.DataFrame, on_device: Bools) -> Ints:
    """Return the call that launched each piece of device work, or the op to which the profiler assigns it."""
    launch = np.full(len(events), NONE, dtype=np.int64)
    device = np.flatnonzero(on_device)
    launch[device] = launches_of(events, device)
    lost = device[launch[device] == NONE]
    launch[lost] = of_external_id(events, lost, is_in(events, OPS))
    return launch


def _forwards(recording: Recording, attribution: Attribution, kept: Ints, size: int) -> Ints:
    """Return the forward op that corresponds to each op and node in a backward pass."""
    result = np.full(size, NONE, dtype=np.int64)
    events, host = recording.events, attribution.host
    place = np.full(len(events) + 1, NONE, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    number, thread = column(events, "sequence"), column(events, "forward_thread")
    asked = host.rows[(number[host.rows] != NONE) & (thread[host.rows] > 0)]
    op = forward_ops(events, host, asked)
    result[place[asked]] = place[np.append(host.rows, NONE)[op]]
    return result


def _threads(
    recording: Recording,
    events: pd.DataFrame,
    host: Ints,
    thread: Ints,
    block: Ints,
    attribution: Attribution,
) -> list[tuple[str, Ints]]:
    """Return the title of each thread, and the indices of its events in `host`."""
    process, number = column(events, "process"), column(events, "thread")
    blocks = attribution.host.blocks
    mark = int(blocks.loc[blocks["kind"] == Kind.STEP, "event"].iloc[0])
    main = (int(column(recording.events, "process")[mark]), int(column(recording.events, "thread")[mark]))
    several = len(np.unique(process[host])) > 1
    facts = recording.meta.get("trace", {})
    named = {(pid, tid): str(name) for pid, tid, name in facts.get("thread_names", [])}
    processes = {pid: str(name) for pid, name in facts.get("process_names", [])}
    is_node = np.append((blocks["kind"] == Kind.NODE).to_numpy(), False)
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
    """Return a thread's name without its number: ``python3`` for ``thread 12 (python3)``."""
    found = _THREAD_NAME.fullmatch(name)
    inner = name if found is None else found[1] or ""
    return "" if inner.strip() in (str(number), f"thread {number}") else inner


def _streams(events: pd.DataFrame, rows: Ints) -> list[tuple[str, Ints]]:
    """Return the title and the events of each stream."""
    device, stream = column(events, "device")[rows], column(events, "stream")[rows]
    found = []
    for members in _groups(pairs(device, stream)):
        gpu, number = int(device[members[0]]), int(stream[members[0]])
        title = f"GPU {gpu}" if gpu != NONE else "Device without a number"
        title += f", stream {number}" if number != NONE else ", no stream"
        found.append(((gpu == NONE, gpu, number), title, rows[members]))
    return [(title, members) for _, title, members in sorted(found, key=lambda one: one[0])]


def _groups(key: Ints) -> Sequence[Ints]:
    """Return the indices at which each value occurs, in ascending order of values."""
    order = np.argsort(key, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(key[order])) + 1) if len(key) else []


def _without_slivers(start: Ints, end: Ints, unit: int) -> Ints:
    """Return the ends.

    An end is cut to the next start if their overlap could be due to rounding of the file's times.
    """
    over = end[:-1] - start[1:]
    cut = (over > 0) & (over <= unit) & (start[1:] > start[:-1])
    result = end.copy()
    result[:-1][cut] = start[1:][cut]
    return result
