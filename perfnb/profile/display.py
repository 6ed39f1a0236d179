"""Showing a report where the reader is: live in a notebook, static wherever that is saved, as text elsewhere."""

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

#: Gives what makes a timeline anew, or ``None`` where that is gone: a weak reference to a method.
Again = Callable[[], Callable[[], "Timeline | None"] | None]


def show(summary: Summary, timeline: Timeline | None = None, again: Again | None = None) -> None:
    """Show the report, with its timeline where there is one.

    Of a long timeline the live report holds a coarser level. A page that asks for the rest gets it by `again`.

    In a notebook this makes two outputs. The first is the static twin, text and HTML without scripts, which a
    saved, exported or untrusted notebook still shows. The second is the live report, which hides its twin while
    it stands; where its model is gone, the twin hides the error that the notebook puts in its place. Elsewhere
    the text is printed.
    """
    if not in_notebook():
        print_text(summary_text(summary, timeline=timeline))
        return
    show_live(static_bundle(summary, timeline), lambda report_id: _report(summary, report_id, timeline, again))


def static_bundle(summary: Summary, timeline: Timeline | None = None) -> Bundle:
    """The report as a display bundle of text and HTML."""
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
