"""Merge stacks into a call tree, and compute the time of each function."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from perfnb.errors import TraceError
from perfnb.recording.nesting import NONE, Bools, Ints
from perfnb.recording.text import TEXT
from perfnb.trace.trace_file import LIMITS, Kept, Limits, cut

Floats = npt.NDArray[np.float64]

#: The maximum depth of nested calls. Python's own limit is 1,000.
DEEPEST = 5_000
#: The number of bits in a function's number.
_BITS = 31
#: The factor that converts each unit of time to milliseconds, and the units of the columns.
MS = {"nanoseconds": 1e-6, "microseconds": 1e-3, "milliseconds": 1.0, "seconds": 1e3}


class Function(NamedTuple):
    """A function in a profile. If the profile does not specify them, `file` is empty and `line` is -1.

    In the stacks of a step, functions are inside calls with a `kind` (``phase`` or ``layer``).
    """

    name: str
    file: str = ""
    line: int = NONE
    kind: str = ""


@dataclass(frozen=True)
class CallTree:
    """A tree of calls that merges the common beginnings of stacks. Parents precede their children.

    Attributes
    ----------
    functions : tuple of Function
    parent, function : ndarray
        For each call, the call that encloses it (-1 if there is none), and the index of its function in `functions`.
    self : ndarray
        The time of each call, excluding the calls inside it.
    samples : ndarray
        The number of samples that ended in each call.
    """

    functions: tuple[Function, ...]
    parent: Ints
    function: Ints
    self: Floats
    samples: Ints

    def __len__(self) -> int:
        return len(self.parent)

    @cached_property
    def levels(self) -> list[Ints]:
        """The calls at each depth, from the outermost depth inwards."""
        depth = self.depth
        order = np.argsort(depth, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(depth[order])) + 1) if len(order) else []

    @cached_property
    def depth(self) -> Ints:
        """The number of calls that enclose each call."""
        depth: list[int] = []
        for parent in self.parent.tolist():
            depth.append(0 if parent == NONE else depth[parent] + 1)
        return np.array(depth, dtype=np.int64)

    def with_inner(self, values: npt.NDArray[np.generic]) -> Floats:
        """Return, for each call, the sum of `values` over the call and all calls inside it."""
        total = np.asarray(values, dtype=np.float64).copy()
        for level in reversed(self.levels[1:]):
            np.add.at(total, self.parent[level], total[level])
        return total

    def with_outer(self, values: Sequence[int]) -> Ints:
        """Return, for each call, the sum of its function's entry in `values` and those of all enclosing calls."""
        total = np.array(values, dtype=np.int64)[self.function] if len(self) else self.function.copy()
        for level in self.levels[1:]:
            total[level] += total[self.parent[level]]
        return total

    @cached_property
    def total(self) -> Floats:
        """The time of each call, including the calls inside it."""
        return self.with_inner(self.self)

    def order(self, keys: Sequence[npt.NDArray[np.generic]]) -> Ints:
        """Sort the calls so that each call precedes the calls inside it.

        Siblings are sorted by `keys`, of which the last key is the most important.
        """
        count = self.with_inner(np.ones(len(self)))
        place = np.zeros(len(self), dtype=np.int64)
        for level in self.levels:
            ranked = level[np.lexsort([*(key[level] for key in keys), self.parent[level]])]
            around = self.parent[ranked]
            sizes = count[ranked].astype(np.int64)
            before = np.cumsum(sizes) - sizes
            first = np.append(True, around[1:] != around[:-1])
            before -= np.repeat(before[first], np.diff(np.append(np.flatnonzero(first), len(ranked))))
            place[ranked] = before + np.where(around == NONE, 0, place[around] + 1)
        order = np.empty(len(self), dtype=np.int64)
        order[place] = np.arange(len(self))
        return order

    def outermost(self, group: Ints) -> Bools:
        """Return whether each call is the outermost call of its group.

        A group is, for example, a function. This is used to count recursive calls only once.
        """
        order = self.order([])
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        end = place + self.with_inner(np.ones(len(self))).astype(np.int64)
        ranked = np.lexsort((place, group))
        # Place the groups one after another, so that all ends in a group are below everything in later groups.
        _, number = np.unique(group[ranked], return_inverse=True)
        shift = number * (len(self) + 1)
        reached = np.maximum.accumulate(end[ranked] + shift)
        outermost = np.ones(len(self), dtype=bool)
        outermost[ranked[1:]] = (place[ranked] + shift)[1:] >= reached[:-1]
        return outermost

    def text(self, node: int) -> str:
        """Return a call's stack in the format of collapsed stacks, with the outermost call first."""
        names: list[str] = []
        while node != NONE:
            names.append(self.functions[self.function[node]].name)
            node = int(self.parent[node])
        return ";".join(reversed(names))


