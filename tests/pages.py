"""Helpers for tests of pages without scripts."""

from __future__ import annotations

from perfnb.draw.frame import live_page


def static_page(title: str, body: str) -> str:
    """Return a complete page that contains HTML without scripts."""
    return live_page(title, "", body, "", "")


def spaced(page: str) -> str:
    """Return the page with all kinds of spaces replaced with a single kind."""
    return page.replace("\u00a0", " ")
