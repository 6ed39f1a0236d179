"""Show a study of how a job scales with its ranks as a document."""

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

#: The part that perfect scaling would take, too, and the parts of the excess.
_IDEAL = Mark("within perfect scaling", palette.LIGHT, "·", "none")
_LOSSES = {
    "compute": Mark("slower computing", palette.BLUE, "█", "solid"),
    "communication": Mark("exposed communication", palette.SKY, "≈", "rising"),
    "imbalance": Mark("imbalance", palette.YELLOW, "▒", "columns"),
    "input": Mark("input", palette.ORANGE, "░", "dots"),
}
_EFFICIENCY = Mark("efficiency", palette.BLUE, "█", "solid")
_SPEEDUP = "work per second against one rank of the same code and threads"
_BATCHES = {"strong": "the same batch for all ranks together", "weak": "the same batch for each rank"}


def rank_scaling_document(study: RankScaling) -> Document:
    """Return the document for a scaling study.

    It shows how much faster the job is on the largest number of ranks, the causes of the loss, and every job.
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
            "Speed-up and efficiency compare with one rank of the same code and threads. Nothing is extrapolated.",
            "Losses are shares of the traced steps, applied to the timed ones.",
            *study.notes,
        ),
    )


def _value(row: Any, name: str, unit: Unit) -> Value:
    """Return a figure from a job's row, with its interval."""
    low, high = ("ci_low_ms", "ci_high_ms") if unit == "ms" else (f"{name}_low", f"{name}_high")
    return Value(fmt.known(row[name]), unit, fmt.known_bounds((row[low], row[high])))


def _verdict(study: RankScaling, last: Any) -> Verdict:
    speedup = _value(last, "speedup", "ratio")
    effect = fmt.with_interval(fmt.ratio(speedup.number), speedup.number, speedup.interval)
    against_best = fmt.known(last["against_best"])
    beaten = against_best is not None and against_best < 1
    better = f"Use one process with all cores: {last.name} do only {fmt.ratio(against_best)} its work per second."
    return Verdict(
        "bad" if beaten or (speedup.number or 0.0) < 1 else "none",
        f"{last.name}: speed-up {effect}, efficiency {fmt.share(last['efficiency'])}, {study.mode} scaling",
        _why(study, last),
        better if beaten else "",
    )


def _why(study: RankScaling, last: Any) -> str:
    """Return how much each cause costs per step on the largest number of ranks, in descending order."""
    row = study.losses.loc[int(last["ranks"])]
    parts = {mark.word: fmt.known(row[f"{name}_ms"]) or 0.0 for name, mark in _LOSSES.items()}
    lost = [f"{word} {fmt.duration(ms)}" for word, ms in sorted(parts.items(), key=lambda part: -part[1]) if ms > 0]
    if fmt.known(row["loss_ms"]) is None or row["loss_ms"] <= 0 or not lost:
        return ""
    return (
        f"Of {fmt.duration(row['step_ms'])} per step, {fmt.duration(row['loss_ms'])} exceed perfect scaling: "
        f"{', '.join(lost)}."
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
    yield Bars("Time of a step, and what exceeds perfect scaling", "ms", tuple(bars))
    known = study.table[study.table["efficiency"].notna()]
    if len(known) > 2:
        values, low, high = (list(map(fmt.known, known[f"efficiency{end}"])) for end in ("", "_low", "_high"))
        low, high = low[1:], high[1:]  # one rank is compared with itself
        line = Line(_EFFICIENCY, values, [1.0, *low], [1.0, *high]) if None not in low else Line(_EFFICIENCY, values)
        axes = Axis("ranks", "count"), Axis("", "share")
        yield Series("Efficiency by ranks", *axes, known["ranks"].tolist(), (line,), {"perfect scaling": 1.0})
    yield _jobs(study)
    heads = ("step", "perfect", "exceeds it by", "computing", "communication", "imbalance", "input")
    columns = (Column("ranks"), *(Column(head, "ms", priority=place > 2) for place, head in enumerate(heads)))
    rows = [(f"{ranks}", *map(fmt.known, row)) for ranks, row in study.losses.iterrows()]
    yield Table("What exceeds perfect scaling; a negative part became shorter", columns, rows, noun="number of ranks")


def _jobs(study: RankScaling) -> Table:
    columns = {
        "job": Column("job"),
        ("step_ms", "ci_low_ms", "ci_high_ms"): Column("step", "ms", help="of the slowest rank"),
        ("speedup", "speedup_low", "speedup_high"): Column("speed-up", "ratio", help=_SPEEDUP),
        ("efficiency", "efficiency_low", "efficiency_high"): Column(
            "efficiency", "share", help="the speed-up of each rank"
        ),
        "against_plain": Column("vs no DDP", "ratio", 1, help="against one rank without DistributedDataParallel"),
        "against_best": Column("vs 1 process", "ratio", 1, help="against one process with all cores"),
        "threads": Column("threads", "count", 2, help="of each rank"),
    }
    return Table.of("Jobs", study.table.rename_axis("job").reset_index(), columns, noun="job")
