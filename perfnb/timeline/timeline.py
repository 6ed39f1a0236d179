"""The timeline, which consists of intervals on tracks, and functions that merge events that are too short to see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from perfnb.attribution.attribution import Attribution, owner_names
from perfnb.memory.table import fullest
from perfnb.recording.nesting import NONE, Bools, Ints
from perfnb.recording.recording import Recording
from perfnb.recording.schema import PHASES, SPECIAL_ROWS
from perfnb.timeline.memory import MemoryCurve

#: The kinds of intervals: the phases, and forward work that is recomputed in backward.
KINDS = (*PHASES, "recompute")
OTHER = KINDS.index("other")
#: The kinds of tracks that contain the trace's events. Each event is on one of these tracks.
OF_EVENTS = ("thread", "stream", "python")
#: The deepest line that is drawn.
DEEPEST = 255

_COLUMNS = ("start", "duration", "depth", "name", "category", "kind", "layer", "launch", "forward", "detail", "event")


@dataclass(frozen=True)
class Track:
    """One line of a timeline, or several lines if intervals are nested.

    Attributes
    ----------
    kind : str
        ``steps``, ``phases``, ``layers``, ``thread``, ``stream`` or ``python``.
    title : str
        The track's title, which may include a name from the trace.
    first, count : int
        The track's rows in the timeline.
    depth : int
        The number of lines.
    note : str
        A note about the track.
    thread : str
        For Python calls, the title of the thread to which they belong.
    """

    kind: str
    title: str
    first: int
    count: int
    depth: int
    note: str = ""
    thread: str = ""


@dataclass(frozen=True)
class Timeline:
    """Intervals on tracks.

    Attributes
    ----------
    tracks : tuple of Track
        In display order.
    rows : DataFrame
        One row per interval, sorted by track, depth and start. ``start`` and ``duration`` are in nanoseconds, and
        ``start`` is relative to the start of the first traced step. Events that end after their parent are cut.
        ``depth`` is the nesting depth. ``name``, ``category``, ``kind``, ``layer`` and ``detail`` are indices into the
        texts below. ``launch`` and ``forward`` are rows in this table: the call that launched the device work, and the
        forward op to which a backward event belongs. ``event`` is the row in `perfnb.attribution.events.all_events`. A
        value of -1 means that there is none.
    names, categories, kinds, layers, details : tuple of str
        The texts. `kinds` are phases and ``recompute``, and `details` are input shapes.
    memory : tuple of MemoryCurve
        The memory curves, if memory was watched or recorded in a loaded trace.
    zero_ns : int
        The number to add to ``start`` to convert it to the trace's own time.
    """

    tracks: tuple[Track, ...]
    rows: pd.DataFrame
    names: tuple[str, ...]
    categories: tuple[str, ...]
    kinds: tuple[str, ...]
    layers: tuple[str, ...]
    details: tuple[str, ...]
    memory: tuple[MemoryCurve, ...] = ()
    zero_ns: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, kind: str) -> list[Track]:
        """Return all tracks of the given kind."""
        return [track for track in self.tracks if track.kind == kind]

    def rows_on(self, track: Track) -> pd.DataFrame:
        """Return the rows on a track."""
        return self.rows.iloc[track.first : track.first + track.count]

    @property
    def span_ns(self) -> tuple[int, int]:
        """The start of the earliest interval and the end of the latest."""
        if self.rows.empty:
            return 0, 0
        return int(self.rows["start"].min()), int((self.rows["start"] + self.rows["duration"]).max())


class TextNumbers(dict[str, int]):
    """Assigns numbers to texts, in the order of their first request."""

    def __missing__(self, text: str) -> int:
        self[text] = code = len(self)
        return code

    def all_of(self, texts: Iterable[object]) -> Ints:
        """Return the numbers of several texts."""
        return np.array([self[str(text)] for text in texts], dtype=np.int64)


def rows_of(start: Ints, end: Ints, **columns: Ints | int) -> pd.DataFrame:
    """Return a track's rows, sorted by depth and time. Missing columns are filled with -1, or with 0 for ``depth``."""
    values: dict[str, Ints | int] = {**dict.fromkeys(_COLUMNS, NONE), "depth": 0, "kind": OTHER}
    values |= {"start": start, "duration": np.maximum(end - start, 0), **columns}
    whole = {name: np.broadcast_to(np.asarray(value, dtype=np.int64), len(start)) for name, value in values.items()}
    order = np.lexsort((whole["start"], whole["depth"]))
    return pd.DataFrame({name: column[order] for name, column in whole.items()}, copy=False)


