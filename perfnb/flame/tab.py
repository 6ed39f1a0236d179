"""The report's flame graph: the Python code of the step, and the lines of the user's code that take the most time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfnb import quantities as fmt
from perfnb.draw import escape, palette, tables
from perfnb.draw.document import Document, Picture
from perfnb.draw.tab import Tab
from perfnb.flame.data import NOTEBOOK_CALLS, flame_data
from perfnb.flame.step_stacks import STEP, StepStacks, step_stacks
from perfnb.flame.view import flame_picture

_LISTED = 10


def stacks_text(stacks: StepStacks, width: int) -> list[str]:
    """The heaviest lines of the user's code, as lines of at most `width` cells."""
    lines = escape.wrapped(f"Python · {_headline(stacks)}", width)
    if len(stacks.lines):
        lines.append(f"{'phase':<14} {'self':>8} {'total':>8} {'share':>6}  line")
    for row in stacks.lines.head(_LISTED).itertuples(index=False):
        figures = f"{fmt.duration(row.self_ms):>8} {fmt.duration(row.total_ms):>8} {fmt.share(row.share):>6}"
        room = max(20, width - 42)
        lines.append(f"{_mark(row).word:<14} {figures}  {escape.plain(_words(row), room)}".rstrip())
    return [*lines, *escape.bullets(stacks.record.notes, width)]


def stacks_html(stacks: StepStacks) -> str:
    """The flame graph as a picture, and the heaviest lines of the user's code."""
    assert stacks.record.tree is not None
    head = f"<p><strong>Python</strong> · {escape.html_sentence(_headline(stacks))}</p>"
    rows = [
        [
            tables.keyed(_mark(row)),
            tables.name(_place(row), 50),
            tables.name(_code(row), 70),
            escape.html(fmt.duration(row.self_ms)),
            escape.html(fmt.duration(row.total_ms)),
            escape.html(fmt.share(row.share)),
        ]
        for row in stacks.lines.head(_LISTED).itertuples(index=False)
    ]
    caption = "Lines of your code, most time of their own first"
    heads = ["phase", "line", "code", "self", "total", "share"]
    table = tables.table(caption, heads, rows, texts=3) if rows else ""
    return head + flame_picture(stacks.record.tree, "ms") + table


def stacks_data(stacks: StepStacks) -> dict[str, Any]:
    """What the browser shows."""
    assert stacks.record.tree is not None
    return {
        "headline": _headline(stacks),
        "graph": flame_data(stacks.record.tree, "ms", NOTEBOOK_CALLS),
        "notes": [escape.plain(note, 600) for note in stacks.record.notes],
        "lines": [
            {
                "phase": _mark(row).data,
                "place": escape.plain(_place(row)),
                "code": escape.plain(_code(row)),
                "self_ms": fmt.short(row.self_ms),
                "total_ms": fmt.short(row.total_ms),
                "share": fmt.short(row.share),
            }
            for row in stacks.lines.head(_LISTED).itertuples(index=False)
        ],
    }


def _headline(stacks: StepStacks) -> str:
    samples, steps = fmt.counted(stacks.record.samples or 0, "sample"), fmt.counted(stacks.steps, "step")
    workers = f" and {fmt.counted(stacks.workers, 'loader worker')}" if stacks.workers else ""
    return f"{samples} of {steps}{workers}, under phases and layers; times per step"


def _mark(row: Any) -> palette.Mark:
    mark = palette.mark(str(row.phase))
    return mark if str(row.process) == STEP else replace(mark, word=f"{mark.word} (workers)")


def _place(row: Any) -> str:
    return f"{str(row.file).replace(chr(92), '/').rpartition('/')[2]}:{row.line}"


def _words(row: Any) -> str:
    return f"{_place(row)}  {_code(row)}".rstrip()


def _code(row: Any) -> str:
    return row.code if isinstance(row.code, str) else ""


TAB = Tab(
    "flame",
    lambda report: report.part("flame", lambda analysis: step_stacks(analysis.recording)),
    lambda part: Document(
        "flame graph",
        sections=(
            Picture(
                "flame",
                "",
                lambda width: stacks_text(part, width),
                lambda: stacks_html(part),
                lambda: stacks_data(part),
                "flame/js/tab.js",
                "flame/js/flame.css",
                "flame",
            ),
        ),
    ),
)
