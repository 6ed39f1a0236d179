"""Saving and loading a recording: a folder of Parquet files and one JSON file, open to any tool."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

from perfnb.errors import RecordingError
from perfnb.frames.recording import Recording

#: Version of the form on disk; a reader refuses a newer one.
VERSION = 1
_META, _FORMAT = "profile.json", "perfnb"
#: The frames of a recording and their columns, one file each.
_FRAMES = {
    "events": (
        *("name", "category", "start_ns", "duration_ns", "thread", "device", "stream", "correlation"),
        *("sequence", "forward_thread", "span"),
    ),
    "steps": ("pass", "wall_ms", "data_ms", "samples"),
    "modules": ("name", "module", "parent", "depth", "parameters", "parameter_bytes", "compiled"),
    "spans": ("layer", "loss"),
}


def save(recording: Recording, path: str | Path) -> Path:
    """Write a recording to the folder `path`, whole or not at all; an earlier profile there is replaced.

    Raises
    ------
    RecordingError
        If something that is no profile stands at `path`, or it cannot be written.
    """
    target = Path(path).expanduser()
    if target.exists() and not _may_replace(target):
        raise RecordingError(
            f"{target} exists and is not just a perfnb profile: choose another path, or remove it first."
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".perfnb-", dir=target.parent) as work:
            fresh, old = Path(work) / "new", Path(work) / "old"
            fresh.mkdir()
            for name, frame in recording.frames().items():
                frame.to_parquet(fresh / f"{name}.parquet", engine="pyarrow", compression="zstd")
            content = {"format": _FORMAT, "version": VERSION, "meta": dict(recording.meta)}
            (fresh / _META).write_text(json.dumps(content, indent=1), encoding="utf-8")
            if target.exists():
                os.replace(target, old)
            try:
                os.replace(fresh, target)
            except BaseException:
                if old.exists():
                    os.replace(old, target)
                raise
    except OSError as error:
        raise RecordingError(f"The profile cannot be written to {target}: {error}.") from error
    return target


def _may_replace(target: Path) -> bool:
    """Whether nothing but an earlier profile, or nothing at all, stands in a folder."""
    if not target.is_dir() or target.is_symlink():
        return False
    names = {entry.name for entry in target.iterdir()}
    if not names:
        return True
    if not names <= {_META, *(f"{name}.parquet" for name in _FRAMES)}:
        return False
    try:
        _load_meta(target)
    except RecordingError:
        return False
    return True


def load(path: str | Path) -> Recording:
    """Read a recording that `save` wrote.

    Raises
    ------
    RecordingError
        If `path` holds none, or a damaged or newer one.
    """
    source = Path(path).expanduser()
    meta = _load_meta(source)
    frames: dict[str, pd.DataFrame] = {}
    for name, columns in _FRAMES.items():
        file = source / f"{name}.parquet"
        try:
            frames[name] = pd.read_parquet(file, engine="pyarrow")
        except (OSError, ValueError) as error:  # pyarrow's errors are of these kinds
            raise RecordingError(f"{file} cannot be read: {error}.") from error
        lacking = [column for column in columns if column not in frames[name].columns]
        if lacking:
            raise RecordingError(f"{file} is damaged: it has no column {lacking[0]!r}.")
    return Recording(**frames, meta=meta)


def _load_meta(source: Path) -> dict[str, Any]:
    file = source / _META
    if not file.is_file():
        raise RecordingError(f"{source} is no saved perfnb profile: it is not a folder with a {_META}.")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        version, meta = int(content["version"]), dict(content["meta"])
        if content["format"] != _FORMAT:
            raise ValueError("it is not perfnb's")
        if version <= VERSION and not {"name", "environment", "options"} <= meta.keys():
            raise ValueError("it is not whole")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RecordingError(f"{file} is damaged: {error!r}.") from error
    if version > VERSION:
        raise RecordingError(
            f"{source} was saved by a newer perfnb (form {version}, this one reads {VERSION}): update perfnb."
        )
    return meta


def write_text(text: str, path: str | Path) -> Path:
    """Write a file whole or not at all.

    Raises
    ------
    RecordingError
        If it cannot be written.
    """
    target = Path(path).expanduser()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".perfnb-", dir=target.parent) as work:
            fresh = Path(work) / target.name
            fresh.write_text(text, encoding="utf-8")
            os.replace(fresh, target)
    except OSError as error:
        raise RecordingError(f"{target} cannot be written: {error}.") from error
    return target
