"""The writer of Chrome traces: the fields of each kind of event, exact times, and valid JSON for any text."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from perfnb.trace import chrome_writer as writer
from perfnb.trace.chrome_writer import Flow, Json, TextColumn


def ints(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def read(parts: Iterable[str]) -> list[Any]:
    events: list[Any] = json.loads(f"[{','.join(parts)}]")
    return events


@pytest.fixture(params=[1, 2, 9])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Write this number of events together."""
    monkeypatch.setattr(writer, "_CHUNK", request.param)
    return int(request.param)


def test_a_slice_has_its_fields_and_only_the_arguments_that_it_has(chunk: int) -> None:
    parts = [
        *writer.slices(
            TextColumn(["aten::mm", 'a "b"'], ints(0, 1, 0)),
            TextColumn(["kernel", "cpu_op"], ints(1, 0, 1)),
            ints(1500, 7, -2_000_001),
            ints(0, 999, 1000),
            ints(7, 0, -1),
            ints(9, 7, -1),
            {
                "stream": ints(-1, 0, -1),
                "note": TextColumn(["x"], ints(0, -1, -1)),
                "nothing": ints(-1, -1, -1),
                "Input Dims": Json(["[[2, 3]]", "[[2,", "1\n"], ints(0, 1, -1)),
            },
        )
    ]

    assert len(parts) == -(-3 // chunk)
    assert read(parts) == [
        {**_slice("aten::mm", "cpu_op", 7, 9, 1.5, 0.0), "args": {"note": "x", "Input Dims": [[2, 3]]}},
        {**_slice('a "b"', "kernel", 0, 7, 0.007, 0.999), "args": {"stream": 0, "Input Dims": "[[2,"}},
        _slice("aten::mm", "cpu_op", -1, -1, -2000.001, 1.0),
    ]


def _slice(name: str, category: str, process: int, thread: int, start: float, duration: float) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, "ts": start, "dur": duration}


def test_instants_and_arrows_are_written_where_they_are(chunk: int) -> None:
    places = Flow(ints(7, -1, 7), ints(9, 9, -1), ints(1, 2000, 3000))
    instants = [*writer.instants("[memory]", "cpu", places, {"bytes": ints(-1, 64, -1)})]
    arrows = [*writer.flows("ac2g", places, Flow(*(values + 1 for values in places)), 5)]

    assert len(instants) == len(arrows) / 2 == -(-3 // chunk)
    mark = {"ph": "i", "s": "t", "cat": "cpu", "name": "[memory]"}
    assert read(instants) == [
        {**mark, "pid": 7, "tid": 9, "ts": 0.001},
        {**mark, "tid": 9, "ts": 2.0, "args": {"bytes": 64}},
        {**mark, "pid": 7, "ts": 3.0},
    ]
    start, end = ({"cat": "ac2g", "name": "ac2g", **phase} for phase in ({"ph": "s"}, {"ph": "f", "bp": "e"}))
    assert read(arrows) == [
        {**start, "id": 5, "pid": 7, "tid": 9, "ts": 0.001},
        {**start, "id": 6, "tid": 9, "ts": 2.0},
        {**start, "id": 7, "pid": 7, "ts": 3.0},
        {**end, "id": 5, "pid": 8, "tid": 10, "ts": 0.002},
        {**end, "id": 6, "pid": 0, "tid": 10, "ts": 2.001},
        {**end, "id": 7, "pid": 8, "tid": 0, "ts": 3.001},
    ]
    assert [one["id"] for one in read(writer.flows("ac2g", places, places))] == [1, 2, 3, 1, 2, 3]


def test_a_curve_has_its_values_and_nothing_is_written_for_none() -> None:
    none = ints()
    column = TextColumn([], none)

    assert read(writer.counter("Memory", 7, ints(0, 1500), ints(10, -1), "bytes")) == [
        {"ph": "C", "name": "Memory", "pid": 7, "ts": 0.0, "args": {"bytes": 10}},
        {"ph": "C", "name": "Memory", "pid": 7, "ts": 1.5, "args": {"bytes": -1}},
    ]
    assert [*writer.counter("Memory", 7, none, none, "bytes")] == []
    assert [*writer.slices(column, column, none, none, none, none, {"stream": none})] == []
    assert [*writer.instants("a", "b", Flow(none, none, none), {})] == []
    assert [*writer.flows("a", Flow(none, none, none), Flow(none, none, none))] == []


def test_processes_and_threads_have_names_and_places() -> None:
    process, thread = {"ph": "M", "pid": 7}, {"ph": "M", "pid": 7, "tid": 0}

    assert read(writer.process_name(7, "python")) == [{**process, "name": "process_name", "args": {"name": "python"}}]
    assert read(writer.process_name(7, "python", 0))[1:] == [
        {**process, "name": "process_sort_index", "args": {"sort_index": 0}}
    ]
    assert read(writer.process_labels(7, "CPU")) == [{**process, "name": "process_labels", "args": {"labels": "CPU"}}]
    assert read(writer.thread_name(7, 0, "main")) == [{**thread, "name": "thread_name", "args": {"name": "main"}}]
    assert read(writer.thread_name(7, 0, "main", 0))[1:] == [
        {**thread, "name": "thread_sort_index", "args": {"sort_index": 0}}
    ]


@pytest.mark.parametrize("events", [[], ['{"ph": "M"}'], ['{"ts": 1},\n{"ts": 2}', '{"name": "größe"}']])
def test_a_document_is_valid_json_plain_and_compressed(events: list[str]) -> None:
    whole = b"".join(writer.document(events, {"traceName": "größe", "schemaVersion": 3}))
    packed = b"".join(writer.gzipped([whole[:20], b"", whole[20:]]))

    content = json.loads(whole)
    assert content.pop("traceEvents") == read(events)
    assert content == {"schemaVersion": 3, "displayTimeUnit": "ms", "traceName": "größe"}
    assert json.loads(b"".join(writer.document([], {})))["schemaVersion"] == 1
    assert zlib.decompress(packed, 31) == whole
    assert packed[:8] == b"\x1f\x8b\x08\0\0\0\0\0"  # neither a name nor a time, so equal traces are equal files


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[1, 2]", [1, 2]),
        ('"x"', "x"),
        ("", ""),
        ("[1,", "[1,"),
        ("[1,\n2]", "[1,\n2]"),
        ("[" * 100_000, "[" * 100_000),
        ("\ud800", "?"),
    ],
)
def test_json_stays_as_it_is_and_any_other_text_becomes_a_string(text: str, value: Any) -> None:
    assert json.loads(writer._json(text)) == value
    assert "\n" not in writer._json(text)


@pytest.mark.parametrize(
    ("ns", "written"),
    [
        (0, "0.000"),
        (1, "0.001"),
        (-1, "-0.001"),
        (999, "0.999"),
        (1000, "1.000"),
        (-1000, "-1.000"),
        (-1999, "-1.999"),
        (1_712_867_402_348_256_789, "1712867402348256.789"),
    ],
)
def test_times_are_microseconds_with_three_decimals(ns: int, written: str) -> None:
    assert writer._microseconds(ints(ns)) == [written]
