"""Draw tables for static views. They are readable even without style sheets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfnb.draw import escape
from perfnb.draw.palette import Mark

# Names must be left-aligned even without style sheets. Some hosts keep the attribute, and others keep the style.
LEFT = 'align="left" style="text-align:left"'
RIGHT = 'align="right"'
ROW_HEAD = f'scope="row" {LEFT}'


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """Return a table as HTML. The caption, heads and cells are HTML as well.

    Parameters
    ----------
    caption : str
    heads : sequence of str
        The column heads.
    rows : iterable of sequences of str
    texts : int
        The number of leading text columns. The other columns contain figures.
    """
    body = "".join(_row(row, texts) for row in rows)
    return f"<table><caption>{caption}</caption><thead>{head_row(heads, texts)}</thead><tbody>{body}</tbody></table>"


def head_row(words: Sequence[str], texts: int = 1, after: int | None = None) -> str:
    """Return a row of column heads. The first `texts` heads, and all heads from index `after` on, are above text."""
    after = len(words) if after is None else after
    cells = (
        f'<th scope="col" {LEFT if place < texts or place >= after else RIGHT}>{word}</th>' if word else "<td></td>"
        for place, word in enumerate(words)
    )
    return f"<tr>{''.join(cells)}</tr>"


def key(mark: Mark) -> str:
    """Return the small box that shows a mark's colour and pattern in a legend."""
    return f'<i class="pf-key pf-{mark.pattern}" style="background-color:{mark.colour}"></i>'


def keyed(mark: Mark) -> str:
    """Return a mark's box followed by its word."""
    return f"{key(mark)}{escape.html(mark.word)}"


def name(text: object) -> str:
    """Return a possibly shortened name from a model as HTML. The full name is displayed on hover."""
    return f'<bdi title="{escape.html(text)}">{escape.html(text, 60)}</bdi>'


def _row(cells: Sequence[str], texts: int) -> str:
    first, *rest = cells
    others = (f"<td {LEFT if place < texts else RIGHT}>{cell}</td>" for place, cell in enumerate(rest, 1))
    return f"<tr><th {ROW_HEAD}>{first}</th>{''.join(others)}</tr>"


def bar(parts: Sequence[tuple[Mark, float]], longest: float, width: int) -> str:
    """Return a stacked bar as HTML. A total of `longest` is `width` pixels wide.

    It is empty if there are no parts.

    Bars are hidden from screen readers, so a table must show the same data.

    Parameters
    ----------
    parts : sequence of (Mark, float)
    longest : float
        The total of the longest bar on this scale.
    width : int
    """
    total = sum(size for _, size in parts)
    if not total > 0:
        return ""
    pieces = _pieces([(mark, size) for mark, size in parts if size > 0], total)
    pixels = max(1, round(width * total / longest))
    return f'<div class="pf-bar" aria-hidden="true" style="width:{pixels}px">{pieces}</div>'


def full_bar(parts: Sequence[tuple[Mark, float]], total: float) -> str:
    """Return a stacked bar as HTML, as wide as the page, for a total above 0. A table must show the same data."""
    return f'<div class="pf-bar" aria-hidden="true">{_pieces(parts, total)}</div>'


def _pieces(parts: Sequence[tuple[Mark, float]], total: float) -> str:
    return "".join(
        f'<i class="pf-{mark.pattern}" style="width:{100 * size / total:.2f}%;background-color:{mark.colour}"></i>'
        for mark, size in parts
    )
