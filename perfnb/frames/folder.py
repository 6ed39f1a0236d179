"""Frames and facts on disk: a folder of Parquet files and one JSON file, open to any tool, whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from perfnb.errors import RecordingError
from perfnb.frames.paths import usable

#: Version of the form on disk; a reader refuses a newer one.
VERSION = 1
FORMAT = "perfnb"
#: Bytes of a file below which starting threads to decode it takes longer than they save.
_THREADS_PAY = 4 * 2**20


@dataclass(frozen=True)
class Kind:
    """What is saved in such a folder.

    Attributes
    ----------
    word : str
        What it is called: ``profile``.
    frames : frozenset of str
        The frames that it may hold, one file each.
    needs : frozenset of str
        Facts without which it is not whole.
    """

    word: str
    frames: frozenset[str]
    needs: frozenset[str]

    @property
    def meta(self) -> str:
        """The file that holds the facts, by which the folder is known."""
        return f"{self.word}.json"


def save(kind: Kind, frames: Mapping[str, pd.DataFrame], meta: Mapping[str, Any], path: str | Path) -> Path:
    """Write a folder, whole or not at all; an earlier one of the same kind there is replaced.

    Raises
    ------
    RecordingError
        If something else stands at `path`, or it cannot be written.
    """
    target = usable(path)
    return _put(kind, target, _may_replace(kind, target), lambda fresh: _write(kind, frames, meta, fresh))


def save_all(
    kind: Kind,
    one: Kind,
    parts: Mapping[str, tuple[Mapping[str, pd.DataFrame], Mapping[str, Any]]],
    meta: Mapping[str, Any],
    path: str | Path,
    frames: Mapping[str, pd.DataFrame] | None = None,
) -> Path:
    """Write a folder of folders, each with its frames and facts; as `save`.

    Parameters
    ----------
    kind, one : Kind
        Of the whole, and of each part.
    parts : mapping
        Frames and facts by the name of their folder.
    frames : mapping, optional
        Of the whole.
    """
    target = usable(path)
    earlier = is_one(kind, target) and not target.is_symlink()
    inside = list(target.iterdir()) if earlier else []
    own = {kind.meta, *(f"{name}.parquet" for name in kind.frames)}
    may_replace = earlier and all(entry.name in own or _may_replace(one, entry) for entry in inside)

    def write(fresh: Path) -> None:
        for name, (tables, facts) in parts.items():
            (fresh / name).mkdir()
            _write(one, tables, facts, fresh / name)
        _write(kind, frames or {}, meta, fresh)

    return _put(kind, target, may_replace or (target.is_dir() and not any(target.iterdir())), write)


def _write(kind: Kind, frames: Mapping[str, pd.DataFrame], meta: Mapping[str, Any], fresh: Path) -> None:
    for name, frame in frames.items():
        # Times and numbers seldom repeat: their differences take less room and time than a dictionary of them.
        numbers = [column for column in frame if pd.api.types.is_integer_dtype(frame[column].dtype)]
        frame.to_parquet(
            fresh / f"{name}.parquet",
            engine="pyarrow",
            compression="zstd",
            use_dictionary=[column for column in frame if column not in numbers],
            column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        )
    content = {"format": FORMAT, "version": VERSION, "meta": dict(meta)}
    (fresh / kind.meta).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _put(kind: Kind, target: Path, may_replace: bool, write: Callable[[Path], None]) -> Path:
    if target.exists() and not may_replace:
        raise RecordingError(
            f"{target} exists and is not just a perfnb {kind.word}: choose another path, or remove it first."
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".perfnb-", dir=target.parent) as work:
            fresh, old = Path(work) / "new", Path(work) / "old"
            fresh.mkdir()
            write(fresh)
            if target.exists():
                os.replace(target, old)
            try:
                os.replace(fresh, target)
            except BaseException:
                if old.exists():
                    os.replace(old, target)
                raise
    except OSError as error:
        raise RecordingError(f"The {kind.word} cannot be written to {target}: {error}.") from error
    return target


def _may_replace(kind: Kind, target: Path) -> bool:
    """Whether nothing but an earlier one of the kind, or nothing at all, stands in a folder."""
    if not target.is_dir() or target.is_symlink():
        return False
    names = {entry.name for entry in target.iterdir()}
    if not names:
        return True
    if not names <= {kind.meta, *(f"{name}.parquet" for name in kind.frames)}:
        return False
    try:
        load_meta(kind, target)
    except RecordingError:
        return False
    return True


def is_one(kind: Kind, path: str | Path) -> bool:
    """Whether something of the kind stands at `path`."""
    return (usable(path) / kind.meta).is_file()


def has_frame(name: str, source: Path) -> bool:
    """Whether a folder holds a frame."""
    return _file(name, source).exists()


def load_frame(name: str, columns: tuple[str, ...], source: Path) -> pd.DataFrame:
    """Read one frame of a folder, which must have these columns.

    Raises
    ------
    RecordingError
        If it is missing or damaged.
    """
    data = read(name, source)
    check(name, columns, source, data)
    return decoded(name, source, data)


def read(name: str, source: Path) -> bytes:
    """The file of a frame; as `load_frame`."""
    try:
        return _file(name, source).read_bytes()
    except OSError as error:
        raise _unreadable(name, source, error) from error


def check(name: str, columns: tuple[str, ...], source: Path, data: bytes | None) -> None:
    """Refuse a file that is missing, not whole, or without one of these columns; as `load_frame`."""
    if data is None:
        raise RecordingError(f"{_file(name, source)} cannot be read: it is missing.")
    try:
        there = pq.read_schema(pa.BufferReader(data)).names
    except (OSError, ValueError) as error:  # pyarrow's errors are of these kinds
        raise _unreadable(name, source, error) from error
    lacking = [column for column in columns if column not in there]
    if lacking:
        raise RecordingError(f"{_file(name, source)} is damaged: it has no column {lacking[0]!r}.")


def decoded(name: str, source: Path, data: bytes) -> pd.DataFrame:
    """The frame that a file holds; as `load_frame`."""
    try:
        # As pandas.read_parquet, without the imports of Arrow's data sets, which take longer than a small file.
        threads = len(data) >= _THREADS_PAY
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=threads)
        frame: pd.DataFrame = table.to_pandas(use_threads=threads)
    except (OSError, ValueError) as error:
        raise _unreadable(name, source, error) from error
    if not len(frame):  # of a frame without rows Parquet keeps no categories
        empty = pd.CategoricalDtype(pd.Index([], dtype="str"))
        kept = (table.schema.pandas_metadata or {}).get("columns", [])
        frame = frame.astype({one["name"]: empty for one in kept if one["pandas_type"] == "categorical"})
    for column in frame.select_dtypes("category"):
        if not len(frame[column].cat.categories):  # Parquet does not tell of what type nothing is
            frame[column] = pd.Categorical.from_codes(frame[column].cat.codes, pd.Index([], dtype="str"))
    return frame


def _file(name: str, source: Path) -> Path:
    return source / f"{name}.parquet"


def _unreadable(name: str, source: Path, error: Exception) -> RecordingError:
    return RecordingError(f"{_file(name, source)} cannot be read: {error}.")


def load_meta(kind: Kind, source: Path) -> dict[str, Any]:
    """Read the facts of a folder.

    Raises
    ------
    RecordingError
        If there is none of the kind, or it is damaged or of a newer form.
    """
    file = source / kind.meta
    if not source.exists():
        raise RecordingError(f"{source} does not exist.")
    if not file.is_file():
        raise RecordingError(f"{source} is no saved perfnb {kind.word}: it is not a folder with a {kind.meta}.")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        version, meta = int(content["version"]), dict(content["meta"])
        if content["format"] != FORMAT:
            raise ValueError("it is not perfnb's")
        if version <= VERSION and not kind.needs <= meta.keys():
            raise ValueError("it is not whole")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RecordingError(f"{file} is damaged: {error!r}.") from error
    if version > VERSION:
        raise RecordingError(
            f"{source} was saved by a newer perfnb (form {version}, this one reads {VERSION}): update perfnb."
        )
    return meta


def write_text(text: str, path: str | Path) -> Path:
    """Write a file whole or not at all; as `write_parts`."""
    return write_parts([text.encode("utf-8")], path)


def write_parts(parts: Iterable[bytes], path: str | Path) -> Path:
    """Write a file, part by part, whole or not at all.

    Raises
    ------
    RecordingError
        If it cannot be written.
    """
    target = usable(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".perfnb-", dir=target.parent) as work:
            fresh = Path(work) / target.name
            with fresh.open("wb") as file:
                file.writelines(parts)
            os.replace(fresh, target)
    except OSError as error:
        raise RecordingError(f"{target} cannot be written: {error}.") from error
    return target
