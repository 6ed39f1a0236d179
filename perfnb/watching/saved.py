"""Save and load a watch as a folder of Parquet files and one JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfnb.recording import store
from perfnb.recording.loadable import Loadable
from perfnb.recording.raw_frames import MARKS, SAMPLES
from perfnb.recording.recording import WatchRecord
from perfnb.recording.saved_facts import WatchFacts
from perfnb.recording.saved_profile import watch_of
from perfnb.recording.store import SavedFolder, SavedKind

WATCH = SavedKind("watch", WatchFacts, {"samples": SAMPLES, "marks": MARKS})


def save_watch(record: WatchRecord, meta: Mapping[str, Any], path: str | Path) -> Path:
    """Write a watch atomically to the folder `path`. An earlier watch in the folder is replaced."""
    return store.save(WATCH, {"samples": record.samples, "marks": record.marks}, meta, path)


def load_watch(path: str | Path) -> tuple[WatchRecord, dict[str, Any]]:
    """Load a watch that was written by `save_watch`.

    Raises
    ------
    RecordingError
        If the folder does not contain a watch, or if the watch is damaged or was saved by a newer version.
    """
    saved = SavedFolder(WATCH, path)
    return watch_of(WatchRecord(saved.frame("samples"), saved.frame("marks"))), saved.facts


def _load(path: Path, *_: object) -> Any:
    from perfnb.watching.watch import Watch

    return Watch(load_watch(path))


LOADABLE = Loadable(WATCH.is_at, _load)
