"""What each part of a critical path would save: by hand, and as bounds that must hold in every trace."""

from __future__ import annotations

from typing import Literal

import pandas as pd
import pytest

from tests.gpu.paths import path_savings
from tests.gpu.test_critical_path import step, streams, waiting
from tests.gpu.test_critical_path_public import ALEXNET
from tests.traces_by_hand import Trace, public, public_trace


def saved(events: pd.DataFrame, by: Literal["kind", "op", "name"] = "kind") -> dict[str, tuple[float, float]]:
    """Return microseconds on the path and saved, by part."""
    table = path_savings(events, 1, by=by)
    pairs = zip(table[by].tolist(), table["path_ms"], table["saves_ms"], strict=True)
    return {part: (round(path * 1000, 6), round(saves * 1000, 6)) for part, path, saves in pairs}


def test_a_kernel_saves_no_more_than_the_host_had_to_wait_for_it() -> None:
    parts = saved(step(waiting()))

    # The host comes to its waiting call at 50, where it waits for the kernel until 90. Without the kernel it continues;
    # then 50 of the host and 5 of returning are left, and 5 after it.
    assert parts["computation"] == (75, 40)
    assert parts["launch"] == (5, 5)
    assert parts["synchronisation"] == (5, 5)
    # Without the time between calls, the kernel is launched 2 earlier, and 5 at the end are gone.
    assert parts["host"] == (7, 7)
    assert parts["operator"] == (8, 8)


def test_parts_by_operator_and_by_name() -> None:
    by_op, by_name = saved(step(waiting()), "op"), saved(step(waiting()), "name")

    # Of the operator: 8 of its own before the launch, the launch and the kernel. Its own 8 are gone on the host as
    # well, and 8 and 2 after and in the launch, so that it comes to its waiting call at 50 - 18.
    assert by_op == {"aten::mm": (88, 58)}
    # By name, the launch is a part of its own.
    assert by_name == {
        "gemm": (75, 40),
        "aten::mm": (8, 8),
        "cudaLaunchKernel": (5, 5),
        "cudaDeviceSynchronize": (5, 5),
    }


def test_a_part_that_runs_in_parallel_with_an_equally_long_one_saves_nothing() -> None:
    trace = Trace().work("a", 10, 80, (1, 3)).work("b", 10, 79, (4, 5), stream=9)
    trace.event("cudaDeviceSynchronize", 8, 85, "cuda_runtime")

    parts = saved(step(trace), "name")

    # Without "a" the call waits for "b", which ended one earlier; "b" is not on the path.
    assert parts["a"] == (70, 1)
    assert "b" not in parts


def test_shorter_returns_from_waits_save_no_more_than_other_work_allows() -> None:
    trace = Trace().work("a", 5, 40, (1, 3)).work("long", 10, 55, (4, 6), stream=9)
    trace.event("cudaStreamSynchronize", 8, 60, "cuda_runtime", correlation=50)
    trace.event("Stream Sync", 8, 60, "cuda_sync", device=0, stream=7, correlation=50)
    trace.work("b", 66, 90, (62, 64), stream=9).event("cudaDeviceSynchronize", 70, 95, "cuda_runtime")

    # The host could launch "b" 20 earlier, but it would wait for "long", which ended 11 before it began.
    assert saved(step(trace))["synchronisation"] == (25, 16)


def test_without_the_last_work_a_step_ends_with_the_one_that_ended_before_it() -> None:
    trace = step(Trace().work("a", 10, 80, (1, 3)).work("b", 10, 60, (4, 5), stream=9), 6)

    table = path_savings(trace, 1, tail=True, by="name").set_index("name")

    assert table.loc["a", ["path_ms", "saves_ms"]].tolist() == pytest.approx([0.07, 0.02])
    assert table.loc["cudaLaunchKernel", ["path_ms", "saves_ms"]].tolist() == pytest.approx([0.009, 0.009])


def test_what_waits_for_an_event_is_saved_with_what_it_waits_for() -> None:
    parts = saved(step(streams(with_event=True)), "name")

    # Without "a" (5 to 60), "b" could begin when it was launched, 49 earlier; the host is at its waiting call by then.
    assert parts["a"] == (55, 49)


def test_what_nothing_explains_saves_nothing_that_is_known_and_stays_where_its_launch_is_left_out() -> None:
    trace = Trace().work("late", 500, 560, (10, 12)).event("cudaDeviceSynchronize", 50, 565, "cuda_runtime")
    table = path_savings(step(trace, 570), 1).set_index("kind")

    assert pd.isna(table.loc["unknown", "saves_ms"])
    assert table.loc["unknown", "path_ms"] == pytest.approx(0.488)
    assert table.loc["launch", "saves_ms"] == pytest.approx(0.002)


def test_a_table_names_its_parts_the_longest_first_and_times_only_some_anew() -> None:
    table = path_savings(step(waiting()), 1, most=2)

    assert table.columns.tolist() == ["kind", "segments", "path_ms", "share", "saves_ms"]
    assert table["kind"].tolist()[:2] == ["computation", "operator"]
    assert table["path_ms"].is_monotonic_decreasing
    assert table["share"].sum() == pytest.approx(1)
    assert table["saves_ms"].isna().tolist() == [False, False, True, True, True]
    assert len(path_savings(Trace().frame())) == 0


@public
def test_alexnet_is_held_up_by_its_allocations() -> None:
    events = public_trace("a100_alexnet.json.gz")
    begin, length = events.loc[events["name"] == ALEXNET, ["start_ns", "duration_ns"]].iloc[1]

    table = path_savings(events, window=(int(begin), int(begin + length)), by="name").set_index("name")

    # Four cudaMallocs on the path: 8,551 + 8,275 + 11,592 + 3,107.
    assert table.loc["cudaMalloc", "path_ms"] == pytest.approx(31.525)
    # Without any, the convolution begins 8,551 earlier, at 313,873 (us after 43 s). It runs for 1,034; 1 later follow
    # 187 of add_, 1 later 144 of clamp_min_. The pooling (163) and the first transform (73), which had waited for the
    # host, follow at once, and so does what waits for its event (5604, then from 345,901): from there to the end there
    # are 349,596 - 345,901. So the last kernel ends at 319,171 instead of 349,596.
    assert 313_873 + 1034 + 1 + 187 + 1 + 144 + 163 + 73 + (349_596 - 345_901) == 319_171
    assert table.loc["cudaMalloc", "saves_ms"] == pytest.approx(30.425)
