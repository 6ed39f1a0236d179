"""Determine whether memory grows from step to step, and what each step leaves behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from perfnb.recording.nesting import NONE, Ints
from perfnb.stats.slope import Slope, memory_slope

#: Process growth per step that is not considered a leak, because it may be due to the interpreter's own bookkeeping.
PROCESS_FLOOR_BYTES = 16 * 1024

#: The possible values of `LeakFigures.verdict`.
LEAK, NO_LEAK, INCONCLUSIVE = "leak", "no leak seen", "inconclusive"

_OWNER = ["device", "layer", "phase", "op"]
#: The surviving allocations explain the growth if they account for at least this share of it.
_EXPLAINED = 0.5
#: Owners that grow by less than this from the first to the last step are not examined.
_WORTH_A_LOOK = 1024


@dataclass(frozen=True, repr=False, eq=False)
class LeakFigures:
    """The memory that is left behind by many steps.

    Attributes
    ----------
    verdict : str
        ``leak``, ``no leak seen`` or ``inconclusive``.
    reason : str
        The reason for the verdict, which is one of the following:

        - ``kept``: allocations survive their step.
        - ``growing``: allocations are replaced with larger ones.
        - ``outside``: the process grows, but torch's allocator does not.
        - ``shapes``: the same as ``outside``, but new shapes kept arriving.
        - ``settled``: the process grew at first but no longer does, for example because a cache was being filled.
        - ``garbage``: all remaining memory belongs to reference cycles that have not been collected yet.
        - ``unseen``: torch's allocator grows but the process does not, because frees of older allocations are not seen.
        - ``unexplained``: torch's allocator grows, but none of the recorded allocations survive.
        - ``hidden``: allocations survive, but memory varies too much to determine whether they add up.
        - ``few``: there are too few steps.
        - ``steady``: memory does not grow.
    allocator : Slope or None
        The growth per step of the memory allocated by torch, or ``None`` if there are fewer than two steps.
    process : Slope or None
        The growth per step of the process's resident memory in the last round that read it, or ``None`` if it is
        unknown.
    survivors : DataFrame
        The owners of allocations that outlive their step, sorted by bytes. The columns are the device, layer, phase and
        op, `bytes_per_step`, `count_per_step`, `steps` (the number of steps that made such allocations), and `kind`
        (``kept`` or ``growing``).
    steps : DataFrame
        The memory after each watched step, with the columns `step`, `allocated_bytes` (relative to the start of the
        first step, so it can be negative) and `process_bytes`.
    beyond_bytes : float or None
        The growth of the process per step in excess of torch's CPU allocator, or ``None`` if this is uncertain.
    garbage_bytes : float
        The number of bytes per watched step that were freed by a garbage collection after the last step.
    early : Slope or None
        The growth of the process before allocations were recorded, if `process` is its growth afterwards.
    after : int
        The total number of steps that were run, including warm-up, or 0 if this is unknown.
    name : str
        The title of the result.
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
    """Check whether resident memory certainly grows by more than can be explained by bookkeeping."""
    slope = memory_slope(process_bytes)
    return slope is not None and slope.ci_low is not None and slope.ci_low > PROCESS_FLOOR_BYTES


