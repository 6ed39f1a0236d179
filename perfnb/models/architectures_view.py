"""Show a comparison of architectures as a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import palette
from perfnb.draw.document import (
    Bar,
    Bars,
    Choice,
    Column,
    Document,
    Effect,
    Effects,
    Figure,
    Nesting,
    Part,
    Section,
    Table,
    Unit,
    Verdict,
)
from perfnb.draw.palette import Mark
from perfnb.recording.layer_tree import nested, split_layers

if TYPE_CHECKING:
    from perfnb.models.architectures import ArchitectureComparison

_PASSES = {"forward_flops": palette.mark("forward"), "backward_flops": palette.mark("backward")}
_DIFFERENT = ("faster", "slower")
#: Maximum length of a name in a sentence or above a figure.
_NAME = 60


class _Metric(NamedTuple):
    """A metric by which architectures can be compared."""

    title: str
    unit: Unit
    #: The columns of the comparison's table that add up to the metric.
    parts: tuple[str, ...]
    #: The name of the metric for layers, and its columns in the table `layers`.
    of_layers: str
    layer_parts: tuple[str, ...]


def _metrics(result: ArchitectureComparison) -> tuple[_Metric, ...]:
    """Return the metrics to choose from. The FLOPs of a training step are the sum of both passes."""
    passes = tuple(_PASSES) if result.training else ("forward_flops",)
    return (
        _Metric("Step time", "ms", ("median_ms",), "time", ("share",)),
        _Metric("Peak memory", "bytes", ("peak_bytes",), "saved for backward", ("activation_bytes",)),
        _Metric("FLOPs per step", "flops", passes, "FLOPs", passes),
        _Metric("Parameters", "count", ("parameters",), "parameters", ("parameters",)),
    )


def architectures_document(result: ArchitectureComparison) -> Document:
    """Return the document for a comparison of architectures.

    It shows which architecture is fastest, how each one's time is divided, and its other costs.
    """
    step = "training step" if result.training else "inference step, forward only"
    times = "once each" if result.rounds == 1 else f"{result.rounds:,} times each, interleaved"
    timed = _known(result, _metrics(result)[0])
    names = list(timed)
    ends = result.table.loc[list(dict.fromkeys((names[0], names[-1])))]  # the fastest and the slowest
    intervals = map(fmt.known_bounds, zip(ends["ci_low_ms"], ends["ci_high_ms"], strict=True))
    return Document(
        "architectures",
        ", ".join(map(_short, result.table.index)),
        result.device,
        _verdict(result, timed),
        tuple(Figure(_short(name), timed[name], "ms", one) for name, one in zip(ends.index, intervals, strict=True)),
        (step, f"batch: {result.batch}", f"measured {times}"),
        tuple(_sections(result, names)),
        tuple(_notes(result)),
    )


def _known(result: ArchitectureComparison, metric: _Metric) -> dict[str, float]:
    """Return a metric's values, in ascending order, for the architectures where all of its parts are known."""
    sums = result.table[list(metric.parts)].sum(axis=1, skipna=False)
    return {str(name): float(value) for name, value in sums.dropna().sort_values(kind="stable").items()}


def _verdict(result: ArchitectureComparison, timed: Mapping[str, float]) -> Verdict:
    """Describe which architecture is fastest, by how much, and where the slowest one spends its time."""
    step = "training step" if result.training else "inference step"
    (fastest, *others), short = timed, [_short(name) for name in timed]
    took = f"{fmt.duration(timed[fastest])} per {step}"
    if not others:
        return Verdict("none", f"{short[0]} takes {took}")
    pairs = [_against(result, fastest, name) for name in others]
    if pairs[-1].verdict not in _DIFFERENT:
        if all(pair.verdict == "same" for pair in pairs):
            within = fmt.share(result.equal_within)
            return Verdict("none", f"{_listed(short)} take the same time within {within}, {took}")
        return Verdict("open", f"No difference in time is detectable between {_listed(short)}, about {took}")
    alike = [name for name, pair in zip(short[1:], pairs, strict=True) if pair.verdict not in _DIFFERENT]
    first = f"{short[0]} is the fastest at {took}"
    if alike:
        first = f"{_listed([short[0], *alike])} are the fastest at {took}, with no detectable difference"
    effect = fmt.with_interval(fmt.ratio(pairs[-1].ratio), pairs[-1].ratio, pairs[-1].interval)
    return Verdict("none", f"{first}; {short[-1]} takes {effect} as long", _why(result, fastest, others[-1]))


