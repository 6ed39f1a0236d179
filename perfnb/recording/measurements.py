"""Saving and loading step times, and reports on a change: a folder of Parquet and JSON each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from perfnb.errors import RecordingError
from perfnb.files import usable
from perfnb.recording import folder, raw_columns, storage
from perfnb.recording.folder import Kind
from perfnb.recording.recording import Recording
from perfnb.recording.saved import PROFILE
from perfnb.recording.saved_facts import ReportFacts, TimingFacts

_TIMING = Kind("timing", frozenset({"steps"}), frozenset({"noise"}), TimingFacts)
_REPORT = Kind(
    "report", frozenset({"pairs", "losses", "table"}), frozenset({"change", "experiment", "quality"}), ReportFacts
)
#: Folders of the two profiles.
SIDES = ("baseline", "candidate")


def save_timing(steps: pd.DataFrame, meta: Mapping[str, Any], path: str | Path) -> Path:
    """Write step times to the folder `path`, whole or not at all; an earlier one there is replaced.

    Parameters
    ----------
    steps : DataFrame
        ``pass`` (warmup, timed) and ``wall_ms``.
    """
    return folder.save(_TIMING, {"steps": steps}, meta, path)


def load_timing(path: str | Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Read step times that `save_timing` wrote."""
    source = usable(path)
    meta = folder.load_meta(_TIMING, source)
    return folder.load_frame("steps", raw_columns.TIMED, source), meta


def is_timing(path: str | Path) -> bool:
    """Whether saved step times stand at `path`."""
    return folder.is_one(_TIMING, path)


def save_report(
    frames: Mapping[str, pd.DataFrame], profiles: Mapping[str, Recording], meta: Mapping[str, Any], path: str | Path
) -> Path:
    """Write a report to the folder `path`, with the profiles of both steps in folders of their own; as `save_timing`.

    Parameters
    ----------
    frames : mapping
        ``pairs``, ``losses``, and for other tools ``table``.
    profiles : mapping
        By `SIDES`; empty where none were made.
    """
    parts = {name: (recording.frames(), recording.meta) for name, recording in profiles.items()}
    return folder.save_all(_REPORT, PROFILE, parts, meta, path, frames)


def load_report(path: str | Path) -> tuple[dict[str, pd.DataFrame], dict[str, Recording], dict[str, Any]]:
    """Read a report that `save_report` wrote."""
    source = usable(path)
    meta = folder.load_meta(_REPORT, source)
    columns = {"pairs": raw_columns.PAIRS, "losses": raw_columns.LOSSES}
    frames = {name: folder.load_frame(name, its, source) for name, its in columns.items()}
    there = [name for name in SIDES if storage.is_profile(source / name)]
    if len(there) == 1:
        missing = next(name for name in SIDES if name not in there)
        raise RecordingError(f"{source} is damaged: the profile of the {missing} is missing.")
    return frames, {name: storage.load(source / name) for name in there}, meta


def is_report(path: str | Path) -> bool:
    """Whether a saved report on a change stands at `path`."""
    return folder.is_one(_REPORT, path)
