"""Convert documents to plain data, which the live view draws and the option ``--json`` prints.

Each section has a ``type``, which is the lower-case name of its class in `perfnb.draw.document`, and the fields of that
class. Numbers are not rounded, and are in the unit specified by the section, the column or the figure. Unknown values
are ``null``. Figures with an interval also have ``words``. Text contains visible characters only, and only code may
span several lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from perfnb import quantities as fmt
from perfnb.draw import escape
from perfnb.draw.as_text import effect_words, figure_value
from perfnb.draw.document import Document, Effect, Figure, Inner, Picture, Section, Value
from perfnb.draw.palette import Mark

#: The maximum length of a text, which may be a sentence or lines of code.
_LONGEST = 2000
#: Fields whose text may have several lines, and fields that contain names.
_CODE, _NAMES = {"code", "text"}, {"rows", "names"}
#: The number of significant digits in rows inside other rows, because there may be tens of thousands of them.
_DIGITS = 6


def document_data(document: Document) -> dict[str, Any]:
    """Convert a document to data that can be written as JSON."""
    return _fields(document)


def plain(value: Any, longest: int = _LONGEST) -> Any:
    """Convert a value in a document to data. Text is made visible, and marks include their appearance."""
    if isinstance(value, str):
        return escape.plain(value, longest)
    if isinstance(value, float):
        return fmt.known(value)
    if value is None or isinstance(value, int):
        return value
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays, recognised without importing NumPy
        return plain(value.tolist(), longest)
    if isinstance(value, Mark):
        return {**value.data, "word": escape.plain(value.word)}
    if isinstance(value, Inner):
        return _inner(value)
    if is_dataclass(value):
        return _fields(value)
    if isinstance(value, Mapping):
        return {escape.plain(name): plain(inner, longest) for name, inner in value.items()}
    if isinstance(value, Sequence):
        return [plain(inner, longest) for inner in value]
    return fmt.known(value)


def _fields(value: Any) -> dict[str, Any]:
    """Convert an object of the vocabulary. Sections have a ``type``, and numbers with an interval have ``words``."""
    data: dict[str, Any] = {"type": type(value).__name__.lower()} if isinstance(value, Section) else {}
    if isinstance(value, Picture):
        data |= {name: plain(getattr(value, name)) for name in ("kind", "title", "key", "static")}
        data["data"] = None if value.data is None else value.data()
        return {**data, "still": "" if value.script or value.html is None else value.html()}
    for name in (field.name for field in fields(value)):
        held = getattr(value, name)
        if name in _CODE and isinstance(held, str):
            data[name] = "\n".join(escape.plain(line, _LONGEST) for line in held.splitlines())
        else:
            data[name] = plain(held, escape.MAX_NAME if name in _NAMES else _LONGEST)
    if isinstance(value, Effect):
        data["words"] = effect_words(value)
    elif isinstance(value, (Figure, Value)):
        data["words"] = figure_value(value)
    return data


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
