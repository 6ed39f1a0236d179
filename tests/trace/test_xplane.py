"""XSpace files of JAX and TensorFlow: planes, lines and events are distinguished, and damaged files are refused."""

from __future__ import annotations

import gc
import gzip
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfnb
from perfnb.errors import TraceError
from perfnb.recording.reading import trace_files
from perfnb.trace import protobuf, xplane
from perfnb.trace.columns import TraceColumns
from perfnb.trace.trace_file import LIMITS, Limits, reader_of
from perfnb.trace.xla import framework_op, number_of, work_category
from perfnb.trace.xplane import READER, read
from perfnb.trace_names import told_direction
from tests.wire import message, plane, space, varint

FOREIGN = Path(os.environ.get("PERFNB_TRACES", Path(__file__).parents[3] / "shared" / "traces")).parent / "foreign"
REAL = FOREIGN / "xplane" / "mi300_jax_conv_08.xplane.pb"

FORWARD, BACKWARD = "jit(step)/jvp(Dense_0)/dot_general", "jit(step)/transpose(jvp(Dense_0))/dot_general"


def launch(number: int, op: str, path: str) -> dict[str, object]:
    return {"correlation_id": number, "hlo_op": op, "name": path, "tf_op": "XlaModule:", "hlo_module": "jit_step"}


def compiled(module: str, paths: dict[str, str]) -> bytes:
    """Return the plane that holds the HLO of a module: its ops and their paths."""
    ops = [(2, message((1, op), (2, "fusion"), (7, message((1, "add"), (2, path))))) for op, path in paths.items()]
    hlo = message((1, message((1, module), (2, "main"), (3, message((1, "main"), *ops)))))
    kind = message((1, 8), (2, f"{module}(8)"), (5, message((1, 2), (6, hlo))))
    stat = message((1, 2), (2, message((1, 2), (2, "Hlo Proto"))))
    return message((2, "/host:metadata"), (4, message((1, 8), (2, kind))), (5, stat))


#: Two steps: each launches a forward and a backward kernel, and copies its batch.
SAMPLE = space(
    compiled("jit_step", {"fusion": FORWARD, "tanh": BACKWARD, "x": "parameter"}),
    plane(
        "/device:GPU:3",
        {
            "Stream #16(Kernel)@5000": [
                ("fusion.kd", 200, 100, {"correlation_id": 1}),
                ("fusion_1.kd", 400, 300, {"correlation_id": 2}),
                ("fusion.kd", 10_200, 100, {"correlation_id": 3}),
                ("fusion_1.kd", 10_400, 301, {"correlation_id": 4}),
            ],
            "Stream #7(MemcpyH2D)@5000": [("MemcpyH2D", 0, 50, {"memcpy_details": "kind:H2D size:4"})],
            "XLA Ops@5000": [("fusion", 200, 100), ("fusion.1", 400, 300)],
            "XLA Modules@5000": [("jit_step", 200, 500)],
        },
        {"device_vendor": "ACME", "core_count": 12, "memory_size": 2**34},
    ),
    plane(
        "/host:CPU",
        {
            "python@4000": [
                ("train", 900, 9_000, {"step_num": 7}),
                ("$train.py:12 step", 950, 8_000),
                ("$builtins len", 960, 10),
                ("PjitFunction(step)", 1_000, 4_000),
                ("train", 10_900, 9_000, {"step_num": 8}),
            ],
            "Host Threads/5@4000": [
                ("cuLaunchKernel", 1_100, 20, launch(1, "fusion", FORWARD)),
                ("cuLaunchKernel", 1_200, 30, launch(2, "fusion.1", BACKWARD)),
                ("cuLaunchKernel", 11_100, 20, launch(3, "fusion", FORWARD)),
                ("cuLaunchKernel", 11_200, 30, launch(4, "fusion.1", BACKWARD)),
            ],
        },
    ),
    plane("Task Environment", {}, {"profile_start_time": 1_700_000_000_000_000_000}),
)


def written(folder: Path, data: bytes, name: str = "a.bin") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def error_of(path: Path, **options: int) -> str:
    with pytest.raises(TraceError) as caught:
        read(path, Limits(**options))
    return str(caught.value)


def named(trace: TraceColumns, name: str) -> np.ndarray:
    return np.flatnonzero(trace.name == trace.names.index(name))


def test_planes_are_devices_and_hosts_and_lines_are_streams_and_threads(tmp_path: Path) -> None:
    trace = read(written(tmp_path, SAMPLE), LIMITS)

    assert trace.base_ns == 1_700_000_000_000_000_000
    backward = named(trace, "fusion_1.kd")
    assert trace.start_ns[backward].tolist() == [5_400, 15_400]
    assert trace.duration_ns[backward].tolist() == [300, 301]
    assert set(trace.device[backward]) == {3}
    assert set(trace.stream[backward]) == {16}
    assert trace.devices == [{"id": 3, "name": "ACME GPU", "totalGlobalMem": 2**34, "numSms": 12}]
    counts = dict(zip(*np.unique(np.array(trace.categories)[trace.category], return_counts=True), strict=True))
    assert counts == {
        **{"kernel": 4, "gpu_memcpy": 1, "gpu_user_annotation": 1, "cuda_runtime": 4, "cpu_op": 8},
        **{"python_function": 2, "user_annotation": 5},  # two steps are there under torch's name too
    }
    assert {"train.py(12): step", "builtins len", "ProfilerStep#7", "ProfilerStep#8"} < set(trace.names)


