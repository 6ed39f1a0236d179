"""Results of each room as documents, over which the contracts of `tests/draw/test_document_renderers.py` run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perfnb.draw.as_text import document_text
from perfnb.draw.document import Document

#: A name that is markup, ends scripts, reverses text, moves a terminal's cursor and is long and wide.
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\x1b[31m\u202e\n\u2028" + "层é" * 90


def texts(documents: Mapping[str, Callable[[], Document]]) -> str:
    """Return each sample without a hostile name, for a golden text of its room: the verdict's state, and the text."""
    shown = {name: made() for name, made in documents.items() if "hostile" not in name}
    return "\n\n".join(_shown(name, document) for name, document in shown.items()) + "\n"


def _shown(name: str, document: Document) -> str:
    state = document.verdict.state if document.verdict is not None else "no verdict"
    return f"### {name} ({state})\n\n{document_text(document, 100)}"
