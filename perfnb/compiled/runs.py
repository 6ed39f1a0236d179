"""Compute the executions of compiled regions, and the times that show how much a step loses between them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfnb.attribution.blocks import marks_step
from perfnb.recording.compiled_layers import HostEvents
from perfnb.recording.nesting import NONE, Bools, children_sums, innermost, outermost
from perfnb.recording.recording import CompiledRecord, Recording
from perfnb.recording.text import is_one_of, of_labels
from perfnb.trace.trace_steps import step_of
from perfnb.trace_names import ACCUMULATE_GRAD, BACKWARD_NODE, GRAPH_CALL, OPS, RANGES, REGION, REGION_LOOKUP

#: Autograd's name for a region that has a backward pass. The name of its node starts with the same text.
_FUNCTION = "CompiledFunction"


def region_runs(recording: Recording, record: CompiledRecord) -> pd.DataFrame:
    """Return the executions of compiled regions in the traced steps, in chronological order.

    The result has one row per execution, with ``region``, ``start``, ``step``, ``has_graph`` and ``group`` (the row of
    the outermost region that encloses it). The other columns are times in nanoseconds, or NaN if they are unknown. The
    columns for the forward pass are:

    - ``own_ns``: the time of the region itself, excluding nested regions
    - ``lookup_ns``: the time of the lookup before the region
    - ``enter_ns``: the time until its first kernel or, if it has none, until the end of its graph
    - ``gap_ns``: the time from the end of its graph to the next region in the step
    - ``rest_ns``: the same or, if no other region in the group follows, the time until the end of the group's
      outermost region
    - ``apart_ns``: the time from the end of the region to the lookup of the next region
    - ``kernel_ns``: the time of its kernels
    - ``head_ns``: the time of the generated kernels that run before its library kernels
    - ``tail_ns``: the time of the generated kernels that run after its library kernels, or that have results which only
      code outside the graph uses

    The columns for the backward pass are ``back_kernel_ns``, ``back_head_ns``, ``back_tail_ns``, ``back_enter_ns`` (the
    time before the first kernel and after the graph) and ``back_gap_ns`` (the time since the backward pass of a later
    region).
    """
    host = _Host(recording.events)
    graphs = host.graphs(record)
    return host.forward(graphs[graphs["region"] != NONE]).join(host.backward(graphs[graphs["region"] == NONE]))


class _Host(HostEvents):
    """The host events around and inside compiled regions and their backward passes."""

    def __init__(self, events: pd.DataFrame) -> None:
        words = (REGION, REGION_LOOKUP, BACKWARD_NODE, _FUNCTION)
        wanted = is_one_of(events["category"], OPS) & of_labels(events["name"], lambda name: name.startswith(words))
        # In traces written by torch itself, calls to a graph are ranges.
        is_call = is_one_of(events["category"], (*OPS, *RANGES))
        wanted |= is_call & of_labels(events["name"], lambda name: name.startswith(GRAPH_CALL))
        super().__init__(events, wanted)
        self.duration = (self.end - self.start).astype(np.float64)
        #: The region and the backward node that enclose each event, and the event of each region.
        self.region, self.node = innermost(self.forest, self.is_region), innermost(self.forest, self.is_node)
        self.rows = np.flatnonzero(self.is_region)
        self.group = np.searchsorted(self.rows, outermost(self.forest, self.is_region)[self.rows])
        nested = children_sums(np.where(self.is_region, self.region, NONE), self.duration)
        self.own = (self.duration - nested)[self.rows]
        marks = events.loc[marks_step(events), ["start_ns", "duration_ns"]].sort_values("start_ns")
        begins = marks["start_ns"].to_numpy()
        self.step = step_of(self.start, begins, begins + marks["duration_ns"].to_numpy())

    def starts(self, word: str) -> Bools:
        """Return a mask of the events whose names start with a given word."""
        return np.array([str(name).startswith(word) for name in self.name], dtype=bool)

    def graphs(self, record: CompiledRecord) -> pd.DataFrame:
        """Return the calls to graphs, with the start of their first kernel and the times of their kernels."""
        rows = np.flatnonzero(self.key != "")
        kernels = record.kernels.rename(columns={"kernel": "name"})
        calls = record.calls.sort_values("start_ns", kind="stable").join(kernels, on="kernel")
        at = calls["start_ns"].to_numpy()
        graph = np.searchsorted(self.start[rows], at, side="right") - 1
        inside = (graph != NONE) & (at < np.append(self.end[rows], 0)[graph])
        calls, graph = calls[inside], graph[inside]
        # A library kernel is named like ``extern_kernels.mm``. Names of generated kernels do not contain a dot.
        library = pd.Series(of_labels(calls["name"], lambda name: "." in name), calls.index).astype(np.int64)
        ran, all_of = library.groupby(graph).cumsum(), library.groupby(graph).transform("sum")
        leaves = calls["leaves"] & (calls["direction"] == "forward") if "leaves" in calls else False
        ns = calls["duration_ns"].astype(np.float64)
        generated = ns.where(library == 0, 0.0)
        times = pd.DataFrame({"kernel_ns": ns, "head_ns": generated.where(ran == 0, 0.0)})
        times = times.assign(tail_ns=generated.where((ran == all_of) | leaves, 0.0)).groupby(graph).sum()
        first = calls["start_ns"].groupby(graph).min().reindex(range(len(rows)))
        return times.reindex(range(len(rows)), fill_value=0.0).assign(
            first=first.fillna(pd.Series(self.end[rows])),
            end=self.end[rows],
            region=self.region[rows],
            node=self.node[rows],
        )

    def forward(self, graphs: pd.DataFrame) -> pd.DataFrame:
        """Return the columns that describe the forward pass of each run."""
        rows = self.rows
        start, end, step, thread = (each[rows] for each in (self.start, self.end, self.step, self.thread))
        sums = dict.fromkeys(("kernel_ns", "head_ns", "tail_ns"), "sum")
        by_region = graphs.groupby("region").agg({"end": "max", "first": "min", **sums}).reindex(rows)
        # Code between two regions may run inside the first region after its graph, or after the first region.
        left = by_region["end"].fillna(pd.Series(start, rows)).to_numpy()
        follows = (np.append(step[1:], NONE) == step) & (np.append(thread[1:], NONE) == thread)
        to_next = np.append(start[1:], 0)
        together = follows & (np.append(self.group[1:], NONE) == self.group)
        lookup_ns = np.where(self.starts(REGION_LOOKUP)[rows - 1] & (rows > 0), self.duration[rows - 1], 0.0)
        return pd.DataFrame(
            {
                "region": [str(name).removeprefix(REGION) for name in self.name[rows]],
                "start": start,
                "step": step,
                "group": self.group,
                "has_graph": by_region["end"].notna().to_numpy(),
                "own_ns": self.own,
                "lookup_ns": lookup_ns,
                "enter_ns": by_region["first"].to_numpy() - start,
                "gap_ns": np.where(follows, np.maximum(to_next - left, 0), np.nan),
                "rest_ns": np.maximum(np.where(together, to_next, end[self.group]) - left, 0).astype(np.float64),
                "apart_ns": np.where(follows, to_next - np.append(lookup_ns[1:], 0) - end, np.nan),
                **{name: by_region[name].fillna(0.0).to_numpy() for name in sums},
            }
        )

    def _runs_of_nodes(self) -> pd.Series:
        """Return the run of each backward node of a region, by the node's event. Autograd numbers the nodes."""
        is_forward = self.starts(_FUNCTION) & (self.region != NONE) & (self.sequence != NONE)
        run = pd.Series(np.searchsorted(self.rows, self.region[is_forward]), index=self.sequence[is_forward])
        nodes = np.flatnonzero(self.starts(f"{BACKWARD_NODE}: {_FUNCTION}"))
        runs = run[~run.index.duplicated()].reindex(self.sequence[nodes]).set_axis(nodes)
        return runs.dropna().astype(np.int64)

    def backward(self, graphs: pd.DataFrame) -> pd.DataFrame:
        """Return the columns that describe the backward pass of each run."""
        runs = self._runs_of_nodes()
        nodes = runs.index.to_numpy()
        times = graphs[["kernel_ns", "head_ns", "tail_ns"]].assign(enter_ns=graphs["first"] - graphs["end"])
        table = times.groupby(graphs["node"]).sum().reindex(nodes).add_prefix("back_")
        table["back_enter_ns"] += self.duration[nodes]
        # Kernels that accumulate a parameter's gradient between two backward passes would also run without a seam.
        adds = np.array([ACCUMULATE_GRAD in str(name) for name in self.name], dtype=bool) & self.is_node
        added = np.cumsum(np.where(adds, self.duration, 0.0))[nodes]
        gaps = self.start[nodes][1:] - self.end[nodes][:-1] - np.diff(added)
        gaps = np.where(np.diff(self.step[nodes]) == 0, gaps, np.nan)
        table["back_gap_ns"] = np.append(np.nan, gaps)[: len(nodes)]
        by_run: pd.DataFrame = table.groupby(runs.to_numpy()).first()
        return by_run
