"""The checks of the machine as text and static HTML, problems first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, tables
from perfnb.draw.frame import framed, header

#: A symbol for each verdict beside its name, in display order.
SIGNS = {"attention": "▲", "unknown": "?", "info": "·", "ok": "✓"}
_HEADS = {
    "attention": "May cost speed or make timings unsteady",
    "unknown": "Could not be read",
    "info": "For information",
    "ok": "As expected",
}
_WRAPPED = "white-space:normal;max-width:34em;overflow-wrap:anywhere"
_NAME = "white-space:normal;max-width:14em"
#: A command's option, which must not break at its hyphens.
_OPTION = re.compile(r"(?<![^\s(])--?\w[^\s,;:)]*")
_NAMES = 26
_MIN_WIDTH = 60


def system_line(checks: pd.DataFrame) -> str:
    """``2 of 20 checks need attention, 1 could not be read``."""
    counts = checks["verdict"].value_counts()
    attention, unknown = int(counts.get("attention", 0)), int(counts.get("unknown", 0))
    need = f"{attention or 'none'} of {len(checks)} checks need{'s' * (attention <= 1)} attention"
    return need + (f", {unknown} could not be read" if unknown else "")


def system_text(checks: pd.DataFrame, width: int = 100) -> str:
    """The checks as text, with reasons for those that need attention."""
    width = max(_MIN_WIDTH, width)
    lines = escape.wrapped(f"perfnb · the machine · {system_line(checks)}", width)
    for verdict, rows in _sections(checks):
        lines += ["", f"{SIGNS[verdict]} {_HEADS[verdict]} ({verdict})"]
        for names, row in _merged(rows):
            lines += _hanging(_joined(names), escape.plain(row["found"], 2000), width)
            if verdict == "attention":
                for word in ("expected", "why", "how"):
                    lines += _hanging("", f"{word}: {escape.plain(row[word], 2000)}", width)
    return "\n".join(line.rstrip() for line in lines)


def system_html(checks: pd.DataFrame) -> str:
    """The checks as tables; why each matters and how to change it is folded unless it needs attention."""
    parts = [header("The machine", "system check", fmt.capital(system_line(checks)))]
    for verdict, rows in _sections(checks):
        wide = verdict == "attention"
        columns = ("found", "expected", "why", "how") if wide else ("found", "expected")
        body = []
        for names, row in _merged(rows):
            name = _cell(_joined(names), _NAME)
            body.append([f"<strong>{name}</strong>" if wide else name, *(_cell(row[column]) for column in columns)])
        heads = ["check", *({"why": "why it matters", "how": "how to change it"}.get(c, c) for c in columns)]
        caption = f"{SIGNS[verdict]} {_HEADS[verdict]} ({verdict})"
        parts.append(tables.table(caption, heads, body, texts=len(heads)))
    rest = [row for verdict, rows in _sections(checks) if verdict != "attention" for row in rows]
    if rest:
        body = [[_cell(row["check"], _NAME), _cell(row["why"]), _cell(row["how"])] for row in rest]
        table = tables.table("", ["check", "why it matters", "how to change it"], body, texts=3)
        parts.append(f"<details><summary>Why the other checks matter and what to do</summary>{table}</details>")
    return framed("".join(parts))


def _sections(checks: pd.DataFrame) -> Iterator[tuple[str, list[dict[str, str]]]]:
    for verdict in SIGNS:
        rows = checks[checks["verdict"] == verdict]
        if len(rows):
            yield verdict, [{str(name): str(value) for name, value in row.items()} for row in rows.to_dict("records")]


def _merged(rows: Sequence[dict[str, str]]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Merge neighbours with the same result, such as all GPU checks on a machine without one, into one line."""
    for _, same in groupby(rows, key=lambda row: (row["found"], row["verdict"] == "attention" and row["check"])):
        first, *others = same
        yield [row["check"] for row in (first, *others)], {**first, "expected": ""} if others else first


def _joined(names: Sequence[str]) -> str:
    """``GPU driver, persistence, ECC``: a shared first word appears once."""
    first = names[0].partition(" ")[0] + " "
    if all(name.startswith(first) for name in names):
        return first + ", ".join(name.removeprefix(first) for name in names)
    return ", ".join(names)


def _hanging(name: str, text: str, width: int) -> list[str]:
    """A name and, beside it, text wrapped to its column."""
    heads = escape.wrapped(name, _NAMES - 2)
    lines = escape.wrapped(text, width - _NAMES - 2)
    return [f"  {escape.fit(head, _NAMES)}{line}" for head, line in zip_longest(heads, lines, fillvalue="")]


def _cell(text: str, style: str = _WRAPPED) -> str:
    whole = r'<span style="white-space:nowrap">\g<0></span>'
    return f'<div style="{style}">{_OPTION.sub(whole, escape.html_sentence(text))}</div>'
