"""The executions of compiled regions, and what lies between them: what a step loses by running several in place of one.

Without a graph break, all regions inside another one would be part of it, forward and backward. The seams between them
cost the code from one to the next, the entry of each region but one, and the passes over memory of generated kernels
next to a seam, which one kernel could replace.
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
from perfnb.trace_names import ACCUMULATE_GRAD, BACKWARD_NODE, GRAPH_CALL, OPS, REGION, REGION_LOOKUP

#: What autograd calls a region that has a backward pass; its node's name starts like this, too.
_FUNCTION = "CompiledFunction"
#: A kernel of a library, such as ``extern_kernels.mm``: generated code has no dot in its name.
_LIBRARY = "."


@dataclass(frozen=True)
class RegionRuns:
    """The executions of compiled regions, in order of time.

    Attributes
    ----------
    runs : DataFrame
        One row per execution: ``region``, ``step``; ``group``, the row of the outermost region around it; ``has_graph``.
        In nanoseconds: ``own_ns``, without regions inside; ``lookup_ns``, before it; ``kernel_ns``, in forward;
        ``enter_ns``, until its first kernel or, without one, the end of its graph; ``gap_ns``, from there to the next
        region of the step; ``rest_ns``, the same within the group's outermost region, after the last one to the end of
        that; ``apart_ns``, from its end to the next region's lookup. ``back_ns`` and ``back_kernel_ns``, its backward
        pass outside and inside kernels; ``back_enter_ns``, what of it is before the first kernel or after the graph;
        ``back_gap_ns``, before that from the backward pass of a later region. Unknown times are NaN.
    kernels : DataFrame
        One row per execution of a generated kernel: ``run``, ``ns``, ``backward``, and whether no kernel of a library ran before it (``first``) or after it (``last``).
    """

    runs: pd.DataFrame
    kernels: pd.DataFrame

    def beside_ns(self, following: Ints) -> Floats:
        """By run: its generated kernels that one kernel could replace together with some of a run that follows.

        Only where both have such kernels next to the seam, in forward or in backward, which goes the other way.

        Parameters
        ----------
        following : ndarray
            The run behind the seam after each run; `NONE` without a seam.
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
        return np.bincount(run[counts], self.kernels["ns"].to_numpy()[counts], count)


