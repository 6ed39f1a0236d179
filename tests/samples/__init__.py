"""Results of each room as documents, over which the contracts of `tests/draw/test_document_renderers.py` run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from perfnb.draw.as_text import document_text
from perfnb.draw.document import Column, Document, Table

#: A name that is markup, ends scripts, reverses text, moves a terminal's cursor and is long and wide.
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\x1b[31m\u202e\n\u2028" + "层é" * 90


def texts(documents: Mapping[str, Callable[[], Document]]) -> str:
    """Return each sample without a hostile name, for a golden text of its room.

    A text does not contain the verdict's state, or the layout and the live parts of a table, so these are added.
    """
    shown = {name: made() for name, made in documents.items() if "hostile" not in name}
    return "\n\n".join(_shown(name, document) for name, document in shown.items()) + "\n"


def _shown(name: str, document: Document) -> str:
    state = document.verdict.state if document.verdict is not None else "no verdict"
    text = f"### {name} ({state})\n\n{document_text(document, 100)}"
    return "\n".join([text, "", *(line for table in _tables(document) for line in _layout(table))]).rstrip()


def _tables(value: Any) -> Iterator[Table]:
    if isinstance(value, Table):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from _tables(getattr(value, field.name))
    elif isinstance(value, tuple | list) and value and is_dataclass(value[0]):
        for each in value:
            yield from _tables(each)


def _layout(table: Table) -> Iterator[str]:
    """Return the rows that each medium lists, the columns with their priorities, and the first row of live parts."""
    rows = f"{table.budget.text}/{table.budget.html} rows, {table.tail} at the end"
    yield f"#### {table.title or 'a table'}: {rows}; {_columns(table.columns, table.rows)}"
    if table.inner is not None:
        yield f"##### {table.inner.title}: {_columns(table.inner.columns, table.inner.rows, every=True)}"


def _columns(columns: Sequence[Column], rows: Sequence[Sequence[Any]], *, every: bool = False) -> str:
    words = []
    for place, column in enumerate(columns):
        first = f" {rows[0][place]!r}" if rows and (every or column.live) else ""
        words.append(f"{column.head} ({column.unit} {column.priority}{first})")
    return ", ".join(words)
