"""Two profiles side by side as text and as static HTML: what grew and what shrank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from perfnb import quantities as fmt
from perfnb.diff.layers import PLACE, ProfileDiff
from perfnb.diff.traces import TraceDiff
from perfnb.diff.traces_view import signed, trace_facts, trace_html, trace_text
from perfnb.draw import escape, palette, tables
from perfnb.draw.frame import framed, header
from perfnb.draw.page import static_page

#: Most layers listed.
MOST_LAYERS = 20

_GPU_HEADS = tuple(f"{where}, {what}" for where in ("GPU", "host") for what in ("first", "second", "change"))
_CAUTION = (
    "The two were not measured side by side, and the machine may have drifted in between: to see which step is faster, "
    "use perfnb.ab_test."
)


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
    lines += [] if traces is None else trace_text(traces, width)
    names = width - 44
    rows, on_gpu = list(_layers(diff)), _on_gpu(diff)
    if on_gpu:
        room = width - 57
        title = f"{'layer (own time)':<{room}}"
        lines += ["", f"{title} {'GPU: a':>9} {'GPU: b':>9} {'GPU change':>10} {'host change':>11}"]
    else:
        room = names
        lines += ["", f"{'layer (own host time)':<{room}} {'a':>9} {'b':>9} {'change':>10}"]
    for row in rows:
        gpu = "".join(f" {cell:>{size}}" for cell, size in zip(row.gpu, (9, 9, 10), strict=True))
        host = f" {row.host[2]:>11}" if on_gpu else f" {row.host[0]:>9} {row.host[1]:>9} {row.host[2]:>10}"
        lines.append(f"{escape.fit(row.name, room)}{gpu if on_gpu else ''}{host} {row.how:<12}".rstrip())
    left = len(diff.layers) - len(rows)
    lines += [f"… {left:,} more, which changed less"] if left else []
    lines += ["", f"{'phase (host time)':<{names}} {'a':>9} {'b':>9} {'change':>10}"]
    lines += [f"{escape.fit(word, names)} {x:>9} {y:>9} {grew:>10}" for word, x, y, grew in _phases(diff)]
    return "\n".join([*lines, "", *escape.wrapped(_CAUTION, width)])


def diff_html(diff: ProfileDiff, traces: TraceDiff | None = None) -> str:
    """The comparison as tables without scripts; see `diff_text`."""
    names = [escape.html(diff.a_name, 40), escape.html(diff.b_name, 40)]
    heads = [f"<bdi>{name.replace('.', '<wbr>.')}</bdi>" for name in names]
    sides = " against ".join(escape.plain(name, 40) for name in (diff.b_name, diff.a_name))
    words = header(sides, "comparison of profiles", "", *map(fmt.capital, _facts(diff, traces)))
    listed, on_gpu = list(_layers(diff)), _on_gpu(diff)
    rows: list[tuple[str, ...]] = [(tables.name(row.name), *(row.gpu if on_gpu else ()), *row.host) for row in listed]
    left = len(diff.layers) - len(rows)
    where = "GPU" if on_gpu else "host"
    caption = f"Layers by change in own {where} time" + (f"; {left:,} changed less" if left else "")
    columns = ["layer", *(_GPU_HEADS if on_gpu else [*heads, "change"])]
    if any(row.how for row in listed):
        columns, rows = (
            [*columns, "matched"],
            [(*row, escape.html(one.how)) for row, one in zip(rows, listed, strict=True)],
        )
    phases = [(escape.html(word), x, y, grew) for word, x, y, grew in _phases(diff)]
    return framed(
        f"{words}{'' if traces is None else trace_html(traces, heads)}"
        f"{tables.table(caption, columns, rows, last_texts=int('matched' in columns))}"
        f"{tables.table('Phases, host time', ['phase', *heads, 'change'], phases)}"
        f'<p class="pf-small">{escape.html_sentence(_CAUTION)}</p>',
        narrow=True,
    )


def diff_page(diff: ProfileDiff, traces: TraceDiff | None = None) -> str:
    """The comparison as one self-contained HTML document."""
    return static_page(f"{diff.b_name} against {diff.a_name}", diff_html(diff, traces))


def _facts(diff: ProfileDiff, traces: TraceDiff | None) -> Iterator[str]:
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
        yield from trace_facts(traces)


@dataclass(frozen=True)
class _Layer:
    """A layer's names, its own GPU and host times in both with their change, and how it was matched."""

    name: str
    gpu: tuple[str, str, str]
    host: tuple[str, str, str]
    how: str


def _on_gpu(diff: ProfileDiff) -> bool:
    return bool(diff.layers["grew_gpu_ms"].notna().any())


def _layers(diff: ProfileDiff) -> Iterator[_Layer]:
    """The layers that changed most: in GPU time if both have any, else in host time."""
    changed = diff.layers["grew_gpu_ms" if _on_gpu(diff) else "grew_ms"]
    order = changed.abs().fillna(-1.0).sort_values(ascending=False, kind="stable").index
    for _, row in diff.layers.loc[order].head(MOST_LAYERS).iterrows():
        a, b = (None if pd.isna(name) else str(name) for name in (row["a"], row["b"]))
        name = f"{a} → {b}" if a and b and a != b else a or b or ""
        how = (
            "only first" if b is None else "only second" if a is None else "by place" if row["matched"] == PLACE else ""
        )
        gpu, host = (
            (fmt.duration(row[f"{time}_a"]), fmt.duration(row[f"{time}_b"]), signed(row[grew]))
            for time, grew in (("self_gpu_ms", "grew_gpu_ms"), ("self_ms", "grew_ms"))
        )
        yield _Layer(name, gpu, host, how)


def _phases(diff: ProfileDiff) -> Iterator[tuple[str, str, str, str]]:
    for phase, row in diff.phases.iterrows():
        if (row[["ms_a", "ms_b"]].dropna() > 0).any():
            word = palette.mark(str(phase)).word
            yield word, fmt.duration(row["ms_a"]), fmt.duration(row["ms_b"]), signed(row["grew_ms"])
