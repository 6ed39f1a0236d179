"""Models that compute their own loss in forward, by operators that do not tell it by their names."""

from __future__ import annotations

import numpy as np

from perfnb.attribution.attribution import Attribution
from perfnb.attribution.blocks import Kind
from perfnb.recording.nesting import NONE, outermost
from perfnb.recording.recording import Recording
from perfnb.recording.schema import ACCUMULATION_ROW


def own_losses(recording: Recording, attribution: Attribution) -> list[str]:
    """The models in whose calls every backward pass of the traced steps starts; none where one starts elsewhere.

    The first node of a backward pass is that of the tensor which it starts from: the loss. A model in which operators
    of losses were found by name is left out, for these are in the phase loss.
    """
    blocks, forest, cells = attribution.host.blocks, attribution.host.forest, attribution.cells
    kind, parent = blocks["kind"].to_numpy(), forest.parent
    in_engine = (parent != NONE) & (kind[parent] == Kind.ENGINE)
    nodes = np.flatnonzero((kind == Kind.NODE) & in_engine & (cells["special"] != ACCUMULATION_ROW).to_numpy())
    nodes = nodes[np.argsort(blocks["start"].to_numpy()[nodes], kind="stable")]
    first = nodes[np.unique(parent[nodes], return_index=True)[1]]
    made_in = cells["span"].to_numpy()[first]
    if len(first) == 0 or (made_in == NONE).any():
        return []
    layer = recording.span_layers.reindex(blocks["span"], fill_value=NONE).to_numpy()
    model = outermost(forest, (kind == Kind.SPAN) & (layer != NONE))
    told = model[kind == Kind.LOSS]
    named = np.setdiff1d(layer[model[made_in]], layer[told[told != NONE]])
    names: list[str] = recording.modules["name"].iloc[named].tolist()
    return names
