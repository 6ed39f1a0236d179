"""Store tables as Parquet files, which any tool can open.

Anyone may have altered a file, so files are read strictly as declared. A column's declaration determines its type, and
the pandas metadata in the file is ignored. When a long table is loaded, it is only checked against the statistics in
the file. These statistics may be false, so every column is checked again when it is decoded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from perfnb.errors import RecordingError
from perfnb.files import read_regular
from perfnb.recording.schema import missing
from perfnb.recording.text import TEXT

#: The file size in bytes below which decoding in several threads costs more time than it saves.
_THREADS_PAY = 4 * 2**20
#: The maximum size of a file in bytes.
_LARGEST = 4 * 2**30
#: The first number is the maximum number of rows in a frame. Beyond the second number, a frame may have one row per
#: byte of its file (an event takes about 10 bytes). A file may always unpack to the fourth number of bytes, and beyond
#: that to at most the third number times its own size.
_MOST_ROWS, _ROWS_OF_ANY = 50_000_000, 1_000_000
_MOST_RATIO, _SIZE_OF_ANY = 200, 64 * 2**20
#: The maximum size of a text column in bytes. A file can store a string once that many rows repeat in memory.
_MOST_TEXT = 2**30
#: The exceptions that pyarrow and pandas raise for an altered file.
_FAULTS = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, NotImplementedError),
    *(RecursionError, MemoryError, pa.ArrowException),
)
#: The column types in a Parquet file, by the type in the frame. All other columns are text.
_NUMBERS: Mapping[Any, Any] = {
    **{"int64": pa.types.is_int64, "Int64": pa.types.is_int64},
    **{"float64": pa.types.is_float64, "Float64": pa.types.is_float64, "bool": pa.types.is_boolean},
}


@dataclass(frozen=True)
class SavedColumn:
    """The constraints of a column.

    Attributes
    ----------
    dtype : dtype
        The column's type in the table: ``int64``, ``Int64``, ``float64``, ``Float64``, ``bool``, ``category`` (of text)
        or `TEXT`.
    missing : bool
        Whether values may be missing.
    low, high : float or None
        The smallest and the largest allowed value.
    needed : bool
        Whether a file without the column is considered damaged.
    index : bool
        Whether the column is the table's index. A numeric index must not contain duplicates. If it is missing from the
        file, rows are numbered from 0.
    """

    dtype: Any
    missing: bool = False
    low: float | None = None
    high: float | None = None
    needed: bool = True
    index: bool = False


Columns = Mapping[str, SavedColumn]


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a table to a file. Errors from the file system are not caught."""
    # Times and numbers rarely repeat, so delta encoding takes less space and time than a dictionary.
    numbers = [name for name in frame if pd.api.types.is_integer_dtype(frame[name].dtype)]
    frame.to_parquet(
        path,
        engine="pyarrow",
        compression="zstd",
        use_dictionary=[name for name in frame if name not in numbers],
        column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
    )


