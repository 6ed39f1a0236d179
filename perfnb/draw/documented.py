"""Provide the base class of results that are described by a document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfnb.draw.as_html import document_html
from perfnb.draw.as_text import USUAL, document_line, document_text, terminal_width
from perfnb.draw.document import Document
from perfnb.draw.live import document_page
from perfnb.draw.shown import Bundle, show_live
from perfnb.files import write_text
from perfnb.shell import in_notebook, print_text


class Documented:
    """Mixin for results that are described by one document, from which every representation is rendered."""

    def _document(self) -> Document:
        raise NotImplementedError

    def _line(self) -> str:
        return document_line(self._document())

    def _page(self) -> str:
        return document_page(self._document())

    def __str__(self) -> str:
        return self._text()

    def _text(self, width: int | None = None) -> str:
        return document_text(self._document(), width or usual_width())

    def __repr__(self) -> str:
        return f"<perfnb.{type(self).__name__}: {self._line()}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Bundle:
        return document_bundle(self._document())

    def _ipython_display_(self) -> None:
        if not in_notebook():
            print_text(self._text())
            return
        document = self._document()

        def widget(view_id: str) -> Any:
            from perfnb.draw.widget import DocumentWidget

            return DocumentWidget(document, view_id)

        show_live(document_bundle(document), widget)

    def to_html(self, path: str | Path) -> Path:
        """Write the whole document to a single self-contained HTML file.

        Raises
        ------
        RecordingError
            If the file cannot be written.
        """
        return write_text(self._page(), path)


def usual_width() -> int:
    """Return the default width of text: the terminal's width, or a width that fits most notebooks."""
    return USUAL if in_notebook() else terminal_width()


def document_bundle(document: Document) -> Bundle:
    """Render a document in the two forms that a notebook saves: text, and HTML without scripts."""
    return {"text/plain": document_text(document, usual_width()), "text/html": document_html(document)}
