"""A file that is not a trace gives one clear error quickly and in little memory, never a parser's or half a result."""

from __future__ import annotations

import gc
import gzip
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

import perfnb
from perfnb.errors import TraceError
from perfnb.trace import chrome_json
from perfnb.trace.columns import TraceColumns
from perfnb.trace.kineto import decode, read
from tests.laws import holds_of

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 9, "ts": 1.5, "dur": 2.25, "args": {}}
WHOLE = json.dumps({"traceEvents": [EVENT] * 3}).encode()
BROKEN = {
    "empty": b"",
    "html": b"<!doctype html><html></html>",
    "null": b"null",
    "no events": b'{"a": 1}',
    "events are an object": b'{"traceEvents": {}}',
    "events are null": b'{"traceEvents": null}',
    "event is a list": b"[[]]",
    "name is a number": json.dumps([{**EVENT, "name": 3}]).encode(),
    "an argument is a list": json.dumps([{**EVENT, "args": {"stream": [7]}}]).encode(),
    "base is a string": b'{"traceEvents": [], "baseTimeNanoseconds": "x"}',
    "base is damaged": b'{"baseTimeNanoseconds": "\xe9", "traceEvents": []}',
    "base too large": b'{"traceEvents": [], "baseTimeNanoseconds": 4611686018427387904}',
    "end too late": json.dumps([{**EVENT, "ts": 4e15, "dur": 4e15}]).encode(),
    "an allocation too late": b'[{"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 9.2e15}]',
    "time is text that is no number": json.dumps([{**EVENT, "ts": "NaN"}]).encode(),
    "time is an empty text": json.dumps({"traceEvents": [{**EVENT, "ts": ""}]}).encode(),
    "time is a list": json.dumps([{**EVENT, "dur": [1]}]).encode(),
    "time too long": json.dumps([{**EVENT, "ts": 1e300}]).encode(),
    "time infinite": b'[{"ph": "X", "dur": 1e999}]',
    "NaN": b'[{"ph": "X", "ts": NaN}]',
    "Infinity": b'[{"ph": "X", "args": {"bandwidth": -Infinity}}]',
    "Latin-1": '[{"ph": "X", "name": "\xe9"}]'.encode("latin-1"),
    "half a character": '[{"ph": "X", "name": "\u00e9"}]'.encode()[:-4],
    "UTF-16": WHOLE.decode().encode("utf-16"),
    "null bytes": bytes(300),
    "control characters": b'[{"ph": "X", "name": "a\nb"}]',
    "two documents": WHOLE + WHOLE,
    "half of a pair": b'[{"ph": "X", "name": "\\ud800"}]',
}


