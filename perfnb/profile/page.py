"""A report as one HTML file that needs nothing else: no network, no kernel, no other file."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from perfnb.draw import escape
from perfnb.draw.assets import report_script, report_style
from perfnb.profile.html import summary_html
from perfnb.profile.report_data import layer_rows, report_data
from perfnb.profile.summary import Summary
from perfnb.ranks.view import ranks_count
from perfnb.ranks.summary import RanksSummary
from perfnb.ranks.view import ranks_html
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
_PAGE_STYLE = (
    ":root{color-scheme:light dark;--pf-page:#fff}"
    "@media (prefers-color-scheme:dark){:root{--pf-page:#16181d}}"
    "body{margin:0;background:var(--pf-page);font-family:system-ui,sans-serif}"
    "h1{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}"
    "main{max-width:1480px;margin:0 auto;padding:20px clamp(8px,2vw,32px) 48px}"
)


def standalone_page(summary: Summary, timeline: Timeline | None = None) -> str:
    """The report as a self-contained HTML document, which works from a file and without scripts too.

    Its content security policy lets the report's own script run and nothing else: no other script, no event
    handler in markup, no request.
    """
    watched = summary.machine is not None
    gpu = summary.gpu is not None
    script = report_script(watched, gpu) + _START
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    packed, facts = b"", None
    if timeline is not None:
        packed, facts = timeline_bytes(timeline, layer_rows(summary, timeline.layers), PAGE_BYTES)
    data = escape.json_in_script(report_data(summary, _REPORT_ID, facts))
    body = (
        f'<div class="perfnb-static-{_REPORT_ID}">{summary_html(summary, timeline)}</div>\n'
        '<div id="perfnb-report"></div>\n</main>\n'
        f'<script type="application/json" id="perfnb-data">{data}</script>\n'
        '<script type="application/octet-stream" id="perfnb-timeline">'
        f"{base64.b64encode(packed).decode()}</script>\n"
        f'<script type="module">{script}</script>\n'
    )
    return _document(summary.name, policy, report_style(watched, gpu), body)


def page_of_ranks(summary: RanksSummary) -> str:
    """Several ranks as a self-contained HTML document without scripts."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return _document(ranks_count(len(summary.names)), policy, "", f"{ranks_html(summary)}</main>\n")


def _document(title: str, policy: str, style: str, body: str) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape.html(title)} · perfnb</title>\n"
        f"<style>{_PAGE_STYLE}{style}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape.html(title)}</h1>\n{body}</body>\n</html>\n"
    )


def static_page(title: str, body: str) -> str:
    """Static HTML as a document of its own, whose content security policy lets nothing run and nothing be asked for.

    Parameters
    ----------
    title : str
        It may quote names.
    body : str
        HTML already.
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return _document(title, policy, "", f"{body}\n</main>\n")
