"""Tables of two traces side by side: rows of operators, the kernels behind them, and their sums."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pandas as pd

from perfnb.diff.op_matching import MatchedOps
from perfnb.recording.nesting import NONE, Floats, Ints, forest_of, subtree_sums
from perfnb.recording.schema import NO_OP_ROW

LAYER, SHAPES, NAME, ONLY_A, ONLY_B = "layer", "shapes", "name", "only a", "only b"
#: Any way in which an operator of one was matched with one of the other.
BOTH = "both"
SIDES = ("a", "b")
_WORDS = {"name": "op", "shapes": "shapes", "layer": "layer", "phase": "phase"}
_TIMES = ("self_host_ms", "self_gpu_ms")
_SAYS = ("op", "shapes", "layer", "phase", "matched")
_FIGURES = [f"{name}_{side}" for name in ("calls", "host_ms", "gpu_ms") for side in SIDES]


def rows_of(both: MatchedOps) -> pd.DataFrame:
    """What each row is, how it was matched, and its own calls and times, without those of the rows inside it."""
    length, head = len(both.head), both.head
    names = both.labels["name"].to_numpy(dtype=object)
    table = pd.DataFrame({"op": names[both.codes["name"].to_numpy()[head]]}, index=pd.RangeIndex(length))
    table["is_range"] = both.joined("is_range")[head]
    common = {}
    for place, side in enumerate(SIDES):
        mine = both.second == bool(place)
        heads = np.flatnonzero(both.is_head & mine)
        for word in ("name", "shapes", "layer", "phase", "partner"):
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
    table["around"] = pd.array(both.around, dtype="Int64")
    table["around"] = table["around"].mask(both.around == NONE)
    table["depth"] = _ops_around(both.around, table["is_range"].to_numpy(dtype=bool))
    return table


def _own(both: MatchedOps, place: int, heads: Ints) -> pd.DataFrame:
    """Calls and own times of each row in one of the two, per step; missing if it does not have the row."""
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
    """The code that all calls of a row share; -1 if they have none or differ."""
    low, high = np.full(length, np.iinfo(np.int64).max), np.full(length, NONE, dtype=np.int64)
    np.minimum.at(low, row, codes)
    np.maximum.at(high, row, codes)
    return np.where(low == high, high, NONE)


def _summed(row: Ints, ns: Floats, length: int, steps: int) -> Floats:
    return np.bincount(row, weights=ns.astype(np.float64), minlength=length) / steps / 1e6


def _ops_around(around: Ints, is_range: np.ndarray) -> Ints:
    """Number of operators around each row; ranges do not count."""
    depth, forest = np.zeros(len(around), dtype=np.int64), forest_of(around)
    for level in forest.by_depth()[1:]:
        above = around[level]
        depth[level] = depth[above] + ~is_range[above]
    return depth


def with_times_inside(table: pd.DataFrame, both: MatchedOps) -> pd.DataFrame:
    """Add the total times of rows: their own and those of all rows inside."""
    forest = forest_of(both.around)
    whole = {}
    for time in _TIMES:
        for side in SIDES:
            own = table[f"{time}_{side}"]
            whole[f"{time.removeprefix('self_')}_{side}"] = pd.Series(
                subtree_sums(forest, own.fillna(0).to_numpy())
            ).mask(own.isna())
    return table.assign(**whole)


def work_of(both: MatchedOps) -> pd.DataFrame:
    """Work by row, side and kernel name: ``calls`` and ``ms`` per step; row -1 if its operator is not known."""
    parts = []
    for side, tree, row in zip(SIDES, both.trees, both.work_row, strict=True):
        keys = pd.DataFrame({"row": row, "name": tree.work["name"].astype(object), "ns": tree.work["duration_ns"]})
        sums = keys.groupby(["row", "name"], sort=False)["ns"].agg(["size", "sum"]).reset_index()
        calls, ms = sums["size"] / tree.steps, sums["sum"] / 1e6 / tree.steps
        parts.append(pd.DataFrame({"row": sums["row"], "side": side, "name": sums["name"], "calls": calls, "ms": ms}))
    return pd.concat(parts, ignore_index=True).sort_values(["ms", "name"], ascending=[False, True], ignore_index=True)


def _lost(work: pd.DataFrame) -> pd.DataFrame:
    """The row of work launched by an unknown operator; empty if there is none."""
    lost = work[work["row"] == NONE]
    row: dict[str, object] = {"op": NO_OP_ROW}
    for side in SIDES:
        known = bool((work["side"] == side).any())
        row[f"gpu_ms_{side}"] = float(lost.loc[lost["side"] == side, "ms"].sum()) if known else None
    return pd.DataFrame([row] if len(lost) else [])


def with_lost(ops: pd.DataFrame, work: pd.DataFrame) -> pd.DataFrame:
    lost = _lost(work)
    if lost.empty:
        return ops
    own = {f"self_gpu_ms_{side}": lost[f"gpu_ms_{side}"] for side in SIDES}
    return pd.concat([ops, lost.assign(depth=0, is_range=False, **own)], ignore_index=True)


def kernels_of(work: pd.DataFrame, table: pd.DataFrame, top: Ints) -> pd.DataFrame:
    """The kernels of each row on both sides; those launched by an unknown operator have one row per name."""
    lost = (work["row"] == NONE).to_numpy()
    key = work["row"].to_numpy().copy()
    key[lost] = len(table) + pd.factorize(work["name"][lost])[0]
    kernels = _by_side(work, key)
    place = kernels.index.to_numpy()
    known = place < len(table)
    says = table[[*_SAYS]].assign(inside=table["op"].to_numpy()[top], row=np.arange(len(table)))
    frame = pd.concat([says.reindex(place).set_axis(kernels.index), kernels], axis=1)
    both = (frame["gpu_ms_a"].notna() & frame["gpu_ms_b"].notna()).to_numpy()
    alone = np.where(frame["gpu_ms_a"].notna(), ONLY_A, ONLY_B)
    frame["matched"] = np.where(known, frame["matched"], np.where(both, NAME, alone))
    # An operator in both took no GPU time in the one where it launched nothing.
    for side in SIDES:
        ran = (known & ~frame["matched"].isin([ONLY_A, ONLY_B]).to_numpy()) & bool((work["side"] == side).any())
        for name in ("calls", "gpu_ms"):
            frame[f"{name}_{side}"] = frame[f"{name}_{side}"].mask(ran & frame[f"{name}_{side}"].isna().to_numpy(), 0.0)
    return frame.reset_index(drop=True)


def _by_side(work: pd.DataFrame, key: Ints) -> pd.DataFrame:
    """For each key and side: kernel names, heaviest first, and the sums of their calls and times."""
    columns = {}
    for side in SIDES:
        mine = (work["side"] == side).to_numpy()
        groups = work[mine].groupby(key[mine], sort=True)
        names = groups["name"].agg(lambda names: list(dict.fromkeys(names)))
        columns[f"kernels_{side}"] = names
        columns[f"calls_{side}"], columns[f"gpu_ms_{side}"] = groups["calls"].sum(), groups["ms"].sum()
    frame = pd.DataFrame(columns, index=pd.Index(np.unique(key)))
    for side in SIDES:
        frame[f"kernels_{side}"] = [names if isinstance(names, list) else [] for names in frame[f"kernels_{side}"]]
    return frame


def outermost_of(table: pd.DataFrame, top: Ints, work: pd.DataFrame) -> pd.DataFrame:
    key = np.append(top, NONE)[work["row"].to_numpy()]
    of_rows = [f"{time}_{side}" for time in _TIMES for side in SIDES]
    sums = table[of_rows].groupby(top).sum(min_count=1).rename(columns=lambda name: name.removeprefix("self_"))
    frame = table[[*_SAYS, "op_a", "op_b", "calls_a", "calls_b"]].loc[sums.index].join(sums)
    frame = pd.concat([frame, _lost(work).set_axis([NONE] * int((key == NONE).any()))])
    kernels = _by_side(work, key)[["kernels_a", "kernels_b"]].reindex(frame.index)
    for side in SIDES:
        frame[f"kernels_{side}"] = [names if isinstance(names, list) else [] for names in kernels[f"kernels_{side}"]]
    return frame.reset_index(drop=True)


def over_layers(outermost_ops: pd.DataFrame) -> pd.DataFrame:
    groups = outermost_ops.groupby(["op", "shapes"], dropna=False, sort=False)
    frame = groups[_FIGURES].sum(min_count=1)
    frame["layers"] = groups["layer"].nunique()
    for name in ("op_a", "op_b", "matched"):
        frame[name] = groups[name].first().where(groups[name].nunique(dropna=False) == 1)
    for side in SIDES:
        frame[f"kernels_{side}"] = groups[f"kernels_{side}"].agg(lambda lists: list(dict.fromkeys(chain(*lists))))
    return frame.reset_index()


def grown(table: pd.DataFrame, what: str) -> pd.DataFrame:
    """Add how much more time b takes, and the ratio of b to a.

    An operator that one of them lacks took no time there. ``grew_ms`` is the change of `what` (``host_ms`` or
    ``gpu_ms``), missing if that is GPU time and neither has any.
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


