"""Nesting of layers, and which of them to list on one page."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from perfnb import quantities as fmt
from perfnb.recording.schema import SPECIAL_ROWS

_NO_PARENT = -1


@dataclass(frozen=True)
class Tree:
    """Layers by position in the frame; parents come before their children.

    Attributes
    ----------
    names : tuple of str
        Qualified names.
    labels : tuple of str
        Name relative to the parent.
    parents : tuple of int
        Position of each parent, -1 for roots.
    children : tuple of tuple of int
        Positions of each layer's children.
    """

    names: tuple[str, ...]
    labels: tuple[str, ...]
    parents: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]

    @property
    def roots(self) -> tuple[int, ...]:
        """Positions of layers without a parent."""
        return tuple(i for i, parent in enumerate(self.parents) if parent == _NO_PARENT)

    def inside(self) -> list[int]:
        """Return the number of layers inside each layer, at any depth."""
        total = [0] * len(self.names)
        for position in range(len(self.names) - 1, -1, -1):
            if self.parents[position] != _NO_PARENT:
                total[self.parents[position]] += 1 + total[position]
        return total


@dataclass(frozen=True)
class Line:
    """One line of a listing: a layer, or a placeholder for layers left out.

    Attributes
    ----------
    layer : int
        Position of the layer, -1 for a placeholder.
    depth : int
        Depth below the root.
    last : tuple of bool
        Whether the line, and each of its ancestors below the root, is the last of its siblings.
    left_out : tuple of int
        Siblings not listed.
    inside : int
        Number of layers inside this one, if none of them is listed.
    """

    layer: int
    depth: int
    last: tuple[bool, ...]
    left_out: tuple[int, ...] = ()
    inside: int = 0


def split_layers(layers: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split the frame into modules and special rows."""
    special = layers.index.isin(SPECIAL_ROWS) & layers["module"].isna().to_numpy()
    return layers[~special], layers[special]


def build_tree(modules: pd.DataFrame) -> Tree:
    """Nest layers by their dotted names, or by depth if the name does not tell."""
    names = [str(name) for name in modules.index]
    depths = [fmt.known(depth) or 0.0 for depth in modules["depth"]]
    seen: dict[str, int] = {}
    open_rows: list[int] = []
    labels, parents = [], []
    children: list[list[int]] = [[] for _ in names]
    for position, name in enumerate(names):
        while open_rows and depths[open_rows[-1]] >= depths[position]:
            open_rows.pop()
        parent = _named_parent(name, seen)
        labels.append(name if parent is None else name[len(names[parent]) + 1 :])
        if parent is None:
            parent = open_rows[-1] if open_rows else _NO_PARENT
        if parent != _NO_PARENT:
            children[parent].append(position)
        parents.append(parent)
        seen.setdefault(name, position)
        open_rows.append(position)
    return Tree(tuple(names), tuple(labels), tuple(parents), tuple(map(tuple, children)))


def _named_parent(name: str, seen: dict[str, int]) -> int | None:
    end = len(name)
    for _ in range(100):  # no module nests deeper, but a hostile name may have thousands of dots
        end = name.rfind(".", 0, end)
        if end <= 0:
            return None
        if name[:end] in seen:
            return seen[name[:end]]
    return None


def page_of(tree: Tree, weights: Sequence[float], first: Iterable[str], limit: int) -> list[Line]:
    """Choose the lines of a listing: the heaviest layers and the path to each.

    Parameters
    ----------
    tree : Tree
    weights : sequence of float
        Weight of each layer.
    first : iterable of str
        Names with priority, each after its parent.
    limit : int
        Maximum number of lines, placeholders included.
    """
    shown: set[int] = set()
    families = Counter(tree.parents)
    hidden = Counter(families)

    def growth(position: int) -> int:
        left = hidden[tree.parents[position]]
        return 1 + int(left > 1) - int(0 < left < families[tree.parents[position]])

    def show(position: int) -> int:
        grown = growth(position)
        shown.add(position)
        hidden[tree.parents[position]] -= 1
        return grown

    def worth(position: int) -> bool:
        return everything or weights[position] > 0 or not weighed

    places = {name: position for position, name in enumerate(tree.names)}
    everything = len(tree.names) <= limit
    weighed = any(weight > 0 for weight in weights)
    lines = 0
    for position in [places[name] for name in first if name in places]:
        reachable = tree.parents[position] == _NO_PARENT or tree.parents[position] in shown
        if reachable and worth(position) and position not in shown and lines + growth(position) <= limit:
            lines += show(position)
    queue = [(-weights[i], i) for i in tree.roots]
    heapq.heapify(queue)
    while queue:
        _, position = heapq.heappop(queue)
        if position not in shown:
            if not everything and (lines + growth(position) > limit or not worth(position)):
                continue
            lines += show(position)
        for child in tree.children[position]:
            heapq.heappush(queue, (-weights[child], child))
    return _lines(tree, shown)


def _lines(tree: Tree, shown: set[int]) -> list[Line]:
    inside = tree.inside()
    result: list[Line] = []
    roots = tree.roots
    hidden_roots = tuple(i for i in roots if i not in shown)
    stack: list[Line] = [Line(_NO_PARENT, 0, (), hidden_roots)] if hidden_roots else []
    stack += [Line(i, 0, ()) for i in reversed(roots) if i in shown]
    while stack:
        line = stack.pop()
        if line.layer == _NO_PARENT:
            result.append(line)
            continue
        family = tree.children[line.layer]
        listed = [i for i in family if i in shown]
        left_out = tuple(i for i in family if i not in shown)
        closed = bool(family) and not listed
        result.append(Line(line.layer, line.depth, line.last, (), inside[line.layer] if closed else 0))
        if not listed:
            continue
        below = [Line(i, line.depth + 1, (*line.last, i == listed[-1] and not left_out)) for i in listed]
        if left_out:
            below.append(Line(_NO_PARENT, line.depth + 1, (*line.last, True), left_out))
        stack.extend(reversed(below))
    return result
