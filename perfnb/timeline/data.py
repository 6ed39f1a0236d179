"""Pack the timeline for the browser as a JSON header followed by arrays of numbers, and compress it."""

from __future__ import annotations

import json
import struct
import zlib
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from perfnb.draw import escape, palette
from perfnb.timeline.timeline import Timeline, coarser, longest_of, size_of_coarser

#: The maximum number of compressed bytes in a saved notebook and in a page. A notebook stores them as base64, which is
#: a third larger. Together with the script, the report's data and its static version, this must not exceed 2 MB.
NOTEBOOK_BYTES, PAGE_BYTES = 1_000_000, 24_000_000
#: The maximum length of a name.
MAX_TEXT = 500

#: The columns of the events, in the order they are written.
_ARRAYS = {
    "start": "<f8", "duration": "<f8", "name": "<u4", "layer": "<i4", "launch": "<i4", "forward": "<i4",
    "detail": "<i4", "depth": "u1", "kind": "u1", "category": "u1",
}  # fmt: skip
_LEVEL = 4
_UNIT = 8
#: The target size of a coarser timeline is lower than the limit by this factor, because it compresses less well.
_ROOM = 0.85
#: The number of lengths that are tried per doubling.
_FINE = 4


def bytes_of_report(timeline: Timeline | None, layer_rows: Sequence[int]) -> tuple[bytes, dict[str, Any] | None]:
    """Return the packed timeline for a saved notebook, and facts about it.

    If there is no timeline, the bytes are empty and the facts are ``None``.
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
    """Compress the timeline, reducing its detail if it would otherwise exceed a limit.

    As many short events as necessary are merged. If the result is still too large, only the longest events are kept.

    Parameters
    ----------
    timeline : Timeline
    layer_rows : sequence of int
        The row in the report's layer table for each of the timeline's layers, or -1 if there is none.
    limit : int
        The maximum size in bytes. It can only be exceeded because of layer names, memory curves and other contents of a
        timeline that are not events.
    whole_size : int, optional
        The approximate size of the whole timeline, if it is known.

    Returns
    -------
    bytes
    dict
        ``events`` (the number of events in it), ``total_events``, and ``whole`` (whether it contains all of them).
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
    while size > limit and kept:  # even with a large number of tracks, each one has an event
        kept = int(kept * min(_ROOM * limit / size, _ROOM))
        shown = longest_of(shown, kept)
        packed = _packed(shown, layer_rows, len(timeline), shortest)
        size = len(packed)
    facts = {"events": len(shown), "total_events": len(timeline), "whole": shown is timeline}
    return packed, facts


def _shortest_for(timeline: Timeline, events: int) -> int:
    """Estimate the shortest length below which events must be merged so that at most `most` of them remain."""
    first, last = timeline.span_ns
    lengths = [round(2 ** (step / _FINE)) for step in range(_FINE * (last - first + 2).bit_length() + 1)]
    # The shorter the length, the more rows remain.
    place = bisect_left(lengths[:-1], -events, key=lambda length: -size_of_coarser(timeline, length))
    return lengths[place]


def _packed(timeline: Timeline, layer_rows: Sequence[int], total: int, shortest: int) -> bytes:
    rows = timeline.rows
    worded = [palette.mark(name).word if name in timeline.kinds else name for name in timeline.names]
    names, name = _used(worded, rows["name"].to_numpy())
    details, detail = _used(timeline.details, rows["detail"].to_numpy())
    categories, category = _used(timeline.categories, rows["category"].to_numpy())
    values = dict(rows.items()) | {"name": name, "detail": detail, "category": np.minimum(category, 255)}
    arrays = {column: np.asarray(values[column]).astype(dtype) for column, dtype in _ARRAYS.items()}
    curves = timeline.memory
    arrays["memory_t"] = np.concatenate([[], *(curve.times_ns for curve in curves)]).astype("<f8")
    arrays["memory_bytes"] = np.concatenate([[], *(curve.bytes for curve in curves)]).astype("<f8")
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
        "kinds": [palette.mark(name).data for name in timeline.kinds],
        "layers": [escape.plain(name, MAX_TEXT) for name in timeline.layers],
        "layer_rows": [int(row) for row in layer_rows],
        "tracks": [
            {**vars(track), **{name: escape.plain(getattr(track, name), MAX_TEXT) for name in ("title", "thread")}}
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
    """Return the displayed name of a memory curve's device."""
    return "CPU" if device == "cpu" else escape.plain(device, 40)


def _used(texts: Sequence[str], codes: npt.NDArray[np.int64]) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return the distinct texts that are used, in escaped form, and the new numbers. A number of -1 is unchanged."""
    used = np.unique(codes[codes >= 0])
    plain: dict[str, int] = {}
    place = np.full(len(texts) + 1, -1, dtype=np.int64)
    for code in used.tolist():
        place[code] = plain.setdefault(escape.plain(texts[code], MAX_TEXT), len(plain))
    return list(plain), place[codes]


def _padded(size: int) -> int:
    return -(-size // _UNIT) * _UNIT
