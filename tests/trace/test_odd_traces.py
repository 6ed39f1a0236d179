"""Small files that would take hours or all memory to show are refused in a sentence; those just below are shown."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfnb
from perfnb.errors import TraceError
from perfnb.trace import trace_file, trace_steps
from perfnb.trace.kineto import decode, read

Events = list[dict[str, Any]]


def event(name: str, ts: float, dur: float, cat: str = "cpu_op", pid: int = 1, tid: int = 1, **args: Any) -> dict:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def step(count: int) -> Events:
    return [event("ProfilerStep#1", 0, 10 * count, "user_annotation")]


def kernels(count: int, **varied: Callable[[int], int]) -> Events:
    """As many launches, and a kernel for each, whose place varies."""
    launches = [event("cudaLaunchKernel", i + 1, 0.5, "cuda_runtime", correlation=i) for i in range(count)]
    return (
        step(count)
        + launches
        + [
            event(
                "k",
                i + 2,
                0.5,
                "kernel",
                pid=0,
                tid=7,
                correlation=i,
                **{"device": 0, "stream": 7} | {name: value(i) for name, value in varied.items()},
            )
            for i in range(count)
        ]
    )


def nested(name: str, cat: str = "cpu_op") -> Callable[[int], Events]:
    return lambda count: (
        step(count)
        + [event(name.format(i), i + 1, 2 * count - 2 * i, cat) for i in range(count - (cat != "python_function"))]
    )


def threads(count: int) -> Events:
    return step(count) + [event("aten::mm", i + 1, 0.5, tid=i + 1) for i in range(count)]


def steps(count: int) -> Events:
    return [event(f"ProfilerStep#{i}", 10 * i, 9, "user_annotation") for i in range(count)]


def memory(count: int) -> Events:
    given = [{"Device Type": 1, "Device Id": i, "Addr": i, "Bytes": 8, "Total Allocated": 8} for i in range(count)]
    return [
        *step(count),
        *({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 1, "args": args} for args in given),
    ]


#: Events, the cap, the word of the message.
ODD: dict[str, tuple[Callable[[int], Events], str, str]] = {
    "threads": (threads, "MOST_THREADS", "threads"),
    "streams": (lambda count: kernels(count, stream=int), "MOST_STREAMS", "device streams"),
    "devices": (lambda count: kernels(count, device=int), "MOST_DEVICES", "devices"),
    "devices that remember": (memory, "MOST_DEVICES", "devices"),
    "steps": (steps, "MOST_STEPS", "steps"),
    "steps of devices": (
        lambda count: [*steps(count), *kernels(1)[1:]],
        "MOST_STEPS_OF_DEVICES",
        "steps on all devices",
    ),
    "ops": (nested("aten::mm"), "MOST_NESTED", "levels of nested events"),
    "layers": (nested("nn.Module: L_{}", "python_function"), "MOST_LAYERS_NESTED", "levels of nested layers"),
}


def own(count: int) -> Events:
    return [event("pf_step#1", 0, 10 * count), *(event(f"pf#{i}", i + 1, 2 * count - 2 * i) for i in range(count))]


def written(tmp_path: Path, events: Events, **beside: Any) -> Path:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({**beside, "traceEvents": events}))
    return path


def shown(path: Path) -> None:
    profile = perfnb.load(path)
    assert isinstance(profile, perfnb.Profile)
    assert str(profile)
    assert len(profile.layers.columns)
    assert len(profile.findings.columns)
    assert profile.to_html(path.with_suffix(".html")).stat().st_size


@pytest.mark.parametrize("odd", ODD)
def test_a_trace_with_too_much_of_something_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    make, cap, words = ODD[odd]
    monkeypatch.setattr(trace_steps, cap, 12)
    assert perfnb.load(written(tmp_path, make(12)))

    with pytest.raises(TraceError, match=rf"odd\.json was not read: it has 13 {words}.*, and perfnb shows at most 12"):
        perfnb.load(written(tmp_path, make(13)))


#: The largest numbers that docs/formats.md allows.
MOST = {"threads": 2_000, "streams": 2_000, "devices": 256, "steps": 5_000, "ops": 2_000}


@pytest.mark.parametrize("odd", MOST)
def test_a_trace_is_read_up_to_the_documented_limits(odd: str) -> None:
    make, _, words = ODD[odd]
    trace_steps.refuse_odd_trace(decode(json.dumps(make(MOST[odd])).encode()), "it")
    with pytest.raises(TraceError, match=f"it has {MOST[odd] + 1:,} {words}, and perfnb shows at most {MOST[odd]:,};"):
        trace_steps.refuse_odd_trace(decode(json.dumps(make(MOST[odd] + 1)).encode()), "it")


def test_steps_of_several_devices_are_read_up_to_the_documented_limit() -> None:
    on_devices = kernels(5, device=int)[1:]
    trace_steps.refuse_odd_trace(decode(json.dumps([*steps(4_000), *on_devices]).encode()), "it")
    with pytest.raises(TraceError, match="it has 20,005 steps on all devices, and perfnb shows at most 20,000;"):
        trace_steps.refuse_odd_trace(decode(json.dumps([*steps(4_001), *on_devices]).encode()), "it")


def test_layers_are_read_up_to_the_documented_limits() -> None:
    trace_steps.refuse_odd_layers([3, 499, 0], 33_554_432, "it")
    trace_steps.refuse_odd_layers([], 0, "it")
    with pytest.raises(TraceError, match="it has 501 levels of nested layers, and perfnb shows at most 500;"):
        trace_steps.refuse_odd_layers([500, 3], 0, "it")
    with pytest.raises(TraceError, match="it has 33,554,433 characters in the names of its layers"):
        trace_steps.refuse_odd_layers([3], 33_554_433, "it")


def test_names_that_repeat_each_other_are_counted_before_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_steps, "MOST_LETTERS", 3 + 7 + 11)
    make = nested("nn.Module: L_{}", "python_function")
    assert perfnb.load(written(tmp_path, make(3))).layers.index[-3:].tolist()

    with pytest.raises(
        TraceError, match=r"it has 36 characters in the names of its layers, and perfnb shows at most 21"
    ):
        perfnb.load(written(tmp_path, make(4)))


def test_layers_in_a_file_that_claims_to_be_from_perfnb_have_a_maximum_depth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_steps, "MOST_LAYERS_NESTED", 12)

    def told(count: int) -> dict[str, Any]:
        modules = {"name": [f"l{i}" for i in range(count)], "parent": list(range(-1, count - 1))}
        modules |= dict.fromkeys(("module", "parameters", "parameter_bytes"), [None] * count)
        spans = {"span": list(range(count)), "layer": list(range(count)), "loss": [False] * count}
        return {"version": 1, "modules": modules | {"compiled": [False] * count}, "spans": spans}

    assert len(perfnb.load(written(tmp_path, own(12), perfnb=told(12))).layers) >= 12
    with pytest.raises(TraceError, match="it has 13 levels of nested layers"):
        perfnb.load(written(tmp_path, own(13), perfnb=told(13)))


@pytest.mark.simulation
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("odd", ODD)
def test_what_is_just_allowed_is_shown(tmp_path: Path, odd: str) -> None:
    make, cap, _ = ODD[odd]
    shown(written(tmp_path, make(min(getattr(trace_steps, cap), trace_steps.MOST_STEPS))))


HEADER = b"\x1f\x8b\x08%c" + bytes(6)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (HEADER % 8 + b"a" * 2**24, "cut off after byte 16,777,226"),
        (gzip.compress(b"") * 2**18, "it is empty"),
    ],
    ids=["a name", "empty parts"],
)
@pytest.mark.timeout(60)
def test_compressed_data_that_unpacks_to_nothing_is_an_error(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(data)

    with pytest.raises(TraceError, match=why):
        perfnb.load(path)


def test_what_hardly_compresses_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_file, "_PACKED_BLOCK", 2**10)
    texts = np.random.default_rng(3).integers(32, 127, (300, 64), dtype=np.uint8)
    events = [event(bytes(text).decode(), place, 0.5) for place, text in enumerate(texts)]
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(events).encode()))
    assert path.stat().st_size > 10 * 2**10

    assert len(read(path)) == 300


def test_escaped_text_takes_no_more_memory_than_other_text() -> None:
    def peak(text: bytes) -> int:
        data = b'[{"ph": "X", "cat": "cpu_op", "name": "' + text + b'", "ts": 1, "dur": 2}]'
        tracemalloc.start()
        decode(data)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(b"\\\\" * 200_000) < 2 * peak(b"ab" * 200_000)
