"""Results of rocprofv3: kernels on the right GPU, calls that launched them, and no word of the command line."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfnb
from perfnb.errors import TraceError
from perfnb.trace.rocprof import READER, read
from perfnb.trace.trace_file import LIMITS, reader_of
from tests.trace.test_xplane import FOREIGN, written

REAL = FOREIGN / "rocprof" / "rocprofv3_first6000_results.json.gz"


def record(start: int, lasts: int, correlation: int, **rest: Any) -> dict[str, Any]:
    own = {"start_timestamp": start, "end_timestamp": start + lasts, "thread_id": 908}
    return {**own, "correlation_id": {"internal": correlation, "external": 0}, "stream_id": {"handle": 3}, **rest}


def on(gpu: int, kernel: int) -> dict[str, Any]:
    return {"dispatch_info": {"agent_id": {"handle": gpu}, "queue_id": {"handle": 16}, "kernel_id": kernel}}


SAMPLE: dict[str, Any] = {
    "rocprofiler-sdk-tool": [
        {
            "metadata": {"pid": 908, "command": ["python", "--token=secret"], "config": {}},
            "agents": [
                {"id": {"handle": 90}, "type": 1, "logical_node_type_id": 0, "product_name": "a CPU"},
                {"id": {"handle": 91}, "type": 2, "logical_node_type_id": 0, "product_name": "AMD <b>",
                 "cu_count": 256},
                {"id": {"handle": 92}, "type": 2, "logical_node_type_id": 1, "product_name": "AMD <b>"},
            ],
            "kernel_symbols": [
                {"kernel_id": 8, "kernel_name": "_Z4gemm.kd", "formatted_kernel_name": "gemm"},
                {"kernel_id": 9, "kernel_name": "add.kd"},
            ],
            "strings": {
                "buffer_records": [
                    {"kind": "NONE", "operations": []},
                    {"kind": "HIP_RUNTIME_API", "operations": ["hipNone", "hipLaunchKernel"]},
                    {"kind": "MEMORY_COPY", "operations": ["MEMORY_COPY_NONE", "MEMORY_COPY_HOST_TO_DEVICE"]},
                    {"kind": "MARKER_CORE_API", "operations": ["roctxMarkA"]},
                ],
                "marker_api": [{"key": 70, "value": "ProfilerStep#3"}],
            },
            "buffer_records": {
                "kernel_dispatch": [record(1_500, 400, 11, **on(91, 8)), record(2_000, 100, 12, **on(92, 9)),
                                    record(2_500, 7, 13, **on(92, 77))],
                "hip_api": [record(1_100, 50, 11, kind=1, operation=1), record(1_200, 50, 12, kind=1, operation=1)],
                "memory_copy": [record(1_300, 20, 14, kind=2, operation=1, bytes=64, src_agent_id={"handle": 90},
                                       dst_agent_id={"handle": 92})],
                "marker_api": [record(1_000, 2_000, 70, kind=3, operation=0)],
            },
        }
    ]
}  # fmt: skip


def of_json(folder: Path, whole: Any) -> Path:
    return written(folder, json.dumps(whole).encode())


def test_kernels_copies_and_calls(tmp_path: Path) -> None:
    path = of_json(tmp_path, SAMPLE)
    assert reader_of(path) is READER
    trace = read(path, LIMITS)

    found = {
        trace.names[trace.name[row]]: (
            trace.categories[trace.category[row]],
            *(
                int(getattr(trace, name)[row])
                for name in ("start_ns", "duration_ns", "device", "stream", "correlation")
            ),
        )
        for row in range(len(trace))
        if trace.names[trace.name[row]] != "hipLaunchKernel"
    }
    assert found == {
        "gemm": ("kernel", 1_500, 400, 0, 3, 11),
        "add.kd": ("kernel", 2_000, 100, 1, 3, 12),
        "kernel 77": ("kernel", 2_500, 7, 1, 3, 13),
        "Memcpy HtoD": ("gpu_memcpy", 1_300, 20, 1, 3, 14),
        "ProfilerStep#3": ("user_annotation", 1_000, 2_000, -1, -1, -1),
    }
    assert trace.devices == [{"id": 0, "name": "AMD <b>", "numSms": 256}, {"id": 1, "name": "AMD <b>"}]
    assert "secret" not in repr(trace)


def test_what_a_record_does_not_tell_is_missing_or_has_a_number_for_a_name(tmp_path: Path) -> None:
    whole = copy.deepcopy(SAMPLE)
    process = whole["rocprofiler-sdk-tool"][0]
    agents = [{"id": {"handle": 5}, "type": 2, "name": "gfx"}, {"id": {"handle": 6}, "type": 2, "cu_count": 1}]
    process["agents"] = [{"id": {"handle": 4}, "type": 1}, *agents]
    process["kernel_symbols"] = [{"kernel_id": 8, "kernel_name": "_Z", "demangled_kernel_name": "f()"}]
    process["strings"]["marker_api"] = []
    copied = {"kind": 2, "src_agent_id": {"handle": 5}}
    process["buffer_records"] = {
        "kernel_dispatch": [record(0, 0, 1, **on(6, 8), stream_id=None), record(1, 1, 1, **on(4, 8))],
        "memory_copy": [
            record(2, 1, 1, **copied, operation=0, dst_agent_id={"handle": 6}),
            record(3, 1, 1, **copied, operation=2, dst_agent_id={"handle": 4}, stream_id=None),
            record(4, 1, 1, kind=9, operation=7, bytes=3),
        ],
        "hsa_api": [record(5, 1, 1, kind=-1, operation=1)],
        "rccl_api": [record(6, 1, 1, kind=1, operation=-1)],
        "marker_api": [record(7, 1, 70, kind=3, operation=0)],
    }

    trace = read(of_json(tmp_path, whole), LIMITS)

    columns = ([trace.names[name] for name in trace.name], trace.device, trace.stream, trace.bytes, trace.start_ns)
    assert [row[:4] for row in sorted(zip(*columns, strict=True), key=lambda row: row[4])] == [
        *(("f()", 1, 16, -1), ("f()", -1, 3, -1)),
        *(("Memcpy NONE", 1, 3, -1), ("Memcpy operation 2", 0, -1, -1), ("Memcpy operation 7", -1, 3, 3)),
        *(("operation 1", -1, -1, -1), ("operation -1", -1, -1, -1), ("roctxMarkA", -1, -1, -1)),
    ]
    assert trace.devices == [{"id": 0, "name": "gfx"}, {"id": 1, "name": "", "numSms": 1}]
    assert (set(trace.process), set(trace.thread), trace.caveats) == ({908}, {908}, [])
    del process["buffer_records"]["hsa_api"]
    (caveat,) = read(of_json(tmp_path, whole), LIMITS).caveats
    assert caveat.startswith("No HIP or HSA calls were recorded")
    assert read(of_json(tmp_path, SAMPLE), LIMITS).caveats == []


def test_a_profile_of_it(tmp_path: Path) -> None:
    profile = perfnb.load(of_json(tmp_path, SAMPLE))

    assert profile.steps["step"].tolist() == [3]
    assert profile.gpu_time.set_index("device")["kernel_ms"].to_dict() == {0: 4e-4, 1: 1.07e-4}
    assert "secret" not in str(profile) + str(profile.meta)


def test_damage_is_one_error(tmp_path: Path) -> None:
    def changed(change: Any) -> dict[str, Any]:
        whole = copy.deepcopy(SAMPLE)
        change(whole["rocprofiler-sdk-tool"][0]["buffer_records"]["kernel_dispatch"][0])
        return whole

    cases = {
        "lasts from": changed(lambda one: one.update(end_timestamp=3)),
        "Expected `int`": changed(lambda one: one.update(start_timestamp="x")),
        "Expected `array`": {"rocprofiler-sdk-tool": {}},
    }
    for said, whole in cases.items():
        with pytest.raises(TraceError, match=said):
            read(of_json(tmp_path, whole), LIMITS)


@pytest.mark.skipif(not REAL.is_file(), reason=f"no folder of foreign files at {FOREIGN}; set PERFNB_TRACES")
def test_a_real_result_has_the_kernels_that_are_known() -> None:
    trace = read(REAL, LIMITS)

    assert len(trace) == 6_000
    assert trace.categories == ["kernel"]
    assert trace.duration_ns.sum() == 2_322_857_070
    assert int((trace.start_ns + trace.duration_ns).max() - trace.start_ns.min()) == 12_756_674_116
    assert set(np.unique(trace.device)) == {0}
    assert trace.devices[0]["name"] == "AMD Instinct MI350X"
