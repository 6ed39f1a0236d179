"""Show a watch as a document: the resources that were used up, the history of each metric, and figures for the whole
watch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from perfnb import quantities as fmt
from perfnb.draw import palette
from perfnb.draw.document import (
    Axis,
    Budget,
    Column,
    Document,
    Figure,
    Line,
    Picture,
    Section,
    Series,
    Table,
    Value,
    Verdict,
)
from perfnb.telemetry.metrics import METRIC_WORDS, document_unit
from perfnb.watching.charts import device_word, on_grid
from perfnb.watching.data import bands_of, history_data, lasted, line_mark, watch_facts
from perfnb.watching.saturation import Saturation, cpu_limit_of, figure_of, memory_limit_of, saturations

if TYPE_CHECKING:
    from perfnb.watching.summary import MachineSummary, StepsWatched

#: The maximum number of points on a line in static charts, and the number of rows in the tables.
_POINTS, _ROWS = 240, Budget(40, 60)
#: The maximum number of GPUs that each have their own figure in the headline.
_FEW_GPUS = 2
#: The axis of a chart includes its ceiling if the readings reach this share of it.
_NEAR_CEILING = 0.6


def watch_document(summary: MachineSummary, kind: str = "watch") -> Document:
    """Return the document about a watch, which shows the resources that were used up and the history.

    Parameters
    ----------
    summary : MachineSummary
    kind : str
        ``machine`` if the watch is part of a profile.
    """
    state = "watching" if summary.running else "watched"
    return Document(
        kind,
        "" if kind == "machine" else "the machine",
        ", ".join(filter(None, _gpu_names(summary))),
        verdict=_verdict(summary),
        figures=tuple(_figures(summary)),
        facts=(f"{state} for {lasted(summary.duration_s)}", *watch_facts(summary)),
        sections=tuple(_sections(summary)),
        notes=(*summary.absent, *summary.notes, *_reading_notes(summary)),
    )


def _verdict(summary: MachineSummary) -> Verdict:
    found = list(saturations(summary))
    if summary.table.empty:
        return Verdict("open", "No readings yet" if summary.running else "No readings")
    if not found:
        levels = ", ".join(_levels(summary))
        return Verdict("good", f"Nothing saturated: {levels}" if levels else "None of the metrics is saturated")
    kinds = groupby(found, lambda shortage: shortage.kind)
    (first, advice), *others = [_answer(summary, kind, list(same)) for kind, same in kinds]
    return Verdict("bad", first, " ".join(f"{sentence}." for sentence, _ in others), advice)


def _levels(summary: MachineSummary) -> Iterator[str]:
    """Yield phrases about how much of each resource was used."""
    for device in ("cgroup", "host"):
        used, limit = figure_of(summary, device, "cpu_percent"), cpu_limit_of(summary, device)
        if used is not None and limit:
            yield f"CPU {fmt.share(used / 100)} of {fmt.share(limit / 100)}"
            break
    busy = [value for _, value in _busy(summary)]
    if busy:
        yield f"GPU{'s' * (len(busy) > 1)} busy {_range(busy)}"
    for device in ("cgroup", "host", *_gpus(summary)):
        used, limit = figure_of(summary, device, "memory_bytes", "max"), memory_limit_of(summary, device)
        if used is not None and limit:
            yield f"memory {_of(device, used, limit)}"
            break


def _answer(summary: MachineSummary, kind: str, found: Sequence[Saturation]) -> tuple[str, str]:
    """Return a sentence about a shortage of one kind of resource, and a recommendation."""
    first = found[0]
    if kind == "starved":
        gpus = len(_gpus(summary))
        name = "GPU" if gpus == 1 else f"{len(found)} of {gpus} GPUs"
        yours = "" if first.own is None else f", while you used {fmt.share(first.own / 100)} CPU"
        sentence = f"{name} starved: busy for {_range([one.used for one in found])} of the time{yours}"
        return sentence, "Profile a step with %%profile_step to see what the GPU waits for."
    if kind == "memory":
        places = "; ".join(
            _of(one.device, one.used, one.limit) + ("" if one.own is None else f", you {fmt.size(one.own)}")
            for one in found
        )
        return f"Memory near its limit: {places}", "Use smaller batches or fewer workers, or stop other processes."
    used, limit = fmt.share(first.used / 100), fmt.share(first.limit / 100)
    you = "" if first.own is None else f", you {fmt.share(first.own / 100)}"
    if first.device == "cgroup":
        paused = figure_of(summary, "cgroup", "throttled_percent")
        stopped = f", which paused it for {fmt.share(paused / 100)} of the time" if paused else ""
        advice = "Raise the container's CPU limit, or use fewer threads and workers."
        return f"CPU limit of the cgroup reached: {used} of {limit}{stopped}", advice
    if first.own is not None and first.own < first.used / 2:
        advice = "Stop other processes, or measure when the machine is idle."
        return f"CPU saturated by others: host {used}{you}", advice
    return f"CPU saturated: host {used} of {limit}{you}", "Profile a step to see which part of it needs the CPU."


def _of(device: str, used: float, limit: float) -> str:
    whose = {"cgroup": " (cgroup)", "host": ""}.get(device, f" ({device_word(device, {})})")
    return f"{fmt.size(used)} of {fmt.size(limit)}{whose}"


def _gpus(summary: MachineSummary) -> list[str]:
    return [device for device in summary.facts if device.startswith("gpu")]


def _gpu_names(summary: MachineSummary) -> dict[str, None]:
    return dict.fromkeys(str(summary.facts[gpu].get("name") or "") for gpu in _gpus(summary))


def _busy(summary: MachineSummary) -> list[tuple[str, float]]:
    busy = [(gpu, figure_of(summary, gpu, "busy_percent")) for gpu in _gpus(summary)]
    return [(gpu, value) for gpu, value in busy if value is not None]


def _range(percents: Sequence[float]) -> str:
    ends = [fmt.share(end / 100) for end in (min(percents), max(percents))]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def _figures(summary: MachineSummary) -> Iterator[Figure]:
    busy = _busy(summary)
    for gpu, percent in busy if len(busy) <= _FEW_GPUS else ():
        yield Figure(f"{device_word(gpu, {})} busy", percent / 100, "share", basis="median")
    limit = cpu_limit_of(summary, "host")
    of = "median" if limit is None else f"median, of {fmt.share(limit / 100)}"
    for device, basis in (("process", "median"), ("host", of)):
        if (used := figure_of(summary, device, "cpu_percent")) is not None:
            yield Figure(f"CPU of the {device}", used / 100, "share", basis=basis)
    if (most := figure_of(summary, "process", "memory_bytes", "max")) is not None:
        yield Figure("memory of the process", most, "bytes", basis="most")


def _sections(summary: MachineSummary) -> Iterator[Section]:
    if summary.charts:
        yield Picture(
            "machine",
            "Readings over time",
            data=partial(history_data, summary),
            script="watching/js/machine.js",
            style="watching/js/watch.css",
            key="machine",
            static=tuple(watch_series(summary)),
        )
    if summary.steps is not None:
        yield from _by_phase(summary, summary.steps)
    names, figures = summary.table.index.tolist(), summary.table.to_dict("records")
    rows = [_row(summary, device, metric, row) for (device, metric), row in zip(names, figures, strict=True)]
    heads = ("median", "95th percentile", "maximum", "total")
    yield _metrics("Over the whole watch", heads, rows)
    if bands := bands_of(summary):
        times = (Column("from", "ms"), Column("lasted", "ms"))
        columns = (Column("name"), Column("inside"), *times, Column("steps", priority=1))
        marks = _mark_rows(bands)
        title, marks = ("Marks, newest first", marks[::-1]) if summary.steps is None else ("Passes and marks", marks)
        yield Table(title, columns, marks, noun="mark")


def _metrics(title: str, heads: Iterable[str], rows: Sequence[tuple[Any, ...]]) -> Table:
    columns = (Column("device"), Column("metric"), *(Column(head, "number") for head in heads))
    return Table(title, columns, rows, budget=_ROWS, noun="metric")


def watch_series(summary: MachineSummary) -> Iterator[Series]:
    """Yield a chart of each metric over time."""
    if not summary.charts:
        return
    times, values = on_grid(summary.samples, summary.charts, summary.interval_s, _POINTS)
    for chart in summary.charts:
        unit, factor = document_unit(chart.lines[0].column)
        lines = [
            Line(line_mark(chart, line), [fmt.known(factor * value) for value in values[line.device, line.column]])
            for line in chart.lines
        ]
        most = float(np.nanmax([values[line.device, line.column] for line in chart.lines]))
        title, levels = chart.title, dict[str, float]()
        if chart.ceiling is not None and most >= _NEAR_CEILING * chart.ceiling:
            levels = {chart.ceiling_word: chart.ceiling * factor}
        elif chart.ceiling is not None:
            title += f" ({chart.ceiling_word}: {fmt.reading(chart.ceiling, chart.unit)})"
        yield Series(title, Axis("time", "ms"), Axis("", unit), (1e3 * times).tolist(), tuple(lines), levels)


def _value(column: str, number: Any) -> Value:
    unit, factor = document_unit(column)
    return Value(fmt.known(factor * number), unit)


def _row(summary: MachineSummary, device: str, metric: str, row: Any) -> tuple[Any, ...]:
    """Return the figures for a metric, leaving out figures that would not be meaningful."""
    if metric == "energy_j":
        joules, uncertainty = fmt.known(row["total"]), fmt.known(row["uncertainty"]) or 0.0
        bounds = None  # an interval whose bounds round to the value is not informative
        if joules is not None and uncertainty > 0.005 * joules:
            bounds = joules - uncertainty, joules + uncertainty
        return *_names(summary, device, metric), "", "", "", Value(joules, "joules", bounds)
    total = Value(fmt.known(row["total"]), "bytes") if metric.endswith("_per_s") else ""
    figures = (_value(metric, row[figure]) for figure in ("median", "p95", "max"))
    return *_names(summary, device, metric), *figures, total


def _names(summary: MachineSummary, device: str, metric: str) -> tuple[str, str]:
    """Return the names of a device and a metric. GPU names are only included if the GPUs are different."""
    name = summary.words.get(device, device) if len(_gpu_names(summary)) > 1 else device_word(device, {})
    return name, METRIC_WORDS[metric]


def _mark_rows(bands: Sequence[tuple[str, int, float, float | None, str]]) -> list[tuple[Any, ...]]:
    """Return the rows of the table of marks, sorted by the starts of the marks, each with its enclosing mark."""
    rows: list[tuple[Any, ...]] = []
    around: list[str] = []
    for name, depth, start, end, more in sorted(bands, key=lambda band: (band[2], band[1])):
        around[depth:] = [name]
        inside = around[depth - 1] if 0 < depth < len(around) else ""
        took = "still running" if end is None else 1e3 * max(0.0, end - start)
        rows.append((name, inside, 1e3 * start, took, more))
    return rows


def _by_phase(summary: MachineSummary, steps: StepsWatched) -> Iterator[Section]:
    """Yield a table of the mean of each metric in each phase, without phases and metrics that have no means."""
    means = steps.by_phase["mean"].dropna()
    phases = [name for name in steps.by_phase.index.unique("phase") if name in means.index.unique("phase")]
    if not phases:
        return
    rows: list[tuple[Any, ...]] = []
    for index, own in means.groupby(["device", "metric"], sort=False):
        device, metric = map(str, index)
        known = own.droplevel(["device", "metric"]).reindex(phases)
        rows.append((*_names(summary, device, metric), *(_value(metric, mean) for mean in known)))
    yield _metrics("Mean in each phase", [palette.mark(name).word for name in phases], rows)


def _reading_notes(summary: MachineSummary) -> Iterator[str]:
    """Yield notes that explain the charts and the tables."""
    steps = summary.steps
    if steps is not None and len(steps.by_phase):
        few = "Phases with too few readings do not have a mean"
        if steps.by_phase["mean"].isna().all():
            few = "No phase has enough readings for a mean"
        yield f"{few}, and rates such as CPU require phases that are longer than the reading interval."
        if steps.phases["placed"].any():
            yield "The phases of untraced steps are estimated from the traced steps."
    yield from (f"{chart.title}: {chart.note}." for chart in summary.charts if chart.note)