def test_a_profile_has_steps_ops_and_directions_of_kernels(tmp_path: Path) -> None:
    profile = perfnb.load(written(tmp_path, gzip.compress(SAMPLE)))

    assert profile.steps["step"].tolist() == [7, 8]
    kernels = profile.events[profile.events["category"] == "kernel"]
    assert kernels["phase"].tolist() == ["forward", "backward"] * 2
    assert kernels["step"].tolist() == [7, 7, 8, 8]
    assert profile.ops["gpu_ms"][["fusion", "fusion.1"]].tolist() == [1e-4, 3.005e-4]
    assert profile.gpu_time["kernel_ms"].tolist() == [8.01e-4]
    words = " ".join(str(profile).split())
    assert "only the names of ops (jvp, transpose, gradient_tape) distinguish forward from backward" in words
    assert "torch.profiler" not in words


def test_the_hlo_tells_what_an_op_is_for(tmp_path: Path) -> None:
    ops = [
        (name, 10 * place, 5, {"hlo_op": name, "hlo_module": "jit_step"}) for place, name in enumerate(("tanh", "x"))
    ]
    hlo = compiled("jit_step", {"tanh": BACKWARD, "x": "parameter"})
    for planes in ((hlo, plane("/host:CPU", {"XLAEigen": ops})), (plane("/host:CPU", {"XLAEigen": ops}), hlo)):
        profile = perfnb.load(written(tmp_path, space(*planes)))

        phases = profile.events.set_index("name")["phase"]
        assert phases["tanh"] == phases[BACKWARD] == "backward"
        assert set(profile.ops.index) == {"tanh", BACKWARD, "x"}


def test_a_folder_of_jax_holds_each_profile_once(tmp_path: Path) -> None:
    for name in ("host.xplane.pb", "host.trace.json.gz", "perfetto_trace.json.gz", "other.xplane.pb"):
        written(tmp_path, SAMPLE, name)
    assert [path.name for path in trace_files(tmp_path)] == ["host.xplane.pb", "other.xplane.pb"]
    assert len(perfnb.load(tmp_path)) == 2


def test_steps_of_a_device_count_if_the_host_has_none(tmp_path: Path) -> None:
    lines = {"Steps": [("4", 0, 50), ("5", 50, 70)], "XLA Ops": [("fusion", 10, 20), ("while", 60, 50)]}
    profile = perfnb.load(written(tmp_path, space(plane("/device:TPU:1", lines))))

    assert profile.steps["step"].tolist() == [4, 5]
    assert profile.kernels["total_ms"].to_dict() == {"while": 2.5e-5, "fusion": 1e-5}


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        (FORWARD, "forward"),
        (BACKWARD, "backward"),
        ("jit(step)/transpose(pmap(jvp(f)))/add", "backward"),
        ("gradient_tape/model/dense/MatMul:MatMul", "backward"),
        ("jit(f)/transpose", ""),
        ("jit(transpose(x))/add", ""),
        ("aten::transpose", ""),
        ("my_jvp(x)", ""),
    ],
)
def test_names_tell_directions(name: str, direction: str) -> None:
    assert told_direction(name) == direction


def test_it_is_known_by_its_content(tmp_path: Path) -> None:
    assert reader_of(written(tmp_path, SAMPLE, "no_name")) is READER
    assert reader_of(written(tmp_path, gzip.compress(SAMPLE), "trace.json.gz")) is READER
    for other in (b"", b"\n", b"\n\xff\xff\xff", b"\n\nhello", message((1, message((8, 5), (60, b"")))), b"{}"):
        assert reader_of(written(tmp_path, other, "x.xplane.pb")) is not READER


