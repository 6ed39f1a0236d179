"""Operators and kernels of two traces side by side, as text and as HTML without scripts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.diff.tables import BOTH, ONLY_A, ONLY_B
from perfnb.diff.traces import GPU_FIGURES, TraceDiff
from perfnb.draw import escape, tables
from perfnb.recording.schema import NO_OP_ROW

#: Most operators listed: with all layers summed, by layer, and of each kind in only one trace or called unevenly.
MOST_OPERATORS, MOST_OPS, MOST_UNEVEN = 12, 10, 8
#: If less than this share of either's time is in operators that both have alike, they may not run the same model.
_ALIKE = 0.5

_FIGURES = {
    "total": "from first work to last",
    "busy": "busy",
    "computation": "computing",
    "communication": "communicating",
    "memcpy": "copying",
    "idle": "idle",
}
_SUMS = {
    BOTH: "ops in both",
    ONLY_A: "ops only in the first",
    ONLY_B: "ops only in the second",
    NO_OP_ROW: "launched by an unknown op",
}
_UNEVEN = {
    ONLY_A: "Only in the first, per step",
    ONLY_B: "Only in the second, per step",
    BOTH: "Different number of calls, per step",
}
_GPU_TITLE = "One GPU, per step"
_NO_CHANGE = "No op took more or less time."
_CELLS = 11
_SHAPE = re.compile(r"\[([0-9][0-9, ]*)\]")
_NAMELESS = re.compile(r"\(anonymous namespace\)::|at::native::|^void |^_ZN?[A-Za-z0-9_]*?\d+(?=[a-z])")
#: Where a compiler wrote arguments, at whatever depth.
_OPENERS = re.compile(r"[<(]")


def trace_facts(diff: TraceDiff) -> Iterator[str]:
    """What to know before reading the figures."""
    low = [share for share in diff.alike if share is not None and share < _ALIKE]
    if low:
        first, second = (fmt.share(share) for share in diff.alike)
        yield (
            f"Only {first} of the first's and {second} of the second's time is in ops that the other has in the same "
            "layer or with the same input shapes: the two do not seem to run the same model on the same input, so the "
            "differences may mean little"
        )
    if diff.on_gpu:
        yield "Op times are GPU times: the sum of all kernels, copies and memsets launched inside"
    else:
        lacking = "; only one of the two has GPU work" * (len(diff.kernels) > 0)
        yield f"Op times are host times{lacking}"
    a, b = diff.steps
    yield f"All figures are per step; {a:,} traced in the first, {b:,} in the second"
    for which, things, rest in (
        (diff.unmarked, "marked steps", "such a trace counts as one step"),
        (diff.without_shapes, "input shapes", "ops are matched by name, layer and order"),
        (diff.without_layers, "layers", "ops are matched by name, shapes and order"),
    ):
        if any(which):
            who = "Neither has" if all(which) else f"The {'first' if which[0] else 'second'} has no"
            yield f"{who} {things}: {rest}"


def trace_text(diff: TraceDiff, width: int) -> list[str]:
    """Lines of totals, of the operators that changed most, and of those called a different number of times."""
    return [*_operator_lines(diff, width), *_uneven_lines(diff, width)]


def _operator_lines(diff: TraceDiff, width: int) -> list[str]:
    names = width - 32 - _CELLS - 1
    head = f" {'a':>9} {'b':>9} {'change':>10}"
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
    """The same as tables, plus the operators by layer."""
    parts = []
    for title, table in _overviews(diff):
        parts.append(tables.table(escape.html(title), ["", *heads, "change"], table))
        parts += [f'<p class="pf-small">{escape.html_sentence(note)}</p>' for note in _notes(diff, title)]
    rows = list(_operators(diff))
    if not rows:
        return "".join([*parts, f'<p class="pf-small">{_NO_CHANGE}</p>', *_uneven_tables(diff)])
    columns, scale = ["op and input shapes", *heads, "change", ""], _scale(diff.operators, MOST_OPERATORS)
    cells = [(*_cells(row, scale), escape.html(row.where), _kernels(row)) for row in rows]
    left = len(diff.operators) - len(rows)
    caption = f"Ops by change in {_where(diff)} time, all layers summed" + (
        f"; {left:,} changed less" if left > 0 else ""
    )
    parts.append(tables.table(caption, [*columns, "where", "kernels: first → second"], cells, last_texts=2))
    of_layers = diff.outermost[diff.outermost["layer"].notna()]
    if by_layer := list(_rows(diff, of_layers, MOST_OPS)):
        scale = _scale(of_layers, MOST_OPS)
        cells = [(*_cells(row, scale), tables.name(row.layer)) for row in by_layer]
        left = len(of_layers) - len(by_layer)
        caption = f"Ops by layer, {_where(diff)} time" + (f"; {left:,} changed less" if left > 0 else "")
        parts.append(tables.table(caption, [*columns, "layer"], cells, last_texts=1))
    return "".join([*parts, *_uneven_tables(diff)])


def _notes(diff: TraceDiff, title: str) -> Iterator[str]:
    """Notes below one of `_overviews`."""
    a, b = diff.works
    if title != _GPU_TITLE or a == b:
        return
    if diff.steps[0] == diff.steps[1]:
        numbers = f"{a:,} → {b:,} in total, {abs(b - a):,} {'more' if b > a else 'fewer'}"
    else:
        per_step = [count / steps for count, steps in zip(diff.works, diff.steps, strict=True)]
        if per_step[0] == per_step[1]:
            return
        numbers = f"{' → '.join(map(fmt.count, per_step))} per step"
    yield (
        f"Kernels, copies and memsets: {numbers}. The time from first to last, and so the idle time, depends only on "
        "which one starts first and which ends last: one more or one fewer there may explain the whole change."
    )


def _where(diff: TraceDiff) -> str:
    return "GPU" if diff.on_gpu else "host"


def _overviews(diff: TraceDiff) -> Iterator[tuple[str, list[tuple[str, str, str, str]]]]:
    if diff.gpu_time is not None:
        yield _GPU_TITLE, list(_gpu(diff.gpu_time))
    yield "GPU work, summed" if diff.on_gpu else "Host time in ops", list(_sums(diff))


class _Row:
    """One operator's words and figures."""

    def __init__(self, row: pd.Series, what: str) -> None:
        ops = (str(row[f"op_{side}"]) for side in ("a", "b") if not pd.isna(row[f"op_{side}"]))
        self.op = _arrow(ops) or str(row["op"])
        self.whole_shapes = "" if pd.isna(row["shapes"]) else str(row["shapes"])
        self.shapes = _sizes(self.whole_shapes)
        self.name = f"{self.op} {self.shapes}".strip()
        self.a, self.b = fmt.duration(row[f"{what}_a"]), fmt.duration(row[f"{what}_b"])
        self.grew, self.signed = fmt.known(row["grew_ms"]) or 0.0, signed(row["grew_ms"])
        self.layer = "" if pd.isna(row["layer"]) else str(row["layer"])
        self.lists = [list(row[f"kernels_{side}"]) for side in ("a", "b")]
        self.where = self._where(row)
        self.kernels = _arrow(_kernel_list(names, 26) for names in self.lists) if any(self.lists) else ""

    def _where(self, row: pd.Series) -> str:
        calls = _arrow(fmt.count(row[f"calls_{side}"]) for side in ("a", "b") if not pd.isna(row[f"calls_{side}"]))
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
    yield "total", fmt.duration(total["ms_a"]), fmt.duration(total["ms_b"]), signed(total["grew_ms"])


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
    return _op_html(row.op, row.whole_shapes, row.shapes), row.a, row.b, row.signed, _bar(row.grew, scale)


