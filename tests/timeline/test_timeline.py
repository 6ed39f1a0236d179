"""The timeline: planted intervals, their tracks, depths and links, and a real profile that loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfnb
from perfnb.attribution.attribution import attribute
from perfnb.memory.allocations import watched_memory
from perfnb.recording.recording import Recording
from perfnb.timeline.build import _own_name, _without_slivers, timeline_of
from perfnb.timeline.median_step import step_timeline
from perfnb.timeline.memory import MemoryCurve
from perfnb.timeline.timeline import Timeline, Track, coarser, lanes
from tests.recordings import US, ByHand
from tests.written_traces import Written


def timeline(made: ByHand | Recording) -> Timeline:
    recording = made.recording() if isinstance(made, ByHand) else made
    return timeline_of(recording, attribute(recording), watched_memory(recording))


def told(line: Timeline, track: Track) -> list[tuple[str, float, float, int, str]]:
    """Return the name, begin and end in µs, depth and kind of each interval of a track, in order of time."""
    rows = line.rows_on(track).sort_values(["start", "depth"])
    names, kinds = (
        [texts[code] for code in rows[column]] for texts, column in ((line.names, "name"), (line.kinds, "kind"))
    )
    start, end = rows["start"] / US, (rows["start"] + rows["duration"]) / US
    return list(zip(names, start, end, rows["depth"], kinds, strict=True))


def training() -> ByHand:
    """Return one step of 1000 µs: two layers in a net, a loss, backward with gradients accumulated, an optimizer."""
    made = ByHand().step(1000, 2000)
    net = made.layer("net")
    first, second = made.layer("net.first", net), made.layer("net.second", net)
    made.call(net, 1050, 1350)
    made.call(first, 1060, 1160).op("aten::mm", 1070, 1150, 1)
    made.call(second, 1180, 1340).op("aten::relu", 1190, 1230, 2).op("aten::mm", 1240, 1330, 3)
    made.call(-1, 1360, 1400, loss=True).op("aten::mse_loss", 1365, 1395, 4)
    made.node("MseLossBackward0", 1450, 1470, 4)
    made.node("MmBackward0", 1480, 1540, 3).node("ReluBackward0", 1550, 1570, 2)
    made.node("torch::autograd::AccumulateGrad", 1580, 1590, -1)
    made.node("MmBackward0", 1600, 1660, 1).node("torch::autograd::AccumulateGrad", 1670, 1680, -1)
    return made.event("Optimizer.step#SGD.step", 1700, 1900, "user_annotation")


def test_phases_adjoin_and_fill_the_step() -> None:
    line = timeline(training())

    (track,) = line.of("phases")
    assert told(line, track) == [
        ("other", 0, 50, 0, "other"),
        ("forward", 50, 350, 0, "forward"),
        ("loss", 350, 450, 0, "loss"),
        ("backward", 450, 680, 0, "backward"),
        ("other", 680, 700, 0, "other"),
        ("optimizer", 700, 900, 0, "optimizer"),
        ("other", 900, 1000, 0, "other"),
    ]
    (step,) = line.of("steps")
    assert told(line, step) == [("step 0", 0, 1000, 0, "other")]


def test_layers_nest_in_forward_and_neighbouring_nodes_join_in_backward() -> None:
    line = timeline(training())

    (track,) = line.of("layers")
    assert track.depth == 2
    assert told(line, track) == [
        ("net", 50, 350, 0, "forward"),
        ("first", 60, 160, 1, "forward"),
        ("second", 180, 340, 1, "forward"),
        ("(loss)", 360, 400, 0, "loss"),
        ("(loss)", 450, 470, 0, "backward"),
        ("net", 480, 660, 0, "backward"),  # gradients were accumulated in between
        ("second", 480, 570, 1, "backward"),
        ("first", 600, 660, 1, "backward"),
    ]
    rows = line.rows_on(track)
    assert {line.layers[code] for code in rows["layer"]} == {"net", "net.first", "net.second", "(loss)"}


def test_the_rows_of_a_track_are_in_order_of_depth_and_time_and_do_not_overlap() -> None:
    # The report looks for a depth's rows by halving: in another order it draws them over each other.
    whole = timeline(training())

    for each, track in [(line, track) for line in (whole, coarser(whole, 20 * US)) for track in line.tracks]:
        rows = each.rows_on(track)
        assert rows["depth"].tolist() == sorted(rows["depth"])
        assert track.depth == rows["depth"].max() + 1
        for _, part in rows.groupby("depth"):
            assert (part["start"].to_numpy()[1:] >= (part["start"] + part["duration"]).to_numpy()[:-1]).all()


def test_tracks_follow_each_other_and_the_layers_say_what_their_bars_are() -> None:
    line = timeline(training().kernel("gemm", 1100, 1500, 1600))

    assert [track.kind for track in line.tracks] == ["steps", "phases", "layers", "thread", "stream"]
    assert [track.kind for track in line.tracks if track.note] == ["layers"]
    assert [track.first for track in line.tracks] == [0, *np.cumsum([track.count for track in line.tracks])[:-1]]
    assert [track.depth for track in line.tracks] == [int(line.rows_on(one)["depth"].max()) + 1 for one in line.tracks]
    assert line.zero_ns == 1000 * US


def test_a_layer_that_runs_again_is_marked_as_recomputed() -> None:
    made = ByHand().step(0, 1000)
    net = made.layer("net")
    inner = made.layer("net.inner", net)
    made.call(net, 10, 200).call(inner, 20, 180).op("aten::mm", 30, 150, 1)
    made.event("autograd::engine::evaluate_function: CheckpointBackward", 300, 700, sequence=1, forward_thread=1)
    made.call(inner, 320, 500).op("aten::mm", 330, 480, 2)

    line = timeline(made)

    (track,) = line.of("layers")
    assert told(line, track)[2:] == [
        ("net", 300, 700, 0, "backward"),
        ("inner", 300, 320, 1, "backward"),
        ("inner", 320, 500, 1, "recompute"),
        ("inner", 500, 700, 1, "backward"),
    ]


def test_events_are_on_their_thread_and_stream_and_know_what_caused_them() -> None:
    made = training().kernel("gemm", 1100, 1500, 1600).kernel("late", 1300, 1550, 1580)
    made.node("PowBackward0", 1910, 1920, 7, thread=5)

    line = timeline(made)

    main, other = line.of("thread")
    (stream,) = line.of("stream")
    assert (main.title, other.title, stream.title) == ("Thread 1 (main)", "Thread 5 (backward)", "GPU 0, stream 7")
    assert told(line, stream) == [("gemm", 500, 600, 0, "forward"), ("late", 550, 580, 1, "forward")]
    kernels = line.rows_on(stream)
    launches = line.rows.iloc[kernels["launch"].to_numpy()]
    assert {line.names[code] for code in launches["name"]} == {"cudaLaunchKernel"}
    assert launches["start"].tolist() == [100 * US, 300 * US]
    assert [line.layers[code] for code in kernels["layer"]] == ["net.first", "net.second"]
    of_main = line.rows_on(main)
    backward = of_main[of_main["forward"] >= 0]
    pairs = [
        (
            line.names[row.name_],
            line.names[line.rows["name"].iloc[row.forward]],
            line.rows["start"].iloc[row.forward] / US,
        )
        for row in backward.rename(columns={"name": "name_"}).sort_values("start").itertuples()
        if "evaluate" in line.names[row.name_]
    ]
    prefix = "autograd::engine::evaluate_function: "
    assert pairs == [
        (f"{prefix}MseLossBackward0", "aten::mse_loss", 365),
        (f"{prefix}MmBackward0", "aten::mm", 240),
        (f"{prefix}ReluBackward0", "aten::relu", 190),
        (f"{prefix}MmBackward0", "aten::mm", 70),
    ]


def test_work_without_a_launch_belongs_to_the_op_with_its_external_id(tmp_path: Path) -> None:
    number: dict[str, Any] = {"External id": 5}
    trace = Written().step(1, 0, 1000).event("aten::mm", 10, 20, **number)
    for name, known in (("of the op", number), ("of another", {"External id": 6}), ("of nothing", {})):
        trace.event(name, 100, 110, "kernel", 7, 0, device=0, stream=7, **known)
    profile = perfnb.load(trace.kernel("launched", 30, 200, 300, **number).write(tmp_path / "trace.json"))
    assert isinstance(profile, perfnb.Profile)
    line = profile._timeline()
    assert line is not None
    (stream,) = line.of("stream")
    rows = line.rows_on(stream)
    launches = [None if row == -1 else line.names[line.rows["name"].iloc[row]] for row in rows["launch"]]
    assert dict(zip([line.names[code] for code in rows["name"]], launches, strict=True)) == {
        **{"of the op": "aten::mm", "of another": None, "of nothing": None, "launched": "cudaLaunchKernel"}
    }


def test_python_calls_are_tracks_of_their_own_at_the_end_and_ops_nest_without_them() -> None:
    trace = training().kernel("gemm", 1110, 1500, 1600)
    trace.event("outer", 1000, 1475, "python_function").event("inner", 1060, 1400, "python_function")
    trace.event("elsewhere", 1100, 1200, "python_function", thread=9)

    line = timeline(trace)

    assert [(t.kind, t.title, t.thread, t.depth) for t in line.tracks[3:]] == [
        ("thread", "Thread 1 (main)", "", line.of("thread")[0].depth),
        ("stream", "GPU 0, stream 7", "", 1),
        ("python", "Python calls of thread 1 (main)", "Thread 1 (main)", 2),
        ("python", "Python calls of thread 9", "Thread 9", 1),
    ]
    calls, other = line.of("python")
    assert [(name, depth) for name, _, _, depth, _ in told(line, calls)] == [("outer", 0), ("inner", 1)]
    assert [one[:3] for one in told(line, other)] == [("elsewhere", 100, 200)]
    bare = timeline(training().kernel("gemm", 1110, 1500, 1600))
    assert told(line, line.of("thread")[0]) == told(bare, bare.of("thread")[0])
    (kernel,) = line.rows_on(line.of("stream")[0]).to_dict("records")
    assert line.names[line.rows["name"].iloc[kernel["launch"]]] == "cudaLaunchKernel"
    step = step_timeline(line)
    assert step is not None
    assert not step.timeline.of("python")


def test_an_empty_event_is_kept_and_the_depth_is_at_most_255() -> None:
    made = ByHand().step(0, 1000).op("aten::tick", 5, 5)
    for depth in range(300):
        made.op("aten::deep", 100 + depth, 900 - depth)

    line = timeline(made)

    (track,) = line.of("thread")
    rows = line.rows_on(track)
    assert track.count == 302
    assert rows["depth"].max() == 255
    assert rows.loc[rows["name"] == line.names.index("aten::tick"), "duration"].tolist() == [0]


def test_what_ends_after_the_event_around_it_is_cut() -> None:
    line = timeline(ByHand().step(0, 1000).op("aten::outer", 10, 100).op("aten::inner", 50, 100.25))

    (track,) = line.of("thread")
    assert told(line, track)[1:] == [("aten::outer", 10, 100, 1, "other"), ("aten::inner", 50, 100, 2, "other")]


intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), min_size=1, max_size=40)


@given(intervals)
def test_no_two_intervals_of_a_line_overlap(made: list[tuple[int, int]]) -> None:
    made.sort(key=lambda one: (one[0], -one[1]))
    start, end = (np.array(part, dtype=np.int64) for part in zip(*((a, a + d) for a, d in made), strict=True))

    lane = lanes(start, end)

    free: list[int] = []  # when each line is free again: the first that is takes the next interval
    for place in range(len(start)):
        chosen = next((n for n, until in enumerate(free) if until <= start[place]), len(free))
        assert lane[place] == chosen
        free[chosen : chosen + 1] = [max(int(end[place]), int(start[place]) + 1)]


S = 1_000_000  # in the microseconds of a recording by hand


def counted_at_half_speed() -> ByHand:
    """Return the watched step of 200 s from 50 s on, where everything takes twice as long as in the traced ones."""
    made = ByHand().step(50 * S, 250 * S)
    for name, begin, end in (("aten::a", 70, 90), ("aten::b", 110, 150), ("aten::c", 210, 230)):
        made.op(name, begin * S, end * S)
    return made.alloc(110 * S, 1, 1000).alloc(210 * S, 2, 500).alloc(230 * S, 2, -500)


@pytest.mark.parametrize(
    ("ops", "note", "times"),
    [
        ((("aten::a", 10, 20), ("aten::b", 30, 50), ("aten::c", 80, 90)), "aligned by op", [0, 30, 80, 90, 100]),
        ((("aten::a", 10, 20), ("aten::b", 50, 60), ("aten::c", 60, 90)), "aligned by op", [0, 50, 60, 80, 100]),
        ((("aten::a", 10, 20), ("aten::odd", 30, 50)), "aligned by phase", [0, 30, 80, 90, 100]),
        ((("aten::a", 10, 20), ("Optimizer.step#SGD.step", 30, 50)), "stretched to fit", [0, 30, 80, 90, 100]),
    ],
)
def test_memory_of_the_counted_step_stands_at_the_same_ops(
    ops: tuple[tuple[str, float, float], ...], note: str, times: list[float]
) -> None:
    traced = ByHand().step(0, 100 * S)
    for name, begin, end in ops:
        traced.event(name, begin * S, end * S, "cpu_op" if name.startswith("aten::") else "user_annotation")
    watched = counted_at_half_speed().recording()
    recording = traced.recording()
    whole = Recording(**{**vars(recording), "memory": watched.memory})

    (curve,) = timeline(whole).memory

    assert (curve.device, curve.note) == ("cpu", f"from the counted step, {note}")
    assert (curve.times_ns / US / S).tolist() == times
    assert curve.bytes.tolist() == [0, 1000, 1500, 1000, 1000]


def test_a_curve_is_as_rough_as_the_roughest_of_its_steps() -> None:
    traced = ByHand().step(0, 100 * S).op("aten::a", 10 * S, 20 * S).op("aten::b", 30 * S, 50 * S)
    traced.op("aten::c", 80 * S, 90 * S).step(200 * S, 300 * S).op("aten::odd", 230 * S, 250 * S)
    whole = Recording(**{**vars(traced.recording()), "memory": counted_at_half_speed().recording().memory})

    (curve,) = timeline(whole).memory

    assert curve.note == "from the counted step, aligned by phase"
    assert (curve.times_ns / US / S).tolist() == [0, 30, 80, 90, 100, 200, 230, 280, 290, 300]
    assert curve.bytes.tolist() == [0, 1000, 1500, 1000, 1000] * 2


@pytest.mark.parametrize(
    ("times", "kept", "sizes"),
    [
        ([0, 100, 110, 200], [0, 10], [2, 3]),  # a level lasts until the next time
        ([0, 90, 110, 199], [0, 10, 99], [2, 3, 4]),
        ([101, 150, 201], [1, 50], [1, 2]),
        ([0, 50], [0], [2]),
        ([200, 300], [], []),
    ],
)
def test_the_curve_of_a_step_begins_with_the_level_at_its_start(
    times: list[int], kept: list[int], sizes: list[int]
) -> None:
    line = timeline(ByHand().step(0, 50).step(100, 200).op("aten::a", 110, 120))
    curve = MemoryCurve("cpu", "planted", np.array(times) * US, np.arange(1, len(times) + 1))
    step = step_timeline(replace(line, memory=(curve,)))
    assert step is not None
    (found,) = step.timeline.memory
    assert ((found.times_ns / US).tolist(), found.bytes.tolist()) == (kept, sizes)


def test_threads_of_several_processes_are_named_after_both_and_the_main_ones_come_first() -> None:
    made = ByHand().step(0, 100).op("aten::a", 10, 20).op("aten::a", 10, 20, thread=9).op("aten::a", 10, 20, thread=3)
    made.op("aten::b", 10, 20, process=8, thread=0).op("aten::b", 10, 20, process=7, thread=-1)
    made.node("AddBackward0", 30, 40, -1, thread=9)
    for row in made.rows:
        row.setdefault("process", 8 if row["thread"] == 4 else 9)
    names = [[9, 1, "thread 1 (python3)"], [9, 9, "thread 9"], [9, 3, "pt_autograd_0"], [7, -1, "main"]]

    line = timeline(made.recording(trace={"thread_names": names, "process_names": [[9, "train"]]}))

    assert [track.title for track in line.of("thread")] == [
        "Process 9 (train), thread 1 (main, python3)",
        "Process 9 (train), thread 3 (pt_autograd_0)",
        "Process 9 (train), thread 9 (backward)",
        "Process 7, thread without a number (main)",
        "Process 8, thread 0",
    ]


@pytest.mark.parametrize(
    ("name", "number", "own"),
    [
        ("python3", 12, "python3"),
        ("thread 12 (python3)", 12, "python3"),
        ("Thread -5 (worker (1))", -5, "worker (1)"),
        *[("thread 12", 12, ""), ("thread 12 (12)", 12, ""), (" 12 ", 12, ""), ("thread 12 (thread 12)", 12, "")],
        ("13", 12, "13"),
        ("", 12, ""),
    ],
)
def test_a_thread_is_not_named_after_its_number(name: str, number: int, own: str) -> None:
    assert _own_name(name, number) == own


def test_streams_are_in_order_of_their_gpus_and_numbers() -> None:
    made = ByHand().step(0, 100)
    for device, stream in ((-1, 3), (1, 7), (0, 20), (0, 7), (0, -1), (-1, -1)):
        made.event("gemm", 10, 20, "kernel", thread=-1, device=device, stream=stream)
    assert [track.title for track in timeline(made).of("stream")] == [
        *["GPU 0, no stream", "GPU 0, stream 7", "GPU 0, stream 20", "GPU 1, stream 7"],
        *["Device without a number, no stream", "Device without a number, stream 3"],
    ]


@pytest.mark.parametrize(("unit", "ends"), [(1, [20, 31, 43, 70, 60, 90]), (2, [20, 31, 41, 70, 60, 90])])
def test_overlaps_that_may_be_rounding_are_cut(unit: int, ends: list[int]) -> None:
    start, end = np.array([10, 20, 31, 41, 41, 60]), np.array([20, 32, 43, 70, 60, 90])
    assert _without_slivers(start, end, unit).tolist() == ends
    assert end.tolist() == [20, 32, 43, 70, 60, 90]


def test_one_step_is_cut_out_and_its_tracks_are_summed() -> None:
    made = training().kernel("gemm", 1100, 1500, 1600).kernel("gemm", 1110, 1950, 2100)

    step = step_timeline(timeline(made))

    assert step is not None
    assert (step.name, step.duration_ns, step.shown_ns) == ("step 0", 1000 * US, 1100 * US)
    table = step.tracks.set_index("track")
    assert table.index.tolist() == ["Phases", "Layers", "Thread 1 (main)", "GPU 0, stream 7"]
    stream = table.loc["GPU 0, stream 7"]
    assert (stream["events"], stream["busy_ms"]) == (2, 0.25)  # the second ends after the step that launched it
    assert stream["share"] == pytest.approx(0.25 / 1.1)
    assert (stream["longest"], stream["layer"], stream["longest_ms"]) == ("gemm", "net.first", 0.15)
    layers = table.loc["Layers"]
    assert (layers["layer"], layers["longest_ms"]) == ("net.second", 0.16)  # of those that have none inside
    assert layers["busy_ms"] == pytest.approx(0.3 + 0.04 + 0.02 + 0.18)
    thread = table.loc["Thread 1 (main)"]
    assert thread["busy_ms"] == pytest.approx((80 + 40 + 90 + 30 + 20 + 60 + 20 + 10 + 60 + 10) / 1e3)


def test_the_step_shown_lasts_until_its_work_has_ended_and_no_work_of_the_next_is_shown() -> None:
    made = ByHand().step(0, 100).op("aten::mm", 10, 20).kernel("first", 15, 300, 400)
    made.step(200, 290).op("aten::relu", 210, 220).kernel("second", 215, 350, 390).kernel("third", 216, 400, 500)
    made.event("orphan", 50, 60, "kernel", thread=-1, device=0, stream=7)

    step = step_timeline(timeline(made))

    assert step is not None
    assert (step.name, step.duration_ns, step.shown_ns) == ("step 0", 100 * US, 400 * US)
    (stream,), (thread,) = step.timeline.of("stream"), step.timeline.of("thread")
    assert [one[:3] for one in told(step.timeline, stream)] == [("orphan", 50, 60), ("first", 300, 400)]
    assert {name for name, *_ in told(step.timeline, thread)} == {"aten::mm", "cudaLaunchKernel"}
    assert step.timeline.span_ns == (0, 400 * US)


@pytest.mark.parametrize(
    ("lengths", "chosen"), [((9, 1), 0), ((1, 9), 1), ((5, 7, 6), 2), ((1, 2, 3, 4), 2), ((5, 5), 0)]
)
def test_the_step_of_median_length_is_of_two_the_longer(lengths: tuple[int, ...], chosen: int) -> None:
    made = ByHand()
    for number, length in enumerate(lengths):
        made.step(100 * number, 100 * number + length).op("aten::a", 100 * number, 100 * number + 1)

    step = step_timeline(timeline(made))

    assert step is not None
    assert (step.name, step.duration_ns) == (f"step {chosen}", lengths[chosen] * US)


def test_a_track_without_a_layer_has_none_even_if_others_do() -> None:
    made = training().op("aten::elsewhere", 1100, 1200, thread=9)

    step = step_timeline(timeline(made))

    assert step is not None
    assert step.tracks.set_index("track")["layer"].loc[["Layers", "Thread 9"]].tolist() == ["net.second", None]


@pytest.mark.parametrize("make", [lambda: ByHand().step(5, 5), lambda: ByHand().step(5, 5).op("aten::a", 5, 5)])
def test_a_step_without_length_has_a_timeline_and_no_picture(make: Callable[[], ByHand]) -> None:
    line = timeline(make())

    assert len(line) == sum(track.count for track in line.tracks)
    assert step_timeline(line) is None


def test_many_threads_are_cut_to_a_step_without_a_frame_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Written()
    for thread in range(100):
        made.op("aten::mm", thread, thread + 2, tid=thread + 1)
    line = perfnb.load(made.write(tmp_path / "trace.json"))._timeline()
    assert line is not None
    frames: list[pd.DataFrame] = []
    assign = pd.DataFrame.assign

    def counted(frame: pd.DataFrame, **columns: Any) -> pd.DataFrame:
        frames.append(frame)
        return assign(frame, **columns)

    monkeypatch.setattr(pd.DataFrame, "assign", counted)
    step = step_timeline(line)

    assert step is not None
    assert len(step.tracks) >= 100
    assert len(frames) < 10
