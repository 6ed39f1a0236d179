"""Describe every allocation of the watched steps: its owner, its purpose, and its lifetime.

A block's purpose is known if a live object was seen at its address: parameters, gradients, optimizer state, inputs.
Otherwise, it is derived from the block's lifetime. A block that was made in forward and is still alive when backward
starts (or when the step fails before that) is an activation. A block that was made and freed within a step is a
temporary. Any other block is ``other``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.attribution.attribution import Attribution, attribute, owner_names
from perfnb.attribution.blocks import Kind
from perfnb.recording.nesting import NONE, Ints, innermost, outermost
from perfnb.recording.recording import MemoryRecord, Recording
from perfnb.recording.schema import CATEGORIES, conform
from perfnb.recording.text import TEXT, of_labels

#: Times of allocations made before, or freed after, everything watched.
BEFORE, AFTER = np.iinfo(np.int64).min, np.iinfo(np.int64).max
#: Ops that only allocate memory for the op around them.
_FETCHING = ("aten::empty", "aten::resize_", "aten::new_empty", "aten::zeros", "aten::ones", "aten::full")
#: The precedence of several owners of an address.
_CLAIMS = ("parameters", "gradients", "optimizer_state", "inputs", "other")
#: The device and address of a block of memory.
_PLACE = ["device", "address"]
#: The phases of a step that creates no inputs.
_COMPUTING = ("forward", "loss", "backward", "optimizer")


@dataclass(frozen=True)
class Watched:
    """The watched steps, with everything that is alive in them.

    Attributes
    ----------
    recording : Recording
        The recording, including the events of the watched steps (see `Recording.with_events`).
    attribution : Attribution
        The attribution of those events.
    blocks : DataFrame
        One row per block of memory: ``bytes``, ``device``, ``address``, ``start`` and ``end`` (`BEFORE` and `AFTER` if
        made or freed outside the watched steps), ``place`` (its block in the attribution, -1 for none), ``made_in`` and
        ``freed_in`` (step numbers, -1 for none), ``layer``, ``phase``, ``direction``, ``op``, ``name`` (missing if
        none) and ``category``.
    begin, end : int
        The beginning and end of the counted step, which is the last watched step.
    """

    recording: Recording
    attribution: Attribution
    blocks: pd.DataFrame
    begin: int
    end: int

    @property
    def counted(self) -> pd.DataFrame:
        """The blocks that were alive at any time in the counted step."""
        return self.blocks[(self.blocks["start"] < self.end) & (self.blocks["end"] > self.begin)]


def watched_memory(recording: Recording) -> Watched | None:
    """Pair allocations with frees, and determine the owner and category of each block.

    Return ``None`` if memory was not watched.
    """
    memory = recording.memory
    if memory is None:
        return None
    view = recording.with_events(memory.events)
    attribution = attribute(view)
    steps = attribution.host.blocks[attribution.host.blocks["kind"] == Kind.STEP].sort_values("start")
    blocks = _made(paired(memory.changes), memory, view, attribution, steps)
    begin, finish = int(steps["start"].iloc[-1]), int(steps["end"].iloc[-1])
    blocks = _claimed(blocks, memory.known, recording, begin, finish)
    blocks["category"] = _categories(blocks, attribution, failed="failure" in recording.meta)
    return Watched(view, attribution, blocks, begin, finish)


def paired(changes: pd.DataFrame) -> pd.DataFrame:
    """Return one row per block of memory: ``bytes``, ``device``, ``address``, ``start``, ``end``, ``event``.

    ``event`` is the event that allocated the block, or -1 if only its free was seen.
    """
    order = np.lexsort((np.arange(len(changes)), changes["address"], changes["device"].cat.codes))
    rows = changes.iloc[order]
    address, device = rows["address"].to_numpy(), rows["device"].cat.codes.to_numpy()
    size, time = rows["bytes"].to_numpy(), rows["time_ns"].to_numpy()
    next_is_same = np.append((address[1:] == address[:-1]) & (device[1:] == device[:-1]), False)
    made = size > 0
    # A block starting where another is alive: the free of the other was not seen.
    ends = np.where(next_is_same, np.append(time[1:], AFTER), AFTER)
    follows = np.append(False, next_is_same[:-1] & made[:-1]) if len(rows) else np.zeros(0, dtype=bool)
    orphan = ~made & ~follows
    blocks = pd.DataFrame(
        {
            "bytes": np.abs(size),
            "device": rows["device"].array,
            "address": address,
            "start": np.where(made, time, BEFORE),
            "end": np.where(made, ends, time),
            "event": np.where(made, rows["event"].to_numpy(), NONE),
        }
    )
    chosen: pd.DataFrame = blocks.loc[made | orphan].reset_index(drop=True)
    return chosen


def allocation_table(watched: Watched) -> pd.DataFrame:
    """Return the table ``allocations``.

    It contains everything that was alive at any time in the counted step, in chronological order.
    """
    blocks = watched.counted
    start, end = blocks["start"].to_numpy(), blocks["end"].to_numpy()
    before, after = start == BEFORE, end >= watched.end
    table = blocks.assign(
        start_ns=pd.arrays.IntegerArray(np.where(before, 0, start) - watched.begin, before),
        end_ns=pd.arrays.IntegerArray(np.where(after, 0, end) - watched.begin, after),
    )
    columns = ["bytes", "category", "layer", "phase", "direction", "op", "name", "device", "start_ns", "end_ns"]
    return conform(table.iloc[np.argsort(start, kind="stable")][columns].reset_index(drop=True), "allocations")


def allocations_by_step(watched: Watched) -> pd.DataFrame:
    """Return the steps where each block was made and freed.

    This is the input for `perfnb.memory.leaks.judge.leak_figures`.

    This is the input for `perfnb.memory.leaks.judge.leak_figures`.

    The table has one row for each block whose allocation or free was seen: ``bytes``, ``device``, ``layer``, ``phase``,
    ``op``, ``made_in_step`` (missing: before the first step), ``freed_in_step`` (missing: still alive; the number of
    steps: after the last one ended). Memory that is freed between two steps belongs to the first of them. Blocks made
    before watching started are listed only for GPUs. On the CPU, torch sees few of their frees, and confuses some of
    them with frees of older blocks.
    """
    host = watched.attribution.host.blocks
    starts = np.sort(host.loc[host["kind"] == Kind.STEP, "start"].to_numpy())
    start, end = watched.blocks["start"].to_numpy(), watched.blocks["end"].to_numpy()
    made = np.searchsorted(starts, start, side="right") - 1
    freed = np.where(end > watched.end, len(starts), np.searchsorted(starts, end, side="right") - 1)
    before, alive = (watched.blocks["event"] == NONE).to_numpy() | (made < 0), end == AFTER
    table = watched.blocks.assign(
        made_in_step=pd.arrays.IntegerArray(np.where(before, 0, made), before),
        freed_in_step=pd.arrays.IntegerArray(np.where(alive, 0, freed), alive),
    )
    columns = ["bytes", "device", "layer", "phase", "op", "made_in_step", "freed_in_step"]
    unsure = before & (alive | (freed < 0) | (watched.blocks["device"] == "cpu").to_numpy())
    chosen: pd.DataFrame = table.loc[~unsure, columns].reset_index(drop=True)
    return chosen


def _made(
    blocks: pd.DataFrame, memory: MemoryRecord, recording: Recording, attribution: Attribution, steps: pd.DataFrame
) -> pd.DataFrame:
    """Add each block's layer, phase and op, and the steps where it was made and freed."""
    host, cells = attribution.host, attribution.cells
    of_event = np.full(len(memory.events) + 1, NONE, dtype=np.int64)
    of_event[host.rows] = np.arange(len(host.rows))
    place_in_host = of_event[blocks["event"].to_numpy()]
    place = np.append(host.block, NONE)[place_in_host]
    starts, ends = steps["start"].to_numpy(), steps["end"].to_numpy()
    return blocks.assign(
        place=place,
        layer=_text(owner_names(recording, attribution), place),
        phase=_text(cells["phase"], place),
        direction=_text(cells["direction"], place),
        op=_text(_making_op(memory.events, attribution), place_in_host),
        name=pd.Series(pd.NA, index=blocks.index, dtype="object"),
        made_in=_step_at(blocks["start"].to_numpy(), starts, ends),
        freed_in=_step_at(blocks["end"].to_numpy(), starts, ends),
    )