def _kernels(row: _Row) -> str:
    """Short names, with the whole ones on hover."""
    cells = []
    for names in row.lists[: 1 if row.lists[0] == row.lists[1] else 2]:  # the same kernels are listed once
        title = escape.html("\n".join(names[:8]), 1000)
        cells.append(f'<bdi title="{title}">{escape.html(_kernel_list(names, 34), 120)}</bdi>')
    return "<br>→ ".join(cells) if any(row.lists) else ""


def _bar(grew: float, scale: float) -> str:
    """A bar to the right for growth, hatched to the left for shrinkage; the figure beside it says the same."""
    share = 50 * min(1.0, abs(grew) / scale) if scale else 0.0
    side = "pf-more" if grew > 0 else "pf-less"
    return f'<span class="pf-grew" aria-hidden="true"><i class="{side}" style="width:{share:.1f}%"></i></span>'


def _text_bar(grew: float, scale: float) -> str:
    half = _CELLS // 2
    cells = round(half * min(1.0, abs(grew) / scale)) if scale else 0
    return f"{'▒' * cells:>{half}}│" if grew < 0 else f"{'':>{half}}│{'█' * cells}"


def _uneven_lines(diff: TraceDiff, width: int) -> list[str]:
    names, lines = width - 58, []
    for title, rows, left in _uneven(diff):
        lines += ["", f"{title:<{names}} {'calls':>15} {'host':>19} {'GPU':>19}"]
        lines += [
            f"{escape.fit(f'{op} {_sizes(shapes)}'.strip(), names)} {calls:>15} {host:>19} {gpu:>19}"
            for op, shapes, calls, host, gpu in rows
        ]
        lines += [f"… {left:,} more, which took less"] if left else []
    return lines


