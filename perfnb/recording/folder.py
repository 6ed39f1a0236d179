"""Frames and facts on disk: a folder of Parquet files and one JSON file, open to any tool, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
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

#: Version of the form on disk; a reader refuses a newer one.
VERSION = 1
FORMAT = "perfnb"
#: Bytes of a file below which starting threads to decode it takes longer than they save.
_THREADS_PAY = 4 * 2**20
#: No file of a frame, and none of facts, is larger: bytes. Facts of 100 devices and 2,000 threads take some 100 kB.
_LARGEST, _LARGEST_META = 4 * 2**30, 16 * 2**20
#: Brackets, commas and colons in a file of facts: each may stand before a value, which takes up to 75 bytes of memory.
_MOST_MARKS = 1_000_000
#: Rows of a frame: at most so many, and no more than a byte of the file each, beyond what is little anyway. Events take
#: some 10 bytes each. And how many times its size a file may unpack to, beyond what is little.
_MOST_ROWS, _ROWS_OF_ANY = 50_000_000, 1_000_000
_MOST_RATIO, _SIZE_OF_ANY = 200, 64 * 2**20
#: Bytes of a column of text: a file need not repeat a text that many rows have, and memory must.
_MOST_TEXT = 2**30
#: What pyarrow and pandas raise for a file that was altered.
_FAULTS = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, NotImplementedError),
    *(RecursionError, MemoryError, pa.ArrowException),
)


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
    facts : type
        What the facts are, as msgspec checks it.
    """

    word: str
    frames: frozenset[str]
    needs: frozenset[str]
    facts: Any

    @property
    def meta(self) -> str:
        """The file that holds the facts, by which the folder is known."""
        return f"{self.word}.json"

    def stands_at(self, path: str | Path) -> bool:
        """Whether a folder of this kind is at `path`."""
        return (usable(path) / self.meta).is_file()


def save(kind: Kind, frames: Mapping[str, pd.DataFrame], meta: Mapping[str, Any], path: str | Path) -> Path:
    """Write a folder, whole or not at all; an earlier one of the same kind there is replaced.

    Raises
    ------
    RecordingError
        If something else stands at `path`, or it cannot be written.
    """
    target = usable(path)
    sweep(target.parent)
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
    sweep(target.parent)
    earlier = kind.stands_at(target) and not target.is_symlink()
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
        with new_folder(target) as fresh:
            write(fresh)
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
        _meta(kind, target)
    except RecordingError:
        return False
    return True


def has_frame(name: str, source: Path) -> bool:
    """Whether a folder holds a frame."""
    return _file(name, source).exists()


def load_frame(name: str, columns: Columns, source: Path) -> pd.DataFrame:
    """Read one frame of a folder, which must have these columns.

    Raises
    ------
    RecordingError
        If it is missing or damaged.
    """
    data = read(name, source)
    check(name, columns, source, data)
    return decoded(name, columns, source, data)


def read(name: str, source: Path) -> bytes:
    """The file of a frame; as `load_frame`."""
    try:
        return read_regular(_file(name, source), _LARGEST)
    except OSError as error:
        raise _unreadable(name, source, error) from error


def check(name: str, columns: Columns, source: Path, data: bytes | None) -> bool:
    """Refuse a file that is missing, not whole, or whose columns are others; as `load_frame`.

    Returns
    -------
    bool
        Whether the file tells enough of its columns. If not, decoding it checks the rest.
    """
    if data is None:
        raise RecordingError(f"{_file(name, source)} cannot be read: it is missing.")
    with _faults_told(name, source):
        return check_file(_opened(data), columns)


def rows(name: str, source: Path, data: bytes) -> int:
    """How many rows the frame has that a file holds; as `load_frame`."""
    with _faults_told(name, source):
        return int(_opened(data).metadata.num_rows)


