"""The process with all below it reads what it truly used, through workers that start, end and vanish."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from perfnb.telemetry.sampler.process import Portable, ProcessSource, ProcFiles
from perfnb.telemetry.sampler.source import Absent, Lost, Values
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux's files")


#: Waits for a line, does its work, says a number, and waits for the next line before it ends.
SCRIPT = """
import os, resource, signal, subprocess, sys, time
def cpu_s():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
def burn(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until: pass
def use(cpu_s):
    until = time.process_time() + cpu_s
    while time.process_time() < until: pass
def workers(works):
    pids = []
    for work in works:
        pids.append(os.fork())
        if pids[-1] == 0:
            work(); os._exit(0)
    return pids
def ended(pids):
    for pid in pids: os.waitpid(pid, 0)
def write(path, size):
    with open(path, "wb") as file:
        for _ in range(size // 10**6): file.write(os.urandom(1000) * 1000)
        file.flush(); os.fsync(file.fileno())
print("ready", flush=True); sys.stdin.readline()
"""

Start = Callable[[str], subprocess.Popen[str]]

#: Two workers, then three of which two end at once; prints how much CPU time all had.
WORKERS = """
before = cpu_s(); ended(workers([lambda: use(0.4), lambda: use(0.4)]))
ended(workers([lambda: use(0.2), lambda: None, lambda: None])); print(cpu_s() - before)"""


def without_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system without Linux's files: psutil is asked, each time."""
    monkeypatch.setattr("perfnb.telemetry.sampler.process.ProcFiles", lambda *_: Portable())
    monkeypatch.setattr("perfnb.telemetry.sampler.process._SEARCH_SHARE", 0)
    monkeypatch.setattr("perfnb.telemetry.sampler.process._SEARCH_S", 0)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start scripts; they have got as far as their first line."""
    started = []

    def start(work: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-S", "-c", SCRIPT + work + "\nsys.stdin.readline()"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        for below in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
            below.kill()
        process.kill()
        process.communicate()


def go(process: subprocess.Popen[str]) -> None:
    process.stdin.write("go\n")
    process.stdin.flush()


def read(source: ProcessSource) -> Values:
    return source.read("process", time.perf_counter_ns())


class Integral:
    """Reads a process while it works, and sums the rates over the time."""

    def __init__(self, process: subprocess.Popen[str], every_s: float = 0.05) -> None:
        self.source = ProcessSource(process.pid, os.getpid())
        self.readings = [self.source.read("process", before := time.perf_counter_ns())]
        self.sums = dict.fromkeys((name for name in self.readings[0] if name.endswith(("percent", "per_s"))), 0.0)
        go(process)
        self.said, until = "", None
        while until is None or time.perf_counter() < until:
            time.sleep(every_s)
            if until is None and select.select([process.stdout], [], [], 0)[0]:
                self.said = process.stdout.readline()
                until = time.perf_counter() + 1.5 * every_s  # the last readings see the end
            now = time.perf_counter_ns()
            self.readings.append(self.source.read("process", now))
            for name in self.sums:
                self.sums[name] += (self.readings[-1][name] or 0) * (now - before) / 1e9
            before = now
        self.source.close()

    def gaps(self, name: str) -> int:
        return sum(values[name] is None for values in self.readings[1:])


def test_a_process_that_burns_reads_something_each_time(start: Start) -> None:
    seen = Integral(start("burn(0.5); print()"), 0.05)

    assert seen.sums["cpu_percent"] > 0
    assert seen.readings[0]["cpu_percent"] is None
    assert seen.gaps("cpu_percent") == 0
    if sys.platform.startswith("linux"):  # no single reading is of whole ticks
        assert seen.source._table._exact  # type: ignore[union-attr]
    assert {values["processes"] for values in seen.readings} == {1}


def test_workers_that_come_and_go_leave_no_gap(start: Start) -> None:
    seen = Integral(start(WORKERS))

    assert seen.gaps("cpu_percent") == 0
    assert min(values["cpu_percent"] for values in seen.readings[1:]) >= 0
    assert seen.readings[-1]["processes"] == 1


def test_what_a_worker_writes_to_a_disk_is_seen(start: Start, tmp_path: Path) -> None:
    mounts = {Path(each.mountpoint): each.fstype for each in psutil.disk_partitions(all=True)}
    kind = next((mounts[folder] for folder in (tmp_path, *tmp_path.parents) if folder in mounts), "unknown")
    if kind in ("tmpfs", "ramfs"):
        pytest.skip(f"the test's folder is in memory: {kind}")
    seen = Integral(start(f"ended(workers([lambda: write({str(tmp_path / 'x')!r}, 10**8)])); print()"))
    (tmp_path / "x").unlink()

    if seen.readings[-1]["disk_write_bytes_per_s"] is None:
        assert seen.source.notes
        pytest.skip(seen.source.notes[0])
    assert seen.sums["disk_write_bytes_per_s"] == pytest.approx(1e8, rel=0.1)
    assert seen.gaps("disk_write_bytes_per_s") == 0


@pytest.mark.parametrize("waited_for", [False, True])
def test_the_end_of_the_process_itself_is_reported(start: Start, waited_for: bool) -> None:
    process = start("")
    source = ProcessSource(process.pid, os.getpid())
    assert source.facts("process") == {"pid": process.pid, "name": psutil.Process(process.pid).name()}
    read(source)
    process.kill()
    if waited_for:
        process.wait()
    else:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    with pytest.raises(Lost, match=f"process {process.pid} has ended"):
        read(source)
    source.close()
    process.wait()
    with pytest.raises(Absent, match=str(process.pid)):
        ProcessSource(process.pid, os.getpid())


@linux
def test_no_file_stays_open(start: Start) -> None:
    before = set(os.listdir("/proc/self/fd"))
    unattended = "signal.signal(signal.SIGCHLD, signal.SIG_IGN); "  # workers that end leave no zombie
    process = start(unattended + "print(*workers([lambda: time.sleep(60)] * 5), flush=True)")
    before |= set(os.listdir("/proc/self/fd"))
    source = ProcessSource(process.pid, os.getpid())
    go(process)
    workers = process.stdout.readline().split()
    time.sleep(0.05)  # a copy of its parent counts when it is not quite young
    source._searched_ns = 0
    read(source)
    held = len(set(os.listdir("/proc/self/fd")) - before)
    assert held >= 18
    os.kill(int(workers[0]), signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(int(workers[0])))
    read(source)
    assert len(set(os.listdir("/proc/self/fd")) - before) == held - 3
    source.close()
    assert set(os.listdir("/proc/self/fd")) - before == set()


@linux
def test_psutil_sees_the_same(start: Start) -> None:
    process = start("burn(0.1); pids = workers([lambda: time.sleep(60)] * 3); print(pids, flush=True)")
    go(process)
    process.stdout.readline()
    files, portable = ProcFiles(process.pid), Portable()
    below = files.below(process.pid, 0)
    assert len(below) == 3
    assert sorted(portable.below(process.pid, 0)) == sorted(below)
    assert sorted(portable.below(process.pid, below[0])) == sorted(below[1:])
    for pid in (process.pid, *below):
        ours, theirs = files.see(pid), portable.see(pid)
        assert ours.cpu_ns >= 0
        assert theirs.cpu_ns >= 0
        assert ours.memory_bytes == pytest.approx(theirs.memory_bytes, rel=0.02)
        assert (ours.parent, ours.ended, ours.disk_bytes) == (theirs.parent, theirs.ended, theirs.disk_bytes)
    files.close()
    files._lists_children = False  # as kernels are that were built without these lists
    assert sorted(files.below(process.pid, below[0])) == sorted(below[1:])
    assert portable.below(2**30, 0) == files.below(2**30, 0) == []
