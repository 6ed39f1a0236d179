"""The roofline tab: a picture with a table, text, and the data for the browser."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, tables
from perfnb.draw.document import Document, Picture
from perfnb.draw.frame import header
from perfnb.draw.palette import GREY
from perfnb.draw.picture import GROUND, INK, LINE, QUIET, bare, halo, picture_html
from perfnb.draw.tab import Tab
from perfnb.recording.text import TEXT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from perfnb.roofline.levels import RooflineLevels


#: Most layers and ops sent to the browser, heaviest first.
MOST_LAYERS, MOST_OPS = 400, 100

#: Most layers and ops that are listed.
ROWS_IN_HTML, ROWS_IN_TEXT = (15, 8), (8, 4)
_UNCOUNTED_LISTED = 5
_BOUND_WORDS = {"compute": "compute-bound", "memory": "memory-bound"}
_INCHES = (8.8, 4.2)
#: The fill shows a point's bound, its shape whether it is a layer or an op.
_FILLS = {"compute": (GREY, "compute-bound"), "memory": (GROUND, "memory-bound"), "": ("none", "unknown bound")}
_LABELS = 5
_STYLES = ("-", "--", ":", "-.")
_POINT_COLUMNS = {
    "flops": "flops",
    "bytes": "bytes",
    "ms": "ms",
    "intensity": "intensity",
    "achieved": "achieved_flops_per_s",
    "attainable": "attainable_flops_per_s",
    "efficiency": "efficiency",
}


_COUNTED = {
    "sm_active_percent": "multiprocessors active",
    "tensor_active_percent": "Tensor Cores active",
    "dram_active_percent": "memory bandwidth in use",
}


def roofline_data(roofline: RooflineLevels) -> dict[str, Any]:
    """Everything the roofline tab shows, ready for JSON; unknown figures are ``None``."""
    points = heaviest_points(roofline.points)
    uncounted = roofline.uncounted.head(MOST_OPS)
    return {
        "device": escape.plain(roofline.device),
        "peaks": [[escape.plain(dtype, 40), fmt.short(peak)] for dtype, peak in roofline.peaks.items()],
        "bandwidth": fmt.short(roofline.bandwidth),
        "doubt": fmt.capital(doubt) + "." if (doubt := ceilings_doubt(roofline)) else "",
        "counters": fmt.capital(read) + "." if (read := counters_words(roofline)) else "",
        "utilisation": fmt.short(roofline.utilisation),
        "flops": roofline.flops,
        "points": {
            "op": [int(kind == "op") for kind in points["kind"]],
            "name": [escape.plain(name) for name in points["name"]],
            "bound": [None if pd.isna(bound) else str(bound) for bound in points["bound"]],
            "dtype": [None if pd.isna(dtype) else escape.plain(dtype, 40) for dtype in points["dtype"]],
            **{short: [fmt.short(value) for value in points[column]] for short, column in _POINT_COLUMNS.items()},
            "left_out": len(roofline.points) - len(points),
        },
        "uncounted": {
            "op": [escape.plain(name) for name in uncounted["op"]],
            **{name: [fmt.short(value) for value in uncounted[name]] for name in ("calls", "ms", "share")},
            "total_share": fmt.short(roofline.uncounted["share"].sum()) if len(roofline.uncounted) else None,
        },
    }


def counters_words(roofline: RooflineLevels) -> str:
    """What the GPU's hardware counters read; empty without them."""
    read = [
        f"{word} {fmt.share(roofline.counters[name])}" for name, word in _COUNTED.items() if name in roofline.counters
    ]
    return f"the GPU's hardware counters over the timed steps: {', '.join(read)}" if read else ""


def ceilings_doubt(roofline: RooflineLevels) -> str:
    """Why the ceilings may be too low; empty if nothing suggests it."""
    doubts = [
        f"the measured {escape.plain(dtype, 40)} ceiling ({fmt.flops(peak)}/s) was too low: part of this step ran "
        "faster, and its rate is used instead"
        for dtype, peak in roofline.refuted.items()
    ]
    if roofline.ceilings_doubted:
        used = fmt.share(roofline.others)
        doubts.append(f"other programs used {used} of the CPUs while the ceilings were measured: they may be too low")
    return "; ".join(doubts)


def heaviest_points(points: pd.DataFrame) -> pd.DataFrame:
    """The layers, then the ops, with the most time: as many as are drawn, heaviest first."""
    ordered = points.sort_values("ms", ascending=False, kind="stable")
    layers, ops = ordered[ordered["kind"] != "op"], ordered[ordered["kind"] == "op"]
    return pd.concat([layers.head(MOST_LAYERS), ops.head(MOST_OPS)])


