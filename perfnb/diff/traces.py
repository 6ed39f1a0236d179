"""Compare the operators of two traces, the kernels that each operator launched, and their totals.

Kernels from different vendors have different names, and so do the operators that call the vendors' libraries. GPU work
is therefore attributed to the closest operator around its launch that exists in both traces.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import pandas as pd

from perfnb.attribution.events import all_events
from perfnb.diff.op_matching import MatchedOps, matched_ops
from perfnb.diff.op_tree import op_tree
from perfnb.gpu.device_time import gpu_time, gpu_time_by_step
from perfnb.recording.nesting import NONE, Floats, Ints, forest_of, outermost, subtree_sums
from perfnb.recording.recording import Recording
from perfnb.recording.schema import NO_OP_ROW, conform

LAYER, SHAPES, NAME, ONLY_A, ONLY_B = "layer", "shapes", "name", "only a", "only b"
SIDES = ("a", "b")
_WORDS = {"name": "op", "shapes": "shapes", "layer": "layer", "phase": "phase"}
_TIMES = ("self_host_ms", "self_gpu_ms")
_SAYS = ("op", "shapes", "layer", "phase", "matched")
_FIGURES = [f"{name}_{side}" for name in ("calls", "host_ms", "gpu_ms") for side in SIDES]
GPU_FIGURES = ("total", "busy", "computation", "communication", "memcpy", "idle")


@dataclass(frozen=True)
class TraceDiff:
    """The comparison of b's traced steps with a's. All figures are per step.

    Attributes
    ----------
    ops : DataFrame
        The frame ``diff_ops``, in a's order of execution, followed by the rows that exist only in b.
    kernels : DataFrame
        The frame ``diff_kernels``, with the largest change first.
    operators : DataFrame
        The frame ``diff_by_op``, summed over all layers, with the largest change first. It contains the outermost
        operators with everything inside them, annotated ranges with the time outside their operators, and the work
        launched by unknown operators. The times add up to the whole.
    gpu_time : DataFrame or None
        The frame ``diff_gpu_time``, or ``None`` if either trace does not contain GPU work.
    on_gpu : bool
        Whether ``grew_ms`` and ``ratio`` refer to GPU times, because both traces contain GPU work. Otherwise, they
        refer to host times.
    alike : tuple of (float or None)
        The share of a's and of b's time in operators that the other trace contains in the same layer or with the same
        shapes.
    steps : tuple of int
        The number of traced steps in a and in b.
    unmarked : tuple of bool
        Whether a and b lack marked steps. If they do, the whole trace counts as one step.
    without_shapes, without_layers : tuple of bool
        Whether a and b lack input shapes and layers.
    """

    ops: pd.DataFrame
    kernels: pd.DataFrame
    operators: pd.DataFrame
    gpu_time: pd.DataFrame | None
    on_gpu: bool
    alike: tuple[float | None, float | None]
    steps: tuple[int, int]
    unmarked: tuple[bool, bool]
    without_shapes: tuple[bool, bool]
    without_layers: tuple[bool, bool]


def diff_traces(a: Recording, b: Recording, layers: pd.DataFrame) -> TraceDiff | None:
    """Compare the operators and kernels of two recordings. Return ``None`` if either does not contain a traced step.

    Parameters
    ----------
    a, b : Recording
    layers : DataFrame
        The matching layers, in the columns ``a`` and ``b``, as in `ProfileDiff.layers`.
    """
    if any(len(one.events) == 0 or one.traced_steps == 0 for one in (a, b)):
        return None
    trees = op_tree(a), op_tree(b)
    both = matched_ops(*trees, layers)
    on_gpu = all(len(tree.work) for tree in trees)
    what = "gpu_ms" if on_gpu else "host_ms"
    table, forest = _rows_of(both), forest_of(both.around)
    # The outermost operator around each row. A range outside all operators represents itself.
    top = outermost(forest, ~table["is_range"].to_numpy(dtype=bool))
    top = np.where(top != NONE, top, np.arange(len(top)))
    ops = _with_times_inside(table, both)
    work = _work_of(both)
    kernels = _kernels_of(work, table, top)
    return TraceDiff(
        ops=conform(_grown(_with_lost(ops, work), what), "diff_ops"),
        kernels=conform(_changed_most(_grown(kernels, "gpu_ms").drop(columns="grew_gpu_ms")), "diff_kernels"),
        operators=conform(_changed_most(_grown(_over_layers(_outermost_of(table, top, work)), what)), "diff_by_op"),
        gpu_time=_gpu_times(a, b) if on_gpu else None,
        on_gpu=on_gpu,
        alike=(_alike(table, f"self_{what}_a"), _alike(table, f"self_{what}_b")),
        steps=(trees[0].steps, trees[1].steps),
        unmarked=(_unmarked(a), _unmarked(b)),
        without_shapes=(trees[0].lacks("shapes"), trees[1].lacks("shapes")),
        without_layers=(trees[0].lacks("layer"), trees[1].lacks("layer")),
    )


def _unmarked(recording: Recording) -> bool:
    return recording.is_from_trace and not recording.meta["trace"].get("steps_marked", True)


def _alike(table: pd.DataFrame, time: str) -> float | None:
    """Return the share of time in rows whose operators were matched in the same layer or with the same shapes."""
    own = table[time].fillna(0.0).to_numpy(dtype=float)
    untold = table["shapes_a"].isna() | table["shapes_b"].isna()
    same = table["matched"].isin([LAYER, SHAPES]) | ((table["matched"] == NAME) & untold)
    return float(own[same.to_numpy(dtype=bool)].sum() / own.sum()) if own.sum() > 0 else None


def _gpu_times(a: Recording, b: Recording) -> pd.DataFrame:
    columns = {f"ms_{side}": _gpu_time_of(one) for side, one in zip(SIDES, (a, b), strict=True)}
    frame = pd.DataFrame(columns, index=pd.Index(GPU_FIGURES))
    return conform(frame.assign(grew_ms=frame["ms_b"] - frame["ms_a"]), "diff_gpu_time")


def _gpu_time_of(recording: Recording) -> dict[str, float]:
    """Return a device's work per step, as the mean over steps and devices."""
    events = all_events(recording)
    table = gpu_time_by_step(events)
    if table.empty:  # no steps are marked
        table = gpu_time(events)
    devices = table[["rank", "device"]].drop_duplicates()
    return {name: float(table[f"{name}_ms"].sum()) / recording.traced_steps / len(devices) for name in GPU_FIGURES}


