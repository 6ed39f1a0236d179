"""Steps, phases and layers as intervals of a timeline."""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfnb.attribution.attribution import Attribution
from perfnb.attribution.blocks import Kind
from perfnb.attribution.owners import accumulates
from perfnb.recording.nesting import NONE, Bools, Ints, innermost
from perfnb.recording.recording import Recording
from perfnb.recording.schema import LOSS_ROW
from perfnb.recording.text import TEXT
from perfnb.timeline.timeline import KINDS, Labels, apart, joined, kinds_of, layer_names, layers_of, rows_of

_RECOMPUTE, _BACKWARD = KINDS.index("recompute"), KINDS.index("backward")


def step_rows(recording: Recording, attribution: Attribution, names: Labels, categories: Labels) -> pd.DataFrame:
    """One interval per step, ``step 3``, numbered as in the frames."""
    blocks = attribution.host.blocks
    steps = blocks[blocks["kind"] == Kind.STEP].sort_values("start")
    number = np.arange(len(steps))
    if "marks_step" in recording.events:
        number = recording.events["marks_step"].to_numpy()[steps["event"]]
    labels = names.all_of(f"step {one}" for one in number.tolist())
    return rows_of(steps["start"].to_numpy(), steps["end"].to_numpy(), name=labels, category=categories["step"])


def phase_rows(attribution: Attribution, names: Labels, categories: Labels) -> pd.DataFrame:
    """The phases of the steps, without overlap: their lengths add up to the frame ``phases``."""
    blocks = attribution.host.blocks
    start, end, block = _segments(attribution, blocks["main"].to_numpy(dtype=bool))
    phase = kinds_of(attribution)[block]
    phase = np.where(phase == _RECOMPUTE, _BACKWARD, phase)
    step = blocks["step"].to_numpy()[block]
    first, last = _runs(start[1:] == end[:-1], phase, step)
    labels = names.all_of(KINDS)[phase[first]]
    return rows_of(start[first], end[last], name=labels, category=categories["phase"], kind=phase[first])


def layer_rows(recording: Recording, attribution: Attribution, names: Labels, categories: Labels) -> pd.DataFrame:
    """Layer calls in forward, nested, and in backward the time of each layer's nodes.

    In backward, neighbouring nodes of a layer form one interval, even if only gradients were accumulated in between.
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
    """One table per layer depth."""
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
    """Layer number of each span; a span without one belongs to the loss."""
    blocks = attribution.host.blocks
    layer = recording.span_layers.reindex(blocks["span"], fill_value=NONE).to_numpy()
    loss = layer_names(recording).index(LOSS_ROW, len(recording.modules))
    return np.where((layer == NONE) & (blocks["kind"] == Kind.SPAN).to_numpy(), loss, layer)


def _short_names(recording: Recording) -> list[str]:
    """What a layer's name adds to that of its parent."""
    whole, parents = recording.modules["name"].astype(TEXT).tolist(), recording.modules["parent"].tolist()
    return [
        name.removeprefix(f"{whole[above]}.") if above != NONE else name
        for name, above in zip(whole, parents, strict=True)
    ]


def _segments(attribution: Attribution, chosen: Bools) -> tuple[Ints, Ints, Ints]:
    """Blocks cut wherever another of them starts or ends: start, end and innermost block of each piece."""
    host = attribution.host
    begin, finish, thread = (host.blocks[name].to_numpy() for name in ("start", "end", "thread"))
    members = np.flatnonzero(chosen & (finish > begin))
    kept = np.zeros(len(begin), dtype=bool)
    kept[members] = True
    above = innermost(host.forest, kept)
    # A node on another thread is part of an engine run, but not of its timeline.
    above = np.where((above != NONE) & (thread[above] == thread), above, NONE)[members]
    depth, thread = host.forest.depth[members], thread[members]
    moments = pd.DataFrame(
        {
            "thread": np.tile(thread, 2),
            "time": np.concatenate([begin[members], finish[members]]),
            "begins": np.repeat([True, False], len(members)),
            # At one moment ends come first, from the inside out; then starts, from the outside in.
            "turn": np.concatenate([depth, -depth]),
            "now": np.concatenate([members, above]),
        }
    ).sort_values(["thread", "time", "begins", "turn"], kind="stable")
    time, of_thread, now = (moments[name].to_numpy() for name in ("time", "thread", "now"))
    real = (now[:-1] != NONE) & (time[1:] > time[:-1]) & (of_thread[1:] == of_thread[:-1])
    return time[:-1][real], time[1:][real], now[:-1][real]


def _runs(meets: Bools, *keys: Ints) -> tuple[Ints, Ints]:
    """First and last of each run of neighbours that are alike.

    `meets` says for each but the last whether a run may continue after it.
    """
    size = len(keys[0])
    if size == 0:
        return np.array([], dtype=np.int64), np.array([], dtype=np.int64)
    new = ~meets
    for key in keys:
        new = new | (key[1:] != key[:-1])
    first = np.flatnonzero(np.concatenate([[True], new]))
    return first, np.append(first[1:], size) - 1
