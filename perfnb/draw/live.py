"""Show documents as live views, in a widget or on a separate page. A single script draws all of them."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from perfnb.draw import escape
from perfnb.draw.as_html import document_html
from perfnb.draw.as_json import document_data
from perfnb.draw.assets import script, style
from perfnb.draw.document import Choice, Document, Picture, Section
from perfnb.draw.frame import live_page, script_digest

#: The script that draws a document. It follows the scripts of the document's pictures.
_SCRIPT, _STYLE = "draw/js/document.js", "draw/js/document.css"
_PAGE_ID = "page"
_START = """
const data = document.getElementById("perfnb-data").textContent;
const binary = {};
for (const part of document.querySelectorAll("script[data-trait]")) {
  const packed = atob(part.textContent);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = packed.charCodeAt(i);
  binary[part.dataset.trait] = new DataView(bytes.buffer);
}
const parts = { data, ...binary };
documentWidget.render({ model: { get: (name) => parts[name] }, el: document.getElementById("perfnb-view") });
"""


def live_data(document: Document, view_id: str) -> dict[str, Any]:
    """Return the data from which the script draws the view."""
    return {"id": view_id, **document_data(document)}


def widget_data(document: Document, view_id: str) -> dict[str, Any]:
    """Return the data from which the script draws the view in a notebook, and the data needed to save it as a page.

    ``page`` contains a page with placeholders in braces, the digest of the script to be replaced with the real digest,
    and the end of that script.
    """
    script = "{{script}}"
    template = _page_of(document, "{{css}}", "{{twin}}", "{{data}}", _binary("timeline", "{{timeline}}"), script)
    return {**live_data(document, view_id), "page": [template, script_digest(script), _START]}


def assets_of(document: Document, more: Iterable[tuple[str, str]] = ()) -> tuple[str, str]:
    """Return the module that draws a document with its pictures, and their style sheet. `more` has pairs of paths."""
    pictures = [(part.script, part.style) for part in _sections(document) if isinstance(part, Picture)]
    names, styles = (dict.fromkeys(filter(None, paths)) for paths in zip(*pictures, *more, ("", ""), strict=True))
    return script(*names, _SCRIPT) + "export default documentWidget;\n", style(_STYLE, *styles)


def _sections(document: Document) -> Iterator[Section]:
    for part in (document, *document.tabs):
        for section in part.sections:
            yield section
            if isinstance(section, Choice):
                yield from chain.from_iterable(section.options.values())


def document_page(document: Document, timeline: bytes | None = None) -> str:
    """Return a document as a self-contained page, which shows the static form if scripts do not run.

    Parameters
    ----------
    document : Document
    timeline : bytes, optional
        The packed events for a picture to draw.
    """
    module, css = assets_of(document)
    binary = "" if timeline is None else _binary("timeline", base64.b64encode(timeline).decode())
    data = escape.json_in_script(live_data(document, _PAGE_ID))
    script = module.replace("export default documentWidget;\n", "") + _START
    return _page_of(document, css, document_html(document), data, binary, script)


def _binary(trait: str, packed: str) -> str:
    return f'<script type="application/octet-stream" data-trait="{trait}">{packed}</script>\n'


def _page_of(document: Document, css: str, twin: str, data: str, binary: str, script: str) -> str:
    body = f'<div class="perfnb-static-{_PAGE_ID}">{twin}</div>\n<div id="perfnb-view"></div>'
    rest = f'<script type="application/json" id="perfnb-data">{data}</script>\n{binary}'
    return live_page(document.subject or document.kind, css, body, rest, script)
