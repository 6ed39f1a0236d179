"""What a whole run's steps say: its phases, what held it back, and whether its profiled windows were typical."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.loop.thinning import COLUMNS, Rows
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
from perfnb.stats.intervals import Centre, Floats, interval_of_median
from perfnb.stats.slope import Slope, memory_slope

#: Fewest steps after the warm-up for a verdict: below, there are no blocks for an interval.
FEWEST_STEPS = FEWEST_BLOCKS * SHORTEST
#: Share of the run from which a wait, time between steps or a change matters, and from which stalls do.
_WORTH, _WORTH_STALLS = 0.05, 0.02
#: Share of the steps' time from which waiting for data is what bounds the run.
_BOUND = 0.2
#: Steps that take this many times as long as their neighbours are slow; leading ones this many are warm-up.
_SLOW, _WARMING = 2.0, 1.5
#: Most of a run that can be warm-up: a longer start is a change of its own.
_MOST_WARMUP = 0.1
#: Growth over the run that matters, in bytes and relative to the level.
_LEAST_GROWTH, _GROWTH = 16 * 2**20, 0.01
#: Memory that would be full within this many times the run's length is the most urgent.
_URGENT = 10
#: Most readings for the slope, which compares all pairs.
_MOST_READINGS = 400
#: A window is typical if its median step takes this many times the run's.
TYPICAL = (0.8, 1.25)
#: Steps on each side of a window without timed steps that stand for it.
_NEIGHBOURS = 20

#: Work for this many times the machine's CPUs makes it busy; findings that other programs can cause, too.
_BUSY, _BY_NOISE = 1.25, frozenset({"stalls", "drift", "change of pace"})

PHASES = ("data", "step", "other", "profiled")


@dataclass(frozen=True)
class RunFigures:
    """The facts of a run; views only format and draw them."""

    name: str
    steps: int  # all of them
    by_batch: bool  # whether each is a batch, because no optimizer's step shows where a step ends
    batches: int  # of a step, as far as that is known
    profiled: int  # those in profiled windows, left out of every figure but the phases
    warmup: int  # slow ones at the start, left out of the verdict
    stride: int  # how many steps a row stands for
    duration_ms: float  # from the first step's start to the last step's end
    median_ms: float | None
    ci_ms: tuple[float, float] | None
    device: str | None  # the device whose events timed the steps, if any
    phases: pd.DataFrame  # by phase: `ms`, `share`; they add up to the run
    wait: Centre  # share of the steps' time that is waiting for data
    slow: pd.DataFrame  # `step`, `start_s`, `wall_ms`, `data_ms`, `lost_ms`: slowest first, one of a row at most
    lost_ms: float  # by slow steps beyond waiting for data
    changes: Changes | None  # of the step time; places are steps
    resident: Slope | None  # growth per step
    allocated: Slope | None
    peaks: Mapping[str, int | None]  # bytes: `resident`, `allocated`
    windows: pd.DataFrame  # `step`, `steps`, `ms`, `ratio`, `typical`, `judged_by`
    findings: pd.DataFrame  # `bottleneck`, `evidence`, `bound_ms` (per step), `share`, `advice`, `confidence`
    verdict: str
    load: tuple[float, int] | None  # of the machine, and its CPUs, if there was work for more than these
    rank: int | None
    ranks: int | None


def steps_frame(rows: Rows, windows: Rows) -> pd.DataFrame:
    """The rows of steps and of profiled windows in order of time, in milliseconds."""
    own = pd.DataFrame(rows, columns=list(COLUMNS))
    profiled = pd.DataFrame(
        windows,
        columns=["step", "steps", "begin_ns", "sum_wall_ns", "sum_data_ns", "sum_other_ns", "timed", "timed_ns"],
    )
    frame = pd.concat([own, profiled], ignore_index=True)
    frame["profiled"] = np.arange(len(frame)) >= len(own)
    frame = frame.sort_values("begin_ns", kind="stable", ignore_index=True)
    made = frame[["step", "steps", "profiled"]].copy()
    made["start_s"] = frame["begin_ns"] / 1e9
    wall = frame["one_wall_ns"].where(~frame["profiled"], frame["timed_ns"])
    named = (
        *(("wall_ms", wall), ("data_ms", frame["one_data_ns"]), ("device_ms", frame["one_device_ns"])),
        *((f"sum_{name}", frame[f"sum_{name.removesuffix('_ms')}_ns"]) for name in ("wall_ms", "data_ms", "other_ms")),
        *(("slowest_ms", frame["slowest_ns"]), ("slowest_data_ms", frame["slowest_data_ns"])),
    )
    for name, ns in named:
        known = pd.to_numeric(ns, errors="coerce").astype("Float64")
        made[name] = (known / 1e6).mask(known < 0)
    made["slowest_step"] = frame["slowest_step"].astype("Int64")
    made["timed_steps"] = frame["timed"].astype("Int64")
    return made


def memory_frame(readings: Rows) -> pd.DataFrame:
    """Readings of memory: seconds since the start, the step that had just ended, bytes."""
    frame = pd.DataFrame(readings, columns=["at_ns", "step", "resident_bytes", "allocated_bytes"])
    made = pd.DataFrame({"t_s": frame["at_ns"] / 1e9, "step": frame["step"]})
    for name in ("resident_bytes", "allocated_bytes"):
        made[name] = frame[name].astype("Int64").mask(frame[name] < 0)
    return made


def run_figures(steps: pd.DataFrame, memory: pd.DataFrame, facts: Mapping[str, Any]) -> RunFigures:
    """What a run's steps and readings of memory say.

    Parameters
    ----------
    steps : DataFrame
        From `steps_frame`.
    memory : DataFrame
        From `memory_frame`.
    facts : mapping
        As `perfnb.loop.record.Recorded.facts`.
    """
    own = steps[~steps["profiled"]]
    warmup = _warmup(own["wall_ms"].to_numpy(float)) if int(facts["stride"]) == 1 else 0
    judged = own.iloc[warmup:]
    device = judged["device_ms"].notna().mean() > 0.9 if len(judged) else False
    times = _times(judged, bool(device))
    median = float(np.median(times)) if len(times) else None
    interval = interval_of_median(times)
    enough = int(judged["steps"].sum()) >= FEWEST_STEPS and len(judged) >= FEWEST_STEPS
    slow, lost_ms = _slow(judged)
    changes = _changes(judged, times) if enough else None
    slopes: dict[str, Any] = {
        kind: _growth(memory, f"{kind}_bytes", int(own["step"].iloc[warmup]) if warmup < len(own) else 0, steps)
        for kind in ("resident", "allocated")
    }
    parts: dict[str, Any] = {
        "phases": _phases(steps, facts),
        "wait": ratio_of_sums(judged["sum_data_ms"].to_numpy(float), judged["sum_wall_ms"].to_numpy(float)),
        "slow": slow,
        "lost_ms": lost_ms,
        "changes": changes,
        **slopes,
        "peaks": {kind: _known(facts[f"peak_{kind}_bytes"]) for kind in ("resident", "allocated")},
    }
    found = list(_findings(judged, memory, facts, parts)) if enough else []
    if busy := _busy(facts):
        found = [(*one[:-1], "low") if one[0] in _BY_NOISE else one for one in found]
        found.sort(key=lambda one: one[0] in _BY_NOISE)  # what other programs cannot cause comes first
    findings = pd.DataFrame(found, columns=["bottleneck", "evidence", "bound_ms", "share", "advice", "confidence"])
    findings = findings.astype(
        dict.fromkeys(("bottleneck", "evidence", "advice", "confidence"), TEXT)
        | dict.fromkeys(("bound_ms", "share"), "Float64")
    )
    return RunFigures(
        name=str(facts["name"]),
        steps=int(facts["steps"]),
        by_batch=bool(facts.get("by_batch", False)),
        batches=int(facts.get("batches", 1)),
        profiled=int(steps.loc[steps["profiled"], "steps"].sum()) + int(facts["dropped_windows"]["steps"]),
        warmup=warmup,
        stride=int(facts["stride"]),
        duration_ms=facts["duration_ns"] / 1e6,
        median_ms=median,
        ci_ms=None if interval is None else interval[:2],
        device=facts["device"] if device else None,
        windows=_windows(steps, own, times),
        findings=findings,
        verdict=_verdict(findings, enough),
        load=busy,
        rank=facts.get("rank"),
        ranks=facts.get("ranks"),
        **parts,
    )


def _busy(facts: Mapping[str, Any]) -> tuple[float, int] | None:
    """The machine's mean load and its CPUs, if there was work for more CPUs than it has."""
    load, cpus = facts.get("load"), facts.get("cpus")
    return (load, cpus) if load is not None and cpus and load > _BUSY * cpus else None


