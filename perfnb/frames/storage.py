"""Saving and loading a recording: a folder of Parquet files and one JSON file, open to any tool."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

from perfnb.errors import RecordingError
from perfnb.frames.recording import ArithmeticRecord, MemoryRecord, Recording

#: Version of the form on disk; a reader refuses a newer one.
VERSION = 1
_META, _FORMAT = "profile.json", "perfnb"
_EVENTS = (
    *("name", "category", "start_ns", "duration_ns", "thread", "device", "stream", "correlation"),
    *("sequence", "forward_thread", "span"),
)
#: The frames of a recording and their columns, one file each.
_FRAMES = {
    "events": _EVENTS,
    "steps": ("pass", "wall_ms", "data_ms", "samples"),
    "modules": ("name", "module", "parent", "depth", "parameters", "parameter_bytes", "compiled"),
    "spans": ("layer", "loss"),
}
#: Those of its parts that may be absent, by the part's name.
_PARTS: dict[str, tuple[type, dict[str, tuple[str, ...]]]] = {
    "memory": (
        MemoryRecord,
        {
            "events": _EVENTS,
            "changes": ("event", "time_ns", "address", "bytes", "device", "allocated", "reserved"),
            "known": ("time_ns", "address", "bytes", "device", "category", "layer", "name"),
            "resident": ("time_ns", "bytes"),
        },
    ),
    "arithmetic": (ArithmeticRecord, {"events": _EVENTS, "calls": ("op", "flops", "bytes", "dtype")}),
}
_FILES = {
    *(f"{name}.parquet" for name in _FRAMES),
    *(f"{part}_{name}.parquet" for part, (_, frames) in _PARTS.items() for name in frames),
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
    if not names <= {_META, *_FILES}:
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
    frames: dict[str, Any] = {
        name: _load_frame(source / f"{name}.parquet", columns) for name, columns in _FRAMES.items()
    }
    parts: dict[str, Any] = {}
    for part, (record, tables) in _PARTS.items():
        files = {name: source / f"{part}_{name}.parquet" for name in tables}
        if any(file.exists() for file in files.values()):
            parts[part] = record(**{name: _load_frame(files[name], columns) for name, columns in tables.items()})
    return Recording(**frames, **parts, meta=meta)


def _load_frame(file: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    try:
        frame = pd.read_parquet(file, engine="pyarrow")
    except (OSError, ValueError) as error:  # pyarrow's errors are of these kinds
        raise RecordingError(f"{file} cannot be read: {error}.") from error
    lacking = [column for column in columns if column not in frame.columns]
    if lacking:
        raise RecordingError(f"{file} is damaged: it has no column {lacking[0]!r}.")
    return frame


def _load_meta(source: Path) -> dict[str, Any]:
    file = source / _META
    if not source.exists():
        raise RecordingError(f"{source} does not exist.")
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
