"""Documents as live views, drawn by one script: what a widget needs for that, and pages of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from perfnb.draw import escape
from perfnb.draw.as_html import document_html
from perfnb.draw.as_json import document_data
from perfnb.draw.assets import script, style
from perfnb.draw.document import Choice, Document, Picture, Section
from perfnb.draw.frame import live_page

#: What draws a document, after the scripts of its pictures.
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
    """Return what the script draws."""
    return {"id": view_id, **document_data(document)}


def assets_of(document: Document, more: Iterable[tuple[str, str]] = ()) -> tuple[str, str]:
    """Return the module that draws a document with its pictures, and their style sheet; `more` are pairs of paths."""
    pictures = [(part.script, part.style) for part in _sections(document) if isinstance(part, Picture)]
    names, styles = (dict.fromkeys(filter(None, paths)) for paths in zip(*pictures, *more, ("", ""), strict=True))
    return script(*names, _SCRIPT) + "export default documentWidget;\n", style(_STYLE, *styles)


def _sections(document: Document) -> Iterator[Section]:
    for part in (document, *document.tabs):
        for section in part.sections:
            yield section
            if isinstance(section, Choice):
                yield from chain.from_iterable(section.options.values())


def document_page(document: Document, binary: str = "") -> str:
    """Return a document as a self-contained page, which shows its static form where scripts do not run.

    Parameters
    ----------
    document : Document
    binary : str
        Script elements of bytes that its pictures draw.
    """
    module, css = assets_of(document)
    data = escape.json_in_script(live_data(document, _PAGE_ID))
    body = f'<div class="perfnb-static-{_PAGE_ID}">{document_html(document)}</div>\n<div id="perfnb-view"></div>'
    rest = f'<script type="application/json" id="perfnb-data">{data}</script>\n{binary}'
    module = module.replace("export default documentWidget;\n", "") + _START
    return live_page(document.subject or document.kind, css, body, rest, module)
