"""Judge whether memory grows from step to step, and determine what each step leaves behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from perfnb.recording.nesting import NONE, Ints
from perfnb.stats.slope import Slope, memory_slope

#: Process growth per step that is not a leak: the interpreter's own bookkeeping, in pages.
PROCESS_FLOOR_BYTES = 16 * 1024

#: The possible values of `LeakFigures.verdict`.
LEAK, NO_LEAK, INCONCLUSIVE = "leak", "no leak seen", "inconclusive"

_OWNER = ["device", "layer", "phase", "op"]
#: Survivors explain the growth if they account for at least this share of it.
_EXPLAINED = 0.5
#: Owners that grow less than this from first to last watched step are not examined.
_WORTH_A_LOOK = 1024


@dataclass(frozen=True, repr=False, eq=False)
class LeakFigures:
    """How much memory many steps leave behind.

    Attributes
    ----------
    verdict : str
        ``leak``, ``no leak seen`` or ``inconclusive``.
    reason : str
        The basis of the verdict: ``kept`` (allocations survive), ``growing`` (replaced by larger ones), ``outside``
        (the process grows, torch's allocator does not), ``shapes`` (the same, while new shapes kept arriving),
        ``settled`` (the process grew at first and no longer does, as when a cache fills),
        ``garbage`` (the rest is reference cycles awaiting collection), ``unseen`` (the process does not grow with the
        allocator: frees of older allocations are not seen), ``unexplained`` (the allocator grows, but nothing watched
        survives), ``hidden`` (allocations survive, but memory varies too much to tell whether they add up), ``few``
        (too few steps) or ``steady``.
    allocator : Slope or None
        How much the memory handed out by torch's allocators grows per step, or ``None`` if there are fewer than two
        steps.
    process : Slope or None
        How much the process's resident memory grows per step in the last round that read it, or ``None`` if this is
        unknown.
    survivors : DataFrame
        The owners of allocations that outlive their step, in descending order of bytes: device, layer, phase, op,
        `bytes_per_step`, `count_per_step`, `steps` (how many steps made them), and `kind`: ``kept`` or ``growing``.
    steps : DataFrame
        The memory after each watched step: `step`, `allocated_bytes` (relative to the start of the first step, so
        possibly negative) and `process_bytes`.
    beyond_bytes : float or None
        How much the process grows per step in addition to torch's CPU allocator, or ``None`` if this is uncertain.
    garbage_bytes : float
        How many bytes per watched step were freed by a garbage collection after the last step.
    early : Slope or None
        How much the process grew before allocations were recorded, if `process` is its growth after that.
    after : int
        How many steps had run in total, including warm-up, or 0 if this is unknown.
    name : str
        The title.
    """

    verdict: str
    reason: str
    allocator: Slope | None
    process: Slope | None
    survivors: pd.DataFrame
    steps: pd.DataFrame
    beyond_bytes: float | None = None
    garbage_bytes: float = 0.0
    early: Slope | None = None
    after: int = 0
    name: str = "step"


def process_grows(process_bytes: Sequence[Any]) -> bool:
    """Return whether resident memory after each step certainly grows by more than bookkeeping explains."""
    slope = memory_slope(process_bytes)
    return slope is not None and slope.ci_low is not None and slope.ci_low > PROCESS_FLOOR_BYTES


def leak_figures(
    allocations: pd.DataFrame, process_bytes: Sequence[Any], *, steps: int, later_bytes: Sequence[Any] = ()
) -> LeakFigures:
    """Judge the steps that were watched after the warm-up.

    Parameters
    ----------
    allocations : DataFrame
        One row per allocation: `bytes`, `device`, `layer`, `phase`, `op`, `made_in_step` (``NA``: before the first),
        `freed_in_step` (``NA``: still alive; `steps` or above: by a garbage collection after the last step).
    process_bytes : sequence of number
        Resident memory after each step. These are not necessarily the same steps, because a profiler's own memory grows
        while it records.
    steps : int
        The number of steps whose allocations were watched.
    later_bytes : sequence of number
        Resident memory after each step of a later round. Growth only counts as a leak if it continued in this round.
        The first two rounds are not sufficient: when a cache of tensors fills in the first round, the process grows but
        torch's allocator does not.
    """
    process, early = memory_slope(process_bytes), None
    if len(later_bytes):
        early, process, process_bytes = process, memory_slope(later_bytes), later_bytes
    levels = levels_by_step(allocations, steps)
    allocator = memory_slope(levels)
    cpu = memory_slope(levels_by_step(allocations[allocations["device"] == "cpu"], steps))
    survivors = surviving(allocations, steps)
    if allocator is not None and allocator.grows and not _explained(survivors, allocator):
        every = surviving(allocations, steps, recurring=False)
        survivors = every if _explained(every, allocator) else survivors
    garbage = _garbage_bytes(allocations, steps)
    shapes = _new_shapes_keep_coming(allocations, steps)
    verdict, reason = _judged(allocator, cpu, process, survivors, garbage, shapes, early)
    return LeakFigures(
        verdict=verdict,
        reason=reason,
        allocator=allocator,
        process=process,
        survivors=survivors,
        beyond_bytes=_beyond(process, cpu),
        garbage_bytes=garbage,
        steps=_per_step(levels, process_bytes),
        early=early,
    )


def levels_by_step(allocations: pd.DataFrame, steps: int) -> Ints:
    """Return how many bytes are alive at the end of each step, relative to the start of the first."""
    return _levels(allocations, np.zeros(len(allocations), dtype=np.int64), 1, steps).ravel()


def surviving(allocations: pd.DataFrame, steps: int, *, recurring: bool = True) -> pd.DataFrame:
    """Return the owners whose allocations survive, step after step.

    Allocations are left out if each step replaces them (such as the last gradients, or a loss stored in a variable), if
    a step made them only once (such as a cache or an optimizer's state), or if they come from the last fifth of the
    steps, because they may still be freed. An owner whose allocations are all replaced, each time by larger ones, is
    ``growing``. Without `recurring`, owners that made survivors in a single step are listed too, for steps that each
    have their own layer.
    """
    owners, keys = _owners(allocations)
    kept = _kept(allocations, owners, steps, recurring)
    growing = _growing(allocations, owners, len(keys), steps, but=kept["owner"].to_numpy())
    rows = pd.concat([kept, growing], ignore_index=True) if len(growing) else kept
    found = keys.iloc[rows.pop("owner").to_numpy(dtype=np.int64)].reset_index(drop=True)
    return _most_first(pd.concat([found, rows], axis=1))


def left_by_every_step(allocations: pd.DataFrame, steps: int) -> pd.DataFrame:
    """Return the owners that left memory behind in each of a few steps, in descending order of bytes.

    Memory is left out if a step makes it once (an optimizer's state, a cache), if the next step replaces it (an output
    held in a variable, whatever its size), or if it waits for the garbage collector.

    Returns
    -------
    DataFrame
        Device, layer, phase, op, and `bytes_per_step`, which is the smallest amount that any step left behind.
    """
    owners, keys = _owners(allocations)
    made = _steps_of(allocations["made_in_step"])
    stays = (made >= 0) & (made < steps) & allocations["freed_in_step"].isna().to_numpy()
    left = np.zeros((len(keys), max(steps, 1)), dtype=np.int64)
    np.add.at(left, (owners[stays], made[stays]), allocations["bytes"].to_numpy(dtype=np.int64)[stays])
    found = keys.assign(bytes_per_step=left.min(axis=1))
    return _most_first(found[found["bytes_per_step"] > 0])


def _most_first(owners: pd.DataFrame) -> pd.DataFrame:
    return owners.sort_values("bytes_per_step", ascending=False, kind="stable", ignore_index=True)


def _owners(allocations: pd.DataFrame) -> tuple[Ints, pd.DataFrame]:
    """Return the owners, and the number of each allocation's owner."""
    names = allocations[_OWNER].astype(object).where(allocations[_OWNER].notna(), np.nan)  # one kind of missing
    numbers = names.groupby(_OWNER, dropna=False, sort=False, observed=True).ngroup()
    first = ~numbers.duplicated()
    keys = names[first].set_index(numbers[first]).sort_index()
    return numbers.to_numpy(dtype=np.int64).astype(np.int64), keys.reset_index(drop=True).convert_dtypes()


def _kept(allocations: pd.DataFrame, owners: Ints, steps: int, recurring: bool) -> pd.DataFrame:
    judged = steps - max(1, steps // 5)
    made = _steps_of(allocations["made_in_step"])
    stays = (made >= 0) & (made < judged) & allocations["freed_in_step"].isna().to_numpy()
    frame = pd.DataFrame({"owner": owners[stays], "bytes": allocations["bytes"].to_numpy()[stays], "made": made[stays]})
    frame["early"] = frame["made"] < judged / 2
    groups = frame.groupby("owner")
    rows = pd.DataFrame(
        {
            "bytes_per_step": groups["bytes"].sum() / max(1, judged),
            "count_per_step": groups["bytes"].count() / max(1, judged),
            "steps": groups["made"].nunique(),
            "kind": "kept",
        }
    )
    if recurring:  # in both halves
        rows = rows[groups["early"].any() & ~groups["early"].all() & (rows["steps"] > 2)]
    return rows.reset_index()


def _growing(allocations: pd.DataFrame, owners: Ints, count: int, steps: int, but: Ints) -> pd.DataFrame:
    rows = []
    stays = _steps_of(allocations["freed_in_step"]) < steps  # or was freed in time
    allocations, owners = allocations[stays], owners[stays]
    levels = _levels(allocations, owners, count, steps)
    grown = levels[:, -1] - levels[:, 0] if steps else np.zeros(count)
    for owner in np.setdiff1d(np.flatnonzero(grown > _WORTH_A_LOOK), but):
        slope = memory_slope(levels[owner])
        if slope is not None and slope.grows:
            made = _steps_of(allocations["made_in_step"])[owners == owner]
            inside = made[(made >= 0) & (made < steps)]
            rows.append((owner, slope.bytes_per_step, len(inside) / steps, len(np.unique(inside)), "growing"))
    return pd.DataFrame(rows, columns=["owner", "bytes_per_step", "count_per_step", "steps", "kind"])


def _levels(allocations: pd.DataFrame, owners: Ints, count: int, steps: int) -> Ints:
    """Return one row per owner and one column per step, with the bytes alive at its end relative to the start."""
    size = allocations["bytes"].to_numpy(dtype=np.int64)
    change = np.zeros((count, steps), dtype=np.int64)
    for column, sign in (("made_in_step", 1), ("freed_in_step", -1)):
        step = _steps_of(allocations[column])
        inside = (step >= 0) & (step < steps)
        np.add.at(change, (owners[inside], step[inside]), sign * size[inside])
    return change.cumsum(axis=1)


def _steps_of(column: pd.Series) -> Ints:
    """Return step numbers, or `NONE` where they are unknown."""
    return np.asarray(column.astype("Int64").to_numpy(na_value=NONE), dtype=np.int64)


def _garbage_bytes(allocations: pd.DataFrame, steps: int) -> float:
    made = _steps_of(allocations["made_in_step"])
    waited = (made >= 0) & (_steps_of(allocations["freed_in_step"]) >= steps)
    return float(allocations["bytes"].to_numpy()[waited].sum() / max(1, steps))


def _new_shapes_keep_coming(allocations: pd.DataFrame, steps: int) -> bool:
    """Return whether later steps allocated amounts not seen before. Only allocations that they freed count."""
    passing = allocations[allocations["freed_in_step"].notna() & allocations["made_in_step"].notna()]
    totals = passing.groupby(passing["made_in_step"].astype("int64"))["bytes"].sum()
    totals = totals[(totals.index >= 0) & (totals.index < steps - 1)]
    new = ~totals.duplicated().to_numpy()
    return bool(new[len(new) // 2 :].sum() > 0.1 * len(new) / 2)


def _judged(
    allocator: Slope | None,
    cpu: Slope | None,
    process: Slope | None,
    survivors: pd.DataFrame,
    garbage: float,
    shapes: bool,
    early: Slope | None,
) -> tuple[str, str]:
    if allocator is None:
        return INCONCLUSIVE, "few"
    if allocator.grows:
        if not _explained(survivors, allocator):
            collected = garbage >= _EXPLAINED * allocator.bytes_per_step
            return (NO_LEAK, "garbage") if collected else (INCONCLUSIVE, "unexplained")
        if _contradicted(cpu, process, settled=early is not None and process is not None and not process.grows):
            return INCONCLUSIVE, "unseen"
        return LEAK, str(survivors["kind"].iloc[0])
    if process is not None and process.ci_low is not None and process.ci_low > PROCESS_FLOOR_BYTES:
        return (INCONCLUSIVE, "shapes") if shapes else (LEAK, "outside")
    if any(slope is not None and slope.ci_low is None for slope in (allocator, process)):
        return INCONCLUSIVE, "few"
    if early is not None and not (process is not None and process.grows):
        return NO_LEAK, "settled"
    if survivors["bytes_per_step"].sum() > PROCESS_FLOOR_BYTES:
        return INCONCLUSIVE, "hidden"
    return NO_LEAK, "garbage" if garbage > PROCESS_FLOOR_BYTES else "steady"


def _explained(survivors: pd.DataFrame, allocator: Slope) -> bool:
    return bool(survivors["bytes_per_step"].sum() >= _EXPLAINED * allocator.bytes_per_step)


def _contradicted(cpu: Slope | None, process: Slope | None, settled: bool) -> bool:
    """Return whether the process contradicts the growth that torch's CPU allocator shows.

    This is the case if the process certainly grows by less than half of that amount, or if it grew but certainly no
    longer does.
    """
    if cpu is None or process is None or process.ci_high is None or cpu.bytes_per_step < 2 * PROCESS_FLOOR_BYTES:
        return False
    return settled or process.ci_high < _EXPLAINED * cpu.bytes_per_step


def _beyond(process: Slope | None, cpu: Slope | None) -> float | None:
    """Return the process growth that torch's CPU allocator does not explain, if the intervals do not overlap."""
    if process is None or process.ci_low is None or cpu is None or cpu.ci_high is None:
        return None
    apart = process.ci_low > cpu.ci_high + PROCESS_FLOOR_BYTES
    return process.bytes_per_step - cpu.bytes_per_step if apart else None


def _per_step(levels: Ints, process_bytes: Sequence[Any]) -> pd.DataFrame:
    allocated = pd.Series(levels, dtype="Int64")
    process = pd.Series(list(process_bytes), dtype="Float64").round().astype("Int64")
    frame = pd.DataFrame({"allocated_bytes": allocated, "process_bytes": process})  # the shorter one ends in NA
    frame.insert(0, "step", np.arange(len(frame)))
    return frame
