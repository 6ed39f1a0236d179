"""Measure a watch's cost and missed readings, compared with nvitop's collector and ``nvidia-smi dmon``."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

import perfnb
from benchmarks.models import gpt
from perfnb.telemetry.watcher import Watcher

_HELD_S, _COST_S = 8, 20.0
_BUSY = "x = 0\nwhile True: x += 1"


def run() -> Iterator[str]:
    """Yield lines about the readings, the cost of the sampler, its effect on a step, and similar tools."""
    yield _ticks("GIL held in C", busy=0)
    yield _ticks("GIL held in C, with two busy processes", busy=2)
    for hertz in (10, 2):
        yield f"watching: sampler at {hertz} Hz: {_cost(1 / hertz):.2f} % of one core, with two child processes"
    yield _effect()
    yield from _peers()


def _ticks(words: str, busy: int) -> str:
    with ExitStack() as stack:
        for _ in range(busy):
            stack.callback(_end, subprocess.Popen([sys.executable, "-c", _BUSY]))
        watcher = stack.enter_context(Watcher(0.1))
        time.sleep(0.5)
        begin = watcher.now_s()
        ctypes.PyDLL(None).sleep(_HELD_S)
        end = watcher.now_s()
        time.sleep(0.5)
    times = watcher.columns()["process"]["t_s"]
    inside = times[(times >= begin) & (times <= end)]
    gaps = np.diff(inside) * 1e3
    share = len(inside) / ((end - begin) / 0.1)
    return (
        f"watching: {words} for {_HELD_S} s: {100 * share:.0f} % of the readings at 10 Hz, gaps: median "
        f"{np.median(gaps):.0f} ms, 99th percentile {np.percentile(gaps, 99):.0f} ms, longest {gaps.max():.0f} ms"
    )


def _cost(interval_s: float) -> float:
    idle = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(2)]
    try:
        with Watcher(interval_s) as watcher:
            time.sleep(_COST_S)
        meta = watcher.meta
    finally:
        for process in idle:
            _end(process)
    return float(100 * meta["sampler_cpu_s"] / meta["sampler_lived_s"])


def _effect() -> str:
    """Compare a step with a sampler at 10 Hz to the same step while the sampler is stopped."""
    step = gpt()
    with Watcher(0.1) as watcher:
        pid = watcher._process.process.pid  # type: ignore[union-attr]

        def unwatched() -> None:
            os.kill(pid, signal.SIGSTOP)
            step()

        def watched() -> None:
            os.kill(pid, signal.SIGCONT)
            step()

        try:
            test = perfnb.ab_test(unwatched, watched, budget_s=60.0)
        finally:
            os.kill(pid, signal.SIGCONT)
    return f"watching: watched step / unwatched: {test!r}"


def _peers() -> Iterator[str]:
    ours = _cost(0.1) / 100 / 10 * 1e6
    try:
        from nvitop import ResourceMetricCollector
    except ImportError:
        yield "watching: nvitop is not installed"
    else:
        collector = ResourceMetricCollector(devices=[], root_pids={os.getpid()}, interval=0.1)
        with collector(tag="all"):
            collector.collect()
            costs = [_cpu_us(collector.collect) for _ in range(50)]
        theirs = statistics.median(costs)
        both = f"{ours / theirs:.2f} ({ours:.0f} us / {theirs:.0f} us)"
        yield f"watching: CPU time per sample / nvitop's collector without a GPU: {both}"
    if shutil.which("nvidia-smi") is None:
        yield "watching: nvidia-smi is not installed"
        return
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["nvidia-smi", "dmon", "-c", "10", "-d", "1"], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    dmon = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 10 * 1e6
    yield f"watching: CPU time per sample / nvidia-smi dmon: {ours / dmon:.2f} ({ours:.0f} us / {dmon:.0f} us)"


def _cpu_us(call: object) -> float:
    time.sleep(0.12)  # if it is called earlier, it returns the values from the last call
    begin = time.thread_time()
    call()  # type: ignore[operator]
    return (time.thread_time() - begin) * 1e6


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
