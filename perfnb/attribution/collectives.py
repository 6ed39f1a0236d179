"""Compute the table ``collectives``.

For each collective in the traced steps, it contains the number of bytes, the duration, and the exposed time, which is
the part that was not hidden by other work.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from perfnb.attribution.attribution import Attribution, blocks_of_events, owner_names
from perfnb.attribution.backward_links import accumulates
from perfnb.attribution.blocks import Kind
from perfnb.attribution.collective_waits import collective_kinds, device_collectives_alone, host_collectives, pieces
from perfnb.attribution.device_work import column, texts, work_alone
from perfnb.attribution.interval_sets import IntervalSet, union
from perfnb.recording.nesting import NONE, Ints, innermost, nest
from perfnb.recording.recording import Recording
from perfnb.recording.schema import SPECIAL_ROWS, conform
from perfnb.recording.text import TEXT, found, is_one_of, of_labels
from perfnb.trace.collective_messages import ITEM_BYTES
from perfnb.trace_names import COLLECTIVE_OP, RANGES, collective_kind

#: The name of the range where FSDP gathers or reduces a module.
_FSDP = re.compile(r"FSDP::\w+ \((?P<name>.+)\)")
_SAME = ["collective", "group", "dtype", "bytes", "layer", "bucket"]


def collective_calls(recording: Recording, attribution: Attribution) -> pd.DataFrame:
    """Return each collective in the traced steps, in chronological order.

    Returns
    -------
    DataFrame
        ``step`` (from 0), ``collective``, ``group``, ``dtype``, ``bytes`` (size of its largest argument), ``layer`` or
        ``bucket`` to which it belongs, ``start_ns`` (when it was called), ``begin_ns`` (when it started to run),
        ``end_ns``, and ``exposed_ns`` (the part that was not hidden by other work; if several collectives were exposed
        at once, the time counts towards the one that ended first).
    """
    events = recording.events
    alone, on_device = device_collectives_alone(events)
    own = host_collectives(events, on_device)
    work = work_alone(events)
    theirs = work.sort == 1
    issued = np.concatenate([own.issued, np.full(theirs.sum(), NONE, dtype=np.int64)])
    ran = np.concatenate([own.ran, work.rows[theirs]])
    rows, launched = np.where(ran == NONE, issued, ran), np.where(issued == NONE, ran, issued)
    start, begin = (np.concatenate([mine, work.start[theirs]]) for mine in (own.start, own.begin))
    end = np.concatenate([own.end, work.end[theirs]])
    waits = attribution.host.blocks
    waits = waits[(waits["kind"] == Kind.COMMUNICATION).to_numpy()]
    waiting = union(waits["start"].to_numpy(), waits["end"].to_numpy())
    exposed = np.concatenate(
        [
            _shared_out(waiting, own.start, _until_received(own.end, waiting)),
            _shared_out(alone, work.start[theirs], work.end[theirs]),
        ]
    )
    block = blocks_of_events(events, attribution.host)[launched]
    step = _steps(attribution, block, begin)
    kinds = np.concatenate([own.kind, collective_kinds(events.iloc[work.rows[theirs]])])
    kinds = np.where(kinds == "", texts(events, "name", rows), kinds)
    accumulating = np.append(accumulates(events, attribution.host), False)[block]
    names = np.append(owner_names(recording, attribution), "")[block].astype(object)
    layer = np.where(accumulating, "", _of_fsdp(recording, events, issued, names))
    sent = column(events, "elements")
    elements, dtype = np.where(sent[launched] > 0, sent[launched], sent[rows]), texts(events, "dtype", rows, launched)
    size = np.array([ITEM_BYTES.get(name, 0) for name in dtype], dtype=np.int64)
    known = (elements > 0) & (size > 0) & (elements < 2**53)
    frame = pd.DataFrame(
        {
            "step": step,
            "collective": kinds,
            "group": texts(events, "group", rows, launched),
            "dtype": dtype,
            "bytes": np.where(known, elements * size, NONE),
            "layer": np.where(np.isin(layer, SPECIAL_ROWS), "", layer),
            "bucket": accumulating & (kinds == "allreduce"),
            "start_ns": start,
            "begin_ns": begin,
            "end_ns": end,
            "exposed_ns": exposed,
        }
    )
    frame = frame[step != NONE].sort_values(["step", "start_ns"], kind="stable", ignore_index=True)
    frame = _with_counted(recording, frame)
    # DDP sends all data other than gradients, such as the set of used parameters, as integers.
    gradients = frame["bucket"] & ~frame["dtype"].astype(TEXT).str.startswith("int", na=False).astype(bool)
    numbers = gradients.astype(np.int64).groupby(frame["step"]).cumsum() - 1
    return frame.assign(bucket=np.where(gradients, numbers, NONE))


def collective_table(calls: pd.DataFrame, steps: int) -> pd.DataFrame:
    """Return the table ``collectives`` per traced step, in descending order of time.

    Parameters
    ----------
    calls : DataFrame
        The result of `collective_calls`, with the column ``waiting_ns`` if the collectives of other ranks are known.
    steps : int
    """
    if "waiting_ns" not in calls:
        calls = calls.assign(waiting_ns=pd.array([pd.NA] * len(calls), dtype="Int64"))
    ran = calls["end_ns"] - calls["begin_ns"]
    lasted = calls["end_ns"] - calls["start_ns"]
    calls = calls.assign(lasted_ns=lasted, ran_ns=ran, transfer_ns=ran - calls["waiting_ns"])
    groups = calls.groupby(_SAME, sort=False, dropna=False)
    sums = groups[["lasted_ns", "ran_ns", "exposed_ns", "waiting_ns", "transfer_ns"]].sum(min_count=1)
    table = sums.assign(calls=groups.size()).reset_index()
    per_step = {
        "ms": table["lasted_ns"],
        "exposed_ms": table["exposed_ns"],
        "waiting_ms": table["waiting_ns"],
        "transfer_ms": table["transfer_ns"],
    }
    count = max(steps, 1)
    size = table["bytes"].astype("Int64").mask(table["bytes"] == NONE)
    taken = table["transfer_ns"].astype("Float64").fillna(table["ran_ns"].astype("Float64"))
    result = pd.DataFrame(
        {
            "collective": table["collective"],
            **{name: table[name].astype(TEXT).mask(table[name] == "") for name in ("group", "dtype", "layer")},
            "bucket": table["bucket"].astype("Int64").mask(table["bucket"] == NONE),
            "bytes": size,
            "calls": table["calls"] / count,
            **{name: values.astype("Float64") / 1e6 / count for name, values in per_step.items()},
            "bytes_per_s": (size * table["calls"] * 1e9 / taken.mask(taken <= 0)).astype("Float64"),
        }
    )
    return conform(result.sort_values("ms", ascending=False, kind="stable", ignore_index=True), "collectives")


def _shared_out(time: IntervalSet, start: Ints, end: Ints) -> Ints:
    """Return the number of nanoseconds that each interval has in common with a set of intervals.

    Time in several intervals counts towards the interval that ends first.
    """
    result = np.zeros(len(start), dtype=np.int64)
    if not len(start):
        return result
    begin, until = pieces(time, np.concatenate([start, end]))
    order = np.lexsort((start, end))
    place = np.searchsorted(end[order], until, side="left")
    while True:  # skip those that had not yet started
        early = place < len(order)
        early[early] = start[order[place[early]]] > begin[early]
        if not early.any():
            break
        place = place + early
    inside = place < len(order)
    np.add.at(result, order[place[inside]], (until - begin)[inside])
    return result


def _until_received(end: Ints, waiting: IntervalSet) -> Ints:
    """Return the ends of collectives.

    The last collective in each wait ends when the wait ends, because the host may wake up late.
    """
    place = np.searchsorted(waiting.start, end, side="right") - 1
    inside = (place != NONE) & (end <= np.append(waiting.end, 0)[place])
    last = np.zeros(len(waiting.start), dtype=np.int64)
    np.maximum.at(last, place[inside], end[inside])
    is_last = inside & (end == np.append(last, 0)[place])
    return np.where(is_last, np.append(waiting.end, 0)[place], end)


def _steps(attribution: Attribution, block: Ints, begin: Ints) -> Ints:
    """Return the traced step of each collective, based on the block that started it or otherwise on its time."""
    blocks = attribution.host.blocks
    marks = blocks[(blocks["kind"] == Kind.STEP).to_numpy()].sort_values("start")
    place = np.searchsorted(marks["start"].to_numpy(), begin, side="right") - 1
    inside = (place != NONE) & (begin < np.append(marks["end"].to_numpy(), 0)[place])
    by_time = np.where(inside, place, NONE)
    return np.where(block != NONE, np.append(attribution.cells["step"].to_numpy(), NONE)[block], by_time)


def _of_fsdp(
    recording: Recording, events: pd.DataFrame, issued: Ints, names: npt.NDArray[np.object_]
) -> npt.NDArray[np.object_]:
    """Return the layer that FSDP names in the range around each operator, if there is such a range."""
    around = np.flatnonzero(found(events["name"], _FSDP.fullmatch) & is_one_of(events["category"], RANGES))
    called = np.flatnonzero(issued != NONE)
    rows = np.concatenate([around, issued[called]])
    start = column(events, "start_ns")[rows]
    tree = nest(column(events, "thread")[rows], start, start + column(events, "duration_ns")[rows])
    inside = innermost(tree, np.arange(len(rows)) < len(around))[len(around) :]
    layers = [str(name) for name in recording.modules["name"]]
    paths = [_FSDP.sub(r"\g<name>", text) for text in texts(events, "name", around)]
    named = [next((name for name in layers if f".{name}".endswith(f".{path}")), path) for path in paths]
    result = names.copy()
    result[called[inside != NONE]] = np.array(named, dtype=object)[inside[inside != NONE]]
    return result


def _with_counted(recording: Recording, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the bytes and dtypes of a live profile's collectives, for those that can be found in the counted step."""
    if recording.arithmetic is None or not len(frame):
        return frame
    calls = recording.arithmetic.calls.sort_index()
    calls = calls[of_labels(calls["op"], lambda name: bool(COLLECTIVE_OP.match(name) and collective_kind(name)))]
    kinds = [collective_kind(str(name)) for name in calls["op"]]
    sizes, dtypes = calls["bytes"].to_numpy(dtype=np.int64), calls["dtype"].astype(object).fillna("").to_numpy()
    sent = list(zip(sizes.tolist(), dtypes.tolist(), strict=True))
    place = np.concatenate([_matched(own.tolist(), kinds, sent) for _, own in frame.groupby("step")["collective"]])
    size, dtype = np.append(sizes, NONE)[place], np.append(dtypes, "")[place]
    own_size, own_dtype = frame["bytes"], frame["dtype"]
    return frame.assign(bytes=own_size.where(own_size != NONE, size), dtype=own_dtype.where(own_dtype != "", dtype))


def _matched(seen: Sequence[str], counted: Sequence[str], sent: Sequence[tuple[int, str]]) -> Ints:
    """Match each of a step's collectives with a counted collective by kind, or return `NONE` if the match is uncertain.

    One of the two steps may have additional consecutive collectives, for example for logging. If there are several
    possible positions for these, a match is only certain if the message is the same for all of the positions.
    """
    shorter = min(len(seen), len(counted))
    pairs = list(zip(seen, counted, strict=False)), list(zip(seen[::-1], counted[::-1], strict=False))
    first, last = (next((at for at, (one, other) in enumerate(way) if one != other), shorter) for way in pairs)
    whole = min(shorter, first + last)
    result = np.full(len(seen), NONE, dtype=np.int64)
    for place in range(len(seen)):
        places = {place} if place < first else set()
        if place >= len(seen) - last:
            places.add(place - len(seen) + len(counted))
        # The collective may itself be one of the additional ones, if these can begin at or before it and end after it.
        is_extra = max(place - len(seen) + whole + 1, whole - last) <= min(place, first)
        if places and not is_extra and len({sent[one] for one in places}) == 1:
            result[place] = min(places)
    return result
