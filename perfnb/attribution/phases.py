"""The phases of a step: their times, their order, and models that hide the loss in forward."""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfnb.attribution.attribution import Attribution
from perfnb.attribution.blocks import Kind
from perfnb.recording.nesting import NONE, outermost
from perfnb.recording.recording import Recording
from perfnb.recording.schema import ACCUMULATION_ROW, PHASES, conform


def phase_table(attribution: Attribution) -> pd.DataFrame:
    """The frame ``phases``: time of each phase per traced step, and its share of the step.

    ``ms`` is as traced and adds up to the traced step; ``share`` is corrected for tracing overhead.
    """
    sums = attribution.cells.groupby("phase", observed=False)[["ns", "corrected_ns"]].sum()
    sums = sums.reindex(list(PHASES), fill_value=0)
    whole = sums["corrected_ns"].sum()
    table = pd.DataFrame(
        {"ms": sums["ns"] / 1e6 / attribution.steps, "share": sums["corrected_ns"] / whole if whole else float("nan")}
    )
    return conform(table, "phases")


def phase_stretches(attribution: Attribution, begin: int, end: int) -> list[tuple[str, int, int]]:
    """The phases from the start to the end of a step (ns), in order: name, start and end of each stretch."""
    blocks = attribution.host.blocks
    inside = blocks["main"] & (blocks["start"] >= begin) & (blocks["end"] <= end)
    rows = blocks[inside.to_numpy() & (attribution.host.forest.depth == 1)].sort_values("start")
    joined: list[tuple[str, int, int]] = []
    for phase, start, stop in zip(rows["phase"], rows["start"], rows["end"], strict=True):
        if joined and joined[-1][0] == phase:
            joined[-1] = (phase, joined[-1][1], int(stop))
        else:
            joined.append((str(phase), int(start), int(stop)))
    return [stretch for stretch in joined if stretch[0] in PHASES]


def own_losses(recording: Recording, attribution: Attribution) -> list[str]:
    """The models in whose calls every backward pass of the traced steps starts: they compute the loss in forward.

    The first node of a backward pass belongs to the tensor on which it was called, the loss. Models whose loss ops were
    recognised by name are left out, because these are in the phase loss.
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
