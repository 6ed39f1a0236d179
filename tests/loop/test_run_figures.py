"""The figures of a run and of its comparison with another one, from steps made by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb.loop import rank_figures, run_comparison, run_summary
from perfnb.loop.run_summary import FEWEST_STEPS, RunMemory, stretches
from perfnb.stats.intervals import Centre
from perfnb.stats.slope import Slope


@pytest.mark.parametrize(
    ("times", "warmup"),
    [
        ([15.0] + [10.0] * 9, 0),
        ([15.1] + [10.0] * 9, 1),
        ([16.0] * 2 + [10.0] * 18, 2),
        ([16.0] * 2 + [10.0] * 17, 0),  # more than a tenth of the run
        ([16.0] + [10.0] * 2, 1),  # a single step may always be warm-up
        ([10.0, 16.0] + [10.0] * 18, 0),
        ([10.0], 0),
        ([], 0),
    ],
)
def test_slow_steps_at_the_start_are_warm_up(times: list[float], warmup: int) -> None:
    assert run_summary._warmup(np.array(times)) == warmup


@pytest.mark.parametrize(
    ("load", "cpus", "busy"),
    [(5.0, 4, None), (5.1, 4, (5.1, 4)), (None, 4, None), (5.0, None, None), (0.0, 4, None)],
)
def test_a_machine_is_busy_if_there_is_work_for_a_quarter_more_cpus(
    load: float | None, cpus: int | None, busy: tuple[float, int] | None
) -> None:
    assert run_summary._busy({"load": load, "cpus": cpus}) == busy


def rows(ms: list[float], data_ms: list[float] | None = None, **columns: Any) -> pd.DataFrame:
    """Return steps of these times, each in its own row."""
    wall, data = np.array(ms), np.array(data_ms or [0.0] * len(ms))
    frame = pd.DataFrame({"step": np.arange(len(ms)), "steps": 1, "wall_ms": wall, "data_ms": data, "profiled": False})
    frame["slowest_step"], frame["slowest_ms"], frame["slowest_data_ms"] = frame["step"], wall, data
    frame["sum_wall_ms"], frame["sum_data_ms"], frame["sum_other_ms"] = wall, data, 0.0
    frame["start_s"] = np.cumsum(wall) / 1e3
    return frame.assign(**columns)


def test_phases_of_a_run_add_up_with_all_windows() -> None:
    steps = rows([4.0, 6.0, 3.0, 1.0], [1.0, 2.0, 0.5, 0.5], profiled=[False, False, True, True])
    steps["sum_other_ms"] = [0.5, 1.5, 0.25, 0.75]
    facts = {"dropped_windows": {"sum_wall_ns": 2e6, "sum_other_ns": 1e6}, "waits_known": True}
    phases = run_summary._phases(steps, facts)
    assert phases["ms"].to_dict() == {"data": 3.0, "step": 7.0, "other": 2.0, "profiled": 8.0}
    assert phases["share"].to_dict() == pytest.approx({"data": 0.15, "step": 0.35, "other": 0.1, "profiled": 0.4})
    unknown = run_summary._phases(steps, facts | {"waits_known": False})
    assert unknown["ms"].isna().tolist() == [True, False, False, False]
    none = {"sum_wall_ns": 0, "sum_other_ns": 0}
    assert run_summary._phases(rows([]), {"dropped_windows": none, "waits_known": True})["share"].isna().all()


def test_steps_are_slow_from_twice_the_usual_on() -> None:
    times, waits = [10.0] * 200, [0.0] * 200
    times[20], times[50], times[70], times[90] = 20.0, 20.1, 40.0, 20.1
    times[120], waits[120] = 25.0, 15.0
    slow, lost_ms = run_summary._slow(rows(times, waits))
    assert slow["step"].tolist() == [70, 120, 50, 90]
    assert slow["lost_ms"].tolist() == pytest.approx([30.0, 15.0, 10.1, 10.1])
    assert slow["data_ms"].tolist() == [0.0, 15.0, 0.0, 0.0]
    assert slow["start_s"].iloc[0] == pytest.approx((70 * 10 + 10 + 10.1 + 40) / 1e3)
    assert lost_ms == pytest.approx(30.0 + 10.1 + 10.1)  # step 120 only waited


def test_steps_are_not_slow_where_all_differ_as_much() -> None:
    times = [10.0, 5.0, 10.0, 20.0] * 50
    times[21] = 65.0  # half of all steps lie between 0.875 and 1.25 times the median
    assert run_summary._slow(rows(times))[0]["step"].tolist() == [21]


@pytest.mark.parametrize(("count", "listed"), [(FEWEST_STEPS - 1, 0), (FEWEST_STEPS, 1)])
def test_slow_steps_need_enough_others(count: int, listed: int) -> None:
    slow, lost_ms = run_summary._slow(rows([10.0] * (count - 1) + [50.0]))
    assert (len(slow), lost_ms) == (listed, 40.0 * listed)


@pytest.mark.parametrize(("ms", "typical"), [(7.9, False), (8.0, True), (12.5, True), (12.6, False)])
def test_a_window_is_typical_if_its_steps_take_about_as_long_as_the_run_s(ms: float, typical: bool) -> None:
    own = rows([10.0] * 100)
    profiled = own.iloc[:1].assign(step=50, steps=5, wall_ms=ms)
    (window,) = run_summary._windows(profiled, own, np.full(100, 10.0)).itertuples()
    assert (window.step, window.steps, window.ms, window.judged_by) == (50, 5, ms, "timed steps")
    assert (window.ratio, window.typical) == (pytest.approx(ms / 10), typical)
    (few,) = run_summary._windows(profiled, own, np.full(FEWEST_STEPS - 1, 10.0)).itertuples()
    assert few.typical is pd.NA


def test_a_window_without_timed_steps_is_judged_by_twenty_on_each_side() -> None:
    own = rows([100.0] * 10 + [8.0] * 20 + [12.0] * 20 + [100.0] * 10)
    own["step"] = [*range(30), *range(35, 65)]
    profiled = own.iloc[:1].assign(step=30, steps=5, wall_ms=pd.NA)
    (window,) = run_summary._windows(profiled, own, np.full(100, 10.0)).itertuples()
    assert (window.ms, window.judged_by) == (10.0, "neighbouring steps")
    early = run_summary._windows(profiled.assign(step=0), own.assign(step=range(5, 65)), np.full(100, 10.0))
    assert early["ms"].tolist() == [54.0]  # ten of 100 ms and ten of 8 ms
    (alone,) = run_summary._windows(profiled, own.iloc[:0], np.full(100, 10.0)).itertuples()
    assert (alone.ms is pd.NA or math.isnan(alone.ms), alone.judged_by) == (True, "")


def test_stretches_divide_a_run_evenly() -> None:
    steps = rows([1.0, 2.0, 3.0, 4.0, 8.0], [0.0, 1.0, 0.5, 2.0, 4.0])
    found = stretches(steps, 2)
    assert found["first"].tolist() == [0, 3]
    assert found["wall_ms"].tolist() == [2.0, 6.0]
    assert found["data_ms"].tolist() == [0.5, 3.0]
    assert stretches(steps, 99)["first"].tolist() == [0, 1, 2, 3, 4]
    partly = stretches(steps.assign(profiled=[False, False, False, True, True]), 2)
    assert partly["wall_ms"].isna().tolist() == [False, True]
    longer = stretches(steps.assign(step=[0, 1, 2, 3, 4], steps=[1, 1, 1, 1, 6]), 5)
    assert longer["first"].tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize(
    ("first", "most", "steps", "sizes"),
    [
        (0, 8, [2, 4, 6, 8, 9, 11, 13, 15], [12, 14, 16, 18, 18, 20, 22, 24]),
        (3, 8, [6, 8, 9, 11, 13, 15], [16, 18, 18, 20, 22, 24]),  # from a tenth of the rest on
        (5, 8, [6, 8, 9, 11, 13, 15], [16, 18, 18, 20, 22, 24]),
        (0, 7, [2, 6, 9, 13], [12, 16, 18, 22]),
        (0, 3, [2, 8, 13], [12, 18, 22]),
    ],
)
def test_growth_is_that_after_a_tenth_of_the_run_without_windows(
    first: int, most: int, steps: list[int], sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows take the steps 9 to 13 and leave 98 bytes; otherwise a byte is added in each step."""
    monkeypatch.setattr(run_summary, "_MOST_READINGS", most)
    monkeypatch.setattr(run_summary, "memory_slope", lambda sizes, steps: (steps.tolist(), sizes.tolist()))
    readings = [(2, -1), (3, None), *((step, step + 10 + 98 * (step > 13)) for step in range(0, 22, 2))]
    memory = pd.DataFrame(readings, columns=["step", "bytes"]).astype({"bytes": "Int64"})
    windows = rows([1.0, 1.0], step=[9, 12], steps=[3, 2], profiled=True)
    found: Any = run_summary._growth(memory, "bytes", first, windows)
    assert found == (steps, sizes)
    assert run_summary._growth(memory.head(0), "bytes", first, windows) is None


