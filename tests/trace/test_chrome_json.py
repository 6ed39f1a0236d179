"""Decoding piece by piece gives what decoding the whole gives, wherever the pieces end and whatever the text holds."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfnb.errors import TraceError
from perfnb.trace import chrome_json
from perfnb.trace.chrome_json import QUICK, ChromeJson, depth_of
from perfnb.trace.kineto import decode, read
from perfnb.trace.trace_file import Limits, blocks_of_bytes

EVENT = {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 2, "ts": 1, "dur": 2}
#: Events that hold what looks like the end of one, or of all.
TREACHEROUS = [
    {**EVENT, "name": "}, {"},
    {**EVENT, "name": '"}, {"ph": "X"'},
    {**EVENT, "name": '"traceEvents": [{}, {}]'},
    {**EVENT, "name": "back\\slash\\"},
    {**EVENT, "args": {"list": [{"a": 1}, {"b": [{}, {}]}, {}]}},
    {**EVENT, "args": {"traceEvents": [{}, {"ph": "X"}]}},
    {**EVENT, "args": {"a": {"b": {"c": [[{}], [{}, {}]]}}}},
    {"ph": "s", "id": 3},
    {},
]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome_json, "_PIECE", 64)


def pieces_of(data: bytes, **limits: int) -> tuple[list[int], dict[str, Any]]:
    """Return how many events each piece has, and what stands around them."""
    text = ChromeJson(blocks_of_bytes(data), "the trace", Limits(**limits), QUICK)
    return [len(piece.events) for piece in text.pieces()], text.facts


@given(
    st.lists(st.sampled_from(TREACHEROUS), max_size=12),
    st.sampled_from([None, 0, 2]),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\n")]),
    st.sampled_from(["list", "first", "last", "between"]),
    st.integers(1, 300),
)
@settings(deadline=None)
def test_pieces_make_up_the_whole(events: Any, indent: Any, separators: Any, where: str, piece: int) -> None:
    around = {
        'quoted "traceEvents': [{"ph": "X"}],
        "deviceProperties": [{"id": 0}, {"id": 1, "more": [{}, {}]}],
        "baseTimeNanoseconds": 17,
        "metadata": {"traceEvents": [{"ph": "X"}], "a": [{}, {}]},
        "distributedInfo": {"rank": 3},
    }
    items = list(around.items())
    place = {"first": 0, "last": len(items), "between": 3, "list": 0}[where]
    value = events if where == "list" else dict([*items[:place], ("traceEvents", events), *items[place:]])
    data = json.dumps(value, indent=indent, separators=separators).encode()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chrome_json, "_PIECE", piece)
        trace = decode(data)

    timed = [event for event in events if event.get("ph") == "X"]
    assert [trace.names[code] for code in trace.name] == [event["name"] for event in timed]
    if where != "list":
        assert (trace.base_ns, trace.rank) == (17, 3)
        assert trace.devices == around["deviceProperties"]


@pytest.mark.usefixtures("small_pieces")
def test_a_long_text_is_decoded_in_many_pieces() -> None:
    counts, facts = pieces_of(json.dumps({"traceEvents": [EVENT] * 100, "baseTimeNanoseconds": 5}).encode())

    assert sum(counts) == 100
    assert len(counts) >= 90
    assert facts == {"base": 5}


def test_pieces_of_a_long_text_are_short() -> None:
    data = json.dumps([EVENT] * 40_000).encode()

    assert max(pieces_of(data)[0]) * (len(data) / 40_000) < 1.2 * 2**20


@pytest.mark.slow
def test_a_trace_needs_far_less_memory_than_its_text(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    event = {**EVENT, "args": {"Input Dims": [[2, 3]], "Call stack": "x" * 800}}
    path.write_text(json.dumps({"traceEvents": [event] * 40_000, "baseTimeNanoseconds": 1}), "utf-8")
    tracemalloc.start()
    try:
        trace = read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    columns = sum(values.nbytes for values in vars(trace).values() if isinstance(values, np.ndarray))
    assert columns == 40_000 * 23 * 8
    assert peak < columns + 8e6 < path.stat().st_size / 2


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("opening", [b'{"traceEvents": [', b"["])
def test_a_fault_is_reported_with_its_byte_in_the_file(opening: bytes) -> None:
    event = json.dumps(EVENT).encode() + b",\n"
    for odd in (b'{"ph": "X", "name": 3}', b'{"ph": "X", "name" 3}', b'{"ph": "X", "ts": NaN}', b"1"):
        for after in (50, 0):
            before = opening + event * 50
            data = before + odd + b",\n" + event * after + b"{}]" + b"}" * (opening != b"[")
            with pytest.raises(TraceError, match=r"damaged or cut off after byte (\d[\d,]*);") as caught:
                decode(data)
            byte = int(str(caught.value).partition("after byte ")[2].split(";")[0].replace(",", ""))
            assert len(before) <= byte < len(before) + len(odd), odd


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("key", ["traceEvents", "baseTimeNanoseconds", "deviceProperties", "distributedInfo"])
def test_a_key_that_stands_before_and_after_the_events_is_refused(key: str) -> None:
    value = [] if key == "traceEvents" else None
    data = f'{{"{key}": {json.dumps(value)}, "traceEvents": {json.dumps([EVENT] * 9)}, "{key}": {json.dumps(value)}}}'

    with pytest.raises(TraceError, match=rf"it contains {key} twice"):
        decode(data.encode())


def test_a_key_given_twice_in_an_event_counts_as_in_any_reader_the_last_time() -> None:
    assert decode(b'[{"ph": "X", "name": "a", "name": "b"}]').names == ["b"]


@pytest.mark.parametrize("text", [b'\\\\"', b'\\\\\\" [[[', b"\\n", b'\\" [', b"\\\\\\\\"])
def test_depth_is_counted_outside_of_texts_however_quotes_are_escaped(text: bytes) -> None:
    data = b'[{"ph": "X", "name": "' + text + (b"" if text.endswith(b'\\\\"') else b'"') + b', "dur": 1}]'
    assert json.loads(data)
    assert depth_of(data) == 2
    assert depth_of(json.dumps([{**EVENT, "args": {"a": [[[{"b": [1]}]]]}}]).encode()) == 8


def test_values_inside_each_other_are_capped_in_what_is_kept() -> None:
    deep = b"[" * 150 + b"]" * 150
    assert decode(b'{"deviceProperties":' + deep + b',"traceEvents":[]}').devices == []
    with pytest.raises(TraceError, match=r"its values are nested more than 200 levels deep\."):
        decode(b'{"deviceProperties":' + 2 * b"[" * 150 + 2 * b"]" * 150 + b',"traceEvents":[]}')
    shapes = decode(b'[{"ph":"X","args":{"Input Dims":' + 2 * b"[" * 150 + 2 * b"]" * 150 + b"}}]").shape_texts
    assert shapes == ["[" * 200 + "…"]


def test_the_parsers_own_limit_of_depth_is_the_one_error_too() -> None:
    deep = b"[" * 10**6
    for data in (
        b'[{"a":' + deep,
        b'{"a":' + deep,
        b'{"a":' + deep + b'"traceEvents":[',
        b'[{"args":{"Input Dims":' + deep,
    ):
        with pytest.raises(TraceError, match=r"values are nested more than"):
            pieces_of(data)


@pytest.mark.usefixtures("small_pieces")
def test_events_of_any_kind_are_capped() -> None:
    data = json.dumps([EVENT, {}] * 50).encode()

    assert sum(pieces_of(data, max_events=100)[0]) == 100
    with pytest.raises(TraceError, match=r"more than 99 events, names and values; if you trust it, raise max_events\."):
        pieces_of(data, max_events=99)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    "text",
    [
        b'[{"name": "' + b"x" * 10**6 + b'"}]',
        b"[" + b" " * 10**6 + b"]",
        b" " * 10**6 + b"[]",
        b'{"a": [' + b"1," * 10**6 + b'1], "traceEvents": []}',
        b'{"traceEvents": [], "a": [' + b"{}," * 10**6 + b"1]}",
    ],
    ids=["name", "blanks", "blanks before", "before the events", "after the events"],
)
def test_text_held_in_memory_is_capped(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome_json, "_MOST_HELD", 500_000 + 2 * chrome_json._PIECE)
    blocks = (text[begin : begin + 1000] for begin in range(0, len(text), 1000))
    with pytest.raises(TraceError, match=r"no event ends within .* after byte .*, so it is either damaged"):
        list(ChromeJson(blocks, "the trace", Limits(), QUICK).pieces())
    assert next(blocks, None) is not None  # most of it was not even read
    monkeypatch.setattr(chrome_json, "_MOST_HELD", 5 * 10**6)
    assert pieces_of(text)


def test_columns_can_be_changed_by_their_owner() -> None:
    trace = decode(json.dumps([EVENT] * 3).encode())

    columns = [values for values in vars(trace).values() if isinstance(values, np.ndarray)]
    assert len(columns) == 23
    assert all(values.flags.writeable and values.dtype == np.int64 and len(values) == 3 for values in columns)
