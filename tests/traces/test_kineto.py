"""The reader of Chrome traces: what it takes from a file, and one clear error for each that is none."""

from __future__ import annotations

import gc
import gzip
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perfnb.errors import TraceError
from perfnb.traces.kineto import MISSING, TraceColumns, decode, read

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 9, "ts": 1.5, "dur": 2.25, "args": {}}


def columns_of(*events: dict[str, Any], **rest: Any) -> TraceColumns:
    return decode(json.dumps({"traceEvents": [{**EVENT, **event} for event in events], **rest}).encode())


def test_times_are_microseconds_to_the_nanosecond() -> None:
    trace = columns_of(
        {"ts": 0.001, "dur": 0}, {"ts": 5127334912.345, "dur": 1234.567}, displayTimeUnit="ms", baseTimeNanoseconds=17
    )

    assert trace.start_ns.tolist() == [1, 5127334912345]
    assert trace.duration_ns.tolist() == [0, 1234567]
    assert trace.start_ns.dtype == trace.duration_ns.dtype == np.int64
    assert trace.base_ns == 17


def test_names_and_categories_are_codes_into_lists() -> None:
    trace = columns_of({"name": "a"}, {"name": "b", "cat": "kernel"}, {"name": "a"})

    assert [trace.names[code] for code in trace.name] == ["a", "b", "a"]
    assert [trace.categories[code] for code in trace.category] == ["cpu_op", "kernel", "cpu_op"]
    assert len(trace.names) == len(set(trace.names)) == 2
    assert len(trace) == 3


def test_arguments_that_analysis_needs_are_columns_and_the_rest_is_skipped() -> None:
    args = {
        "correlation": 3,
        "device": 0,
        "stream": 7,
        "Sequence number": 5,
        "Fwd thread id": 1,
        "Input Dims": [[2, [3]]],
    }

    trace = columns_of({"args": args}, {"args": {}}, {"args": {"correlation": None}})

    for name, value in (("correlation", 3), ("device", 0), ("stream", 7), ("sequence", 5), ("forward_thread", 1)):
        assert getattr(trace, name).tolist() == [value, MISSING, MISSING], name


def test_only_complete_events_are_kept_and_not_the_span_of_the_trace_itself() -> None:
    trace = columns_of(
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        {"ph": "s", "cat": "ac2g", "id": 4},
        {"ph": "f", "cat": "ac2g", "id": 4, "bp": "e"},
        {"ph": "i", "s": "g"},
        {"cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler"},
        {"name": "kept"},
    )

    assert trace.names == ["kept"]


def test_a_missing_field_is_a_default() -> None:
    trace = decode(b'{"traceEvents": [{"ph": "X"}]}')

    assert (trace.names, trace.categories) == ([""], [""])
    assert (trace.start_ns[0], trace.duration_ns[0], trace.thread[0], trace.base_ns) == (0, 0, MISSING, 0)
    assert trace.devices == []


def test_threads_with_a_name_have_numbers_of_their_own() -> None:
    trace = columns_of(
        {"tid": 4}, {"tid": "stream 7"}, {"tid": "12"}, {"tid": "stream 7"}, {"tid": "other"}, {"tid": -5}
    )

    assert trace.thread[0] == 4
    assert trace.thread[2] == 12
    assert trace.thread[5] == -5
    assert trace.thread[1] == trace.thread[3] != trace.thread[4]
    assert (trace.thread[[1, 4]] < MISSING).all()


def test_integers_that_do_not_fit_are_missing_and_their_neighbours_are_not() -> None:
    trace = columns_of(
        {"args": {"correlation": 10159970886766084423}},
        {"args": {"correlation": 5}},
        {"args": {"correlation": 2**63 - 1}},
    )

    assert trace.correlation.tolist() == [MISSING, 5, 2**63 - 1]


@pytest.mark.parametrize(
    "value", ["", "-", "--3", "1e3", "३", "²", "9" * 30, "9" * 5000, 1e300, -1e300, 2.0, "x" * 10_000]
)
def test_odd_values_in_number_fields_neither_crash_nor_disturb_the_others(value: Any) -> None:
    trace = columns_of({"tid": value, "args": {"stream": value, "device": value}}, {"tid": 3, "args": {"stream": 4}})

    assert len(trace) == 2
    assert (trace.thread[1], trace.stream[1], trace.device[1]) == (3, 4, MISSING)


def test_a_bare_list_of_events_is_a_trace() -> None:
    data = json.dumps([EVENT, EVENT]).encode()

    assert len(decode(data)) == len(decode(b" \n\t" + data)) == 2


def test_devices_are_told() -> None:
    assert columns_of({}, deviceProperties=[{"id": 0, "name": "H100"}]).devices == [{"id": 0, "name": "H100"}]


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress])
def test_files_are_read_plain_and_compressed(tmp_path: Path, pack: Any) -> None:
    path = tmp_path / "trace.any"
    path.write_bytes(pack(json.dumps({"traceEvents": [EVENT]}).encode()))

    assert read(path).names == read(str(path)).names == ["aten::mm"]


