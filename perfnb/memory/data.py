"""The memory chart's data for the browser: short columns, stored as differences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, palette

if TYPE_CHECKING:
    from perfnb.memory.table import MemorySummary

#: Most owners sent to the browser, heaviest first.
MOST_OWNERS = 200

_NONE = -1


def memory_data(summary: MemorySummary) -> dict[str, Any]:
    """Everything the memory view shows, ready for JSON.

    Instants are integer nanoseconds, amounts integer bytes. A column in ``instants`` holds its first value and then
    differences, ``None`` where unknown; a column in which nothing is known is ``None``. Names are stored once in
    ``names``; name columns hold places in it, -1 for none.
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
            {**mark.data, "peak": _whole(summary.by_category.get(name))} for name, mark in palette.CATEGORIES.items()
        ],
        "phases": [
            {
                **mark.data,
                "word": escape.plain(mark.word),
                "start_ns": _nanoseconds(row.start_ms),
                "end_ns": _nanoseconds(row.end_ms),
            }
            for row in summary.phases.itertuples()
            for mark in (palette.mark(str(row.phase)),)
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
            "share": [fmt.short(value) for value in owners["share"]],
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
        "fragmentation": fmt.short(summary.fragmentation),
        "retries": _whole(summary.retries),
        "ooms": _whole(summary.ooms),
        "largest_free": _whole(summary.largest_free_bytes),
        "incomplete": None if summary.incomplete is None else escape.plain(summary.incomplete, 600),
        "names": names.listed,
    }


class _Names:
    """Escaped names, each listed once."""

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
    """Bytes as differences; ``None`` if nothing is known, or everything is zero."""
    amounts = [_whole(value) for value in values]
    return _differences(amounts) if any(amounts) else None


def _differences(values: Iterable[int | None]) -> list[int | None]:
    """Each value minus the previous known one."""
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
