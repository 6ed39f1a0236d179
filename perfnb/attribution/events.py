"""Compute the table ``events``, with each event's layer, phase and step, and the Python calls in a trace."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from perfnb.attribution.attribution import Attribution, blocks_of_events, owner_names
from perfnb.attribution.blocks import Host, Kind
from perfnb.attribution.device_work import known_or_na, launches_of, thread_keys
from perfnb.recording.from_trace import rows_of_trace
from perfnb.recording.nesting import NONE, Ints, innermost_over_time
from perfnb.recording.recording import Recording
from perfnb.recording.schema import conform
from perfnb.recording.text import TEXT, is_one_of, of_labels
from perfnb.trace.trace_steps import moments_of, step_of
from perfnb.trace_names import PIECE, PYTHON_CALLS, SPAN_CATEGORY, own_word


def python_calls(events: pd.DataFrame) -> Ints:
    """Return the rows of Python calls."""
    return np.flatnonzero(is_one_of(events["category"], PYTHON_CALLS))


def block_of_calls(events: pd.DataFrame, host: Host, rows: Ints) -> Ints:
    """Return the innermost block on the same thread where each call starts, or `NONE` if there is none."""
    thread, begin, end = (host.blocks[name].to_numpy() for name in ("thread", "start", "end"))
    above = host.forest.parent
    above = np.where((above != NONE) & (thread[above] == thread), above, NONE)
    changes = innermost_over_time(thread, begin, end, host.forest.depth, np.arange(len(thread)), above)
    innermost = pd.DataFrame(dict(zip(("thread", "at", "block"), changes, strict=True))).sort_values("at")
    calls = pd.DataFrame({"thread": thread_keys(events)[rows], "at": events["start_ns"].to_numpy()[rows]})
    order = np.argsort(calls["at"].to_numpy())
    result = np.full(len(rows), NONE, dtype=np.int64)
    result[order] = pd.merge_asof(calls.iloc[order], innermost, on="at", by="thread")["block"].fillna(NONE)
    return result


_AS_IT_IS = ("start_ns", "duration_ns", "thread")
_OR_MISSING = ("device", "stream", "correlation", "process", "external_id")
_TEXTS = ("shapes", "collective", "group")


def event_table(recording: Recording, attribution: Attribution) -> pd.DataFrame:
    """Return the table ``events`` in chronological order.

    ``start_ns`` is relative to the start of the first traced step.

    GPU work has the layer, phase and step of the call that launched it. For a Python call, they are the layer, phase
    and step where it starts. perfnb's own spans have the categories ``step``, ``layer`` and ``data``, and layer spans
    have the names of their layers. For a loaded trace, the table also contains the events outside its steps.
    """
    events = recording.events
    block = blocks_of_events(events, attribution.host)
    calls = python_calls(events)
    calls = calls[block[calls] == NONE]
    block[calls] = block_of_calls(events, attribution.host, calls)
    owned = owners(recording, attribution, block)
    named = _named(recording, owned["layer"])
    columns = {**_columns(events), **owned, **named, "step": _steps(recording, attribution, block)}
    rows = rows_of_trace(events)
    if len(rows) < len(events):
        columns = {name: values[rows] for name, values in columns.items()}
    columns |= {name: columns[name].remove_unused_categories() for name in owned}  # a file does not contain any others
    table = pd.DataFrame(columns, copy=False)
    if recording.outside is not None:
        table = _with_others(table, recording.outside)
    order = np.argsort(table["start_ns"].to_numpy(), kind="stable")
    if (np.diff(order) != 1).any():
        table = table.iloc[order].reset_index(drop=True)
    table["start_ns"] = table["start_ns"].to_numpy() - int(attribution.host.blocks["start"].min())
    table["rank"] = np.full(len(table), recording.rank, dtype=np.int64)
    return conform(table, "events")


def all_events(recording: Recording, columns: Collection[str] | None = None) -> pd.DataFrame:
    """Return all events in the trace with their rank. By default, all of the trace's columns are included."""
    events = recording.events
    if columns is not None:
        events = events[[name for name in events.columns if name in columns]]
    rows = rows_of_trace(recording.events)
    added = len(events) - len(rows)
    # If the added event is the first one, a slice avoids copying millions of rows.
    events = events.iloc[added:] if (rows[:1] == added).all() else events.iloc[rows]
    if recording.outside is not None:
        outside = recording.outside
        events = pd.DataFrame(
            {name: _joined(events[name], outside[name]) for name in events.columns if name in outside.columns}
        )
    return events.reset_index(drop=True).assign(rank=np.int64(recording.rank))


