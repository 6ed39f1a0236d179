"""Create documents for a whole run, for two runs side by side, and for the runs of several ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import palette
from perfnb.draw.document import (
    Axis,
    Bar,
    Bars,
    Budget,
    Code,
    Column,
    Document,
    Effect,
    Effects,
    Figure,
    Line,
    Part,
    Section,
    Series,
    State,
    Table,
    Value,
    Verdict,
)
from perfnb.draw.palette import Mark
from perfnb.findings.tab import finding_cards, verdict_of_finding
from perfnb.loop.rank_figures import RankFigures
from perfnb.loop.run_comparison import RunChanges
from perfnb.loop.run_summary import FEWEST_STEPS, TYPICAL, RunFigures, stretches

#: The number of points in the chart of all steps.
_POINTS = 240
_TYPICAL: dict[Any, str] = {True: "yes", False: "no"}
_SIDES = ("baseline", "candidate")
_MEMORY = {
    "resident": Mark("process (resident)", palette.BLUE, "█", "solid"),
    "allocated": Mark("allocated on the device", palette.ORANGE, "░", "dots"),
}
_VALUES = {"not checked": "; values unchecked here: check with try_levers"}
_ONCE = (
    "Each run was executed once: intervals cover variation within a run, but not changes to the machine between runs."
)
_MIDDLE = "How much longer per step than the rank in the middle (mean, 95 % interval)"
_RANKS_WAIT = (
    "Ranks that exchange gradients all take as long as the slowest rank, because the others wait for it during their "
    "own work. To see how long each rank waits in collectives, run perfnb ranks on their profiles or traces."
)


def run_document(run: RunFigures) -> Document:
    """Return a document about a run: how long its steps took, what slowed it down, and how memory developed."""
    several = len(run.findings) > 1  # the verdict covers a single one completely
    cards = (finding_cards(run.judgement, "What each finding costs at most per step"),) if several else ()
    return Document(
        "whole run",
        run_name(run),
        "" if run.device is None else str(run.device),
        _verdict(run),
        _figures(run),
        (f"{fmt.counted(run.count, 'step')} in {fmt.duration(run.duration_ms)}",),
        (*_tried(run), *_pictures(run), *cards, *_tables(run)),
        tuple(_notes(run)),
    )


def run_name(run: RunFigures) -> str:
    """Return a run's name, with its rank if its job has several."""
    return run.name if run.rank is None else f"{run.name}, rank {run.rank} of {run.ranks}"


def _verdict(run: RunFigures) -> Verdict:
    verdict = run.judgement.verdict
    if not run.enough:
        needed = f"at least {FEWEST_STEPS} are needed after the warm-up, but there are only {run.counted:,}"
        return Verdict("open", f"{verdict.verdict}: {needed}")
    if verdict.finding is None:
        sentence = f"{fmt.interval(run.median_ms, run.ci_ms)} per step; only faster steps can shorten the run"
        profile = "To see where the steps themselves spend their time, profile some of them."
        return Verdict("good", f"{verdict.verdict}: {sentence}", _nothing(run), profile)
    return verdict_of_finding(run.judgement, verdict.finding, "findings" if len(run.findings) > 1 else "")


def _nothing(run: RunFigures) -> str:
    """Describe the problems that were looked for but not found."""
    growth = run.memory_of["resident"].growth
    known = growth is not None and growth.ci_low is not None
    memory = "memory does not grow" if known else "there are too few memory readings to tell whether it grows"
    waits = "Slow steps" if fmt.known(run.phases["ms"]["data"]) is None else "Waits for data, slow steps"
    return f"{waits} and changes of pace cost little, and {memory}."


def _figures(run: RunFigures) -> tuple[Figure, ...]:
    clock = "" if run.device is None else ", on the device's clock"
    basis = f"median of {fmt.counted(run.counted, 'step')}{clock}"
    step = Figure("step (one batch)" if run.by_batch else "step", run.median_ms, "ms", run.ci_ms, basis)
    figures = [step] if run.median_ms is not None else []
    if fmt.known(run.phases["ms"]["data"]) is not None and run.counted:
        ends = (run.wait.low, min(1.0, run.wait.high)) if run.wait.bounded else None
        figures.append(Figure("waiting for data", run.wait.estimate, "share", ends))
    for kind, mark in _MEMORY.items():
        peak, growth = run.memory_of[kind].peak_bytes, run.memory_of[kind].growth
        if peak is not None:
            figures.append(Figure(f"peak memory, {mark.word}", peak, "bytes"))
        if growth is not None:
            ends = fmt.known_bounds((growth.ci_low, growth.ci_high))
            figures.append(Figure(f"growth per step, {mark.word}", growth.bytes_per_step, "bytes", ends))
    return tuple(figures)


