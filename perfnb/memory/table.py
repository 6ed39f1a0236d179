"""Compute the memory that was alive at every instant of the counted step, and the figures for a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from perfnb.attribution.arithmetic import main_dtype
from perfnb.attribution.blocks import Kind
from perfnb.attribution.tables import phase_stretches
from perfnb.memory.allocations import Watched, allocations_by_step
from perfnb.memory.fits import options_to_fit
from perfnb.memory.leaks.judge import left_by_every_step
from perfnb.recording.nesting import NONE, Ints
from perfnb.recording.recording import Recording
from perfnb.recording.schema import CATEGORIES, conform
from perfnb.recording.text import TEXT

#: The maximum number of instants in a summary's timeline.
INSTANTS = 1500
#: The number of largest allocations that a view can list at any instant.
LARGEST = 8
#: The size of a float32 parameter in bytes.
_WHOLE = 4


@dataclass(frozen=True)
class MemorySummary:
    """The memory used by the counted step on the device with the highest peak.

    Attributes
    ----------
    device : str
        The device's name, such as ``cpu`` or ``cuda:0``.
    timeline : DataFrame
        At most `INSTANTS` rows of the table ``memory``, including the peak.
    phases : DataFrame
        The phases in chronological order: ``phase``, ``start_ms``, ``end_ms``.
    step_ms : float
        The duration of the counted step.
    peak_ms, peak_bytes : float, int
        The time at which the most memory was alive, and the amount. If the step failed, these and the following
        attributes describe the time of the failure.
    by_category : mapping of str to int
        The bytes in each category at the peak.
    owners : DataFrame
        The owners of memory at the peak, starting with the largest: ``category``, ``layer``, ``bytes``, ``count``,
        ``share``.
    largest : DataFrame
        Allocations, including the `LARGEST` largest at each instant of the timeline: ``bytes``, ``category``,
        ``layer``, ``phase``, ``op``, ``name``, ``start_ms``, ``end_ms``.
    fits : DataFrame
        Changes that would free memory at the peak: ``option``, ``frees_bytes``, ``basis`` (computed or estimated),
        ``detail``.
    process_peak_bytes, reserved_peak_bytes : int or None
        The process's peak resident memory (CPU), and the allocator's peak reserved memory (CUDA).
    fragmentation : float or None
        1 - allocated / reserved at the time when the most memory was reserved (CUDA).
    retries, ooms, largest_free_bytes : int or None
        Statistics from the CUDA allocator: the number of allocations that were retried after the cache was emptied, the
        number of out-of-memory errors, and the size of the largest free block after the step.
    incomplete : str or None
        The error, if the step ran out of memory.
    kept_bytes : int or None
        The amount of memory that each of the two recorded steps left behind, or ``None`` if only one was recorded.
    kept_by : str or None
        The owner of most of the memory that was left behind.
    """

    device: str
    timeline: pd.DataFrame
    phases: pd.DataFrame
    step_ms: float
    peak_ms: float
    peak_bytes: int
    by_category: Mapping[str, int]
    owners: pd.DataFrame
    largest: pd.DataFrame
    fits: pd.DataFrame
    process_peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    fragmentation: float | None = None
    retries: int | None = None
    ooms: int | None = None
    largest_free_bytes: int | None = None
    incomplete: str | None = None
    kept_bytes: int | None = None
    kept_by: str | None = None


def memory_table(watched: Watched) -> pd.DataFrame:
    """Return the table ``memory``.

    For each device, it has one row for the start of the counted step and one row for each change.
    """
    names = sorted(watched.blocks["device"].unique())
    tables = [_device_table(watched, name) for name in names]
    whole = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame({"t_ms": [], "device": []})
    return conform(whole, "memory")


def most_used_device(table: pd.DataFrame) -> str | None:
    """Return the device with the highest peak in the table ``memory``, or ``None`` if nothing was alive."""
    peaks = table.groupby("device", observed=True)["total"].max()
    return str(peaks.astype("int64").idxmax()) if len(peaks) else None


def memory_summary(watched: Watched, table: pd.DataFrame, samples: int | None = None) -> MemorySummary | None:
    """Return a report's figures about memory, or ``None`` if no memory was allocated.

    Parameters
    ----------
    watched : Watched
        The steps whose memory was recorded.
    table : DataFrame
        The table ``memory``.
    samples : int, optional
        The number of samples in a batch, which is needed to estimate how much memory a smaller batch would free.
    """
    device = most_used_device(table)
    if device is None:
        return None
    line = table[table["device"] == device].drop(columns="device").reset_index(drop=True)
    total = line["total"].to_numpy(dtype=np.int64)
    meta = watched.recording.meta
    top = int(total.argmax()) if "failure" not in meta else len(line) - 1
    peak_ms = float(line["t_ms"].iloc[top])
    blocks = watched.blocks[watched.blocks["device"] == device]
    moment = watched.begin + round(peak_ms * 1e6)
    alive = blocks[(blocks["start"] <= moment) & (blocks["end"] > moment)].sort_values("start", kind="stable")
    by_category = {name: int(line[name].iloc[top]) for name in CATEGORIES}
    timeline = line
    if len(line) > INSTANTS:
        kept = fullest(line["t_ms"].to_numpy(dtype=float), total, INSTANTS - 1)
        timeline = line.iloc[np.union1d(kept, [top])].reset_index(drop=True)
    stretches = phase_stretches(watched.attribution, watched.begin, watched.end)
    phases = pd.DataFrame(stretches, columns=["phase", "start_ms", "end_ms"])
    phases[["start_ms", "end_ms"]] = (phases[["start_ms", "end_ms"]] - watched.begin) / 1e6
    counted = meta.get("allocator", {}).get(device, {})
    reserved = line["reserved"].fillna(0).to_numpy(dtype=np.int64)
    fully = int(reserved.argmax()) if reserved.any() else None
    return MemorySummary(
        device=device,
        timeline=timeline,
        phases=phases,
        step_ms=(watched.end - watched.begin) / 1e6,
        peak_ms=peak_ms,
        peak_bytes=int(total[top]),
        by_category=by_category,
        owners=_owners(alive, by_category, int(total[top])),
        largest=_largest(watched, device, timeline["t_ms"].to_numpy(dtype=float)),
        fits=fitting_options(alive, by_category, watched.recording, samples),
        process_peak_bytes=_peak(line["process"]),
        reserved_peak_bytes=_peak(line["reserved"]),
        fragmentation=None if fully is None else 1 - int(total[fully]) / int(reserved[fully]),
        **{name: counted.get(name) for name in ("retries", "ooms", "largest_free_bytes")},
        incomplete=meta.get("failure"),
        **_left_behind(watched, device),
    )


def fitting_options(
    alive: pd.DataFrame, by_category: Mapping[str, int], recording: Recording, samples: int | None
) -> pd.DataFrame:
    """Return the changes that would make a step fit, given the blocks alive at its peak in the order of allocation."""
    batches = recording.meta.get("batches", 1)
    roots = recording.modules[recording.modules["parent"] == NONE]
    counted = recording.arithmetic
    updating = (alive["category"] == "temporaries") & (alive["phase"] == "optimizer")
    return options_to_fit(
        by_category,
        of_optimizer=int(alive.loc[updating, "bytes"].sum()),
        samples=None if samples is None else samples // batches,
        batches=batches,
        checkpoints=_checkpointing(alive, recording.modules),
        single=bool(roots["parameter_bytes"].sum() >= _WHOLE * roots["parameters"].sum()),
        half=counted is not None and main_dtype(counted.calls.astype({"dtype": TEXT})) in ("bfloat16", "float16"),
    )


def _left_behind(watched: Watched, device: str) -> dict[str, Any]:
    """Return how much memory every recorded step left behind on a device, and the owner of most of it.

    The result is empty if only one step was recorded.
    """
    host = watched.attribution.host.blocks
    steps = int((host["kind"] == Kind.STEP).sum())
    if steps < 2:
        return {}
    allocations = allocations_by_step(watched)
    left = left_by_every_step(allocations[allocations["device"] == device], steps)
    top = [str(name) for name in left[["layer", "op"]].iloc[0].dropna()] if len(left) else []
    return {"kept_bytes": int(left["bytes_per_step"].sum()), "kept_by": ", ".join(top) or None}


def _device_table(watched: Watched, device: str) -> pd.DataFrame:
    blocks = watched.counted[watched.counted["device"] == device]
    starts = np.maximum(blocks["start"].to_numpy(), watched.begin)
    ends = blocks["end"].to_numpy()
    freed = ends <= watched.end
    category, size = blocks["category"].cat.codes.to_numpy(), blocks["bytes"].to_numpy()
    times = np.concatenate([[watched.begin], starts, ends[freed], [watched.end]])
    codes = np.concatenate([[0], category, category[freed], [0]])
    deltas = np.concatenate([[0], size, -size[freed], [0]])
    moments, place = np.unique(times, return_inverse=True)
    alive = np.zeros((len(moments), len(CATEGORIES)), dtype=np.int64)
    np.add.at(alive, (place, codes), deltas)
    alive = alive.cumsum(axis=0)
    record = watched.recording.memory
    assert record is not None
    told = record.changes[(record.changes["device"] == device) & (record.changes["allocated"] != NONE)]
    allocated, reserved = (_latest(told["time_ns"], told[name], moments) for name in ("allocated", "reserved"))
    process = _latest(record.resident["time_ns"], record.resident["bytes"], moments)
    # Memory that was allocated before the recording and does not belong to any live object.
    unseen = allocated - alive.sum(axis=1)
    alive[:, CATEGORIES.index("other")] += np.where(allocated == NONE, 0, np.maximum(unseen, 0))
    return pd.DataFrame(
        {
            "t_ms": (moments - watched.begin) / 1e6,
            "device": device,
            **{name: alive[:, code] for code, name in enumerate(CATEGORIES)},
            "total": alive.sum(axis=1),
            "reserved": pd.arrays.IntegerArray(reserved, reserved == NONE),
            "process": pd.arrays.IntegerArray(process, (process == NONE) | (device != "cpu")),
        }
    )


def _latest(times: pd.Series, values: pd.Series, moments: Ints) -> Ints:
    """Return the latest value at or before each moment, or `NONE` before the first value."""
    place = np.searchsorted(times.to_numpy(), moments, side="right") - 1
    return np.asarray(np.append(values.to_numpy(), NONE)[place])


def fullest(times: np.ndarray, levels: Ints, most: int) -> Ints:
    """Return the rows of at most `most` instants in chronological order.

    These are the first instant, the last instant, and the instant with the most memory in each time bin.
    """
    elapsed = times - times[0]
    bins = np.minimum((elapsed / max(float(elapsed[-1]), 1e-9) * (most - 2)).astype(np.int64), most - 3)
    order = np.lexsort((-levels, bins))
    highest = order[np.unique(bins[order], return_index=True)[1]]
    return np.union1d(highest, [0, len(times) - 1])


def _owners(alive: pd.DataFrame, by_category: Mapping[str, int], peak: int) -> pd.DataFrame:
    rows = alive[["category", "layer", "bytes"]].fillna({"layer": ""}).assign(count=1)
    unowned = by_category["other"] - int(rows.loc[rows["category"] == "other", "bytes"].sum())
    if unowned > 0:
        rest = pd.DataFrame({"category": ["other"], "layer": [""], "bytes": [unowned], "count": [0]})
        rows = pd.concat([rows.astype({"category": TEXT}), rest])
    table = rows.groupby(["category", "layer"], as_index=False, observed=True, sort=False).sum()
    table["layer"] = table["layer"].mask(table["layer"] == "", pd.NA)
    table["share"] = table["bytes"] / max(peak, 1)
    return table.sort_values("bytes", ascending=False, kind="stable", ignore_index=True)


def _largest(watched: Watched, device: str, instants_ms: np.ndarray) -> pd.DataFrame:
    """Return the allocations on a device that are among the `LARGEST` largest at any instant."""
    blocks = watched.counted[watched.counted["device"] == device]
    blocks = blocks.sort_values("bytes", ascending=False, kind="stable")
    times = (blocks[name].to_numpy().clip(watched.begin, watched.end) for name in ("start", "end"))
    start, end = ((time - watched.begin) / 1e6 for time in times)
    first, last = (np.searchsorted(instants_ms, time, side="left") for time in (start, end))
    last[blocks["end"] >= watched.end] = len(instants_ms)
    counts = np.zeros(len(instants_ms), dtype=np.int64)
    chosen: list[int] = []
    for row, (begin, stop) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        if begin < stop and counts[begin:stop].min() < LARGEST:
            counts[begin:stop] += 1
            chosen.append(row)
            if len(chosen) % 256 == 0 and counts.min() >= LARGEST:
                break
    table = blocks.iloc[chosen].assign(start_ms=start[chosen], end_ms=end[chosen])
    columns = ["bytes", "category", "layer", "phase", "op", "name", "start_ms", "end_ms"]
    return table[columns].reset_index(drop=True)


def _peak(values: pd.Series) -> int | None:
    return int(values.max()) if values.notna().any() else None


def activation_bytes(watched: Watched) -> np.ndarray:
    """Return the number of bytes that each block of the attribution saved for backward in the counted step."""
    blocks = watched.blocks
    saved = (blocks["category"] == "activations") & (blocks["start"] >= watched.begin) & (blocks["place"] != NONE)
    made = saved & (blocks["direction"] != "recompute")
    place = blocks.loc[made, "place"].to_numpy(dtype=np.int64)
    return np.bincount(place, weights=blocks.loc[made, "bytes"], minlength=len(watched.attribution.cells))


def most_alive(table: pd.DataFrame, device: str, starts_ms: np.ndarray, ends_ms: np.ndarray) -> Ints:
    """Return the maximum number of bytes alive on a device during each interval of the counted step."""
    line = table[table["device"] == device]
    times, total = line["t_ms"].to_numpy(dtype=float), line["total"].to_numpy(dtype=np.int64)
    first = np.maximum(np.searchsorted(times, starts_ms, side="right") - 1, 0)
    last = np.maximum(np.searchsorted(times, ends_ms, side="left"), first + 1)
    ends = np.column_stack([first, last]).ravel()
    most: Ints = np.maximum.reduceat(np.append(total, 0), ends)[::2]  # keep the maximum of each interval
    return most


def _checkpointing(alive: pd.DataFrame, modules: pd.DataFrame) -> tuple[int, str]:
    """Return the maximum number of bytes that checkpointing sibling layers of the same class would free.

    The second value describes the number of layers and their class. The bytes include all activations of these layers
    except for the last activation of each layer, assuming that only one layer is recomputed at a time.
    """
    parent, depth = modules["parent"].to_numpy(), modules["depth"].to_numpy()
    row = {name: place for place, name in enumerate(modules["name"])}
    saved = alive[(alive["category"] == "activations") & alive["layer"].isin(row)]
    at, size = saved["layer"].map(row).to_numpy(dtype=np.int64), saved["bytes"].to_numpy()
    best: tuple[int, int, str] = (0, 0, "")
    for level in range(int(depth.max(initial=0)), 0, -1):
        at = np.where(depth[at] > level, parent[at], at)  # the enclosing layer at this level
        here = depth[at] == level
        blocks = pd.DataFrame({"row": at[here], "bytes": size[here]}).groupby("row")["bytes"].agg(["sum", "last"])
        alike = [parent[blocks.index], modules["module"].to_numpy(dtype=object)[blocks.index]]
        # Sums are computed before groups are examined one by one, because there may be as many groups as layers.
        groups = blocks.assign(largest=blocks["sum"]).groupby(alike)
        of = groups.agg({"sum": "sum", "last": "sum", "largest": "max"}).assign(count=groups.size())
        frees = of["sum"] - of["last"] - of["largest"]
        kinds = map(str, of.index.get_level_values(1))
        best = max([best, *zip(frees.tolist(), of["count"].tolist(), kinds, strict=True)])
    return best[0], f"{best[1]} {best[2]}"