def growth(per_step: float, low: float | None, high: float | None) -> Slope:
    return Slope(per_step, low, high, 90)  # type: ignore[arg-type]


NOTHING = RunMemory(None, None, None)


def run_of(resident: RunMemory, allocated: RunMemory = NOTHING) -> Any:
    return SimpleNamespace(memory_of={"resident": resident, "allocated": allocated})


def test_memory_of_two_runs_is_compared_where_one_of_them_has_it() -> None:
    one = run_of(RunMemory(100, 90, growth(4.0, 3.0, 5.0)))
    other = run_of(RunMemory(130, 90, growth(10.0, None, None)), RunMemory(7, 7, None))
    changes = run_comparison._memory(one, other)
    assert changes.index.tolist() == ["resident", "allocated", "growth of resident"]
    assert set(changes.dtypes.astype(str)) == {"Float64"}
    assert changes["change_bytes"].isna().tolist() == [False, True, False]
    assert changes.loc["resident", ["a_bytes", "b_bytes", "change_bytes"]].tolist() == [100, 130, 30]
    assert changes.loc["allocated", "b_bytes"] == 7
    assert changes.loc["growth of resident", "change_bytes"] == 6.0
    assert changes.loc["growth of resident", ["low_bytes", "high_bytes"]].isna().all()
    same = run_comparison._memory(one, one)
    assert same.index.tolist() == ["resident", "growth of resident"]
    assert same.loc["growth of resident", ["low_bytes", "high_bytes"]].tolist() == pytest.approx([-(2**0.5), 2**0.5])


