"""Two profiles side by side: what grew and what shrank, as text and as static HTML."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from perfnb.analysis.profile_diff import PLACE, ProfileDiff
from perfnb.analysis.trace_diff import TraceDiff
from perfnb.views import escape, palette, tables
from perfnb.views import format as fmt
from perfnb.views.assets import static_style
from perfnb.views.trace_diff import signed, trace_facts, trace_html, trace_text

#: Greatest number of layers listed.
MOST_LAYERS = 20

_CAUTION = (
    "The two were measured one after the other, and the machine may have drifted between them: whether one step is "
    "faster than the other, perfnb.ab_test tells."
)


def diff_text(diff: ProfileDiff, traces: TraceDiff | None = None, width: int = 100) -> str:
    """The comparison as text.

    Parameters
    ----------
    diff : ProfileDiff
    traces : TraceDiff, optional
        Operators and kernels of both, where both have traced steps.
    width : int
        Greatest width of a line.
    """
    a, b = (escape.plain(name, 30) for name in (diff.a_name, diff.b_name))
    lines = [escape.shorten(f"perfnb · {b} against {a}", width)]
    lines += [line for fact in _facts(diff, traces) for line in escape.wrapped(fact, width)]
    lines += [] if traces is None else trace_text(traces, width)
    names = width - 44
    lines += ["", f"{'layer (own time on the host)':<{names}} {'a':>9} {'b':>9} {'grew by':>10} {'':<12}"]
    rows = list(_layers(diff))
    lines += [
        f"{escape.fit(name, names)} {x:>9} {y:>9} {grew:>10} {how:<12}".rstrip() for name, x, y, grew, how in rows
    ]
    left = len(diff.layers) - len(rows)
    lines += [f"… {left:,} more, which changed less"] if left else []
    lines += ["", f"{'phase':<{names}} {'a':>9} {'b':>9} {'grew by':>10}"]
    lines += [f"{escape.fit(word, names)} {x:>9} {y:>9} {grew:>10}" for word, x, y, grew in _phases(diff)]
    return "\n".join([*lines, "", *escape.wrapped(_CAUTION, width)])


def diff_html(diff: ProfileDiff, traces: TraceDiff | None = None) -> str:
    """The comparison as tables without scripts; see `diff_text`."""
    heads = [escape.html(diff.a_name, 40), escape.html(diff.b_name, 40)]
    facts = "<br>".join(escape.html_sentence(fact) for fact in _facts(diff, traces))
    rows = [(tables.name(name), x, y, grew, escape.html(how)) for name, x, y, grew, how in _layers(diff)]
    left = len(diff.layers) - len(rows)
    caption = "Layers by how much their own time on the host changed" + (f"; {left:,} changed less" if left else "")
    phases = [(escape.html(word), x, y, grew) for word, x, y, grew in _phases(diff)]
    return (
        f'<div class="perfnb-static"><style>{static_style()}</style>'
        f'<p class="pf-head"><strong>{heads[1]}</strong> against <strong>{heads[0]}</strong><br>{facts}</p>'
        f"{'' if traces is None else trace_html(traces, heads)}"
        f"{tables.table(caption, ['layer', *heads, 'grew by', 'matched'], rows)}"
        f"{tables.table('Phases', ['phase', *heads, 'grew by'], phases)}"
        f'<p class="pf-small">{escape.html_sentence(_CAUTION)}</p></div>'
    )


def _facts(diff: ProfileDiff, traces: TraceDiff | None) -> Iterator[str]:
    traced = [fmt.duration(diff.phases[f"ms_{side}"].sum(min_count=1)) for side in ("a", "b")]
    yield (
        f"step {fmt.duration(diff.a_step_ms)} → {fmt.duration(diff.b_step_ms)} (medians of the timed steps); "
        f"as traced {' → '.join(traced)}"
    )
    if diff.a_peak_bytes is not None and diff.b_peak_bytes is not None:
        yield f"peak memory {fmt.size(diff.a_peak_bytes)} → {fmt.size(diff.b_peak_bytes)}"
    only_a, only_b = int(diff.layers["b"].isna().sum()), int(diff.layers["a"].isna().sum())
    if only_a or only_b:
        yield f"{only_a:,} layers only in the first, {only_b:,} only in the second"
    if traces is not None:
        yield from trace_facts(traces)


def _layers(diff: ProfileDiff) -> Iterator[tuple[str, str, str, str, str]]:
    """Names, times, growth and how they were matched, of the layers that changed most."""
    order = diff.layers["grew_ms"].abs().fillna(-1.0).sort_values(ascending=False, kind="stable").index
    for _, row in diff.layers.loc[order].head(MOST_LAYERS).iterrows():
        a, b = (None if pd.isna(name) else str(name) for name in (row["a"], row["b"]))
        name = f"{a} → {b}" if a and b and a != b else a or b or ""
        how = (
            "only first" if b is None else "only second" if a is None else "by place" if row["matched"] == PLACE else ""
        )
        yield name, fmt.duration(row["self_ms_a"]), fmt.duration(row["self_ms_b"]), signed(row["grew_ms"]), how


def _phases(diff: ProfileDiff) -> Iterator[tuple[str, str, str, str]]:
    for phase, row in diff.phases.iterrows():
        if row[["ms_a", "ms_b"]].fillna(0).gt(0).any():
            word = palette.mark(str(phase)).word
            yield word, fmt.duration(row["ms_a"]), fmt.duration(row["ms_b"]), signed(row["grew_ms"])
