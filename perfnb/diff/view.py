"""Two profiles or traces side by side as text and as static HTML: what grew and what shrank."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.diff.layers import PLACE, ProfileDiff
from perfnb.diff.traces import BOTH, ONLY_A, ONLY_B, TraceDiff
from perfnb.draw import escape, palette, tables
from perfnb.draw.frame import framed, header, static_page
from perfnb.recording.schema import NO_OP_ROW

#: Most layers listed; most operators: with all layers summed, by layer, and of each kind in only one trace or called
#: unevenly.
MOST_LAYERS, MOST_OPERATORS, MOST_OPS, MOST_UNEVEN = 20, 12, 10, 8
#: If less than this share of either's time is in operators that both have alike, they may not run the same model.
_ALIKE = 0.5

_GPU_HEADS = tuple(f"{where}, {what}" for where in ("GPU", "host") for what in ("first", "second", "change"))
_CAUTION = (
    "The two were not measured side by side, and the machine may have drifted in between: to see which step is faster, "
    "use perfnb.ab_test."
)
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
_NO_CHANGE = "No op took more or less time."
_CELLS = 11
_SHAPE = re.compile(r"\[([0-9][0-9, ]*)\]")
_NAMELESS = re.compile(r"\(anonymous namespace\)::|at::native::|^void |^_ZN?[A-Za-z0-9_]*?\d+(?=[a-z])")
#: Where a compiler wrote arguments, at whatever depth.
_OPENERS = re.compile(r"[<(]")
#: A word, the time in both, and its change.
_Change = tuple[str, str, str, str]


def diff_text(diff: ProfileDiff, traces: TraceDiff | None = None, width: int = 100) -> str:
    """The comparison as text.

    Parameters
    ----------
    diff : ProfileDiff
    traces : TraceDiff, optional
        Operators and kernels, if both have traced steps.
    width : int
        Most characters per line.
    """
    a, b = (escape.plain(name, 30) for name in (diff.a_name, diff.b_name))
    lines = [escape.shorten(f"perfnb · {b} against {a}", width)]
    lines += [line for fact in _facts(diff, traces) for line in escape.wrapped(fact, width)]
    lines += [] if traces is None else [*_operator_lines(traces, width), *_uneven_lines(traces, width)]
    names, on_gpu = width - 44, _on_gpu(diff)
    room = width - 57 if on_gpu else names
    if on_gpu:
        title = f"{'layer (own time)':<{room}}"
        lines += ["", f"{title} {'GPU: a':>9} {'GPU: b':>9} {'GPU change':>10} {'host change':>11}"]
    else:
        lines += ["", _line("layer (own host time)", "a", "b", "change", names)]
    layers = list(_layers(diff))
    for name, gpu, host, how in layers:
        line = f"{_line(name, *gpu, room)} {host[2]:>11}" if on_gpu else _line(name, *host, room)
        lines.append(f"{line} {how:<12}".rstrip())
    left = len(diff.layers) - len(layers)
    lines += [f"… {left:,} more, which changed less"] if left else []
    lines += ["", _line("phase (host time)", "a", "b", "change", names)]
    lines += [_line(*phase, names) for phase in _phases(diff)]
    return "\n".join([*lines, "", *escape.wrapped(_CAUTION, width)])


def diff_html(diff: ProfileDiff, traces: TraceDiff | None = None) -> str:
    """The comparison as tables without scripts; see `diff_text`."""
    names = [escape.html(diff.a_name, 40), escape.html(diff.b_name, 40)]
    heads = [f"<bdi>{name.replace('.', '<wbr>.')}</bdi>" for name in names]
    sides = " against ".join(escape.plain(name, 40) for name in (diff.b_name, diff.a_name))
    words = header(sides, "comparison of profiles", "", *map(fmt.capital, _facts(diff, traces)))
    layers, on_gpu = list(_layers(diff)), _on_gpu(diff)
    columns = ["layer", *(_GPU_HEADS if on_gpu else [*heads, "change"])]
    rows = [[tables.name(name), *(gpu if on_gpu else ()), *host] for name, gpu, host, _ in layers]
    matched = any(how for *_, how in layers)
    if matched:
        columns.append("matched")
        rows = [[*row, how] for row, (*_, how) in zip(rows, layers, strict=True)]
    caption = f"Layers by change in own {'GPU' if on_gpu else 'host'} time{_rest(diff.layers, rows)}"
    phases = [(escape.html(word), *times) for word, *times in _phases(diff)]
    return framed(
        f"{words}{'' if traces is None else _trace_html(traces, heads)}"
        f"{tables.table(caption, columns, rows, last_texts=int(matched))}"
        f"{tables.table('Phases, host time', ['phase', *heads, 'change'], phases)}"
        f'<p class="pf-small">{escape.html_sentence(_CAUTION)}</p>',
        narrow=True,
    )


def diff_page(diff: ProfileDiff, traces: TraceDiff | None = None) -> str:
    """The comparison as one self-contained HTML document."""
    return static_page(f"{diff.b_name} against {diff.a_name}", diff_html(diff, traces))


def _facts(diff: ProfileDiff, traces: TraceDiff | None) -> Iterator[str]:
    """What to know before reading the figures."""
    traced = [fmt.duration(diff.phases[f"ms_{side}"].sum(min_count=1)) for side in ("a", "b")]
    yield (
        f"step {fmt.duration(diff.a_step_ms)} → {fmt.duration(diff.b_step_ms)} (medians of the timed steps); "
        f"traced {' → '.join(traced)}"
    )
    if diff.a_peak_bytes is not None and diff.b_peak_bytes is not None:
        yield f"peak memory {fmt.size(diff.a_peak_bytes)} → {fmt.size(diff.b_peak_bytes)}"
    only_a, only_b = int(diff.layers["b"].isna().sum()), int(diff.layers["a"].isna().sum())
    if only_a or only_b:
        yield f"{only_a:,} layers only in the first, {only_b:,} only in the second"
    if traces is not None:
        yield from _trace_facts(traces)


def _line(name: str, a: str, b: str, change: str, names: int) -> str:
    """A row of a text table whose first column is `names` cells wide."""
    return f"{escape.fit(name, names)} {a:>9} {b:>9} {change:>10}"


def _rest(table: pd.DataFrame, listed: Sequence[object]) -> str:
    """How many rows are not listed, for a caption."""
    left = len(table) - len(listed)
    return f"; {left:,} changed less" if left > 0 else ""


def _on_gpu(diff: ProfileDiff) -> bool:
    return bool(diff.layers["grew_gpu_ms"].notna().any())


def _layers(diff: ProfileDiff) -> Iterator[tuple[str, tuple[str, str, str], tuple[str, str, str], str]]:
    """The layers that changed most: in GPU time if both have any, else in host time.

    Of each its names, its own GPU and host times in both with their change, and how it was matched.
    """
    changed = diff.layers["grew_gpu_ms" if _on_gpu(diff) else "grew_ms"]
    order = changed.abs().fillna(-1.0).sort_values(ascending=False, kind="stable").index
    for _, row in diff.layers.loc[order].head(MOST_LAYERS).iterrows():
        names = [str(name) for name in (row["a"], row["b"]) if not pd.isna(name)]
        how = "by place" if row["matched"] == PLACE else ""
        if len(names) == 1:
            how = "only second" if pd.isna(row["a"]) else "only first"
        gpu, host = (
            (fmt.duration(row[f"{time}_a"]), fmt.duration(row[f"{time}_b"]), signed(row[grew]))
            for time, grew in (("self_gpu_ms", "grew_gpu_ms"), ("self_ms", "grew_ms"))
        )
        yield _arrow(names), gpu, host, how


def _phases(diff: ProfileDiff) -> Iterator[_Change]:
    return _changes(diff.phases, {name: palette.mark(str(name)).word for name in diff.phases.index})


def _changes(table: pd.DataFrame, words: Mapping[Any, str]) -> Iterator[_Change]:
    """The rows of a table in which either has any time."""
    for name, row in table.iterrows():
        if (row[["ms_a", "ms_b"]].dropna() > 0).any():
            yield _change(words[name], row)


def _change(word: str, row: pd.Series) -> _Change:
    return word, fmt.duration(row["ms_a"]), fmt.duration(row["ms_b"]), signed(row["grew_ms"])


def _trace_facts(diff: TraceDiff) -> Iterator[str]:
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


def _operator_lines(diff: TraceDiff, width: int) -> list[str]:
    """Totals, and the operators that changed most."""
    names = width - 44
    lines = []
    for title, changes, notes in _overviews(diff):
        lines += ["", _line(title, "a", "b", "change", names), *(_line(*change, names) for change in changes)]
        lines += [line for note in notes for line in escape.wrapped(note, width)]
    rows = _operators(diff)
    if not rows:
        return [*lines, "", _NO_CHANGE]
    lines += ["", _line(f"op (all layers, {_where(diff)})", "a", "b", "change", names)]
    for row in rows:
        lines.append(f"{_line(row.name, row.a, row.b, row.signed, names)} {_text_bar(row.share)}".rstrip())
        below = " · ".join(filter(None, (row.where, row.kernels)))
        lines += [f"    {escape.plain(below, width - 4)}"] if below else []
    left = len(diff.operators) - len(rows)
    return lines + ([f"… {left:,} more, which changed less"] if left > 0 else [])


def _trace_html(diff: TraceDiff, heads: list[str]) -> str:
    """The same as tables, plus the operators by layer."""
    parts = []
    for title, changes, notes in _overviews(diff):
        parts.append(tables.table(escape.html(title), ["", *heads, "change"], changes))
        parts += [f'<p class="pf-small">{escape.html_sentence(note)}</p>' for note in notes]
    rows = _operators(diff)
    if not rows:
        return "".join([*parts, f'<p class="pf-small">{_NO_CHANGE}</p>', *_uneven_tables(diff)])
    columns = ["op and input shapes", *heads, "change", ""]
    cells = [(*_cells(row), escape.html(row.where), _kernels(row)) for row in rows]
    caption = f"Ops by change in {_where(diff)} time, all layers summed{_rest(diff.operators, rows)}"
    parts.append(tables.table(caption, [*columns, "where", "kernels: first → second"], cells, last_texts=2))
    of_layers = diff.outermost[diff.outermost["layer"].notna()]
    if by_layer := _rows(diff, of_layers, MOST_OPS):
        cells = [(*_cells(row), tables.name(row.layer)) for row in by_layer]
        caption = f"Ops by layer, {_where(diff)} time{_rest(of_layers, by_layer)}"
        parts.append(tables.table(caption, [*columns, "layer"], cells, last_texts=1))
    return "".join([*parts, *_uneven_tables(diff)])


def _where(diff: TraceDiff) -> str:
    return "GPU" if diff.on_gpu else "host"


def _overviews(diff: TraceDiff) -> Iterator[tuple[str, list[_Change], list[str]]]:
    """Tables of totals: title, rows, and notes below."""
    if diff.gpu_time is not None:
        yield "One GPU, per step", list(_changes(diff.gpu_time, _FIGURES)), list(_notes(diff))
    total = _change("total", diff.sums.sum())
    yield "GPU work, summed" if diff.on_gpu else "Host time in ops", [*_changes(diff.sums, _SUMS), total], []


def _notes(diff: TraceDiff) -> Iterator[str]:
    a, b = diff.works
    if a == b:
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


class _DiffRow:
    """One operator's words and figures; its change is also a share of the largest one."""

    def __init__(self, row: pd.Series, what: str, largest: float) -> None:
        ops = (str(row[f"op_{side}"]) for side in ("a", "b") if not pd.isna(row[f"op_{side}"]))
        self.op = _arrow(ops) or str(row["op"])
        self.whole_shapes = "" if pd.isna(row["shapes"]) else str(row["shapes"])
        self.shapes = _sizes(self.whole_shapes)
        self.name = f"{self.op} {self.shapes}".strip()
        self.a, self.b = fmt.duration(row[f"{what}_a"]), fmt.duration(row[f"{what}_b"])
        self.share, self.signed = float(row["grew_ms"]) / largest, signed(row["grew_ms"])
        self.layer = "" if pd.isna(row.get("layer")) else str(row["layer"])
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


