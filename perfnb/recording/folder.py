"""Frames and facts on disk: a folder of Parquet files and one JSON file, open to any tool, written all or nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from perfnb.errors import RecordingError
from perfnb.files import new_folder, read_regular, sweep, usable
from perfnb.recording.raw_columns import ROWS_NUMBERED, Columns, Odd, check_file, check_frame, is_text
from perfnb.recording.text import TEXT, with_text

#: Version of the format on disk; a reader refuses newer ones.
VERSION = 1
FORMAT = "perfnb"
#: Bytes of a file below which starting threads to decode it costs more than it saves.
_THREADS_PAY = 4 * 2**20
#: Largest file of a frame and of facts, in bytes. Facts of 100 devices and 2,000 threads take about 100 kB.
_LARGEST, _LARGEST_META = 4 * 2**30, 16 * 2**20
#: Brackets, commas and colons in a file of facts: each may precede a value, which takes up to 75 bytes of memory.
_MOST_MARKS = 1_000_000
#: A frame may have this many rows, and one per byte of its file beyond a free number (events take about 10 bytes each).
#: A file may unpack to this many times its size beyond a free size.
_MOST_ROWS, _ROWS_OF_ANY = 50_000_000, 1_000_000
_MOST_RATIO, _SIZE_OF_ANY = 200, 64 * 2**20
#: Bytes of a text column: a file can store once what many rows repeat in memory.
_MOST_TEXT = 2**30
#: What pyarrow and pandas raise for an altered file.
_FAULTS = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, NotImplementedError),
    *(RecursionError, MemoryError, pa.ArrowException),
)


@dataclass(frozen=True)
class Kind:
    """A kind of saved folder.

    Attributes
    ----------
    word : str
        Its name: ``profile``.
    frames : frozenset of str
        The frames it may hold, one file each.
    needs : frozenset of str
        Facts without which it is incomplete.
    facts : type
        The type of the facts, as msgspec checks it.
    """

    word: str
    frames: frozenset[str]
    needs: frozenset[str]
    facts: Any

    @property
    def meta(self) -> str:
        """The file with the facts, by which the folder is recognised."""
        return f"{self.word}.json"

    def is_at(self, path: str | Path) -> bool:
        """Whether a folder of this kind is at `path`."""
        return (usable(path) / self.meta).is_file()


def save(
    kind: Kind,
    frames: Mapping[str, pd.DataFrame],
    meta: Mapping[str, Any],
    path: str | Path,
    parts: Mapping[str, tuple[Mapping[str, pd.DataFrame], Mapping[str, Any]]] | None = None,
    part: Kind | None = None,
) -> Path:
    """Write a folder, all or nothing; an earlier one of the same kind is replaced.

    Parameters
    ----------
    kind : Kind
    frames, meta : mapping
        The frames and facts.
    path : str or Path
    parts : mapping, optional
        Frames and facts of folders inside it, by their names.
    part : Kind, optional
        Of these folders.

    Raises
    ------
    RecordingError
        If something else is at `path`, or it cannot be written.
    """
    target = usable(path)
    sweep(target.parent)
    if target.exists() and not _may_replace(kind, target, part):
        raise RecordingError(
            f"{target} exists and is not just a perfnb {kind.word}: choose another path, or remove it first."
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(target) as fresh:
            for name, (tables, facts) in (parts or {}).items():
                (fresh / name).mkdir()
                _write(part or kind, tables, facts, fresh / name)
            _write(kind, frames, meta, fresh)
    except OSError as error:
        raise RecordingError(f"The {kind.word} cannot be written to {target}: {error}.") from error
    return target


def _write(kind: Kind, frames: Mapping[str, pd.DataFrame], meta: Mapping[str, Any], fresh: Path) -> None:
    for name, frame in frames.items():
        # Times and numbers rarely repeat: their differences take less space and time than a dictionary.
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


def _may_replace(kind: Kind, target: Path, part: Kind | None = None) -> bool:
    """Return whether a folder contains an earlier one of the kind, with its parts, and nothing else, or nothing."""
    if not target.is_dir() or target.is_symlink():
        return False
    inside = list(target.iterdir())
    own = {kind.meta, *(f"{name}.parquet" for name in kind.frames)}
    if not all(one.name in own or (part is not None and _may_replace(part, one)) for one in inside):
        return False
    if not inside or (part is not None and kind.is_at(target)):
        return True
    try:
        _meta(kind, target)
    except RecordingError:
        return False
    return True


def load_frame(name: str, columns: Columns, source: Path) -> pd.DataFrame:
    """Read one frame of a folder, which must have these columns.

    Raises
    ------
    RecordingError
        If it is missing or damaged.
    """
    stored = StoredFrame(name, source)
    stored.check(columns)
    return stored.decoded(columns)


class StoredFrame:
    """The file of a frame, held as stored; errors as in `load_frame`."""

    def __init__(self, name: str, source: Path) -> None:
        self._name = name
        self._file = source / f"{name}.parquet"
        try:
            self._data = read_regular(self._file, _LARGEST)
        except OSError as error:
            raise self._unreadable(error) from error

    def check(self, columns: Columns) -> bool:
        """Refuse a file that is incomplete or has other columns.

        Returns
        -------
        bool
            Whether the file describes its columns fully. If not, decoding it checks the rest.
        """
        with self._faults_reported():
            return check_file(_opened(self._data), columns)

    def rows(self) -> int:
        """Return the number of rows."""
        with self._faults_reported():
            return int(_opened(self._data).metadata.num_rows)

    def decoded(self, columns: Columns) -> pd.DataFrame:
        """Return the frame with these columns, after checking them."""
        with self._faults_reported():
            return check_frame(_decoded(self._data, columns), columns, ROWS_NUMBERED.get(self._name))

    def as_stored(self, columns: Iterable[str]) -> pd.DataFrame:
        """Return the frame with these of its columns, unchecked."""
        with self._faults_reported():
            return _decoded(self._data, columns)

    @contextmanager
    def _faults_reported(self) -> Iterator[None]:
        """Turn whatever pyarrow or pandas raise for a file into a sentence."""
        try:
            yield
        except Odd as error:
            raise RecordingError(f"{self._file} is damaged: {error}.") from error
        except _FAULTS as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> RecordingError:
        return RecordingError(f"{self._file} cannot be read: {' '.join(str(error).split())[:300]}.")


def _decoded(data: bytes, columns: Iterable[str]) -> pd.DataFrame:
    # Like pandas.read_parquet without importing Arrow's data sets, which takes longer than a small file.
    threads = len(data) >= _THREADS_PAY
    table = _table(data, columns, threads)
    frame: pd.DataFrame = table.to_pandas(use_threads=threads)
    frame = with_text(frame, [field.name for field in table.schema if is_text(field.type)])
    if not len(frame):  # Parquet keeps no categories for a frame without rows
        empty = pd.CategoricalDtype(pd.Index([], dtype=TEXT))
        kept = (table.schema.pandas_metadata or {}).get("columns", [])
        frame = frame.astype({one["name"]: empty for one in kept if one["pandas_type"] == "categorical"})
    for column in frame.select_dtypes("category"):
        if not len(frame[column].cat.categories):  # Parquet keeps no type for no values
            frame[column] = pd.Categorical.from_codes(frame[column].cat.codes, pd.Index([], dtype=TEXT))
    return frame


def _table(data: bytes, wanted: Iterable[str], threads: bool) -> pa.Table:
    """Read the wanted columns of a file; others may be as large as they like."""
    schema = _opened(data).schema_arrow
    names = [name for name in schema.names if name in set(wanted)]
    texts = [name for name in names if is_text(schema.field(name).type)]
    # The file stores repeated text once; keep it so until the total size is known.
    table = _opened(data, texts).read(columns=names, use_threads=threads)
    for name in texts:
        place, field = table.schema.get_field_index(name), schema.field(name)
        size = sum(
            pc.sum(pc.binary_length(part.dictionary).take(part.indices)).as_py() or 0 for part in table[name].chunks
        )
        if size > _MOST_TEXT:
            raise Odd(f"its column {name!r} holds {size:,} bytes of text in {len(data):,} bytes")
        table = table.set_column(place, field, table[name].cast(field.type))
    return table


def _opened(data: bytes, as_dictionary: list[str] | None = None) -> pq.ParquetFile:
    """Open a Parquet file whose rows and columns need no more memory than a file of its size may ask for."""
    file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=as_dictionary)
    lists = [leaf.path for leaf in map(file.schema.column, range(len(file.schema))) if leaf.max_repetition_level]
    if lists:  # the number of rows does not bound their values
        raise Odd(f"its column {lists[0].partition('.')[0]!r} holds lists")
    about = file.metadata
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    most = max(about.num_rows, sum(group.num_rows for group in groups))
    if most > min(_MOST_ROWS, _ROWS_OF_ANY + len(data)):
        raise Odd(f"it claims to hold {most:,} rows in {len(data):,} bytes")
    size = sum(group.total_byte_size for group in groups)
    if size > _SIZE_OF_ANY + _MOST_RATIO * len(data):
        raise Odd(f"it claims to unpack from {len(data):,} bytes to {size:,}")
    return file


def load_meta(kind: Kind, source: Path) -> dict[str, Any]:
    """Read the facts of a folder.

    Raises
    ------
    RecordingError
        If it is not of the kind, is damaged, or was saved by a newer version.
    """
    meta = _meta(kind, source)
    try:
        msgspec.convert(meta, kind.facts)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
        raise RecordingError(f"{source / kind.meta} is damaged: {str(error).replace('$', 'meta')}.") from error
    return meta


def _meta(kind: Kind, source: Path) -> dict[str, Any]:
    """Read the facts of a folder as they are."""
    file = source / kind.meta
    if not source.exists():
        raise RecordingError(f"{source} does not exist.")
    if not file.is_file():
        raise RecordingError(f"{source} is not a saved perfnb {kind.word}: it is not a folder with a {kind.meta}.")
    try:
        data = read_regular(file, _LARGEST_META)
        if sum(map(data.count, (b"[", b"{", b",", b":"))) > _MOST_MARKS:
            raise ValueError("it contains more values than perfnb ever writes")
        content = json.loads(data.decode("utf-8"))
        version, meta = content["version"], content["meta"]
        if content["format"] != FORMAT:
            raise ValueError("perfnb did not write it")
        if not isinstance(version, int) or not isinstance(meta, dict):
            raise ValueError("its version or meta has the wrong type")
        if version <= VERSION and not kind.needs <= meta.keys():
            raise ValueError(f"it has no {min(kind.needs - meta.keys())}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise RecordingError(f"{file} is damaged: {why}.") from error
    if version > VERSION:
        raise RecordingError(
            f"{source} was saved by a newer perfnb (format {str(version)[:20]}, this one reads {VERSION}); "
            "update perfnb."
        )
    return meta