def uneven_of(ops: pd.DataFrame, by_op: pd.DataFrame) -> pd.DataFrame:
    """Operators that the two call a different number of times, all layers summed, longest on the host first.

    Of those that only one has, the outermost with all inside; of those that both have, the outermost operators.
    """
    alone = ops["matched"].isin([ONLY_A, ONLY_B]).to_numpy(dtype=bool)
    around = ops["around"].fillna(NONE).to_numpy(dtype=np.int64)
    inside = (around != NONE) & alone[around]
    rows = ops[alone & ~inside]
    table = rows.groupby(["op", "shapes", "matched"], dropna=False, sort=False)[_FIGURES].sum(min_count=1)
    calls = by_op[["calls_a", "calls_b"]].astype("Float64")
    differ = calls.notna().all(axis=1) & ((calls["calls_a"] - calls["calls_b"]).abs() > 1e-9).fillna(False)
    both = by_op.loc[differ & ~by_op["op"].isin(table.index.get_level_values("op")), ["op", "shapes", *_FIGURES]]
    table = pd.concat([table.reset_index(), both.assign(matched=BOTH)], ignore_index=True)
    longest = table[["host_ms_a", "host_ms_b"]].astype("Float64").max(axis=1).fillna(-1.0).to_numpy(dtype=float)
    uneven: pd.DataFrame = table.iloc[np.argsort(-longest, kind="stable")].reset_index(drop=True)
    return uneven


def changed_most(table: pd.DataFrame) -> pd.DataFrame:
    change = table["grew_ms"].abs().fillna(-1.0).to_numpy(dtype=float)
    return table.iloc[np.argsort(-change, kind="stable")].reset_index(drop=True)
