"""Results that describe themselves as a document."""

from __future__ import annotations

from perfnb.draw import escape
from perfnb.draw.as_html import document_html, document_page
from perfnb.draw.as_text import USUAL, document_text, terminal_width
from perfnb.draw.document import Document
from perfnb.draw.shown import Page, Shown
from perfnb.shell import in_notebook


class Documented(Page, Shown):
    """Mixin of results that have one description, from which every way of showing them follows."""

    def _document(self) -> Document:
        raise NotImplementedError

    def _line(self) -> str:
        document = self._document()
        return ": ".join(filter(None, (escape.plain(document.subject, 40), escape.plain(document.verdict.sentence))))

    def _text(self) -> str:
        return document_text(self._document(), USUAL if in_notebook() else terminal_width())

    def _html(self) -> str:
        return document_html(self._document())

    def _page(self) -> str:
        return document_page(self._document())
