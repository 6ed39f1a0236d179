"""A report on a change as text, as static HTML, as Markdown and as a page: the decision first."""

from __future__ import annotations

from perfnb.bench.ab_view import ab_picture
from perfnb.diff.layers import ProfileDiff
from perfnb.diff.view import diff_html
from perfnb.draw import escape, tables
from perfnb.draw.frame import framed, header
from perfnb.experiments.report_table import PerformanceFigures
from perfnb.experiments.report_words import HEADS, headline, notes, place, reason, rows
from perfnb.profile.page import static_page

#: What steps are called that have no names, or the same: then the names tell nothing.
SIDES = ("baseline", "candidate")
#: Least width in which the columns have room.
MIN_WIDTH = 80


def report_line(figures: PerformanceFigures) -> str:
    """The decision and its reason."""
    return f"{figures.decision.decision}: {reason(figures)}"


def report_text(figures: PerformanceFigures, width: int = 100) -> str:
    """The report as text for a terminal, a log or a notebook without HTML."""
    width = max(MIN_WIDTH, width)
    lines = [f"perfnb · report · {headline(figures)}", *escape.wrapped(reason(figures), width)]
    lines += escape.wrapped(_change(figures), width)
    cells = [HEADS, *rows(figures)]
    wide = [max(escape.cells(row[column]) for row in cells) for column in range(len(HEADS))]
    gap = "  " if sum(wide) + 2 * len(wide) - 2 <= width else " "
    lines.append("")
    for name, *values in cells:
        row = [escape.fit(name, wide[0]), *(escape.fit(*cell, ">") for cell in zip(values, wide[1:], strict=True))]
        lines.append(escape.shorten(gap.join(row).rstrip(), width))
    lines.append("")
    for note in [*notes(figures), place(figures)]:
        lines += escape.wrapped(note, width) if note else []
    return "\n".join(lines)


def report_html(figures: PerformanceFigures) -> str:
    """The report as a sentence, a table and a picture of the pairs, without scripts."""
    return framed(_body(figures))


def report_markdown(figures: PerformanceFigures) -> str:
    """The report as Markdown."""
    lines = [f"**{headline(figures)}**: {escape.markdown(reason(figures), 2000)}", ""]
    lines += [escape.markdown(_change(figures), 2000), ""]
    lines += [f"| {' | '.join(HEADS)} |", "| :--- | ---: | ---: | ---: | ---: |"]
    lines += [f"| {' | '.join(escape.markdown(cell) for cell in row)} |" for row in rows(figures)]
    lines += ["", *(f"- {escape.markdown(note, 2000)}" for note in [*notes(figures), place(figures)] if note)]
    return "\n".join(lines) + "\n"


def report_page(figures: PerformanceFigures, diff: ProfileDiff | None = None) -> str:
    """The report as one self-contained HTML document, with what changed layer by layer where that is known."""
    layers = "" if diff is None else diff_html(diff)
    return static_page(f"{figures.decision.decision}: {figures.change or 'report'}", f"{report_html(figures)}{layers}")


def _body(figures: PerformanceFigures) -> str:
    body = [[escape.html(cell) for cell in row] for row in rows(figures)]
    said = " ".join(notes(figures))
    sides = " against ".join(escape.plain(side.name, 60) for side in (figures.candidate, figures.baseline))
    where = f"<br>{escape.html(place(figures), 300)}" if place(figures) else ""
    return (
        f"{header(sides, 'performance report', headline(figures), reason(figures), _change(figures))}"
        f"{tables.table('Baseline and candidate', HEADS, body)}{ab_picture(figures.ab)}"
        f'<p class="pf-small">{escape.html_sentence(said)}{where}</p>'
    )


def _change(figures: PerformanceFigures) -> str:
    sides = figures.baseline.name, figures.candidate.name
    names = "" if sides == SIDES else f" ({' → '.join(escape.plain(side, 60) for side in sides)})"
    return f"Change: {escape.plain(figures.change, 600) if figures.change else 'not named'}{names}"
