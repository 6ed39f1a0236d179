"""A watcher ends when it is stopped, killed, interrupted or forgotten, and leaves nothing."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from perfnb.telemetry import watcher as sampler_process
from perfnb.telemetry.watcher import Watcher
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")

ROOT = Path(__file__).parents[2]


@pytest.mark.deep
@pytest.mark.slow
def test_started_and_stopped_often_leaves_nothing() -> None:
    with Watcher(1.0):
        pass  # what the first one imports may open files
    gc.collect()
    process = psutil.Process()
    files, threads = process.num_fds(), threading.active_count()
    for _ in range(25):
        with Watcher(1.0):
            pass
    assert process.num_fds() <= files
    assert threading.active_count() <= threads
    assert not [child for child in process.children() if "perfnb.telemetry.sampler.loop" in " ".join(child.cmdline())]


PARENT = """
import os, sys, time, torch
from torch.utils.data import DataLoader
from perfnb.telemetry.watcher import Watcher
from tests.waiting import wait_until
watcher = Watcher(0.5)
torch.utils.data._utils.worker.MP_STATUS_CHECK_INTERVAL = 1000  # a worker would see by itself that its parent is gone
workers = iter(DataLoader(range(1000), num_workers=1)) if {workers} else None  # holds the ends of the pipes, too
next(workers) if workers else None
print(watcher._process.process.pid, flush=True)
time.sleep(60)
"""


def ended(process: psutil.Process) -> bool:
    """Return whether it runs no longer; who inherits a process may be late in asking for its end."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("workers", [False, True])
def test_the_sampler_ends_with_a_parent_that_is_killed(workers: bool) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(workers=workers)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert parent.stdout is not None
    sampler = psutil.Process(int(parent.stdout.readline()))
    below = psutil.Process(parent.pid).children(recursive=True)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()

    try:
        wait_until(lambda: ended(sampler))
        others = [process for process in below if process.pid != sampler.pid]
        assert len(others) == workers
        assert not any(map(ended, others)), "the sampler may have ended because the worker let go of the pipes"
    finally:
        for process in below:
            if process.is_running():
                process.kill()


def test_an_interrupt_of_the_process_group_does_not_end_it() -> None:
    with Watcher(0.05) as watcher:
        assert watcher._process is not None
        os.kill(watcher._process.process.pid, signal.SIGINT)
        time.sleep(0.2)
        assert watcher.running


def interrupted_after(seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, signal.raise_signal, [signal.SIGINT])
    timer.start()
    return timer


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_while_it_starts_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    class Started(sampler_process.SamplerProcess):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            started.append(self)
            interrupt()

    monkeypatch.setattr(sampler_process, "SamplerProcess", Started)
    with pytest.raises(KeyboardInterrupt):
        Watcher(0.1)
    assert len(started) == 1
    assert started[0].ended


class Starting:
    """In the place of the sampler's process, which ends before it has read anything."""

    def __init__(self, *, starts: Callable[[], None] = list, ends: Callable[[], None] = list) -> None:
        self.starts, self.ends, self.ended = starts, ends, False

    def __call__(self, interval_s: float, taker: Any, pid: int) -> Starting:
        self.starts()
        taker()(None)
        return self

    def end(self) -> None:
        self.ends()
        self.ended = True

    def last_words(self) -> str:
        return "KeyboardInterrupt"


@pytest.mark.parametrize("when", ["starts", "ends"])
def test_an_interrupt_that_ends_the_sampler_as_it_starts_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    process = Starting(**{when: interrupt})
    monkeypatch.setattr("perfnb.telemetry.watcher.SamplerProcess", process)
    with pytest.raises(KeyboardInterrupt):
        Watcher(0.1)
    assert process.ended


def test_an_interrupt_does_not_wait_for_the_first_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            interrupt()
            raise AssertionError("the interrupt waited")

    monkeypatch.setattr("perfnb.telemetry.watcher.threading.Event", Interrupted)
    monkeypatch.setattr("perfnb.telemetry.watcher.SamplerProcess", process := Starting(starts=lambda: None))
    with pytest.raises(KeyboardInterrupt):
        Watcher(0.1)
    assert process.ended


@pytest.mark.slow
def test_an_interrupt_while_it_stops_comes_when_it_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = Watcher(0.1)
    assert watcher._process is not None
    process, end = watcher._process, watcher._process.end

    def slow_end() -> None:
        time.sleep(0.3)
        end()

    monkeypatch.setattr(process, "end", slow_end)
    timer = interrupted_after(0.1)
    with pytest.raises(KeyboardInterrupt):
        watcher.stop()
    timer.join()
    assert process.ended
    assert not watcher.running


def test_stopping_in_several_threads_at_once() -> None:
    watcher, errors = Watcher(0.1), list[BaseException]()

    def stop() -> None:
        try:
            watcher.stop()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=stop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert not watcher.running


def test_a_watcher_that_nobody_holds_ends() -> None:
    watcher = Watcher(0.05)
    assert watcher._process is not None
    process, thread = watcher._process.process, watcher._process.thread
    del watcher
    gc.collect()
    thread.join(60)
    assert process.returncode == 0


def test_a_sampler_that_is_killed_is_reported() -> None:
    with Watcher(0.05) as watcher:
        wait_until(lambda: watcher.columns().get("host"))
        assert watcher._process is not None
        watcher._process.process.kill()
        watcher._process.thread.join(60)
        assert not watcher.running
        assert watcher.notes == [f"The sampler ended by itself after {watcher.meta['ticks']} readings."]


def test_an_interrupt_of_the_process_group_does_not_end_it_as_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    boot = f"import os, signal; os.kill(os.getpid(), signal.SIGINT); {sampler_process._BOOT}"
    monkeypatch.setattr(sampler_process, "_BOOT", boot)
    with Watcher(0.1) as watcher:
        assert watcher.running