def decoded(
    name: str, columns: Columns | None, source: Path, data: bytes, only: Iterable[str] | None = None
) -> pd.DataFrame:
    """The frame that a file holds; as `load_frame`.

    Without `columns` they are as they stand in the file, `only` those of these names.
    """
    with _faults_told(name, source):
        # As pandas.read_parquet, without the imports of Arrow's data sets, which take longer than a small file.
        threads = len(data) >= _THREADS_PAY
        table = _table(data, columns if only is None else only, threads)
        frame: pd.DataFrame = table.to_pandas(use_threads=threads)
        frame = with_text(frame, [field.name for field in table.schema if is_text(field.type)])
        if not len(frame):  # of a frame without rows Parquet keeps no categories
            empty = pd.CategoricalDtype(pd.Index([], dtype=TEXT))
            kept = (table.schema.pandas_metadata or {}).get("columns", [])
            frame = frame.astype({one["name"]: empty for one in kept if one["pandas_type"] == "categorical"})
        for column in frame.select_dtypes("category"):
            if not len(frame[column].cat.categories):  # Parquet does not tell of what type nothing is
                frame[column] = pd.Categorical.from_codes(frame[column].cat.codes, pd.Index([], dtype=TEXT))
        return frame if columns is None else check_frame(frame, columns, ROWS_NUMBERED.get(name))


def _table(data: bytes, wanted: Iterable[str] | None, threads: bool) -> pa.Table:
    """The columns of a file that are wanted, all of them without; others may be as large as they like."""
    schema = _opened(data).schema_arrow
    names = schema.names if wanted is None else [name for name in schema.names if name in set(wanted)]
    texts = [name for name in names if is_text(schema.field(name).type)]
    # A text that many rows have stands once in the file, and stays so until it is known how much they are together.
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
    """A Parquet file whose rows and columns take no more memory than a file of its size may ask for."""
    file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=as_dictionary)
    lists = [leaf.path for leaf in map(file.schema.column, range(len(file.schema))) if leaf.max_repetition_level]
    if lists:  # rows do not tell how many values they hold
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


@contextmanager
def _faults_told(name: str, source: Path) -> Iterator[None]:
    """Whatever pyarrow or pandas find wrong with a file, in a sentence."""
    try:
        yield
    except Odd as error:
        raise RecordingError(f"{_file(name, source)} is damaged: {error}.") from error
    except _FAULTS as error:
        raise _unreadable(name, source, error) from error


def _file(name: str, source: Path) -> Path:
    return source / f"{name}.parquet"


def _unreadable(name: str, source: Path, error: Exception) -> RecordingError:
    return RecordingError(f"{_file(name, source)} cannot be read: {' '.join(str(error).split())[:300]}.")


def load_meta(kind: Kind, source: Path) -> dict[str, Any]:
    """Read the facts of a folder.

    Raises
    ------
    RecordingError
        If there is none of the kind, or it is damaged or of a newer form.
    """
    meta = _meta(kind, source)
    try:
        msgspec.convert(meta, kind.facts)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
        raise RecordingError(f"{source / kind.meta} is damaged: {str(error).replace('$', 'meta')}.") from error
    return meta


def _meta(kind: Kind, source: Path) -> dict[str, Any]:
    """The facts of a folder, as they stand there."""
    file = source / kind.meta
    if not source.exists():
        raise RecordingError(f"{source} does not exist.")
    if not file.is_file():
        raise RecordingError(f"{source} is no saved perfnb {kind.word}: it is not a folder with a {kind.meta}.")
    try:
        data = read_regular(file, _LARGEST_META)
        if sum(map(data.count, (b"[", b"{", b",", b":"))) > _MOST_MARKS:
            raise ValueError("it holds more values than any that perfnb writes")
        content = json.loads(data.decode("utf-8"))
        version, meta = content["version"], content["meta"]
        if content["format"] != FORMAT:
            raise ValueError("it is not perfnb's")
        if not isinstance(version, int) or not isinstance(meta, dict):
            raise ValueError("its version or meta is of another type")
        if version <= VERSION and not kind.needs <= meta.keys():
            raise ValueError(f"it has no {min(kind.needs - meta.keys())}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RecordingError(f"{file} is damaged: {error!r}.") from error
    if version > VERSION:
        raise RecordingError(
            f"{source} was saved by a newer perfnb (form {str(version)[:20]}, this one reads {VERSION}): update perfnb."
        )
    return meta
