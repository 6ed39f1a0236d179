"""Merge stacks into a tree of calls, and compute the time of each function."""

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

#: The most calls inside calls: Python's own limit is 1,000.
DEEPEST = 5_000
#: Bits of a function's number.
_BITS = 31
#: The scale of each unit of time, and the units of the columns.
MS = {"nanoseconds": 1e-6, "microseconds": 1e-3, "milliseconds": 1.0, "seconds": 1e3}


class Function(NamedTuple):
    """A function as named in a profile. If the profile does not contain them, `file` is empty and `line` is -1.

    In the stacks of a step, calls with a `kind` (``phase`` or ``layer``) enclose functions.
    """

    name: str
    file: str = ""
    line: int = NONE
    kind: str = ""


@dataclass(frozen=True)
class CallTree:
    """Stacks whose common beginnings are merged. Parents precede their children.

    Attributes
    ----------
    functions : tuple of Function
    parent, function : ndarray
        For each call, the call around it (-1 if there is none), and its function's index in `functions`.
    self : ndarray
        Each call's time, without the calls inside it.
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
        """The calls at each depth, outermost first."""
        depth = self.depth
        order = np.argsort(depth, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(depth[order])) + 1) if len(order) else []

    @cached_property
    def depth(self) -> Ints:
        """The number of calls around each call."""
        depth: list[int] = []
        for parent in self.parent.tolist():
            depth.append(0 if parent == NONE else depth[parent] + 1)
        return np.array(depth, dtype=np.int64)

    def with_inner(self, values: npt.NDArray[np.generic]) -> Floats:
        """Return the sum of `values` over each call and all calls inside it."""
        total = np.asarray(values, dtype=np.float64).copy()
        for level in reversed(self.levels[1:]):
            np.add.at(total, self.parent[level], total[level])
        return total

    def with_outer(self, values: Sequence[int]) -> Ints:
        """Sum `values`, which has one entry per function, over each call and all calls around it."""
        total = np.array(values, dtype=np.int64)[self.function] if len(self) else self.function.copy()
        for level in self.levels[1:]:
            total[level] += total[self.parent[level]]
        return total

    @cached_property
    def total(self) -> Floats:
        """Each call's time, including the calls inside it."""
        return self.with_inner(self.self)

    def order(self, keys: Sequence[npt.NDArray[np.generic]]) -> Ints:
        """Return the calls so that each precedes the calls inside it.

        Siblings are ordered by `keys`, where the last key is the most important.
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
        """Return, for each call, whether no call around it belongs to the same group.

        The result is used to count recursion only once. A group is, for example, a function.
        """
        order = self.order([])
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        end = place + self.with_inner(np.ones(len(self))).astype(np.int64)
        ranked = np.lexsort((place, group))
        # Groups one after the other: the ends of an earlier one are below everything of a later one.
        _, number = np.unique(group[ranked], return_inverse=True)
        shift = number * (len(self) + 1)
        reached = np.maximum.accumulate(end[ranked] + shift)
        outermost = np.ones(len(self), dtype=bool)
        outermost[ranked[1:]] = (place[ranked] + shift)[1:] >= reached[:-1]
        return outermost

    def text(self, node: int) -> str:
        """Return a call's stack in the notation of collapsed stacks, outermost call first."""
        names: list[str] = []
        while node != NONE:
            names.append(self.functions[self.function[node]].name)
            node = int(self.parent[node])
        return ";".join(reversed(names))


@dataclass
class TreeBuilder:
    """Merges stacks as they arrive.

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
    #: Numbers of calls by the number of the call around it, from 1, and that of its function: pairs would take twice
    #: the memory.
    _nodes: dict[int, int] = field(default_factory=dict)
    _self: array[float] = field(default_factory=lambda: array("d"))
    _samples: array[int] = field(default_factory=lambda: array("q"))

    def __post_init__(self) -> None:
        self.kept = Kept(self.source, self.limits)

    def function(self, function: Function) -> int:
        """Return a function's number. A name that is too long is cut."""
        if function not in self._functions:
            self.kept.add(2)
            function = function._replace(name=cut(function.name), file=cut(function.file))
        return self._functions.setdefault(function, len(self._functions))

    def inside(self, parent: int, function: int) -> int:
        """Return a function's call inside another call."""
        node = self._nodes.setdefault((parent + 1) << _BITS | function, len(self._nodes))
        if node == len(self._self):
            self.kept.add()
            self._self.append(0.0)
            self._samples.append(0)
        return node

    def add(self, stack: Sequence[int], value: float, samples: int = 1) -> None:
        """Add a stack of functions, outermost first."""
        if len(stack) > DEEPEST:
            raise TraceError(f"{self.source} was not read: a stack has {len(stack):,} calls, more than {DEEPEST:,}.")
        node = NONE
        for function in stack:
            node = self.inside(node, function)
        if node != NONE:
            self.count(node, value, samples)

    def count(self, node: int, value: float, samples: int = 0) -> None:
        """Add to the time of a call itself."""
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
    """Number things in the order of their first appearance, with the same number for equal things."""
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(thing, len(seen)) for thing in things], dtype=np.int64)


def sums_by(tree: CallTree, group: Ints, count: int, values: Mapping[str, npt.NDArray[np.generic]]) -> pd.DataFrame:
    """Return ``self_<name>`` and ``total_<name>`` of the values for each group of calls. Recursion counts once."""
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
    """Return the columns that name functions."""
    line = np.array([each.line for each in functions], dtype=np.int64)
    return pd.DataFrame(
        {
            "function": pd.Series([each.name for each in functions], dtype=TEXT),
            "file": pd.Series([each.file or None for each in functions], dtype=TEXT),
            "line": pd.Series(pd.arrays.IntegerArray(line, line == NONE)),
        }
    )
