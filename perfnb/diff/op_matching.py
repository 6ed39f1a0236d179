"""Match the operators of two traces. The two operator trees are matched from the top and mapped to common rows.

A unit is all calls of one operator with the same shapes, in the same layer and phase, inside the same matched operator.
Units are matched one to one, level by level. If a unit has no partner, the units inside it are matched in its place, so
a wrapper that exists in only one of the traces does not separate the units below it. Each row of the result represents
an operator in both traces, or an operator that exists in only one of them. Every moment in an operator on the host, and
every piece of GPU work, belongs to exactly one row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from perfnb.attribution.device_work import pairs, text
from perfnb.diff.op_tree import OpTree
from perfnb.recording.nesting import NONE, Bools, Forest, Ints, forest_of, innermost

_WORDS = ("name", "shapes", "layer", "phase", "forward_op")
_BACKWARD = re.compile(r"(?:Cudnn|Miopen|Mkldnn|Native)?([A-Za-z0-9_]*?Backward)[0-9]*")
_KEYS = ("context", "name", "shapes", "layer", "phase")
#: The properties that two units must share, from the best to the weakest match. If several units share them, the n-th
#: unit is matched with the n-th unit on the other side.
_TIERS = (
    _KEYS,
    ("context", "name", "layer", "phase"),
    ("context", "name", "shapes", "phase"),
    ("context", "name", "shapes"),
    ("context", "name", "phase"),
    ("context", "name"),
)


@dataclass(frozen=True)
class MatchedOps:
    """The nodes of tree a followed by those of tree b. Rows are numbered in a's order of execution, followed by b's.

    Attributes
    ----------
    trees : tuple of OpTree
    second : ndarray of bool
        Whether each node belongs to b.
    codes : DataFrame
        The ``name``, ``shapes``, ``layer`` and ``phase`` of each node as codes, which are -1 if missing. ``partner`` is
        also the layer, except that layers of b have the code of the matching layer of a.
    labels : dict of str to Index
        The text that each code represents.
    row : ndarray
        The row to which each node belongs, or -1 for ranges that exist in only one of the trees.
    is_head : ndarray of bool
        Whether the node is one of its row's calls, as opposed to a part of such a call.
    work_row : tuple of ndarray
        For a and b, the row of each piece of work, or -1 if the operator that launched it is unknown.
    head : ndarray
        The first node of each row.
    found : ndarray of bool
        Whether each row has nodes from both trees.
    around : ndarray
        The row of the closest matched operator or range around each row, or -1 if there is none.
    """

    trees: tuple[OpTree, OpTree]
    second: Bools
    codes: pd.DataFrame
    labels: dict[str, pd.Index]
    row: Ints
    is_head: Bools
    work_row: tuple[Ints, Ints]
    head: Ints
    found: Bools
    around: Ints

    def joined(self, column: str) -> np.ndarray:
        """Return a column of the nodes of both trees."""
        return np.concatenate([tree.nodes[column].to_numpy() for tree in self.trees])


def matched_ops(a: OpTree, b: OpTree, layers: pd.DataFrame) -> MatchedOps:
    """Match the operators of two trees.

    Parameters
    ----------
    a, b : OpTree
    layers : DataFrame
        The matching layers, in the columns ``a`` and ``b``.
    """
    trees = (a, b)
    second = np.repeat([False, True], [len(a.nodes), len(b.nodes)])
    is_range = np.concatenate([tree.nodes["is_range"].to_numpy(dtype=bool) for tree in trees])
    codes, labels = _codes(trees, second, layers)
    whole = forest_of(np.concatenate([a.forest.parent, _moved(b.forest.parent, len(a.nodes))]))
    kept = _kept(trees, codes["name"].to_numpy(), is_range, second)
    above = innermost(whole, kept)
    keys = _keys(codes, labels, second)
    places = np.flatnonzero(kept)
    number = np.full(len(kept) + 1, NONE, dtype=np.int64)
    number[places] = np.arange(len(places))
    forest = forest_of(number[above[places]])

    if a.lacks("layer") or b.lacks("layer"):
        keys["layer"] = NONE
    matched = match_nodes(second[places], keys.iloc[places], forest)
    row, is_head = _rows(matched, forest, is_range[places], keys["layer"].to_numpy()[places])

    # Rows are renumbered in the order of their first calls. The last element of `again` represents "no row".
    heads = np.flatnonzero(is_head)
    used, first = np.unique(row[heads], return_index=True)
    order = np.argsort(first)
    again = np.full(int(row.max(initial=NONE)) + 2, NONE, dtype=np.int64)
    again[used[order]] = np.arange(len(used))
    head = heads[first[order]]
    row_of = np.full(len(kept) + 1, NONE, dtype=np.int64)
    row_of[places] = again[row]
    full_head = np.zeros(len(kept), dtype=bool)
    full_head[places[heads]] = True
    closest = np.append(np.where(kept, np.arange(len(kept)), above), NONE)
    work_a, work_b = a.work["node"].to_numpy(), _moved(b.work["node"].to_numpy(), len(a.nodes))
    return MatchedOps(
        trees,
        second,
        codes,
        labels,
        row_of[:-1],
        full_head,
        (row_of[closest[work_a]], row_of[closest[work_b]]),
        places[head],
        matched.group[head] != NONE,
        again[matched.context[head]],
    )


def _moved(places: Ints, by: int) -> Ints:
    return np.where(places == NONE, NONE, places + by)


def _codes(
    trees: tuple[OpTree, OpTree], second: Bools, layers: pd.DataFrame
) -> tuple[pd.DataFrame, dict[str, pd.Index]]:
    columns, labels = {}, {}
    for word in _WORDS:
        parts = [text(tree.nodes, word) for tree in trees]
        every: Any = np.concatenate([own.to_numpy(dtype=object) for _, own in parts])
        known = pd.Index(pd.unique(every), dtype="object")
        columns[word] = np.concatenate([np.append(known.get_indexer(own), NONE)[code] for code, own in parts])
        labels[word] = known
    layer = columns["layer"]
    pairs = layers[layers["a"].notna() & layers["b"].notna()]
    a, b = (labels["layer"].get_indexer(pd.Index(pairs[side].astype(object))) for side in ("a", "b"))
    # A layer of b without a partner is not a layer of a, even if it has the same name.
    partner = np.append(np.arange(len(labels["layer"])) + len(labels["layer"]), NONE)
    partner[b[(a != NONE) & (b != NONE)]] = a[(a != NONE) & (b != NONE)]
    return pd.DataFrame({**columns, "partner": np.where(second, partner[layer], layer)}), labels


def _keys(codes: pd.DataFrame, labels: dict[str, pd.Index], second: Bools) -> pd.DataFrame:
    """Return the keys by which nodes are matched.

    If the name of a backward node exists in only one of the trees (``MiopenBatchNormBackward0``), the node is matched
    by the operator that created it. If the traces do not record this operator, the node is matched by its name without
    vendor and number. If either tree lacks shapes for all operators with a certain name, shapes are ignored for this
    name.
    """
    name, shapes = codes["name"].to_numpy(), codes["shapes"].to_numpy()
    alias = codes["forward_op"].to_numpy()
    if not ((alias[~second] != NONE).any() and (alias[second] != NONE).any()):
        alias = _without_maker(labels["name"])[name]
    one_has = ~np.isin(name, np.intersect1d(name[~second], name[second]))
    name = np.where(one_has & (alias != NONE), alias + len(labels["name"]), name)
    told = shapes != NONE
    known = np.isin(name, np.intersect1d(name[told & ~second], name[told & second]))
    return pd.DataFrame(
        {"name": name, "shapes": np.where(known, shapes, NONE), "layer": codes["partner"], "phase": codes["phase"]}
    )


def _without_maker(names: pd.Index) -> Ints:
    """Return a code for the name of each backward node without vendor and version, or -1 for any other name."""
    found = [_BACKWARD.fullmatch(str(name)) for name in names]
    codes = pd.factorize(np.array([match and match[1] for match in found], dtype=object))[0].astype(np.int64)
    return np.append(codes, NONE)


def _kept(trees: tuple[OpTree, OpTree], name: Ints, is_range: Bools, second: Bools) -> Bools:
    """Return all nodes except those that would separate nodes inside them from their partners.

    The excluded nodes are ranges that exist in only one of the trees, and the engine's ranges around backward nodes if
    the other trace is too old to contain them.
    """
    both = np.intersect1d(name[is_range & ~second], name[is_range & second])
    marks = [tree.nodes["is_engine"].to_numpy(dtype=bool) for tree in trees]
    of_one: Bools = np.concatenate(marks) & ~(marks[0].any() & marks[1].any())
    return np.asarray((~is_range | np.isin(name, both)) & ~of_one)


def _rows(matched: Matched, forest: Forest, is_range: Bools, layer: Ints) -> tuple[Ints, Bools]:
    """Return the row to which each node belongs, and whether the node is one of the row's calls.

    A node without a partner counts as part of the closest enclosing operator with a row, provided that both are in the
    same layer, because it is then part of that operator's implementation. Otherwise, it gets its own row.
    """
    alone = matched.unit + matched.group.max(initial=NONE) + 1
    row = np.where(matched.group != NONE, matched.group, alone)
    is_head = np.ones(len(row), dtype=bool)
    for level in forest.by_depth()[1:]:
        above = forest.parent[level]
        inside = (matched.group[level] == NONE) & ~is_range[level] & ~is_range[above] & (layer[level] == layer[above])
        row[level[inside]] = row[above[inside]]
        is_head[level[inside]] = False
    return row, is_head


class Matched(NamedTuple):
    """The result of matching nodes, with one element per node.

    Attributes
    ----------
    group : ndarray
        The number of the matched pair of units to which the node belongs, or -1 if there is none.
    unit : ndarray
        The number of the node's unit.
    context : ndarray
        The group of the closest matched node around it, or -1 if there is none.
    """

    group: Ints
    unit: Ints
    context: Ints


def match_nodes(side: Bools, words: pd.DataFrame, forest: Forest) -> Matched:
    """Match the nodes of two trees level by level.

    Parameters
    ----------
    side : ndarray of bool
        Whether each node is in the second tree.
    words : DataFrame
        The codes for ``name``, ``shapes``, ``layer`` and ``phase``. Codes are the same in both trees, and -1 if
        missing. The nodes of each tree are in chronological order.
    forest : Forest
        Both trees.
    """
    count = len(side)
    unit, context = (np.full(count, NONE, dtype=np.int64) for _ in range(2))
    group_of = np.full(count + 1, NONE, dtype=np.int64)  # the group of each unit; there cannot be more units than nodes
    keys = {name: words[name].to_numpy(dtype=np.int64) for name in _KEYS[1:]} | {"side": side.astype(np.int64)}
    left = {name: np.array([], dtype=np.int64) for name in ("unit", "first", "side", *_KEYS)}
    units = groups = 0
    for level in forest.by_depth():
        above = forest.parent[level]
        of_above = np.where(above != NONE, group_of[unit[above]], NONE)
        context[level] = np.where(of_above != NONE, of_above, np.where(above != NONE, context[above], NONE))
        fine = {name: values[level] for name, values in keys.items()} | {"context": context[level]}
        number = pairs(*(fine[name] for name in ("side", *_KEYS)))
        unit[level] = units + number
        first = np.unique(number, return_index=True)[1]
        new = {name: values[first] for name, values in fine.items()}
        new |= {"unit": units + number[first], "first": level[first]}
        units += len(first)
        left = {name: np.concatenate([values, new[name]]) for name, values in left.items()}
        # If there are no new units, there cannot be any new matches.
        touched = np.isin(left["context"], new["context"])
        waiting, now = _chosen(left, ~touched), _chosen(left, touched)
        now = _chosen(now, np.argsort(now["first"], kind="stable"))
        for tier in _TIERS:
            found = _pairs(now, tier)
            group_of[found[0]] = group_of[found[1]] = groups + np.arange(len(found[0]))
            groups += len(found[0])
            now = _chosen(now, group_of[now["unit"]] == NONE)
        left = {name: np.concatenate([values, now[name]]) for name, values in waiting.items()}
    return Matched(group_of[unit], unit, context)


def _chosen(units: dict[str, Ints], which: Bools | Ints) -> dict[str, Ints]:
    return {name: values[which] for name, values in units.items()}


def _pairs(units: dict[str, Ints], tier: tuple[str, ...]) -> tuple[Ints, Ints]:
    """Return the units of the first and the second tree that match, in order."""
    if "shapes" not in tier and "layer" in tier:
        units = _chosen(units, units["layer"] != NONE)
    second = units["side"] == 1
    if second.all() or not second.any():
        return np.array([], dtype=np.int64), np.array([], dtype=np.int64)
    key = pairs(*(units[name] for name in tier))
    sides = [np.flatnonzero(~second), np.flatnonzero(second)]
    first, other = (key[of_side] * len(key) + _place_among_equals(key[of_side]) for of_side in sides)
    _, a, b = np.intersect1d(first, other, assume_unique=True, return_indices=True)
    return units["unit"][sides[0][a]], units["unit"][sides[1][b]]


def _place_among_equals(values: Ints) -> Ints:
    """Return how many equal values precede each value."""
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(values[order]) != 0))
    run = np.repeat(starts, np.diff(np.append(starts, len(values))))
    result = np.empty(len(values), dtype=np.int64)
    result[order] = np.arange(len(values)) - run
    return result
