"""Layers of a loaded trace: its module calls become layer spans, like those of a live profile.

With ``with_stack=True`` torch records a module call as ``nn.Module: Linear_3``: the fourth `Linear` that the program
called. Lightning's profiler marks calls with the module's own name, as
``[pl][module]torch.nn.modules.linear.Linear: encoder.head``. perfnb's own spans have only numbers; perfnb writes the
names of its layers beside the events.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pandas as pd
from msgspec import Meta, Struct

from perfnb.recording.labels import is_one_of, of_labels
from perfnb.recording.nesting import NONE, Bools, Forest, Ints, nest_cutting
from perfnb.recording.recording import Recording
from perfnb.recording.text import TEXT
from perfnb.trace.columns import MISSING
from perfnb.trace.trace_size import refuse_odd_layers
from perfnb.trace_names import PYTHON_CALLS, RANGES

_CALL = "nn.Module: "
_LIGHTNING = re.compile(r"\[pl\]\[module\](?:[\w<>]+\.)*(?P<kind>[\w<>]+): (?P<name>.+)")
_NUMBER = re.compile(r"_[0-9]+$")
_LOSS = re.compile(r"Loss$")
#: The key beside the events under which perfnb writes layers.
KEY = "perfnb"
_VERSION = 1


def with_module_layers(recording: Recording) -> Recording:
    """Add the layers that a trace's module calls imply; without any, return the recording unchanged.

    A module is one layer however often it is called, inside the layer that called it first. Its name is the path to it,
    such as ``ResNet_0.Sequential_1.BasicBlock_2``, or the model's own name from Lightning. perfnb's own spans without
    names become one layer per position in a step, ``call_0.call_2``. A top-level module whose class name ends in
    ``Loss`` is the loss.
    """
    if len(recording.modules):
        return recording  # perfnb wrote the trace, with its layers
    events = recording.events
    is_call = of_labels(events["name"], lambda name: name.startswith(_CALL))
    named = is_call & is_one_of(events["category"], PYTHON_CALLS)
    if named.any():
        return _of_modules(recording, np.flatnonzero(named))
    is_call = of_labels(events["name"], lambda name: _LIGHTNING.fullmatch(name) is not None)
    named = is_call & is_one_of(events["category"], RANGES)
    if named.any():
        return _of_modules(recording, np.flatnonzero(named))
    own = np.flatnonzero((events["span"] != NONE).to_numpy())
    return _of_places(recording, own) if len(own) else recording


def _of_modules(recording: Recording, rows: Ints) -> Recording:
    calls, forest, order = _calls(recording.events, rows)
    key = calls.groupby(["process", "name"], sort=False, observed=True).ngroup().to_numpy()
    first = order[np.sort(np.unique(key[order], return_index=True)[1])]  # of each module, in their order
    code = np.empty(len(first), dtype=np.int64)
    code[key[first]] = np.arange(len(first))
    module = code[key]
    above = forest.parent[first]
    parent = np.where(above != NONE, module[above], NONE)
    told = [_LIGHTNING.fullmatch(str(name)) for name in calls["name"].iloc[first]]
    label = [
        found["name"] if found else str(name)[len(_CALL) :]
        for found, name in zip(told, calls["name"].iloc[first], strict=True)
    ]
    classes = [found["kind"] if found else _NUMBER.sub("", text) for found, text in zip(told, label, strict=True)]
    is_loss = np.array([_LOSS.search(text) is not None for text in classes], dtype=bool)
    outermost = forest.parent == NONE
    whole = all(told)
    return _with_layers(recording, rows, parent, label, classes, module, is_loss[module] & outermost, forest, whole)


def _of_places(recording: Recording, rows: Ints) -> Recording:
    """Make layers of spans without names: each position in the tree of a step's calls is a layer."""
    events = recording.events
    calls, forest, order = _calls(events, rows)
    marks = np.sort(events["start_ns"].to_numpy()[(events["marks_step"] != NONE).to_numpy()])
    step = np.searchsorted(marks, calls["start"].to_numpy(), side="right")
    module = np.full(len(rows), NONE, dtype=np.int64)
    parent: list[int] = []
    label: list[str] = []
    known: dict[tuple[int, int], int] = {}
    count: dict[tuple[int, int], int] = {}
    for call in order.tolist():  # calls of modules, not events
        above = int(forest.parent[call])
        around = (above, NONE) if above != NONE else (NONE, int(step[call]))
        place = count[around] = count.get(around, NONE) + 1
        layer = int(module[above]) if above != NONE else NONE
        if (layer, place) not in known:
            known[layer, place] = len(parent)
            parent.append(layer)
            label.append(f"call_{place}")
        module[call] = known[layer, place]
    loss = np.zeros(len(rows), dtype=bool)
    return _with_layers(recording, rows, np.array(parent, dtype=np.int64), label, None, module, loss, forest)


def _calls(events: pd.DataFrame, rows: Ints) -> tuple[pd.DataFrame, Forest, Ints]:
    """Return the calls, how they nest, and their order: by start, outer first."""
    calls = pd.DataFrame({"name": events["name"].array[rows], "start": events["start_ns"].to_numpy()[rows]})
    calls["process"] = events["process"].to_numpy()[rows] if "process" in events else 0
    threads = pd.DataFrame({"process": calls["process"], "thread": events["thread"].to_numpy()[rows]})
    thread = np.asarray(threads.groupby(["process", "thread"]).ngroup().to_numpy(), dtype=np.int64)
    start = calls["start"].to_numpy()
    end = start + events["duration_ns"].to_numpy()[rows]
    forest, _ = nest_cutting(thread, start, end)
    return calls, forest, np.lexsort((forest.depth, start))