class FrameFile:
    """A table's file, which is held in memory in its stored form and decoded on request.

    Raises
    ------
    RecordingError
        If the file cannot be read or is damaged. This applies to the constructor and to every method.
    """

    def __init__(self, path: Path, columns: Columns) -> None:
        self._path, self._columns = path, columns
        try:
            self._data = read_regular(path, _LARGEST)
        except OSError as error:
            raise RecordingError(f"{path} cannot be read: {error}.") from error

    def check(self, **narrower: float) -> None:
        """Refuse a file whose columns cannot be valid according to its statistics.

        If it has no statistics, decode it instead. `narrower` sets a smaller maximum for some columns from now on.
        """
        self._columns = {
            name: replace(column, high=narrower.get(name, column.high)) for name, column in self._columns.items()
        }
        with self._damage_reported():
            file = self._opened()
            statistics, names = _statistics(file.metadata), self._names(file)
            if file.metadata.num_rows and not statistics.keys() >= set(names):
                self.frame()
            elif file.metadata.num_rows:
                for name in names:
                    _check_range(name, self._columns[name], *statistics[name])

    def rows(self) -> int:
        """Return the number of rows."""
        with self._damage_reported():
            return int(self._opened().metadata.num_rows)

    def frame(self) -> pd.DataFrame:
        """Return the table with the columns that are in the file, after checking them."""
        with self._damage_reported():
            table = self._table()
            values: dict[str, Any] = {}
            for name in table.column_names:
                column = self._columns[name]
                if table.num_rows:
                    _check_range(name, column, *_measured(table[name]))
                values[name] = _decoded(table[name], column.dtype)
            frame = pd.DataFrame(values, index=pd.RangeIndex(table.num_rows))
            for name, column in self._columns.items():
                if column.index:
                    frame = frame if name in frame else frame.assign(**{name: np.arange(len(frame))})
                    if column.dtype == "int64" and frame[name].duplicated().any():
                        raise ValueError(f"its column {name!r} contains a number twice")
                    frame = frame.set_index(name)
            return frame

    @contextmanager
    def _damage_reported(self) -> Iterator[None]:
        """Convert any exception that pyarrow or pandas raises for a file into a readable `RecordingError`."""
        try:
            yield
        except _FAULTS as error:
            raise RecordingError(f"{self._path} is damaged: {' '.join(str(error).split())[:300]}.") from error

    def _names(self, file: pq.ParquetFile) -> list[str]:
        """Return the known columns in a file, in declaration order, after checking their types."""
        schema, names = file.schema_arrow, []
        for name, column in self._columns.items():
            if name not in schema.names:
                if column.needed:
                    raise ValueError(f"it has no column {name!r}")
                continue
            if len(schema.get_all_field_indices(name)) > 1:
                raise ValueError(f"it has the column {name!r} twice")
            kind = schema.field(name).type  # an empty column may have any type in the file
            if file.metadata.num_rows and not _NUMBERS.get(column.dtype, _is_text)(kind):
                raise ValueError(f"its column {name!r} has an unexpected type ({kind})")
            names.append(name)
        return names

    def _table(self) -> pa.Table:
        """Read the known columns. Other columns may have any size."""
        file = self._opened()
        names = self._names(file)
        texts = [name for name in names if self._columns[name].dtype not in _NUMBERS]
        # The file stores repeated text once. Keep it that way until the total size is known.
        threads = len(self._data) >= _THREADS_PAY
        table = self._opened(texts).read(columns=names, use_threads=threads).select(names)
        for name in texts:
            if self._columns[name].dtype != "category":
                parts = [part for part in table[name].chunks if pa.types.is_dictionary(part.type)]
                lengths = [pc.sum(pc.binary_length(part.dictionary).take(part.indices)).as_py() for part in parts]
                if (size := sum(filter(None, lengths))) > _MOST_TEXT:
                    raise ValueError(f"its column {name!r} has {size:,} bytes of text in {len(self._data):,} bytes")
        return table

    def _opened(self, as_codes: Collection[str] = ()) -> pq.ParquetFile:
        """Open the file, unless its rows and columns need more memory than is allowed for a file of its size."""
        size = len(self._data)
        file = pq.ParquetFile(pa.BufferReader(self._data), read_dictionary=list(as_codes))
        lists = [leaf.path for leaf in map(file.schema.column, range(len(file.schema))) if leaf.max_repetition_level]
        if lists:  # a list column may have any number of values per row
            raise ValueError(f"its column {lists[0].partition('.')[0]!r} contains lists")
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        rows = max(file.metadata.num_rows, sum(group.num_rows for group in groups))
        if rows > min(_MOST_ROWS, _ROWS_OF_ANY + size):
            raise ValueError(f"it claims to contain {rows:,} rows in {size:,} bytes")
        unpacked = sum(group.total_byte_size for group in groups)
        if unpacked > _SIZE_OF_ANY + _MOST_RATIO * size:
            raise ValueError(f"it claims to unpack from {size:,} bytes to {unpacked:,}")
        return file


def _is_text(kind: pa.DataType) -> bool:
    """Check whether a column in a file contains text, or is untyped because it has no values."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind))


def _check_range(name: str, column: SavedColumn, lacking: int, low: Any, high: Any) -> None:
    if lacking and not column.missing:
        raise ValueError(f"its column {name!r} has missing values")
    if low is not None and column.low is not None and low < column.low:
        raise ValueError(f"its column {name!r} contains an out-of-range value ({low})")
    if high is not None and column.high is not None and high > column.high:
        raise ValueError(f"its column {name!r} contains an out-of-range value ({high})")


def _measured(values: pa.ChunkedArray) -> tuple[int, Any, Any]:
    """Return the number of missing values, the minimum and the maximum of a column."""
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return values.null_count, None, None
    ends = pc.min_max(values).as_py()
    not_numbers = pc.sum(pc.is_nan(values)).as_py() if pa.types.is_floating(values.type) else 0
    return values.null_count + (not_numbers or 0), ends["min"], ends["max"]


def _statistics(metadata: pq.FileMetaData) -> dict[str, tuple[int, Any, Any]]:
    """Return the same figures as `_measured` from the file's statistics, for columns that have complete statistics.

    Floating-point columns are left out, because the statistics do not count NaN values.
    """
    parts: defaultdict[str, list[Any]] = defaultdict(list)
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            parts[column.path_in_schema].append(None if column.physical_type == "DOUBLE" else column.statistics)
    described = {}
    for name, known in parts.items():
        if all(part and part.has_null_count and (part.has_min_max or not part.num_values) for part in known):
            ends = [part for part in known if part.has_min_max]
            low = min((part.min for part in ends if part.min is not None), default=None)
            high = max((part.max for part in ends if part.max is not None), default=None)
            described[name] = (sum(part.null_count for part in known), low, high)
    return described


def _decoded(values: pa.ChunkedArray, dtype: Any) -> Any:
    """Return the values of a table's column, converted to the column's type."""
    if not len(values) or (dtype not in _NUMBERS and values.null_count == len(values)):
        return missing(len(values), dtype)
    if dtype == "Float64":  # NaN and infinite values count as missing
        values = pc.if_else(pc.is_finite(values), values, pa.scalar(None, values.type))
    if dtype in ("Int64", "Float64"):
        nullable: Any = pd.api.types.pandas_dtype(dtype)
        return nullable.__from_arrow__(values)
    if dtype == "category":
        labels: Any = values.to_pandas().array
        return labels.rename_categories(labels.categories.astype(TEXT))
    if pa.types.is_dictionary(values.type):
        values = pa.chunked_array([part.dictionary_decode() for part in values.chunks])
    return values.to_pandas().astype(dtype).array
