"""Intervals that are drawn one below the other: the form in which the rows of a timeline are put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from perfnb.attribution.attribution import Attribution
from perfnb.attribution.ops import owner_names
from perfnb.recording.nesting import NONE, Ints
from perfnb.recording.recording import Recording
from perfnb.recording.schema import PHASES, SPECIAL_ROWS

#: What an interval is part of: a phase, or a forward that is run again in backward.
KINDS = (*PHASES, "recompute")
OTHER = KINDS.index("other")
#: No interval is drawn lower than this.
DEEPEST = 255

_COLUMNS = ("start", "duration", "depth", "name", "category", "kind", "layer", "launch", "forward", "detail", "event")


class Labels(dict[str, int]):
    """Numbers texts in the order in which they are first asked for."""

    def __missing__(self, text: str) -> int:
        self[text] = code = len(self)
        return code

    def all_of(self, texts: Iterable[object]) -> Ints:
        """The numbers of some texts."""
        return np.array([self[str(text)] for text in texts], dtype=np.int64)


def rows_of(start: Ints, end: Ints, **columns: Ints | int) -> pd.DataFrame:
    """Rows of a track, in order of depth and time; what is not given is -1, and depth 0."""
    values: dict[str, Ints | int] = {**dict.fromkeys(_COLUMNS, NONE), "depth": 0, "kind": OTHER}
    values |= {"start": start, "duration": np.maximum(end - start, 0), **columns}
    whole = {name: np.broadcast_to(np.asarray(value, dtype=np.int64), len(start)) for name, value in values.items()}
    order = np.lexsort((whole["start"], whole["depth"]))
    return pd.DataFrame({name: column[order] for name, column in whole.items()}, copy=False)


def lanes(start: Ints, end: Ints) -> Ints:
    """For each interval the first line on which it overlaps none before it; of intervals that nest, their depth.

    Parameters
    ----------
    start, end : ndarray
        Sorted by begin, of equal ones the longest first.
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
    """Which places are reached from the first, if `following` tells of each which comes next; doubling the stride."""
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
    """The rows of a track in order of depth and time; where some at one depth overlap, each on the first free line."""
    rows = rows.iloc[np.lexsort((rows["start"], rows["depth"]))].reset_index(drop=True)
    depth, start = rows["depth"].to_numpy(), rows["start"].to_numpy()
    end = start + rows["duration"].to_numpy()
    if not ((depth[1:] == depth[:-1]) & (start[1:] < end[:-1])).any():
        return rows
    order = np.lexsort((depth, -end, start))
    rows = rows.iloc[order].assign(depth=lanes(start[order], end[order]))
    return rows.iloc[np.lexsort((rows["start"], rows["depth"]))].reset_index(drop=True)


def kinds_of(attribution: Attribution) -> Ints:
    """Place in `KINDS` of each block, `OTHER` for a phase that is none."""
    phase = attribution.cells["phase"].cat
    of_phase = np.array([KINDS.index(name) if name in KINDS else OTHER for name in phase.categories], dtype=np.int64)
    recomputed = (attribution.cells["direction"] == "recompute").to_numpy()
    return np.where(recomputed, KINDS.index("recompute"), of_phase[phase.codes.to_numpy()])


def layer_names(recording: Recording) -> list[str]:
    """What layers' numbers in a timeline stand for: the layers, then the rows of their table that are no modules."""
    return [*map(str, recording.modules["name"]), *SPECIAL_ROWS]


def layers_of(recording: Recording, attribution: Attribution) -> Ints:
    """Number of the layer that owns each block, -1 for none; see `layer_names`."""
    names = layer_names(recording)
    place = {name: code for code, name in reversed(list(enumerate(names)))}
    owners, labels = pd.factorize(owner_names(recording, attribution))
    codes = np.array([place.get(str(label), NONE) for label in labels], dtype=np.int64)
    return codes[owners] if len(codes) else np.full(len(owners), NONE, dtype=np.int64)


def joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The rows of all tracks, one after the other."""
    return pd.concat(tables, ignore_index=True) if tables else rows_of(np.array([], dtype=np.int64), np.array([], int))