def region_runs(recording: Recording, record: CompiledRecord) -> RegionRuns:
    """What the traced steps ran of compiled regions."""
    host = _host(recording.events)
    names, start, end, thread = host["name"].astype(object).to_numpy(), *(host[x].to_numpy() for x in _TIMES)
    forest, end = nest_cutting(thread, start, end)
    is_region, is_graph, is_node = (_starts(names, word) for word in (REGION, GRAPH_CALL, BACKWARD_NODE))
    region, rows = innermost(forest, is_region), np.flatnonzero(is_region)
    place = np.full(len(names) + 1, NONE)
    place[rows] = np.arange(len(rows))
    duration = (end - start).astype(np.float64)
    kernel_ns = np.where(is_graph, _kernel_ns(start, end, record), 0.0)
    inside = np.bincount(place[region[is_graph]] + 1, kernel_ns[is_graph], len(rows) + 1)[1:]
    first = np.where(is_graph, _first_kernel(start, end, record), end)
    graph_end = pd.Series(end[is_graph], index=region[is_graph]).groupby(level=0).max().reindex(rows)
    # Code between two regions may run inside the first, after its graph, or behind it.
    left = np.where(graph_end.isna(), start[rows], graph_end.fillna(0)).astype(np.int64)
    begins = pd.Series(first[is_graph], index=region[is_graph]).groupby(level=0).min().reindex(rows)
    entered = np.where(begins.isna(), start[rows], begins.fillna(0)).astype(np.int64)
    group = place[outermost(forest, is_region)[rows]]
    step = _step_of(recording.events, start[rows])
    follows = (np.append(step[1:], NONE) == step) & (np.append(thread[rows][1:], NONE) == thread[rows])
    to_next = np.append(start[rows][1:], 0)
    together = follows & (np.append(group[1:], NONE) == group)
    lookup = np.append(_starts(names, REGION_LOOKUP), False)
    lookup_ns = np.where(lookup[rows - 1] & (rows > 0), duration[rows - 1], 0.0)
    until = np.where(together, to_next, end[rows][group] if len(rows) else 0)
    runs = pd.DataFrame(
        {
            "region": [str(name).removeprefix(REGION) for name in names[rows]],
            "step": step,
            "group": group,
            "has_graph": graph_end.notna().to_numpy(),
            "own_ns": (duration - children_sums(np.where(is_region, region, NONE), duration))[rows],
            "lookup_ns": lookup_ns,
            "kernel_ns": inside,
            "enter_ns": (entered - start[rows]).astype(np.float64),
            "gap_ns": np.where(follows, np.maximum(to_next - left, 0), np.nan),
            "rest_ns": np.maximum(until - left, 0).astype(np.float64),
            "apart_ns": np.where(follows, to_next - np.append(lookup_ns[1:], 0) - end[rows], np.nan),
        }
    )
    # By the number that autograd gave to a region in its forward pass.
    sequence, is_forward = host["sequence"].to_numpy(), _starts(names, _FUNCTION) & (region != NONE)
    numbered = pd.Series(place[region[is_forward]], index=sequence[is_forward])
    compiled = np.flatnonzero(is_node & _starts(names, f"{BACKWARD_NODE}: {_FUNCTION}"))
    run_of = numbered[~numbered.index.duplicated()].reindex(sequence[compiled]).fillna(NONE).to_numpy(dtype=np.int64)
    node = innermost(forest, is_node)
    of_node = np.full(len(names) + 1, NONE)
    of_node[compiled] = run_of
    graphs = np.flatnonzero(is_graph)
    before_first = np.bincount(node[graphs] + 1, (first - end)[graphs], len(names) + 1)[1:] + duration
    in_node = np.bincount(node[is_graph] + 1, kernel_ns[is_graph], len(names) + 1)[1:]
    # What adds up a parameter's gradient between two of them would run without a seam, too.
    adds = np.where([ACCUMULATE_GRAD in str(name) for name in names], np.where(is_node, duration, 0.0), 0.0)
    before = np.concatenate([[0.0], np.cumsum(adds)])
    known = compiled[run_of != NONE]
    gaps = np.append(np.nan, start[known][1:] - end[known][:-1] - (before[known[1:]] - before[known[:-1]]))[
        : len(known)
    ]
    times = {"back_kernel_ns": in_node, "back_ns": duration - in_node, "back_enter_ns": before_first}
    back = pd.DataFrame({name: values[known] for name, values in times.items()}).assign(back_gap_ns=gaps)
    back = back.set_axis(of_node[known]).groupby(level=0).first().reindex(range(len(rows)))
    runs = runs.join(back)
    run_of_graph = np.where(region[graphs] != NONE, place[region[graphs]], of_node[node[graphs]])
    return RegionRuns(runs, _generated(record, start[graphs], end[graphs], run_of_graph, region[graphs] == NONE))


_TIMES = ("start_ns", "end_ns", "thread")


def _host(events: pd.DataFrame) -> pd.DataFrame:
    """The events around and inside compiled regions and their backward passes, in order of time."""
    words = (REGION, GRAPH_CALL, REGION_LOOKUP, BACKWARD_NODE, _FUNCTION)
    wanted = is_one_of(events["category"], OPS) & of_labels(events["name"], lambda name: name.startswith(words))
    host = events.loc[wanted, ["name", "start_ns", "duration_ns", "sequence"]].assign(
        thread=thread_keys(events)[wanted]
    )
    ordered: pd.DataFrame = host.assign(end_ns=host["start_ns"] + host["duration_ns"])
    return ordered.sort_values("start_ns", kind="stable")


def _starts(names: np.ndarray, word: str) -> Bools:
    return np.array([str(name).startswith(word) for name in names], dtype=bool)


def _step_of(events: pd.DataFrame, start: Ints) -> Ints:
    marks = events.loc[marks_step(events), ["start_ns", "duration_ns"]]
    begins = marks["start_ns"].to_numpy()
    return step_of(start, begins, begins + marks["duration_ns"].to_numpy())


def _kernel_ns(start: Ints, end: Ints, record: CompiledRecord) -> Floats:
    """Nanoseconds of the kernels that start in each interval."""
    at, duration = (record.calls[name].to_numpy() for name in ("start_ns", "duration_ns"))
    order = np.argsort(at, kind="stable")
    sums = np.concatenate([[0], np.cumsum(duration[order])])
    first, last = (np.searchsorted(at[order], bound) for bound in (start, end))
    return np.asarray(sums[last] - sums[first], dtype=np.float64)


def _first_kernel(start: Ints, end: Ints, record: CompiledRecord) -> Ints:
    """When the first kernel in each interval starts; without one, the end of the interval."""
    at = np.append(np.sort(record.calls["start_ns"].to_numpy()), np.iinfo(np.int64).max)
    return np.minimum(at[np.searchsorted(at, start)], end)


def _generated(record: CompiledRecord, start: Ints, end: Ints, run: Ints, backward: Bools) -> pd.DataFrame:
    """The executions of generated kernels in the calls of some graphs, which do not overlap."""
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
