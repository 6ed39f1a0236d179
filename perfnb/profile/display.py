"""How a report is shown: live in a notebook, static in a saved one, as text elsewhere, or as a page of its own."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perfnb.draw import escape
from perfnb.draw.frame import live_page
from perfnb.draw.shown import Bundle, show_live
from perfnb.profile.report import layer_rows, report_data, report_script, report_style, summary_html, summary_text
from perfnb.shell import in_notebook, print_text
from perfnb.timeline.data import PAGE_BYTES, bytes_of_report, timeline_bytes

if TYPE_CHECKING:
    from perfnb.profile.kept_step import KeptStep
    from perfnb.profile.summary import Summary
    from perfnb.timeline.timeline import Timeline

#: A weak reference to the method that makes a timeline.
Again = Callable[[], Callable[[], "Timeline | None"] | None]

_REPORT_ID = "page"
_START = """
const holder = document.getElementById("perfnb-report");
const data = document.getElementById("perfnb-data").textContent;
const packed = atob(document.getElementById("perfnb-timeline").textContent);
const bytes = new Uint8Array(packed.length);
for (let i = 0; i < bytes.length; i += 1) bytes[i] = packed.charCodeAt(i);
const timeline = new DataView(bytes.buffer);
const parts = { timeline, data };
report.render({ model: { get: (name) => parts[name] }, el: holder });
"""


def show(
    summary: Summary, timeline: Timeline | None = None, again: Again | None = None, kept: KeptStep | None = None
) -> None:
    """Show the report with its timeline, if there is one: in a notebook as a static twin and a live view, else as text.

    The live report contains a coarser level of a long timeline; a page that requests the rest gets it through `again`.
    Its findings can be tried on the step in `kept`.
    """
    if not in_notebook():
        print_text(summary_text(summary, timeline=timeline))
        return
    show_live(static_bundle(summary, timeline), lambda report_id: _report(summary, report_id, timeline, again, kept))


def static_bundle(summary: Summary, timeline: Timeline | None = None) -> Bundle:
    """Return the report as a display bundle of text and HTML."""
    return {"text/plain": summary_text(summary, timeline=timeline), "text/html": summary_html(summary, timeline)}


def _report(
    summary: Summary, view_id: str, timeline: Timeline | None, again: Again | None, kept: KeptStep | None
) -> Any:
    from perfnb.profile.widget import ReportWidget

    rows = [] if timeline is None else layer_rows(summary, timeline.layers)
    saved, facts = bytes_of_report(timeline, rows)

    def whole() -> bytes | None:
        timeline_of = None if again is None else again()
        made = None if timeline_of is None else timeline_of()
        return None if made is None else timeline_bytes(made, rows, PAGE_BYTES)[0]

    more = whole if facts is not None and not facts["whole"] else None
    return ReportWidget(report_data(summary, view_id, facts), saved, more, kept)


def standalone_page(summary: Summary, timeline: Timeline | None = None) -> str:
    """Return the report as a self-contained HTML document, which also works offline and without scripts."""
    packed, facts = b"", None
    if timeline is not None:
        packed, facts = timeline_bytes(timeline, layer_rows(summary, timeline.layers), PAGE_BYTES)
    drawn = report_data(summary, _REPORT_ID, facts)
    keys = [key for key, _ in drawn["tabs"]]
    twin = f'<div class="perfnb-static-{_REPORT_ID}">{summary_html(summary, timeline)}</div>'
    data = (
        f'<script type="application/json" id="perfnb-data">{escape.json_in_script(drawn)}</script>\n'
        '<script type="application/octet-stream" id="perfnb-timeline">'
        f"{base64.b64encode(packed).decode()}</script>\n"
    )
    body, script = f'{twin}\n<div id="perfnb-report"></div>', report_script(keys) + _START
    return live_page(summary.name, report_style(keys), body, data, script)
