"""Read SQLite files from untrusted sources. Only plain tables are read, in whole columns and within limits.

A view can compute forever, and the pages of a damaged tree can form a cycle. For this reason, files with triggers are
rejected, as are views in place of a table, and the amount of work is limited in proportion to the file's size.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from perfnb.errors import TraceError
from perfnb.files import open_regular
from perfnb.quantities import size
from perfnb.trace.columns import Ints
from perfnb.trace.trace_file import GZIP, MOST_TEXT, Kept, Limits, OnProgress, Reports, blocks_of_file

MAGIC = b"SQLite format 3\0"
#: Represents a missing number in a column.
NULL = -(2**63)
#: The number of rows that are fetched at once, and the maximum size of a value in bytes.
_ROWS, _MOST_VALUE = 5_000, 16 * 2**20
#: The number of SQLite's virtual machine instructions between two checks of the total cost. It is followed by the
#: maximum cost, which has a constant part and a part per byte. Reading a value takes about four instructions, and a
#: value takes up at least one byte.
_LOOK = 100_000
_COST, _COST_PER_BYTE = 20_000_000, 20
#: The number of instructions per byte that is used to estimate progress.
_USUAL_COST = 2


def is_packed(path: Path) -> bool:
    """Check whether a file is compressed with gzip."""
    try:
        with open_regular(path) as file:
            return file.read(len(GZIP)) == GZIP
    except (OSError, ValueError):
        return False


@contextmanager
def opened(path: Path, limits: Limits, progress: OnProgress | None = None) -> Iterator[SqliteFile]:
    """Open an SQLite file, which may be compressed with gzip, to read its tables.

    Raises
    ------
    TraceError
        If the file is damaged, malicious or too large.
    """
    if not path.is_file():
        raise TraceError(f"{path} cannot be read as a trace: it is not a file.")
    with ExitStack() as stack:
        plain = path
        if is_packed(path):  # unpacked to a file, because SQLite needs random access
            plain = Path(stack.enter_context(TemporaryDirectory(prefix="perfnb-")), "unpacked.sqlite")
            with plain.open("wb") as file:
                file.writelines(blocks_of_file(path, limits))
        else:
            _require_finished(path)
        length = plain.stat().st_size
        if length > limits.most_bytes:
            raise TraceError(
                f"{path} was not read: it is {size(length)}, above {size(limits.most_bytes)}; raise max_bytes."
            )
        # In immutable mode, SQLite ignores locks and the files next to this one.
        where = f"{plain.absolute().as_uri()}?mode=ro&immutable=1"
        try:
            connection = stack.enter_context(closing(sqlite3.connect(where, uri=True, isolation_level=None)))
        except sqlite3.Error as error:
            raise TraceError(f"{path} cannot be read as a trace: {error}.") from error
        yield SqliteFile(path, connection, length, limits, progress)


class SqliteFile:
    """The plain tables in an SQLite file.

    Parameters
    ----------
    path : Path
        The file's name, for error messages.
    connection : sqlite3.Connection
    length : int
        The size of the unpacked file in bytes.
    limits : Limits
    progress : callable, optional

    Attributes
    ----------
    tables : dict of str to (str, str)
        The type and the SQL statement of each table and view, by name.
    kept : Kept
        Counts rows and the characters in texts.

    Raises
    ------
    TraceError
        If the file is damaged, malicious or too large. This applies to the constructor and to every method.
    """

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        length: int,
        limits: Limits,
        progress: OnProgress | None = None,
    ) -> None:
        self._path, self._connection, self._bytes = path, connection, length
        self.kept = Kept(str(path), limits)
        self._report = Reports(progress, length)
        self._raised: BaseException | None = None
        self._cost = 0
        connection.text_factory = bytes
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_VALUE)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.set_progress_handler(self._look, _LOOK)
        with self._errors():
            for setting in ("trusted_schema=OFF", "cell_size_check=ON", "query_only=ON", "mmap_size=0"):
                connection.execute(f"PRAGMA {setting}")
            self.tables = self._schema()

    def columns(self, table: str) -> frozenset[str]:
        """Return the names of a table's columns. The result is empty if the file does not contain the table.

        Raises
        ------
        TraceError
            If there is something other than a plain table with this name.
        """
        kind, sql = self.tables.get(table, ("", ""))
        if not kind:
            return frozenset()
        if kind != "table" or not sql.lstrip().upper().startswith("CREATE TABLE"):
            raise TraceError(f"{self._path} was not read: its {table} is not a plain table, as profilers write it.")
        with self._errors():
            rows = self._connection.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
            return frozenset(str(row[1], "utf-8", "replace") for row in rows)

    def numbers(self, table: str, names: Sequence[str]) -> dict[str, Ints]:
        """Return whole columns of integers.

        Missing values, and all values of missing columns, are `NULL`. The columns are empty if the table does not
        exist.
        """
        if not (there := self.columns(table)):
            return {name: np.array([], dtype=np.int64) for name in names}
        return self.rows(table, {name: _quoted(name) if name in there else "NULL" for name in names}, {})

    def rows(self, table: str, numbers: dict[str, str], texts: dict[str, tuple[str, Texts]]) -> dict[str, Ints]:
        """Read every row of a table.

        Parameters
        ----------
        table : str
        numbers : dict of str to str
            The SQL expression for each integer column. Missing values become `NULL`.
        texts : dict of str to (str, Texts)
            The SQL expression for each text column, and the object that assigns numbers to its texts. The resulting
            column contains these numbers, and -1 for missing text.
        """
        asked = [f"ifnull({sql}, {NULL})" for sql in numbers.values()]
        asked += [f"substr({sql}, 1, {MOST_TEXT})" for sql, _ in texts.values()]
        columns = {name: array("q") for name in (*numbers, *texts)}
        with self._errors():
            cursor = self._connection.execute(f"SELECT {', '.join(asked)} FROM {_quoted(table)}")
            while rows := cursor.fetchmany(_ROWS):
                self.kept.add(len(rows))
                for (name, column), values in zip(columns.items(), zip(*rows, strict=True), strict=True):
                    try:
                        column.extend(map(texts[name][1].__getitem__, values) if name in texts else values)
                    except TypeError:
                        raise self._damaged(f"{name} in {table} contains a value of the wrong type") from None
        return {name: np.array(column, dtype=np.int64) for name, column in columns.items()}

    def texts(self, table: str, key: str, text: str) -> dict[int, str]:
        """Return a table's texts by key. Rows without text are skipped.

        The result is empty if the table does not exist.
        """
        if not {key, text} <= self.columns(table):
            return {}
        known = Texts(self.kept)
        columns = self.rows(table, {key: _quoted(key)}, {text: (_quoted(text), known)})
        pairs = zip(columns[key].tolist(), columns[text].tolist(), strict=True)
        return {number: known.labels[code] for number, code in pairs if code >= 0}

    def _schema(self) -> dict[str, tuple[str, str]]:
        """Return the type and the SQL statement of each table and view, by name."""
        schema = {}
        for row in self._connection.execute("SELECT type, name, sql FROM sqlite_master"):
            kind, name, sql = (str(value or b"", "utf-8", "replace") for value in row)
            if kind == "trigger":
                raise TraceError(f"{self._path} was not read: it contains triggers, which profilers do not write.")
            if kind in ("table", "view"):
                schema[name] = kind, sql
        return schema

    def _look(self) -> int:
        """Decide whether to stop SQLite, which calls this function periodically while it is working."""
        try:
            self._cost += _LOOK
            self._report(min(self._cost // _USUAL_COST, self._bytes))
            return int(self._cost > _COST + _COST_PER_BYTE * self._bytes)
        except BaseException as error:  # SQLite would suppress exceptions such as interrupts
            self._raised = error
            return 1

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeError, ValueError, OverflowError, TypeError) as error:
            if self._raised is not None:
                raise self._raised from None
            if self._cost > _COST + _COST_PER_BYTE * self._bytes:
                raise self._damaged(
                    "its pages form a cycle, or reading it takes far more work than its size suggests"
                ) from None
            raise self._damaged(str(error)[:200]) from error
        except MemoryError as error:
            raise TraceError(f"{self._path} was not read: there is not enough memory for it.") from error

    def _damaged(self, why: str) -> TraceError:
        return TraceError(f"{self._path} cannot be read as a trace: it is a damaged SQLite database ({why}).")


def _require_finished(path: Path) -> None:
    """Raise an error if part of a file is still in the log next to it, because SQLite would omit that part."""
    for ending in ("-wal", "-journal"):
        log = path.with_name(path.name + ending)
        if log.is_file() and log.stat().st_size:
            raise TraceError(
                f"{path} was not read: {log.name} contains changes that are not yet in the database; close the "
                f"program that writes it, or run PRAGMA wal_checkpoint(TRUNCATE) on it with sqlite3, and load it again."
            )


class Texts(dict[Any, int]):
    """Assigns numbers to UTF-8 texts, starting at 0, in the order of their first lookup. Missing text is -1.

    Attributes
    ----------
    labels : list of str
    """

    def __init__(self, kept: Kept, read: Callable[[str], str] = str) -> None:
        super().__init__({None: -1})
        self.labels: list[str] = []
        self._kept, self._read = kept, read

    def __missing__(self, key: bytes) -> int:
        self[key] = code = len(self.labels)
        self.labels.append(self._read(key.decode("utf-8", "replace")))
        self._kept.add(0, self.labels[-1])
        return code


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