def _uneven_tables(diff: TraceDiff) -> Iterator[str]:
    for title, rows, left in _uneven(diff):
        cells = [
            (_op_html(op, shapes, _sizes(shapes)), *map(escape.html, (calls, host, gpu)))
            for op, shapes, calls, host, gpu in rows
        ]
        caption = title + (f"; {left:,} took less" if left else "")
        yield tables.table(escape.html(caption), ["op and input shapes", "calls", "host", "GPU"], cells)


def _uneven(diff: TraceDiff) -> Iterator[tuple[str, list[tuple[str, str, str, str, str]], int]]:
    """Operators that the two call a different number of times, by who has them, and how many more there are.

    For each: name, input shapes, calls, host time and GPU time.
    """
    for word, sides in ((ONLY_A, "a"), (ONLY_B, "b"), (BOTH, "ab")):
        table = diff.uneven[diff.uneven["matched"] == word]
        rows = []
        for _, row in table.head(MOST_UNEVEN).iterrows():
            shapes = "" if pd.isna(row["shapes"]) else str(row["shapes"])
            calls = _arrow(fmt.count(row[f"calls_{side}"]) for side in sides)
            host = _arrow(fmt.duration(row[f"host_ms_{side}"]) for side in sides)
            gpu = _arrow(_gpu_words(row[f"gpu_ms_{side}"]) for side in sides)
            rows.append((str(row["op"]), shapes, calls, host, gpu))
        if rows:
            yield _UNEVEN[word], rows, len(table) - len(rows)


def _gpu_words(ms: Any) -> str:
    return "none" if fmt.known(ms) == 0 else fmt.duration(ms)


def _arrow(words: Iterable[str]) -> str:
    """``first → second``, or one word if both say the same."""
    return " → ".join(dict.fromkeys(words))


def _sizes(shapes: str) -> str:
    """The shapes of inputs that have some: ``4×197×768, 768×768``."""
    return ", ".join(match.replace(" ", "").replace(",", "×") for match in _SHAPE.findall(shapes))


def _op_html(op: str, whole_shapes: str, shapes: str) -> str:
    """An operator's name and the sizes of its inputs; both in full on hover."""
    second = f' <bdi title="{escape.html(whole_shapes)}"><em>{escape.html(shapes, 34)}</em></bdi>'
    return f"{tables.name(op, 60)}{second if shapes else ''}"


def _kernel_list(names: Sequence[str], width: int) -> str:
    """The first two kernels' short names, and how many more there are; ``none`` without any."""
    shown = ", ".join(dict.fromkeys(_short_kernel(name, width) for name in names[:2]))
    return shown + (f" and {len(names) - 2:,} more" if len(names) > 2 else "") if names else "none"


def _short_kernel(name: object, width: int) -> str:
    """A kernel's name without return type, namespace and arguments; not yet safe for HTML.

    A template whose name says little (``Kernel``, ``Kernel2``) keeps the start of its first argument.
    """
    text = _NAMELESS.sub("", str(name)).strip()
    head, *rest = _OPENERS.split(text, maxsplit=1)
    last = head.rpartition("::")[2]
    if rest and last.startswith("Kernel"):
        last = _OPENERS.split(rest[0], maxsplit=1)[0].rstrip(">,")
    if str(name).startswith(("Memcpy", "Memset")):
        last = text
    return escape.plain(last or text, width)
