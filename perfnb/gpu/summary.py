"""Compute the data for the GPU part of a report: the GPUs' work, their waits, and the critical path."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.attribution.attribution import Attribution
from perfnb.attribution.device_work import is_in, step_windows
from perfnb.gpu import tables as gpu_tables
from perfnb.gpu.critical_path import path_in
from perfnb.gpu.device_time import REASONS, gpu_time, idle_time
from perfnb.gpu.launches import LaunchFacts, QueueChart, kernels_by_op, launch_facts, queue_chart
from perfnb.gpu.path_savings import savings_in
from perfnb.gpu.tables import GpuEvents, gpu_events
from perfnb.recording.nesting import NONE
from perfnb.recording.recording import Recording
from perfnb.recording.text import found
from perfnb.trace_names import CALLS, DEVICE_WORK, OPS

#: The maximum numbers of rows in the kernel table, of its layers, of steps with their own bar, and of path parts by op.
MOST_KERNELS, MOST_LAYERS, MOST_STEPS, MOST_OPS = 300, 5000, 40, 8
#: The number of kinds of segments without which a path is replayed.
MOST_PARTS = 12
#: Paths with more segments are not replayed, because this would take seconds.
MOST_SEGMENTS = 150_000
#: The parts of a device's time, which add up to the total. Idle time is divided by reason.
PARTS = ("computation", "communication", "memcpy", *REASONS, "outside")
#: Parts of other parts: ``host`` inside the launch call and after it, and ``other`` without a known launch.
_WITHIN = ("call", "latency", "unknown")
_GRAPH = re.compile("GraphLaunch")


@dataclass(frozen=True)
class PathFacts:
    """The critical path of one step.

    Attributes
    ----------
    step : int or None
        The step's number, or ``None`` if the trace marks no steps and the path covers the whole trace.
    steps : int
        The number of steps that launched device work. The step is the one with the median duration, or if there are
        only two such steps, the longer one.
    total_ms, tail_ms : float
        How long the step took until its device work was done, and how much of this time passed after the step had ended
        on the host.
    kinds, ops : DataFrame
        The output of `savings_in` by kind, and by op for the longest parts. ``saves_ms`` is missing if the path was too
        long to replay.
    """

    step: int | None
    steps: int
    total_ms: float
    tail_ms: float
    kinds: pd.DataFrame
    ops: pd.DataFrame


@dataclass(frozen=True)
class GpuSummary:
    """Facts about the GPUs.

    Attributes
    ----------
    busy : float
        The share of `whole_ms` during which a device was busy, averaged over all devices.
    devices : DataFrame
        One row per device: ``device``, ``total_ms`` (`whole_ms`), and `PARTS` in milliseconds, which add up to the
        total: computation, communication that is not hidden by computation, copies that are hidden by neither, idle
        time by reason, and time ``outside`` the period from the device's first to its last work. ``overlap_ms`` is
        communication during computation. ``call`` and ``latency`` are the parts of ``host`` inside the launch call and
        after it, and ``unknown`` is the part of ``other`` where the launch is not known.
    whole_ms : float
        How long the steps took on the host and the devices. If the trace marks no steps, this is the duration of the
        whole trace.
    steps : DataFrame
        The same as `devices`, but per ``step``, for the first `MOST_STEPS` steps. As in the table ``gpu_steps``, a step
        runs from the start of its first work to the end of its last work, so idle time between two steps belongs to
        neither of them.
    steps_in_all : int
        The number of steps with work on a device.
    steps_marked : int
        The number of steps that the trace marks. Without marked steps, the whole trace counts as one step.
    launches : LaunchFacts
    queue : QueueChart or None
    kernels : DataFrame
        The kernels with the most time, grouped by op and shapes, per step: ``op``, ``shapes``, ``kernel`` (the one with
        the most time), ``kernels``, ``calls``, ``total_ms``, ``mean_us``, ``share`` (of all kernels), ``layers``,
        ``layer``, ``layer_share``. If the op is unknown, each kernel has its own row.
    kernel_layers : DataFrame
        The layers that launched the kernels, in descending order of time: ``row`` (in `kernels`), ``layer`` and ``ms``
        per step.
    kernels_in_all : int
    by_name : DataFrame
        The kernels, copies and fills with the most time, grouped by name, per step: ``kernel``, ``op`` (the one that
        launched most of it; missing if unknown), ``calls``, ``total_ms``, ``share`` (of the total).
    names_in_all : int
    path : PathFacts or None
    notes : tuple of str
        Notes about data that is missing from the trace.
    """

    busy: float
    devices: pd.DataFrame
    whole_ms: float
    steps: pd.DataFrame
    steps_in_all: int
    steps_marked: int
    launches: LaunchFacts
    queue: QueueChart | None
    kernels: pd.DataFrame
    kernel_layers: pd.DataFrame
    kernels_in_all: int
    by_name: pd.DataFrame
    names_in_all: int
    path: PathFacts | None
    notes: tuple[str, ...]


def gpu_summary(recording: Recording, attribution: Attribution) -> GpuSummary | None:
    """Compute the GPU part of a report, or return ``None`` if no GPU ran any work."""
    parts = (recording.events, recording.outside)
    if not any(part is not None and is_in(part, DEVICE_WORK).any() for part in parts):
        return None
    gpu = gpu_events(recording, attribution)
    times = gpu_time(gpu.events, gpu.work)
    if not len(times):
        return None
    steps, idle = gpu_tables.step_table(gpu), gpu_tables.idle_table(gpu)
    names = [f"{name}_ms" for name in (*REASONS, *_WITHIN)]
    waited = idle.groupby("device", dropna=False)[names].sum().reset_index()
    if gpu.only_step is None:
        idle = idle_time(gpu.events, by_step=True, work=gpu.work, own_step=True)
    by_step = _parts(steps.merge(idle.drop(columns="idle_ms"), on=["rank", "device", "step"], how="left"))
    numbers = by_step["step"].drop_duplicates()
    rows = gpu.of_steps.launches
    queue, spans = gpu_tables.queue_table(gpu), _spans(gpu)
    kernels, kernel_layers = _kernels(gpu, has_layers=len(recording.modules) > 0)
    by_name = _by_name(rows, max(len(gpu.steps), 1))
    whole = _whole(gpu) / 1e6
    return GpuSummary(
        busy=float(times["busy_ms"].mean()) / whole if whole else 1.0,
        devices=_parts(times.merge(waited, on="device", how="left"), whole),
        whole_ms=whole,
        steps=by_step[by_step["step"].isin(numbers.head(MOST_STEPS))].reset_index(drop=True),
        steps_in_all=len(numbers),
        steps_marked=0 if gpu.only_step is not None else len(gpu.steps),
        launches=launch_facts(rows, queue, spans, len(gpu.steps)),
        queue=queue_chart(queue, spans),
        kernels=kernels.head(MOST_KERNELS),
        kernel_layers=kernel_layers,
        kernels_in_all=len(kernels),
        by_name=by_name.head(MOST_KERNELS),
        names_in_all=len(by_name),
        path=_path(gpu),
        notes=tuple(_notes(gpu, rows, recording.is_foreign)),
    )


def _parts(table: pd.DataFrame, whole: float | None = None) -> pd.DataFrame:
    """Split each row's device time, or the total time, into parts that do not overlap."""
    alone = table["communication_ms"] - table["overlap_ms"]
    parts = {
        "computation": table["computation_ms"],
        "communication": alone,
        "memcpy": (table["busy_ms"] - table["computation_ms"] - alone).clip(lower=0),
        **{reason: table[f"{reason}_ms"].fillna(0.0) for reason in REASONS},
        "outside": 0.0 if whole is None else (whole - table["total_ms"]).clip(lower=0),
    }
    named = {name: table[name] for name in ("device", "step") if name in table}
    within = {name: table[f"{name}_ms"].fillna(0.0) for name in _WITHIN}
    frame = pd.DataFrame({**named, **parts, "overlap_ms": table["overlap_ms"], **within})
    frame.insert(len(named), "total_ms", frame[list(PARTS)].sum(axis=1))
    return frame


