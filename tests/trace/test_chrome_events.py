"""Chrome traces of other programs: pairs, open arrays and absurd times give events, and no nonsense."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import perfnb
from perfnb.errors import TraceError
from perfnb.recording.reading import read_file
from perfnb.trace.chrome_events import READER, read
from perfnb.trace.columns import TraceColumns
from perfnb.trace.trace_file import LIMITS, reader_of
from tests.trace.test_xplane import BACKWARD, FOREIGN, FORWARD, written
from tests.written_traces import training

TRACES = FOREIGN.parent / "traces"
real = pytest.mark.skipif(not FOREIGN.is_dir(), reason=f"no folder of foreign files at {FOREIGN}; set PERFNB_TRACES")

SECOND = 10**6


def event(kind: str, name: str | None, ts: Any, **rest: Any) -> dict[str, Any]:
    return {"ph": kind, "pid": 1, "tid": 2, "ts": ts} | ({} if name is None else {"name": name}) | rest


def named(pid: int, name: str, tid: int | None = None) -> dict[str, Any]:
    kind = "process_name" if tid is None else "thread_name"
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


PAIRS = [
    named(1, "a tensor"),
    event("B", "outer", 0),
    event("B", "inner", 5),
    event("X", "whole", 6, dur=3),
    event("E", None, 10),
    event("B", "next", 10),
    event("E", "another name", 12.5),
    event("E", None, 20),
    event("i", "instant", 1),
    event("C", "counter", 1, args={"value": 1}),
]


def trace_of(folder: Path, events: Any) -> TraceColumns:
    data = events if isinstance(events, str) else json.dumps(events)
    path = written(folder, data.encode())
    assert reader_of(path) is READER
    return read(path, LIMITS)


def spans(trace: TraceColumns) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for name, start, lasts in zip(trace.name, trace.start_ns, trace.duration_ns, strict=True):
        found.setdefault(trace.names[name], []).append((int(start), int(lasts)))
    return found


def test_starts_and_ends_are_intervals(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, PAIRS)

    assert spans(trace) == {
        **{"outer": [(0, 20_000)], "inner": [(5_000, 5_000)], "whole": [(6_000, 3_000)], "next": [(10_000, 2_500)]},
    }
    assert trace.caveats == ["Instants, counters and asynchronous events (not shown): 2."]
    assert trace.process_names == {1: "a tensor"}
    assert trace.unit_ns == 500
    assert read(written(tmp_path, json.dumps(PAIRS[:1]).encode()), LIMITS).unit_ns == 1


def test_of_starts_and_ends_at_the_same_times_the_first_is_outside(tmp_path: Path) -> None:
    # As py-spy writes them: calls of one sample start and end together.
    started = [event("B", name, 5) for name in ("main", "step", "relu")]
    ended = [event("E", name, 9) for name in ("relu", "step", "main")]
    profile = perfnb.load(written(tmp_path, json.dumps([*started, *ended]).encode()))
    assert dict(profile.ops["self_cpu_ms"]) == {"main": 0, "step": 0, "relu": 0.004}


def test_making_an_optimizer_is_not_the_phase_of_optimizers(tmp_path: Path) -> None:
    calls = [event("X", "Optimizer.__init__", 0, dur=900), event("X", "Optimizer.zero_grad", 1000, dur=50)]
    profile = perfnb.load(written(tmp_path, json.dumps(calls).encode()))
    assert profile.phases.loc["optimizer", "ms"] == 0.05


@pytest.mark.parametrize("end", ["", ",", " , \n", ",]", ",{}]", "]"])
def test_an_array_needs_no_end(tmp_path: Path, end: str) -> None:
    assert spans(trace_of(tmp_path, json.dumps(PAIRS)[:-1] + end))["outer"] == [(0, 20_000)]


def test_an_event_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    for text in (json.dumps(PAIRS)[:-20], json.dumps({"traceEvents": PAIRS})[:-1]):
        with pytest.raises(TraceError, match="cut off after byte"):
            read(written(tmp_path, text.encode()), LIMITS)


def test_impossible_events_are_reported_and_take_no_time(tmp_path: Path) -> None:
    trace = trace_of(
        tmp_path,
        [
            event("X", "a<b>", 5, dur=8.1e11),
            event("X", "late", 3 * SECOND, dur=2 * SECOND),
            event("X", "back", 7, dur=-3),
            event("B", "open", 8),
            event("E", None, 9, tid=3),
        ],
    )

    assert spans(trace) == {
        **{"a<b>": [(5_000, 0)], "late": [(3 * 10**9, 2 * 10**9)], "back": [(7_000, 0)], "open": [(8_000, 0)]},
    }
    assert trace.negative_durations == 1
    assert trace.caveats == [
        "Events without an end (treated as taking no time): 1.",
        "Ends of events without a start (left out): 1.",
        "Events with impossible durations of up to 810,000 s (treated as taking no time): 1 (a<b>).",
    ]


def test_a_duration_that_has_wrapped_around_costs_no_more_than_itself(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [event("X", "wrapped", 5, dur=2**64 / 1000), event("X", "right", 9, dur=3)])
    assert spans(trace) == {"wrapped": [(5_000, 0)], "right": [(9_000, 3_000)]}
    assert "1 (wrapped)" in trace.caveats[0]

    with pytest.raises(TraceError, match="out of range"):
        trace_of(tmp_path, [event("X", "far", 2**64 / 1000, dur=3)])


def test_two_hours_are_no_mistake(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [event("X", "epoch", 0, dur=7200 * SECOND)])
    assert trace.duration_ns.tolist() == [7200 * 10**9]
    assert trace.caveats == []
    day = 86_400 * SECOND
    for starts, most in (([0], day), ([0, day // 10], day), ([5, day + 5], 10 * day)):
        for dur, lasts in ((most, [most * 1000]), (most + 0.001, [0])):
            events = [event("X", "long", starts[0], dur=dur), *(event("X", "x", ts, dur=0) for ts in starts[1:])]
            assert trace_of(tmp_path, events).duration_ns.tolist()[:1] == lasts


def test_times_may_be_text_and_must_be_times(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [event("X", "npu", "1700000000000000.125", dur="0.5")])
    assert spans(trace) == {"npu": [(1_700_000_000_000_000_125, 500)]}
    for bad in ("soon", "nan", 1e300, "9" * 30):
        with pytest.raises(TraceError, match="not a time that perfnb can represent"):
            trace_of(tmp_path, [event("X", "x", bad)])


def test_a_trace_of_torch_is_left_to_its_own_reader(tmp_path: Path) -> None:
    events = training(1).events
    path = written(tmp_path, json.dumps(events).encode())
    assert reader_of(path) is not READER
    late = [event("X", f"other {n}", n, dur=1) for n in range(2_000)] + events
    path = written(tmp_path, json.dumps(late).encode())
    assert reader_of(path) is READER
    assert "cpu_op" in read(path, LIMITS).categories
    (recording,) = read_file(path, LIMITS)
    assert not recording.is_foreign


def test_planes_of_jax_are_devices(tmp_path: Path) -> None:
    launch = {"correlation_id": "1", "hlo_op": "fusion", "name": BACKWARD}
    events = [
        *(named(1, "/device:GPU:0"), named(1, "Stream #16(Kernel)", 4), named(2, "/host:CPU"), named(2, "python", 5)),
        {"ph": "X", "name": "fusion.kd", "pid": 1, "tid": 4, "ts": 20, "dur": 10, "args": launch},
        {"ph": "X", "name": "cuLaunchKernel", "pid": 2, "tid": 5, "ts": 8, "dur": 2, "args": launch},
        {"ph": "X", "name": "train", "pid": 2, "tid": 5, "ts": 5, "dur": 30, "args": {"step_num": "3"}},
        {},
    ]
    path = written(tmp_path, gzip.compress(json.dumps({"traceEvents": events}).encode()))
    profile = perfnb.load(path)

    assert profile.kernels["total_ms"].to_dict() == {"fusion.kd": 0.01}
    assert profile.steps["step"].tolist() == [3]
    assert profile.events.set_index("name")["phase"]["fusion.kd"] == "backward"
    assert profile.ops["gpu_ms"]["fusion"] == 0.01
    assert "jvp" in FORWARD


@real
def test_real_files_of_horovod_and_others_are_events() -> None:
    horovod = read(FOREIGN / "horovod" / "horovod_timeline_small.json", LIMITS)
    known = spans(horovod)
    # The two ends are of the tensors 1 and 2; those of 12 and 13 are open.
    assert sorted(lasts for _, lasts in known["NEGOTIATE_ALLREDUCE"]) == [0, 0, 340_901_000, 340_905_000]
    assert len(horovod) == 19 + 4
    assert int((horovod.start_ns + horovod.duration_ns).max() - horovod.start_ns.min()) == 855_723_000

    partial = read(FOREIGN / "trace_event" / "simple-partial.json", LIMITS)
    assert spans(partial) == {
        "alpha": [(0, 14_000)], "beta": [(1_000, 12_000)], "gamma": [(2_000, 5_000)], "epsilon": [(7_000, 0)],
    }  # fmt: skip
    assert len(read(FOREIGN / "trace_event" / "multiprocess.json", LIMITS)) == 8
    assert len(read(FOREIGN / "tf_trace" / "tf2_profiler.trace.json.gz", LIMITS)) == 798
