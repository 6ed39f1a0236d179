"""Telemetry of the host and the process, compared with what processes know of themselves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import perfnb
from perfnb.step import ceilings
from perfnb.telemetry.sampler import host as host_sensors
from perfnb.telemetry.sampler.host import HostSource
from perfnb.telemetry.sampler.process import Portable, ProcFiles
from perfnb.telemetry.watcher import Watcher
from tests.accuracy.judging import Figures
from tests.telemetry.nvml_stand_in import set_up, stand_in
from tests.telemetry.test_process import SCRIPT, WORKERS, Integral, Start, go, linux, start, without_files
from tests.telemetry.test_watcher import TWO_WATCHES, hold_the_interpreter, own

pytestmark = pytest.mark.usefixtures("nothing_left")

ROOT = Path(__file__).parents[2]
__all__ = ["SCRIPT", "start"]  # a fixture

BURN = """
import os, sys, time
until = time.perf_counter() + 1
while time.perf_counter() < until: pass
with open(sys.argv[1], "wb") as file:
    for _ in range(100): file.write(os.urandom(1000) * 1000)
    file.flush(); os.fsync(file.fileno())
print(time.process_time())
"""


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[dict[str, float], float, HostSource]]:
    """Yield the host's integrals over a process that burns a core and writes 100 MB, and the CPU seconds that it
    got.
    """
    source = HostSource()
    before = time.perf_counter_ns()
    source.read("host", before)
    sums: dict[str, float] = {}
    command = [sys.executable, "-S", "-c", BURN, str(tmp_path / "x")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        ended = False
        while not ended:
            time.sleep(0.1)
            ended = process.poll() is not None
            now = time.perf_counter_ns()
            for name, value in source.read("host", now).items():
                sums[name] = sums.get(name, 0) + (value or 0) * (now - before) / 1e9
            before = now
        cpu_s = float(process.communicate()[0])
    yield sums, cpu_s, source
    (tmp_path / "x").unlink()
    source.close()


def test_what_one_process_does_is_in_the_machines_figures(
    watched: tuple[dict[str, float], float, HostSource], tmp_path: Path, figure: Figures
) -> None:
    sums, cpu_s, source = watched
    missing = cpu_s - sums["cpu_percent"] / 100
    figure("CPU time of a process that the host's sensors miss", missing, at_most=0.1, unit="s")
    assert source.notes == [] or sys.platform != "linux"
    mounts = {Path(each.mountpoint): each.device for each in psutil.disk_partitions(all=True)}
    device = next((mounts[folder] for folder in (tmp_path, *tmp_path.parents) if folder in mounts), "")
    if os.path.basename(device) in source._disks():
        seen = sums["disk_write_bytes_per_s"] / 1e8
        figure("share of 100 MB written that the host's sensors see", seen, at_least=0.9, unit="%")


def test_what_is_measured_of_this_machine_is_what_psutil_says(figure: Figures) -> None:
    source = HostSource()
    memory = psutil.virtual_memory()
    apart = source.read("host", 10**9)["memory_bytes"] - (memory.total - memory.available)
    figure("memory in use, difference from psutil", abs(apart) / 2**20, at_most=100, unit="MiB")
    busy = abs(source._busy_s() - host_sensors._busy_s())
    figure("CPU time since the start, difference from psutil", busy, at_most=1, unit="s")
    source.close()


def test_a_core_that_burns_reads_what_it_got(start: Start, figure: Figures) -> None:
    seen = Integral(start("before = cpu_s(); burn(1.5); print(cpu_s() - before)"), 0.1)
    ratio = seen.sums["cpu_percent"] / 100 / float(seen.said)
    figure("CPU time of a busy process, measured / actual", ratio, within=(0.95, 1.05))


@pytest.mark.parametrize("portable", [False, pytest.param(True, marks=linux)])
def test_nothing_is_lost_when_workers_end(
    start: Start, monkeypatch: pytest.MonkeyPatch, portable: bool, figure: Figures
) -> None:
    if portable:
        without_files(monkeypatch)
    seen = Integral(start(WORKERS))
    got, name = float(seen.said), "CPU time of five workers, " + ("from psutil" if portable else "from Linux's files")
    lost = abs(seen.sums["cpu_percent"] / 100 - got)
    figure(f"{name}, error", lost, at_most=max(0.05 * got, 0.08 if portable else 0), unit="s")
    figure(f"{name}: most processes at once", max(v["processes"] for v in seen.readings), at_least=3)


@linux
def test_psutil_sees_the_same_cpu_time(start: Start, figure: Figures) -> None:
    process = start("burn(0.1); pids = workers([lambda: time.sleep(60)] * 3); print(pids, flush=True)")
    go(process)
    process.stdout.readline()
    files, portable = ProcFiles(process.pid), Portable()
    apart = [
        abs(files.see(pid).cpu_ns - portable.see(pid).cpu_ns) / 1e6
        for pid in (process.pid, *files.below(process.pid, 0))
    ]
    figure("CPU time of a process, Linux's files and psutil differ by", max(apart), at_most=30, unit="ms")
    files.close()


BURNS = """
import time, perfnb
with perfnb.watch(0.1) as w:
    time.sleep(0.25)
    begin, cpu, until = time.perf_counter(), time.process_time(), time.perf_counter() + 1.5
    with w.mark("burn"):
        while time.perf_counter() < until:
            pass
    share = 100 * (time.process_time() - cpu) / (time.perf_counter() - begin)
