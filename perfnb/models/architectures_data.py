"""What the comparison of architectures shows: metrics, marks and sentences, and the payload of its live view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, palette
from perfnb.draw.palette import GREY, Mark
from perfnb.draw.tree import build_tree, split_layers

if TYPE_CHECKING:
    from perfnb.models.architecture_figures import ArchitectureFigures

#: How the time is split up, in words, and how each part is drawn.
SHARED_BY: Mapping[str, tuple[str, Mapping[str, Mark]]] = {
    "kind": ("kind of layer", palette.KINDS),
    "phase": ("phase", palette.MARKS),
}

_LAYER_COLUMNS = ("forward_ms", "backward_ms", "recompute_ms", "total_ms", "self_ms", "share")
_NOWHERE = -1


@dataclass(frozen=True)
class Metric:
    """A column of the table to show: its label, number format, and the columns of its interval."""

    word: str
    form: str
    bounds: tuple[str, str] | None = None


#: Metrics by column of the table; ``step_flops`` is the sum of both passes.
METRICS: Mapping[str, Metric] = {
    "median_ms": Metric("step time", "duration", ("ci_low_ms", "ci_high_ms")),
    "throughput_per_s": Metric("throughput", "rate"),
    "step_flops": Metric("FLOPs per step", "flops"),
    "forward_flops": Metric("FLOPs, forward", "flops"),
    "backward_flops": Metric("FLOPs, backward", "flops"),
    "achieved_flops_per_s": Metric("achieved FLOP/s", "flop_rate"),
    "intensity": Metric("FLOP per byte moved", "intensity"),
    "peak_bytes": Metric("peak memory", "size"),
    "activation_bytes": Metric("saved for backward", "size"),
    "parameters": Metric("parameters", "count"),
    "parameter_bytes": Metric("parameter memory", "size"),
    "launches_or_ops": Metric("kernels or ops launched", "count"),
}


def architectures_data(figures: ArchitectureFigures, view_id: str = "architectures") -> dict[str, Any]:
    """The payload of the live view; unknown figures are ``None``.

    Parameters
    ----------
    figures : ArchitectureFigures
    view_id : str
        Links the live view to its static twin, whose class is ``perfnb-static-<view_id>``.
    """
    names = [str(name) for name in figures.table.index]
    return {
        "id": view_id,
        "names": [escape.plain(name) for name in names],
        "facts": comparison_facts(figures),
        "metrics": [
            {
                "key": key,
                "word": metric.word,
                "form": metric.form,
                "values": _numbers(metric_values(figures, key)),
                "bounds": None if metric.bounds is None else [_numbers(figures.table[name]) for name in metric.bounds],
            }
            for key, metric in METRICS.items()
        ],
        "shares": [{"word": word, "parts": _shared(figures, by, marks)} for by, (word, marks) in SHARED_BY.items()],
        "ratios": [
            {
                "pair": [_place(names, row.a), _place(names, row.b)],
                "ratio": _number(row.ratio),
                "told": told_apart(row),
                "words": ratio_words(row, figures.equal_within),
                "p": _number(row.p_holm),
                "detectable": _number(smallest_detectable(row)),
            }
            for row in figures.ratios.itertuples(index=False)
        ],
        "rule": ratio_rule(figures),
        "kinds": [
            {"word": mark.word, "colour": mark.colour, "pattern": mark.pattern} for mark in palette.KINDS.values()
        ],
        "trees": [_tree(figures.layers.get(name)) for name in names],
        "notes": [escape.plain(note, 2000) for note in figures.notes],
    }


def comparison_facts(figures: ArchitectureFigures) -> list[str]:
    """What was compared, where and how often, each in a few words."""
    step = "training step" if figures.training else "inference, forward only"
    times = "once each" if figures.rounds == 1 else f"{figures.rounds:,} times each, interleaved"
    return [step, escape.plain(figures.batch), escape.plain(figures.device), f"measured {times}"]


def metric_values(figures: ArchitectureFigures, key: str) -> list[float | None]:
    """A metric of each architecture, in table order."""
    table = figures.table
    if key != "step_flops":
        return [fmt.known(value) for value in table[key]]
    forward, backward = metric_values(figures, "forward_flops"), metric_values(figures, "backward_flops")
    if not figures.training:
        return forward
    return [None if a is None or b is None else a + b for a, b in zip(forward, backward, strict=True)]


def part_times(figures: ArchitectureFigures, by: str) -> dict[str, list[tuple[float | None, float | None]]]:
    """Milliseconds and share of each part in each architecture, in the order of `SHARED_BY`.

    A part that an architecture lacks takes no time; if it was not measured, all its parts are unknown. Parts that take
    no time anywhere are left out.
    """
    rows = figures.shares[figures.shares["by"] == by]
    known = {
        (str(row.name), str(row.part)): (fmt.known(row.ms), fmt.known(row.share))
        for row in rows.itertuples(index=False)
    }
    measured = {name for name, _ in known}
    order = list(SHARED_BY[by][1])
    taken = {part for (_, part), (ms, _) in known.items() if ms != 0}
    parts = sorted(taken, key=lambda part: order.index(part) if part in order else len(order))
    nothing = {True: (0.0, 0.0), False: (None, None)}
    names = [str(name) for name in figures.table.index]
    return {part: [known.get((name, part), nothing[name in measured]) for name in names] for part in parts}


def part_mark(by: str, part: str) -> Mark:
    """How a part is drawn; an unknown one looks like ``other`` and keeps its name."""
    return SHARED_BY[by][1].get(part) or Mark(escape.plain(part, 40), GREY, "·", "none")


def ratio_words(row: Any, equal_within: float, width: int = 60) -> tuple[str, str, str]:
    """A pair as a sentence in three parts; the second is the figure."""
    a, b = escape.plain(row.a, width), escape.plain(row.b, width)
    ratio, low, high = fmt.known(row.ratio), fmt.known(row.ci_low), fmt.known(row.ci_high)
    if ratio is None:
        return f"{b} against {a}:", fmt.UNKNOWN, "not measured"
    if low is None or high is None:
        return f"{b} takes", fmt.ratio(ratio), f"the time of {a}: too few measurements for an interval"
    verdict = str(row.verdict)
    if verdict == "same":
        verdict = f"the same within {fmt.share(equal_within)}"
    elif verdict == "inconclusive" and not low <= 1 <= high:
        verdict = f"likely {'slower' if ratio > 1 else 'faster'}, but not significant after correction"
    elif verdict == "inconclusive":
        unseen = max(abs(low - 1), abs(high - 1))
        verdict = f"no detectable difference, but one of up to {fmt.share(unseen)} is possible"
    figure = f"{fmt.ratio(ratio)} [{fmt.significant(low)}, {fmt.significant(high)}]"
    return f"{b} takes", figure, f"the time of {a}: {escape.plain(verdict)}"


def told_apart(row: Any) -> bool:
    """Whether the times of a pair differ by its verdict, or at least by its interval."""
    low, high = fmt.known(row.ci_low), fmt.known(row.ci_high)
    aside = low is not None and high is not None and not low <= 1 <= high
    return str(row.verdict) in ("faster", "slower") or (str(row.verdict) == "inconclusive" and aside)


def smallest_detectable(row: Any) -> float | None:
    """The smallest relative difference that the measurements of a pair can detect."""
    return fmt.known(getattr(row, "smallest_detectable", None))


def ratio_rule(figures: ArchitectureFigures) -> str:
    """How to read the sentences about pairs."""
    pairs, same = len(figures.ratios), f"“the same” means within {fmt.share(figures.equal_within)}"
    if pairs < 2:
        return f"Brackets: 95 % interval; {same}."
    return f"Brackets: simultaneous 95 % intervals for all {pairs} pairs; {same}; verdicts are corrected (Holm)."


def _shared(figures: ArchitectureFigures, by: str, marks: Mapping[str, Mark]) -> list[dict[str, Any]]:
    return [
        {
            "word": mark.word,
            "colour": mark.colour,
            "pattern": mark.pattern,
            "ms": _numbers(ms for ms, _ in times),
            "share": _numbers(share for _, share in times),
        }
        for mark, times in ((part_mark(by, part), times) for part, times in part_times(figures, by).items())
    ]


def _tree(layers: pd.DataFrame | None) -> dict[str, Any] | None:
    """A model's layers; ``kind`` is an index into the kinds, -1 for none."""
    if layers is None or not len(layers):
        return None
    modules, special = split_layers(layers)
    rows = pd.concat([modules, special])
    tree = build_tree(modules)
    places = {kind: place for place, kind in enumerate(palette.KINDS)}
    return {
        "label": [escape.plain(label) for label in (*tree.labels, *map(str, special.index))],
        "parent": [*tree.parents, *[_NOWHERE] * len(special)],
        "module": [None if pd.isna(kind) else escape.plain(kind) for kind in rows["module"]],
        "kind": [_NOWHERE if pd.isna(kind) else places.get(str(kind), _NOWHERE) for kind in rows["kind"]],
        "modules": len(modules),
        **{name: _numbers(rows[name]) for name in _LAYER_COLUMNS},
    }


def _place(names: list[str], name: Any) -> int:
    return names.index(str(name)) if str(name) in names else _NOWHERE


def _numbers(values: Iterable[Any]) -> list[float | None]:
    return [_number(value) for value in values]


def _number(value: Any) -> float | None:
    number = fmt.known(value)
    return None if number is None else fmt.rounded(number, 6)
