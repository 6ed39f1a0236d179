"""Show a study of how a job scales with the number of ranks as a document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from perfnb import quantities as fmt
from perfnb.draw import palette
from perfnb.draw.document import Bar, Bars, Column, Document, Figure, Part, Section, Table, Unit, Verdict
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
_SPEEDUP = "work per second compared with one rank with the same code and number of threads"
_BATCHES = {"strong": "the same batch for all ranks together", "weak": "the same batch for each rank"}


def rank_scaling_document(study: RankScaling) -> Document:
    """Return the document about a scaling study.

    The document shows how much faster the job is on the largest number of ranks, the causes of the loss, and all jobs.
    """
    last = study.table[study.table["efficiency"].notna()].iloc[-1]
    speedup = _figure(last, "speed-up", "speedup", "ratio")
    runs = "once" if study.rounds == 1 else f"{study.rounds:,} times"
    threads = fmt.counted(int(study.table["threads"].iloc[0]), "thread")
    return Document(
        "rank scaling",
        verdict=_verdict(study, last, speedup),
        figures=(
            _figure(last, f"step on {last.name}", "step_ms", "ms"),
            speedup,
            _figure(last, "efficiency", "efficiency", "share"),
        ),
        facts=(
            f"{study.mode} scaling: {_BATCHES[study.mode]}",
            f"each job ran {runs}, with {threads} for each rank, on {fmt.counted(study.cores, 'core')}",
        ),
        sections=tuple(_sections(study)),
        notes=("Losses are computed by applying the shares in the traced steps to the timed steps.", *study.notes),
    )


def _figure(job: Any, label: str, name: str, unit: Unit) -> Figure:
    low, high = ("ci_low_ms", "ci_high_ms") if unit == "ms" else (f"{name}_low", f"{name}_high")
    return Figure(label, fmt.known(job[name]), unit, fmt.known_bounds((job[low], job[high])))


def _verdict(study: RankScaling, last: Any, speedup: Figure) -> Verdict:
    effect = fmt.with_interval(fmt.ratio(speedup.value), speedup.value, speedup.interval)
    against_best = fmt.known(last["against_best"])
    beaten = against_best is not None and against_best < 1
    better = f"Use one process with all cores. {last.name} only do {fmt.ratio(against_best)} its work per second."
    return Verdict(
        "bad" if beaten or (speedup.value or 0.0) < 1 else "none",
        f"{last.name}: speed-up {effect}, efficiency {fmt.share(last['efficiency'])}, {study.mode} scaling",
        _why(study, last),
        better if beaten else "",
    )


def _why(study: RankScaling, last: Any) -> str:
    """Return a sentence with the cost of each cause on the largest number of ranks, in descending order."""
    row = study.losses.loc[int(last["ranks"])]
    parts = {mark.word: fmt.known(row[f"{name}_ms"]) or 0.0 for name, mark in _LOSSES.items()}
    lost = [f"{word} {fmt.duration(ms)}" for word, ms in sorted(parts.items(), key=lambda part: -part[1]) if ms > 0]
    if row["loss_ms"] <= 0 or not lost:
        return ""
    return (
        f"A step takes {fmt.duration(row['step_ms'])}, which is {fmt.duration(row['loss_ms'])} longer than with "
        f"perfect scaling: {', '.join(lost)}."
    )


def _sections(study: RankScaling) -> Iterator[Section]:
    bars = [Bar("1 rank", (Part(_IDEAL, study.table["step_ms"].loc["1 rank"]),))]
    for ranks, row in study.losses.iterrows():
        lost = [Part(mark, max(0.0, fmt.known(row[f"{name}_ms"]) or 0.0)) for name, mark in _LOSSES.items()]
        # This is less than the ideal time if a part became shorter.
        within = max(0.0, row["step_ms"] - sum(part.value for part in lost))
        bars.append(Bar(f"{ranks} ranks", (Part(_IDEAL, within), *lost), row["step_ms"]))
    yield Bars("Step time, split into perfect scaling and losses", "ms", tuple(bars))
    jobs = {
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
    yield Table.of("Jobs", study.table.rename_axis("job").reset_index(), jobs, noun="job")
    heads = ("step", "perfect", "total loss", "computing", "communication", "imbalance", "input")
    columns = (Column("ranks"), *(Column(head, "ms", priority=place > 2) for place, head in enumerate(heads)))
    rows = [(f"{ranks}", *map(fmt.known, row)) for ranks, row in study.losses.iterrows()]
    yield Table("Losses per step (negative if a part became shorter)", columns, rows, noun="number of ranks")
