"""Save and load the folders that perfnb writes.

Each folder contains one JSON file and a Parquet file per table, and is written either completely or not at all. A
`SavedKind` describes each kind of folder: its name, the type of its facts, and its tables with their columns.
The JSON file contains the ``format``, its ``version``, and the facts (``meta``). It may also contain the ``outcome``,
which summarises the findings so that many folders can be listed quickly (see `perfnb.recording.outcome`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from perfnb.errors import RecordingError
from perfnb.files import new_folder, read_regular, sweep, usable
from perfnb.recording.frame_files import Columns, FrameFile, write_frame
from perfnb.recording.outcome import Outcome

#: The version of the format on disk. Newer versions are rejected when a folder is loaded.
VERSION = 1
FORMAT = "perfnb"
#: The maximum number of brackets, commas and colons in a file of facts. Each of them may precede a value, which takes
#: up to 75 bytes of memory.
_MOST_MARKS = 1_000_000
#: The exceptions that `facts_in` raises for an altered file of facts.
UNREADABLE = (OSError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError)


class NewerFormatError(ValueError):
    """Raised for a file that was saved by a later version of perfnb."""


@dataclass(frozen=True)
class SavedKind:
    """A kind of saved folder.

    Attributes
    ----------
    word : str
        Its name, such as ``profile``.
    facts : type
        The type of the facts, which msgspec checks. Facts that are not part of the type are preserved unchanged.
    frames : mapping of str to Columns
        The tables that it may contain, and their columns.
    parts : SavedKind, optional
        The kind of folder that it may contain, if any.
    largest : int
        The maximum size of the JSON file in bytes. Facts about 100 devices and 2,000 threads take about 100 kB.
    """

    word: str
    facts: Any
    frames: Mapping[str, Columns] = field(default_factory=dict)
    parts: SavedKind | None = None
    largest: int = 16 * 2**20

    @property
    def file(self) -> str:
        """The JSON file that identifies the folder."""
        return f"{self.word}.json"

    def is_at(self, path: str | Path) -> bool:
        """Check whether there is a folder of this kind at `path`."""
        return (usable(path) / self.file).is_file()


def save(
    kind: SavedKind,
    frames: Mapping[str, pd.DataFrame],
    facts: Mapping[str, Any],
    path: str | Path,
    *,
    outcome: Outcome | None = None,
    parts: Mapping[str, Callable[[Path], object]] | None = None,
) -> Path:
    """Write a folder, completely or not at all. An earlier folder of the same kind is replaced.

    Parameters
    ----------
    kind : SavedKind
    frames, facts : mapping
    path : str or Path
    outcome : Outcome, optional
        The findings.
    parts : mapping of str to callable, optional
        The functions that write the folders inside this one, by folder name. An example is a profile's `save` method.

    Raises
    ------
    RecordingError
        If `path` contains something else, or if it cannot be written.
    """
    target = usable(path)
    sweep(target.parent)
    if target.exists() and not _may_replace(kind, target):
        raise RecordingError(
            f"{target} exists and is not just a perfnb {kind.word}: choose another path, or remove it first."
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(target) as fresh:
            for name, save_part in (parts or {}).items():
                save_part(fresh / name)
            for name, frame in frames.items():
                write_frame(frame, fresh / f"{name}.parquet")
            (fresh / kind.file).write_text(facts_text(facts, outcome), encoding="utf-8")
    except (OSError, RecordingError) as error:  # a part's error names a temporary folder
        raise RecordingError(f"The {kind.word} cannot be written to {target}: {error.__cause__ or error}.") from error
    return target


def facts_text(facts: Mapping[str, Any], outcome: Outcome | None = None) -> str:
    """Return the content of the JSON file."""
    found = {} if outcome is None else {"outcome": msgspec.to_builtins(outcome)}
    return json.dumps({"format": FORMAT, "version": VERSION, **found, "meta": dict(facts)}, indent=1)


def _may_replace(kind: SavedKind, target: Path) -> bool:
    """Check whether a folder may be replaced.

    It may be replaced if it is empty, or if it contains nothing but an earlier saved folder of the same kind.
    """
    if not target.is_dir() or target.is_symlink():
        return False
    own = {kind.file, *(f"{name}.parquet" for name in kind.frames)}
    inside = list(target.iterdir())
    if not all(entry.name in own or (kind.parts and _may_replace(kind.parts, entry)) for entry in inside):
        return False
    try:
        return not inside or bool(_content(target / kind.file, kind.largest))
    except UNREADABLE:
        return False


class SavedFolder:
    """A saved folder with its facts and its tables. The tables are held in their stored form and decoded on request.

    Later changes to the folder on disk have no effect.

    Attributes
    ----------
    source : Path
    facts : dict
    outcome : Outcome or None
        The findings, if they were saved.

    Raises
    ------
    RecordingError
        If the folder is not of this kind, is damaged, or was saved by a newer version. This applies to the constructor
        and to every method.
    """

    def __init__(self, kind: SavedKind, path: str | Path) -> None:
        self.kind, self.source = kind, usable(path)
        if not self.source.exists():
            raise RecordingError(f"{self.source} does not exist.")
        if not kind.is_at(self.source):
            raise RecordingError(
                f"{self.source} is not a saved perfnb {kind.word}: it is not a folder with a {kind.file}."
            )
        try:
            self.facts, self.outcome = facts_in(kind, self.source / kind.file)
        except NewerFormatError as error:
            raise RecordingError(f"{self.source} cannot be loaded: {error}.") from error
        except UNREADABLE as error:
            raise self.damaged(kind.file, str(error)) from error
        self._files = {
            name: FrameFile(self.source / f"{name}.parquet", columns)
            for name, columns in kind.frames.items()
            if (self.source / f"{name}.parquet").exists()
        }

    def __contains__(self, frame: str) -> bool:
        return frame in self._files

    def file(self, frame: str) -> FrameFile:
        """Return a table's file."""
        if frame not in self._files:
            raise RecordingError(f"{self.source / frame}.parquet cannot be read: it is missing.")
        return self._files[frame]

    def frame(self, name: str) -> pd.DataFrame:
        """Return a table. It is decoded and checked again on each call."""
        return self.file(name).frame()

    def damaged(self, file: str, why: str) -> RecordingError:
        """Return the error for a damaged file."""
        return RecordingError(f"{self.source / file} is damaged: {why}.")


