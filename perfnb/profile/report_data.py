"""The data behind the report in the browser: short columns of numbers and names, ready for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from perfnb import quantities as fmt
from perfnb.draw import escape, palette
from perfnb.profile.layers import layer_ops_data
from perfnb.profile.noise import notes_of
from perfnb.profile.report import Report, tabs
from perfnb.profile.summary import Summary


def report_data(
    summary: Summary, report_id: str = "report", timeline: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return everything that the browser shows, ready for JSON; unknown figures are ``None``.

    Parameters
    ----------
    summary : Summary
    report_id : str
        Links the live report to its static twin, whose class is ``perfnb-static-<report_id>``.
    timeline : mapping, optional
        Facts about the timeline, which is sent separately; see `perfnb.timeline.data.timeline_bytes`.
    """
    timing = summary.timing
    report = Report(summary, timeline_facts=timeline)
    shown = [(tab, tab.data(part)) for tab, part in report.shown() if tab.data]
    drawn = [(tab, data) for tab, data in shown if data is not None]
    places = report.layer_places
    return {
        "id": report_id,
        "name": escape.plain(summary.name),
        "device": escape.plain(summary.device),
        "source": None if summary.source is None else escape.plain(summary.source),
        "step": {
            "median_ms": _exact(timing.median_ms if timing.steps else None),
            "ci_ms": [_exact(bound) for bound in timing.ci_ms] if timing.steps and timing.ci_ms else None,
            "samples_ms": [fmt.short(ms) for ms in timing.samples_ms[:500]],
            "steps": timing.steps,
            "basis": timing.basis,
            "throughput_per_s": _exact(timing.throughput_per_s if timing.steps else None),
            "batch_size": timing.batch_size,
            "traced_ms": _exact(summary.traced_ms),
            "until_gpu_ms": _exact(summary.until_gpu_ms),
            "slowdown": _exact(summary.slowdown),
            "executed": [[fmt.PASS_WORDS.get(name, escape.plain(name)), n] for name, n in summary.executed.items()],
        },
        "phases": [
            {
                "word": escape.plain(mark.word),
                "colour": mark.colour,
                "pattern": mark.pattern,
                "ms": fmt.short(row["ms"]),
                "share": fmt.short(row["share"]),
            }
            for mark, row in ((palette.mark(str(name)), row) for name, row in summary.phases.iterrows())
        ],
        "tabs": [[tab.key, tab.title] for tab, _ in drawn],
        **{tab.key: None for tab in tabs()},
        **{tab.key: data for tab, data in drawn},
        "layer_ops": layer_ops_data(summary, places, report.op_places),
        "hot_path": [places[name] for name in map(str, summary.hot_path) if name in places],
        "notes": [escape.plain(note, 2000) for note in notes_of(summary)],
    }


def layer_rows(summary: Summary, names: Iterable[str]) -> list[int]:
    """Return the row of each layer in the report; -1 if it has none."""
    places = Report(summary).layer_places
    return [places.get(name, -1) for name in names]


def _exact(value: Any) -> float | None:
    """A headline figure, with more digits, since the browser rounds it again."""
    return fmt.short(value, 9)
