"""Folders that perfnb saved, and all ways of altering them in tests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import perfnb
from perfnb.errors import RecordingError
from perfnb.recording.saved_profile import TABLES
from tests.written_traces import Written

#: What a key may be given instead: each type of JSON, and extreme numbers.
VALUES: list[Any] = [None, True, 0, -1, 2**63, 10**400, 0.5, -1e300, 1e300, float("inf"), float("nan"), "", "x", [], {}]
VALUES += [[1], [[]], ["x"], {"x": 1}, {"x": {}}, {"x": "y"}]
FRAMES = (
    *TABLES,
    *("steps", "kernel_ops", "gpu_steps", "gpu_idle", "launches", "queue", "critical_path", "path_savings"),
    *("memory", "allocations", "findings", "samples", "roofline", "timing"),
)


def shows(thing: Any, folder: Path) -> None:
    """Ask a loaded thing for all that it can tell."""
    assert str(thing) is not None
    assert repr(thing)
    if isinstance(thing, perfnb.Profile):
        for name in FRAMES:
            getattr(thing, name)
        thing.to_html(folder / "report.html")
    elif isinstance(thing, perfnb.results.Ranks):
        thing.times, thing.clocks, thing.straggler, thing.findings, thing.ops  # noqa: B018
        thing.to_html(folder / "report.html")
    elif isinstance(thing, perfnb.Watch):
        thing.summary(), thing.samples, thing.marks, thing.notes
        thing._repr_mimebundle_()
    elif isinstance(thing, perfnb.results.ABTest):
        thing.table, thing.decision, thing.reason, thing.to_markdown()
        thing.to_html(folder / "report.html")
    else:
        thing._repr_mimebundle_()


def trace(path: Path, rank: int = 0) -> Path:
    """Return a trace with steps, kernels, layers and memory."""
    made = Written().op("before", 0, 10)
    for number in range(2):
        at = 100.0 + 1000 * number
        made.step(number, at, at + 900)
        made.module("Linear_0", at + 1, at + 60)
        made.event("aten::mm", at + 2, at + 50, **{"Input Dims": [[8, 16], [16, 4]]})
        made.kernel("gemm", at + 10, at + 60 + rank, at + 90)
    return made.write(path)


class Harm:
    """One way to alter a file of a saved folder."""

    def __init__(self, file: str, what: str, do: Callable[[Path], None]) -> None:
        self.file, self.what, self.do = file, what, do

    def __repr__(self) -> str:
        return f"{self.file}: {self.what}"


def columns_altered(folder: Path) -> Iterator[Harm]:
    """Yield each column of each frame with another type, without values, under another name, and not at all."""
    for path in sorted(folder.rglob("*.parquet")):
        file = str(path.relative_to(folder))
        for name in pq.read_schema(path).names:
            for what, do in _COLUMN.items():
                yield Harm(file, f"{name} {what}", lambda path, name=name, do=do: _rewrite(path, name, do))


def keys_altered(folder: Path, values: list[Any]) -> Iterator[Harm]:
    """Yield each key of each file of facts with another value, and not at all."""
    for path in sorted(folder.rglob("*.json")):
        file = str(path.relative_to(folder))
        for place in _places(json.loads(path.read_text("utf-8"))):
            said = ".".join(map(str, place))
            for value in values:
                yield Harm(file, f"{said} = {value!r:.40}", lambda path, at=place, value=value: _set(path, at, value))
            yield Harm(file, f"{said} left out", lambda path, at=place: _set(path, at, _GONE))


def _rewrite(path: Path, name: str, do: Callable[[pa.Table, str], pa.Table]) -> None:
    pq.write_table(do(pq.read_table(path), name), path)


def _retyped(kind: pa.DataType, value: Any) -> Callable[[pa.Table, str], pa.Table]:
    def do(table: pa.Table, name: str) -> pa.Table:
        return table.set_column(table.schema.get_field_index(name), name, pa.array([value] * len(table), kind))

    return do


def _emptied(table: pa.Table, name: str) -> pa.Table:
    kind = table.schema.field(name).type
    return table.set_column(table.schema.get_field_index(name), name, pa.nulls(len(table), kind))


def _half_emptied(table: pa.Table, name: str) -> pa.Table:
    values = [None if row % 2 else value for row, value in enumerate(table.column(name).to_pylist())]
    kind = table.schema.field(name).type
    return table.set_column(table.schema.get_field_index(name), name, pa.array(values, kind))


def _plain(table: pa.Table, name: str) -> pa.Table:
    return _renamed(table, name).replace_schema_metadata(None)


def _renamed(table: pa.Table, name: str) -> pa.Table:
    return table.rename_columns([f"{one}_x" if one == name else one for one in table.column_names])


_COLUMN: dict[str, Callable[[pa.Table, str], pa.Table]] = {
    "as text": _retyped(pa.string(), "x"),
    "as fractions": _retyped(pa.float64(), 0.5),
    "as not a number": _retyped(pa.float64(), float("nan")),
    "as small numbers": _retyped(pa.int32(), 1),
    "as numbers": _retyped(pa.int64(), 2**62 + 1),
    "as flags": _retyped(pa.bool_(), True),
    "as times": _retyped(pa.timestamp("ns"), 0),
    "as lists": _retyped(pa.list_(pa.int64()), [1]),
    "without values": _emptied,
    "with half its values": _half_emptied,
    "renamed": _renamed,
    "renamed, without pandas' notes": _plain,
    "left out": lambda table, name: table.drop_columns([name]),
    "alone": lambda table, name: table.select([name]),
}
_GONE = object()


def _places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    for key, one in inner:
        yield (*above, key)
        yield from _places(one, (*above, key))


def _set(path: Path, place: tuple[Any, ...], value: Any) -> None:
    content = json.loads(path.read_text("utf-8"))
    around = content
    for key in place[:-1]:
        around = around[key]
    if value is _GONE:
        del around[place[-1]]
    else:
        around[place[-1]] = value
    path.write_text(json.dumps(content))


def outcome(folder: Path, harm: Harm, work: Path) -> str | None:
    """Return what is wrong with what perfnb makes of an altered folder; ``None`` where all is well."""
    altered = work / "altered"
    shutil.rmtree(altered, ignore_errors=True)
    shutil.copytree(folder, altered)
    harm.do(altered / harm.file)
    try:
        thing = perfnb.load(altered)
    except RecordingError as error:
        said = str(error)
        known = Path(harm.file).name in said or "by a newer perfnb" in said
        return None if known and said.endswith(".") else f"{harm}: said {said}"
    except Exception as error:
        return f"{harm}: load raised {error!r:.200}"
    try:
        if harm.file.removeprefix("table_").removesuffix(".parquet") in TABLES:
            getattr(thing, Path(harm.file).stem.removeprefix("table_"))
        else:
            shows(thing, work)
    except Exception as error:
        return f"{harm}: {error!r:.200}"
    return None
