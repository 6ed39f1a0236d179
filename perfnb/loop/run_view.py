"""Create documents for a whole run, for two runs side by side, and for the runs of several ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
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
_MEMORY = {
    "resident": Mark("process (resident)", palette.BLUE, "█", "solid"),
    "allocated": Mark("allocated on the device", palette.ORANGE, "░", "dots"),
}
_VALUES = {"not checked": "; values unchecked here: check with try_levers"}
_ONCE = (
    "Each run was executed once: intervals cover variation within a run, but not changes to the machine between runs."
)
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
        ms = fmt.interval(run.median_ms, run.ci_ms)
        profile = "To see where the steps themselves spend their time, profile some of them."
        return Verdict(
            "good",
            f"{verdict.verdict}: {ms} per step; only faster steps can shorten the run",
            _nothing(run),
            profile,
        )
    return verdict_of_finding(run.judgement, verdict.finding, "findings" if len(run.findings) > 1 else "")


def _nothing(run: RunFigures) -> str:
    """Describe the problems that were looked for but not found."""
    waits = f"waits for data take {fmt.share(run.wait.estimate)} of the steps' time"
    parts = [waits if fmt.known(run.phases["ms"]["data"]) is not None else "waits for data are unknown"]
    parts.append("few steps are slow" if len(run.slow) else "no step is slow")
    if run.changes is not None:
        parts.append("the step time does not drift" if run.changes.kind == "steady" else "its pace hardly changed")
    growth = run.memory_of["resident"].growth
    known = growth is not None and growth.ci_low is not None
    parts.append("memory does not grow" if known else "there are too few memory readings to tell whether it grows")
    return f"{fmt.capital(', '.join(parts[:-1]))}, and {parts[-1]}."


def _figures(run: RunFigures) -> tuple[Figure, ...]:
    clock = "" if run.device is None else ", on the device's clock"
    step = Figure(
        "step (one batch)" if run.by_batch else "step",
        run.median_ms,
        "ms",
        run.ci_ms,
        f"median of {fmt.counted(run.counted, 'step')}{clock}",
    )
    figures = [step] if run.median_ms is not None else []
    if fmt.known(run.phases["ms"]["data"]) is not None and run.counted:
        ends = (run.wait.low, min(1.0, run.wait.high)) if run.wait.bounded else None
        figures.append(Figure("waiting for data", run.wait.estimate, "share", ends))
    peaks = [(mark.word, run.memory_of[kind].peak_bytes) for kind, mark in _MEMORY.items()]
    figures += [Figure(f"peak memory, {word}", peak, "bytes") for word, peak in peaks if peak is not None]
    return tuple(figures)


def _tried(run: RunFigures) -> Iterator[Section]:
    """Yield the levers that were tried during the run, best first, and the code that makes helpful levers permanent."""
    if not run.tried:
        return
    best = sorted(run.tried, key=lambda one: (not one["kept"], math.inf if one["ratio"] is None else one["ratio"]))
    together = any(one["kept"] and " and " in one["lever"] for one in best)
    whole_ms = run.mean_ms + run.between_ms
    rows = [
        Effect(one["lever"], one["ratio"], one["interval"], one["verdict"], _outcome(one, together, whole_ms))
        for one in best
    ]
    yield Effects(
        "Tried during the run: time of a step with each lever, against the run's own", tuple(rows), head="lever"
    )
    if lines := [line for one in best if one["kept"] for line in one["code"]]:
        yield Code("\n".join(lines), "To keep what helped")


def _outcome(tried: Mapping[str, Any], together: bool, whole_ms: float) -> str:
    """Describe a lever's outcome, and how much time it would have saved over the remaining steps.

    If several levers are kept `together`, only their joint saving is shown. `whole_ms` is the duration of a step in the
    run, including its wait for data and the trainer's own work. Levers therefore save a smaller share of it than of the
    step alone.
    """
    if not tried["kept"]:
        return str(tried["why_not"])
    if together and " and " not in tried["lever"]:
        return f"worth keeping with the others{_VALUES.get(tried['values'], '')}"
    return f"worth keeping{_gain(tried, whole_ms)}{_VALUES.get(tried['values'], '')}"


def _gain(tried: Mapping[str, Any], whole_ms: float) -> str:
    """Describe a lever's saving over the remaining steps, as text that follows "worth keeping"."""
    saves_ms, left = tried["saves_ms"], tried["left"]
    if saves_ms is None or left is None:
        return ""
    saved_ms = left * saves_ms - 1e3 * (tried["setup_s"] or 0.0)
    steps = fmt.counted(left, "step")
    if saved_ms <= 0:
        return f" in a longer run: preparing it takes longer than what it saves over the remaining {steps}"
    share = f", {fmt.share(saved_ms / (left * whole_ms))} of their time" if saved_ms < left * whole_ms else ""
    return f": it would have saved about {fmt.duration(saved_ms)} over the remaining {steps}{share}"