WHOLE = json.dumps({"traceEvents": [EVENT] * 3}).encode()
BROKEN = {
    "empty": b"",
    "blank": b"  \n",
    "truncated": WHOLE[:-30],
    "text": b"Hello, this is no trace.",
    "html": b"<!doctype html><html></html>",
    "number": b"3",
    "null": b"null",
    "no events": b'{"a": 1}',
    "events are an object": b'{"traceEvents": {}}',
    "events are null": b'{"traceEvents": null}',
    "event is a string": b'{"traceEvents": ["x"]}',
    "event is a list": b"[[]]",
    "time is a string": json.dumps([{**EVENT, "ts": "now"}]).encode(),
    "time is a list": json.dumps([{**EVENT, "dur": [1]}]).encode(),
    "name is a number": json.dumps([{**EVENT, "name": 3}]).encode(),
    "arguments are a list": json.dumps([{**EVENT, "args": []}]).encode(),
    "an argument is a list": json.dumps([{**EVENT, "args": {"stream": [7]}}]).encode(),
    "base is a string": b'{"traceEvents": [], "baseTimeNanoseconds": "x"}',
    "UTF-16": WHOLE.decode().encode("utf-16"),
    "Latin-1": '[{"ph": "X", "name": "\xe9"}]'.encode("latin-1"),
    "control characters": b'[{"ph": "X", "name": "a\nb"}]',
    "quote in a name": b'[{"ph": "X", "name": "say "hi""}]',
    "NaN": b'[{"ph": "X", "ts": NaN}]',
    "nested too deeply": b"[" * 100_000,
    "an argument nested too deeply": b'[{"ph": "X", "args": {"a": ' + b"[" * 100_000,
    "two documents": WHOLE + WHOLE,
    "time too long": json.dumps([{**EVENT, "ts": 1e300}]).encode(),
    "time infinite": b'[{"ph": "X", "dur": 1e999}]',
    "half a character": b'[{"ph": "X", "name": "\\ud800"}]',
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("compressed", [False, True])
def test_what_is_no_trace_is_one_error_that_names_the_file(tmp_path: Path, data: bytes, compressed: bool) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(gzip.compress(data) if compressed else data)

    with pytest.raises(TraceError) as caught:
        read(path)

    message = str(caught.value)
    assert str(path) in message
    assert message.endswith(".")
    assert len(message) < 500
    assert gc.isenabled()


def test_a_file_that_is_missing_a_folder_or_damaged_is_one_error_that_names_it(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.json.gz"
    damaged.write_bytes(gzip.compress(WHOLE)[:-12])
    garbled = tmp_path / "garbled.json.gz"
    garbled.write_bytes(b"\x1f\x8b" + b"no gzip at all" * 9)
    for path in (tmp_path / "missing.json", tmp_path, damaged, garbled):
        with pytest.raises(TraceError, match=r"cannot be read as a trace") as caught:
            read(path)
        assert str(path) in str(caught.value)


def test_bytes_without_a_file_are_called_the_trace() -> None:
    with pytest.raises(TraceError, match=r"^the trace is not a Chrome trace"):
        decode(b"{")


NUMBERS = st.none() | st.integers(-(2**63), 2**63 - 1)
EVENTS = st.fixed_dictionaries(
    {
        "ph": st.just("X"),
        "name": st.text(st.characters(exclude_categories=["Cs"])),
        "cat": st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: text != "Trace"),
        "ts": st.integers(0, 10**15).map(lambda ns: ns / 1000),
        "dur": st.integers(0, 10**12).map(lambda ns: ns / 1000),
        "tid": NUMBERS,
        "args": st.fixed_dictionaries(
            {}, optional=dict.fromkeys(("correlation", "device", "stream", "Sequence number", "other"), NUMBERS)
        ),
    }
)


@given(st.lists(EVENTS, max_size=20))
def test_any_events_come_back_as_columns(events: list[dict[str, Any]]) -> None:
    trace = decode(json.dumps({"traceEvents": events}).encode())

    assert [trace.names[code] for code in trace.name] == [event["name"] for event in events]
    assert [trace.categories[code] for code in trace.category] == [event["cat"] for event in events]
    assert trace.start_ns.tolist() == [round(event["ts"] * 1000) for event in events]
    assert trace.duration_ns.tolist() == [round(event["dur"] * 1000) for event in events]
    assert trace.thread.tolist() == [MISSING if event["tid"] is None else event["tid"] for event in events]
    for column, name in (("correlation",) * 2, ("sequence", "Sequence number")):
        values = [event["args"].get(name) for event in events]
        assert getattr(trace, column).tolist() == [MISSING if value is None else value for value in values]


@given(st.binary(max_size=300) | st.binary(max_size=100).map(lambda junk: WHOLE[:40] + junk + WHOLE[40:]))
@example(b"\xff\xfe")
def test_random_bytes_are_a_trace_or_the_one_error(data: bytes) -> None:
    with suppress(TraceError):
        assert isinstance(decode(data), TraceColumns)
