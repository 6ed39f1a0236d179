"""What a page without scripts may hold."""

from __future__ import annotations

from perfnb.draw.frame import live_page


def static_page(title: str, body: str) -> str:
    """HTML without scripts as a page of its own."""
    return live_page(title, "", body, "", "")


def spaced(page: str) -> str:
    """Return the page with spaces of one kind only."""
    return page.replace("\u00a0", " ")
