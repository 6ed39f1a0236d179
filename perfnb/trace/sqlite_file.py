"""SQLite files from strangers: read only, plain tables only, whole columns at once, within limits.

A view can compute for ever, and a damaged tree of pages can lead in circles. Views and triggers are therefore refused
where a reader could meet them, and a file may cost only so much work for each of its bytes.
"""

from __future__ import annotations

import sqlite3
import tempfile
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from perfnb.errors import TraceError
from perfnb.files import open_regular
from perfnb.quantities import size
from perfnb.trace.columns import Ints
from perfnb.trace.trace_file import (
    GZIP,
    MOST_LETTERS,
    MOST_TEXT,
    Limits,
    OnProgress,
    Reports,
    blocks_of_file,
    too_many,
    too_many_letters,
)

MAGIC = b"SQLite format 3\0"
#: In a column of numbers, a value that a row does not have.
NULL = -(2**63)
_ROWS, _ROWS_OF_TEXT = 20_000, 2_000
#: Bytes of one value.
_MOST_VALUE = 16 * 2**20
#: Instructions of SQLite's machine between two looks at what the file has cost, and those it may cost: a row takes
#: about four for each column that is read, and at least one byte for each.
_LOOK = 100_000
_COST, _COST_PER_BYTE = 20_000_000, 20
#: Instructions for each byte by which progress is estimated.
_USUAL_COST = 2


def is_packed(path: Path) -> bool:
    """Whether a file is compressed with gzip."""
    try:
        with open_regular(path) as file:
            return file.read(len(GZIP)) == GZIP
    except (OSError, ValueError):
        return False