def _rows_of(both: MatchedOps) -> pd.DataFrame:
    """Describe each row, how it was matched, and its own calls and times, which exclude the rows inside it."""
    length, head = len(both.head), both.head
    names = both.labels["name"].to_numpy(dtype=object)
    table = pd.DataFrame({"op": names[both.codes["name"].to_numpy()[head]]}, index=pd.RangeIndex(length))
    table["is_range"] = both.joined("is_range")[head]
    common = {}
    for place, side in enumerate(SIDES):
        heads = np.flatnonzero(both.is_head & (both.second == bool(place)))
        for word in (*_WORDS, "partner"):
            common[word, side] = _common(both.codes[word].to_numpy()[heads], both.row[heads], length)
        for word, column in _WORDS.items():
            labels = np.array([*both.labels[word], None], dtype=object)
            table[f"{column}_{side}"] = pd.Series(labels[common[word, side]], dtype=object)
        table = table.join(_own(both, place, heads).add_suffix(f"_{side}"))
    same = {
        word: (common[word, "a"] == common[word, "b"]) & (common[word, "a"] != NONE) for word in ("partner", "shapes")
    }
    how = np.where(same["partner"], LAYER, np.where(same["shapes"], SHAPES, NAME))
    alone = np.where(both.second[head], ONLY_B, ONLY_A)
    table["matched"] = np.where(both.found, how, alone).astype(object)
    for word in ("shapes", "layer", "phase"):
        table[word] = table[f"{word}_a"].where(both.found | ~both.second[head], table[f"{word}_b"])
    table["around"] = pd.Series(both.around, dtype="Int64").mask(both.around == NONE)
    table["depth"] = _ops_around(both.around, table["is_range"].to_numpy(dtype=bool))
    return table


def _own(both: MatchedOps, place: int, heads: Ints) -> pd.DataFrame:
    """Return each row's calls and own times per step in one of the traces, which are missing if it lacks the row."""
    length, tree = len(both.head), both.trees[place]
    has = both.found | (both.second[both.head] == bool(place))
    inside = np.flatnonzero((both.second == bool(place)) & (both.row != NONE))
    work = np.flatnonzero(both.work_row[place] != NONE)
    gpu = _summed(both.work_row[place][work], tree.work["duration_ns"].to_numpy()[work], length, tree.steps)
    frame = pd.DataFrame(
        {
            "calls": np.bincount(both.row[heads], minlength=length) / tree.steps,
            "self_host_ms": _summed(both.row[inside], both.joined("self_ns")[inside], length, tree.steps),
            "self_gpu_ms": gpu if len(tree.work) else np.nan,
        }
    )
    known: pd.DataFrame = frame.loc[has]
    return known.reindex(frame.index)


