"""Create a document about the memory that many steps leave behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import palette
from perfnb.draw.document import Axis, Budget, Column, Document, Figure, Line, Section, Series, State, Table, Verdict
from perfnb.memory.leaks.judge import LEAK, NO_LEAK, PROCESS_FLOOR_BYTES, LeakFigures
from perfnb.stats.slope import FEWEST_STEPS, Slope

_STATES: dict[str, State] = {LEAK: "bad", NO_LEAK: "good"}
#: The kinds of memory measured after each step, with their columns in `steps` and the phases whose colours they use.
_MEASURED = {"torch's allocator": ("allocated_bytes", "forward"), "process": ("process_bytes", "other")}
_TRACE = """import tracemalloc

tracemalloc.start()
...  # run some steps
before = tracemalloc.take_snapshot()
...  # run the same number of steps
for line in tracemalloc.take_snapshot().compare_to(before, "lineno")[:5]:
    print(line)"""
_AGAIN = "perfnb.find_leaks({name}, steps={more})"
#: For each reason, the verdict, an explanation, a recommendation, and the corresponding lines of code.
_WORDS: dict[str, tuple[str, ...]] = {
    "kept": (
        "Memory grows by {torch}{ran}: a leak.",
        "Each step leaves memory behind, most of it {owner}.{beyond}",
        "Look for a list, dict or attribute that keeps tensors.",
        "history.append(loss.item())  # a number, instead of a tensor that keeps its graph",
    ),
    "growing": (
        "Memory grows by {torch}{ran}: a leak.",
        "Each step replaces an allocation with a larger one, {owner}.{beyond}",
        "Look for a tensor that is appended or concatenated to.",
    ),
    "outside": (
        "The process grows by {process}, but torch's allocator does not: a leak outside torch's tensors.",
        "NumPy arrays, Python objects and library caches grow like this.",
        "Use tracemalloc to find the lines that allocate this memory.",
        _TRACE,
    ),
    "settled": (
        "No leak seen. The process grew by {early} in the first {steps} steps that were watched and no longer does: "
        "{process}.",
        "This is typical of a cache that is being filled.",
    ),
    "shapes": (
        "The process grows by {process} but torch's allocator does not, and new shapes kept arriving.",
        "Libraries such as oneDNN cache the data that they prepare for each shape.",
        "Watch steps with a single shape to rule out a leak.",
    ),
    "cycles": (
        "No leak seen. Memory grows by {torch} while the steps run, but Python's garbage collector frees it.",
        "The tensors are in reference cycles.",
    ),
    "unexplained": (
        "Memory grows by {torch}, but nothing from the early steps is still alive.",
        "",
        "Watch more steps.",
        _AGAIN,
    ),
    "unseen": (
        "Each step leaves allocations behind ({torch}), but the process may grow by less ({process}).",
        "A cache may have been filled, or older allocations may be freed, for example in a fixed-length buffer or a "
        "list that is cleared from time to time.",
        "Watch more steps, or use a longer warm-up.",
        _AGAIN,
    ),
    "hidden": (
        "Each step leaves {kept} behind, but it is uncertain whether memory grows: {torch}.",
        "Memory varies too much from step to step.",
        "Watch more steps, or use batches that have the same shape.",
        _AGAIN,
    ),
    "few": (f"Too few steps: a confidence interval needs at least {FEWEST_STEPS}.",),
    "garbage": (
        "No leak seen. Measured growth: {changes}.",
        "After the last step, {waited} in reference cycles had not been collected by Python's garbage collector yet.",
    ),
    "steady": ("No leak seen. Measured growth: {changes}.", "{small}"),
}


def leaks_document(leaks: LeakFigures) -> Document:
    """Return a document that shows whether memory grows, by how much, and where the remaining memory was allocated."""
    slopes = {"torch's allocator": leaks.allocator, "process": leaks.process}
    figures = [
        Figure(name, slope.bytes_per_step, "bytes", fmt.known_bounds((slope.ci_low, slope.ci_high)), "growth per step")
        for name, slope in slopes.items()
        if slope is not None
    ]
    watched = fmt.counted(len(leaks.steps), "step")
    ran = f", {leaks.after:,} steps run in all" if leaks.after else ""
    return Document(
        "leaks",
        leaks.name,
        verdict=leak_verdict(leaks),
        figures=tuple(figures),
        facts=(f"{watched} watched{ran}",),
        sections=tuple(_sections(leaks)),
    )


def leak_verdict(leaks: LeakFigures) -> Verdict:
    """Return the verdict with its reason and, if memory grows or the result is uncertain, a recommendation."""
    torch, process = slope_words(leaks.allocator), slope_words(leaks.process)
    count, beyond = len(leaks.steps), leaks.beyond_bytes
    grows = leaks.process is not None and leaks.process.grows
    facts = {
        "torch": torch,
        "process": process,
        "early": slope_words(leaks.early),
        "changes": ", ".join(f"{what} {by}" for what, by in (("torch's memory", torch), ("process", process)) if by),
        "ran": f" in a run of {leaks.after:,} steps" if leaks.after else "",
        "owner": _owner_words(leaks.survivors.iloc[0]) if len(leaks.survivors) else "",
        "beyond": f" The process grows by another {fmt.size(beyond)} per step outside torch." if beyond else "",
        "kept": fmt.size(leaks.survivors["bytes_per_step"].sum()),
        "waited": fmt.size(leaks.garbage_bytes * count),
        "small": f"Process growth below {fmt.size(PROCESS_FLOOR_BYTES)} per step is bookkeeping." if grows else "",
        "name": leaks.name if leaks.name.isidentifier() else "step",
        "steps": f"{count:,}",
        "more": 2 * count,
    }
    in_cycles = leaks.reason == "garbage" and leaks.allocator is not None and leaks.allocator.grows
    words = [part.format(**facts) for part in _WORDS["cycles" if in_cycles else leaks.reason]]
    sentence, why, advice, code = [*words, "", "", ""][:4]
    return Verdict(_STATES.get(leaks.verdict, "open"), sentence, why, advice, code)


def slope_words(slope: Slope | None) -> str:
    """Format a slope with its interval, such as ``1.00 MiB [0.99, 1.01] per step``.

    The result is empty if the slope is unknown.
    """
    if slope is None:
        return ""
    bytes_ = slope.bytes_per_step
    return f"{fmt.with_interval(fmt.size(bytes_), bytes_, (slope.ci_low, slope.ci_high))} per step"


def _owner_words(row: Any) -> str:
    """Describe the owner of memory in words, such as ``allocated in encoder (forward) by aten::add``."""
    layer = "outside any layer" if pd.isna(row["layer"]) else f"in {row['layer']}"
    phase = "" if pd.isna(row["phase"]) else f" ({palette.mark(str(row['phase'])).word})"
    return f"allocated {layer}{phase}" + ("" if pd.isna(row["op"]) else f" by {row['op']}")


def _sections(leaks: LeakFigures) -> Iterator[Section]:
    lines = []
    for name, (column, look) in _MEASURED.items():
        levels = leaks.steps[column].astype("Float64")
        if levels.notna().any():
            mark = replace(palette.mark(look), word=name)
            lines.append(Line(mark, list(map(fmt.known, levels - levels.min()))))
    steps = leaks.steps["step"].tolist()
    yield Series(
        "Memory after each watched step", Axis("step", "count"), Axis("above the lowest", "bytes"), steps, (*lines,)
    )
    columns = {
        "layer": Column("layer"),
        "phase": Column("phase", priority=1),
        "op": Column("op"),
        "bytes_per_step": Column("per step", "bytes", bar=True),
        "count_per_step": Column("allocations", "number", priority=2, help="per step"),
        "steps": Column("steps", "count", priority=2, help="Watched steps that made such allocations"),
        "kind": Column("kind", priority=1, help="kept, or growing (replaced with larger ones)"),
    }
    phases = [None if pd.isna(phase) else palette.mark(str(phase)) for phase in leaks.survivors["phase"]]
    layers = leaks.survivors["layer"].astype(object).fillna("(no layer)")
    shown = leaks.survivors.assign(layer=layers, phase=pd.Series(phases, leaks.survivors.index, dtype=object))
    title = "Suspects: what outlives its step"
    yield Table.of(title, shown, columns, budget=Budget(12, 40), noun="suspect")