@dataclass
class TreeBuilder:
    """Builder of a call tree, which merges stacks one at a time.

    Parameters
    ----------
    source : str
        The name of the source, for error messages.
    limits : Limits
        The limits on distinct functions and calls.
    """

    source: str
    limits: Limits = LIMITS
    _functions: dict[Function, int] = field(default_factory=dict)
    #: The number of each call, by the number of the enclosing call (from 1) combined with the number of its function.
    #: Using pairs would need twice as much memory.
    _nodes: dict[int, int] = field(default_factory=dict)
    _self: array[float] = field(default_factory=lambda: array("d"))
    _samples: array[int] = field(default_factory=lambda: array("q"))

    def __post_init__(self) -> None:
        self.kept = Kept(self.source, self.limits)

    def function(self, function: Function) -> int:
        """Return the number of a function. Names that are too long are cut off."""
        if function not in self._functions:
            self.kept.add(2)
            function = function._replace(name=cut(function.name), file=cut(function.file))
        return self._functions.setdefault(function, len(self._functions))

    def inside(self, parent: int, function: int) -> int:
        """Return the call to a function inside another call."""
        node = self._nodes.setdefault((parent + 1) << _BITS | function, len(self._nodes))
        if node == len(self._self):
            self.kept.add()
            self._self.append(0.0)
            self._samples.append(0)
        return node

    def add(self, stack: Sequence[int], value: float, samples: int = 1) -> None:
        """Add a stack of functions, with the outermost function first."""
        if len(stack) > DEEPEST:
            raise TraceError(f"{self.source} was not read: a stack has {len(stack):,} calls, more than {DEEPEST:,}.")
        node = NONE
        for function in stack:
            node = self.inside(node, function)
        if node != NONE:
            self.count(node, value, samples)

    def count(self, node: int, value: float, samples: int = 0) -> None:
        """Add a value to a call's own time."""
        self._self[node] += value
        self._samples[node] += samples

    def tree(self) -> CallTree:
        """Return the tree of all stacks."""
        nodes = np.fromiter(self._nodes, dtype=np.int64, count=len(self._nodes))
        return CallTree(
            tuple(self._functions),
            (nodes >> _BITS) - 1,
            nodes & (1 << _BITS) - 1,
            np.array(self._self, dtype=np.float64),
            np.array(self._samples, dtype=np.int64),
        )


def numbers_of(things: Iterable[Hashable]) -> Ints:
    """Assign a number to each object, in order of first appearance. Equal objects have the same number."""
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(thing, len(seen)) for thing in things], dtype=np.int64)


def sums_by(tree: CallTree, group: Ints, count: int, values: Mapping[str, npt.NDArray[np.generic]]) -> pd.DataFrame:
    """Return ``self_<name>`` and ``total_<name>`` for each group of calls. Recursive calls count only once."""
    known = group != NONE
    first = tree.outermost(group) & known
    columns = {}
    for name, each in values.items():
        inner = tree.with_inner(each)
        own = np.asarray(each, dtype=np.float64)
        columns[f"self_{name}"] = np.bincount(group[known], weights=own[known], minlength=count)
        columns[f"total_{name}"] = np.bincount(group[first], weights=inner[first], minlength=count)
    return pd.DataFrame(columns)


def function_frame(functions: Sequence[Function]) -> pd.DataFrame:
    """Return the columns that identify functions."""
    line = np.array([each.line for each in functions], dtype=np.int64)
    return pd.DataFrame(
        {
            "function": pd.Series([each.name for each in functions], dtype=TEXT),
            "file": pd.Series([each.file or None for each in functions], dtype=TEXT),
            "line": pd.Series(pd.arrays.IntegerArray(line, line == NONE)),
        }
    )
