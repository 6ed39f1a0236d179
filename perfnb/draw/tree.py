"""Nesting of layers, and which of them to list on one page."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

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
class TreeLine:
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


def tree_of_parents(parents: Sequence[int]) -> Tree:
    """Nest rows by the position of each one's parent; their names are their positions."""
    names = tuple(map(str, range(len(parents))))
    children: list[list[int]] = [[] for _ in parents]
    for position, parent in enumerate(parents):
        if parent != _NO_PARENT:
            children[parent].append(position)
    return Tree(names, names, tuple(parents), tuple(map(tuple, children)))


def _named_parent(name: str, seen: dict[str, int]) -> int | None:
    end = len(name)
    for _ in range(100):  # no module nests deeper, but a hostile name may have thousands of dots
        end = name.rfind(".", 0, end)
        if end <= 0:
            return None
        if name[:end] in seen:
            return seen[name[:end]]
    return None


def page_of(tree: Tree, weights: Sequence[float], first: Iterable[str], limit: int) -> list[TreeLine]:
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
    parents = tree.parents
    places = {name: position for position, name in enumerate(tree.names)}
    families, hidden = Counter(parents), Counter(parents)
    everything = len(tree.names) <= limit
    weighed = any(weight > 0 for weight in weights)
    shown: set[int] = set()
    lines = 0

    def show(position: int) -> bool:
        """List a layer if its line, and what it changes about the placeholder of its siblings, has room."""
        nonlocal lines
        if position in shown:
            return True
        left = hidden[parents[position]]
        grown = 1 + int(left > 1) - int(0 < left < families[parents[position]])
        worth = weights[position] > 0 or not weighed
        if not everything and (not worth or lines + grown > limit):
            return False
        shown.add(position)
        hidden[parents[position]] -= 1
        lines += grown
        return True

    for position in [places[name] for name in first if name in places]:
        if parents[position] == _NO_PARENT or parents[position] in shown:
            show(position)
    queue = [(-weights[i], i) for i in tree.roots]
    heapq.heapify(queue)
    while queue:
        _, position = heapq.heappop(queue)
        if show(position):
            for child in tree.children[position]:
                heapq.heappush(queue, (-weights[child], child))
    return _lines(tree, shown)


def _lines(tree: Tree, shown: set[int]) -> list[TreeLine]:
    def of_family(members: Sequence[int], depth: int, above: tuple[bool, ...]) -> list[TreeLine]:
        """The lines of siblings, last one first."""
        listed = [i for i in members if i in shown]
        left_out = tuple(i for i in members if i not in shown)
        lines = [TreeLine(i, depth, (*above, i == listed[-1] and not left_out) if depth else ()) for i in listed]
        if left_out:
            lines.append(TreeLine(_NO_PARENT, depth, (*above, True) if depth else (), left_out))
        return lines[::-1]

    inside = tree.inside()
    result: list[TreeLine] = []
    stack = of_family(tree.roots, 0, ())
    while stack:
        line = stack.pop()
        children = () if line.layer == _NO_PARENT else tree.children[line.layer]
        if any(child in shown for child in children):
            stack += of_family(children, line.depth + 1, line.last)
        elif children:
            line = replace(line, inside=inside[line.layer])
        result.append(line)
    return result