burnt = w.samples.query("device == 'process' and mark == 'burn'")["cpu_percent"].iloc[1:]
print(float(burnt.mean()), share)
"""


def test_a_burning_process_reads_what_it_got(figure: Figures) -> None:
    """Against its own clock, for other programs may take the cores; this process may have a browser below it."""
    done = subprocess.run([sys.executable, "-c", BURNS], capture_output=True, text=True, cwd=ROOT)
    read, share = map(float, done.stdout.split())
    figure("CPU use of a watched process, error", abs(read - share) / 100, at_most=0.05, unit="%")


def test_ticks_are_kept_while_this_process_holds_the_interpreter(figure: Figures) -> None:
    with Watcher(0.1) as watcher:
        begin = watcher.now_s()
        hold_the_interpreter(3)
        end = watcher.now_s()

    times = own(watcher, "t_s")
    kept = ((times > begin) & (times < end)).sum() / 30
    figure("readings kept while a step holds the GIL", float(kept), at_least=0.9, unit="%")
    # Ticks lie at whole multiples of the interval from the first one on, also behind a delay.
    figure("delay of a reading (median)", float(np.median(own(watcher, "late_ms")[:-1])), at_most=20, unit="ms")


def test_one_watch_does_not_count_another(figure: Figures) -> None:
    done = subprocess.run([sys.executable, "-c", TWO_WATCHES], capture_output=True, text=True, cwd=ROOT)
    _, cpu_s, own_s = map(float, done.stdout.split())
    # The other's process needs 0.1 s of CPU time to start, and its parent took that over when it ended.
    figure("CPU time of a process with two watches, error", abs(cpu_s - own_s), at_most=0.04, unit="s")


def test_energy_is_a_difference_of_the_counter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Figures
) -> None:
    for name, value in stand_in(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    set_up(tmp_path, {"0.energy": "1000000+250000/s", "0.power": 250000})
    with perfnb.watch(0.05) as w:
        time.sleep(1.4)
    first = w.samples[w.samples["device"] == "gpu0"]
    expected = 250 * float(first["t_s"].iloc[-1] - first["t_s"].iloc[0])
    total = float(w.summary().loc[("gpu0", "energy_j"), "total"])
    figure("energy of a simulated GPU / power × time", total / expected, within=(0.95, 1.05))


def test_what_other_programs_use_is_seen(figure: Figures) -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.3)
        with ceilings._Others() as others:
            time.sleep(0.5)
    finally:
        busy.kill()
        busy.wait()
    cores = others.share * (os.cpu_count() or 1)
    figure("cores used by another program, as seen (it uses one)", cores, at_least=0.3)
