"""Operators and kernels of two traces side by side, as text and as HTML without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.diff.tables import BOTH, ONLY_A, ONLY_B
from perfnb.diff.traces import GPU_FIGURES, TraceDiff
from perfnb.diff.uneven_ops import op_html, sizes, uneven_html, uneven_text
from perfnb.draw import escape, tables
from perfnb.draw.kernel_names import kernel_list
from perfnb.recording.schema import NO_OP_ROW

#: Greatest number of operators listed, all layers in one, and of operators by layer.
MOST_OPERATORS, MOST_OPS = 12, 10
#: Where less than this share of either's time is in operators that both have alike, they may not run the same model.
_ALIKE = 0.5

_FIGURES = {
    "total": "from the first work to the last",
    "busy": "busy",
    "computation": "computing",
    "communication": "communicating",
    "memcpy": "copying",
    "idle": "idle",
}
_SUMS = {
    BOTH: "ops that both have",
    ONLY_A: "ops only in the first",
    ONLY_B: "ops only in the second",
    NO_OP_ROW: "launched by no known op",
}
_GPU_TITLE = "A GPU in a step"
_NO_CHANGE = "No op took more or less time."
_CELLS = 11


def trace_facts(diff: TraceDiff) -> Iterator[str]:
    """What to know before reading the figures."""
    low = [share for share in diff.alike if share is not None and share < _ALIKE]
    if low:
        first, second = (fmt.share(share) for share in diff.alike)
        yield (
            f"Only {first} of the first's and {second} of the second's time is in ops that the other has in the same "
            "layer or with the same input shapes: the two do not seem to run the same model on the same input, so read "
            "what grew with care"
        )
    if diff.on_gpu:
        yield "Times of ops are of the GPU: the durations of all kernels, copies and fills launched inside, summed up"
    else:
        lacking = " Only one of the two has work on a GPU." * (len(diff.kernels) > 0)
        yield f"Times of ops are of the host.{lacking}".removesuffix(".")
    a, b = diff.steps
    yield f"Everything is per step: {a:,} traced in the first, {b:,} in the second"
    for which, things, rest in (
        (diff.unmarked, "marked steps", "all of a trace without counts as one step"),
        (diff.without_shapes, "input shapes", "ops are matched by name, layer and order"),
        (diff.without_layers, "layers", "ops are matched by name, shapes and order"),
    ):
        if any(which):
            who = "Neither has" if all(which) else f"The {'first' if which[0] else 'second'} has no"
            yield f"{who} {things}: {rest}"


def trace_text(diff: TraceDiff, width: int) -> list[str]:
    """The lines of the sums, the operators that changed most, their kernels, and what is not called equally often."""
    return [*_operator_lines(diff, width), *uneven_text(diff, width)]


def _operator_lines(diff: TraceDiff, width: int) -> list[str]:
    names = width - 32 - _CELLS - 1
    head = f" {'a':>9} {'b':>9} {'grew by':>10}"
    lines = []
    for title, table in _overviews(diff):
        lines += ["", f"{title:<{names}}{head}"]
        lines += [f"{word:<{names}} {x:>9} {y:>9} {grew:>10}" for word, x, y, grew in table]
        lines += [line for note in _notes(diff, title) for line in escape.wrapped(note, width)]
    rows = list(_operators(diff))
    if not rows:
        return [*lines, "", _NO_CHANGE]
    lines += ["", f"{f'op (all layers, {_where(diff)})':<{names}}{head}"]
    scale = _scale(diff.operators, MOST_OPERATORS)
    for row in rows:
        bar = _text_bar(row.grew, scale)
        lines.append(f"{escape.fit(row.name, names)} {row.a:>9} {row.b:>9} {row.signed:>10} {bar}".rstrip())
        below = " · ".join(filter(None, (row.where, row.kernels)))
        lines += [f"    {escape.plain(below, width - 4)}"] if below else []
    left = len(diff.operators) - len(rows)
    return lines + ([f"… {left:,} more, which changed less"] if left > 0 else [])


def trace_html(diff: TraceDiff, heads: list[str]) -> str:
    """The same as tables, and the operators by layer."""
    parts = []
    for title, table in _overviews(diff):
        parts.append(tables.table(escape.html(title), ["", *heads, "grew by"], table))
        parts += [f'<p class="pf-small">{escape.html_sentence(note)}</p>' for note in _notes(diff, title)]
    rows = list(_operators(diff))
    if not rows:
        return "".join([*parts, f'<p class="pf-small">{_NO_CHANGE}</p>', *uneven_html(diff)])
    columns, scale = ["op and input shapes", *heads, "grew by", ""], _scale(diff.operators, MOST_OPERATORS)
    cells = [(*_cells(row, scale), escape.html(row.where), _kernels(row)) for row in rows]
    left = len(diff.operators) - len(rows)
    caption = f"Ops by how much their time on the {_where(diff)} changed, all layers together" + (
        f"; {left:,} changed less" if left > 0 else ""
    )
    parts.append(tables.table(caption, [*columns, "where", "kernels: first → second"], cells, last_texts=2))
    of_layers = diff.outermost[diff.outermost["layer"].notna()]
    if by_layer := list(_rows(diff, of_layers, MOST_OPS)):
        scale = _scale(of_layers, MOST_OPS)
        cells = [(*_cells(row, scale), tables.name(row.layer)) for row in by_layer]
        left = len(of_layers) - len(by_layer)
        caption = f"Ops by layer, time on the {_where(diff)}" + (f"; {left:,} changed less" if left > 0 else "")
        parts.append(tables.table(caption, [*columns, "layer"], cells, last_texts=1))
    return "".join([*parts, *uneven_html(diff)])


def _notes(diff: TraceDiff, title: str) -> Iterator[str]:
    """What to say below one of `_overviews`."""
    a, b = diff.works
    if title != _GPU_TITLE or a == b:
        return
    if diff.steps[0] == diff.steps[1]:
        numbers = f"{a:,} → {b:,} in all, {abs(b - a):,} {'more' if b > a else 'fewer'}"
    else:
        per_step = [count / steps for count, steps in zip(diff.works, diff.steps, strict=True)]
        if per_step[0] == per_step[1]:
            return
        numbers = f"{' → '.join(map(fmt.count, per_step))} a step"
    yield (
        f"Kernels, copies and fills: {numbers}. The time from the first work to the last, and with it idle, depends on "
        "the one that begins first and the one that ends last alone: one more or fewer there may be all of the change."
    )


def _where(diff: TraceDiff) -> str:
    return "GPU" if diff.on_gpu else "host"


def _overviews(diff: TraceDiff) -> Iterator[tuple[str, list[tuple[str, str, str, str]]]]:
    if diff.gpu_time is not None:
        yield _GPU_TITLE, list(_gpu(diff.gpu_time))
    yield "Work on the GPU, summed up" if diff.on_gpu else "Time in ops on the host", list(_sums(diff))


class _Row:
    """One operator's words and figures."""

    def __init__(self, row: pd.Series, what: str) -> None:
        ops = [str(row[f"op_{side}"]) for side in ("a", "b") if not pd.isna(row[f"op_{side}"])]
        self.op = " → ".join(dict.fromkeys(ops)) or str(row["op"])
        self.whole_shapes = "" if pd.isna(row["shapes"]) else str(row["shapes"])
        self.shapes = sizes(self.whole_shapes)
        self.name = f"{self.op} {self.shapes}".strip()
        self.a, self.b = fmt.duration(row[f"{what}_a"]), fmt.duration(row[f"{what}_b"])
        self.grew, self.signed = fmt.known(row["grew_ms"]) or 0.0, signed(row["grew_ms"])
        self.layer = "" if pd.isna(row["layer"]) else str(row["layer"])
        self.lists = [list(row[f"kernels_{side}"]) for side in ("a", "b")]
        self.where = self._where(row)
        short = dict.fromkeys(kernel_list(names, 2, 26) for names in self.lists)
        self.kernels = " → ".join(short) if any(self.lists) else ""

    def _where(self, row: pd.Series) -> str:
        numbers = [row[f"calls_{side}"] for side in ("a", "b") if not pd.isna(row[f"calls_{side}"])]
        calls = " → ".join(dict.fromkeys(map(fmt.count, numbers)))
        parts = [f"{calls} call{'s' * (calls != '1')}"] if calls else []
        layers = int(fmt.known(row.get("layers")) or 0)
        parts += [f"in {layers:,} layer{'s' * (layers > 1)}"] if layers else []
        only = {ONLY_A: "only first", ONLY_B: "only second"}.get(str(row["matched"]))
        return " ".join(parts + ([f"({only})"] if only else []))