def roofline_html(roofline: RooflineLevels, alone: bool = False) -> str:
    """The roofline as a picture with a table; `alone`, with a header like every view."""
    facts = roofline_facts(roofline)
    if alone:
        used = fmt.known(roofline.utilisation)
        verdict = "" if used is None else f"{fmt.share(used)} of the device's peak"
        parts = [header("A step", f"roofline · {escape.plain(roofline.device, 80)}", verdict, *facts)]
    else:
        lines = "<br>".join(map(escape.html_sentence, facts))
        parts = [f"<p><strong>Roofline</strong> · {escape.html(roofline.device)}<br>{lines}</p>"]
    if len(_placed(roofline.points)):
        parts.append(
            f"<p>{picture_html(functools.partial(draw_roofline, roofline=roofline), _INCHES, _alt(roofline))}</p>"
        )
    listed = map(_cells, _listed(roofline.points, *ROWS_IN_HTML).itertuples(index=False))
    rows = [(tables.name(name), *map(escape.html, cells)) for name, *cells in listed]
    heads = ["name", "kind", "bound", "efficiency", "achieved", "intensity", "FLOPs", "bytes", "time"]
    if rows:
        left = len(roofline.points) - len(rows)
        more = f"; {left:,} with less time are not listed" if left else ""
        parts.append(tables.table(f"Layers and ops under the roof{more}", heads, rows, texts=3))
    return "".join(parts)


def roofline_text(roofline: RooflineLevels, width: int = 100) -> list[str]:
    """The roofline as lines of at most `width` cells."""
    lines = escape.wrapped(f"Roofline · {escape.plain(roofline.device, width)}", width)
    for fact in roofline_facts(roofline):
        lines += escape.wrapped(escape.plain(fact, 2000), width)
    listed = _listed(roofline.points, *ROWS_IN_TEXT)
    if not len(listed):
        return lines
    names = width - 62
    heads = f"{'efficiency':>10} {'achieved':>13} {'intensity':>9} {'time':>8}"
    lines.append(f"{'layer or op':<{names}} {'bound':<17} {heads}")
    for name, _, bound, roof, rate, intensity, *_, time in map(_cells, listed.itertuples(index=False)):
        lines.append(f"{escape.fit(name, names)} {bound:<17} {roof:>10} {rate:>13} {intensity:>9} {time:>8}")
    left = len(roofline.points) - len(listed)
    return [*lines, f"… {left:,} more with less time"] if left else lines


def _cells(row: Any) -> tuple[str, ...]:
    """A point in words: name, kind, bound, share of the roof, rate, intensity, arithmetic, bytes and time."""
    return (
        row.name,
        row.kind,
        bound_words(row.bound),
        fmt.share(row.efficiency),
        flop_rate(row.achieved_flops_per_s),
        fmt.significant(row.intensity),
        fmt.flops(row.flops),
        fmt.size(row.bytes),
        fmt.duration(row.ms),
    )


def roofline_facts(roofline: RooflineLevels) -> list[str]:
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
    if read := counters_words(roofline):
        facts.append(read)
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


def _listed(points: pd.DataFrame, layers: int, ops: int) -> pd.DataFrame:
    ordered = heaviest_points(points)
    return pd.concat([ordered[ordered["kind"] != "op"].head(layers), ordered[ordered["kind"] == "op"].head(ops)])


def _placed(points: pd.DataFrame) -> pd.DataFrame:
    """The points that have a place in the picture."""
    return points[points["intensity"].fillna(0).gt(0) & points["achieved_flops_per_s"].fillna(0).gt(0)]


def _alt(roofline: RooflineLevels) -> str:
    heaviest = map(_cells, _listed(roofline.points, 3, 0).itertuples(index=False))
    words = "; ".join(f"{escape.plain(name, 60)} {bound}, {roof} of the roof" for name, _, bound, roof, *_ in heaviest)
    return f"Roofline, achieved FLOP/s against FLOP per byte: {words}"


def draw_roofline(figure: Figure, roofline: RooflineLevels) -> None:
    """Draw the roofline into an empty figure."""
    axes = figure.subplots()
    points = _placed(heaviest_points(roofline.points))
    peaks = {dtype: peak for dtype, peak in roofline.peaks.items() if peak > 0}
    axes.set_xscale("log")
    axes.set_yscale("log")
    ridges = [peak / roofline.bandwidth for peak in peaks.values()] if roofline.bandwidth else []
    left, right = _span([*points["intensity"].astype(float), *ridges], 2.2)
    low, high = _span([*points["achieved_flops_per_s"].astype(float), *peaks.values()], 1.9)
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)
    bare(axes)
    axes.grid(True, which="major", color=LINE, linewidth=0.6)
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: fmt.significant(value, trim=True))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} FLOP/s" if value < 1000 else _rate(value))
    axes.set_xlabel("arithmetic intensity, FLOP per byte moved")
    _roofs(axes, peaks, roofline.bandwidth, left, right)
    if len(ridges) == 1:
        axes.axvline(ridges[0], color=QUIET, linewidth=0.6, linestyle=":")
        for word, shift, side in (("memory-bound", -5, "right"), ("compute-bound", 5, "left")):
            axes.annotate(
                word, (ridges[0], 0), (shift, 5), xycoords=("data", "axes fraction"), textcoords="offset points",
                ha=side, color=QUIET,
            )  # fmt: skip
    _dots(axes, points)
    _names(axes, points)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)


