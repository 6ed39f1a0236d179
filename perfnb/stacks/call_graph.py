"""Approximate the stacks of a profile that records only which functions call each other, such as cProfile's."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from perfnb.recording.nesting import NONE, Floats
from perfnb.stacks.tree import CallTree, Function

#: The maximum number of calls in a tree, and the minimum share of the whole that is drawn as a call. Without these
#: limits, the number of stacks could be endless, because the same function may occur in many of them.
_MOST_CALLS, _LEAST = 5_000, 1 / 20_000


def tree_of_callers(
    functions: Sequence[Function], own: Floats, total: Floats, edges: Mapping[tuple[int, int], float]
) -> CallTree | None:
    """Divide each function's time among its callers, assuming that all of its calls behave in the same way.

    A function's time inside a caller is the time of the calls between the two, divided by the caller's total time. It
    is divided among the function itself and its callees in the same proportions as the function's total time. Recursive
    calls are left out, and the time of short functions remains with their callers. The result is ``None`` if no times
    are known.

    Parameters
    ----------
    functions : sequence of Function
    own, total : ndarray
        The time of each function, excluding and including its callees.
    edges : mapping of (int, int) to float
        The total time of the calls from one function to another.
    """
    own = np.maximum(0.0, own)
    whole = float(own.sum())
    if not (whole > 0 and total.max() > 0):
        return None
    called: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
    inside = np.zeros(len(functions))
    for (caller, callee), value in edges.items():
        if value > 0 and caller != callee:
            called[caller].append((value, callee))
            inside[callee] += value
    outside = np.maximum(0.0, total - inside)
    if not outside.any():  # all functions call each other
        outside[total.argmax()] = whole
    for callees in called.values():
        callees.sort(reverse=True)
    roots = (outside * (whole / outside.sum())).tolist()
    parent, function, values = list[int](), list[int](), list[float]()
    waiting = [(-value, place, NONE) for place, value in enumerate(roots) if value > _LEAST * whole]
    heapq.heapify(waiting)
    while waiting and len(parent) < _MOST_CALLS:
        negative, place, above = heapq.heappop(waiting)
        node, value = len(parent), -negative
        parent.append(above)
        function.append(place)
        values.append(value)
        if above != NONE:
            values[above] -= value
        around = {place}
        while above != NONE:
            around.add(function[above])
            above = parent[above]
        weights = own[place] + sum(weight for weight, callee in called[place] if callee not in around)
        for weight, callee in called[place]:
            if not value * weight > _LEAST * whole * weights:
                break
            if callee not in around:
                heapq.heappush(waiting, (-value * weight / weights, callee, node))
    samples = np.zeros(len(parent), dtype=np.int64)
    self = np.maximum(0.0, np.array(values, dtype=np.float64))
    return CallTree(tuple(functions), np.array(parent), np.array(function), self, samples)
