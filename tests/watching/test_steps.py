"""Readings next to the steps of a profile: on one clock, in the right phase, and reported only if there are enough."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from perfnb.attribution.attribution import attribute
from perfnb.recording.recording import Recording, WatchRecord
from perfnb.recording.schema import conform
from perfnb.watching.steps import FEWEST_READINGS, _place, _placed, _Stretch, _window, steps_watched
from perfnb.watching.summary import StepsWatched
from tests.recordings import ByHand

SECOND = 1e6  # in the microseconds of a recording by hand


def recording(readings_at: np.ndarray, window: float, *, timed: int = 2) -> Recording:
    """Return two timed steps of 10 s and a traced one, with 2 s of waiting for data, 3 s forward, 5 s backward each."""
    hand = ByHand().step(100 * SECOND, 110 * SECOND)
    hand.event("pf_data", 100 * SECOND, 102 * SECOND)
    layer = hand.layer("net")
    hand.call(layer, 102 * SECOND, 105 * SECOND).op("aten::mm", 103 * SECOND, 104 * SECOND, sequence=1)
    hand.node("MmBackward0", 105 * SECOND, 110 * SECOND, sequence=1)
    made = hand.recording()
    steps = pd.DataFrame(
        {
            "pass": pd.Categorical([*["timed"] * timed, "traced"]),
            "start_s": [10.0 * number for number in range(timed + 1)],
            "wall_ms": 10_000.0,
            "data_ms": [*[4000.0] * timed, 2000.0],
            "samples": pd.array([8] * (timed + 1), dtype="Int64"),
        }
    )
    at = np.asarray(readings_at, dtype=float)
    samples = pd.DataFrame({"t_s": at, "window_s": window, "cpu_percent": at, "memory_bytes": 7.0, "readings": 1})
    samples["device"] = "process"
    watch = WatchRecord(conform(samples, "samples"), conform(pd.DataFrame(), "marks"))
    return replace(made, steps=steps, watch=watch)


def watched(made: Recording) -> StepsWatched:
    found = steps_watched(made, attribute(made))
    assert found is not None
    return found


def test_passes_are_runs_of_steps() -> None:
    passes = watched(recording(np.arange(30.0), 1.0)).passes
    assert passes.to_dict("records") == [
        {"pass": "timed", "start_s": 0.0, "end_s": 20.0, "steps": 2},
        {"pass": "traced", "start_s": 20.0, "end_s": 30.0, "steps": 1},
    ]


def test_the_traced_phases_lie_where_the_step_ran_and_the_timed_ones_are_placed() -> None:
    phases = watched(recording(np.arange(30.0), 1.0)).phases
    seen = phases[~phases["placed"] & (phases["start_s"] >= 20)]
    rows = [(row.phase, round(row.start_s, 6), round(row.end_s, 6)) for row in seen.itertuples()]
    assert rows == [("data", 20.0, 22.0), ("forward", 22.0, 25.0), ("backward", 25.0, 30.0)]
    first = phases[phases["start_s"] < 9.9]
    # Waiting was measured: 4 s. What is left is shared out as in the traced step, 3 to 5.
    assert first["phase"].tolist() == ["data", "forward", "backward"]
    assert first["placed"].tolist() == [False, True, True]
    np.testing.assert_allclose(first["end_s"], [4.0, 4.0 + 6 * 3 / 8, 10.0])


def test_a_rate_counts_only_where_its_whole_window_lies_in_the_phase() -> None:
    found = watched(recording(np.arange(0.25, 30.0, 0.5), 0.5, timed=0)).by_phase
    # The traced step alone, from 0 to 10 s: data until 2, forward until 5, backward until 10.
    forward = found.loc[("forward", "process", "cpu_percent")]
    inside = [2.75, 3.25, 3.75, 4.25, 4.75]  # 2.25 began in the phase before
    assert (forward["readings"], forward["mean"]) == (5, np.mean(inside))
    levels = found.loc[("forward", "process", "memory_bytes")]
    assert (levels["readings"], levels["mean"]) == (6, 7.0)
    assert ("loss", "process", "cpu_percent") not in found.index


def test_too_few_readings_tell_no_mean() -> None:
    found = watched(recording(np.arange(0.5, 10.0, 1.0), 0.5, timed=0)).by_phase
    row = found.loc[("data", "process", "cpu_percent")]
    assert row["readings"] < FEWEST_READINGS
    assert pd.isna(row["mean"])
    assert found.loc[("backward", "process", "cpu_percent"), "mean"] == pytest.approx(7.5)


def test_near_the_edges_of_a_placed_phase_nothing_counts() -> None:
    made = recording(np.arange(0.07, 20.0, 0.1), 0.0001)
    found = watched(made).by_phase.loc[("forward", "process", "cpu_percent")]
    # Placed from 4 to 6.25 s and from 14 to 16.25 s, less half a second at each edge.
    assert found["readings"] == 2 * 12


def test_without_a_watch_there_is_nothing() -> None:
    made = replace(recording(np.arange(3.0), 1.0), watch=None)
    assert steps_watched(made, attribute(made)) is None


def test_without_a_trace_there_are_passes_only() -> None:
    found = steps_watched(recording(np.arange(30.0), 1.0), None)
    assert found is not None
    assert found.phases.empty
    assert found.by_phase.empty
    assert len(found.passes) == 2


@pytest.mark.parametrize("lacking", ["start_s", "steps"])
def test_without_times_of_steps_there_are_no_passes(lacking: str) -> None:
    made = recording(np.arange(30.0), 1.0)
    steps = made.steps.iloc[:0] if lacking == "steps" else made.steps.drop(columns="start_s")
    found = watched(replace(made, steps=steps))
    assert found.passes.empty
    assert found.passes.columns.tolist() == ["pass", "start_s", "end_s", "steps"]
    assert found.phases.empty


def test_a_trace_of_other_steps_than_the_traced_ones_has_no_phases() -> None:
    made = recording(np.arange(30.0), 1.0)
    timed = made.steps.assign(**{"pass": pd.Categorical(["timed"] * 3, categories=["timed", "traced"])})
    assert watched(replace(made, steps=timed)).phases.empty


def test_untraced_steps_are_like_the_traced_one_of_median_length() -> None:
    made, hand = recording(np.arange(30.0), 1.0), ByHand()
    layer = hand.layer("net")
    for begin, forward, end in ((0, 0.2, 1), (10, 11, 19), (20, 21.5, 23)):
        hand.step(begin * SECOND, end * SECOND).call(layer, begin * SECOND, forward * SECOND)
    steps = pd.DataFrame({"pass": pd.Categorical(["timed", *["traced"] * 3]), "wall_ms": 10_000.0, "data_ms": np.nan})
    steps["start_s"] = [0.0, 100.0, 110.5, 120.0]  # the second is late, so the others tell the offset of the clocks
    phases = watched(replace(hand.recording(), steps=steps, watch=made.watch)).phases
    rows = [(row.phase, round(row.start_s, 6), round(row.end_s, 6), row.placed) for row in phases.itertuples()]
    assert rows == [
        *[("forward", 0, 5, True), ("other", 5, 10, True)],
        *[("forward", 100, 100.2, False), ("other", 100.2, 101, False)],
        *[("forward", 110, 111, False), ("other", 111, 119, False)],
        *[("forward", 120, 121.5, False), ("other", 121.5, 123, False)],
    ]


@pytest.mark.parametrize(
    ("lengths", "data", "placed"),
    [
        (
            {"data": 7, "forward": 59, "loss": 1, "other": 0.5, "backward": 39.5},
            0,
            [("forward", 8, 67, True), ("loss", 67, 68, True), ("backward", 68.5, 108, True)],  # one is too short
        ),
        ({"data": 7, "forward": 1}, 40, [("data", 8, 48, False), ("forward", 48, 108, True)]),
        ({"data": 7, "forward": 1}, 140, [("data", 8, 108, False)]),  # no longer than the step
        ({"forward": 1}, 40, [("forward", 8, 108, True)]),
        ({"data": 7, "forward": 0}, 40, [("data", 8, 48, False)]),
    ],
)
def test_the_phases_of_an_untraced_step_have_the_lengths_of_a_traced_one(
    lengths: dict[str, float], data: float, placed: list[tuple[str, float, float, bool]]
) -> None:
    ends = np.cumsum(list(lengths.values())).tolist()
    template = [
        _Stretch(name, end - length, end, False, 0.0) for (name, length), end in zip(lengths.items(), ends, strict=True)
    ]
    found = _placed(template, 8.0, 100.0, data)
    assert [(*one[:1], *np.round(one[1:3], 9), one.placed) for one in found] == placed
    assert [one.margin_s for one in found] == [5.0 if one.placed else 0.0 for one in found]


@pytest.mark.parametrize(
    ("metric", "covered"),
    [
        ("busy_percent", [1, 1]),
        ("power_w", [1, 1]),
        ("cpu_percent", [0.25, 0.5]),
        ("disk_read_bytes_per_s", [0.25, 0.5]),
        ("memory_bytes", [0, 0]),
    ],
)
def test_a_value_covers_the_time_over_which_it_is_averaged(metric: str, covered: list[float]) -> None:
    assert _window(metric, np.array([0.25, 0.5])).tolist() == covered


def test_a_reading_is_in_the_interval_that_holds_its_whole_window() -> None:
    starts, ends = np.array([1.0, 5.0]), np.array([4.0, 9.0])
    times = np.array([0.5, 1.0, 1.5, 2.0, 4.0, 4.5, 5.0, 6.0, 9.0, 9.5])
    assert _place(times, np.full(10, 1.0), starts, ends).tolist() == [-1, -1, -1, 0, 0, -1, -1, 1, 1, -1]
    assert _place(times, np.zeros(10), starts, ends).tolist() == [-1, 0, 0, 0, 0, -1, 1, 1, 1, -1]
    assert _place(times[:2], np.zeros(2), starts[:0], ends[:0]).tolist() == [-1, -1]