def _operators(diff: TraceDiff) -> list[_DiffRow]:
    return _rows(diff, diff.operators, MOST_OPERATORS)


def _rows(diff: TraceDiff, table: pd.DataFrame, most: int) -> list[_DiffRow]:
    """The operators that changed, of the first rows of a table."""
    what, first = "gpu_ms" if diff.on_gpu else "host_ms", table.head(most)
    changed = first[first["grew_ms"].fillna(0.0) != 0.0]
    return [_DiffRow(row, what, float(changed["grew_ms"].abs().max())) for _, row in changed.iterrows()]


def signed(ms: Any) -> str:
    """``+1.20 ms``, ``−34.0 µs``."""
    number = fmt.known(ms)
    if number is None:
        return fmt.UNKNOWN
    return f"{'−' if number < 0 else '+'}{fmt.duration(abs(number))}" if number else "0 ms"


def _cells(row: _DiffRow) -> tuple[str, ...]:
    return _op_html(row.op, row.whole_shapes), row.a, row.b, row.signed, _bar(row.share)


def _kernels(row: _DiffRow) -> str:
    """Short names, with the whole ones on hover."""
    cells = []
    for names in row.lists[: 1 if row.lists[0] == row.lists[1] else 2]:  # the same kernels are listed once
        title = escape.html("\n".join(names[:8]), 1000)
        cells.append(f'<bdi title="{title}">{escape.html(_kernel_list(names, 34), 120)}</bdi>')
    return "<br>→ ".join(cells) if any(row.lists) else ""


def _bar(share: float) -> str:
    """A bar to the right for growth, hatched to the left for shrinkage; the figure beside it says the same."""
    side, width = "pf-more" if share > 0 else "pf-less", 50 * abs(share)
    return f'<span class="pf-grew" aria-hidden="true"><i class="{side}" style="width:{width:.1f}%"></i></span>'


def _text_bar(share: float) -> str:
    half = _CELLS // 2
    cells = round(half * abs(share))
    return f"{'▒' * cells:>{half}}│" if share < 0 else f"{'':>{half}}│{'█' * cells}"


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
        cells = [(_op_html(op, shapes), *map(escape.html, (calls, host, gpu))) for op, shapes, calls, host, gpu in rows]
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


def _op_html(op: str, whole_shapes: str) -> str:
    """An operator's name and the sizes of its inputs; both in full on hover."""
    shapes = _sizes(whole_shapes)
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
