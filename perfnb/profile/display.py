"""Display of a report: live in a notebook, static in a saved one, as text elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perfnb.draw.shown import Bundle, show_live
from perfnb.profile.html import summary_html
from perfnb.profile.report_data import layer_rows, report_data
from perfnb.profile.summary import Summary
from perfnb.profile.text import summary_text
from perfnb.shell import in_notebook, print_text
from perfnb.timeline.data import PAGE_BYTES, bytes_of_report, timeline_bytes

if TYPE_CHECKING:
    from perfnb.timeline.timeline import Timeline

#: A weak reference to the method that makes a timeline.
Again = Callable[[], Callable[[], "Timeline | None"] | None]


def show(summary: Summary, timeline: Timeline | None = None, again: Again | None = None) -> None:
    """Show the report with its timeline, if there is one: in a notebook as a static twin and a live view, else as text.

    The live report contains a coarser level of a long timeline; a page that requests the rest gets it through `again`.
    """
    if not in_notebook():
        print_text(summary_text(summary, timeline=timeline))
        return
    show_live(static_bundle(summary, timeline), lambda report_id: _report(summary, report_id, timeline, again))


def static_bundle(summary: Summary, timeline: Timeline | None = None) -> Bundle:
    """Return the report as a display bundle of text and HTML."""
    return {"text/plain": summary_text(summary, timeline=timeline), "text/html": summary_html(summary, timeline)}


def _report(summary: Summary, view_id: str, timeline: Timeline | None, again: Again | None) -> Any:
    from perfnb.profile.widget import ReportWidget

    rows = [] if timeline is None else layer_rows(summary, timeline.layers)
    saved, facts = bytes_of_report(timeline, rows)

    def whole() -> bytes | None:
        timeline_of = None if again is None else again()
        made = None if timeline_of is None else timeline_of()
        return None if made is None else timeline_bytes(made, rows, PAGE_BYTES)[0]

    more = whole if facts is not None and not facts["whole"] else None
    return ReportWidget(report_data(summary, view_id, facts), saved, more)