def _with_layers(
    recording: Recording,
    rows: Ints,
    parent: Ints,
    label: list[str],
    classes: list[str] | None,
    module: Ints,
    loss: Bools,
    forest: Forest,
    whole_names: bool = False,
) -> Recording:
    """Add these layers to the recording; if `whole_names`, a label is already the full path of a layer."""
    for level in forest.by_depth()[1:]:
        loss[level] |= loss[forest.parent[level]]  # what runs inside a loss is part of it
    kept = np.unique(module[~loss])
    place = np.full(len(label) + 1, NONE, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    parent = place[parent[kept]]
    labels, parents = [label[old] for old in kept.tolist()], parent.tolist()
    depth = _depth(labels, parents, whole_names, recording)
    names = _names(labels, parents, whole_names)
    unknown = pd.array([pd.NA] * len(kept), dtype="Int64")
    modules = pd.DataFrame(
        {
            "name": pd.Series(names, dtype=TEXT),
            "module": pd.Series([None if classes is None else classes[old] for old in kept.tolist()], dtype=TEXT),
            "parent": parent,
            "depth": np.array(depth, dtype=np.int64),
            "parameters": unknown,
            "parameter_bytes": unknown,
            "compiled": np.zeros(len(kept), dtype=bool),
        }
    )
    numbers = np.full(len(recording.events), NONE, dtype=np.int64)
    numbers[rows] = np.arange(len(rows))
    spans = pd.DataFrame({"layer": np.where(loss, NONE, place[module]), "loss": loss})
    spans.index = spans.index.rename("span")
    return replace(recording, events=recording.events.assign(span=numbers), modules=modules, spans=spans)


def _depth(label: list[str], parent: list[int], whole: bool, recording: Recording) -> list[int]:
    """Return the depth of each layer; refuse names that would fill the memory, since each repeats those around it."""
    depth: list[int] = []
    letters: list[int] = []
    for text, above in zip(label, parent, strict=True):  # parents come first
        depth.append(0 if above == NONE else depth[above] + 1)
        letters.append(len(text) if above == NONE or whole else letters[above] + 1 + len(text))
    refuse_odd_layers(depth, sum(letters), recording.meta["trace"]["file"])
    return depth


def _names(label: list[str], parent: list[int], whole: bool) -> list[str]:
    """Return the path to each layer; layers of several processes are told apart by a number."""
    names: list[str] = []
    taken: dict[str, int] = {}
    for text, above in zip(label, parent, strict=True):
        name = text if above == NONE or whole else f"{names[above]}.{text}"
        taken[name] = taken.get(name, 0) + 1
        names.append(name if taken[name] == 1 else f"{name} ({taken[name]})")
    return names


_Whole = Annotated[int, Meta(gt=-(2**31), lt=2**62)]


class _Modules(Struct):
    name: list[str]
    module: list[str | None]
    parent: list[_Whole]
    parameters: list[_Whole | None]
    parameter_bytes: list[_Whole | None]
    compiled: list[bool]


class _Spans(Struct):
    span: list[_Whole]
    layer: list[_Whole]
    loss: list[bool]


class _Written(Struct):
    version: Literal[1]
    modules: _Modules
    spans: _Spans


def layers_written(recording: Recording) -> dict[str, Any]:
    """Return the layers and spans of a recording, ready for JSON."""
    modules, spans = recording.modules, recording.spans
    unknown = modules[["parameters", "parameter_bytes"]].astype("Int64")
    return {
        "version": _VERSION,
        "modules": {
            "name": modules["name"].astype(TEXT).tolist(),
            "module": [None if pd.isna(kind) else str(kind) for kind in modules["module"]],
            "parent": modules["parent"].tolist(),
            **{name: [None if pd.isna(n) else int(n) for n in unknown[name]] for name in unknown},
            "compiled": modules["compiled"].tolist(),
        },
        "spans": {
            "span": spans.index.tolist(),
            "layer": spans["layer"].tolist(),
            "loss": spans["loss"].tolist(),
        },
    }


def layers_read(written: Any) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Return the frames ``modules`` and ``spans`` of a recording, ``None`` if this is not what perfnb writes."""
    try:
        whole = msgspec.convert(written, _Written)
        modules, spans = _module_frame(whole.modules), _span_frame(whole.spans)
    except (msgspec.MsgspecError, ValueError, OverflowError):
        return None
    return (modules, spans) if spans["layer"].between(MISSING, len(modules) - 1).all() else None


def _module_frame(columns: _Modules) -> pd.DataFrame:
    if len(set(map(len, msgspec.structs.astuple(columns)))) > 1:
        raise ValueError("its columns differ in length")
    depth: list[int] = []
    for row, above in enumerate(columns.parent):
        if not MISSING <= above < row:
            raise ValueError("parents come first")
        depth.append(0 if above == MISSING else depth[above] + 1)
    return pd.DataFrame(
        {
            "name": pd.Series(columns.name, dtype=TEXT),
            "module": pd.Series(columns.module, dtype=TEXT),
            "parent": np.array(columns.parent, dtype=np.int64),
            "depth": np.array(depth, dtype=np.int64),
            "parameters": pd.array(columns.parameters, dtype="Int64"),
            "parameter_bytes": pd.array(columns.parameter_bytes, dtype="Int64"),
            "compiled": np.array(columns.compiled, dtype=bool),
        }
    )


def _span_frame(columns: _Spans) -> pd.DataFrame:
    if len(set(columns.span)) < len(columns.span):
        raise ValueError("a span occurs twice")
    layer, loss = np.array(columns.layer, dtype=np.int64), np.array(columns.loss, dtype=bool)
    return pd.DataFrame({"layer": layer, "loss": loss}, index=pd.Index(columns.span, dtype="int64", name="span"))
