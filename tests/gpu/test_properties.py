"""What must hold of any trace, however odd: made up at random, with skewed clocks, lost launches and crossing times."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import strategies as st

from perfnb.attribution.device_work import device_work, step_windows
from perfnb.gpu.device_time import gpu_time, gpu_time_by_step, idle_gaps, idle_time
from perfnb.gpu.launches import kernels_by_op, launches, launches_by_op, queue_lengths
from tests.gpu.paths import critical_path, path_savings
from tests.laws import holds_of
from tests.traces_by_hand import COLUMNS

HOST = [
    *(("aten::mm", "cpu_op"), ("aten::add", "cpu_op"), ("autograd::engine::evaluate_function: MmBackward0", "cpu_op")),
    *(("cudaLaunchKernel", "cuda_runtime"), ("cuLaunchKernel", "cuda_driver"), ("hipGraphLaunch", "cuda_runtime")),
    *(("cudaDeviceSynchronize", "cuda_runtime"), ("hipStreamSynchronize", "cuda_runtime")),
    *(("cudaEventSynchronize", "cuda_runtime"), ("cudaEventRecord", "cuda_runtime")),
    *(("cudaMemcpyAsync", "cuda_runtime"), ("ProfilerStep#1", "user_annotation"), ("ProfilerStep#2", "cpu_op")),
]
DEVICE = [
    *(("gemm", "kernel"), ("ncclDevKernel_AllReduce", "kernel"), ("Memcpy HtoD", "gpu_memcpy")),
    *(("Memset (Device)", "gpu_memset"), ("Stream Wait Event", "cuda_sync"), ("Event Sync", "cuda_sync")),
    *(("Stream Sync", "cuda_sync"), ("Context Sync", "cuda_sync"), ("ProfilerStep#1", "gpu_user_annotation")),
]
SMALL = st.integers(-1, 3)


def event(kinds: list[tuple[str, str]]) -> st.SearchStrategy[dict[str, object]]:
    numbers = dict.fromkeys(COLUMNS, SMALL) | {
        "correlation": st.integers(-1, 6),
        "wait_correlation": st.integers(-1, 6),
    }
    numbers |= {"rank": st.just(0), "process": st.integers(0, 1), "start_ns": st.integers(0, 60)}
    numbers |= {"duration_ns": st.integers(0, 30)}
    named = st.sampled_from(kinds).map(lambda kind: {"name": kind[0], "category": kind[1]})
    return st.tuples(named, st.fixed_dictionaries(numbers)).map(lambda parts: {**parts[0], **parts[1]})


def framed(rows: list[dict[str, object]], scale: int) -> pd.DataFrame:
    columns = ["name", "category", "start_ns", "duration_ns", *COLUMNS]
    frame = pd.DataFrame(rows, columns=columns)
    frame = frame.astype({"name": "category", "category": "category"} | dict.fromkeys(columns[2:], "int64"))
    frame[["start_ns", "duration_ns"]] *= scale  # small, and large compared with the time of handing over or launching
    return frame


EVENTS = st.builds(
    lambda host, device, scale: framed(host + device, scale),
    st.lists(event(HOST), max_size=14),
    st.lists(event(DEVICE), max_size=10),
    st.sampled_from([1, 1000, 100_000]),
)


@holds_of(EVENTS, some=30, many=600)
def test_times_of_a_device_fit_together(events: pd.DataFrame) -> None:
    work, table = device_work(events), gpu_time(events)

    assert table["total_ms"].to_numpy() == pytest.approx((table["busy_ms"] + table["idle_ms"]).to_numpy(), abs=1e-9)
    assert table["busy_ms"].sum() <= (work.end - work.start).sum() / 1e6 + 1e-9
    parts = table[["computation_ms", "communication_ms", "memcpy_ms"]]
    assert (parts.sum(axis=1) + 1e-9 >= table["busy_ms"]).all()
    assert (parts.max(axis=1) <= table["busy_ms"] + 1e-9).all()
    assert (table["overlap_ms"] <= parts["communication_ms"] + 1e-9).all()
    assert gpu_time_by_step(events)["kernels"].sum() <= table["kernels"].sum()
    assert idle_time(events)["idle_ms"].sum() == pytest.approx(table["idle_ms"].sum(), abs=1e-9)
    assert (idle_gaps(events)["duration_ns"] > 0).all()


@holds_of(EVENTS, st.randoms(), some=30, many=600)
def test_times_do_not_depend_on_the_order_of_the_events_nor_on_work_being_in_pieces(events, random) -> None:  # type: ignore[no-untyped-def]
    order = list(range(len(events)))
    random.shuffle(order)
    pieces = pd.concat(
        [events.assign(duration_ns=events["duration_ns"] // 2), _second_halves(events)], ignore_index=True
    )
    figures = ["rank", "device", "total_ms", "busy_ms", "computation_ms", "communication_ms", "memcpy_ms", "overlap_ms"]

    for other in (events.iloc[order], pieces):
        pd.testing.assert_frame_equal(gpu_time(other)[figures], gpu_time(events)[figures])


def _second_halves(events: pd.DataFrame) -> pd.DataFrame:
    half = events["duration_ns"] // 2
    return events.assign(start_ns=events["start_ns"] + half, duration_ns=events["duration_ns"] - half)


@holds_of(EVENTS, some=30, many=600)
def test_tables_of_launches_and_kernels_hold_all_work_once(events: pd.DataFrame) -> None:
    count = len(device_work(events))

    assert len(launches(events)) == count
    assert launches_by_op(launches(events))["launched"].sum() == count
    for table in (kernels_by_op(launches(events)), kernels_by_op(launches(events), ["op", "shapes", "name"])):
        assert table["calls"].sum() == count
    assert (launches(events)["delay_ns"].dropna() >= 0).all()
    assert (queue_lengths(events)["length"] >= 0).all()


@holds_of(EVENTS, st.booleans(), st.sampled_from(["kind", "op", "name"]), some=30, many=600)
def test_a_path_has_no_gap_and_no_part_saves_more_than_it_takes(events: pd.DataFrame, tail: bool, by) -> None:  # type: ignore[no-untyped-def]
    start, length = events["start_ns"], events["duration_ns"]
    windows = [None, (int(start.min()), int((start + length).max()))] if len(events) else [None]
    for window in windows:
        path = critical_path(events, window=window, tail=tail)
        begin, duration = path["start_ns"].to_numpy(), path["duration_ns"].to_numpy()
        assert (duration > 0).all()
        assert np.array_equal(begin[:-1] + duration[:-1], begin[1:])
        if window is not None and not tail:
            assert duration.sum() == window[1] - window[0]
        table = path_savings(events, window=window, tail=tail, by=by)
        assert (table["saves_ms"] >= -1e-9).all()
        assert (table["saves_ms"] <= table["path_ms"] + 1e-9).all()
    for step in step_windows(events)["number"].unique():
        assert (critical_path(events, int(step))["duration_ns"] > 0).all()
