"""What the memory and roofline charts in the browser are drawn from: short columns, coded as differences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, palette

if TYPE_CHECKING:
    from perfnb.memory.memory_table import MemorySummary
    from perfnb.roofline.levels import Roofline

#: Greatest number of owners, and of layers and of ops in a roofline, that the browser gets; the heaviest ones.
MOST_OWNERS, MOST_LAYERS, MOST_OPS = 200, 400, 100

_NONE = -1
_POINT_COLUMNS = {
    "flops": "flops",
    "bytes": "bytes",
    "ms": "ms",
    "intensity": "intensity",
    "achieved": "achieved_flops_per_s",
    "attainable": "attainable_flops_per_s",
    "efficiency": "efficiency",
}


def memory_data(summary: MemorySummary) -> dict[str, Any]:
    """Everything that the memory view shows, ready for JSON.

    Instants are integer nanoseconds and amounts integer bytes. A column named in ``instants`` holds the first value
    and then differences, ``None`` where it is unknown; a column in which nothing is known is ``None``. Names stand
    once in ``names``, and columns of names hold places in it, -1 for none.
    """
    names = _Names()
    timeline, largest, owners = summary.timeline, summary.largest, summary.owners.head(MOST_OWNERS)
    times = [_nanoseconds(t) for t in timeline["t_ms"]]
    largest = largest.assign(start_ns=[_nanoseconds(t) for t in largest["start_ms"]]).sort_values("start_ns")
    return {
        "device": escape.plain(summary.device),
        "step_ns": _nanoseconds(summary.step_ms),
        "peak": {"at": _place(times, _nanoseconds(summary.peak_ms)), "bytes": int(summary.peak_bytes)},
        "categories": [
            {
                "word": mark.word,
                "colour": mark.colour,
                "pattern": mark.pattern,
                "peak": _whole(summary.by_category.get(name)),
            }
            for name, mark in palette.CATEGORIES.items()
        ],
        "phases": [
            {
                "word": escape.plain(mark.word),
                "colour": mark.colour,
                "pattern": mark.pattern,
                "start_ns": _nanoseconds(start),
                "end_ns": _nanoseconds(end),
            }
            for mark, start, end in zip(
                (palette.mark(str(name)) for name in summary.phases["phase"]),
                summary.phases["start_ms"],
                summary.phases["end_ms"],
                strict=True,
            )
        ],
        "instants": {
            "t": _differences(times),
            "categories": [_amounts(timeline[name]) for name in palette.CATEGORIES],
            "total": _amounts(timeline["total"]),
            "reserved": _amounts(timeline["reserved"]),
            "process": _amounts(timeline["process"]),
        },
        "largest": {
            "bytes": [int(value) for value in largest["bytes"]],
            "category": _categories(largest["category"]),
            "start": _differences(list(largest["start_ns"])),
            "end": [_nanoseconds(t) - start for t, start in zip(largest["end_ms"], largest["start_ns"], strict=True)],
            "phase": names.places(_phase_words(largest["phase"])),
            **{column: names.places(largest[column]) for column in ("layer", "op", "name")},
        },
        "owners": {
            "category": _categories(owners["category"]),
            "layer": names.places(owners["layer"]),
            "bytes": [int(value) for value in owners["bytes"]],
            "count": [_whole(value) for value in owners["count"]],
            "share": [_short(value) for value in owners["share"]],
            "left_out": max(0, len(summary.owners) - MOST_OWNERS),
        },
        "fits": [
            {
                "option": escape.plain(row.option),
                "frees": _whole(row.frees_bytes),
                "basis": escape.plain(row.basis, 20),
                "detail": escape.plain(row.detail, 600),
            }
            for row in summary.fits.itertuples()
        ],
        "process_peak": _whole(summary.process_peak_bytes),
        "reserved_peak": _whole(summary.reserved_peak_bytes),
        "fragmentation": _short(summary.fragmentation),
        "retries": _whole(summary.retries),
        "ooms": _whole(summary.ooms),
        "largest_free": _whole(summary.largest_free_bytes),
        "incomplete": None if summary.incomplete is None else escape.plain(summary.incomplete, 600),
        "names": names.listed,
    }


def roofline_data(roofline: Roofline) -> dict[str, Any]:
    """Everything that the roofline shows, ready for JSON; unknown figures are ``None``."""
    points = heaviest_points(roofline.points)
    uncounted = roofline.uncounted.head(MOST_OPS)
    return {
        "device": escape.plain(roofline.device),
        "peaks": [[escape.plain(dtype, 40), _short(peak)] for dtype, peak in roofline.peaks.items()],
        "bandwidth": _short(roofline.bandwidth),
        "doubt": fmt.capital(doubt) + "." if (doubt := ceilings_doubt(roofline)) else "",
        "utilisation": _short(roofline.utilisation),
        "flops": _whole(roofline.flops),
        "points": {
            "op": [int(kind == "op") for kind in points["kind"]],
            "name": [escape.plain(name) for name in points["name"]],
            "bound": [None if pd.isna(bound) else str(bound) for bound in points["bound"]],
            "dtype": [None if pd.isna(dtype) else escape.plain(dtype, 40) for dtype in points["dtype"]],
            **{short: [_short(value) for value in points[column]] for short, column in _POINT_COLUMNS.items()},
            "left_out": len(roofline.points) - len(points),
        },
        "uncounted": {
            "op": [escape.plain(name) for name in uncounted["op"]],
            "calls": [_short(value) for value in uncounted["calls"]],
            "ms": [_short(value) for value in uncounted["ms"]],
            "share": [_short(value) for value in uncounted["share"]],
            "total_share": _short(roofline.uncounted["share"].sum()) if len(roofline.uncounted) else None,
        },
    }


def ceilings_doubt(roofline: Roofline) -> str:
    """Why the ceilings may be too low; empty where nothing says so."""
    doubts = [
        f"the measured {escape.plain(dtype, 40)} ceiling ({fmt.flops(peak)}/s) was too low: part of this step ran "
        "faster, and its rate is used instead"
        for dtype, peak in roofline.refuted.items()
    ]
    if roofline.ceilings_doubted:
        used = fmt.share(roofline.others)
        doubts.append(f"other programs used {used} of the CPUs while ceilings were measured: they may be too low")
    return "; ".join(doubts)


def heaviest_points(points: pd.DataFrame) -> pd.DataFrame:
    """The layers, then the ops, that take most time: as many as are drawn, heaviest first."""
    ordered = points.sort_values("ms", ascending=False, kind="stable")
    layers, ops = ordered[ordered["kind"] != "op"], ordered[ordered["kind"] == "op"]
    return pd.concat([layers.head(MOST_LAYERS), ops.head(MOST_OPS)])


class _Names:
    """Names made plain, each listed once."""

    def __init__(self) -> None:
        self.listed: list[str] = []
        self._places: dict[str, int] = {}

    def places(self, values: Iterable[Any]) -> list[int]:
        return [_NONE if pd.isna(value) else self._place(str(value)) for value in values]

    def _place(self, raw: str) -> int:
        if raw not in self._places:
            self._places[raw] = len(self.listed)
            self.listed.append(escape.plain(raw))
        return self._places[raw]


def _phase_words(phases: Iterable[Any]) -> Iterable[Any]:
    return (phase if pd.isna(phase) else palette.mark(str(phase)).word for phase in phases)


def _categories(values: Iterable[Any]) -> list[int]:
    places = {name: place for place, name in enumerate(palette.CATEGORIES)}
    return [places.get(str(value), places["other"]) for value in values]


def _amounts(values: pd.Series) -> list[int | None] | None:
    """Bytes as differences; ``None`` where nothing is known, or nothing but zeros."""
    amounts = [_whole(value) for value in values]
    return _differences(amounts) if any(amounts) else None


def _differences(values: Iterable[int | None]) -> list[int | None]:
    """Each value less the known one before it."""
    before, result = 0, list[int | None]()
    for value in values:
        result.append(None if value is None else value - before)
        before = before if value is None else value
    return result


def _place(times: list[int], wanted: int) -> int:
    """Place of the instant nearest to `wanted`."""
    return min(range(len(times)), key=lambda i: abs(times[i] - wanted), default=0)


def _nanoseconds(ms: Any) -> int:
    return round(1e6 * (fmt.known(ms) or 0.0))


def _whole(value: Any) -> int | None:
    return None if fmt.known(value) is None else int(value)


def _short(value: Any) -> float | None:
    number = fmt.known(value)
    return None if number is None else fmt.rounded(number, 6)