def _making_op(events: pd.DataFrame, attribution: Attribution) -> np.ndarray:
    """Return the op around each host event.

    It is the innermost op that does more than allocate, or otherwise the outermost op.
    """
    host = attribution.host
    fetches = of_labels(events["name"], lambda name: name.startswith(_FETCHING))[host.rows]
    making = innermost(host.calls, host.is_op & ~fetches)
    making = np.where(making != NONE, making, outermost(host.calls, host.is_op))
    return np.append(events["name"].to_numpy(dtype=object)[host.rows], "")[making]


def _claimed(blocks: pd.DataFrame, known: pd.DataFrame, recording: Recording, begin: int, finish: int) -> pd.DataFrame:
    """Assign blocks to the live objects that were seen at their addresses.

    Objects from before watching started are added if they are seen at the inspection before the counted step or later,
    because not all frees of earlier blocks are reported.
    """
    names = np.array([*recording.modules["name"], None], dtype=object)
    seen = pd.DataFrame(
        {
            "at": known["time_ns"].to_numpy(),
            "device": known["device"].astype(TEXT).array,
            "address": known["address"].to_numpy(),
            "bytes": known["bytes"].to_numpy(),
            "rank": known["category"].map({name: rank for rank, name in enumerate(_CLAIMS)}).astype("int64").to_numpy(),
            "owner": names[known["layer"].to_numpy()],
            "called": known["name"].to_numpy(dtype=object),
        }
    ).sort_values("at", kind="stable")
    alive = pd.DataFrame(
        {
            "at": blocks["start"].to_numpy(),
            "device": blocks["device"].astype(TEXT).array,
            "address": blocks["address"].to_numpy(),
            "row": np.arange(len(blocks)),
            "until": blocks["end"].to_numpy(),
        }
    ).sort_values("at", kind="stable")
    found = pd.merge_asof(seen, alive, on="at", by=_PLACE)
    matched = found["row"].notna().to_numpy() & (found["until"].fillna(BEFORE).to_numpy() > found["at"].to_numpy())
    computed = blocks["phase"].isin(_COMPUTING).to_numpy()
    claims = found[matched].assign(row=found.loc[matched, "row"].astype("int64"))
    # For blocks made before watching started, torch reports the size of an earlier block at the address.
    old = claims[(blocks["event"].to_numpy()[claims["row"]] == NONE) & (claims["device"] == "cpu").to_numpy()]
    sizes = blocks["bytes"].to_numpy().copy()
    sizes[old["row"]] = old["bytes"]
    claims = claims[~((claims["rank"] == _CLAIMS.index("inputs")) & computed[claims["row"]])]
    claims = claims[claims["rank"] < _CLAIMS.index("other")]
    best = claims.sort_values("rank", kind="stable").drop_duplicates("row")
    blocks = blocks.assign(bytes=sizes, claim=pd.Series(NONE, index=blocks.index, dtype=object))
    blocks.loc[best["row"], ["claim", "layer", "name"]] = best[["rank", "owner", "called"]].to_numpy(dtype=object)
    looks = seen["at"].to_numpy()
    first = looks[looks <= begin].max(initial=BEFORE)
    added = found[~matched & (found["at"] >= first)].sort_values("at", kind="stable")
    sightings = added.groupby(_PLACE)["at"].agg(["min", "max"])
    added = added.sort_values("rank", kind="stable").drop_duplicates(_PLACE)
    since, last = sightings.reindex(pd.MultiIndex.from_frame(added[_PLACE])).to_numpy(dtype=np.int64).T
    # First seen mid-step and not allocated here: it came from elsewhere (a loader's shared memory).
    late = (added["rank"] == _CLAIMS.index("inputs")).to_numpy() & (since > first)
    # Another block starts at the address: the free was not seen.
    later = pd.merge_asof(
        added[_PLACE].assign(at=since, place=np.arange(len(added))).sort_values("at", kind="stable"),
        alive,
        on="at",
        by=_PLACE,
        direction="forward",
    ).sort_values("place")["row"]
    again = later.fillna(NONE).to_numpy(dtype=np.int64)
    # The inspection after the step covers everything that a model and optimizer hold: anything missing there is gone.
    gone = (
        (added["rank"] < _CLAIMS.index("inputs")).to_numpy() & (last < finish) & (looks.max(initial=BEFORE) >= finish)
    )
    end = np.where(again == NONE, AFTER, np.append(blocks["start"].to_numpy(), AFTER)[again])
    resident = pd.DataFrame(
        {
            "bytes": added["bytes"],
            "device": added["device"],
            "address": added["address"],
            "start": np.where(late, since, BEFORE),
            "end": np.where(gone, np.minimum(end, np.maximum(last, begin) + 1), end),
            "event": NONE,
            "place": NONE,
            "layer": added["owner"],
            "name": added["called"],
            "made_in": NONE,
            "freed_in": NONE,
            "claim": added["rank"].astype("object"),
        }
    )
    blocks["device"] = blocks["device"].astype(TEXT).astype("object")
    return pd.concat([blocks, resident.reindex(columns=blocks.columns)], ignore_index=True)


