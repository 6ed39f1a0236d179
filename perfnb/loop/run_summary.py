"""Compute the figures of a whole run's steps.

They comprise times, phases, slow steps, memory, and how typical the profiled windows are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.loop.run_rules import run_findings
from perfnb.loop.thinning import COLUMNS, READING_COLUMNS, WINDOW_COLUMNS, Rows
from perfnb.recording.text import TEXT
from perfnb.stats.blocks import (
    FEWEST_BLOCKS,
    FINE_BLOCKS,
    SHORTEST,
    Changes,
    changes_in,
    in_blocks,
    ratio_of_sums,
)
from perfnb.stats.intervals import Floats, interval_of_median
from perfnb.stats.slope import Slope, memory_slope

#: The minimum number of steps after the warm-up for a verdict. Fewer steps do not form enough blocks for an interval.
FEWEST_STEPS = FEWEST_BLOCKS * SHORTEST
#: Steps that take this many times as long as their neighbours are slow, or warm-up if they are at the start of a run.
_SLOW, _WARMING = 2.0, 1.5
#: The largest part of a run that can be warm-up. If more steps at the start are slow, this is a change of pace.
_MOST_WARMUP = 0.1
#: The largest number of readings for the slope, which is computed from all pairs of readings.
_MOST_READINGS = 400
#: A window is typical if the ratio of its median step to the run's is in this range.
TYPICAL = (0.8, 1.25)
#: The number of steps on each side that represent a window without timed steps.
_NEIGHBOURS = 20

#: The machine is busy if its load exceeds this many times the number of CPUs.
_BUSY = 1.25

PHASES = ("data", "step", "other", "profiled")


@dataclass(frozen=True)
class RunMemory:
    """The development of one kind of memory over a run."""

    peak_bytes: int | None
    last_bytes: int | None
    growth: Slope | None  # per step


class RunFigures:
    """The facts about a run, which its rules and its document are based on.

    Parameters
    ----------
    steps : DataFrame
        From `steps_frame`.
    memory : DataFrame
        From `memory_frame`.
    facts : mapping
        As `perfnb.loop.record.Recorded.facts`.
    """

    def __init__(self, steps: pd.DataFrame, memory: pd.DataFrame, facts: Mapping[str, Any]) -> None:
        own, profiled = steps[~steps["profiled"]], steps[steps["profiled"]]
        self.name, self.steps, self.memory = str(facts["name"]), steps, memory
        #: The number of all steps, and the number of steps in profiled windows, which are counted only in the phases.
        self.count = int(facts["steps"])
        self.profiled = int(profiled["steps"].sum()) + int(facts["dropped_windows"]["steps"])
        #: Number of slow steps at the start, which are excluded from the verdict.
        self.warmup = _warmup(own["wall_ms"].to_numpy(float)) if int(facts["stride"]) == 1 else 0
        #: Whether each step is a batch, because no optimizer's step shows where a step ends; and the number of batches
        #: per step.
        self.by_batch, self.batches = bool(facts.get("by_batch", False)), int(facts.get("batches", 1))
        #: The time from the first step's start to the last step's end.
        self.duration_ms: float = facts["duration_ns"] / 1e6
        judged = own.iloc[self.warmup :]
        on_device = bool(judged["device_ms"].notna().mean() > 0.9)  # false if there are no steps
        #: Whether an accelerator worked, and the device whose events timed the steps, if any.
        self.has_device, self.device = bool(facts["device"]), facts["device"] if on_device else None
        ms = judged["device_ms"].fillna(judged["wall_ms"]) if on_device else judged["wall_ms"]
        #: The remaining steps, with their time in `ms` and their time without waits in `working`, and their number.
        self.judged = judged.assign(ms=ms, working=judged["sum_wall_ms"] - judged["sum_data_ms"])
        self.counted = int(judged["steps"].sum())
        #: Whether there are enough of these steps for a verdict.
        self.enough = len(judged) >= FEWEST_STEPS
        times, first = ms.to_numpy(float), int(judged["step"].iloc[0]) if len(judged) else 0
        interval = interval_of_median(times)
        self.median_ms = float(ms.median()) if len(times) else None
        self.ci_ms = None if interval is None else interval[:2]
        #: The mean time of a step, and the mean time from the end of a step to the start of the next one.
        self.mean_ms, self.between_ms = (
            float(judged[f"sum_{name}_ms"].sum()) / max(1, self.counted) for name in ("wall", "other")
        )
        self.phases = _phases(steps, facts)
        #: The share of the steps' time spent waiting for data.
        self.wait = ratio_of_sums(judged["sum_data_ms"].to_numpy(float), judged["sum_wall_ms"].to_numpy(float))
        #: Slow steps, slowest first and at most one per row, and the time that they lost for reasons other than data.
        self.slow, self.lost_ms = _slow(self.judged)
        #: Changes in the step time, located by step number.
        self.changes = _changes(judged, times) if self.enough else None
        self.memory_of = {kind: _memory(memory, kind, first, steps, facts) for kind in ("resident", "allocated")}
        #: The machine's memory; and its load and number of CPUs, if there was work for more CPUs than it has.
        self.memory_bytes: int | None = facts.get("memory_bytes")
        self.load = _busy(facts)
        self.windows = _windows(profiled, own, times)
        self.tried: list[Mapping[str, Any]] = list(facts.get("tried", ()))
        self.rank: int | None = facts.get("rank")
        self.ranks: int | None = facts.get("ranks")
        self.judgement = run_findings(self)
        self.findings = self.judgement.table


def steps_frame(rows: Rows, windows: Rows) -> pd.DataFrame:
    """Return the rows for steps and profiled windows in chronological order, in milliseconds."""
    own = pd.DataFrame(rows, columns=list(COLUMNS))
    frame = pd.concat([own, pd.DataFrame(windows, columns=list(WINDOW_COLUMNS))], ignore_index=True)
    frame["profiled"] = np.arange(len(frame)) >= len(own)
    frame = frame.sort_values("begin_ns", kind="stable", ignore_index=True)
    made = frame[["step", "steps", "profiled"]].copy()
    made["start_s"] = frame["begin_ns"] / 1e9
    wall = frame["one_wall_ns"].where(~frame["profiled"], frame["timed_median_ns"])
    named = (
        *(("wall_ms", wall), ("data_ms", frame["one_data_ns"]), ("device_ms", frame["one_device_ns"])),
        *((f"sum_{name}", frame[f"sum_{name.removesuffix('_ms')}_ns"]) for name in ("wall_ms", "data_ms", "other_ms")),
        *(("slowest_ms", frame["slowest_ns"]), ("slowest_data_ms", frame["slowest_data_ns"])),
    )
    for name, ns in named:
        known = pd.to_numeric(ns, errors="coerce").astype("Float64")
        made[name] = (known / 1e6).mask(known < 0)
    made["slowest_step"] = frame["slowest_step"].astype("Int64")
    made["timed_steps"] = frame["timed_steps"].astype("Int64")
    return made


def memory_frame(readings: Rows) -> pd.DataFrame:
    """Return memory readings: seconds since the start, the step that had just ended, and bytes."""
    frame = pd.DataFrame(readings, columns=list(READING_COLUMNS))
    made = pd.DataFrame({"t_s": frame["at_ns"] / 1e9, "step": frame["step"]})
    for name in ("resident_bytes", "allocated_bytes"):
        made[name] = frame[name].astype("Int64").mask(frame[name] < 0)
    return made


def _busy(facts: Mapping[str, Any]) -> tuple[float, int] | None:
    """Return the machine's mean load and number of CPUs, if there was work for more CPUs than it has."""
    load, cpus = facts.get("load"), facts.get("cpus")
    return (load, cpus) if load is not None and cpus and load > _BUSY * cpus else None


