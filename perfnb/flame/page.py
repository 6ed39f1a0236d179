"""A host profile as a page of its own: its flame graph, and the static twin where scripts do not run."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from perfnb.draw import escape
from perfnb.draw.assets import script, style
from perfnb.draw.frame import document, static_page

_START = """
const data = document.getElementById("perfnb-data").textContent;
flameHost.render({ model: { get: () => data }, el: document.getElementById("perfnb-view") });
"""


def page_of(title: str, twin: str, data: dict[str, Any]) -> str:
    """Return a view and its twin as a document, whose content security policy allows its own script only."""
    if data["flame"] is None:
        return static_page(title, twin)
    code = script("flame/js/host.js") + _START
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    body = (
        f'<div class="perfnb-static-{data["id"]}">{twin}</div>\n<div id="perfnb-view"></div>\n</main>\n'
        f'<script type="application/json" id="perfnb-data">{escape.json_in_script(data)}</script>\n'
        f'<script type="module">{code}</script>\n'
    )
    return document(title, policy, style("flame/js/flame.css"), body)
