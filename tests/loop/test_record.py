"""A recorder of every step: windows, device events that nobody waits for, and what it must not do."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from perfnb.loop import record
from perfnb.loop.record import RunRecorder, _DeviceClock
from perfnb.loop.run import RunSummary
from tests.loop.planted_runs import recorder_of, usual


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


def test_memory_is_read_from_this_process_now_and_then(clock: object) -> None:
    recorder = RunRecorder()
    for step in range(100):
        recorder.step(10_000_000, 0, 10**12 + step * 10_000_000)
    readings = recorder.recorded().readings
    assert 15 <= len(readings) <= 25, "every 50 ms"
    assert (readings[:, 2] > 10 * 2**20).all()
    assert (readings[:, 3] == -1).all() or torch.cuda.is_available()