def test_ratios_need_figures_above_zero() -> None:
    two, four = Centre(2.0, 1.9, 2.1), Centre(4.0, 3.8, 4.2)
    ratio, low, high = run_comparison._ratio(two, four)
    assert ratio == pytest.approx(2.0)
    assert low is not None
    assert high is not None
    assert 1.8 < low < 2.0 < high < 2.2
    assert run_comparison._ratio(two, Centre(4.0, 0.0, 8.0)) == (pytest.approx(2.0), None, None)
    assert run_comparison._ratio(two, Centre(0.0, -1.0, 1.0)) == (None, None, None)
    assert run_comparison._ratio(Centre(-1.0, -2.0, 1.0), four) == (None, None, None)


def apart(*found: tuple[int, str, float, float]) -> pd.DataFrame:
    frame = pd.DataFrame(found, columns=["rank", "part", "change_ms", "low_ms"])
    return frame.set_index(["rank", "part"]).astype("Float64")


@pytest.mark.parametrize(
    ("differences", "straggler"),
    [
        ([(1, "working", 5.0, 0.1)], (1, "working")),
        ([(1, "working", 4.9, 0.1)], (None, None)),
        ([(1, "working", 5.0, 0.0)], (None, None)),
        ([(1, "working", 5.0, math.nan)], (None, None)),
        ([(1, "step", 50.0, 40.0)], (None, None)),
        ([(1, "working", 50.0, 40.0), (2, "waiting for data", 6.0, 1.0)], (2, "waiting for data")),
        ([(1, "working", 50.0, 40.0), (3, "working", 60.0, 1.0)], (3, "working")),
    ],
)
def test_the_straggler_is_the_rank_that_clearly_takes_longer(
    differences: list[tuple[int, str, float, float]], straggler: tuple[int | None, str | None]
) -> None:
    times = pd.DataFrame({"step_ms": [90.0, 100.0, 150.0]})
    assert rank_figures._straggler(apart(*differences), times) == straggler


@pytest.mark.parametrize(("others", "factor"), [(0, 1.0), (1, 1.0), (2, 1.1436), (10, 1.4322)])
def test_intervals_are_wider_the_more_ranks_are_compared(others: int, factor: float) -> None:
    assert rank_figures._wider(others) == pytest.approx(factor, abs=1e-4)
