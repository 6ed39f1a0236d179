"""Render documents as Markdown for a pull request: the answer, the effects, the tables and the notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfnb.draw import escape
from perfnb.draw.as_html import STATES
from perfnb.draw.as_text import cell_words, columns_held, detail_of, effect_words, figure_words, row_cells
from perfnb.draw.document import Document, Effects, Section, Table

_LONGEST = 2000


def document_markdown(document: Document) -> str:
    """Return a document as Markdown, without its pictures. Any markup in names is escaped."""
    head = ", ".join(_words(part) for part in (document.kind, document.subject, document.device) if part)
    verdict = document.verdict
    answer = f"{STATES[verdict.state]} {_words(verdict.sentence)}".strip()
    blocks = [answer and f"**{answer}**", _words(verdict.next), head]
    blocks.append(_words(" · ".join([*map(figure_words, document.figures), *document.facts])))
    blocks += ["\n".join(lines) for section in document.sections if (lines := list(_section(section)))]
    blocks.append("\n".join(f"- {_words(note)}" for note in document.notes))
    return "\n\n".join(filter(None, blocks)) + "\n"


def _words(text: str) -> str:
    return escape.markdown(text, _LONGEST)


def _section(section: Section) -> Iterator[str]:
    if isinstance(section, Effects):
        effects = [(row.label, effect_words(row), row.verdict) for row in section.rows]
        yield from _table([section.head, "ratio", "verdict"], [":---", "---:", ":---"], effects)
    elif isinstance(section, Table):
        held = columns_held(section, range(len(section.rows)))
        columns = [section.columns[place] for place in held]
        rows = list[list[str]]()
        for row in range(len(section.rows)):
            cells = row_cells(section, row)
            rows.append([cell_words(cells[place], section.columns[place].unit) for place in held])
        sides = [":---" if column.unit == "text" else "---:" for column in columns]
        yield from _table([column.head for column in columns], sides, rows)
        for row, words in enumerate(rows):
            if detail := detail_of(section, row):
                yield f"\n{_words(f'{words[0]}: {detail}')}"


def _table(heads: Sequence[str], sides: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if rows:
        yield f"| {' | '.join(map(escape.markdown, heads))} |"
        yield f"| {' | '.join(sides)} |"
    for row in rows:
        yield f"| {' | '.join(map(escape.markdown, row))} |"
