"""Describe every allocation in the steps whose memory was recorded: its owner, its purpose, and its lifetime.

The purpose of a block is known if a live object was found at its address, which may be a parameter, gradient, optimizer
state or input. Otherwise, the purpose is derived from the block's lifetime. A block that was allocated in forward and
is still alive when backward starts (or when the step fails before that) is an activation. A block that was allocated
and freed within a step is a temporary. Any other block is ``other``.
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

#: The times assigned to blocks that were allocated before or freed after the recording.
BEFORE, AFTER = np.iinfo(np.int64).min, np.iinfo(np.int64).max
#: Ops that only allocate memory for the enclosing op.
_FETCHING = ("aten::empty", "aten::resize_", "aten::new_empty", "aten::zeros", "aten::ones", "aten::full")
#: The order of precedence if an address has several owners.
_CLAIMS = ("parameters", "gradients", "optimizer_state", "inputs", "other")
#: The columns that identify a block of memory.
_PLACE = ["device", "address"]
#: The phases where a step does not create inputs.
_COMPUTING = ("forward", "loss", "backward", "optimizer")


@dataclass(frozen=True)
class Watched:
    """The steps whose memory was recorded, and all blocks of memory that were alive in them.

    Attributes
    ----------
    recording : Recording
        The recording, with the events of these steps (see `Recording.with_events`).
    attribution : Attribution
        The attribution of those events.
    blocks : DataFrame
        One row per block of memory: ``bytes``, ``device``, ``address``, ``start`` and ``end`` (`BEFORE` and `AFTER` if
        the block was allocated or freed outside the recorded steps), ``place`` (the corresponding block in the
        attribution, or -1), ``made_in`` and ``freed_in`` (step numbers, or -1), ``layer``, ``phase``, ``direction``,
        ``op``, ``name`` (all missing if there is none) and ``category``.
    begin, end : int
        The start and end of the counted step, which is the last recorded step.
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

    Return ``None`` if memory was not recorded.
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
    # If a block starts at the address of a live block, the free of the live block was not recorded.
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
    """Return the step that allocated each block, and the step that freed it.

    This is the input for `perfnb.memory.leaks.judge.leak_figures`.

    The table has one row for each block whose allocation or free was recorded, with the columns ``bytes``, ``device``,
    ``layer``, ``phase``, ``op``, ``made_in_step`` and ``freed_in_step``. ``made_in_step`` is missing if the block was
    allocated before the first step. ``freed_in_step`` is missing if the block is still alive, and it is the number of
    steps if the block was freed after the last step. Memory that is freed between two steps belongs to the first of
    them. Blocks that were allocated before the recording are listed only for GPUs, because on the CPU, torch sees few
    of their frees and confuses some of them with frees of older blocks.
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
    """Add each block's layer, phase and op, and the steps that allocated and freed it."""
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
    """Return the op that encloses each host event.

    This is the innermost op that does more than allocate memory or, if there is none, the outermost op.
    """
    host = attribution.host
    fetches = of_labels(events["name"], lambda name: name.startswith(_FETCHING))[host.rows]
    making = innermost(host.calls, host.is_op & ~fetches)
    making = np.where(making != NONE, making, outermost(host.calls, host.is_op))
    return np.append(events["name"].to_numpy(dtype=object)[host.rows], "")[making]


def _claimed(blocks: pd.DataFrame, known: pd.DataFrame, recording: Recording, begin: int, finish: int) -> pd.DataFrame:
    """Assign blocks to the live objects that were found at their addresses.

    Objects that existed before the recording started are added only if they are found at the inspection before the
    counted step or later, because not all frees of earlier blocks are reported.
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
    # For blocks allocated before the recording, torch reports the size of an earlier block at the same address.
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
    # A block that was first found during the step but not allocated in it came from elsewhere, such as a loader's
    # shared memory.
    late = (added["rank"] == _CLAIMS.index("inputs")).to_numpy() & (since > first)
    # If another block starts at the same address, the free was not recorded.
    later = pd.merge_asof(
        added[_PLACE].assign(at=since, place=np.arange(len(added))).sort_values("at", kind="stable"),
        alive,
        on="at",
        by=_PLACE,
        direction="forward",
    ).sort_values("place")["row"]
    again = later.fillna(NONE).to_numpy(dtype=np.int64)
    # The inspection after the step covers everything that a model and an optimizer refer to, so anything that is not
    # found there has been freed.
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
    if failed:  # the step failed before backward, which needs the results of forward
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
    """Return the end of the outermost layer span of the recomputation that encloses each block."""
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
