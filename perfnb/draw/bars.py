"""Draw bars with characters."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from perfnb.draw import escape
from perfnb.draw.palette import Mark

_LEVELS = " ▁▂▃▄▅▆▇█"


def cells_of(shares: Sequence[float], width: int) -> list[int]:
    """Divide `width` cells in proportion to the shares. The result adds up to `width`."""
    total = sum(shares) or 1.0
    edges = [round(width * sum(shares[:i]) / total) for i in range(len(shares) + 1)]
    return [after - before for before, after in itertools.pairwise(edges)]


def stacked(marks: Iterable[Mark], shares: Sequence[float], width: int) -> str:
    """Draw a stacked bar of `width` cells, using the marks' glyphs."""
    return "".join(mark.glyph * cells for mark, cells in zip(marks, cells_of(shares, width), strict=True))


def legend(entries: Sequence[tuple[Mark, str, str]], width: int) -> list[str]:
    """Return a bar's legend. It lists each part with its value and share, in as many columns as fit."""
    if not entries:
        return []
    figures = max(max(8, len(figure)) + max(6, len(share)) for _, figure, share in entries)
    words = min(width - figures - 4, max(escape.cells(mark.word) for mark, _, _ in entries))
    cells = [f"{mark.glyph} {escape.fit(mark.word, words)} {figure:>8} {share:>6}" for mark, figure, share in entries]
    columns = max(1, (width + 4) // (max(map(escape.cells, cells)) + 4))
    return ["    ".join(cells[i : i + columns]) for i in range(0, len(cells), columns)]


def heights(values: Iterable[float], highest: float) -> str:
    """Draw one cell per value, filled from the bottom. Any value above zero is visible."""
    return "".join(_LEVELS[_level(value, highest)] for value in values)


def _level(value: float, highest: float) -> int:
    if value <= 0 or highest <= 0:
        return 0
    return max(1, round((len(_LEVELS) - 1) * min(1.0, value / highest)))
