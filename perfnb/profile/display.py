"""Display a report as a live view, as static HTML in a saved notebook, as text, or as a separate HTML page."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perfnb.draw.as_text import document_text
from perfnb.draw.documented import document_bundle, usual_width
from perfnb.draw.live import document_page
from perfnb.draw.shown import show_live
from perfnb.profile.report import Report, report_document
from perfnb.shell import in_notebook, print_text
from perfnb.timeline.data import PAGE_BYTES, bytes_of_report, timeline_bytes

if TYPE_CHECKING:
    from perfnb.profile.kept_step import KeptStep
    from perfnb.profile.summary import Summary
    from perfnb.timeline.timeline import Timeline

#: A weak reference to the method that creates a timeline.
Again = Callable[[], Callable[[], "Timeline | None"] | None]


def show(
    summary: Summary, timeline: Timeline | None = None, again: Again | None = None, kept: KeptStep | None = None
) -> None:
    """Display the report with its timeline, if there is one.

    Notebooks display a live view and a static copy. Elsewhere, the report is printed as text. If the timeline is long,
    the live report contains only a coarser version, and `again` provides the rest on request. The findings' levers can
    be tried on the step in `kept`.
    """
    if not in_notebook():
        print_text(document_text(report_document(summary, timeline), usual_width()))
        return
    rows = [] if timeline is None else _layer_rows(summary, timeline)
    saved, facts = bytes_of_report(timeline, rows)
    document = report_document(summary, timeline, facts)

    def whole() -> bytes | None:
        timeline_of = None if again is None else again()
        made = None if timeline_of is None else timeline_of()
        return None if made is None else timeline_bytes(made, rows, PAGE_BYTES)[0]

    def widget(view_id: str) -> Any:
        from perfnb.profile.widget import ReportWidget

        return ReportWidget(document, view_id, saved, whole if facts is not None and not facts["whole"] else None, kept)

    show_live(document_bundle(document), widget)


def _layer_rows(summary: Summary, timeline: Timeline) -> list[int]:
    """Return the row of each timeline layer in the table of layers, or -1 if the table does not contain the layer."""
    places = Report(summary).layer_places
    return [places.get(name, -1) for name in timeline.layers]


def standalone_page(summary: Summary, timeline: Timeline | None = None) -> str:
    """Return the report as a self-contained HTML document, which works offline and even without scripts."""
    packed, facts = b"", None
    if timeline is not None:
        packed, facts = timeline_bytes(timeline, _layer_rows(summary, timeline), PAGE_BYTES)
    return document_page(report_document(summary, timeline, facts), packed)