def _pictures(run: RunFigures) -> Iterator[Section]:
    phases = run.phases["ms"].fillna(0.0).astype(float)
    trials = {"profiled": replace(palette.RUN["profiled"], word="profiled windows and trials")} if run.tried else {}
    marks = palette.RUN | trials
    parts = tuple(Part(marks[str(phase)], ms) for phase, ms in phases.items())
    yield Bars("Where the run's time went", "ms", (Bar("", parts),))
    inside = stretches(run.steps, _POINTS)
    if len(inside) > 1:
        lines = [(palette.RUN["step"], "wall_ms"), (palette.RUN["data"], "data_ms")]
        if not (run.steps["sum_data_ms"] > 0).any():
            del lines[1]
        yield Series(
            "Time per step over the run (medians, without profiled steps)",
            Axis("step", "number"),
            Axis("time", "ms"),
            inside["first"].tolist(),
            tuple(Line(mark, list(map(fmt.known, inside[column]))) for mark, column in lines),
        )
    memory = [(mark, run.memory[f"{kind}_bytes"]) for kind, mark in _MEMORY.items()]
    if run.memory["step"].nunique() > 1:
        yield Series(
            "Memory over the run",
            Axis("step", "number"),
            Axis("memory", "bytes"),
            run.memory["step"].tolist(),
            tuple(Line(mark, list(map(fmt.known, readings))) for mark, readings in memory if readings.notna().any()),
        )


def _tables(run: RunFigures) -> Iterator[Section]:
    columns = (Column("memory"), Column("peak", "bytes"), Column("growth per step", "bytes", help="95 % interval"))
    rows = []
    for kind, mark in _MEMORY.items():
        peak, slope = run.memory_of[kind].peak_bytes, run.memory_of[kind].growth
        if peak is not None and slope is not None:
            rows.append(
                (mark, peak, Value(slope.bytes_per_step, "bytes", fmt.known_bounds((slope.ci_low, slope.ci_high))))
            )
    yield Table("Memory and its growth", columns, rows, key="memory")
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
    sides = (("baseline", changes.a), ("candidate", changes.b))
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
        yield f"On average per step: {', '.join(f'{what} {_signed(clear.loc[what])}' for what in order)}."
    for what, row in changes.memory.iterrows():
        if str(what).startswith("growth") and (fmt.known(row["low_bytes"]) or 0.0) > 0:
            grows = fmt.growth(float(row["change_bytes"]), (float(row["low_bytes"]), float(row["high_bytes"])))
            yield f"Memory ({str(what).removeprefix('growth of ')}) grows faster, by {grows}."


def _signed(row: pd.Series) -> str:
    """Format a change in milliseconds with its interval, for example ``+1.20 ms [1.10, 1.30]``."""
    ms = float(row["change_ms"])
    change = fmt.interval(ms, (row["low_ms"], row["high_ms"]))
    return f"+{change}" if ms > 0 else change


def _change_sections(changes: RunChanges) -> Iterator[Section]:
    ends = changes.ratio_ci
    effects = [Effect("step (median)", changes.ratio, ends, changes.verdict if ends else "too few steps")]
    for what, row in changes.step.iloc[1:].iterrows():
        if (fmt.known(row["ratio"]) or 0.0) > 0:
            inside = fmt.known_bounds((row["ratio_low"], row["ratio_high"]))
            effects.append(Effect(_words(what), fmt.known(row["ratio"]), inside))
    title = "Time per step of the candidate relative to the baseline"
    yield Effects(title, tuple(effects), same_within=changes.equal_within, head="part")
    heads = (Column("baseline", "ms"), Column("candidate", "ms"), Column("change, 95 % interval", "ms"))
    rows = [(_words(what), *_three(row, "ms")) for what, row in changes.step.iterrows()]
    yield Table("Time per step", (Column("part"), *heads), rows)
    in_bytes = (Column(column.head, "bytes") for column in heads)
    rows = [(_words(what), *_three(row, "bytes")) for what, row in changes.memory.iterrows()]
    yield Table("Memory", (Column("memory"), *in_bytes), rows)


def _words(what: object) -> str:
    name = str(what)
    if name in ("step", "mean step"):
        return f"step ({'median' if name == 'step' else 'mean'})"
    if name in _MEMORY:
        return f"{_MEMORY[name].word}, peak"
    kind = name.removeprefix("growth of ")
    return name if kind == name else f"{_MEMORY[kind].word}, growth per step"


def _three(row: pd.Series, unit: str) -> tuple[Any, ...]:
    before, after, change = (fmt.known(row[f"{name}_{unit}"]) for name in ("a", "b", "change"))
    return before, after, Value(change, unit, fmt.known_bounds((row[f"low_{unit}"], row[f"high_{unit}"])))


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
            Table(
                "How much longer per step than the rank in the middle (mean, 95 % interval)",
                heads,
                rows,
                budget=Budget(64, 64),
                noun="rank",
            ),
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
    longer = fmt.interval(row["change_ms"], (row["low_ms"], row["high_ms"]))
    return Verdict("bad", f"Rank {rank} {does} {longer} longer per step than rank {row['than']:.0f}")
