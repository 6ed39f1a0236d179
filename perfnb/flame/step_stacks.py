"""Compute the call tree of a step's Python code, and the time per line of user code, from sampled stacks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.recording.nesting import NONE
from perfnb.recording.recording import Recording
from perfnb.recording.schema import PHASES, conform
from perfnb.stacks.formats import HostRecord
from perfnb.stacks.tree import CallTree, Function, numbers_of, sums_by

_DELAYS = (
    "Samples are taken when the interpreter is free. Code that blocks it delays a sample, which then counts "
    "for the whole delay."
)
_ONE_THREAD = "Only the thread that runs the step is sampled."
_WORKERS = (
    "Loader workers run alongside the step, so their times are not part of it. In each worker, only the main thread "
    "is sampled, and in the step only the thread that runs it."
)
_OPS = "The time of an op counts for the line that calls it."

#: The processes where a line can run.
STEP, WORKERS = "step", "loader workers"


@dataclass(frozen=True)
class StepStacks:
    """The data that a report contains about a step's Python code.

    Attributes
    ----------
    record : HostRecord
        The calls, grouped by phase and layer, in milliseconds per step.
    lines : DataFrame
        A table as described in `perfnb.recording.schema`.
    steps, workers : int
        The number of sampled steps, and the number of sampled loader workers.
    """

    record: HostRecord
    lines: pd.DataFrame
    steps: int
    workers: int


def step_stacks(recording: Recording) -> StepStacks | None:
    """Return the stacks of a recording's step, or ``None`` if the step was not sampled."""
    if recording.python is None or recording.python.tree.empty:
        return None
    frame, facts = recording.python.tree, recording.meta["python"]
    kinds = list(map(str, frame["kind"].tolist()))
    columns = zip(frame["name"].tolist(), frame["file"].tolist(), frame["line"].tolist(), kinds, strict=True)
    functions = [Function(str(n), str(f), int(line), "" if kind == "other" else kind) for n, f, line, kind in columns]
    numbers = numbers_of(functions)
    _, first = np.unique(numbers, return_index=True)
    tree = CallTree(
        tuple(functions[place] for place in first.tolist()),
        frame["parent"].to_numpy(),
        numbers,
        frame["self_ns"].to_numpy() / 1e6 / facts["steps"],
        frame["samples"].to_numpy(),
    )
    record = HostRecord(
        str(recording.meta["name"]),
        "sampled stacks",
        "ms",
        tree,
        samples=int(tree.samples.sum()),
        notes=_notes(recording),
    )
    return StepStacks(record, _lines(tree, frame), int(facts["steps"]), int(facts.get("workers", 0)))


def _notes(recording: Recording) -> tuple[str, ...]:
    """Return caveats about the samples."""
    facts = recording.meta["python"]
    workers, unreached = int(facts.get("workers", 0)), int(facts.get("unreached_workers", 0))
    notes = [_DELAYS, f"{_WORKERS if workers else _ONE_THREAD} {_OPS}"]
    loader = (recording.meta.get("parts") or {}).get("loader") or {}
    ahead = (loader.get("num_workers") or 0) * (loader.get("prefetch_factor") or 0)
    if workers and facts["steps"] <= ahead:
        notes.append(
            f"The loader keeps up to {fmt.counted(ahead, 'batch')} ready. The {fmt.counted(facts['steps'], 'step')} "
            "sampled may have used batches made earlier, so workers may have waited more than usual. A larger "
            "budget samples more steps."
        )
    if unreached:
        notes.append(
            f"n/a: the Python code of {fmt.counted(unreached, 'loader worker')} that started before the profile "
            "(persistent_workers=True). To sample it, create a new DataLoader."
        )
    elif not workers and loader.get("num_workers"):
        notes.append("n/a: the Python code of the loader's workers, because none of them could be sampled.")
    return tuple(notes)


def _lines(tree: CallTree, frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per phase, process and line of user code."""
    own = (frame["kind"] == "own").to_numpy()
    phase, nearest = np.arange(len(tree)), np.where(own, np.arange(len(tree)), NONE)
    for level in tree.levels[1:]:  # from the outermost calls inwards
        phase[level] = phase[tree.parent[level]]
        nearest[level] = np.where(own[level], level, nearest[tree.parent[level]])
    # Workers prepare batches, so their work belongs to the phase "data".
    in_worker = (frame["kind"] == "worker").to_numpy()[phase]
    names = [
        "data" if there else tree.functions[place].name
        for place, there in zip(tree.function.tolist(), (frame["kind"] == "worker").tolist(), strict=True)
    ]
    keys = [
        (names[outer], bool(in_worker[outer]), tree.functions[function].file, tree.functions[function].line)
        if mine
        else None
        for outer, function, mine in zip(phase.tolist(), tree.function.tolist(), own.tolist(), strict=True)
    ]
    known = list(dict.fromkeys(key for key in keys if key is not None))
    place = {key: number for number, key in enumerate(known)}
    group = np.array([NONE if key is None else place[key] for key in keys], dtype=np.int64)
    if not known:
        return conform(pd.DataFrame(), "lines")
    # Calls below a line count for that line unless there is another line of user code in between.
    owned = nearest != NONE
    mine = np.bincount(nearest[owned], weights=tree.self[owned], minlength=len(tree))
    sums = sums_by(tree, group, len(known), {"ms": tree.self, "samples": tree.samples})
    first = np.unique(group[own], return_index=True)[1]
    rows = frame[own].iloc[first]
    there = np.array([key[1] for key in known], dtype=bool)
    whole = np.where(there, tree.self[in_worker].sum(), tree.self[~in_worker].sum())
    table = pd.DataFrame(
        {
            "phase": pd.Categorical([key[0] for key in known], categories=list(PHASES)),
            "process": pd.Categorical(np.where(there, WORKERS, STEP), categories=[STEP, WORKERS]),
            "file": rows["file"].array,
            "function": rows["name"].array,
            "line": rows["line"].array,
            "code": rows["code"].where(rows["code"] != "", None).array,
            "self_ms": np.bincount(group[own], weights=mine[own], minlength=len(known)),
            "total_ms": sums["total_ms"],
            "share": (sums["total_ms"] / whole).where(whole > 0),
            "samples": sums["total_samples"].astype(np.int64),
        }
    )
    return conform(table.sort_values("self_ms", ascending=False, kind="stable", ignore_index=True), "lines")
