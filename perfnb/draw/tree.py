"""Choose which rows of a tree to list on a page."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

_NO_PARENT = -1


@dataclass(frozen=True)
class TreeLine:
    """A line in a listing: a layer, or a placeholder for layers that are left out."""

    #: The index of the layer, or -1 for a placeholder.
    layer: int
    #: The depth below the root.
    depth: int
    #: Whether the line, and each of its ancestors below the root, is the last of its siblings.
    last: tuple[bool, ...]
    #: The siblings that are not listed.
    left_out: tuple[int, ...] = ()
    #: The number of layers inside this layer, if none of them is listed.
    inside: int = 0


def inside_of(parents: Sequence[int]) -> list[int]:
    """Return the number of rows inside each row, at any depth."""
    total = [0] * len(parents)
    for position in range(len(parents) - 1, -1, -1):
        if parents[position] != _NO_PARENT:
            total[parents[position]] += 1 + total[position]
    return total


def page_of(parents: Sequence[int], weights: Sequence[float], first: Iterable[int], limit: int) -> list[TreeLine]:
    """Choose the lines of a listing. It contains the heaviest rows and the path to each of them.

    Parameters
    ----------
    parents : sequence of int
        The index of each row's parent, or -1 for roots. Parents precede their children.
    weights : sequence of float
        The weight of each row.
    first : iterable of int
        The rows with priority. Each of them must come after its parent.
    limit : int
        The maximum number of lines, including placeholders.
    """
    children: list[list[int]] = [[] for _ in parents]
    for position, parent in enumerate(parents):
        if parent != _NO_PARENT:
            children[parent].append(position)
    roots = [position for position, parent in enumerate(parents) if parent == _NO_PARENT]
    families, hidden = Counter(parents), Counter(parents)
    everything = len(parents) <= limit
    weighed = any(weight > 0 for weight in weights)
    shown: set[int] = set()
    lines = 0

    def show(position: int) -> bool:
        """List a layer if there is space for its line and for the change to its siblings' placeholder."""
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

    for position in first:
        if parents[position] == _NO_PARENT or parents[position] in shown:
            show(position)
    queue = [(-weights[i], i) for i in roots]
    heapq.heapify(queue)
    while queue:
        _, position = heapq.heappop(queue)
        if show(position):
            for child in children[position]:
                heapq.heappush(queue, (-weights[child], child))
    return _lines(parents, roots, children, shown)


def _lines(
    parents: Sequence[int], roots: Sequence[int], children: Sequence[Sequence[int]], shown: set[int]
) -> list[TreeLine]:
    def of_family(members: Sequence[int], depth: int, above: tuple[bool, ...]) -> list[TreeLine]:
        """Return the lines of siblings in reverse order."""
        listed = [i for i in members if i in shown]
        left_out = tuple(i for i in members if i not in shown)
        lines = [TreeLine(i, depth, (*above, i == listed[-1] and not left_out) if depth else ()) for i in listed]
        if left_out:
            lines.append(TreeLine(_NO_PARENT, depth, (*above, True) if depth else (), left_out))
        return lines[::-1]

    inside = inside_of(parents)
    result: list[TreeLine] = []
    stack = of_family(roots, 0, ())
    while stack:
        line = stack.pop()
        below = () if line.layer == _NO_PARENT else children[line.layer]
        if any(child in shown for child in below):
            stack += of_family(below, line.depth + 1, line.last)
        elif below:
            line = replace(line, inside=inside[line.layer])
        result.append(line)
    return result
