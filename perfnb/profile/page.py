"""The report as one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from perfnb.draw import escape
from perfnb.draw.page import document
from perfnb.profile.html import summary_html
from perfnb.profile.report import report_script, report_style
from perfnb.profile.report_data import layer_rows, report_data
from perfnb.profile.summary import Summary
from perfnb.timeline.data import PAGE_BYTES, timeline_bytes

if TYPE_CHECKING:
    from perfnb.timeline.timeline import Timeline

_REPORT_ID = "page"
_START = """
const holder = document.getElementById("perfnb-report");
const data = document.getElementById("perfnb-data").textContent;
const packed = atob(document.getElementById("perfnb-timeline").textContent);
const bytes = new Uint8Array(packed.length);
for (let i = 0; i < bytes.length; i += 1) bytes[i] = packed.charCodeAt(i);
const timeline = new DataView(bytes.buffer);
report.render({ model: { get: (name) => (name === "timeline" ? timeline : data) }, el: holder });
"""


def standalone_page(summary: Summary, timeline: Timeline | None = None) -> str:
    """Return the report as a self-contained HTML document, which also works offline and without scripts.

    Its content security policy allows the report's own script and nothing else: no other script, no inline event
    handler, no request.
    """
    packed, facts = b"", None
    if timeline is not None:
        packed, facts = timeline_bytes(timeline, layer_rows(summary, timeline.layers), PAGE_BYTES)
    drawn = report_data(summary, _REPORT_ID, facts)
    keys = [key for key, _ in drawn["tabs"]]
    data, script = escape.json_in_script(drawn), report_script(keys) + _START
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    body = (
        f'<div class="perfnb-static-{_REPORT_ID}">{summary_html(summary, timeline)}</div>\n'
        '<div id="perfnb-report"></div>\n</main>\n'
        f'<script type="application/json" id="perfnb-data">{data}</script>\n'
        '<script type="application/octet-stream" id="perfnb-timeline">'
        f"{base64.b64encode(packed).decode()}</script>\n"
        f'<script type="module">{script}</script>\n'
    )
    return document(summary.name, policy, report_style(keys), body)
