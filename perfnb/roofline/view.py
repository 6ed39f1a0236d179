"""The roofline without scripts: a picture with a table, and text."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, tables
from perfnb.draw.frame import header
from perfnb.draw.picture import picture_html
from perfnb.recording.text import TEXT
from perfnb.roofline.data import ceilings_doubt, heaviest_points
from perfnb.roofline.picture import draw_roofline

if TYPE_CHECKING:
    from perfnb.roofline.levels import Roofline

#: Most layers and ops that are listed.
ROWS_IN_HTML, ROWS_IN_TEXT = (15, 8), (8, 4)
_UNCOUNTED_LISTED = 5

_INCHES = (8.8, 4.2)


def roofline_html(roofline: Roofline, alone: bool = False) -> str:
    """The roofline as a picture with a table; `alone`, with a header like every view."""
    facts = roofline_facts(roofline)
    if alone:
        used = fmt.known(roofline.utilisation)
        verdict = "" if used is None else f"{fmt.share(used)} of the device's peak"
        parts = [header("A step", f"roofline · {escape.plain(roofline.device, 80)}", verdict, *facts)]
    else:
        lines = "<br>".join(map(escape.html_sentence, facts))
        parts = [f"<p><strong>Roofline</strong> · {escape.html(roofline.device)}<br>{lines}</p>"]
    if _can_be_drawn(roofline):
        parts.append(
            f"<p>{picture_html(functools.partial(draw_roofline, roofline=roofline), _INCHES, _alt(roofline))}</p>"
        )
    listed = _listed(roofline.points, *ROWS_IN_HTML)
    rows = [
        (
            tables.name(row.name),
            escape.html(row.kind, 20),
            bound_words(row.bound),
            escape.html(fmt.share(row.efficiency)),
            flop_rate(row.achieved_flops_per_s),
            intensity(row.intensity),
            fmt.flops(row.flops),
            fmt.size(row.bytes),
            fmt.duration(row.ms),
        )
        for row in listed.itertuples(index=False)
    ]
    heads = ["name", "kind", "bound", "of the roof", "achieved", "FLOP per byte", "arithmetic", "moved", "time"]
    if rows:
        left = len(roofline.points) - len(rows)
        more = f"; {left:,} with less time are not listed" if left else ""
        parts.append(tables.table(f"Layers and ops under the roof{more}", heads, rows, texts=3))
    return "".join(parts)


def roofline_text(roofline: Roofline, width: int = 100) -> list[str]:
    """The roofline as lines of at most `width` cells."""
    lines = escape.wrapped(f"Roofline · {escape.plain(roofline.device, width)}", width)
    for fact in roofline_facts(roofline):
        lines += escape.wrapped(escape.plain(fact, 2000), width)
    listed = _listed(roofline.points, *ROWS_IN_TEXT)
    if not len(listed):
        return lines
    names = width - 61
    heads = f"{'of the roof':>11} {'achieved':>13} {'FLOP/B':>7} {'time':>8}"
    lines.append(f"{'layer or op':<{names}} {'bound':<17} {heads}")
    for row in listed.itertuples(index=False):
        roof = f"{fmt.share(row.efficiency):>11} {flop_rate(row.achieved_flops_per_s):>13}"
        figures = f"{roof} {intensity(row.intensity):>7} {fmt.duration(row.ms):>8}"
        lines.append(f"{escape.fit(row.name, names)} {bound_words(row.bound):<17} {figures}")
    left = len(roofline.points) - len(listed)
    return [*lines, f"… {left:,} more with less time"] if left else lines


def roofline_facts(roofline: Roofline) -> list[str]:
    """The machine's ceilings, what the step makes of them, and what is not counted."""
    peaks = [f"{flop_rate(peak)} in {escape.plain(dtype, 40)}" for dtype, peak in roofline.peaks.items()]
    wide = "" if roofline.bandwidth is None else f"{byte_rate(roofline.bandwidth)} memory bandwidth"
    ceilings = ", ".join(filter(None, [*peaks, wide]))
    facts = [f"measured ceilings: {ceilings}" if ceilings else f"ceilings {fmt.UNKNOWN}"]
    if doubt := ceilings_doubt(roofline):
        facts.append(doubt)
    if roofline.flops is not None:
        facts.append(f"arithmetic per step: {fmt.flops(roofline.flops)}")
    if roofline.utilisation is not None:
        facts.append(f"utilisation: {fmt.share(roofline.utilisation)} of the device's peak over a timed step")
    layers = roofline.points[roofline.points["kind"] != "op"]
    bounds = layers["bound"].dropna().astype(TEXT)
    counted = [(int((bounds == key).sum()), word) for key, word in _BOUND_WORDS.items()]
    if any(number for number, _ in counted):
        facts.append("layers: " + ", ".join(f"{number:,} {word}" for number, word in counted if number))
    if len(roofline.uncounted):
        names = ", ".join(escape.plain(op, 40) for op in roofline.uncounted["op"].head(_UNCOUNTED_LISTED))
        more = len(roofline.uncounted) - _UNCOUNTED_LISTED
        share = fmt.share(roofline.uncounted["share"].sum())
        facts.append(
            f"ops without a formula, not counted: {share} of the traced step, in {names}"
            + (f" and {more:,} more" if more > 0 else "")
        )
    return facts


def bound_words(bound: Any) -> str:
    """``compute-bound``, ``memory-bound`` or ``n/a``."""
    return fmt.UNKNOWN if pd.isna(bound) else _BOUND_WORDS.get(str(bound), fmt.UNKNOWN)


def flop_rate(value: Any) -> str:
    """``118 GFLOP/s``."""
    return fmt.UNKNOWN if fmt.known(value) is None else f"{fmt.flops(value)}/s"


def byte_rate(value: Any) -> str:
    """``21.0 GB/s``: rates go in powers of 1,000."""
    if fmt.known(value) is None:
        return fmt.UNKNOWN
    number, _, prefix = fmt.count(value).partition(" ")
    return f"{number} {prefix}B/s"


def intensity(value: Any) -> str:
    """FLOPs for each byte moved."""
    return fmt.significant(value)


_BOUND_WORDS = {"compute": "compute-bound", "memory": "memory-bound"}


def _listed(points: pd.DataFrame, layers: int, ops: int) -> pd.DataFrame:
    ordered = heaviest_points(points)
    return pd.concat([ordered[ordered["kind"] != "op"].head(layers), ordered[ordered["kind"] == "op"].head(ops)])


def _can_be_drawn(roofline: Roofline) -> bool:
    points = roofline.points
    placed = points["intensity"].fillna(0).gt(0) & points["achieved_flops_per_s"].fillna(0).gt(0)
    return bool(placed.any())


def _alt(roofline: Roofline) -> str:
    heaviest = _listed(roofline.points, 3, 0)
    words = "; ".join(
        f"{escape.plain(row.name, 60)} {bound_words(row.bound)}, {fmt.share(row.efficiency)} of the roof"
        for row in heaviest.itertuples(index=False)
    )
    return f"Roofline, achieved FLOP/s against FLOP per byte: {words}"
