"""Which operator of one trace is which of another: two trees of operators, matched from the top.

What is matched is a unit: all calls of one operator with the same shapes, in the same layer and phase, inside the same
matched operator. Units are matched one to one, level by level. What finds no partner is opened, and what lies inside
it looks for one beside it: a layer of calls that only one of the two has does not part what is below.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from perfnb.attribution.device_work import pairs
from perfnb.recording.nesting import NONE, Bools, Forest, Ints

_KEYS = ("context", "name", "shapes", "layer", "phase")
#: In what two units must agree, from the best match to the poorest; of several that do, the first is the first's
#: partner, the second the second's.
_TIERS = (
    _KEYS,
    ("context", "name", "layer", "phase"),
    ("context", "name", "shapes", "phase"),
    ("context", "name", "shapes"),
    ("context", "name", "phase"),
    ("context", "name"),
)


class Matched(NamedTuple):
    """What became of each node.

    Attributes
    ----------
    group : ndarray
        Number of the matched pair of units that the node belongs to; -1 for none.
    unit : ndarray
        Number of its unit.
    context : ndarray
        Group of the closest matched node around it; -1 for none.
    """

    group: Ints
    unit: Ints
    context: Ints


def match_nodes(side: Bools, words: pd.DataFrame, forest: Forest) -> Matched:
    """Match the nodes of two trees.

    Parameters
    ----------
    side : ndarray of bool
        Whether each node is of the second tree.
    words : DataFrame
        ``name``, ``shapes``, ``layer``, ``phase``: a number for each text, the same in both trees; -1 where missing.
        Nodes of a tree stand in order of time.
    forest : Forest
        Both trees.
    """
    count = len(side)
    unit, context = (np.full(count, NONE, dtype=np.int64) for _ in range(2))
    group_of = np.full(count + 1, NONE, dtype=np.int64)  # of each unit; there are no more units than nodes
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
        # Where nothing new came, nothing new can be found.
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
    """Units of the first and of the second tree that agree, in the order in which they come."""
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
    """How many equal values come before each."""
    order = np.argsort(values, kind="stable")
    begins = np.flatnonzero(np.append(True, np.diff(values[order]) != 0))
    run = np.repeat(begins, np.diff(np.append(begins, len(values))))
    result = np.empty(len(values), dtype=np.int64)
    result[order] = np.arange(len(values)) - run
    return result