def _columns(events: pd.DataFrame) -> dict[str, Any]:
    columns: dict[str, Any] = {name: events[name].to_numpy() for name in _AS_IT_IS}
    columns |= {name: known_or_na(events[name].to_numpy()) for name in _OR_MISSING if name in events}
    return columns | {name: events[name].array for name in _TEXTS if name in events}


def owners(recording: Recording, attribution: Attribution, block: Ints) -> dict[str, pd.Categorical]:
    """Return each event's layer and phase, given its block."""
    cells = attribution.cells
    of_blocks = {
        "layer": owner_names(recording, attribution),
        "phase": cells["phase"].to_numpy(dtype=object),
    }
    found = {}
    for name, values in of_blocks.items():
        codes, labels = pd.factorize(np.append(values, ""), sort=True)  # the last one is for NONE
        empty = int(codes[-1])
        codes = codes[block]
        kept = pd.Index(labels.astype(object), dtype=TEXT).delete(empty)
        found[name] = pd.Categorical.from_codes(np.where(codes == empty, NONE, codes - (codes > empty)), kept)
    return found


def _steps(recording: Recording, attribution: Attribution, block: Ints) -> pd.arrays.IntegerArray:
    events, blocks = recording.events, attribution.host.blocks
    step = np.append(attribution.cells["step"].to_numpy(), NONE)[block]
    if "marks_step" in events:
        marks = blocks[blocks["kind"] == Kind.STEP]
        alone = np.flatnonzero(block == NONE)
        moments = moments_of(events["start_ns"].to_numpy(), alone, launches_of(events, alone))
        step[alone] = step_of(moments, marks["start"].to_numpy(), marks["end"].to_numpy())
        if recording.is_from_trace and not recording.meta["trace"]["steps_marked"]:
            step[alone] = 0  # all events belong to this rank
        step = np.append(events["marks_step"].to_numpy()[marks["event"]], NONE)[step]
    return known_or_na(step)


def _named(recording: Recording, layer: pd.Categorical) -> dict[str, pd.Categorical]:
    """Return names and categories. perfnb's own spans are named after the steps or layers they represent."""
    events = recording.events
    ours = (events["category"] == SPAN_CATEGORY).to_numpy(dtype=bool)
    name, category = events["name"].array, events["category"].array
    if not recording.is_from_trace:
        words = np.where(ours, of_labels(events["name"], own_word, ""), "")
        for word in np.unique(words[words != ""]).tolist():
            name, category = _replaced(name, words == word, [word]), _replaced(category, words == word, [word])
    spans = ((events["span"] != NONE) | (events["name"] == PIECE)).to_numpy() & ours
    if spans.any():
        labels = ["(loss)", *layer.categories]
        name = _replaced(name, spans, labels, layer.codes[spans].astype(np.int64) + 1)
        category = _replaced(category, spans, ["layer"])
    return {"name": name, "category": category}


def _replaced(
    texts: pd.Categorical, rows: npt.NDArray[np.bool_], labels: Sequence[str], codes: Ints | None = None
) -> pd.Categorical:
    """Return a text column with new labels in some rows."""
    new: pd.Index = pd.Index(list(labels), dtype=TEXT)
    whole = texts.categories.append(new.difference(texts.categories))
    places = whole.get_indexer(new)
    changed = texts.codes.astype(np.int32)
    changed[rows] = places[0] if codes is None else places[codes]
    return pd.Categorical.from_codes(changed, whole).remove_unused_categories()


def _with_others(table: pd.DataFrame, outside: pd.DataFrame) -> pd.DataFrame:
    """Add the events outside the steps, which do not have a layer, phase or step."""
    others = pd.DataFrame({**_columns(outside), "name": outside["name"].array, "category": outside["category"].array})
    for name in table.columns:
        if name not in others:
            others[name] = pd.Series(pd.NA, index=others.index, dtype=table[name].dtype)
    return pd.DataFrame({name: _joined(table[name], others[name]) for name in table.columns})


def _joined(first: pd.Series, second: pd.Series) -> Any:
    """Concatenate two columns. If they contain text, the result has the labels of both."""
    if isinstance(first.dtype, pd.CategoricalDtype):
        return pd.api.types.union_categoricals([first.array, second.array])
    return pd.concat([first, second], ignore_index=True).array
