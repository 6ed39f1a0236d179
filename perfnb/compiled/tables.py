"""Compute the tables about compiled code: its kernels, the layers that they compute, its regions, and their costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.attribution.device_work import column, launches_of, work_alone
from perfnb.compiled.runs import region_runs
from perfnb.recording.nesting import NONE, Floats
from perfnb.recording.recording import CompiledRecord, Recording
from perfnb.recording.schema import conform
from perfnb.recording.text import TEXT

#: A share that is considered to be all of a kernel's time, despite rounding.
_WHOLE = 1 - 1e-9


@dataclass(frozen=True)
class CompiledSummary:
    """The contents of a report about compiled code.

    Attributes
    ----------
    kernels, regions : DataFrame
        The tables ``compiled`` and ``compiled_regions``.
    shares : DataFrame
        One row per kernel and layer, with ``kernel`` (the row in `kernels`), ``layer``, ``share`` and ``ms`` (per
        step).
    on_gpu : bool
        Whether the times of `kernels` and `shares` are GPU times.
    """

    kernels: pd.DataFrame
    regions: pd.DataFrame
    shares: pd.DataFrame
    on_gpu: bool


def place_in_words(place: str) -> str:
    """Return a file without its folder, and a line, from ``file:line``."""
    file, _, line = place.rpartition(":")
    return fmt.place(file, line)


def compiled_summary(recording: Recording) -> CompiledSummary | None:
    """Return the contents of a report about compiled code, or ``None`` if the traced steps did not run any."""
    record = recording.compiled
    if record is None or not len(record.code):
        return None
    gpu_ns = _gpu_ns(recording, record)
    kernels, shares = _kernels(recording, record, gpu_ns)
    return CompiledSummary(kernels, region_table(recording), shares, gpu_ns is not None)


def compiled_kernel_table(recording: Recording) -> pd.DataFrame:
    """Return the table ``compiled``, which contains the kernels of compiled code per traced step, sorted by time."""
    record = recording.compiled
    if record is None:
        return conform(pd.DataFrame(), "compiled")
    return _kernels(recording, record, _gpu_ns(recording, record))[0]


def _kernels(recording: Recording, record: CompiledRecord, gpu_ns: Floats | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the table ``compiled``, and the share of each layer in each of its rows."""
    kernels, steps = record.kernels, max(recording.traced_steps, 1)
    times = (
        record.calls.groupby("kernel")["duration_ns"].agg(["size", "sum"]).reindex(range(len(kernels)), fill_value=0)
    )
    ns, calls = times["sum"].to_numpy(), times["size"].to_numpy() / steps
    if gpu_ns is not None:  # only kernels in C++ run on the host, where the others are only launched
        ns = np.where(kernels["kernel"].str.startswith("cpp_").to_numpy(), ns, gpu_ns)
    ms = ns / 1e6 / steps
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
    unknown = kernels["bytes"].to_numpy() == 0  # every kernel moves some bytes
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


def _gpu_ns(recording: Recording, record: CompiledRecord) -> Floats | None:
    """Return the time of the GPU work that each kernel's calls launched, or ``None`` if they launched none.

    On the host, such a call takes only as long as the launch.
    """
    calls = record.calls.sort_values("start_ns", kind="stable")
    begin = calls["start_ns"].to_numpy()
    work = work_alone(recording.events)
    launch = launches_of(recording.events, work.rows)
    at = np.append(column(recording.events, "start_ns"), NONE)[launch]
    place = np.searchsorted(begin, at, side="right") - 1
    inside = (place != NONE) & (at < np.append(begin + calls["duration_ns"].to_numpy(), 0)[place])
    if not inside.any():
        return None
    kernel = calls["kernel"].to_numpy()[place[inside]]
    ns = (work.end - work.start)[inside]
    return np.asarray(np.bincount(kernel, ns, len(record.kernels)), dtype=np.float64)


def fused_ms(recording: Recording) -> Floats:
    """Return the time per step of the kernels that each layer shares with layers outside of it.

    A layer includes its child layers.
    """
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
    """Return the table ``compiled_regions``, sorted by time.

    It has one row for each version of compiled code that the traced steps ran. If a region ends with a graph break,
    ``gap_ms`` is the time from its end to the next region in the step. The code in this gap runs uncompiled.
    """
    record = recording.compiled
    if record is None:
        return conform(pd.DataFrame(), "compiled_regions")
    steps = max(recording.traced_steps, 1)
    runs = region_runs(recording, record)
    times = runs[["own_ns", "kernel_ns", "lookup_ns", "gap_ns"]] / 1e6 / steps
    sums = times.groupby(runs["region"]).sum(min_count=1)
    sums["calls"] = runs.groupby("region").size() / steps
    code = record.code.set_index("region")
    sums = sums.reindex(code.index)
    broke = (code["broke"] != "").to_numpy()
    texts = {
        name: code[name].mask(code[name] == "") for name in ("function", "line", "recompiled", "broke", "broke_at")
    }
    kernels = sums["kernel_ns"].where(sums["kernel_ns"] > 0)  # zero means that its graphs do not report kernels
    table = code[["guards", "compile_s"]].assign(
        **texts,
        calls=sums["calls"],
        ms=sums["own_ns"],
        kernel_ms=kernels,
        overhead_ms=sums["own_ns"] - kernels,
        lookup_ms=sums["lookup_ns"],
        gap_ms=sums["gap_ns"].where(broke),
    )
    return conform(table.sort_values("ms", ascending=False, kind="stable"), "compiled_regions")
