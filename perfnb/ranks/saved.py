"""Saving and loading the profiles of several ranks, and loading their traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pandas as pd
from msgspec import Meta

from perfnb.draw.progress import Progress
from perfnb.errors import RecordingError, TraceError
from perfnb.files import usable
from perfnb.recording import folder
from perfnb.recording.folder import Kind
from perfnb.recording.loaders import Loader
from perfnb.recording.reading import read_recordings, trace_files
from perfnb.recording.recording import Recording
from perfnb.recording.saved_facts import Rank
from perfnb.recording.storage import PROFILE, SavedProfile, content
from perfnb.recording.trace_layers import with_module_layers
from perfnb.trace.trace_file import Limits


class RanksFacts(TypedDict):
    """What saved ranks say beside their profiles."""

    ranks: Annotated[list[Rank], Meta(min_length=1)]


RANKS = Kind("ranks", frozenset(), frozenset({"ranks"}), RanksFacts)


def save_ranks(
    recordings: Sequence[Recording], path: str | Path, tables: Sequence[Mapping[str, pd.DataFrame]], made_by: str | None
) -> Path:
    """Write the recordings of several ranks to the folder `path`, each as a profile in a folder ``rank_<n>``.

    All or nothing, as `perfnb.recording.storage.save`; earlier ranks there are replaced.
    """
    meta = {"ranks": [recording.rank for recording in recordings]}
    parts = {
        f"rank_{recording.rank}": content(recording, its, made_by)
        for recording, its in zip(recordings, tables, strict=True)
    }
    return folder.save_all(RANKS, PROFILE, parts, meta, path)


def load_ranks(path: str | Path) -> list[SavedProfile]:
    """Read what `save_ranks` wrote.

    Raises
    ------
    RecordingError
        If there are no ranks, or they are damaged or were saved by a newer version.
    """
    source = usable(path)
    ranks = folder.load_meta(RANKS, source)["ranks"]
    if len(set(ranks)) < len(ranks):
        raise RecordingError(f"{source / RANKS.meta} is damaged: meta.ranks names a rank twice.")
    profiles = [SavedProfile(source / f"rank_{rank}") for rank in ranks]
    for rank, profile in zip(ranks, profiles, strict=True):
        if (own := profile.meta.get("rank", 0)) != rank:
            file = source / f"rank_{rank}" / PROFILE.meta
            raise RecordingError(f"{file} is damaged: its meta.rank is {own}, not {rank}.")
    return profiles


def load_traces(paths: Sequence[Path], limits: Limits, executor: Executor | None = None) -> Any:
    """Read trace files, each of one rank, as `Ranks`.

    Raises
    ------
    RecordingError
        If a file does not exist.
    TraceError
        If one cannot be read, or there are none.
    """
    if not paths:
        raise TraceError("There is no trace to load: the list is empty.")
    for one in paths:
        if not one.exists():
            raise RecordingError(f"{one} does not exist.")
    with Progress() as progress:
        recordings = read_recordings(paths, limits, executor, progress.of_file(f"{len(paths):,} files"))
    return _ranks([with_module_layers(recording) for recording in recordings])


def _ranks(profiles: Sequence[Recording | SavedProfile]) -> Any:
    from perfnb.profile.profile import Profile
    from perfnb.ranks.ranks import Ranks

    return Ranks([Profile(one) for one in profiles])


LOADER = Loader("saved ranks", RANKS.is_at, lambda path, *_: _ranks(load_ranks(path)))
FOLDER_OF_TRACES = Loader(
    "folders of traces",
    lambda path: path.is_dir() and bool(trace_files(path)),
    lambda path, limits, executor: load_traces(trace_files(path), limits, executor),
)
