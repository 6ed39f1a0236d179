"""A host profile as a page of its own: its flame graph, and the static twin where scripts do not run."""

from __future__ import annotations

from typing import Any

from perfnb.draw import escape
from perfnb.draw.assets import script, style
from perfnb.draw.frame import live_page, static_page

_START = """
const data = document.getElementById("perfnb-data").textContent;
flameHost.render({ model: { get: () => data }, el: document.getElementById("perfnb-view") });
"""


def page_of(title: str, twin: str, data: dict[str, Any]) -> str:
    """Return a view and its twin as a document."""
    if data["flame"] is None:
        return static_page(title, twin)
    body = f'<div class="perfnb-static-{data["id"]}">{twin}</div>\n<div id="perfnb-view"></div>'
    rest = f'<script type="application/json" id="perfnb-data">{escape.json_in_script(data)}</script>\n'
    return live_page(title, style("flame/js/flame.css"), body, rest, script("flame/js/host.js") + _START)