def _short(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _against(result: ArchitectureComparison, baseline: str, name: str) -> Effect:
    """Return how an architecture's time compares with the baseline's, regardless of the order of the pair."""
    row = result.ratios[result.ratios[["a", "b"]].isin([baseline, name]).all(axis=1)].iloc[0]
    ratio, bounds, verdict = float(row["ratio"]), fmt.known_bounds((row["ci_low"], row["ci_high"])), row["verdict"]
    if row["a"] == name:
        ratio, bounds = 1 / ratio, bounds and (1 / bounds[1], 1 / bounds[0])
        verdict = {"faster": "slower", "slower": "faster"}.get(verdict, verdict)
    if verdict != "inconclusive" or bounds is None:
        return Effect(name, ratio, bounds, verdict)
    largest = fmt.share(max(abs(end - 1) for end in bounds))
    detail = f"No difference is detectable, but one of up to {largest} is possible."
    return Effect(name, ratio, bounds, verdict, detail)


def _why(result: ArchitectureComparison, fastest: str, slowest: str) -> str:
    """Describe where the slowest architecture spends more time than the fastest."""
    more = [(times[slowest] - times[fastest], mark.word) for mark, times in part_times(result, "kind")]
    changes = ", ".join(
        f"{word} {'−' if ms < 0 else '+'}{fmt.duration(abs(ms))}" for ms, word in sorted(more, reverse=True) if ms
    )
    total = fmt.duration(sum(ms for ms, _ in more))
    return f"{_short(slowest)} takes {total} more per step than {_short(fastest)}, by kind of layer: {changes}."


def part_times(result: ArchitectureComparison, by: str) -> list[tuple[Mark, dict[str, float]]]:
    """Return the milliseconds of each part in the measured architectures, without parts that take no time.

    The parts are kinds of layer (``kind``) or phases (``phase``).
    """
    rows = result.shares[result.shares["by"] == by]
    times = rows.pivot_table("ms", "part", "name", aggfunc="sum", fill_value=0.0, sort=False)
    taken = times[times.gt(0).any(axis=1)].to_dict("index")
    return [
        (palette.KINDS.get(str(part)) or palette.mark(str(part)), {str(name): ms for name, ms in of_names.items()})
        for part, of_names in taken.items()
    ]


def _sections(result: ArchitectureComparison, timed: Sequence[str]) -> Iterator[Section]:
    options = {metric.title: tuple(_option(result, metric)) for metric in _metrics(result)}
    yield Choice("Compare by", {word: sections for word, sections in options.items() if sections})
    yield _costs(result, timed)
    if len(result.ratios) > 1:
        yield _all_pairs(result)


def _option(result: ArchitectureComparison, metric: _Metric) -> Iterator[Section]:
    """Return the bars, ratios and layers for one metric, in ascending order."""
    values = _known(result, metric)
    if not values:
        return
    least, *others = values
    if timed := metric.unit == "ms":
        for by, word in (("kind", "kind of layer"), ("phase", "phase")):
            title = f"Where a step's time goes, by {word}"
            yield Bars(title, "ms", tuple(_stacks(values, part_times(result, by))))
    else:
        whole = Mark(metric.title, palette.SLATE, "█", "solid")
        parts = [
            (_PASSES.get(part, whole), {str(name): size for name, size in result.table[part].items()})
            for part in metric.parts
        ]
        yield Bars(metric.title, metric.unit, tuple(_stacks(values, parts)))
    if others:
        counted = [Effect(name, values[name] / values[least]) for name in others if values[least] > 0]
        rows = [_against(result, least, name) for name in others] if timed else counted
        title, within = f"{metric.title} against {_short(least)}", result.equal_within if timed else None
        yield Effects(title, tuple(rows), within, head="architecture")
    yield from _layers(result, metric, values)


def _stacks(totals: Mapping[str, float], parts: Sequence[tuple[Mark, Mapping[str, float]]]) -> Iterator[Bar]:
    for name, total in totals.items():
        if held := tuple(Part(mark, values[name]) for mark, values in parts if name in values):
            yield Bar(name, held, total)


def _layers(result: ArchitectureComparison, metric: _Metric, totals: Mapping[str, float]) -> Iterator[Table]:
    """Yield the layers of all architectures in a single tree, so that they share one scale."""
    columns = list(metric.layer_parts)
    frames, parents, full = list[pd.DataFrame](), list[int](), list[str]()
    for name, total in totals.items():
        if (layers := result.layers.get(name)) is None or layers[columns].isna().all(axis=None):
            continue
        modules, special = split_layers(layers)
        (labels, above), begin = nested(modules), len(parents)
        frame = pd.concat([modules, special])
        values = frame[columns].astype("Float64").sum(axis=1, min_count=1)
        if metric.unit == "ms":  # shares of a traced step, applied to the timed step
            values *= total
        named = labels if above.count(-1) > 1 else [name, *labels[1:]]  # here, a model is identified by its name
        labels = [*named, *(f"{name} {row}" for row in special.index)]
        kinds = frame["kind"].astype(object).map(palette.KINDS)
        frames.append(pd.DataFrame({"layer": labels, "kind": kinds, "module": frame["module"], "value": values}))
        parents += [parent if parent < 0 else parent + begin for parent in (*above, *[-1] * len(special))]
        full += [str(row) if str(row).startswith(name) else f"{name}: {row}" for row in frame.index]
    heads = {
        "layer": Column("layer"),
        "kind": Column("kind", priority=1, help="of work, according to the layer's own operators"),
        "module": Column("module", priority=2),
        "value": Column(metric.of_layers, metric.unit, bar=True, help="including the layers inside"),
    }
    if frames:
        rows = pd.concat(frames)
        tree = Nesting(parents, rows["value"].fillna(0.0).tolist())
        yield Table.of(f"Layers side by side: {metric.of_layers}", rows, heads, nesting=tree, noun="layer", names=full)


def _costs(result: ArchitectureComparison, timed: Sequence[str]) -> Table:
    """Return all known costs of each architecture, starting with the fastest."""
    columns = {
        "name": Column("architecture"),
        ("median_ms", "ci_low_ms", "ci_high_ms"): Column("step time", "ms"),
        "throughput_per_s": Column("throughput", "samples/s", 1),
        "step_flops": Column("FLOPs", "flops", 2, help="of a step, both passes"),
        "achieved_flops_per_s": Column("achieved", "flops/s", 2),
        "peak_bytes": Column("peak memory", "bytes", 1),
        "activation_bytes": Column("saved", "bytes", 3, help="for backward"),
        "parameters": Column("parameters", "count", 2),
        "parameter_bytes": Column("their memory", "bytes", 4, help="of the parameters"),
        "intensity": Column("FLOP/B", "number", 4, help="FLOPs per byte moved"),
        "launches_or_ops": Column("launched", "count", 4, help="kernels, or ops where there are none"),
    }
    names = [*timed, *(name for name in result.table.index if name not in timed)]
    table = result.table.assign(step_flops=pd.Series(_known(result, _metrics(result)[2]), dtype="Float64"))
    shown = table.loc[names].rename_axis("name").reset_index()
    return Table.of("What each architecture costs", shown, columns, noun="architecture")


def _all_pairs(result: ArchitectureComparison) -> Table:
    """Return all pairs, starting with those that differ the most."""
    columns = {
        "b": Column("candidate"),
        "a": Column("baseline"),
        ("ratio", "ci_low", "ci_high"): Column(
            "ratio", "ratio", help="time of the candidate, divided by the baseline's"
        ),
        "verdict": Column("verdict"),
        "p_holm": Column("p", "number", 2, help="corrected for the number of pairs (Holm)"),
        "smallest_detectable": Column("detectable", "share", 3, help="the smallest difference that would be detected"),
    }
    ratios = result.ratios.astype({"ratio": "Float64"})
    pairs = ratios.sort_values("ratio", key=lambda ratio: -np.abs(np.log(ratio)), kind="stable")
    return Table.of("Every pair", pairs, columns, noun="pair")


def _notes(result: ArchitectureComparison) -> Iterator[str]:
    if (pairs := len(result.ratios)) > 1:
        yield (
            f"Intervals of ratios (95 %) hold simultaneously for all {pairs} pairs, and verdicts are corrected for the "
            "number of pairs."
        )
    yield "The times of kinds, phases and layers are their shares of a traced step, applied to the timed step."
    yield from result.notes
