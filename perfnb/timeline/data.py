"""The timeline as the browser gets it: a header of JSON and arrays of numbers, compressed."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from perfnb.draw import escape, palette
from perfnb.timeline.coarse import coarser, longest_of, size_of_coarser
from perfnb.timeline.timeline import Timeline

#: Greatest number of compressed bytes that a saved notebook holds, and that a page holds. A notebook writes them as
#: base64, a third larger, beside the script, the report's data and the static twin: all in all at most 2 MB.
NOTEBOOK_BYTES, PAGE_BYTES = 1_000_000, 24_000_000
#: No name of the timeline is longer.
MAX_TEXT = 500

#: Numbers of each event, in the order in which they are written.
_ARRAYS = {
    "start": "<f8", "duration": "<f8", "name": "<u4", "layer": "<i4", "launch": "<i4", "forward": "<i4",
    "detail": "<i4", "depth": "u1", "kind": "u1", "category": "u1",
}  # fmt: skip
_LEVEL = 4
_UNIT = 8
#: A coarser timeline is made for so much less than the limit, since it packs less well.
_ROOM = 0.85
#: Lengths that are tried between one and its double.
_FINE = 4


def bytes_of_report(timeline: Timeline | None, layer_rows: Sequence[int]) -> tuple[bytes, dict[str, Any] | None]:
    """What a notebook saves of a timeline, and the facts of that.

    Without a timeline the bytes are empty, and the facts are ``None``.
    """
    if timeline is None:
        return b"", None
    whole, facts = timeline_bytes(timeline, layer_rows, PAGE_BYTES)
    if len(whole) <= NOTEBOOK_BYTES:
        return whole, facts
    whole_size = len(whole) * facts["total_events"] // facts["events"]
    return timeline_bytes(timeline, layer_rows, NOTEBOOK_BYTES, whole_size)


def timeline_bytes(
    timeline: Timeline, layer_rows: Sequence[int], limit: int, whole_size: int | None = None
) -> tuple[bytes, dict[str, Any]]:
    """The compressed timeline, with less detail where it would be larger than a limit.

    Short events are joined, if need be all; where even that is too large, only the longest stay.

    Parameters
    ----------
    timeline : Timeline
    layer_rows : sequence of int
        For each of its layers the row among those of the report; -1 for none.
    limit : int
        Bytes. Only what a timeline has beside its events (names of layers, curves of memory) can be larger.
    whole_size : int, optional
        About how many bytes all of it takes, where that is known.

    Returns
    -------
    bytes
    dict
        ``events`` in it, ``total_events``, and whether it is ``whole``.
    """
    shown, wanted = timeline, float(len(timeline))
    packed = b"" if whole_size else _packed(timeline, layer_rows, len(timeline), 0)
    size = whole_size or len(packed)
    shortest = 0
    while not packed or (size > limit and wanted >= 1):
        wanted *= min(_ROOM * limit / size, _ROOM)
        shortest = _shortest_for(timeline, int(wanted))
        shown = coarser(timeline, shortest)
        packed = _packed(shown, layer_rows, len(timeline), shortest)
        size = len(packed)
    kept = len(shown)
    while size > limit and kept:  # of very many tracks each has an event left
        kept = int(kept * min(_ROOM * limit / size, _ROOM))
        shown = longest_of(shown, kept)
        packed = _packed(shown, layer_rows, len(timeline), shortest)
        size = len(packed)
    facts = {"events": len(shown), "total_events": len(timeline), "whole": shown is timeline}
    return packed, facts


def _shortest_for(timeline: Timeline, events: int) -> int:
    """About the least length below which events must be joined for no more than so many to stay."""
    first, last = timeline.span_ns
    low, high = 0, _FINE * (last - first + 2).bit_length()
    while low < high:
        middle = (low + high) // 2
        if size_of_coarser(timeline, _length(middle)) <= events:
            high = middle
        else:
            low = middle + 1
    return _length(low)


def _length(step: int) -> int:
    """Lengths that double with every `_FINE` steps."""
    return round(2 ** (step / _FINE))


def _worded(timeline: Timeline) -> list[str]:
    """The names of the rows, with those of the phases as words."""
    phases = set(timeline.kinds)
    return [palette.mark(name).word if name in phases else name for name in timeline.names]


def _packed(timeline: Timeline, layer_rows: Sequence[int], total: int, shortest: int) -> bytes:
    rows = timeline.rows
    names, name = _used(_worded(timeline), rows["name"].to_numpy())
    details, detail = _used(timeline.details, rows["detail"].to_numpy())
    categories, category = _used(timeline.categories, rows["category"].to_numpy())
    values = {column: rows[column].to_numpy() for column in _ARRAYS} | {"name": name, "detail": detail}
    values["category"] = np.minimum(category, 255)
    arrays = {column: values[column].astype(dtype) for column, dtype in _ARRAYS.items()}
    curves = timeline.memory
    arrays["memory_t"] = _chained([curve.times_ns for curve in curves])
    arrays["memory_bytes"] = _chained([curve.bytes for curve in curves])
    places, offset = {}, 0
    for column, array in arrays.items():
        places[column] = [array.dtype.str.lstrip("<|"), offset, len(array)]
        offset += _padded(array.nbytes)
    first, last = timeline.span_ns
    firsts = np.cumsum([0, *(len(curve.bytes) for curve in curves)]).tolist()
    header = {
        "start_ns": first,
        "end_ns": last,
        "events": len(rows),
        "total_events": total,
        "shortest_ns": shortest,
        "names": names,
        "details": details,
        "categories": categories[:256],
        "kinds": [_kind(name) for name in timeline.kinds],
        "layers": [escape.plain(name, MAX_TEXT) for name in timeline.layers],
        "layer_rows": [int(row) for row in layer_rows],
        "tracks": [
            {
                "kind": track.kind,
                "title": escape.plain(track.title, MAX_TEXT),
                "note": track.note,
                "thread": escape.plain(track.thread, MAX_TEXT),
                "first": track.first,
                "count": track.count,
                "depth": track.depth,
            }
            for track in timeline.tracks
        ],
        "memory": [
            {
                "title": f"Memory, {memory_word(curve.device)}",
                "note": curve.note,
                "first": begin,
                "count": len(curve.bytes),
                "most": int(curve.bytes.max(initial=0)),
            }
            for curve, begin in zip(curves, firsts, strict=False)
        ],
        "arrays": places,
    }
    text = json.dumps(header, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
    text += b" " * (_padded(4 + len(text)) - 4 - len(text))
    packer = zlib.compressobj(_LEVEL)
    parts = [packer.compress(struct.pack("<I", len(text)) + text)]
    for array in arrays.values():
        parts.append(packer.compress(array.tobytes() + bytes(_padded(array.nbytes) - array.nbytes)))
    return b"".join([*parts, packer.flush()])


def memory_word(device: str) -> str:
    """The device of a curve in words."""
    return "CPU" if device == "cpu" else escape.plain(device, 40)


def _kind(name: str) -> dict[str, str]:
    mark = palette.mark(name)
    return {"word": mark.word, "colour": mark.colour, "pattern": mark.pattern}


def _used(texts: Sequence[str], codes: npt.NDArray[np.int64]) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The texts that are used, made plain, each once, and the numbers of those; -1 stays."""
    used = np.unique(codes[codes >= 0])
    plain: dict[str, int] = {}
    place = np.full(len(texts) + 1, -1, dtype=np.int64)
    for code in used.tolist():
        place[code] = plain.setdefault(escape.plain(texts[code], MAX_TEXT), len(plain))
    return list(plain), place[codes]


def _chained(parts: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.float64]:
    return np.concatenate([np.zeros(0), *parts]).astype("<f8")


def _padded(size: int) -> int:
    return -(-size // _UNIT) * _UNIT