def lanes(start: Ints, end: Ints) -> Ints:
    """Return the first line on which each interval does not overlap an earlier interval.

    For nested intervals, this is their depth.

    Parameters
    ----------
    start, end : ndarray
        The intervals, sorted by start, with the longest first.
    """
    lane = np.full(len(start), DEEPEST, dtype=np.int64)
    end = np.maximum(end, start + 1)
    rest = np.arange(len(start))
    for depth in range(DEEPEST):
        if len(rest) == 0:
            break
        chosen = _reached(np.searchsorted(start[rest], end[rest]))
        lane[rest[chosen]] = depth
        rest = rest[~chosen]
    return lane


def _reached(following: Ints) -> np.ndarray:
    """Return a flag for each position that can be reached from the first one by following successors.

    `following` contains each position's successor. The algorithm doubles the stride in each iteration.
    """
    jump = np.append(following, len(following))
    hit = np.zeros(len(jump), dtype=bool)
    hit[0] = True
    while True:
        more = hit.copy()
        more[jump[hit]] = True
        if (more == hit).all():
            return hit[:-1]
        hit, jump = more, jump[jump]


def apart(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a track's rows, sorted by depth and time.

    If rows at the same depth overlap, each row is moved to the first free line.
    """
    rows = rows.iloc[np.lexsort((rows["start"], rows["depth"]))].reset_index(drop=True)
    depth, start = rows["depth"].to_numpy(), rows["start"].to_numpy()
    end = start + rows["duration"].to_numpy()
    if not ((depth[1:] == depth[:-1]) & (start[1:] < end[:-1])).any():
        return rows
    order = np.lexsort((depth, -end, start))
    rows = rows.iloc[order].assign(depth=lanes(start[order], end[order]))
    return rows.iloc[np.lexsort((rows["start"], rows["depth"]))].reset_index(drop=True)


def kinds_of(attribution: Attribution) -> Ints:
    """Return the index in `KINDS` of each block's kind, or `OTHER` for an unknown phase."""
    phase = attribution.cells["phase"].cat
    of_phase = np.array([KINDS.index(name) if name in KINDS else OTHER for name in phase.categories], dtype=np.int64)
    recomputed = (attribution.cells["direction"] == "recompute").to_numpy()
    return np.where(recomputed, KINDS.index("recompute"), of_phase[phase.codes.to_numpy()])


def layer_names(recording: Recording) -> list[str]:
    """Return the texts for layer numbers: the names of the layers, followed by the table rows that are not modules."""
    return [*map(str, recording.modules["name"]), *SPECIAL_ROWS]


def layers_of(recording: Recording, attribution: Attribution) -> Ints:
    """Return the number in `layer_names` of the layer that owns each block, or -1 if there is none."""
    names = layer_names(recording)
    place = {name: code for code, name in reversed(list(enumerate(names)))}
    owners, labels = pd.factorize(owner_names(recording, attribution))
    codes = np.array([place.get(str(label), NONE) for label in labels], dtype=np.int64)
    return codes[owners] if len(codes) else np.full(len(owners), NONE, dtype=np.int64)


def joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the concatenated rows of all tracks."""
    return pd.concat(tables, ignore_index=True) if tables else rows_of(np.array([], dtype=np.int64), np.array([], int))


#: The category of merged events.
JOINED = "joined"
#: The maximum number of points in a memory curve.
_MOMENTS = 4000


def coarser(timeline: Timeline, shortest_ns: int) -> Timeline:
    """Merge neighbouring events that are shorter than `shortest_ns` into blocks.

    Events are neighbours if they are on the same line of a track and less than `shortest_ns` apart. A block has a name
    such as ``12 short events`` and the category ``joined``. Its kind is the one that accounts for most of its time, or
    ``other``. Short events without neighbours are kept.
    """
    joined_rows, first = _joins(timeline, shortest_ns)
    rows, blocks = timeline.rows, joined_rows[first]
    columns = {name: rows[name].to_numpy().copy() for name in rows.columns}
    start, duration = columns["start"], columns["duration"]
    count = np.diff(np.append(first, len(joined_rows)))
    columns["kind"][blocks] = _kinds(columns["kind"][joined_rows], duration[joined_rows], count)
    duration[blocks] = np.maximum.reduceat((start + duration)[joined_rows], first) - start[blocks]
    numbers, place = np.unique(count, return_inverse=True)
    columns["name"][blocks] = len(timeline.names) + place
    columns["category"][blocks] = len(timeline.categories)
    for name in ("layer", "launch", "forward", "detail", "event"):
        columns[name][blocks] = NONE
    single = np.ones(len(rows), dtype=bool)
    single[joined_rows] = False
    kept = single.copy()
    kept[blocks] = True
    place = np.append(np.where(single, np.cumsum(kept) - 1, NONE), NONE)
    for name in ("launch", "forward"):
        columns[name] = place[columns[name]]
    return replace(
        timeline,
        tracks=_tracks(timeline.tracks, kept),
        rows=pd.DataFrame({name: values[kept] for name, values in columns.items()}),
        names=(*timeline.names, *(f"{number:,} short events" for number in numbers.tolist())),
        categories=(*timeline.categories, JOINED),
        memory=tuple(map(_thinned, timeline.memory)),
    )


def longest_of(timeline: Timeline, events: int) -> Timeline:
    """Return a timeline that only contains the `most` longest events.

    Texts that are no longer used are dropped.
    """
    rows = timeline.rows
    order = np.argsort(-rows["duration"].to_numpy(), kind="stable")
    kept = np.zeros(len(rows), dtype=bool)
    kept[order[: max(events, 0)]] = True
    place = np.append(np.where(kept, np.cumsum(kept) - 1, NONE), NONE)
    links = {name: place[rows[name].to_numpy()][kept] for name in ("launch", "forward")}
    return replace(
        timeline,
        tracks=tuple(track for track in _tracks(timeline.tracks, kept) if track.count),
        rows=rows[kept].reset_index(drop=True).assign(**links),
        memory=tuple(map(_thinned, timeline.memory)),
    )


def size_of_coarser(timeline: Timeline, shortest_ns: int) -> int:
    """Return the number of rows that `coarser` would return."""
    joined_rows, first = _joins(timeline, shortest_ns)
    return len(timeline) - len(joined_rows) + len(first)


def _joins(timeline: Timeline, shortest_ns: int) -> tuple[Ints, Ints]:
    """Return the rows to be merged, in order, and the positions at which groups start."""
    rows = timeline.rows
    start, duration, depth = (rows[name].to_numpy() for name in ("start", "duration", "depth"))
    track = np.repeat(np.arange(len(timeline.tracks)), [track.count for track in timeline.tracks])
    short = np.flatnonzero(duration < shortest_ns)
    if len(short) == 0:
        return short, short
    # Short events are separated by any longer event between them.
    neighbours = (np.diff(short) == 1) & (np.diff(track[short]) == 0) & (np.diff(depth[short]) == 0)
    near = start[short[1:]] - (start + duration)[short[:-1]] < shortest_ns
    first = np.flatnonzero(np.concatenate([[True], ~(neighbours & near)]))
    count = np.diff(np.append(first, len(short)))
    several = np.repeat(count > 1, count)
    sizes = count[count > 1]
    return short[several], np.cumsum(sizes) - sizes


def _kinds(kind: Ints, weight: Ints, count: Ints) -> Ints:
    """Return the kind that accounts for more than half of each group's time."""
    series = np.repeat(np.arange(len(count)), count)
    time = np.bincount(series * len(KINDS) + kind, weights=weight + 1.0, minlength=len(count) * len(KINDS))
    table = time.reshape(len(count), len(KINDS))
    return np.where(table.max(axis=1) > table.sum(axis=1) / 2, table.argmax(axis=1), OTHER)


def _tracks(tracks: tuple[Track, ...], kept: Bools) -> tuple[Track, ...]:
    before = np.concatenate([[0], np.cumsum(kept)])
    ends = [(int(before[track.first]), int(before[track.first + track.count])) for track in tracks]
    return tuple(replace(track, first=a, count=b - a) for track, (a, b) in zip(tracks, ends, strict=True))


def _thinned(curve: MemoryCurve) -> MemoryCurve:
    """Return the curve reduced to the maximum in each time bin, plus its first and last values."""
    if len(curve.bytes) <= _MOMENTS:
        return curve
    rows = fullest(curve.times_ns, curve.bytes, _MOMENTS)
    return replace(curve, times_ns=curve.times_ns[rows], bytes=curve.bytes[rows])
