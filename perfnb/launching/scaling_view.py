"""Show a study of how a job scales with the number of ranks as a document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from perfnb import quantities as fmt
from perfnb.draw import palette
from perfnb.draw.document import (
    Axis,
    Bar,
    Bars,
    Column,
    Document,
    Figure,
    Line,
    Part,
    Section,
    Series,
    Table,
    Unit,
    Value,
    Verdict,
)
from perfnb.draw.palette import Mark

if TYPE_CHECKING:
    from perfnb.launching.rank_scaling import RankScaling

#: The marks for the time that perfect scaling would take, and for the causes of the loss.
_IDEAL = Mark("within perfect scaling", palette.LIGHT, "·", "none")
_LOSSES = {
    "compute": Mark("slower computing", palette.BLUE, "█", "solid"),
    "communication": Mark("exposed communication", palette.SKY, "≈", "rising"),
    "imbalance": Mark("imbalance", palette.YELLOW, "▒", "columns"),
    "input": Mark("input", palette.ORANGE, "░", "dots"),
}
_EFFICIENCY = Mark("efficiency", palette.BLUE, "█", "solid")
_SPEEDUP = "work per second compared with one rank with the same code and number of threads"
_BATCHES = {"strong": "the same batch for all ranks together", "weak": "the same batch for each rank"}


def rank_scaling_document(study: RankScaling) -> Document:
    """Return the document about a scaling study.

    The document shows how much faster the job is on the largest number of ranks, the causes of the loss, and all jobs.
    """
    last = study.table[study.table["efficiency"].notna()].iloc[-1]
    runs = "once" if study.rounds == 1 else f"{study.rounds:,} times"
    threads = fmt.counted(int(study.table["threads"].iloc[0]), "thread")
    values = {
        f"step on {last.name}": _value(last, "step_ms", "ms"),
        "speed-up": _value(last, "speedup", "ratio"),
        "efficiency": _value(last, "efficiency", "share"),
    }
    return Document(
        "rank scaling",
        verdict=_verdict(study, last),
        figures=tuple(Figure(label, value.number, value.unit, value.interval) for label, value in values.items()),
        facts=(
            f"{study.mode} scaling: {_BATCHES[study.mode]}",
            f"each job ran {runs}, with {threads} for each rank, on {fmt.counted(study.cores, 'core')}",
        ),
        sections=tuple(_sections(study)),
        notes=(
            "Speed-up and efficiency are relative to one rank with the same code and number of threads. Nothing is "
            "extrapolated.",
            "Losses are computed by applying the shares in the traced steps to the timed steps.",
            *study.notes,
        ),
    )


def _value(row: Any, name: str, unit: Unit) -> Value:
    """Return a figure and its interval from a job's row."""
    low, high = ("ci_low_ms", "ci_high_ms") if unit == "ms" else (f"{name}_low", f"{name}_high")
    return Value(fmt.known(row[name]), unit, fmt.known_bounds((row[low], row[high])))


def _verdict(study: RankScaling, last: Any) -> Verdict:
    speedup = _value(last, "speedup", "ratio")
    effect = fmt.with_interval(fmt.ratio(speedup.number), speedup.number, speedup.interval)
    against_best = fmt.known(last["against_best"])
    beaten = against_best is not None and against_best < 1
    better = f"Use one process with all cores. {last.name} only do {fmt.ratio(against_best)} its work per second."
    return Verdict(
        "bad" if beaten or (speedup.number or 0.0) < 1 else "none",
        f"{last.name}: speed-up {effect}, efficiency {fmt.share(last['efficiency'])}, {study.mode} scaling",
        _why(study, last),
        better if beaten else "",
    )


def _why(study: RankScaling, last: Any) -> str:
    """Return a sentence with the cost of each cause on the largest number of ranks, in descending order."""
    row = study.losses.loc[int(last["ranks"])]
    parts = {mark.word: fmt.known(row[f"{name}_ms"]) or 0.0 for name, mark in _LOSSES.items()}
    lost = [f"{word} {fmt.duration(ms)}" for word, ms in sorted(parts.items(), key=lambda part: -part[1]) if ms > 0]
    if fmt.known(row["loss_ms"]) is None or row["loss_ms"] <= 0 or not lost:
        return ""
    return (
        f"A step takes {fmt.duration(row['step_ms'])}, which is {fmt.duration(row['loss_ms'])} longer than with "
        f"perfect scaling: {', '.join(lost)}."
    )


def _sections(study: RankScaling) -> Iterator[Section]:
    alone = fmt.known(study.table.loc["1 rank", "step_ms"])
    bars = [] if alone is None else [Bar("1 rank", (Part(_IDEAL, alone),))]
    for ranks, row in study.losses.iterrows():
        lost = [Part(mark, max(0.0, fmt.known(row[f"{name}_ms"]) or 0.0)) for name, mark in _LOSSES.items()]
        within = float(row["step_ms"]) - sum(
            part.value for part in lost
        )  # less than the ideal if a part became shorter
        bars.append(Bar(f"{ranks} ranks", (Part(_IDEAL, max(0.0, within)), *lost), float(row["step_ms"])))
    yield Bars("Step time, split into perfect scaling and losses", "ms", tuple(bars))
    known = study.table[study.table["efficiency"].notna()]
    if len(known) > 2:
        values, low, high = (list(map(fmt.known, known[f"efficiency{end}"])) for end in ("", "_low", "_high"))
        low, high = low[1:], high[1:]  # one rank would be compared with itself
        line = Line(_EFFICIENCY, values, [1.0, *low], [1.0, *high]) if None not in low else Line(_EFFICIENCY, values)
        axes = Axis("ranks", "count"), Axis("", "share")
        yield Series("Efficiency by number of ranks", *axes, known["ranks"].tolist(), (line,), {"perfect scaling": 1.0})
    yield _jobs(study)
    heads = ("step", "perfect", "total loss", "computing", "communication", "imbalance", "input")
    columns = (Column("ranks"), *(Column(head, "ms", priority=place > 2) for place, head in enumerate(heads)))
    rows = [(f"{ranks}", *map(fmt.known, row)) for ranks, row in study.losses.iterrows()]
    yield Table("Losses per step (negative if a part became shorter)", columns, rows, noun="number of ranks")


def _jobs(study: RankScaling) -> Table:
    columns = {
        "job": Column("job"),
        ("step_ms", "ci_low_ms", "ci_high_ms"): Column("step", "ms", help="of the slowest rank"),
        ("speedup", "speedup_low", "speedup_high"): Column("speed-up", "ratio", help=_SPEEDUP),
        ("efficiency", "efficiency_low", "efficiency_high"): Column(
            "efficiency", "share", help="the speed-up per rank"
        ),
        "against_plain": Column("vs no DDP", "ratio", 1, help="speed-up over one rank without DistributedDataParallel"),
        "against_best": Column("vs 1 process", "ratio", 1, help="speed-up over one process with all cores"),
        "threads": Column("threads", "count", 2, help="of each rank"),
    }
    return Table.of("Jobs", study.table.rename_axis("job").reset_index(), columns, noun="job")
