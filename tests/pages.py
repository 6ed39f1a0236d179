"""Helpers for tests of pages without scripts."""

from __future__ import annotations

import re

from perfnb.draw.frame import live_page


def static_page(title: str, body: str) -> str:
    """Return a complete page that contains HTML without scripts."""
    return live_page(title, "", body, "", "")


def spaced(page: str) -> str:
    """Return the page with all kinds of spaces replaced with a single kind."""
    return page.replace("\u00a0", " ")


def boxes(picture: str) -> dict[str, list[tuple[float, ...]]]:
    """Return the boxes of each colour: left edge, top edge and width."""
    found = re.findall('<path d="([^"]*)" fill="([^"]*)"', picture)
    place = re.compile(r"M(-?[\d.]+) (-?[\d.]+)h([\d.]+)")
    return {colour: [tuple(map(float, each)) for each in place.findall(path)] for path, colour in found}
