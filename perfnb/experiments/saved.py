"""Saving and loading a report on a change: a folder of Parquet files and one JSON file, with a profile of each step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Required, TypedDict

import pandas as pd
from msgspec import Meta

from perfnb.errors import RecordingError
from perfnb.files import usable
from perfnb.recording import folder, raw_columns, storage
from perfnb.recording.folder import Kind
from perfnb.recording.loaders import Loader
from perfnb.recording.recording import Recording
from perfnb.recording.saved_facts import Above0, Amount, Count, Environment, Noise, Whole

#: Folders of the two profiles.
SIDES = ("baseline", "candidate")


class _Blocks(TypedDict):
    who: str
    lead: Count
    turns: Count
    round_s: Amount | None


class _Experiment(TypedDict, total=False):
    a_name: Required[str]
    b_name: Required[str]
    equal_within: Required[Above0]
    planned: Required[Count]
    needed: Count | None
    seed: Whole | None
    check: str | None
    noise: Noise
    steady: Any
    batch_size: Count | None
    blocks: _Blocks | None


class _Quality(TypedDict):
    judged_by: str
    said: str
    dtype: str


class ReportFacts(TypedDict, total=False):
    """What a saved report says beside its frames."""

    change: Required[str]
    limits: Required[dict[str, Annotated[float, Meta(ge=-1.7e308, le=1.7e308)]]]
    environment: Required[Environment]
    options: Required[dict[str, Any]]
    experiment: Required[_Experiment]
    quality: Required[_Quality]


REPORT = Kind(
    "report", frozenset({"pairs", "losses", "table"}), frozenset({"change", "experiment", "quality"}), ReportFacts
)


def save_report(
    frames: Mapping[str, pd.DataFrame], profiles: Mapping[str, Recording], meta: Mapping[str, Any], path: str | Path
) -> Path:
    """Write a report to the folder `path`, all or nothing; an earlier report there is replaced.

    Parameters
    ----------
    frames : mapping
        ``pairs``, ``losses``, and ``table`` for other tools.
    profiles : mapping
        By `SIDES`; empty if none were made.
    """
    parts = {name: (recording.frames(), recording.meta) for name, recording in profiles.items()}
    return folder.save_all(REPORT, storage.PROFILE, parts, meta, path, frames)


def load_report(path: str | Path) -> tuple[dict[str, pd.DataFrame], dict[str, Recording], dict[str, Any]]:
    """Read what `save_report` wrote.

    Raises
    ------
    RecordingError
        If there is no report, or it is damaged or was saved by a newer version.
    """
    source = usable(path)
    meta = folder.load_meta(REPORT, source)
    columns = {"pairs": raw_columns.PAIRS, "losses": raw_columns.LOSSES}
    frames = {name: folder.load_frame(name, its, source) for name, its in columns.items()}
    there = [name for name in SIDES if storage.PROFILE.stands_at(source / name)]
    if len(there) == 1:
        missing = next(name for name in SIDES if name not in there)
        raise RecordingError(f"{source} is damaged: the profile of the {missing} is missing.")
    return frames, {name: storage.load(source / name) for name in there}, meta


def _load(path: Path, *_: object) -> Any:
    from perfnb.experiments.report import load_report

    return load_report(path)


LOADER = Loader("saved reports", REPORT.stands_at, _load)