def leak_figures(
    allocations: pd.DataFrame, process_bytes: Sequence[Any], *, steps: int, later_bytes: Sequence[Any] = ()
) -> LeakFigures:
    """Determine the leaks in the steps that were watched after the warm-up.

    Parameters
    ----------
    allocations : DataFrame
        One row per allocation, with the columns `bytes`, `device`, `layer`, `phase`, `op`, `made_in_step` and
        `freed_in_step`. `made_in_step` is ``NA`` for allocations made before the first step. `freed_in_step` is ``NA``
        if the allocation is still alive, and at least `steps` if it was freed by a garbage collection after the last
        step.
    process_bytes : sequence of number
        Resident memory after each step. These may be different steps, because a profiler's own memory grows during the
        recording.
    steps : int
        The number of steps whose allocations were watched.
    later_bytes : sequence of number
        Resident memory after each step in a later round. Growth is only considered a leak if it continued in this
        round. The first two rounds are not sufficient to determine this: if a cache of tensors is filled in the first
        round, the process grows but torch's allocator does not.
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
    """Return the number of bytes that are alive at the end of each step, relative to the start of the first step."""
    return _levels(allocations, np.zeros(len(allocations), dtype=np.int64), 1, steps).ravel()


def surviving(allocations: pd.DataFrame, steps: int, *, recurring: bool = True) -> pd.DataFrame:
    """Return the owners whose allocations survive step after step.

    Allocations are ignored if each step replaces them (such as the last gradients or a loss stored in a variable) or if
    they are made only once (such as a cache or an optimizer's state). Allocations made in the last fifth of the steps
    are also ignored, because they may still be freed. The kind of an owner is ``growing`` if its allocations are always
    replaced with larger ones. If `recurring` is false, the result also includes owners whose surviving allocations were
    made in a single step. This is needed if each step has its own layer.
    """
    owners, keys = _owners(allocations)
    kept = _kept(allocations, owners, steps, recurring)
    growing = _growing(allocations, owners, len(keys), steps, but=kept["owner"].to_numpy())
    rows = pd.concat([kept, growing], ignore_index=True) if len(growing) else kept
    found = keys.iloc[rows.pop("owner").to_numpy(dtype=np.int64)].reset_index(drop=True)
    return _most_first(pd.concat([found, rows], axis=1))


def left_by_every_step(allocations: pd.DataFrame, steps: int) -> pd.DataFrame:
    """Return the owners that left memory behind in each of a few steps, in descending order of bytes.

    Memory is ignored if it is allocated only once (such as an optimizer's state or a cache), if the next step replaces
    it (such as an output stored in a variable, regardless of its size), or if it is waiting to be collected as garbage.

    Returns
    -------
    DataFrame
        A table with the device, layer, phase and op, and `bytes_per_step`, which is the smallest amount that any step
        left behind.
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
    """Return the index of each allocation's owner, and the owners."""
    names = allocations[_OWNER].astype(object).where(allocations[_OWNER].notna(), np.nan)  # use a single missing value
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
    if recurring:  # there must be survivors from both halves
        rows = rows[groups["early"].any() & ~groups["early"].all() & (rows["steps"] > 2)]
    return rows.reset_index()


def _growing(allocations: pd.DataFrame, owners: Ints, count: int, steps: int, but: Ints) -> pd.DataFrame:
    rows = []
    stays = _steps_of(allocations["freed_in_step"]) < steps  # the others were freed in time
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
    """Return the bytes of each owner (rows) that are alive at the end of each step (columns), relative to the start."""
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
    """Check whether later steps allocated amounts that had not been seen before.

    Only allocations that were freed again are considered.
    """
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
    """Check whether the process's memory contradicts the growth of torch's CPU allocator.

    This is the case if the process certainly grows by less than half of that amount, or if it has certainly stopped
    growing.
    """
    if cpu is None or process is None or process.ci_high is None or cpu.bytes_per_step < 2 * PROCESS_FLOOR_BYTES:
        return False
    return settled or process.ci_high < _EXPLAINED * cpu.bytes_per_step


def _beyond(process: Slope | None, cpu: Slope | None) -> float | None:
    """Return the growth of the process that torch's CPU allocator does not explain, if the intervals do not overlap."""
    if process is None or process.ci_low is None or cpu is None or cpu.ci_high is None:
        return None
    apart = process.ci_low > cpu.ci_high + PROCESS_FLOOR_BYTES
    return process.bytes_per_step - cpu.bytes_per_step if apart else None


def _per_step(levels: Ints, process_bytes: Sequence[Any]) -> pd.DataFrame:
    allocated = pd.Series(levels, dtype="Int64")
    process = pd.Series(list(process_bytes), dtype="Float64").round().astype("Int64")
    frame = pd.DataFrame({"allocated_bytes": allocated, "process_bytes": process})  # padded with NA
    frame.insert(0, "step", np.arange(len(frame)))
    return frame
