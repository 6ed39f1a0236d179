"""Convert documents to plain data, which the live view draws and the option ``--json`` prints.

Each section has a ``type``, which is the lower-case name of its class in `perfnb.draw.document`, and the fields of that
class. Numbers are not rounded, and are in the unit specified by the section, the column or the figure. Unknown values
are ``null``. Figures with an interval also have ``words``. Text contains visible characters only, and only code may
span several lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from perfnb import quantities as fmt
from perfnb.draw import escape
from perfnb.draw.as_text import effect_words, figure_value
from perfnb.draw.document import Choice, Document, Effect, Figure, Inner, Picture, Section, Table, Value
from perfnb.draw.palette import Mark

#: The maximum length of a text, which may be a sentence or lines of code.
_LONGEST = 2000
#: Fields whose text may have several lines.
_CODE = {"code", "text"}
#: The number of significant digits in rows inside other rows, because there may be tens of thousands of them.
_DIGITS = 6


def document_data(document: Document) -> dict[str, Any]:
    """Convert a document to data that can be written as JSON."""
    data = {
        field.name: plain(getattr(document, field.name))
        for field in fields(document)
        if field.name not in ("sections", "tabs")
    }
    data["sections"] = [section_data(section) for section in document.sections]
    data["tabs"] = [document_data(tab) for tab in document.tabs]
    return data


def section_data(section: Section) -> dict[str, Any]:
    """Convert a section to data that can be written as JSON."""
    kind = type(section).__name__.lower()
    if isinstance(section, Picture):
        data = None if section.data is None else section.data()
        return {
            "type": kind,
            "kind": section.kind,
            "title": escape.plain(section.title),
            "key": section.key,
            "data": data,
            "still": "" if section.script or section.html is None else section.html(),
            "static": [section_data(part) for part in section.static],
        }
    if isinstance(section, Choice):
        options = {
            escape.plain(name): [section_data(part) for part in parts] for name, parts in section.options.items()
        }
        return {"type": kind, "title": escape.plain(section.title), "key": section.key, "options": options}
    if isinstance(section, Table):
        rows = [[_cell(cell) for cell in row] for row in section.rows]
        names = None if section.names is None else [*map(escape.plain, section.names)]
        return {"type": kind, **plain(replace(section, rows=(), names=None)), "rows": rows, "names": names}
    return {"type": kind, **plain(section)}


def _cell(cell: Any) -> Any:
    return escape.plain(cell) if isinstance(cell, str) else plain(cell)


def plain(value: Any) -> Any:
    """Convert a value in a document to data. Text is made visible, and marks include their appearance."""
    if hasattr(value, "tolist"):  # a NumPy number, recognised without importing NumPy
        value = value.tolist()
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return fmt.known(value)
    if isinstance(value, str):
        return escape.plain(value, _LONGEST)
    if isinstance(value, Mark):
        return {**value.data, "word": escape.plain(value.word)}
    if isinstance(value, Inner):
        return _inner(value)
    if is_dataclass(value):
        data = {
            field.name: _code(held) if field.name in _CODE and isinstance(held, str) else plain(held)
            for field in fields(value)
            for held in (getattr(value, field.name),)
        }
        if isinstance(value, Effect):
            data["words"] = effect_words(value)
        elif isinstance(value, (Figure, Value)):
            data["words"] = figure_value(value)
        return data
    if isinstance(value, Mapping):
        return {escape.plain(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, Sequence):
        return [plain(inner) for inner in value]
    return fmt.known(value)


def _code(text: str) -> str:
    return "\n".join(escape.plain(line, _LONGEST) for line in text.splitlines())


def _inner(inner: Inner) -> dict[str, Any]:
    """Convert rows inside other rows. Texts become indices into ``names``, because the same texts occur often."""
    places = dict[str, int]()
    texts = [column.unit == "text" for column in inner.columns]
    rows = [
        [
            places.setdefault(str(cell), len(places)) if text else fmt.short(cell, _DIGITS)
            for cell, text in zip(row, texts, strict=True)
        ]
        for row in inner.rows
    ]
    return {
        "title": escape.plain(inner.title),
        "columns": plain(inner.columns),
        "rows": rows,
        "names": [*map(escape.plain, places)],
        "owner": list(inner.owner),
        "selects": inner.selects,
    }
