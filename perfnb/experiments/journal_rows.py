"""Join the tables of all profiles in a journal, and run SQL queries over them. Files are read on demand."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs

from perfnb.errors import PerfnbError, RecordingError
from perfnb.experiments.journal_index import SavedEntry
from perfnb.recording.frame_files import FrameFile
from perfnb.recording.saved_profile import PROFILE, REDUCED_TABLES
from perfnb.recording.schema import INDEX, SCHEMA
from perfnb.recording.text import TEXT

#: The tables that are saved with each profile.
TABLES = REDUCED_TABLES
_ARROW: Mapping[Any, pa.DataType] = {
    **{"Int64": pa.int64(), "int64": pa.int64(), "bool": pa.bool_()},
    **dict.fromkeys(("Float64", "float64"), pa.float64()),
}


def dataset_of(folder: Path, entries: Mapping[str, SavedEntry], table: str, damaged: dict[str, str]) -> ds.Dataset:
    """Return a table's rows from all profiles, with their ``entry`` and ``rank``. Only requested rows are read.

    Files that are damaged or would need too much memory are skipped and listed in `damaged`.
    """
    form, system = ds.ParquetFileFormat(), pyarrow.fs.LocalFileSystem()
    fragments = []
    for entry, rank, file in _files(folder, entries, table):
        try:
            FrameFile(file, PROFILE.frames[f"table_{table}"]).check()
        except RecordingError as error:
            damaged[entry] = str(error)
            continue
        known = (ds.field("entry") == entry) & (ds.field("rank") == (rank or 0))
        fragments.append(form.make_fragment(str(file), system, partition_expression=known))
    return ds.FileSystemDataset(fragments, _schema(table), form, system)


def frame_of(rows: ds.Dataset, table: str) -> pd.DataFrame:
    """Return all rows as a DataFrame, with the types of the schema."""
    read = rows.to_table()
    types: Any = {name: TEXT if dtype == "category" else dtype for name, dtype in SCHEMA[table].items()}
    types |= dict.fromkeys(("entry", INDEX.get(table, "entry")), TEXT) | {"rank": "Int64"}
    nullable = {pa.int64(): pd.Int64Dtype(), pa.float64(): pd.Float64Dtype()}
    frame: pd.DataFrame = read.to_pandas(types_mapper=nullable.get)
    return frame.astype(types)


def _files(folder: Path, entries: Mapping[str, SavedEntry], table: str) -> Iterator[tuple[str, int | None, Path]]:
    for path, entry in entries.items():
        for place, rank in entry.profiles:
            if (file := folder / path / place / f"table_{table}.parquet").is_file():
                yield path, rank, file


def _schema(table: str) -> pa.Schema:
    columns = {"entry": TEXT, "rank": "Int64"} | ({INDEX[table]: TEXT} if table in INDEX else {}) | dict(SCHEMA[table])
    return pa.schema([(name, _ARROW.get(dtype, pa.string())) for name, dtype in columns.items()])


def query(text: str, frames: Mapping[str, Callable[[], Any]]) -> pd.DataFrame:
    """Run a DuckDB query. Only the tables that it uses are read.

    Raises
    ------
    PerfnbError
        If DuckDB is not installed, or if the query fails.
    """
    try:
        duckdb = importlib.import_module("duckdb")
    except ImportError:
        raise PerfnbError("sql() requires DuckDB, which is not installed. Run pip install duckdb.") from None
    with duckdb.connect() as connection:
        for name, rows in frames.items():
            if re.search(rf"\b{name}\b", text, re.IGNORECASE):
                connection.register(name, rows())
        try:
            found = connection.sql(text)
            return pd.DataFrame() if found is None else found.df()  # a statement may not return a result
        except duckdb.Error as error:
            raise PerfnbError(f"The query cannot be run: {error}") from error