def _roofs(axes: Axes, peaks: dict[str, float], bandwidth: float | None, left: float, right: float) -> None:
    for place, (dtype, peak) in enumerate(peaks.items()):
        start = left if bandwidth is None else max(left, peak / bandwidth)
        x, y = [start, right], [peak, peak]
        if bandwidth is not None and start > left:
            x, y = [left, *x], [left * bandwidth, *y]
        axes.plot(x, y, color=INK, linewidth=1.6, linestyle=_STYLES[place % len(_STYLES)])
        words = f"{escape.chart(dtype, 20)} {_rate(peak)}"
        _word(axes, words, (right, peak), (-4, 5), ha="right", weight="bold")
    if bandwidth is not None and peaks:
        ridge = min(peaks.values()) / bandwidth
        words = f"{fmt.count(bandwidth)}B/s"
        at = ridge / 3
        _word(axes, words, (at, at * bandwidth), (-5, 5), ha="right", weight="bold")


def _dots(axes: Axes, points: pd.DataFrame) -> None:
    bounds = points["bound"].fillna("").astype(TEXT).where(lambda bound: bound.isin(["compute", "memory"]), "")
    # Ops sum over layers, so each kind has its own scale, and squares stay behind dots.
    for kind, marker, most, order in (("layer", "o", 260.0, 3), ("op", "s", 110.0, 2)):
        chosen = (points["kind"] == "op") == (kind == "op")
        heaviest = max(1e-12, points["ms"][chosen].fillna(0).max()) if chosen.any() else 1.0
        for bound, (fill, word) in _FILLS.items():
            rows = points[chosen & (bounds == bound)]
            if not len(rows):
                continue
            area = np.maximum(14.0, most * rows["ms"].fillna(0).to_numpy(float) / heaviest)
            axes.scatter(
                rows["intensity"].to_numpy(float), rows["achieved_flops_per_s"].to_numpy(float), s=area, marker=marker,
                facecolor=fill, edgecolor=INK, linewidth=0.9, alpha=0.85, zorder=order,
            )  # fmt: skip
            axes.scatter([], [], s=36, marker=marker, facecolor=fill, edgecolor=INK, label=f"{kind}, {word}")


def _names(axes: Axes, points: pd.DataFrame) -> None:
    """Names of the heaviest points, unless they would overlap."""
    placed: list[tuple[float, float]] = []
    (left, right), (low, high) = (np.log10(limit) for limit in (axes.get_xlim(), axes.get_ylim()))
    layers = points[points["kind"] != "op"]
    figures = (layers[column].to_numpy(float) for column in ("intensity", "achieved_flops_per_s"))
    for name, x, y in zip(layers["name"], *figures, strict=True):
        at = ((np.log10(x) - left) / (right - left), (np.log10(y) - low) / (high - low))
        if len(placed) == _LABELS or any(abs(at[0] - a) < 0.22 and abs(at[1] - b) < 0.06 for a, b in placed):
            continue
        placed.append(at)
        late = at[0] > 0.7
        _word(axes, escape.chart(name, 26), (x, y), (-11 if late else 11, -3), ha="right" if late else "left")


def _word(axes: Axes, text: str, at: tuple[float, float], shift: tuple[float, float], **style: Any) -> None:
    halo(axes.annotate(text, at, shift, textcoords="offset points", **style))


def _rate(value: float) -> str:
    number, _, unit = fmt.flops(value).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}/s"


def _span(values: list[float], spare: float) -> tuple[float, float]:
    low, high = min(values, default=1.0), max(values, default=10.0)
    return low / spare, max(high * spare, 10 * low)


TAB = Tab(
    "roofline",
    lambda report: report.summary.roofline,
    lambda part: Document(
        "roofline",
        sections=(
            Picture(
                "roofline",
                "",
                lambda width: roofline_text(part, width),
                lambda: roofline_html(part),
                lambda: roofline_data(part),
                "roofline/js/roofline.js",
                "",
                "roofline",
            ),
        ),
    ),
)
