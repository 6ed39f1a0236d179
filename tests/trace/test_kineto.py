"""The reader of Chrome traces: what it takes from a file, and one clear error for each that is none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfnb.errors import TraceError
from perfnb.trace.columns import MISSING, TraceColumns
from perfnb.trace.kineto import decode, read

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 9, "ts": 1.5, "dur": 2.25, "args": {}}

OLD_CATEGORIES = ("Operator", "Kernel", "Memcpy", "Memset", "Runtime")


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


def test_an_event_under_a_readable_name_has_the_name_that_perfnb_kept() -> None:
    trace = columns_of({"name": "step 3", "args": {"perfnb name": "pf_step#3"}}, {"name": "aten::mm"})

    assert [trace.names[code] for code in trace.name] == ["pf_step#3", "aten::mm"]


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


def test_names_and_large_numbers_of_threads_and_processes_are_told_apart() -> None:
    trace = columns_of(
        {"pid": "Spans", "tid": 2**64},
        {"pid": 2**64 + 1, "tid": "Spans"},
        {"pid": None, "tid": 4.0},
        {"pid": "Spans", "tid": "3004819264"},
    )

    assert trace.process[0] == trace.process[3] == trace.thread[1] < MISSING
    assert len({*trace.process.tolist(), *trace.thread.tolist()}) == 6
    assert (trace.process[2], trace.thread[2], trace.thread[3]) == (MISSING, 4, 3004819264)


def test_processes_and_threads_are_named() -> None:
    def names(kind: str, name: Any, **ids: Any) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "args": {"name": name}, **ids}

    trace = columns_of(
        {},
        names("process_name", "python3", pid=7, tid=0),
        names("thread_name", "thread 9 (main) ", pid=7, tid=9),
        names("thread_name", "stream", pid="Spans", tid="x"),
        names("process_labels", "CPU", pid=8),
        names("thread_name", 5, pid=1, tid="2"),
        {"pid": "Spans", "tid": "x"},
    )

    assert trace.process_names == {7: "python3"}
    assert trace.thread_names == {
        (7, 9): "thread 9 (main)",
        (trace.process[1], trace.thread[1]): "stream",
        (1, 2): "5",
    }
    assert len(trace) == 2


def test_categories_have_todays_names() -> None:
    trace = columns_of(*({"cat": category} for category in (*OLD_CATEGORIES, "cpu_op", "kernel", "overhead")))

    found = [trace.categories[code] for code in trace.category]
    assert found == [*("cpu_op", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime"), "cpu_op", "kernel", "overhead"]
    assert len(set(trace.categories)) == len(trace.categories) == 6


def test_the_ids_of_operators_and_python_calls_are_columns() -> None:
    trace = columns_of(
        {"args": {"External id": 3, "Python id": 5, "Python parent id": None}},
        {"args": {"external id": 4, "external ts": 9, "Python id": 6, "Python parent id": 5}},
        {"args": None},
    )

    assert trace.external_id.tolist() == [3, 4, MISSING]
    assert trace.python_id.tolist() == [5, 6, MISSING]
    assert trace.python_parent.tolist() == [MISSING, 5, MISSING]


def test_shapes_are_codes_of_texts_however_they_are_spaced() -> None:
    dims = [[8, 16], [16, 4], []]
    even = decode(json.dumps([{**EVENT, "args": {"Input Dims": dims}}]).encode())
    wide = decode(json.dumps([{**EVENT, "args": {"Input Dims": dims}}], indent=3).encode())
    tight = decode(json.dumps([{**EVENT, "args": {"Input Dims": dims}}], separators=(",", ":")).encode())
    old = columns_of(
        {"args": {"Input dims": dims}}, {}, {"args": {"Input Dims": [[2]]}}, {"args": {"Input dims": dims}}
    )

    assert even.shape_texts == wide.shape_texts == tight.shape_texts == ["[[8, 16], [16, 4], []]"]
    assert old.shape_texts == ["[[8, 16], [16, 4], []]", "[[2]]"]
    assert old.shapes.tolist() == [0, MISSING, 1, 0]


def test_collectives_and_their_groups_are_codes_of_texts() -> None:
    group = {"Process Group Name": "0", "Process Group Ranks": "[0,1]", "Process Group Description": "default_pg"}
    trace = columns_of(
        {"args": {"Collective name": "allreduce", **group}},
        {},
        {"args": {"Collective name": "broadcast", **group, "Process Group Ranks": [0, 1]}},
        {"args": {"Collective name": "", "Process Group Name": "", "Process Group Ranks": None}},
        {"args": {"Collective name": "allreduce", "Process Group Name": "größe"}},
    )

    assert trace.collective_names == ["allreduce", "broadcast"]
    assert trace.collective.tolist() == [0, MISSING, 1, MISSING, 0]
    assert trace.group_names == ["0 [0, 1]", "größe"]
    assert trace.group.tolist() == [0, MISSING, 0, MISSING, 1]


def test_what_a_synchronisation_waits_for_is_a_column_and_an_unsigned_minus_one_is_none() -> None:
    waits = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 41, "wait_on_cuda_event_id": 3}
    none = dict.fromkeys(("stream", "device", "correlation", *waits), 2**32 - 1)
    trace = columns_of({"cat": "cuda_sync", "args": waits}, {"args": none}, {"args": {"stream": 2**32}})

    assert trace.wait_stream.tolist() == [7, MISSING, MISSING]
    assert trace.wait_correlation.tolist() == [41, MISSING, MISSING]
    assert trace.stream.tolist() == [MISSING, MISSING, 2**32]
    assert trace.device[1] == trace.correlation[1] == MISSING


@pytest.mark.parametrize(
    ("job", "rank", "size"),
    [
        (None, None, None),
        ({"rank": 3, "world_size": 128, "backend": "nccl"}, 3, 128),
        ({"rank": "3", "world_size": 8.0}, 3, 8),
        ({"backend": "nccl"}, None, None),
        ({"rank": -1, "world_size": 2**70}, None, None),
        ([], None, None),
        ("rank", None, None),
    ],
)
def test_the_rank_is_told_where_the_trace_says_it(job: Any, rank: int | None, size: int | None) -> None:
    trace = columns_of({}, distributedInfo=job)

    assert (trace.rank, trace.world_size) == (rank, size)


def test_a_negative_duration_is_none_and_counted() -> None:
    trace = columns_of({"dur": -3}, {"dur": 2}, {"dur": -0.5})

    assert trace.duration_ns.tolist() == [0, 2000, 0]
    assert trace.negative_durations == 2
    assert columns_of({}).negative_durations == 0


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


def test_too_little_memory_is_the_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise MemoryError

    monkeypatch.setattr("perfnb.trace.kineto.EventColumns.add", fail)

    with pytest.raises(TraceError, match=r"^the trace was not read: there is not enough memory for it\.$"):
        columns_of({})


def test_devices_are_told() -> None:
    device = {"id": 0, "name": "", "totalGlobalMem": 2**70}
    assert columns_of({}, deviceProperties=[{"id": 0, "name": "H100"}]).devices == [{"id": 0, "name": "H100"}]
    assert columns_of({}, computeProperties=[device]).devices == [{**device, "totalGlobalMem": float(2**70)}]
    for nothing in ([], None, {}, "H100", [3]):
        assert columns_of({}, deviceProperties=nothing).devices == []


@pytest.mark.parametrize("base", [0, 17, "17", 17.0, None, 1751410836000000000])
def test_the_base_of_times_is_a_whole_number(base: Any) -> None:
    assert columns_of({}, baseTimeNanoseconds=base).base_ns == int(base or 0)


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress])
def test_files_are_read_plain_and_compressed(tmp_path: Path, pack: Any) -> None:
    path = tmp_path / "trace.any"
    path.write_bytes(pack(json.dumps({"traceEvents": [EVENT]}).encode()))

    assert read(path).names == read(str(path)).names == ["aten::mm"]


NUMBERS = st.none() | st.integers(-(2**63), 2**63 - 1)
EVENTS = st.fixed_dictionaries(
    {
        "ph": st.just("X"),
        "name": st.text(st.characters(exclude_categories=["Cs"])),
        "cat": st.text(st.characters(exclude_categories=["Cs"])).filter(
            lambda text: text not in ("Trace", "cpu_instant_event", *OLD_CATEGORIES)
        ),
        "ts": st.integers(0, 10**15).map(lambda ns: ns / 1000),
        "dur": st.integers(0, 10**12).map(lambda ns: ns / 1000),
        "tid": NUMBERS,
        "args": st.fixed_dictionaries(
            {}, optional=dict.fromkeys(("correlation", "device", "stream", "Sequence number", "other"), NUMBERS)
        ),
    }
)


@pytest.mark.slow
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