def _rows(diff: TraceDiff, table: pd.DataFrame, most: int) -> Iterator[_Row]:
    what = "gpu_ms" if diff.on_gpu else "host_ms"
    for _, row in table.head(most).iterrows():
        if (fmt.known(row["grew_ms"]) or 0.0) != 0.0:
            yield _Row(row, what)


def _operators(diff: TraceDiff) -> Iterator[_Row]:
    table = diff.operators if "layer" in diff.operators else diff.operators.assign(layer=None)
    return _rows(diff, table, MOST_OPERATORS)


def _scale(table: pd.DataFrame, most: int) -> float:
    changes = table["grew_ms"].head(most).abs().dropna()
    return float(changes.max()) if len(changes) else 0.0


def _sums(diff: TraceDiff) -> Iterator[tuple[str, str, str, str]]:
    for word, row in diff.sums.iterrows():
        if row[["ms_a", "ms_b"]].gt(0).any():
            yield _SUMS[str(word)], fmt.duration(row["ms_a"]), fmt.duration(row["ms_b"]), signed(row["grew_ms"])
    total = diff.sums.sum()
    yield "together", fmt.duration(total["ms_a"]), fmt.duration(total["ms_b"]), signed(total["grew_ms"])


def _gpu(table: pd.DataFrame) -> Iterator[tuple[str, str, str, str]]:
    for name in GPU_FIGURES:
        row = table.loc[name]
        if row[["ms_a", "ms_b"]].gt(0).any():
            yield _FIGURES[name], fmt.duration(row["ms_a"]), fmt.duration(row["ms_b"]), signed(row["grew_ms"])


