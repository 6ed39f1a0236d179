"""Saving and loading a watch: a folder of Parquet files and one JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfnb.files import usable
from perfnb.recording import folder, raw_columns
from perfnb.recording.folder import Kind
from perfnb.recording.reading import Loader
from perfnb.recording.recording import WatchRecord
from perfnb.recording.saved_facts import WatchFacts
from perfnb.recording.storage import watch_of

WATCH = Kind(
    "watch",
    frozenset({"samples", "marks"}),
    frozenset({"interval_s", "devices", "absent", "notes", "ticks", "missed"}),
    WatchFacts,
)


def save_watch(record: WatchRecord, meta: Mapping[str, Any], path: str | Path) -> Path:
    """Write a watch to the folder `path`, all or nothing; an earlier watch there is replaced."""
    return folder.save(WATCH, {"samples": record.samples, "marks": record.marks}, meta, path)


def load_watch(path: str | Path) -> tuple[WatchRecord, dict[str, Any]]:
    """Read what `save_watch` wrote.

    Raises
    ------
    RecordingError
        If there is no watch, or it is damaged or was saved by a newer version.
    """
    source = usable(path)
    meta = folder.load_meta(WATCH, source)
    samples = folder.load_frame("samples", raw_columns.SAMPLES, source)
    marks = folder.load_frame("marks", raw_columns.MARKS, source)
    return watch_of(WatchRecord(samples, marks)), meta


def _load(path: Path, *_: object) -> Any:
    from perfnb.watching.watch import Watch

    return Watch(load_watch(path))


LOADER = Loader("saved watches", WATCH.is_at, _load)
