"""The operators that two traces do not call equally often, as text and as tables without scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.diff.tables import BOTH, ONLY_A, ONLY_B
from perfnb.diff.traces import TraceDiff
from perfnb.draw import escape, tables

#: Greatest number listed of each kind.
MOST_UNEVEN = 8
_UNEVEN = {
    ONLY_A: "Only in the first, per step",
    ONLY_B: "Only in the second, per step",
    BOTH: "Not called equally often, per step",
}
_SHAPE = re.compile(r"\[([0-9][0-9, ]*)\]")


def uneven_text(diff: TraceDiff, width: int) -> list[str]:
    """The lines of tables of these operators; none where there are none."""
    names, lines = width - 58, []
    for title, rows, left in _uneven(diff):
        lines += ["", f"{title:<{names}} {'calls':>15} {'host':>19} {'GPU':>19}"]
        lines += [
            f"{escape.fit(f'{op} {shapes}'.strip(), names)} {calls:>15} {host:>19} {gpu:>19}"
            for op, _, shapes, calls, host, gpu in rows
        ]
        lines += [f"… {left:,} more, which took less"] if left else []
    return lines


def uneven_html(diff: TraceDiff) -> Iterator[str]:
    """The same tables."""
    for title, rows, left in _uneven(diff):
        cells = [
            (op_html(op, whole, shapes), *map(escape.html, (calls, host, gpu)))
            for op, whole, shapes, calls, host, gpu in rows
        ]
        caption = title + (f"; {left:,} took less" if left else "")
        yield tables.table(escape.html(caption), ["op and input shapes", "calls", "host", "GPU"], cells)


def _uneven(diff: TraceDiff) -> Iterator[tuple[str, list[tuple[str, str, str, str, str, str]], int]]:
    """The operators that the two do not call equally often, by who has them, and how many more there are.

    Of each its name, its whole and short shapes, its calls and its times on host and GPU.
    """
    for word, sides in ((ONLY_A, "a"), (ONLY_B, "b"), (BOTH, "ab")):
        table = diff.uneven[diff.uneven["matched"] == word]
        rows = []
        for _, row in table.head(MOST_UNEVEN).iterrows():
            whole = "" if pd.isna(row["shapes"]) else str(row["shapes"])
            calls = _arrow([fmt.count(row[f"calls_{side}"]) for side in sides])
            host = _arrow([fmt.duration(row[f"host_ms_{side}"]) for side in sides])
            gpu = _arrow([_gpu(row[f"gpu_ms_{side}"]) for side in sides])
            rows.append((str(row["op"]), whole, sizes(whole), calls, host, gpu))
        if rows:
            yield _UNEVEN[word], rows, len(table) - len(rows)


def _arrow(words: list[str]) -> str:
    return " → ".join(dict.fromkeys(words))


def _gpu(ms: Any) -> str:
    return "none" if fmt.known(ms) == 0 else fmt.duration(ms)


def sizes(shapes: str) -> str:
    """The shapes of inputs that have some: ``4×197×768, 768×768``."""
    return ", ".join(match.replace(" ", "").replace(",", "×") for match in _SHAPE.findall(shapes))


def op_html(op: str, whole_shapes: str, shapes: str) -> str:
    """An operator's name and the sizes of its inputs; both in full on hover."""
    second = f' <bdi title="{escape.html(whole_shapes)}"><em>{escape.html(shapes, 34)}</em></bdi>'
    return f"{tables.name(op, 60)}{second if shapes else ''}"