def _tried(run: RunFigures) -> Iterator[Section]:
    """Yield the levers that were tried during the run, best first, and the code that makes helpful levers permanent."""
    if not run.tried:
        return
    best = sorted(run.tried, key=lambda one: (not one["kept"], math.inf if one["ratio"] is None else one["ratio"]))
    together = any(one["kept"] and " and " in one["lever"] for one in best)
    rows = [
        Effect(one["lever"], one["ratio"], one["interval"], one["verdict"], _outcome(run, one, together))
        for one in best
    ]
    title = "Tried during the run: time of a step with each lever, against the run's own"
    yield Effects(title, tuple(rows), head="lever")
    if lines := [line for one in best if one["kept"] for line in one["code"]]:
        yield Code("\n".join(lines), "To keep what helped")


def _outcome(run: RunFigures, tried: Mapping[str, Any], together: bool) -> str:
    """Describe a lever's outcome, and how much time it would have saved over the remaining steps.

    If several levers are kept `together`, only their joint saving is shown. It is a smaller share of the run than of
    the steps alone, because the run includes waits for data and the trainer's own work.
    """
    if not tried["kept"]:
        return str(tried["why_not"])
    saves_ms, left, gain = tried["saves_ms"], tried["left"], ""
    if together and " and " not in tried["lever"]:
        gain = " with the others"
    elif saves_ms is not None and left is not None:
        saved_ms = left * saves_ms - 1e3 * (tried["setup_s"] or 0.0)
        whole_ms, over = left * (run.mean_ms + run.between_ms), f"over the remaining {fmt.counted(left, 'step')}"
        gain = f" in a longer run: preparing it takes longer than what it saves {over}"
        if saved_ms > 0:
            share = f", {fmt.share(saved_ms / whole_ms)} of their time" if saved_ms < whole_ms else ""
            gain = f": it would have saved about {fmt.duration(saved_ms)} {over}{share}"
    return f"worth keeping{gain}{_VALUES.get(tried['values'], '')}"


def _pictures(run: RunFigures) -> Iterator[Section]:
    phases = run.phases["ms"].fillna(0.0).astype(float)
    parts = tuple(Part(palette.RUN[str(phase)], ms) for phase, ms in phases.items())
    yield Bars("Where the run's time went", "ms", (Bar("", parts),))
    inside, waits = stretches(run.steps, _POINTS), (run.steps["sum_data_ms"] > 0).any()
    if len(inside) > 1:
        times = {palette.RUN["step"]: inside["wall_ms"]} | ({palette.RUN["data"]: inside["data_ms"]} if waits else {})
        title = "Time per step over the run (medians, without profiled steps)"
        yield _over_steps(title, Axis("time", "ms"), inside["first"], times)
    memory = {mark: run.memory[f"{kind}_bytes"] for kind, mark in _MEMORY.items()}
    if run.memory["step"].nunique() > 1:
        yield _over_steps("Memory over the run", Axis("memory", "bytes"), run.memory["step"], memory)


def _over_steps(title: str, y: Axis, steps: pd.Series, lines: Mapping[Mark, pd.Series]) -> Series:
    known = {mark: list(map(fmt.known, values)) for mark, values in lines.items() if values.notna().any()}
    return Series(title, Axis("step", "number"), y, steps.tolist(), tuple(map(Line, known, known.values())))


