"""The reader of Chrome traces: what it takes from a file, and one clear error for each that is none."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest
from msgspec import Raw

from perfnb.errors import TraceError
from perfnb.trace.chrome_json import NO_TEXT
from perfnb.trace.columns import MISSING, TraceColumns
from perfnb.trace.kineto import annotated, decode, text_of, whole_number

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 9, "ts": 1.5, "dur": 2.25, "args": {}}

OLD_CATEGORIES = ("Operator", "Kernel", "Memcpy", "Memset", "Runtime")


def columns_of(*events: dict[str, Any], **rest: Any) -> TraceColumns:
    return decode(json.dumps({"traceEvents": [{**EVENT, **event} for event in events], **rest}).encode())


def test_arguments_that_analysis_needs_are_columns_and_the_rest_is_skipped() -> None:
    args = {
        "correlation": 3,
        "device": 0,
        "stream": 7,
        "Sequence number": 5,
        "Fwd thread id": 1,
        "Input Dims": [[2, [3]]],
        "external id": 4,
        "external ts": 9,
        "Python id": 6,
        "Python parent id": 8,
    }

    trace = columns_of({"args": args}, {"args": {"External id": 2}}, {"args": {"correlation": None}}, {"args": None})

    for name, value in (
        *(("correlation", 3), ("device", 0), ("stream", 7), ("sequence", 5), ("forward_thread", 1)),
        *(("python_id", 6), ("python_parent", 8)),
    ):
        assert getattr(trace, name).tolist() == [value, MISSING, MISSING, MISSING], name
    assert trace.external_id.tolist() == [4, 2, MISSING, MISSING]


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
        {"ph": "M", "name": "process_labels", "pid": 9, "args": {"labels": " GPU 0 "}},
        {"ph": "M", "name": "process_labels", "pid": 10, "args": None},
        {"ph": "M", "name": "process_name", "pid": 10, "args": None},
        {"ph": "i", "name": "process_name", "pid": 11, "args": {"name": "x"}},
        {"ph": "i", "name": "process_labels", "pid": 11, "args": {"labels": "x"}},
        {"ph": "M", "name": "process_sort_index", "pid": 12, "args": {"name": "x", "labels": "x"}},
        {"pid": "Spans", "tid": "x"},
    )

    assert trace.process_names == {7: "python3"}
    assert trace.process_labels == {8: "", 9: "GPU 0"}
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
        {"args": {"Process Group Ranks": [2]}},
    )

    assert trace.collective_names == ["allreduce", "broadcast"]
    assert trace.collective.tolist() == [0, MISSING, 1, MISSING, 0, MISSING]
    assert trace.group_names == ["0 [0, 1]", "größe", "[2]"]
    assert trace.group.tolist() == [0, MISSING, 0, MISSING, 1, 2]


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
        ({"rank": 2**31 - 1, "world_size": 2**31}, 2**31 - 1, None),
        ([], None, None),
        ("rank", None, None),
    ],
)
def test_the_rank_is_known_if_the_trace_contains_it(job: Any, rank: int | None, size: int | None) -> None:
    trace = columns_of({}, distributedInfo=job)

    assert (trace.rank, trace.world_size) == (rank, size)


def test_a_negative_duration_is_none_and_counted() -> None:
    trace = columns_of({"dur": -3}, {"dur": 2}, {"dur": -0.5})

    assert trace.duration_ns.tolist() == [0, 2000, 0]
    assert trace.negative_durations == 2
    assert columns_of({}).negative_durations == 0


@pytest.mark.parametrize(
    "value", ["", "-", "--3", "1e3", "३", "²", "9" * 30, "9" * 5000, 1e300, -1e300, 2.0, "x" * 10_000]
)
def test_odd_values_in_number_fields_neither_crash_nor_disturb_the_others(value: Any) -> None:
    trace = columns_of({"tid": value, "args": {"stream": value, "device": value}}, {"tid": 3, "args": {"stream": 4}})

    assert len(trace) == 2
    assert (trace.thread[1], trace.stream[1], trace.device[1]) == (3, 4, MISSING)


@pytest.mark.parametrize("collecting", [True, False])
def test_too_little_memory_is_the_one_error(collecting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        assert not gc.isenabled()  # which would only cost time
        raise MemoryError

    monkeypatch.setattr("perfnb.trace.kineto.EventColumns.add", fail)
    try:
        if not collecting:
            gc.disable()
        with pytest.raises(TraceError, match=r"^the trace was not read: there is not enough memory for it\.$"):
            columns_of({})
        assert gc.isenabled() == collecting
    finally:
        gc.enable()


def test_devices_are_read() -> None:
    device = {"id": 0, "name": "", "totalGlobalMem": 2**70}
    assert columns_of({}, deviceProperties=[{"id": 0, "name": "H100"}]).devices == [{"id": 0, "name": "H100"}]
    assert columns_of({}, computeProperties=[device]).devices == [{**device, "totalGlobalMem": float(2**70)}]
    for nothing in ([], None, {}, "H100", [3]):
        assert columns_of({}, deviceProperties=nothing).devices == []


@pytest.mark.parametrize("base", [0, 17, "17", 17.0, None, 1751410836000000000, 2**62 - 1, 1 - 2**62])
def test_the_base_of_times_is_a_whole_number(base: Any) -> None:
    assert columns_of({}, baseTimeNanoseconds=base).base_ns == int(base or 0)


@pytest.mark.parametrize("base", [2**62, -(2**62), "x", 0.5, [1]])
def test_a_base_that_is_not_a_time_is_refused(base: Any) -> None:
    with pytest.raises(TraceError, match="its baseTimeNanoseconds is not a time that perfnb can represent"):
        columns_of({}, baseTimeNanoseconds=base)


def test_an_event_ends_before_the_latest_time_that_can_be_represented() -> None:
    last = 2**62 // 1000 - 1  # 2**62 ends with 904 ns
    assert columns_of({"ts": last, "dur": 1.903}).duration_ns.tolist() == [1903]
    with pytest.raises(TraceError, match=r"the end of an event in it is not a time .*: ts \+ dur"):
        columns_of({"ts": last, "dur": 1.904})


def test_allocations_are_in_chronological_order_and_only_they_are_memory() -> None:
    def instant(at: float, size: int, **rest: Any) -> dict[str, Any]:
        args = {"Addr": 64, "Bytes": size, "Device Type": 1, "Device Id": 2, "Total Allocated": 9, "Total Reserved": 8}
        return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": at, "args": args, **rest}

    trace = columns_of(
        instant(2, 20),
        instant(1.5, 10, ph="X", pid=3, tid="4"),
        instant(2, -20, args=None),
        instant(0, 1, name="[outOfMemory]"),
        instant(0, 2, cat="other"),
        {"name": "[memory]"},
    )

    memory = trace.memory
    assert trace.names == ["[memory]"]
    assert memory.time_ns.tolist() == [1500, 2000, 2000]
    assert memory.bytes.tolist() == [10, 20, MISSING]
    assert (memory.process.tolist(), memory.thread.tolist()) == ([3, 7, 7], [4, 9, 9])
    for name, value in (("address", 64), ("device_type", 1), ("device", 2), ("allocated", 9), ("reserved", 8)):
        assert getattr(memory, name).tolist() == [value, value, MISSING], name


ONE_GROUP = {"pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}


@pytest.mark.parametrize(
    ("job", "name"),
    [
        (ONE_GROUP, "0 [0, 1]"),
        ({"pg_config": [{"ranks": []}]}, "[]"),
        ({"pg_config": ONE_GROUP["pg_config"] * 2}, None),
        ({"pg_config": []}, None),
        ({"pg_config": ["0"]}, None),
        ({"pg_config": {"pg_name": "0", "ranks": [0, 1]}}, None),
        ({"pg_config": [{"pg_name": 0, "ranks": [0, 1]}]}, None),
        ({"pg_config": [{"pg_name": "0"}]}, None),
        ({"pg_config": [{"pg_name": "0", "ranks": [0, "1"]}]}, None),
        ([ONE_GROUP], None),
    ],
)
def test_a_jobs_only_group_is_that_of_the_collectives_on_the_host_that_name_none(job: Any, name: str | None) -> None:
    named = {"name": "gloo:all_reduce", "args": {"Process Group Name": "1", "Process Group Ranks": "[2]"}}
    trace = columns_of({"name": "gloo:all_reduce"}, {}, named, {"name": "ncclDevKernel_AllReduce"}, distributedInfo=job)

    groups = [None if code == MISSING else trace.group_names[code] for code in trace.group]
    assert groups == [name, None, "1 [2]", None]
    assert columns_of(distributedInfo=job).group_names == []
    assert columns_of(named, distributedInfo=job).group_names == ["1 [2]"]


def test_messages_are_read_from_events_that_may_send_one() -> None:
    sent = {"In msg nelems": 10, "Out msg nelems": 20, "dtype": "Float"}
    trace = decode(
        json.dumps(
            [
                {**EVENT, "name": "aten::mm", "args": sent},
                {**EVENT, "name": "ncclDevKernel_AllReduce", "args": sent},
                {**EVENT, "name": "gloo:all_reduce", "args": {"Input Dims": [[2, 3]], "Input type": ["c10::Half"]}},
                {**EVENT, "name": "gloo:all_reduce"},
            ]
        ).encode()
    )

    assert trace.elements.tolist() == [MISSING, 20, 6, MISSING]
    assert [trace.dtype_names[code] if code != MISSING else None for code in trace.dtype] == [
        *(None, "float32", "float16", None)
    ]


def test_work_in_a_cuda_graph_has_the_module_of_its_annotation() -> None:
    trace = columns_of(
        {"args": {"graph node id": 5, "module_fqn": "a.b"}},
        {"args": {"graph node id": 0, "module_fqn": "c"}},
        {"args": {"module_fqn": "c"}},
        {"args": {"graph node id": 6}},
        {"args": {"graph node id": 7, "str": "words"}},
        {"args": {"graph node id": 8, "module_fqn": "a.b"}},
    )

    assert trace.module_names == ["a.b", "words"]
    assert trace.module.tolist() == [0, MISSING, MISSING, MISSING, 1, 0]
    assert columns_of({"args": {"module_fqn": "c"}}).module.tolist() == [MISSING]


@pytest.mark.parametrize(
    ("module", "annotation", "mark", "text"),
    [
        ("a", None, None, "a"),
        ("a", "b", "c", "a"),
        (None, None, "c", "c"),
        (None, None, None, ""),
        (None, "words", "c", "words"),
        (None, '[{"module_fqn": "a"}, {"str": "b"}]', None, "b"),
        (None, '[{"str": "b"}, {"module_fqn": "a", "str": "c"}]', None, "a"),
        (None, "[]", "c", ""),
        (None, "[3]", None, "[3]"),
        (None, 5, None, "5"),
    ],
)
def test_an_annotation_is_a_module_or_words_and_the_last_of_several_counts(
    module: Any, annotation: Any, mark: Any, text: str
) -> None:
    raw = (NO_TEXT if value is None else Raw(json.dumps(value).encode()) for value in (module, annotation, mark))

    assert annotated(*raw) == text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (json.dumps("größe").encode(), "größe"),
        (b"", ""),
        (b"null", ""),
        (b"5", "5"),
        (json.dumps("[1,\t2]").encode(), "[1, 2]"),
        (b"[ [1,2],\n[ ] ]", "[[1, 2], []]"),
        (b'"\xe9"', '"\\xe9"'),
        (b"[" + b"1," * 50_000 + b"1]", f"[{'1, ' * 50_000}1]"),
        (b"[" * 200 + b"]" * 200, "[" * 200 + "]" * 200),
        (b"[" * 201 + b"]" * 201, "[" * 200 + "…"),
    ],
)
def test_the_text_of_a_value_is_its_content_or_its_json_with_uniform_blanks(data: bytes, text: str) -> None:
    assert text_of(data) == text


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *((5, 5), ("5", 5), ("-12", -12), (4.0, 4), (-4.0, -4)),
        *((0.5, None), ("", None), ("0.5", None), ("+5", None), (None, None), ([5], None), (float("inf"), None)),
        *((2**63 - 1, 2**63 - 1), (2**63, None), (-(2**63), -(2**63)), (-(2**63) - 1, None)),
        *(("0" * 29 + "1", 1), ("0" * 30 + "1", None), (str(2**63), None)),
    ],
)
def test_a_whole_number_is_one_that_fits_also_as_text(value: Any, number: int | None) -> None:
    assert whole_number(value) == number