def signed(ms: Any) -> str:
    """``+1.20 ms``, ``−34.0 µs``."""
    number = fmt.known(ms)
    if number is None:
        return fmt.UNKNOWN
    return f"{'−' if number < 0 else '+'}{fmt.duration(abs(number))}" if number else "0 ms"


def _cells(row: _Row, scale: float) -> tuple[str, ...]:
    return op_html(row.op, row.whole_shapes, row.shapes), row.a, row.b, row.signed, _bar(row.grew, scale)


def _kernels(row: _Row) -> str:
    """Short names, and the whole ones on hover."""
    cells = []
    for names in row.lists[: 1 if row.lists[0] == row.lists[1] else 2]:  # the same kernels stand there once
        title = escape.html("\n".join(names[:8]), 1000)
        cells.append(f'<bdi title="{title}">{escape.html(kernel_list(names, 2, 34), 120)}</bdi>')
    return "<br>→ ".join(cells) if any(row.lists) else ""


def _bar(grew: float, scale: float) -> str:
    """A bar to the right for what grew, hatched to the left for what shrank; the figure beside it says the same."""
    share = 50 * min(1.0, abs(grew) / scale) if scale else 0.0
    side = "pf-more" if grew > 0 else "pf-less"
    return f'<span class="pf-grew" aria-hidden="true"><i class="{side}" style="width:{share:.1f}%"></i></span>'


def _text_bar(grew: float, scale: float) -> str:
    half = _CELLS // 2
    cells = round(half * min(1.0, abs(grew) / scale)) if scale else 0
    return f"{'▒' * cells:>{half}}│" if grew < 0 else f"{'':>{half}}│{'█' * cells}"