def _tables(run: RunFigures) -> Iterator[Section]:
    windows = {
        "begin": Column("from step"),
        "steps": Column("steps", "count", priority=2),
        "typical": Column("typical of the run"),
        "ms": Column("median step", "ms"),
        "ratio": Column("against the run", "ratio"),
        "judged_by": Column("judged by", priority=1),
    }
    begins, typical = run.windows["step"].map("{:,}".format), run.windows["typical"].astype(object).map(_TYPICAL)
    title = f"Profiled windows (typical: {TYPICAL[0]:g} to {TYPICAL[1]:g} × the run's median step)"
    yield Table.of(title, run.windows.assign(begin=begins, typical=typical), windows, budget=Budget(6), noun="window")
    slow = {
        "name": Column("step"),
        "at": Column("at"),
        "wall_ms": Column("took", "ms", bar=True),
        "data_ms": Column("waiting for data", "ms"),
        "lost_ms": Column("lost", "ms", priority=1, help="by all slow steps of the same row"),
    }
    shown = run.slow.assign(name=run.slow["step"].map("{:,.0f}".format), at=run.slow["start_s"].map(fmt.clock))
    title = "Slow steps, far slower than their neighbours"
    yield Table.of(title, shown, slow, budget=Budget(5), noun="slow step", key="slow")


def _notes(run: RunFigures) -> Iterator[str]:
    if run.by_batch:
        yield "Each step is one batch, because no optimizer step shows where a step ends."
    if run.batches > 1:
        yield f"Each step is one optimizer step on {run.batches:,} batches."
    steps = "the first step" if run.warmup == 1 else f"the first {run.warmup:,} steps"
    left = [f"{steps} (warm-up)"] * bool(run.warmup)
    left += [fmt.counted(run.profiled, "profiled step")] * bool(run.profiled)
    if left:
        yield f"Excluded from all figures except where the run's time went: {' and '.join(left)}."
    if run.load is not None:
        load, cpus = run.load
        yield (
            f"The machine was busy, with a mean load of {load:.1f} on {fmt.counted(cpus, 'CPU')}. Other programs may "
            "have affected step times and caused slow steps."
        )
    if run.enough and fmt.known(run.phases["ms"]["data"]) is None:
        yield "Waits for data are unknown and therefore part of the steps."


def comparison_document(changes: RunChanges) -> Document:
    """Return a document that compares two runs."""
    a, b = (run_name(run) for run in (changes.a, changes.b))
    names = f"{a} → {b}" if a != b else a
    sides = tuple(zip(_SIDES, (changes.a, changes.b), strict=True))
    return Document(
        "two runs",
        names,
        verdict=_change_verdict(changes),
        figures=tuple(Figure(f"{side} step", run.median_ms, "ms", run.ci_ms, "median") for side, run in sides),
        facts=tuple(f"{side}: {fmt.counted(run.count, 'step')}" for side, run in sides),
        sections=tuple(_change_sections(changes)),
        notes=(_ONCE,),
    )


def _change_verdict(changes: RunChanges) -> Verdict:
    ratio, ends = changes.ratio, changes.ratio_ci
    if ratio is None:
        return Verdict("open", "Inconclusive: one of the runs has no steps to compare")
    effect, band = fmt.with_interval(fmt.ratio(ratio), ratio, ends), fmt.share(changes.equal_within)
    states: dict[str, tuple[State, str]] = {
        "faster": ("good", f"The candidate's steps are faster: {fmt.share(1 - ratio)} less time, {effect}"),
        "slower": ("bad", f"The candidate's steps are slower: {fmt.share(ratio - 1)} more time, {effect}"),
        "same": ("none", f"The steps take the same time within {band}: {effect}"),
        "inconclusive": ("open", f"Inconclusive: neither a difference nor equality within {band} was shown: {effect}"),
    }
    state, sentence = states[changes.verdict]
    few = "" if ends else f"There are too few steps for an interval: each run needs at least {FEWEST_STEPS}."
    return Verdict(state, sentence, " ".join(filter(None, (few, *_reasons(changes)))))


def _reasons(changes: RunChanges) -> Iterator[str]:
    """Yield the reasons for the difference, largest first."""
    parts = changes.step.loc[["waiting for data", "working", "between steps"]]
    clear = parts[(parts["low_ms"] > 0) | (parts["high_ms"] < 0)]
    if len(clear):
        order = clear["change_ms"].abs().astype(float).sort_values(ascending=False).index
        named = {what: fmt.interval(*_change(clear.loc[what], "ms")) for what in order}
        signed = (f"{what} {'' if change.startswith(fmt.MINUS) else '+'}{change}" for what, change in named.items())
        yield f"On average per step: {', '.join(signed)}."
    for what, row in changes.memory.iterrows():
        if str(what).startswith("growth") and (fmt.known(row["low_bytes"]) or 0.0) > 0:
            grows = fmt.growth(*_change(row, "bytes"))
            yield f"Memory ({str(what).removeprefix('growth of ')}) grows faster, by {grows}."