def strip(steps: pd.DataFrame, width: int, slow: pd.Series[Any] | None = None) -> pd.DataFrame:
    """All steps in at most `width` columns of consecutive ones, in order.

    `slow` has the numbers of slow steps.

    Returns
    -------
    DataFrame
        By column: `first`, `last` (steps), `wall_ms` and `data_ms` (medians over rows; missing where all steps were
        profiled), `slow` (whether one of its steps is), `profiled`.
    """
    last = steps["step"] + steps["steps"] - 1
    count = int(last.max()) + 1 if len(steps) else 0
    width = min(width, count)
    own, windows = steps[~steps["profiled"]], steps[steps["profiled"]]
    groups = own.groupby((own["step"] * width // max(1, count)).rename("column"))
    figures = groups.agg(wall_ms=("wall_ms", "median"), data_ms=("data_ms", "median"))
    made = figures.reindex(range(width)).reset_index(drop=True)
    edges = -(-np.arange(width + 1) * count // max(1, width))  # the first step of each column
    made.insert(0, "first", edges[:-1])
    made.insert(1, "last", edges[1:] - 1)
    made["slow"] = made.index.isin([] if slow is None else slow.to_numpy(np.int64) * width // max(1, count))
    made["profiled"] = False
    for first, steps_inside in zip(windows["step"], windows["steps"], strict=True):
        inside = slice(int(first * width // count), int((first + steps_inside - 1) * width // count))
        made.loc[inside, "profiled"] = True  # both ends included
    return made


def _known(count: int) -> int | None:
    return None if count < 0 else int(count)


def _times(rows: pd.DataFrame, device: bool) -> Floats:
    """The time of one step of each row: as the device saw it if it was watched, else as the host did."""
    wall = rows["wall_ms"]
    return (rows["device_ms"].fillna(wall) if device else wall).to_numpy(float)


def _warmup(times: Floats) -> int:
    """How many steps at the start are slow because they are the first."""
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
        ms["data"] = pd.NA  # part of the steps then
    return pd.DataFrame({"ms": ms, "share": ms / whole if whole > 0 else ms.mask(ms.notna())})


def _around(values: Floats) -> Floats:
    """For each value the median of its block: what was usual at that time of the run."""
    blocks = in_blocks(values, most=FINE_BLOCKS) or [(values,)]
    return np.concatenate([np.full(len(block), np.median(block)) for (block,) in blocks])


def _slow(rows: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """Slow steps, and the milliseconds that they lost beyond their waits for data."""
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
    """Changes of the step time; its places are steps."""
    changes = changes_in(times)
    if changes is None:
        return None
    places = tuple(int(rows["step"].iloc[min(place, len(rows) - 1)]) for place in changes.places)
    return Changes(changes.kind, places, changes.levels, changes.ratio)


def _growth(memory: pd.DataFrame, column: str, first: int, steps: pd.DataFrame) -> Slope | None:
    """Growth per step after the warm-up and the first tenth of the run, in which caches and pools fill.

    Profiled windows are cut out, with what memory changed over them: profiles take memory of their own.
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


def _windows(steps: pd.DataFrame, own: pd.DataFrame, times: Floats) -> pd.DataFrame:
    """Of each profiled window, how its timed steps (or, without any, its neighbours) compare with the run's."""
    columns = ["step", "steps", "ms", "ratio", "typical", "judged_by"]
    found = []
    enough = len(times) >= FEWEST_STEPS
    median = float(np.median(times)) if enough else np.nan
    walls, numbers = own["wall_ms"].to_numpy(float), own["step"].to_numpy(np.int64)
    for row in steps[steps["profiled"]].itertuples():
        first, after, by = int(row.step), int(row.step + row.steps), "timed steps"  # type: ignore[arg-type,operator]
        ms = fmt.known(row.wall_ms)
        if ms is None:
            before = int(np.searchsorted(numbers, first))
            beside = walls[max(0, before - _NEIGHBOURS) : int(np.searchsorted(numbers, after)) + _NEIGHBOURS]
            ms, by = (float(np.median(beside)), "neighbouring steps") if len(beside) else (np.nan, "")
        ratio = ms / median
        typical = pd.NA if np.isnan(ratio) else bool(TYPICAL[0] <= ratio <= TYPICAL[1])
        found.append((first, after - first, ms, ratio, typical, by))
    frame = pd.DataFrame(found, columns=columns)
    types = {"step": "int64", "steps": "int64", "ms": "Float64", "ratio": "Float64", "typical": "boolean"}
    return frame.astype({**types, "judged_by": TEXT})


_Found = tuple[str, str, float | None, float | None, str, str]


def _findings(
    rows: pd.DataFrame, memory: pd.DataFrame, facts: Mapping[str, Any], parts: Mapping[str, Any]
) -> Iterator[_Found]:
    """What held the run back, the most urgent first, then by what it costs."""
    wall, count = float(rows["sum_wall_ms"].sum()), int(rows["steps"].sum())
    found = [
        *_input(rows, facts, parts, wall / count),
        *_stalls(parts, rows, wall, count),
        *_between(rows, wall, count),
        *_slower(parts["changes"], rows, wall, count),
    ]
    yield from _memory(memory, facts, parts, urgent=True)
    yield from sorted(found, key=lambda one: -(one[2] or 0.0))
    yield from _memory(memory, facts, parts, urgent=False)


def _input(rows: pd.DataFrame, facts: Mapping[str, Any], parts: Mapping[str, Any], mean_ms: float) -> Iterator[_Found]:
    wait: Centre = parts["wait"]
    if wait.estimate < _WORTH or not wait.low > 0:
        return
    share, batches = _shares(wait), int(facts.get("batches", 1))
    whose = "their batch" if batches == 1 else f"their {batches:,} batches"
    bursts = int((parts["slow"]["data_ms"] > parts["slow"]["wall_ms"] / 2).sum())
    said = " The waits come in bursts: the slowest steps were mostly waits." if bursts > len(parts["slow"]) / 2 else ""
    caveat = " The GPU may have worked during the wait." if facts["device"] else ""
    yield (
        "input pipeline",
        f"Steps wait {fmt.duration(wait.estimate * mean_ms)} for {whose} on average, {share} of their time."
        f"{said}{caveat}",
        wait.estimate * mean_ms,
        wait.estimate,
        "Make batches in more worker processes while the step computes (num_workers of your DataLoader, "
        "dataloader_num_workers in the TrainingArguments of a Hugging Face Trainer), or make them cheaper: cache, "
        "vectorise. Then compare the runs: perfnb compare, or run.compare(other).",
        "medium" if facts["device"] else "high",
    )


def _shares(share: Centre) -> str:
    if not share.bounded:
        return fmt.share(share.estimate)
    value, low, high = (f"{100 * each:.1f}" for each in (share.estimate, share.low, min(1.0, share.high)))
    return f"{value} % [{low}, {high}]"


def _stalls(parts: Mapping[str, Any], rows: pd.DataFrame, wall: float, count: int) -> Iterator[_Found]:
    lost, slow = parts["lost_ms"], parts["slow"]
    if slow.empty or lost < _WORTH_STALLS * wall:
        return
    period = _period(slow["step"].to_numpy(np.int64))
    least = "at least " if count > len(rows) else ""
    often = f"every {period:,} steps" if period else f"{least}{len(slow):,} of {count:,} steps"
    worst = slow.iloc[0]
    yield (
        "stalls",
        f"Some steps are far slower than those around them ({often}; the slowest, step {int(worst['step']):,}, took "
        f"{fmt.duration(worst['wall_ms'])}). They lost {fmt.duration(lost)} in all, {fmt.share(lost / wall)} of the "
        "steps' time, waits for data not counted.",
        lost / count,
        lost / wall,
        "Look for what happens only in these steps: checkpoints, logging, evaluation, batches of another size."
        if period
        else "Look for work that is done only now and then, and for other programs on the machine; "
        "perfnb.watch() shows what the machine does meanwhile.",
        "medium" if period or len(slow) >= 3 else "low",
    )


def _period(steps: np.ndarray[Any, Any]) -> int | None:
    """The distance between slow steps, if it is always the same."""
    apart = np.diff(np.sort(steps))
    return int(apart[0]) if len(steps) >= 3 and apart.min() == apart.max() >= 2 else None


def _between(rows: pd.DataFrame, wall: float, count: int) -> Iterator[_Found]:
    other = float(rows["sum_other_ms"].sum())
    share = other / (wall + other)
    if share < _WORTH:
        return
    yield (
        "between steps",
        f"{fmt.duration(other)} passed between steps, {fmt.share(share)} of the time: validation, logging, "
        "checkpoints, and whatever else is done outside the steps.",
        other / count,
        share,
        "Do it less often, or beside the steps (asynchronous checkpoints, logging without .item()).",
        "high",
    )


def _slower(changes: Changes | None, rows: pd.DataFrame, wall: float, count: int) -> Iterator[_Found]:
    """Step times that grew: by jumps, or little by little."""
    if changes is None or changes.kind == "steady":
        return
    first, last, mean = changes.levels[0], changes.levels[-1], wall / count
    if changes.kind == "drift":
        if changes.ratio.low <= 1 or changes.ratio.estimate < 1 + _WORTH or mean <= first:
            return
        bound = min((last - first) / 2, mean - first)
        rise = fmt.change(changes.ratio.estimate, _ends(changes))
        evidence = f"Step time rose over the run from {fmt.duration(first)} to {fmt.duration(last)}, {rise}."
    else:
        steps = rows["step"].to_numpy(np.int64)
        weights = np.diff(np.searchsorted(steps, [steps[0], *changes.places, steps[-1] + 1]))
        level = np.asarray(changes.levels)
        bound = min(float(((level - level.min()) * weights).sum() / weights.sum()), mean - float(level.min()))
        if max(level) / min(level) < 1 + _WORTH or bound < _WORTH * mean / 2:
            return
        told = [
            f"from {fmt.duration(before)} to {fmt.duration(after)} at step {place:,}"
            for before, after, place in zip(changes.levels, changes.levels[1:], changes.places, strict=False)
        ]
        between = fmt.change(changes.ratio.estimate, _ends(changes))
        end = f" From first to last level: {between}." if len(told) == 1 else ""
        evidence = f"Step time changed {', then '.join(told)}.{end}"
    yield (
        "drift" if changes.kind == "drift" else "change of pace",
        evidence,
        bound,
        bound / mean,
        "Profile a fast and a slow part of the run (at=[early, late]; --at EARLY,LATE of perfnb run) and compare them "
        "with Profile.compare. If their work is the same, the machine changed: perfnb.watch() records clocks, "
        "throttling and load.",
        "medium",
    )


def _ends(changes: Changes) -> tuple[float, float] | None:
    return (changes.ratio.low, changes.ratio.high) if changes.ratio.bounded else None


def _memory(
    memory: pd.DataFrame, facts: Mapping[str, Any], parts: Mapping[str, Any], *, urgent: bool
) -> Iterator[_Found]:
    """Memory that grows, resident or allocated, whichever is told first; whether it soon fills the machine."""
    for kind, words in (("allocated", "Memory allocated on the device"), ("resident", "The process's memory")):
        slope: Slope | None = parts[kind]
        levels = memory[f"{kind}_bytes"].dropna()
        if slope is None or not slope.grows or levels.empty:
            continue
        steps, level = int(facts["steps"]), int(levels.iloc[-1])
        grown = slope.bytes_per_step * steps
        if grown < max(_LEAST_GROWTH, _GROWTH * level):
            continue
        room = facts.get("memory_bytes") if kind == "resident" else None
        left = (room - level) / slope.bytes_per_step if room else None
        if urgent != (left is not None and left < _URGENT * steps):
            continue
        ends = fmt.growth(slope.bytes_per_step, (slope.ci_low, slope.ci_high))
        full = f" At this rate {fmt.size(room)} are full after about {round(left, -2):,.0f} more steps." if left else ""
        yield (
            "memory growth",
            f"{words} grows by {ends}, by {fmt.size(grown)} over the run.{full}",
            None,
            None,
            "Look for what each step leaves behind: often it is a loss that is kept with its graph (keep "
            "loss.item()), or a list that is appended to. Where a step is a function of your own, "
            "perfnb.find_leaks(step, loader) names it.",
            "medium",
        )
        return


_HEADLINES = {
    "input pipeline": "Input-bound: the run waits for its data",
    "stalls": "Held up by stalls",
    "between steps": "Much time passes between steps",
    "drift": "Slower and slower",
    "change of pace": "Its pace changed",
    "memory growth": "Memory grows",
}
STEADY, TOO_FEW = "Steady", "Too few steps for a verdict"


def _verdict(findings: pd.DataFrame, enough: bool) -> str:
    """The headline."""
    if not enough:
        return TOO_FEW
    if findings.empty:
        return STEADY
    first = findings.iloc[0]
    if first["bottleneck"] == "input pipeline" and first["share"] < _BOUND:
        return "Slowed by waits for data"
    return _HEADLINES[str(first["bottleneck"])]
