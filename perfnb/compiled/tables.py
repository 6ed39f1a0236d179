"""The frames of compiled code: its kernels with the layers behind them, and its regions with what they cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.attribution.blocks import marks_step
from perfnb.attribution.device_work import thread_keys
from perfnb.recording.nesting import NONE, Floats, Ints, children_sums, innermost, nest_cutting
from perfnb.recording.recording import CompiledRecord, Recording
from perfnb.recording.schema import conform
from perfnb.recording.text import TEXT, is_one_of, of_labels
from perfnb.trace.trace_steps import step_of
from perfnb.trace_names import GRAPH_CALL, OPS, RANGES, REGION, REGION_LOOKUP

#: A share of a kernel's time that is all of it, in spite of rounding.
_WHOLE = 1 - 1e-9


@dataclass(frozen=True)
class CompiledSummary:
    """What a report shows of compiled code.

    Attributes
    ----------
    kernels, regions : DataFrame
        The frames ``compiled`` and ``compiled_regions``.
    shares : DataFrame
        One row per kernel and layer: ``kernel`` (row of `kernels`), ``layer``, ``share``, ``ms`` per step.
    """

    kernels: pd.DataFrame
    regions: pd.DataFrame
    shares: pd.DataFrame


def compiled_summary(recording: Recording) -> CompiledSummary | None:
    """What a report shows of compiled code; ``None`` if the traced steps ran none."""
    record = recording.compiled
    if record is None or not len(record.code):
        return None
    kernels, shares = _kernels(recording, record)
    return CompiledSummary(kernels, region_table(recording), shares)


def compiled_kernel_table(recording: Recording) -> pd.DataFrame:
    """The frame ``compiled``: the kernels of compiled code per traced step, slowest first."""
    record = recording.compiled
    return conform(pd.DataFrame(), "compiled") if record is None else _kernels(recording, record)[0]


def _kernels(recording: Recording, record: CompiledRecord) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The frame ``compiled``, and the share of each layer in each of its rows."""
    kernels, steps = record.kernels, max(recording.traced_steps, 1)
    times = (
        record.calls.groupby("kernel")["duration_ns"].agg(["size", "sum"]).reindex(range(len(kernels)), fill_value=0)
    )
    ms, calls = times["sum"].to_numpy() / 1e6 / steps, times["size"].to_numpy() / steps
    order = np.argsort(-ms, kind="stable")
    names = recording.modules["name"].to_numpy(dtype=object)
    shares = record.shares.sort_values(["kernel", "share"], ascending=[True, False], kind="stable")
    shares = pd.DataFrame(
        {
            "kernel": np.argsort(order)[shares["kernel"].to_numpy()],
            "layer": pd.array(names[shares["layer"].to_numpy()], dtype=TEXT),
            "share": shares["share"].to_numpy(),
            "ms": shares["share"].to_numpy() * ms[shares["kernel"].to_numpy()],
        }
    )
    unknown = kernels["bytes"].to_numpy() == 0  # each kernel moves some
    layers = shares.groupby("kernel")["layer"].agg(", ".join).reindex(range(len(kernels)))
    table = pd.DataFrame(
        {
            "kernel": kernels["kernel"],
            "graph": pd.factorize(kernels["graph"])[0],
            "direction": kernels["direction"],
            "calls": calls,
            "ms": ms,
            "ops": kernels["ops"],
            "source": kernels["source"],
            "bytes": kernels["bytes"].mask(unknown),
            "bytes_per_s": np.where(
                (ms > 0) & ~unknown, kernels["bytes"].to_numpy() * calls / np.where(ms > 0, ms, 1) * 1e3, np.nan
            ),
            "flops": kernels["flops"].mask(unknown),
        }
    )
    table = table.iloc[order].reset_index(drop=True)
    return conform(table.assign(layers=layers.array), "compiled"), shares


def fused_ms(recording: Recording) -> Floats:
    """For each layer, the time per step from kernels that it shares with layers outside it, child layers included."""
    record, parent = recording.compiled, recording.modules["parent"].to_numpy()
    if record is None:
        return np.full(len(parent), np.nan)
    ms = record.calls.groupby("kernel")["duration_ns"].sum().reindex(range(len(record.kernels)), fill_value=0)
    ms /= 1e6 * max(recording.traced_steps, 1)
    layer, kernel, share = (record.shares[name].to_numpy() for name in ("layer", "kernel", "share"))
    inside: dict[tuple[int, int], float] = {}
    for own, number, part in zip(layer.tolist(), kernel.tolist(), share.tolist(), strict=True):
        while own != NONE:
            inside[own, number] = inside.get((own, number), 0.0) + part
            own = int(parent[own])
    sums = np.zeros(len(parent))
    for (own, number), part in inside.items():
        if part < _WHOLE:
            sums[own] += part * float(ms[number])
    return sums