class SqliteFile:
    """An SQLite file that is being read, plain or compressed with gzip; a context manager.

    Parameters
    ----------
    path : Path
    limits : Limits
    progress : callable, optional

    Raises
    ------
    TraceError
        Here and in every method, if the file is damaged, hostile or too large.
    """

    def __init__(self, path: Path, limits: Limits, progress: OnProgress | None = None) -> None:
        self._path = path
        self._limits = limits
        self._raised: BaseException | None = None
        self._cost = self._letters = self._rows = 0
        if not path.is_file():
            raise TraceError(f"{path} cannot be read as a trace: it is not a file.")
        with ExitStack() as opened:
            plain = path
            if is_packed(path):  # unpacked to a file, because SQLite needs to jump around in it
                plain = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="perfnb-")), "unpacked.sqlite")
                with plain.open("wb") as file:
                    file.writelines(blocks_of_file(path, limits))
            else:
                _require_finished(path)
            self._bytes = plain.stat().st_size
            if self._bytes > limits.most_bytes:
                most = size(limits.most_bytes)
                raise TraceError(f"{path} was not read: it is {size(self._bytes)}, above {most}; raise max_bytes.")
            self._report = Reports(progress, self._bytes)
            with self._errors():
                # Immutable: neither locks nor the files beside this one count.
                where = f"{plain.absolute().as_uri()}?mode=ro&immutable=1"
                self._connection = sqlite3.connect(where, uri=True, isolation_level=None)
                opened.callback(self._connection.close)
                self._connection.text_factory = bytes
                self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_VALUE)
                self._connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
                self._connection.set_progress_handler(self._look, _LOOK)
                for setting in ("trusted_schema=OFF", "cell_size_check=ON", "query_only=ON", "mmap_size=0"):
                    self._connection.execute(f"PRAGMA {setting}")
                self.tables = self._schema()
            self._opened = opened.pop_all()

    def __enter__(self) -> SqliteFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, and remove what it was unpacked to."""
        self._opened.close()

    def columns(self, table: str) -> frozenset[str]:
        """The names of a table's columns; none if the file lacks the table.

        Raises
        ------
        TraceError
            If something else than a plain table has the name.
        """
        kind, sql = self.tables.get(table, ("", ""))
        if not kind:
            return frozenset()
        if kind != "table" or not sql.lstrip().upper().startswith("CREATE TABLE"):
            what = "virtual table" if kind == "table" else kind
            raise TraceError(
                f"{self._path} was not read: its {table} is a {what}, where profilers write a plain table."
            )
        with self._errors():
            rows = self._connection.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
            return frozenset(str(row[1], "utf-8", "replace") for row in rows)

    def numbers(self, table: str, names: Sequence[str]) -> dict[str, Ints]:
        """Whole columns of integers, with `NULL` for missing values and in columns that the table lacks.

        Empty without the table.
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
            SQL for each column of integers; `NULL` for missing values.
        texts : dict of str to (str, Texts)
            SQL for each column of text, and what numbers its texts; the column gets their numbers, -1 for none.
        """
        with self._errors():
            count = int(self._connection.execute(f"SELECT count(*) FROM {_quoted(table)}").fetchone()[0])
            self._rows += count
            if self._rows > self._limits.most_events:
                raise too_many(str(self._path), self._limits.most_events)
            asked = [f"ifnull({sql}, {NULL})" for sql in numbers.values()]
            asked += [f"substr({sql}, 1, {MOST_TEXT})" for sql, _ in texts.values()]
            cursor = self._connection.execute(f"SELECT {', '.join(asked)} FROM {_quoted(table)}")
            found = {name: np.empty(count, dtype=np.int64) for name in (*numbers, *texts)}
            done = 0
            while rows := cursor.fetchmany(_ROWS_OF_TEXT if texts else _ROWS):
                until = done + len(rows)
                if until > count:
                    raise self._damaged(f"{table} has more rows than it says")
                for name, values in zip(found, zip(*rows, strict=True), strict=True):
                    if name in texts:
                        found[name][done:until] = self._codes(values, texts[name][1], table)
                        continue
                    try:
                        found[name][done:until] = array("q", values)
                    except TypeError:
                        raise self._damaged(f"{name} of {table} holds something else than whole numbers") from None
                done = until
            return {name: values[:done] for name, values in found.items()}

    def texts_of(self, table: str, key: str, text: str, wanted: Ints) -> dict[int, str]:
        """The texts of a table by their keys, of the wanted keys only."""
        if not {key, text} <= self.columns(table) or not len(wanted):
            return {}
        found: dict[int, str] = {}
        with self._errors():
            asked = f"ifnull({_quoted(key)}, {NULL}), substr({_quoted(text)}, 1, {MOST_TEXT})"
            cursor = self._connection.execute(f"SELECT {asked} FROM {_quoted(table)}")
            while rows := cursor.fetchmany(_ROWS_OF_TEXT):
                keys, values = zip(*rows, strict=True)
                try:
                    kept = np.flatnonzero(np.isin(np.array(array("q", keys)), wanted))
                except TypeError:
                    raise self._damaged(f"{key} of {table} holds something else than whole numbers") from None
                for place in kept.tolist():
                    if isinstance(values[place], bytes):
                        found[keys[place]] = self._text(values[place])
        return found

    def _codes(self, values: Sequence[Any], texts: Texts, table: str) -> Ints:
        known = len(texts)
        try:
            codes = np.fromiter(map(texts.__getitem__, values), dtype=np.int64, count=len(values))
        except TypeError:
            raise self._damaged(f"{table} holds a number where a text should be") from None
        for text in texts.labels[known:]:
            self._count(text)
        return codes

    def _text(self, value: bytes) -> str:
        text = value.decode("utf-8", "replace")
        self._count(text)
        return text

    def _count(self, text: str) -> None:
        self._letters += len(text)
        if self._letters > MOST_LETTERS:
            raise too_many_letters(str(self._path))

    def _schema(self) -> dict[str, tuple[str, str]]:
        """Kind and SQL of each table and view by name."""
        found = {}
        for kind, name, sql in self._connection.execute("SELECT type, name, sql FROM sqlite_master"):
            kind, name, sql = (str(one or b"", "utf-8", "replace") for one in (kind, name, sql))
            if kind == "trigger":
                raise TraceError(f"{self._path} was not read: it has triggers, which no profiler writes.")
            if kind in ("table", "view"):
                found[name] = kind, sql
        return found

    def _look(self) -> int:
        """Called by SQLite now and then while it works; whether to stop it."""
        try:
            self._cost += _LOOK
            self._report(min(self._cost // _USUAL_COST, self._bytes))
            return int(self._cost > _COST + _COST_PER_BYTE * self._bytes)
        except BaseException as error:  # SQLite would drop it: an interrupt among them
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
                    "its pages lead in circles, or it makes far more work than its size allows"
                ) from None
            raise self._damaged(str(error)[:200]) from error
        except MemoryError as error:
            raise TraceError(f"{self._path} was not read: there is not enough memory for it.") from error

    def _damaged(self, why: str) -> TraceError:
        return TraceError(f"{self._path} cannot be read as a trace: it is a damaged SQLite database ({why}).")


def _require_finished(path: Path) -> None:
    """Refuse a file of which a part is still in the log next to it, because SQLite would leave that part out."""
    for ending in ("-wal", "-journal"):
        log = path.with_name(path.name + ending)
        if log.is_file() and log.stat().st_size:
            raise TraceError(
                f"{path} was not read: {log.name} next to it holds changes that are not in the database yet; close the "
                f"program that writes it, or run PRAGMA wal_checkpoint(TRUNCATE) on it with sqlite3, and load it again."
            )


class Texts(dict[Any, int]):
    """Number texts from 0 in the order in which they are first looked up; no text is -1.

    Attributes
    ----------
    labels : list of str
    """

    def __init__(self, read: Callable[[str], str] = str) -> None:
        super().__init__({None: -1})
        self.labels: list[str] = []
        self._read = read

    def __len__(self) -> int:
        return len(self.labels)

    def __missing__(self, key: Any) -> int:
        if not isinstance(key, bytes):
            raise TypeError(key)
        self[key] = code = len(self.labels)
        self.labels.append(self._read(key.decode("utf-8", "replace")))
        return code


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