def _whole(gpu: GpuEvents) -> int:
    """Return the number of nanoseconds from the start of the first step until the last step and all work have ended.

    If the trace has no steps, return the duration of the whole trace in nanoseconds.
    """
    marks, work, events = step_windows(gpu.events), gpu.work, gpu.events
    if gpu.only_step is None and len(marks):
        begin, end = int(marks["start"].min()), int(marks["end"].max())
    else:
        begin = int(events["start_ns"].min())
        end = int((events["start_ns"] + events["duration_ns"]).max())
    return max(end, int(work.end.max())) - min(begin, int(work.start.min()))


def _spans(gpu: GpuEvents) -> pd.DataFrame:
    """Return the start of each device's first work and the end of its last work, in the order of `gpu_time`."""
    work = pd.DataFrame({"device": gpu.work.device, "start_ns": gpu.work.start, "end_ns": gpu.work.end})
    spans = work.groupby("device").agg({"start_ns": "min", "end_ns": "max"}).reset_index()
    spans["device"] = spans["device"].astype("Int64").where(spans["device"] != NONE)
    return spans


def _kernels(gpu: GpuEvents, has_layers: bool) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the kernels grouped by op and shapes, with the heaviest kernel in each group, and their layers.

    If no op is known, the kernels are grouped by name.
    """
    rows, steps, key = gpu.of_steps.launches, max(len(gpu.steps), 1), ["op", "shapes", "alone"]
    rows = rows.assign(alone=rows["name"].astype("object").where(rows["op"].isna()))
    by_name = rows.groupby([*key, "name"], dropna=False, sort=False, observed=True)["duration_ns"].sum()
    heaviest = by_name.sort_values(ascending=False, kind="stable").reset_index().drop_duplicates(key)
    table = kernels_by_op(rows, key).merge(heaviest.rename(columns={"name": "kernel"}), on=key, how="left")
    total = float(table["total_ms"].sum())
    table = table.assign(
        calls=table["calls"] / steps,
        total_ms=table["total_ms"] / steps,
        share=table["total_ms"] / total if total else None,
    )
    of_layers = ["layers", "layer", "layer_share"]
    if not has_layers:
        table[of_layers] = pd.NA
    known = rows[rows["layer"].notna()] if has_layers else rows.head(0)
    sums = known.groupby([*key, "layer"], dropna=False, observed=True)["duration_ns"].sum() / 1e6 / steps
    places = table[key].head(MOST_KERNELS).reset_index(names="row")
    texts = dict.fromkeys(key, "object")  # a column with only unknown values would otherwise have a different type
    layers = sums.rename("ms").reset_index().astype(texts).merge(places.astype(texts), on=key)[["row", "layer", "ms"]]
    named = table[["op", "shapes", "kernel", "kernels", "calls", "total_ms", "mean_us", "share", *of_layers]]
    return named, layers.sort_values("ms", ascending=False, kind="stable").head(MOST_LAYERS)


def _by_name(rows: pd.DataFrame, steps: int) -> pd.DataFrame:
    """Return the kernels, copies and fills grouped by name, in descending order of time."""
    parts = rows.groupby(["name", "op"], dropna=False, sort=False, observed=True)["duration_ns"].agg(["size", "sum"])
    parts = parts.reset_index().sort_values("sum", ascending=False, kind="stable")
    sums = parts.groupby("name", sort=False, observed=True)[["size", "sum"]].sum()
    table = sums.join(parts.drop_duplicates("name").set_index("name")["op"])
    table = table.sort_values("sum", ascending=False, kind="stable").rename_axis("kernel").reset_index()
    total = float(table["sum"].sum())
    return pd.DataFrame(
        {
            "kernel": table["kernel"],
            "op": table["op"],
            "calls": table["size"] / steps,
            "total_ms": table["sum"] / 1e6 / steps,
            "share": table["sum"] / total if total else None,
        }
    )


def _path(gpu: GpuEvents) -> PathFacts | None:
    """Return the critical path of the step with the median duration, among the steps that launched device work."""
    if not gpu.steps:
        return None
    number, marks, chosen = gpu.steps[0], step_windows(gpu.events), 1
    if gpu.only_step is None:
        busy = marks[marks["number"].isin(np.unique(gpu.work.step))]
        busy = busy if len(busy) else marks
        order = (busy["end"] - busy["start"]).sort_values(kind="stable").index
        number, chosen = int(busy.loc[order[len(order) // 2], "number"]), int(busy["number"].nunique())
    graph, window = gpu.waits, gpu.window_of(number)
    length = window.end - window.begin
    if length <= 0:
        return None
    path = path_in(graph, window)
    most = MOST_PARTS if len(path) <= MOST_SEGMENTS else 0
    kinds = savings_in(graph, window, "kind", most, path)
    ops = savings_in(graph, window, "op", min(most, MOST_OPS), path)
    tail = 0
    if gpu.only_step is None:
        tail = max(window.end - int(marks.loc[marks["number"] == number, "end"].max()), 0)
    return PathFacts(
        step=None if gpu.only_step is not None else number,
        steps=chosen,
        total_ms=length / 1e6,
        tail_ms=tail / 1e6,
        kinds=kinds,
        ops=ops.head(MOST_OPS),
    )


def _notes(gpu: GpuEvents, rows: pd.DataFrame, foreign: bool) -> Iterator[str]:
    """Yield notes about data that is missing from the trace."""
    unknown = int(rows["call_ns"].isna().sum())
    if unknown:
        yield (
            f"The trace lacks the launches of {unknown:,} of {len(rows):,} kernels, copies and fills. The causes of "
            "their waits are unknown, and they are not included in the queues."
        )
    of_graphs = found(rows["call"], _GRAPH.search)
    if of_graphs.any():
        yield (
            f"CUDA graphs launched {int(of_graphs.sum()):,} of {len(rows):,} kernels, copies and fills. A graph enters "
            "the queue as a whole, and the ops and layers that it was captured from are unknown."
        )
    early = int((rows["call_ns"].notna() & rows["delay_ns"].isna()).sum())
    if early:
        yield (
            f"{early:,} of {len(rows):,} kernels, copies and fills appear to start before their launch, because the "
            "clocks of the host and the GPU differ slightly."
        )
    on_host = is_in(gpu.events, OPS)
    if not on_host.any():
        calls = "GPU runtime calls" if is_in(gpu.events, CALLS).any() else "events"
        yield f"The trace has no host ops, only {calls}, so kernels are listed by name."
    elif "shapes" not in gpu.events or not gpu.events["shapes"].notna().any():
        how = "" if foreign else " (record_shapes=True records them)"
        yield f"The trace has no input shapes{how}, so kernels are only grouped by op."
    outside = int(np.count_nonzero(is_in(gpu.events, DEVICE_WORK) & ~gpu.in_steps))
    if outside:
        yield (
            f"{outside:,} kernels, copies and fills do not belong to any step. Only the bars for the whole trace "
            "include them."
        )
