"""A recorder of every step: windows, device events that nobody waits for, and what it must not do."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from perfnb.loop import record
from perfnb.loop.record import RunRecorder, _DeviceClock
from perfnb.loop.run import RunSummary
from perfnb.loop.thinning import COLUMNS
from tests.loop.planted_runs import MIB, recorder_of, usual


class Event:
    """An event that a device passes when a test wants."""

    passed_until = 0
    now_ms = 0.0
    count = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: Any) -> None:
        """Mark this instant."""
        Event.count += 1
        self.number, self.at_ms = Event.count, Event.now_ms

    def query(self) -> bool:
        """Return whether the device has come so far."""
        return self.number <= Event.passed_until

    def elapsed_time(self, later: Event) -> float:
        """Return milliseconds between two events."""
        return later.at_ms - self.at_ms

    def synchronize(self) -> None:
        """Nobody may wait."""
        raise AssertionError("waited for an event")


class Module:
    """Stands for ``torch.cuda``."""

    Event = Event

    @staticmethod
    def current_stream(index: int) -> None:
        """No stream."""


def test_events_are_read_late_and_never_waited_for(clock: object) -> None:
    Event.passed_until = Event.count = 0
    recorder = RunRecorder()
    recorder._device = _DeviceClock("cuda", Module(), 0)
    now = 10**12
    for step in range(100):
        Event.now_ms += 12.0 if step % 2 else 8.0
        recorder.step(1_000_000, 0, now)
        now += 1_000_000
        Event.passed_until = max(0, step - 5)
    device = recorder.recorded().rows[:, -1]
    assert device[0] == -1, "nothing was before the first"
    assert device[1:90].tolist() == [12_000_000 if step % 2 else 8_000_000 for step in range(1, 90)]
    assert (device[-4:] == -1).all(), "the device has not come so far"
    summary = RunSummary(recorder.recorded())
    assert "on the device's clock" in str(summary)
    assert summary.median_ms == pytest.approx(10.0, abs=2.0)


def test_a_pause_of_the_host_makes_the_devices_time_unknown(clock: object) -> None:
    Event.passed_until, Event.count = 10**9, 0
    recorder = RunRecorder()
    recorder._device = _DeviceClock("cuda", Module(), 0)
    now = 10**12
    for step in range(10):
        if step == 5:
            now += 50_000_000  # a validation
            Event.now_ms += 50.0
        Event.now_ms += 10.0
        recorder.step(10_000_000, 0, now)
        now += 10_000_000
    assert np.flatnonzero(recorder.recorded().rows[:, -1] < 0).tolist() == [0, 5]


def test_the_device_is_read_whenever_the_host_has_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, did = recorder_of([10.0] * 4, windows=[(1, 9)]), list[Any]()
    monkeypatch.setattr(record, "_device_clock", lambda: "a clock")
    monkeypatch.setattr(record, "accelerators", list)
    for in_use, found in ((False, None), (True, "a clock")):
        monkeypatch.setattr(record, "accelerator_in_use", lambda in_use=in_use: in_use)
        recorder._read(recorder._end_ns)
        assert recorder._device == found  # type: ignore[comparison-overlap]
    device: Any = SimpleNamespace(cut=did.append, poll=lambda: did.append("read"), times_of=lambda steps: steps * 0 - 1)
    recorder._device = device
    recorder._read(recorder._end_ns)
    recorder._fold()
    recorder.leave()
    assert did == ["read", "read", 4]


def test_events_are_read_before_too_many_wait_and_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_CHUNK", 8)
    Event.passed_until, Event.count, made = 10**9, 0, list[Event]()

    def event(enable_timing: bool) -> Event:
        made.append(Event(enable_timing))
        return made[-1]

    clock = _DeviceClock("cuda", SimpleNamespace(Event=event, current_stream=lambda index: None), 0)
    waiting = []
    for step in range(6):
        clock.mark(step)
        waiting.append(len(clock._waiting))
    assert waiting == [1, 2, 0, 1, 2, 0]
    assert len(made) == 4


def test_the_runs_random_numbers_stay_as_they_are(clock: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MOST_ROWS", 500)
    monkeypatch.setattr(record, "_CHUNK", 64)
    states = [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # type: ignore[index]
    recorder_of(usual(2000)).recorded()
    assert [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()] == states  # type: ignore[index]


def test_looking_changes_nothing_and_the_run_goes_on(clock: object) -> None:
    recorder = recorder_of(usual(100))
    first = recorder.recorded()
    again = recorder.recorded()
    assert (first.rows == again.rows).all()
    end = 10**12 + int(first.facts["duration_ns"])
    recorder.step(10_000_000, 0, end)
    assert recorder.recorded().facts["steps"] == 101


def test_a_window_that_is_still_open_is_reported(clock: object) -> None:
    recorder = recorder_of(usual(100), windows=[(90, 200)])
    assert recorder.recorded().windows[:, :2].tolist() == [[90, 10]]
    recorder.leave()
    recorder.leave()
    assert recorder.recorded().windows[:, :2].tolist() == [[90, 10]]


def readings_of(steps: int, ms: int, costs_ms: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> RunRecorder:
    """Return the recorder of steps that take so long, on a clock that only advances by what readings cost."""
    now, costs, recorder = SimpleNamespace(ns=0), iter(costs_ms), RunRecorder()

    def allocated() -> int:
        now.ns += next(costs, 0) * 1_000_000
        return now.ns

    monkeypatch.setattr(record, "_allocated_bytes", allocated)
    monkeypatch.setattr(record, "time", SimpleNamespace(perf_counter_ns=lambda: now.ns))
    for step in range(steps):
        recorder.step(ms * 1_000_000, 0, 10**12 + step * ms * 1_000_000)
    return recorder


def test_memory_is_read_every_50_ms_if_that_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = readings_of(100, 10, (), monkeypatch).recorded().readings
    assert readings[:, 1].tolist() == [*range(0, 100, 5), 99]
    assert readings[:, 0].tolist() == [(step + 1) * 10_000_000 for step in (*range(0, 100, 5), 99)]
    assert (readings[:, 2] > 10 * 2**20).all()


def test_a_reading_is_followed_by_a_thousand_times_the_least_that_one_has_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = readings_of(60, 100, (2, 1, 5, 0), monkeypatch)
    assert [step for _, step, _, _ in recorder._readings] == [0, 20, 30, 40, 41, 42, *range(43, 60)]


def test_of_too_many_readings_every_second_one_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MOST_READINGS", 4)
    # After the steps 20, 40 and 80, there are five, and the time between them doubles.
    recorder = readings_of(125, 10, (), monkeypatch)
    assert [step for _, step, _, _ in recorder._readings] == [0, 40, 80, 120]


def test_peaks_are_those_of_all_readings_and_the_load_is_their_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = iter([1.0, 2.5, 2.5])
    monkeypatch.setattr("os.getloadavg", lambda: (next(loads), 0.0, 0.0))
    monkeypatch.setattr(record, "time", SimpleNamespace(perf_counter_ns=lambda: 0))  # a reading takes no time
    monkeypatch.setattr(record, "_allocated_bytes", iter([0, 5, 9, 7]).__next__)
    facts = recorder_of([60.0, 60.0], memory=lambda step: (3 - step) * MIB).recorded().facts
    assert (facts["peak_resident_bytes"], facts["peak_allocated_bytes"], facts["load"]) == (2 * MIB, 9, 2.0)


def test_the_devices_time_is_unknown_after_a_pause_of_more_than_a_twentieth_of_it() -> None:
    recorder = recorder_of([100.0] * 4, other_ms=[0.0, 5.0, 5.000001, 0.0])
    device: Any = SimpleNamespace(kind="cuda", times_of=lambda steps: steps * 0 + 100_000_000)
    recorder._device = device
    assert recorder.recorded().rows[:, -1].tolist() == [100_000_000, 100_000_000, -1, 100_000_000]


def device(kind: str = "cuda", *indices: int) -> Any:
    """Return one kind of accelerator in use, on which tensors occupy a hundred bytes more on each device."""
    module = SimpleNamespace(memory_allocated=lambda index: 100 * (index + 1))
    return SimpleNamespace(kind=kind, module=module, indices=indices or (3,))


@pytest.mark.parametrize(
    ("used", "kind", "held"),
    [
        ([device()], "cuda", 400),
        ([device("xpu", 0)], "xpu", 100),
        ([device("mps", 0)], None, 100),
        ([device("cuda", 0, 1)], None, 300),
        ([device(), device("xpu", 0)], None, 500),
        ([SimpleNamespace(kind="npu", module=None, indices=(0,))], None, -1),
        ([], None, -1),
    ],
)
def test_the_only_device_has_a_clock_and_memory_is_that_of_all(
    used: list[Any], kind: str | None, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "accelerators", lambda: used)
    monkeypatch.setattr(record, "accelerator_in_use", lambda: bool(used))
    clock = record._device_clock()
    assert (None if clock is None else clock.kind) == kind
    assert clock is None or (clock._module, clock._index) == (used[0].module, used[0].indices[0])
    assert record._allocated_bytes() == held


@pytest.mark.parametrize(
    ("rank", "size", "place"),
    [
        ("1", "2", (1, 2)),
        ("2", "2", (None, None)),
        ("0", "1", (None, None)),
        ("x", "2", (None, None)),
        ("12345678", "99999999", (12345678, 99999999)),
        ("1", "999999999", (None, None)),
        ("-1", "2", (None, None)),
        ("\u0663", "9", (None, None)),
        ("", "", (None, None)),
    ],
)
def test_a_rank_is_what_torch_or_the_launcher_says(
    rank: str, size: str, place: tuple[int | None, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)
    monkeypatch.setattr(record, "place_in_job", lambda: None)
    assert record._place() == dict(zip(("rank", "ranks"), place, strict=True))
    monkeypatch.setattr(record, "place_in_job", lambda: {"rank": 4, "world_size": 8, "backend": "gloo"})
    recorder = RunRecorder()
    monkeypatch.setattr(record, "place_in_job", lambda: None)  # its group has ended
    facts = recorder.recorded().facts
    assert (facts["rank"], facts["ranks"]) == ((4, 8) if None in place else place)


def test_a_pause_counts_as_part_of_the_last_window(monkeypatch: pytest.MonkeyPatch) -> None:
    now: Any = SimpleNamespace(perf_counter_ns=lambda: now.ns, ns=0)
    recorder = recorder_of([10.0] * 6, windows=[(2, 4)], window_ms=3.0)
    recorder._device = clock = _DeviceClock("cuda", Module(), 0)
    monkeypatch.setattr(record, "time", now)
    end = recorder._end_ns
    now.ns = end + 5_000_000
    recorder.paused()
    assert clock._cut == 6
    recorder.step(10_000_000, 0, now.ns + 1_000_000)
    found = recorder.recorded()
    assert found.windows[:, [0, 1, 5]].tolist() == [[2, 2, 3_000_000 + 5_000_000]]
    assert found.rows[-1, COLUMNS.index("sum_other_ns")] == 1_000_000
    assert found.facts["duration_ns"] == 60_000_000 + 3_000_000 + 5_000_000 + 1_000_000 + 10_000_000

    without = recorder_of([10.0] * 2)
    now.ns = without._end_ns + 5_000_000
    without.paused()
    without.step(10_000_000, 0, now.ns + 2_000_000)
    assert without.recorded().rows[-1, COLUMNS.index("sum_other_ns")] == 2_000_000


def test_steps_after_a_trial_are_those_that_are_left() -> None:
    recorder = recorder_of([10.0] * 3)
    assert "tried" not in recorder.recorded().facts
    recorder.note_tried([{"lever": "a"}, {"lever": "b"}], over=False)
    assert recorder.recorded().facts["tried"] == [{"lever": "a"}, {"lever": "b"}]
    recorder.note_tried([{"lever": "a"}, {"lever": "b"}], over=True)
    assert recorder.recorded().facts["tried"] == [{"lever": "a"}, {"lever": "b"}]
    for step in range(2):
        recorder.step(10_000_000, 0, 2 * 10**12 + step)
    assert recorder.recorded().facts["tried"] == [{"lever": "a", "left": 2}, {"lever": "b", "left": 2}]


@pytest.mark.parametrize(("count", "joins"), [(1, False), (2, True), (512, True), (513, False)])
def test_the_batches_so_far_become_one_step_unless_they_are_too_many(count: int, joins: bool) -> None:
    recorder = recorder_of([10.0] * count, [1.0] * count, [2.0] * count)
    recorder.recorded()
    assert recorder.join_first() is joins
    recorder.leave()
    found = recorder.recorded()
    assert found.facts["steps"] == (1 if joins else count)
    if joins:
        wall, data = (int(found.rows[0, COLUMNS.index(name)]) for name in ("sum_wall_ns", "sum_data_ns"))
        assert (wall, data) == (count * 10_000_000 + (count - 1) * 2_000_000, count * 1_000_000)
        assert set(found.readings[:, 1]) == {0}


def test_batches_of_an_open_window_are_not_joined_and_those_of_a_closed_one_become_a_window() -> None:
    recorder = recorder_of([10.0] * 4, [1.0] * 4, windows=[(1, 9)])
    assert not recorder.join_first()
    recorder.leave(recorder._end_ns + 7_000_000)
    assert recorder.join_first()
    found = recorder.recorded()
    assert found.windows.tolist() == [[0, 1, 0, 47_000_000, 4_000_000, 0, 0, -1]]
    assert len(found.rows) == 0