def _common(codes: Ints, row: Ints, length: int) -> Ints:
    """Return the code that all calls in a row share, or -1 if there is none or if the codes differ."""
    low, high = np.full(length, np.iinfo(np.int64).max), np.full(length, NONE, dtype=np.int64)
    np.minimum.at(low, row, codes)
    np.maximum.at(high, row, codes)
    return np.where(low == high, high, NONE)


def _summed(row: Ints, ns: Floats, length: int, steps: int) -> Floats:
    return np.bincount(row, weights=ns.astype(np.float64), minlength=length) / steps / 1e6


def _ops_around(around: Ints, is_range: np.ndarray) -> Ints:
    """Return the number of operators around each row. Ranges do not count."""
    depth, forest = np.zeros(len(around), dtype=np.int64), forest_of(around)
    for level in forest.by_depth()[1:]:
        above = around[level]
        depth[level] = depth[above] + ~is_range[above]
    return depth


def _with_times_inside(table: pd.DataFrame, both: MatchedOps) -> pd.DataFrame:
    """Add the total times of rows, which include their own time and all rows inside them."""
    forest = forest_of(both.around)
    whole = {}
    for time in _TIMES:
        for side in SIDES:
            own = table[f"{time}_{side}"]
            whole[f"{time.removeprefix('self_')}_{side}"] = pd.Series(
                subtree_sums(forest, own.fillna(0).to_numpy())
            ).mask(own.isna())
    return table.assign(**whole)


def _work_of(both: MatchedOps) -> pd.DataFrame:
    """Return the ``calls`` and ``ms`` per step of work, by row, side and kernel name.

    The row is -1 if the operator that launched the work is unknown.
    """
    parts = []
    for side, tree, row in zip(SIDES, both.trees, both.work_row, strict=True):
        keys = pd.DataFrame({"row": row, "name": tree.work["name"].astype(object), "ns": tree.work["duration_ns"]})
        sums = keys.groupby(["row", "name"], sort=False)["ns"].agg(["size", "sum"]).reset_index()
        calls, ms = sums["size"] / tree.steps, sums["sum"] / 1e6 / tree.steps
        parts.append(pd.DataFrame({"row": sums["row"], "side": side, "name": sums["name"], "calls": calls, "ms": ms}))
    return pd.concat(parts, ignore_index=True).sort_values(["ms", "name"], ascending=[False, True], ignore_index=True)


def _lost(work: pd.DataFrame) -> pd.DataFrame:
    """Return the row for work launched by unknown operators. The result is empty if there is no such work."""
    lost = work[work["row"] == NONE]
    row: dict[str, object] = {"op": NO_OP_ROW}
    for side in SIDES:
        known = bool((work["side"] == side).any())
        row[f"gpu_ms_{side}"] = float(lost.loc[lost["side"] == side, "ms"].sum()) if known else None
    return pd.DataFrame([row] if len(lost) else [])


def _with_lost(ops: pd.DataFrame, work: pd.DataFrame) -> pd.DataFrame:
    lost = _lost(work)
    if lost.empty:
        return ops
    own = {f"self_gpu_ms_{side}": lost[f"gpu_ms_{side}"] for side in SIDES}
    return pd.concat([ops, lost.assign(depth=0, is_range=False, **own)], ignore_index=True)


