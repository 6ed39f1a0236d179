"""Compute the executions of compiled regions and the seams between them.

The seams show how much time a step loses because it runs several regions instead of one. Without graph breaks, all
regions inside another region would be part of that region, in both forward and backward. The seams between them have
three costs: the code that runs between two regions, entering every region except one, and the passes over memory made
by generated kernels next to a seam, which a single kernel could replace.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.attribution.blocks import marks_step
from perfnb.attribution.device_work import thread_keys
from perfnb.recording.nesting import NONE, Bools, Floats, Ints, children_sums, innermost, nest_cutting, outermost
from perfnb.recording.recording import CompiledRecord, Recording
from perfnb.recording.text import is_one_of, of_labels
from perfnb.trace.trace_steps import step_of
from perfnb.trace_names import ACCUMULATE_GRAD, BACKWARD_NODE, GRAPH_CALL, OPS, RANGES, REGION, REGION_LOOKUP

#: Autograd's name for a region that has a backward pass. The name of its node starts with the same text.
_FUNCTION = "CompiledFunction"
#: Matches a library kernel, such as ``extern_kernels.mm``. Names of generated kernels do not contain a dot.
_LIBRARY = "."


@dataclass(frozen=True)
class RegionRuns:
    """The executions of compiled regions, in chronological order.

    Attributes
    ----------
    runs : DataFrame
        One row per execution, with ``region``, ``start``, ``step``, ``has_graph`` and ``group`` (the row of the
        outermost region that encloses it). The other columns are times in nanoseconds, or NaN if they are unknown. The
        columns for the forward pass are:

        - ``own_ns``: the time of the region itself, excluding nested regions
        - ``lookup_ns``: the time of the lookup before the region
        - ``kernel_ns``: the time of its kernels
        - ``enter_ns``: the time until its first kernel or, if it has none, until the end of its graph
        - ``gap_ns``: the time from the end of its graph to the next region in the step
        - ``rest_ns``: the same or, if no other region in the group follows, the time until the end of the group's
          outermost region
        - ``apart_ns``: the time from the end of the region to the lookup of the next region

        The columns for the backward pass are:

        - ``back_kernel_ns``: the time of its kernels
        - ``back_enter_ns``: the time before the first kernel and after the graph
        - ``back_gap_ns``: the time since the backward pass of a later region
    kernels : DataFrame
        One row per execution of a generated kernel, with ``run``, ``ns``, ``backward``, ``first`` and ``last``.
        ``first`` is true if no library kernel ran before it in its graph. ``last`` is true if no library kernel ran
        after it or, in forward, if one of its results is only used by code outside the graph.
    """

    runs: pd.DataFrame
    kernels: pd.DataFrame

    def beside_ns(self, following: Ints) -> Floats:
        """Return the time of each run's generated kernels that could be merged with kernels of a subsequent run.

        Kernels are counted only if both runs have such kernels next to the seam, either in forward or in backward,
        which runs in reverse order.

        Parameters
        ----------
        following : ndarray
            The run on the other side of the seam that follows each run, or `NONE` if there is no seam.
        """
        counts = np.zeros(len(self.kernels), dtype=bool)
        run, count = self.kernels["run"].to_numpy(), len(self.runs)
        for backward, end, begin in ((False, "last", "first"), (True, "first", "last")):
            ends, begins = (
                (self.kernels["backward"] == backward).to_numpy() & self.kernels[side].to_numpy()
                for side in (end, begin)
            )
            has_end, has_begin = np.isin(np.arange(count), run[ends]), np.append(np.zeros(count, dtype=bool), False)
            has_begin[run[begins]] = True
            fuses = has_end & has_begin[following]
            behind = np.isin(np.arange(count), following[fuses])
            counts |= (ends & fuses[run]) | (begins & behind[run])
        return np.bincount(run[counts], self.kernels["ns"].to_numpy()[counts], count).astype(np.float64)


def region_runs(recording: Recording, record: CompiledRecord) -> RegionRuns:
    """Return the executions of compiled regions in the traced steps."""
    host = _Host(recording.events, record)
    node_of = host.nodes()
    graphs = np.flatnonzero(host.is_graph)
    in_backward = host.region[graphs] == NONE
    run = np.where(in_backward, node_of[host.node[graphs]], host.place[host.region[graphs]])
    generated = _generated(record, host.start[graphs], host.end[graphs], run, in_backward)
    return RegionRuns(host.forward().join(host.backward(node_of)), generated)


class _Host:
    """The host events around and inside compiled regions and their backward passes, and how they are nested.

    The events are in chronological order.
    """

    def __init__(self, events: pd.DataFrame, record: CompiledRecord) -> None:
        words = (REGION, REGION_LOOKUP, BACKWARD_NODE, _FUNCTION)
        wanted = is_one_of(events["category"], OPS) & of_labels(events["name"], lambda name: name.startswith(words))
        # In traces written by torch itself, calls to a graph are ranges.
        is_call = is_one_of(events["category"], (*OPS, *RANGES))
        wanted |= is_call & of_labels(events["name"], lambda name: name.startswith(GRAPH_CALL))
        host = events[wanted].assign(thread=thread_keys(events)[wanted]).sort_values("start_ns", kind="stable")
        self.names = host["name"].astype(object).to_numpy()
        self.start, self.thread, self.sequence = (
            host[column].to_numpy() for column in ("start_ns", "thread", "sequence")
        )
        forest, self.end = nest_cutting(self.thread, self.start, self.start + host["duration_ns"].to_numpy())
        self.duration = (self.end - self.start).astype(np.float64)
        is_region, self.is_node = self.starts(REGION), self.starts(BACKWARD_NODE)
        self.is_graph = self.starts(GRAPH_CALL)
        #: The region and the backward node that enclose each event, and the number of each region.
        self.region, self.node = innermost(forest, is_region), innermost(forest, self.is_node)
        self.rows = np.flatnonzero(is_region)
        self.place = np.full(len(self.names) + 1, NONE)
        self.place[self.rows] = np.arange(len(self.rows))
        self.group = self.place[outermost(forest, is_region)[self.rows]]
        self.own = (self.duration - children_sums(np.where(is_region, self.region, NONE), self.duration))[self.rows]
        self.kernel_ns = np.where(self.is_graph, _kernel_ns(self.start, self.end, record), 0.0)
        self.first_kernel = _first_kernel(self.start, self.end, record)
        marks = events.loc[marks_step(events), ["start_ns", "duration_ns"]].sort_values("start_ns")
        begins = marks["start_ns"].to_numpy()
        self.step = step_of(self.start, begins, begins + marks["duration_ns"].to_numpy())

    def starts(self, word: str) -> Bools:
        """Return a mask of the events whose names start with a given word."""
        return np.array([str(name).startswith(word) for name in self.names], dtype=bool)

    def forward(self) -> pd.DataFrame:
        """Return the columns that describe the forward pass of each run."""
        rows, graphs = self.rows, self.is_graph & (self.region != NONE)
        start, end, step, thread = (each[rows] for each in (self.start, self.end, self.step, self.thread))
        of_graphs = pd.DataFrame(
            {"end": self.end, "first": self.first_kernel, "kernel_ns": self.kernel_ns, "region": self.region}
        )[graphs]
        by_region = of_graphs.groupby("region").agg({"end": "max", "first": "min", "kernel_ns": "sum"}).reindex(rows)
        # Code between two regions may run inside the first region after its graph, or after the first region.
        left = by_region["end"].fillna(pd.Series(start, rows)).to_numpy()
        follows = (np.append(step[1:], NONE) == step) & (np.append(thread[1:], NONE) == thread)
        to_next = np.append(start[1:], 0)
        together = follows & (np.append(self.group[1:], NONE) == self.group)
        lookup_ns = np.where(self.starts(REGION_LOOKUP)[rows - 1] & (rows > 0), self.duration[rows - 1], 0.0)
        return pd.DataFrame(
            {
                "region": [str(name).removeprefix(REGION) for name in self.names[rows]],
                "start": start,
                "step": step,
                "group": self.group,
                "has_graph": by_region["end"].notna().to_numpy(),
                "own_ns": self.own,
                "lookup_ns": lookup_ns,
                "kernel_ns": by_region["kernel_ns"].fillna(0.0).to_numpy(),
                "enter_ns": by_region["first"].to_numpy() - start,
                "gap_ns": np.where(follows, np.maximum(to_next - left, 0), np.nan),
                "rest_ns": np.maximum(np.where(together, to_next, end[self.group]) - left, 0).astype(np.float64),
                "apart_ns": np.where(follows, to_next - np.append(lookup_ns[1:], 0) - end, np.nan),
            }
        )

    def nodes(self) -> Ints:
        """Return the run to which each event belongs as a backward node, or `NONE` for any other event.

        Autograd assigns numbers to the nodes.
        """
        is_forward = self.starts(_FUNCTION) & (self.region != NONE) & (self.sequence != NONE)
        run = pd.Series(self.place[self.region[is_forward]], index=self.sequence[is_forward])
        node_of = np.full(len(self.names) + 1, NONE)
        compiled = np.flatnonzero(self.starts(f"{BACKWARD_NODE}: {_FUNCTION}"))
        run = run[~run.index.duplicated()].reindex(self.sequence[compiled]).fillna(NONE)
        node_of[compiled] = run.to_numpy(dtype=np.int64)
        return node_of

    def backward(self, node_of: Ints) -> pd.DataFrame:
        """Return the columns that describe the backward pass of each run."""
        nodes, graphs = np.flatnonzero(node_of != NONE), self.is_graph & (self.node != NONE)
        in_graph = pd.DataFrame(
            {
                "back_kernel_ns": self.kernel_ns,
                "back_enter_ns": self.first_kernel - self.end,
                "node": self.node,
            }
        )[graphs]
        table = in_graph.groupby("node").sum().reindex(nodes)
        table["back_enter_ns"] += self.duration[nodes]
        # Kernels that accumulate a parameter's gradient between two backward passes would also run without a seam.
        adds = np.array([ACCUMULATE_GRAD in str(name) for name in self.names], dtype=bool) & self.is_node
        added = np.cumsum(np.where(adds, self.duration, 0.0))[nodes]
        gaps = self.start[nodes][1:] - self.end[nodes][:-1] - np.diff(added)
        gaps = np.where(np.diff(self.step[nodes]) == 0, gaps, np.nan)
        table["back_gap_ns"] = np.append(np.nan, gaps)[: len(nodes)]
        by_run: pd.DataFrame = table.set_axis(node_of[nodes]).groupby(level=0).first()
        return by_run.reindex(range(len(self.rows)))


def _kernel_ns(start: Ints, end: Ints, record: CompiledRecord) -> Floats:
    """Return the total time in nanoseconds of the kernels that start in each interval."""
    at, duration = (record.calls[name].to_numpy() for name in ("start_ns", "duration_ns"))
    order = np.argsort(at, kind="stable")
    sums = np.concatenate([[0], np.cumsum(duration[order])])
    first, last = (np.searchsorted(at[order], bound) for bound in (start, end))
    return np.asarray(sums[last] - sums[first], dtype=np.float64)


def _first_kernel(start: Ints, end: Ints, record: CompiledRecord) -> Ints:
    """Return the start of the first kernel in each interval, or the end of the interval if there is no kernel."""
    at = np.append(np.sort(record.calls["start_ns"].to_numpy()), np.iinfo(np.int64).max)
    return np.asarray(np.minimum(at[np.searchsorted(at, start)], end), dtype=np.int64)


def _generated(record: CompiledRecord, start: Ints, end: Ints, run: Ints, backward: Bools) -> pd.DataFrame:
    """Return the executions of generated kernels during the given calls to graphs, which do not overlap."""
    calls = record.calls.sort_values("start_ns", kind="stable")
    at = calls["start_ns"].to_numpy()
    graph = np.searchsorted(start, at, side="right") - 1
    inside = (graph >= 0) & (at < np.append(end, 0)[graph])
    inside &= np.append(run, NONE)[graph] != NONE
    calls, graph = calls[inside], graph[inside]
    names = record.kernels["kernel"].to_numpy(dtype=object)[calls["kernel"].to_numpy()]
    library = pd.Series([_LIBRARY in str(name) for name in names], dtype="int64")
    ran = library.groupby(graph).cumsum().to_numpy()
    all_of = library.groupby(graph).transform("sum").to_numpy()
    table = pd.DataFrame({"run": run[graph], "ns": calls["duration_ns"].to_numpy(dtype=np.float64)})
    leaves = record.kernels["leaves"] if "leaves" in record.kernels else pd.Series(False, record.kernels.index)
    last = (ran == all_of) | (leaves.to_numpy(dtype=bool)[calls["kernel"].to_numpy()] & ~backward[graph])
    table = table.assign(backward=backward[graph], first=ran == 0, last=last)
    return table[(library == 0).to_numpy()]