def _categories(blocks: pd.DataFrame, attribution: Attribution, failed: bool) -> pd.Categorical:
    start, end = blocks["start"].to_numpy(), blocks["end"].to_numpy()
    phase = blocks["phase"].fillna("").to_numpy(dtype=object)
    recomputed = (blocks["direction"].fillna("") == "recompute").to_numpy()
    began = np.sort(attribution.host.blocks.loc[attribution.host.blocks["kind"] == Kind.ENGINE, "start"].to_numpy())
    backward = np.append(began, AFTER)[np.searchsorted(began, start)]
    saved = np.isin(phase, ("forward", "loss")) & (end > backward)
    if failed:  # before backward, which needs forward's results
        saved |= np.isin(phase, ("forward", "loss")) & (end == AFTER)
    saved |= recomputed & (end > _end_of_recomputation(blocks["place"].to_numpy(), attribution))
    in_step = (blocks["made_in"] != NONE) & (blocks["made_in"] == blocks["freed_in"])
    category = np.where(in_step.to_numpy(), "temporaries", "other").astype(object)
    category[np.isin(phase, ("data", "host_to_device")) & ~in_step.to_numpy()] = "inputs"
    category[saved] = "activations"
    claim = blocks["claim"].to_numpy(dtype=np.int64)
    claimed = claim != NONE
    category[claimed] = np.array(_CLAIMS, dtype=object)[claim[claimed]]
    return pd.Categorical(category, categories=list(CATEGORIES))


def _end_of_recomputation(place: Ints, attribution: Attribution) -> Ints:
    """For the recomputation around each block, return where the outermost layer span ends."""
    host = attribution.host
    kind, above = host.blocks["kind"].to_numpy(), host.forest.parent
    at = place.copy()
    while True:
        up = np.where(at != NONE, above[at], NONE)
        climbs = (up != NONE) & (kind[up] == Kind.SPAN)
        if not climbs.any():
            return np.where(at != NONE, host.blocks["end"].to_numpy()[at], AFTER)
        at = np.where(climbs, up, at)


def _step_at(time: Ints, starts: Ints, ends: Ints) -> Ints:
    """Return the number of the step that contains each time, or -1 if no step contains it."""
    place = np.searchsorted(starts, time, side="right") - 1
    return np.where((place >= 0) & (time <= ends[place]), place, NONE)


def _text(texts: pd.Series | np.ndarray, places: Ints) -> pd.Series:
    """Return the texts at the given positions. A text is missing if it is empty or has no position."""
    text = pd.Series(np.append(np.asarray(texts, dtype=object), "")[places], dtype="object")
    return text.mask(text == "", pd.NA)
