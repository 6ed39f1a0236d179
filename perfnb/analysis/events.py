"""The trace's events with the layer, phase and step that each belongs to."""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfnb.analysis.attribution import Attribution, blocks_of_events
from perfnb.analysis.blocks import Kind
from perfnb.analysis.nesting import NONE, Ints
from perfnb.analysis.ops import owner_names
from perfnb.frames.recording import Recording
from perfnb.frames.schema import conform


def event_table(recording: Recording, attribution: Attribution) -> pd.DataFrame:
    """The frame ``events``, in order of time; ``start_ns`` counts from the begin of the first traced step.

    What runs on a device has the layer, phase and step of the call that launched it. perfnb's own spans have the
    categories ``step``, ``layer`` and ``data``, and a layer's span has the layer's name.
    """
    events = recording.events
    block = blocks_of_events(events, attribution.host)
    known = block != NONE
    cells = attribution.cells
    layer = np.where(known, owner_names(recording, attribution)[block], "")
    phase = np.where(known, cells["phase"].to_numpy(dtype=object)[block], "")
    step = pd.array(cells["step"].to_numpy()[block], dtype="Int64")
    step[~known] = pd.NA
    name = events["name"].to_numpy(dtype=object).copy()
    category = events["category"].to_numpy(dtype=object).copy()
    is_span = events["span"].to_numpy() != NONE
    name[is_span] = np.where(layer[is_span] == "", "(loss)", layer[is_span])
    category[is_span] = "layer"
    own = {"pf_data": "data"}
    for label in events["name"].cat.categories:
        if str(label).startswith("pf_step#"):
            own[str(label)] = "step"
    for label, shown in own.items():
        chosen = (events["name"] == label).to_numpy() & (events["category"] != "user_annotation").to_numpy()
        name[chosen] = category[chosen] = shown
    first = attribution.host.blocks.loc[attribution.host.blocks["kind"] == Kind.STEP, "start"].min()
    table = pd.DataFrame(
        {
            "name": pd.Categorical(name),
            "category": pd.Categorical(category),
            "start_ns": events["start_ns"].to_numpy() - int(first),
            "duration_ns": events["duration_ns"].to_numpy(),
            "thread": events["thread"].to_numpy(),
            "device": _or_na(events["device"].to_numpy()),
            "stream": _or_na(events["stream"].to_numpy()),
            "correlation": _or_na(events["correlation"].to_numpy()),
            "layer": pd.Categorical(layer).remove_categories([""] if (layer == "").any() else []),
            "phase": pd.Categorical(phase).remove_categories([""] if (phase == "").any() else []),
            "step": step,
            "rank": np.full(len(events), int(recording.meta.get("rank", 0)), dtype=np.int64),
        }
    )
    return conform(table.sort_values("start_ns", kind="stable", ignore_index=True), "events")


def _or_na(values: Ints) -> pd.arrays.IntegerArray:
    return pd.arrays.IntegerArray(values, values == NONE)