def stretches(steps: pd.DataFrame, most: int) -> pd.DataFrame:
    """Divide all steps into at most `most` stretches of consecutive steps, in order.

    Returns
    -------
    DataFrame
        For each stretch, the number of its first step in `first`, and `wall_ms` and `data_ms` (medians over rows;
        missing if all steps were profiled).
    """
    count = int((steps["step"] + steps["steps"]).max())
    most = min(most, count)
    own = steps[~steps["profiled"]]
    medians = own.groupby(own["step"] * most // count)[["wall_ms", "data_ms"]].median().reindex(range(most))
    return medians.assign(first=-(-np.arange(most) * count // most)).reset_index(drop=True)


def _warmup(times: Floats) -> int:
    """Return the number of warm-up steps, which are slow because they are the first ones."""
    if not len(times):
        return 0
    slow = times > _WARMING * np.median(times)
    leading = int(np.argmin(slow)) if not slow.all() else 0
    return leading if leading <= max(1.0, _MOST_WARMUP * len(times)) else 0


def _phases(steps: pd.DataFrame, facts: Mapping[str, Any]) -> pd.DataFrame:
    own, profiled = steps[~steps["profiled"]], steps[steps["profiled"]]
    dropped = facts["dropped_windows"]
    inside = ("sum_wall", "sum_other")
    in_windows = sum(float(profiled[f"{name}_ms"].sum()) + dropped[f"{name}_ns"] / 1e6 for name in inside)
    data = float(own["sum_data_ms"].sum())
    ms = pd.Series(
        {
            "data": data,
            "step": float(own["sum_wall_ms"].sum()) - data,
            "other": float(own["sum_other_ms"].sum()),
            "profiled": in_windows,
        },
        index=pd.Index(PHASES, name="phase", dtype=TEXT),
        dtype="Float64",
    )
    whole = float(ms.sum())
    if not facts["waits_known"]:
        ms["data"] = pd.NA  # waits are then part of the steps
    return pd.DataFrame({"ms": ms, "share": ms / whole if whole > 0 else ms.mask(ms.notna())})


def _around(values: Floats) -> Floats:
    """Return, for each value, the median of its block, which was the usual value at that point in the run."""
    blocks = in_blocks(values, most=FINE_BLOCKS) or [(values,)]
    return np.concatenate([np.full(len(block), np.median(block)) for (block,) in blocks])


def _slow(rows: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """Return the slow steps, and the milliseconds that they lost in addition to their waits for data."""
    columns = ["step", "start_s", "wall_ms", "data_ms", "lost_ms"]
    if len(rows) < FEWEST_STEPS:
        return pd.DataFrame(columns=columns, dtype=float), 0.0
    slowest, steps = rows["slowest_ms"].to_numpy(float), rows["steps"].to_numpy(float)
    wall, data = rows["sum_wall_ms"].to_numpy(float), rows["sum_data_ms"].to_numpy(float)
    one, one_data = rows["wall_ms"].to_numpy(float), rows["data_ms"].to_numpy(float)
    typical, without = _around(one), _around(one - one_data)
    low, high = np.percentile(one / typical, [25, 75])
    is_slow = slowest > typical * max(_SLOW, high + 3 * (high - low))
    lost = np.maximum(0.0, wall - steps * typical)
    lost_working = np.clip(wall - data - steps * without, 0.0, lost)
    place = np.flatnonzero(is_slow)
    place = place[np.argsort(-slowest[place], kind="stable")]
    listed = pd.DataFrame(
        {
            "step": rows["slowest_step"].to_numpy(np.int64)[place],
            "start_s": rows["start_s"].to_numpy(float)[place],
            "wall_ms": slowest[place],
            "data_ms": rows["slowest_data_ms"].to_numpy(float)[place],
            "lost_ms": lost[place],
        },
        columns=columns,
    )
    return listed, float(lost_working[is_slow].sum())


def _changes(rows: pd.DataFrame, times: Floats) -> Changes | None:
    """Return the changes in step time; their positions are step numbers."""
    changes = changes_in(times)
    if changes is None:
        return None
    places = tuple(int(rows["step"].iloc[min(place, len(rows) - 1)]) for place in changes.places)
    return Changes(changes.kind, places, changes.levels, changes.ratio)


def _memory(memory: pd.DataFrame, kind: str, first: int, steps: pd.DataFrame, facts: Mapping[str, Any]) -> RunMemory:
    column, peak = f"{kind}_bytes", int(facts[f"peak_{kind}_bytes"])
    known = memory[column].dropna()
    last = int(known.iloc[-1]) if len(known) else None
    return RunMemory(None if peak < 0 else peak, last, _growth(memory, column, first, steps))


def _growth(memory: pd.DataFrame, column: str, first: int, steps: pd.DataFrame) -> Slope | None:
    """Return the growth per step after the warm-up and the first tenth of the run, while caches and pools fill.

    Profiled windows and the memory changes during them are excluded, because profiles themselves take up memory.
    """
    known = memory[memory[column].notna()].drop_duplicates("step", keep="last")
    windows = steps[steps["profiled"]]
    for start, count in zip(windows["step"][::-1], windows["steps"][::-1], strict=True):
        before, after = known[known["step"] < start], known[known["step"] >= start + count]
        if len(before) and len(after):
            gained = int(after[column].iloc[0]) - int(before[column].iloc[-1])
            after = after.assign(**{"step": after["step"] - count, column: after[column] - gained})
        known = pd.concat([before, after])
    if known.empty:
        return None
    last = int(known["step"].iloc[-1])
    known = known[known["step"] >= first + 0.1 * (last - first)]
    known = known.iloc[:: max(1, -(-len(known) // _MOST_READINGS))]
    return memory_slope(known[column].to_numpy(float), known["step"].to_numpy(np.int64))


def _windows(profiled: pd.DataFrame, own: pd.DataFrame, times: Floats) -> pd.DataFrame:
    """Compare each profiled window's timed steps (or, if it has none, its neighbours) with the run's steps."""
    columns = ["step", "steps", "ms", "ratio", "typical", "judged_by"]
    found = []
    enough = len(times) >= FEWEST_STEPS
    median = float(np.median(times)) if enough else np.nan
    walls, numbers = own["wall_ms"].to_numpy(float), own["step"].to_numpy(np.int64)
    for first, steps, wall_ms in zip(*(profiled[name].tolist() for name in ("step", "steps", "wall_ms")), strict=True):
        ms, by = fmt.known(wall_ms), "timed steps"
        if ms is None:
            before = int(np.searchsorted(numbers, first))
            beside = walls[max(0, before - _NEIGHBOURS) : int(np.searchsorted(numbers, first + steps)) + _NEIGHBOURS]
            ms, by = (float(np.median(beside)), "neighbouring steps") if len(beside) else (np.nan, "")
        ratio = ms / median
        typical = pd.NA if np.isnan(ratio) else bool(TYPICAL[0] <= ratio <= TYPICAL[1])
        found.append((first, steps, ms, ratio, typical, by))
    frame = pd.DataFrame(found, columns=columns)
    types = {"step": "int64", "steps": "int64", "ms": "Float64", "ratio": "Float64", "typical": "boolean"}
    return frame.astype({**types, "judged_by": TEXT})
