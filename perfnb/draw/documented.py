"""Results that describe themselves as a document."""

from __future__ import annotations

from typing import Any

from perfnb.draw.as_html import document_html
from perfnb.draw.as_text import USUAL, document_line, document_text, terminal_width
from perfnb.draw.document import Document
from perfnb.draw.live import document_page
from perfnb.draw.shown import Page, ShownLive
from perfnb.shell import in_notebook


class Documented(Page, ShownLive):
    """Mixin of results that have one description, from which every way of showing them follows."""

    def _document(self) -> Document:
        raise NotImplementedError

    def _line(self) -> str:
        return document_line(self._document())

    def _text(self, width: int | None = None) -> str:
        return document_text(self._document(), width or (USUAL if in_notebook() else terminal_width()))

    def _html(self) -> str:
        return document_html(self._document())

    def _widget(self, view_id: str) -> Any:
        from perfnb.draw.widget import DocumentWidget

        return DocumentWidget(self._document(), view_id)

    def _page(self) -> str:
        return document_page(self._document())
