"""The operators of two traces in rows: each stands for the same operator of both, or for one that only one has.

Every moment in an operator on the host, and every piece of work on the GPU, counts in one row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.attribution.device_work import text
from perfnb.diff.op_matching import Matched, match_nodes
from perfnb.diff.op_tree import OpTree
from perfnb.recording.nesting import NONE, Bools, Forest, Ints, forest_of, innermost

_WORDS = ("name", "shapes", "layer", "phase", "forward_op")
_BACKWARD = re.compile(r"(?:Cudnn|Miopen|Mkldnn|Native)?([A-Za-z0-9_]*?Backward)[0-9]*")


@dataclass(frozen=True)
class MatchedOps:
    """The nodes of two trees one after another. Rows are numbered in the order in which a runs them, then b.

    Attributes
    ----------
    trees : tuple of OpTree
    second : ndarray of bool
        Whether each node is one of b's.
    codes : DataFrame
        ``name``, ``shapes``, ``layer``, ``phase`` of each node as numbers, -1 where missing; ``partner``: the layer
        again, where a layer of b has the number of the one of a that it was matched with.
    labels : dict of str to Index
        What the numbers stand for.
    row : ndarray
        The row that each node counts in; -1 for a range that only one of the two has.
    is_head : ndarray of bool
        Whether it is one of the calls that its row is of, and not only part of one.
    work_row : tuple of ndarray
        The row of each piece of work of a, and of b; -1 where no operator is known to have launched it.
    head : ndarray
        The first node of each row.
    found : ndarray of bool
        Whether each row has nodes of both.
    around : ndarray
        The row of the closest matched operator or range around each row; -1 for none.
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
        """A column of the nodes."""
        return np.concatenate([tree.nodes[column].to_numpy() for tree in self.trees])

    def lacking(self, word: str) -> tuple[bool, bool]:
        """Whether a, and b, tell shapes, or layers, of no node at all."""
        return _lacking(self.trees, word)


def matched_ops(a: OpTree, b: OpTree, layers: pd.DataFrame) -> MatchedOps:
    """Match two trees.

    Parameters
    ----------
    a, b : OpTree
    layers : DataFrame
        Which layer of b is which of a, in the columns ``a`` and ``b``.
    """
    trees = (a, b)
    second = np.repeat([False, True], [len(a.nodes), len(b.nodes)])
    is_range = np.concatenate([tree.nodes["is_range"].to_numpy(dtype=bool) for tree in trees])
    codes, labels = _codes(trees, second, layers)
    whole = forest_of(np.concatenate([a.forest.parent, _moved(b.forest.parent, len(a.nodes))]))
    kept = _in_both(codes["name"].to_numpy(), is_range, second) & ~_engines_of_one(trees)
    above = innermost(whole, kept)
    keys = _keys(codes, labels, second)
    places = np.flatnonzero(kept)
    number = np.full(len(kept) + 1, NONE, dtype=np.int64)
    number[places] = np.arange(len(places))
    forest = forest_of(number[above[places]])

    if any(_lacking(trees, "layer")):
        keys["layer"] = NONE
    matched = match_nodes(second[places], keys.iloc[places], forest)
    row, is_head = _rows(matched, forest, is_range[places], keys["layer"].to_numpy()[places])

    # Rows are numbered again, by their first calls; the last of `again` is for none.
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
    launchers = (a.work["node"].to_numpy(), _moved(b.work["node"].to_numpy(), len(a.nodes)))
    return MatchedOps(
        trees,
        second,
        codes,
        labels,
        row_of[:-1],
        full_head,
        (row_of[closest[launchers[0]]], row_of[closest[launchers[1]]]),
        places[head],
        matched.group[head] != NONE,
        again[matched.context[head]],
    )


def _lacking(trees: tuple[OpTree, OpTree], word: str) -> tuple[bool, bool]:
    return bool(trees[0].nodes[word].isna().all()), bool(trees[1].nodes[word].isna().all())


def _moved(places: Ints, by: int) -> Ints:
    return np.where(places == NONE, NONE, places + by)


def _codes(
    trees: tuple[OpTree, OpTree], second: Bools, layers: pd.DataFrame
) -> tuple[pd.DataFrame, dict[str, pd.Index]]:
    columns, labels = {}, {}
    for word in _WORDS:
        parts = [text(tree.nodes, word) for tree in trees]
        known = pd.Index(pd.unique(np.concatenate([own.to_numpy(dtype=object) for _, own in parts])), dtype="object")
        columns[word] = np.concatenate([np.append(known.get_indexer(own), NONE)[code] for code, own in parts])
        labels[word] = known
    layer = columns["layer"]
    pairs = layers[layers["a"].notna() & layers["b"].notna()]
    a, b = (labels["layer"].get_indexer(pd.Index(pairs[side].astype(object))) for side in ("a", "b"))
    # A layer of b without a partner is none of a's, whatever its name.
    partner = np.append(np.arange(len(labels["layer"])) + len(labels["layer"]), NONE)
    partner[b[(a != NONE) & (b != NONE)]] = a[(a != NONE) & (b != NONE)]
    return pd.DataFrame({**columns, "partner": np.where(second, partner[layer], layer)}), labels


def _keys(codes: pd.DataFrame, labels: dict[str, pd.Index], second: Bools) -> pd.DataFrame:
    """What nodes are matched by.

    A node of the backward pass whose name only one of the two has (``MiopenBatchNormBackward0``) goes by the operator
    that made it, and where the traces do not tell that, by its name without maker and number. Where one of the two
    tells no shapes of any operator of a name, none are looked at.
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
    """A number for what each name of a backward node says without maker and version; -1 for other names."""
    found = [_BACKWARD.fullmatch(str(name)) for name in names]
    codes = pd.factorize(np.array([match and match[1] for match in found], dtype=object))[0].astype(np.int64)
    return np.append(codes, NONE)


def _engines_of_one(trees: tuple[OpTree, OpTree]) -> Bools:
    """The engine's marks around nodes of the backward pass, where the other trace is too old to have any."""
    marks = [tree.nodes["is_engine"].to_numpy(dtype=bool) for tree in trees]
    joined: Bools = np.concatenate(marks)
    return joined & ~(marks[0].any() & marks[1].any())


def _in_both(name: Ints, is_range: Bools, second: Bools) -> Bools:
    """All nodes but the ranges that only one of the two has: they would part what is inside from its partner."""
    kept = ~is_range
    both = np.intersect1d(name[is_range & ~second], name[is_range & second])
    return np.asarray(kept | np.isin(name, both))


def _rows(matched: Matched, forest: Forest, is_range: Bools, layer: Ints) -> tuple[Ints, Bools]:
    """The row that each node counts in, and whether it is one of the calls that the row is of.

    What has no partner counts in the closest operator around it that has a row, as long as that is in the same layer:
    it is how that operator is done. Else it has a row of its own.
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