def test_a_damaged_or_hostile_file_is_one_error(tmp_path: Path) -> None:
    long = 2**40
    cases = {
        "cut off": SAMPLE[: len(SAMPLE) // 2],
        "a length in it is wrong": space(plane("/host:CPU", {})) + b"\x0a" + varint(long),
        "too long": space(plane("/host:CPU", {})) + b"\xff" * 20,
        "an unknown type": space(plane("/host:CPU", {})) + b"\x0b\x0c",
        "out of range": space(plane("/host:CPU", {f"a@{2**62}": [("x", 1, 1)]})),
    }
    for said, data in cases.items():
        assert said in error_of(written(tmp_path, data))
    for many in (b"\x22\x00", b"\x2a\x00", b"\x1a\x00"):  # kinds of events, kinds of statistics, lines
        path = written(tmp_path, space(message((2, "/host:CPU")) + many * 1_000))
        assert "raise max_events" in error_of(path, max_events=900)
    bomb = written(tmp_path, gzip.compress(space(plane("/host:CPU", {})) + bytes(34 * 2**20)))
    assert "if you trust it, unpack it first" in error_of(bomb)


def test_an_event_that_only_counts_occurrences_is_not_an_event(tmp_path: Path) -> None:
    events = [message((1, 7), (2, 5_000), (3, 9_000), (6, 1)), message((1, 7), (5, 3))]
    kind = (4, message((1, 7), (2, message((1, 7), (2, "x")))))
    host = message((2, "/host:CPU"), kind, (3, message((1, 4), *((4, event) for event in events))))
    trace = read(written(tmp_path, space(host)), LIMITS)
    assert (trace.names, trace.start_ns.tolist(), trace.duration_ns.tolist()) == (["x"], [5], [9])


def test_the_data_is_freed_once_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Data(bytearray):
        """Bytes whose end can be seen."""

    alive: list[weakref.ref[Data]] = []

    def whole_file(*_: object) -> Data:
        data = Data(SAMPLE)
        alive.append(weakref.ref(data))
        return data

    monkeypatch.setattr(xplane, "whole_file", whole_file)
    gc.disable()
    try:
        assert len(read(tmp_path / "a", LIMITS))
        assert [data() for data in alive] == [None]
    finally:
        gc.enable()


def test_a_walk_never_leaves_its_message() -> None:
    inner = message((1, 300), (2, "text"))
    data = b"\x00\x00" + inner + b"\xff\xff"
    found = list(protobuf.spans(data, 2, 2 + len(inner)))
    assert [(field, kind) for field, kind, *_ in found] == [(1, 0), (2, 2)]
    assert data[found[1][2] : found[1][3]] == b"text"
    with pytest.raises(protobuf.Damaged):
        list(protobuf.spans(data, 2, 2 + len(inner) - 1))


@pytest.mark.parametrize(
    ("value", "number"), [(0, 0), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 1, -1), (b"\x05", 0)]
)
def test_a_number_is_signed_and_bytes_are_none(value: Any, number: int) -> None:
    assert protobuf.signed(value) == number


@pytest.mark.skipif(not REAL.is_file(), reason=f"no folder of foreign files at {FOREIGN}; set PERFNB_TRACES")
def test_a_real_file_has_the_kernels_that_are_known() -> None:
    trace = read(REAL, LIMITS)

    kernels = trace.category == trace.categories.index("kernel")
    assert [int((kernels & (trace.device == number)).sum()) for number in range(8)] == [60] + [25] * 7
    second = np.flatnonzero(kernels & (trace.device == 1))
    assert trace.duration_ns[second].sum() == 3_345_845
    span = (trace.start_ns + trace.duration_ns)[second].max() - trace.start_ns[second].min()
    assert round(span / 1e6, 4) == 112.1061
    assert set(trace.stream[second]) == {19}
    first = np.flatnonzero(kernels & (trace.device == 0))
    streams, counts = np.unique(trace.stream[first], return_counts=True)
    assert dict(zip(streams.tolist(), counts.tolist(), strict=True)) == {15: 9, 16: 34, 17: 9, 18: 8}


@pytest.mark.parametrize(
    ("line", "name", "stats", "category"),
    [
        ("Stream #7(Compute)", "gemm", {}, "kernel"),
        ("Stream #7", "gemm", {}, "kernel"),
        ("Stream #7(MemcpyH2D)", "x", {}, "gpu_memcpy"),
        ("Stream #7(memcpy)", "MemsetD32", {}, "gpu_memset"),
        ("Stream #7", "memcpyH2D", {}, "gpu_memcpy"),
        ("Stream #7", "my memcpy", {}, "kernel"),
        ("Stream #7(Compute,MemcpyH2D)", "gemm", {}, "kernel"),
        ("Stream #7", "x", {"memset_details": "kind: device"}, "gpu_memset"),
        ("Stream #7", "x", {"memcpy_details": "kind: h2d"}, "gpu_memcpy"),
        ("XLA Ops", "copy.5", {}, "kernel"),
    ],
)
def test_work_is_a_kernel_unless_its_name_line_or_details_say_otherwise(
    line: str, name: str, stats: dict[str, Any], category: str
) -> None:
    assert work_category(line, name, stats) == category


@pytest.mark.parametrize(
    ("stats", "op"),
    [
        ({}, ""),
        ({"name": "jit(f)/dot:", "tf_op": "a/b"}, "jit(f)/dot"),
        ({"name": "dot", "tf_op": "a/b:c/d"}, "a/b"),
        ({"name": "dot:a/b"}, ""),
    ],
)
def test_an_op_of_a_framework_is_a_path(stats: dict[str, Any], op: str) -> None:
    assert framework_op(stats) == op


@pytest.mark.parametrize(
    ("value", "number"), [(5, 5), (0, 0), ("12", 12), (-1, -1), (-2, -1), ("-2", -1), ("x", -1), (None, -1)]
)
def test_a_number_that_is_negative_or_none_is_missing(value: Any, number: int) -> None:
    assert number_of(value) == number