#: Parts of the reasons for some of them.
REASONS = {
    "empty": "it is empty",
    "html": "neither a JSON object nor a list",
    "no events": "without a list of events",
    "base is a string": "its baseTimeNanoseconds",
    "base is damaged": "its baseTimeNanoseconds is damaged",
    "end too late": "the end of an event in it",
    "time is text that is no number": "a ts or dur in it",
    "name is a number": "damaged or cut off after byte",
    "time is an empty text": "a ts or dur after byte",
    "null bytes": "null bytes",
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_file_that_is_not_a_trace_is_refused_by_name(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "run.json"
    for data in (BROKEN[broken], gzip.compress(BROKEN[broken])):
        path.write_bytes(data)

        with pytest.raises(TraceError, match=REASONS.get(broken)) as caught:
            read(path)

        message = str(caught.value)
        assert str(path) in message
        assert message.endswith(".")
        assert len(message) < 500
        assert gc.isenabled()


@pytest.mark.parametrize("code", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
@pytest.mark.parametrize("text", [WHOLE.decode(), "[ ]", "[]"])
def test_text_in_utf_16_or_utf_32_is_recognised(tmp_path: Path, code: str, text: str) -> None:
    with pytest.raises(TraceError, match=r"its text is UTF-16 or UTF-32; save it as UTF-8\.$"):
        decode(text.encode(code))
    path = tmp_path / "trace.json"
    path.write_bytes(text.encode(code))
    with pytest.raises(TraceError, match=r"save it as UTF-8"):
        perfnb.load(path)


def test_binary_files_are_recognised_by_their_first_bytes() -> None:
    with pytest.raises(TraceError, match=r"it is binary, not text; pass another file\.$"):
        decode(b"\x80\x04\0x")
    with pytest.raises(TraceError, match=r"null bytes"):
        decode(bytes(40))


def test_bytes_without_a_file_are_called_the_trace() -> None:
    with pytest.raises(TraceError, match=r"^the trace is not a Chrome trace .* cut off after byte 1;"):
        decode(b"{")


#: Pieces of a few events, so that small texts are cut too.
SMALL_PIECE = 256
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["X", "M", "kernel", "[memory]", "cpu_instant_event", '}, {"', "thread_name", "1.5", "-", "Infinity", "traceEvents"]
)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-5, 10**16)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
ARGS = st.dictionaries(
    st.sampled_from(["stream", "Input Dims", "correlation", "name", "Collective name", "other", "Bytes"]), VALUES
)
EVENTS = st.dictionaries(st.sampled_from(["ph", "cat", "name", "ts", "dur", "pid", "tid", "args"]), VALUES | ARGS)
TOP = st.fixed_dictionaries(
    {"traceEvents": st.lists(EVENTS | VALUES, max_size=9)},
    optional=dict.fromkeys(("baseTimeNanoseconds", "deviceProperties", "distributedInfo", "other"), VALUES),
)
JSON = st.builds(
    lambda value, indent, ascii_only: json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode(),
    VALUES | st.lists(EVENTS, max_size=9) | TOP,
    st.none() | st.integers(0, 2),
    st.booleans(),
)
BYTES = (
    st.binary(max_size=600)
    | st.tuples(st.integers(0, len(WHOLE)), st.binary(max_size=100)).map(lambda cut: WHOLE[: cut[0]] + cut[1])
    | st.tuples(st.integers(0, len(WHOLE)), st.binary(max_size=9)).map(
        lambda cut: WHOLE[: cut[0]] + cut[1] + WHOLE[cut[0] :]
    )
)


def is_a_trace_or_the_one_error(data: bytes) -> None:
    """Read in one piece or in many, it gives the same columns, or the one error; what json refuses is refused."""
    found: list[TraceColumns | None] = []
    with pytest.MonkeyPatch.context() as patch:
        for piece in (2**20, SMALL_PIECE):
            patch.setattr(chrome_json, "_PIECE", piece)
            found.append(None)
            with suppress(TraceError):
                found[-1] = decode(data)
    whole, cut = found
    assert (whole is None) == (cut is None)
    if whole is None:
        return
    np.testing.assert_equal(vars(cut) | {"memory": vars(cut.memory)}, vars(whole) | {"memory": vars(whole.memory)})
    # Text in values that perfnb skips is not looked at, so it may be no UTF-8.
    trace = json.loads(data.decode("utf-8-sig", "replace"), parse_int=str)
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    timed = [e for e in events if e.get("ph") == "X" and e.get("cat", "") not in ("Trace", "cpu_instant_event")]
    assert [whole.names[code] for code in whole.name] == [event.get("name", "") for event in timed]


@holds_of(BYTES, some=80, many=5_000)
def test_random_bytes_are_a_trace_or_the_one_error(data: bytes) -> None:
    is_a_trace_or_the_one_error(data)


@holds_of(JSON, some=80, many=5_000)
def test_random_json_is_a_trace_or_the_one_error(data: bytes) -> None:
    is_a_trace_or_the_one_error(data)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_trace_cut_off_anywhere_is_the_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(chrome_json, "_PIECE", 2_000)
    events = [{**EVENT, "ts": place, "args": {"Input Dims": [[place, 3]], "l": [{}, {}]}} for place in range(100)]
    whole = pack(json.dumps({"schemaVersion": 1, "traceEvents": events, "INFO": [{}, {}]}, indent=2).encode())
    path = tmp_path / "cut.json"
    for percent in range(100):
        path.write_bytes(whole[: len(whole) * percent // 100])
        with pytest.raises(TraceError, match=r"cut\.json .*(cut off|is empty)"):
            read(path)
    path.write_bytes(whole)
    assert len(read(path)) == 100