def facts_in(kind: SavedKind, file: Path) -> tuple[dict[str, Any], Outcome | None]:
    """Read and check a folder's JSON file.

    Raises
    ------
    NewerFormatError, or one of `UNREADABLE`
        With a description of the problem, but without the file's name.
    """
    content = _content(file, kind.largest)
    _converted(content, "meta", kind.facts)
    return content["meta"], None if content.get("outcome") is None else _converted(content, "outcome", Outcome)


def _content(file: Path, largest: int) -> dict[str, Any]:
    """Read a JSON file that perfnb wrote. This raises the same errors as `facts_in`."""
    data = read_regular(file, largest)
    if sum(map(data.count, (b"[", b"{", b",", b":"))) > _MOST_MARKS:
        raise ValueError("it contains more values than a file that perfnb writes")
    content = json.loads(data.decode("utf-8"))
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError("perfnb did not write it")
    version = content.get("version")
    if type(version) is not int:
        raise ValueError("its version is not a whole number")
    if version > VERSION:
        raise NewerFormatError(
            f"it was saved by a newer perfnb (format {str(version)[:20]}, this one reads {VERSION}); update perfnb"
        )
    if not isinstance(content.get("meta"), dict):
        raise ValueError("it does not contain meta")
    return content


def _converted(content: dict[str, Any], key: str, kind: Any) -> Any:
    try:
        return msgspec.convert(content[key], kind)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
        where = "" if "$" in str(error) else f" in {key}"
        raise ValueError(f"{str(error).replace('$', key)}{where}") from error