def _kernels_of(work: pd.DataFrame, table: pd.DataFrame, top: Ints) -> pd.DataFrame:
    """Return the kernels of each row on both sides. Kernels launched by unknown operators have one row per name."""
    lost = (work["row"] == NONE).to_numpy()
    key = work["row"].to_numpy().copy()
    key[lost] = len(table) + pd.factorize(work["name"][lost])[0]
    kernels = _by_side(work, key, pd.Index(np.unique(key)))
    place = kernels.index.to_numpy()
    known = place < len(table)
    says = table[[*_SAYS]].assign(inside=table["op"].to_numpy()[top], row=np.arange(len(table)))
    frame = pd.concat([says.reindex(place).set_axis(kernels.index), kernels], axis=1)
    both = (frame["gpu_ms_a"].notna() & frame["gpu_ms_b"].notna()).to_numpy()
    alone = np.where(frame["gpu_ms_a"].notna(), ONLY_A, ONLY_B)
    frame["matched"] = np.where(known, frame["matched"], np.where(both, NAME, alone))
    # If an operator in both traces launched nothing in one of them, it took no GPU time there.
    for side in SIDES:
        ran = (known & ~frame["matched"].isin([ONLY_A, ONLY_B]).to_numpy()) & bool((work["side"] == side).any())
        for name in ("calls", "gpu_ms"):
            frame[f"{name}_{side}"] = frame[f"{name}_{side}"].mask(ran & frame[f"{name}_{side}"].isna().to_numpy(), 0.0)
    return frame.reset_index(drop=True)


def _by_side(work: pd.DataFrame, key: Ints, index: pd.Index) -> pd.DataFrame:
    """Return, for each key and side, the kernel names, heaviest first, and the total calls and times."""
    columns = {}
    for side in SIDES:
        mine = (work["side"] == side).to_numpy()
        groups = work[mine].groupby(key[mine], sort=True)
        columns[f"kernels_{side}"] = groups["name"].agg(lambda names: list(dict.fromkeys(names)))
        columns[f"calls_{side}"], columns[f"gpu_ms_{side}"] = groups["calls"].sum(), groups["ms"].sum()
    frame = pd.DataFrame(columns, index=index)
    for side in SIDES:
        frame[f"kernels_{side}"] = [names if isinstance(names, list) else [] for names in frame[f"kernels_{side}"]]
    return frame


def _outermost_of(table: pd.DataFrame, top: Ints, work: pd.DataFrame) -> pd.DataFrame:
    key = np.append(top, NONE)[work["row"].to_numpy()]
    of_rows = [f"{time}_{side}" for time in _TIMES for side in SIDES]
    sums = table[of_rows].groupby(top).sum(min_count=1).rename(columns=lambda name: name.removeprefix("self_"))
    frame = table[[*_SAYS, "op_a", "op_b", "calls_a", "calls_b"]].loc[sums.index].join(sums)
    frame = pd.concat([frame, _lost(work).set_axis([NONE] * int((key == NONE).any()))])
    return frame.join(_by_side(work, key, frame.index)[["kernels_a", "kernels_b"]]).reset_index(drop=True)


def _over_layers(outermost_ops: pd.DataFrame) -> pd.DataFrame:
    groups = outermost_ops.groupby(["op", "shapes"], dropna=False, sort=False)
    frame = groups[_FIGURES].sum(min_count=1)
    frame["layers"] = groups["layer"].nunique()
    for name in ("op_a", "op_b", "matched"):
        frame[name] = groups[name].first().where(groups[name].nunique(dropna=False) == 1)
    for side in SIDES:
        frame[f"kernels_{side}"] = groups[f"kernels_{side}"].agg(lambda lists: list(dict.fromkeys(chain(*lists))))
    return frame.reset_index()


def _grown(table: pd.DataFrame, what: str) -> pd.DataFrame:
    """Add how much more time b takes, and the ratio of b to a.

    An operator that is missing on one side took no time there. ``grew_ms`` is the change in `what` (``host_ms`` or
    ``gpu_ms``). It is missing if `what` is GPU time and the operator has none on either side.
    """
    found = {}
    for time in ("host_ms", "gpu_ms"):
        if f"{time}_a" in table:
            a, b = (table[f"{time}_{side}"].astype("Float64") for side in SIDES)
            found[f"grew_{time}"] = (b.fillna(0.0) - a.fillna(0.0)).mask(a.isna() & b.isna())
    a, b = (table[f"{what}_{side}"].astype("Float64") for side in SIDES)
    nothing = (a.fillna(0.0) == 0) & (b.fillna(0.0) == 0) & (what == "gpu_ms")
    grew = found[f"grew_{what}"].mask(nothing)
    return table.assign(grew_ms=grew, **found, ratio=(b / a).mask(a.fillna(0.0) <= 0))


def _changed_most(table: pd.DataFrame) -> pd.DataFrame:
    """Sort the rows by their change, with the largest change first and unknown changes last."""
    order = np.argsort(-table["grew_ms"].abs().fillna(-1.0).to_numpy(dtype=float), kind="stable")
    return table.iloc[order].reset_index(drop=True)