def _change(row: pd.Series, unit: str) -> tuple[Any, tuple[Any, Any]]:
    return row[f"change_{unit}"], (row[f"low_{unit}"], row[f"high_{unit}"])


def _change_sections(changes: RunChanges) -> Iterator[Section]:
    ends = changes.ratio_ci
    effects = [Effect("step (median)", changes.ratio, ends, changes.verdict if ends else "too few steps")]
    for what, row in changes.step.iloc[1:].iterrows():
        if (fmt.known(row["ratio"]) or 0.0) > 0:
            inside = fmt.known_bounds((row["ratio_low"], row["ratio_high"]))
            effects.append(Effect(_words(what), fmt.known(row["ratio"]), inside))
    title = "Time per step of the candidate relative to the baseline"
    yield Effects(title, tuple(effects), same_within=changes.equal_within, head="part")
    rows = list[Any]()
    for frame, unit in ((changes.step, "ms"), (changes.memory, "bytes")):
        for what, row in frame.iterrows():
            change, ends = _change(row, unit)
            sides = (Value(fmt.known(row[f"{side}_{unit}"]), unit) for side in "ab")
            rows.append((_words(what), *sides, Value(fmt.known(change), unit, fmt.known_bounds(ends))))
    heads = (Column(head, "number") for head in (*_SIDES, "change, 95 % interval"))
    yield Table("Time per step, and memory", (Column("part"), *heads), rows)


def _words(what: object) -> str:
    name = str(what)
    if name in ("step", "mean step"):
        return f"step ({'median' if name == 'step' else 'mean'})"
    kind = name.removeprefix("growth of ")
    return f"{_MEMORY[kind].word}, {'peak' if kind == name else 'growth per step'}" if kind in _MEMORY else name


def ranks_document(ranks: RankFigures) -> Document:
    """Return a document that shows which rank in a job waits longer for its data, or works longer."""
    times = ranks.times
    marks = [palette.RUN["data"], Mark("working", palette.BLUE, "█", "solid"), palette.RUN["other"]]
    bars = [
        Bar(f"rank {rank}", tuple(map(Part, marks, (fmt.known(ms) or 0.0 for ms in row.iloc[1:]))))
        for rank, row in times.iterrows()
    ]
    heads = (Column("rank"), Column("step (median)", "ms"), Column("waits longer", "ms"), Column("works longer", "ms"))
    rows = [
        (f"{rank}", fmt.known(ms), *(_longer(ranks, rank, part) for part in ("waiting for data", "working")))
        for rank, ms in times["step_ms"].items()
    ]
    absent = ranks.size - len(times)
    only = f"Only {len(times):,} of {fmt.counted(ranks.size, 'rank')} are included: any of the others may be slower."
    notes = [only] * (absent > 0) + ["Waits for data are unknown."] * bool(times["data_ms"].isna().any())
    return Document(
        "whole runs",
        fmt.counted(len(times), "rank"),
        verdict=_rank_verdict(ranks),
        sections=(
            Bars("Where each rank's mean step time goes", "ms", tuple(bars)),
            Table(_MIDDLE, heads, rows, budget=Budget(64, 64), noun="rank"),
        ),
        notes=(*notes, _RANKS_WAIT),
    )


def _longer(ranks: RankFigures, rank: Any, part: str) -> Value | str:
    if (rank, part) not in ranks.differences.index:
        return "in the middle" if part in ranks.differences.index.get_level_values("part") else ""
    row: Any = ranks.differences.loc[(rank, part)]
    return Value(fmt.known(row["change_ms"]), "ms", fmt.known_bounds((row["low_ms"], row["high_ms"])))


def _rank_verdict(ranks: RankFigures) -> Verdict:
    rank, part = ranks.straggler, ranks.slow_part
    if rank is None or part is None:
        if len(ranks.times) > 1 and ranks.differences["low_ms"].isna().all():
            return Verdict("open", "Too few steps to compare the ranks")
        return Verdict("good", "No rank waits longer for data or works longer than the others")
    row: Any = ranks.differences.loc[(rank, part)]
    does = "waits for its data" if part == "waiting for data" else "works"
    longer = fmt.interval(*_change(row, "ms"))
    return Verdict("bad", f"Rank {rank} {does} {longer} longer per step than rank {row['than']:.0f}")