def region_table(recording: Recording) -> pd.DataFrame:
    """The frame ``compiled_regions``: each version of compiled code that the traced steps ran, slowest first.

    ``gap_ms`` is the time from a region whose graph breaks at its end to the next region of the step: what runs there
    runs uncompiled.
    """
    record = recording.compiled
    if record is None:
        return conform(pd.DataFrame(), "compiled_regions")
    steps = max(recording.traced_steps, 1)
    runs = _runs(recording, record)
    sums = runs.groupby("region")[["ms", "kernel_ms", "lookup_ms", "gap_ms"]].sum(min_count=1) / steps
    sums["calls"] = runs.groupby("region").size() / steps
    code = record.code.set_index("region")
    sums = sums.reindex(code.index)
    broke = (code["broke"] != "").to_numpy()
    texts = {
        name: code[name].mask(code[name] == "") for name in ("function", "line", "recompiled", "broke", "broke_at")
    }
    kernels = sums["kernel_ms"] if len(record.kernels) else sums["kernel_ms"] * np.nan
    table = code[["guards", "compile_s"]].assign(
        **texts,
        calls=sums["calls"],
        ms=sums["ms"],
        kernel_ms=kernels,
        overhead_ms=sums["ms"] - kernels,
        lookup_ms=sums["lookup_ms"],
        gap_ms=sums["gap_ms"].where(broke),
    )
    return conform(table.sort_values("ms", ascending=False, kind="stable"), "compiled_regions")


def _runs(recording: Recording, record: CompiledRecord) -> pd.DataFrame:
    """Each execution of a region: ``region``, and the times in ms that are its own, without regions inside it."""
    events = recording.events
    is_op = is_one_of(events["category"], OPS)
    wanted = is_op & of_labels(events["name"], lambda name: name.startswith((REGION, REGION_LOOKUP)))
    is_call = is_one_of(events["category"], (*OPS, *RANGES))
    wanted |= is_call & of_labels(events["name"], lambda name: name.startswith(GRAPH_CALL))
    host = events.loc[wanted, ["name", "start_ns", "duration_ns"]].assign(thread=thread_keys(events)[wanted])
    host = host.sort_values("start_ns", kind="stable")
    names = host["name"].astype(object).to_numpy()
    start, thread = host["start_ns"].to_numpy(), host["thread"].to_numpy()
    forest, end = nest_cutting(thread, start, start + host["duration_ns"].to_numpy())
    is_region = np.array([name.startswith(REGION) for name in names], dtype=bool)
    region = innermost(forest, is_region)
    own = (end - start - children_sums(np.where(is_region, region, NONE), (end - start).astype(np.float64))) / 1e6
    graphs = np.array([name.startswith(GRAPH_CALL) for name in names], dtype=bool) & (region != NONE)
    kernels = np.bincount(region[graphs], _kernel_time(start[graphs], end[graphs], record), len(names)) / 1e6
    rows = np.flatnonzero(is_region)
    following = np.append(rows[1:], NONE)
    same = (following != NONE) & (thread[following] == thread[rows])
    marks = events.loc[marks_step(events), ["start_ns", "duration_ns"]]
    begins = marks["start_ns"].to_numpy()
    step = step_of(start[rows], begins, begins + marks["duration_ns"].to_numpy())
    same &= np.append(step[1:], NONE) == step
    # Code between two regions may run inside the first, after its graph, or behind it.
    graph_end = pd.Series(end[graphs], index=region[graphs]).groupby(level=0).max().reindex(rows)
    left = np.where(graph_end.isna(), start[rows], graph_end.fillna(0)).astype(np.int64)
    lookup = np.append(np.array([name == REGION_LOOKUP for name in names], dtype=bool), False)
    before = np.where(rows > 0, rows - 1, len(names))
    return pd.DataFrame(
        {
            "region": [str(name).removeprefix(REGION) for name in names[rows]],
            "ms": own[rows],
            "kernel_ms": kernels[rows],
            "lookup_ms": np.where(lookup[before], np.append(end - start, 0)[before], 0) / 1e6,
            "gap_ms": np.where(same, np.maximum(start[following] - left, 0) / 1e6, np.nan),
        }
    )


def _kernel_time(start: Ints, end: Ints, record: CompiledRecord) -> Floats:
    """Nanoseconds of the kernels that start in each interval."""
    at, duration = (record.calls[name].to_numpy() for name in ("start_ns", "duration_ns"))
    order = np.argsort(at, kind="stable")
    sums = np.concatenate([[0], np.cumsum(duration[order])])
    first, last = (np.searchsorted(at[order], bound) for bound in (start, end))
    return np.asarray(sums[last] - sums[first], dtype=np.float64)
