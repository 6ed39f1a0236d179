"""Saving and loading recordings and watches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from perfnb.errors import RecordingError
from perfnb.files import usable
from perfnb.recording import folder, raw_columns
from perfnb.recording.folder import VERSION, Kind
from perfnb.recording.recording import Recording, WatchRecord
from perfnb.recording.saved import PROFILE, SavedProfile, content, watch_of
from perfnb.recording.saved_facts import RanksFacts, WatchFacts

__all__ = [
    "VERSION",
    "is_profile",
    "is_ranks",
    "is_watch",
    "load",
    "load_ranks",
    "load_watch",
    "save",
    "save_ranks",
    "save_watch",
]

_RANKS = Kind("ranks", frozenset(), frozenset({"ranks"}), RanksFacts)
_WATCH = Kind(
    "watch",
    frozenset({"samples", "marks"}),
    frozenset({"interval_s", "devices", "absent", "notes", "ticks", "missed"}),
    WatchFacts,
)


def save(
    recording: Recording,
    path: str | Path,
    tables: Mapping[str, pd.DataFrame] | None = None,
    made_by: str | None = None,
) -> Path:
    """Write a recording to the folder `path`, whole or not at all; an earlier profile there is replaced.

    Parameters
    ----------
    recording : Recording
    path : str or Path
    tables : mapping of str to DataFrame, optional
        Tables that were computed from it, of those in `perfnb.recording.saved.TABLES`: they are saved beside it.
    made_by : str, optional
        What computed them. They are read again where this is the same; without it they are not saved.

    Raises
    ------
    RecordingError
        If something that is no profile stands at `path`, or it cannot be written.
    """
    return folder.save(PROFILE, *content(recording, tables or {}, made_by), path)


def load(path: str | Path) -> Recording:
    """Read a recording that `save` wrote.

    Raises
    ------
    RecordingError
        If `path` holds none, or a damaged or newer one.
    """
    return SavedProfile(path).recording()


def save_watch(record: WatchRecord, meta: Mapping[str, Any], path: str | Path) -> Path:
    """Write a watch to the folder `path`; as `save`."""
    return folder.save(_WATCH, {"samples": record.samples, "marks": record.marks}, meta, path)


def save_ranks(
    recordings: Sequence[Recording],
    path: str | Path,
    tables: Sequence[Mapping[str, pd.DataFrame]] | None = None,
    made_by: str | None = None,
) -> Path:
    """Write recordings of several ranks to the folder `path`, a profile in a folder ``rank_<n>`` each; as `save`."""
    meta = {"ranks": [recording.rank for recording in recordings]}
    each = tables or [{}] * len(recordings)
    parts = {
        f"rank_{recording.rank}": content(recording, its, made_by)
        for recording, its in zip(recordings, each, strict=True)
    }
    return folder.save_all(_RANKS, PROFILE, parts, meta, path)


def load_ranks(path: str | Path) -> list[SavedProfile]:
    """The profiles that `save_ranks` wrote; as `load`."""
    source = usable(path)
    ranks = folder.load_meta(_RANKS, source)["ranks"]
    if len(set(ranks)) < len(ranks):
        raise RecordingError(f"{source / _RANKS.meta} is damaged: meta.ranks names a rank twice.")
    profiles = [SavedProfile(source / f"rank_{rank}") for rank in ranks]
    for rank, profile in zip(ranks, profiles, strict=True):
        if (own := profile.meta.get("rank", 0)) != rank:
            file = source / f"rank_{rank}" / PROFILE.meta
            raise RecordingError(f"{file} is damaged: its meta.rank is {own}, not {rank}.")
    return profiles


def is_ranks(path: str | Path) -> bool:
    """Whether saved profiles of several ranks stand at `path`."""
    return folder.is_one(_RANKS, path)


def is_profile(path: str | Path) -> bool:
    """Whether a saved profile stands at `path`."""
    return folder.is_one(PROFILE, path)


def is_watch(path: str | Path) -> bool:
    """Whether a saved watch stands at `path`."""
    return folder.is_one(_WATCH, path)


def load_watch(path: str | Path) -> tuple[WatchRecord, dict[str, Any]]:
    """Read a watch that `save_watch` wrote; as `load`."""
    source = usable(path)
    meta = folder.load_meta(_WATCH, source)
    samples = folder.load_frame("samples", raw_columns.SAMPLES, source)
    marks = folder.load_frame("marks", raw_columns.MARKS, source)
    return watch_of(WatchRecord(samples, marks)), meta
