"""The kernel's side of the sampler: start its process, take in what it reads, end it whatever happens."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from perfnb.capture import torch_devices
from perfnb.capture.gate import InterruptGate
from perfnb.capture.history import History
from perfnb.errors import CaptureError

#: What the sampler's process runs. Its modules come from where this process has its own, never from the folder that
#: the notebook lies in.
_BOOT = (
    "import sys, json, warnings; config = json.loads(sys.argv[1]); sys.path[:] = config['path']; "
    "warnings.simplefilter('ignore'); from perfnb.capture.sampler.loop import main; main(config)"
)
_START_S, _STOP_S = 20.0, 5.0
#: torch's allocator is read when a reading arrives; one that had to wait longer is not beside it in time any more.
_BESIDE_NS = 100_000_000
#: An interval below this costs more than it tells; NVML and the kernel's counters are no faster.
LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.02, 3600.0

#: A reading as it is handed on: device, ``t_s``, ``window_s``, values by metric.
Row = tuple[str, float, float | None, dict[str, float | None]]


class Watcher:
    """A sampler and what it has read.

    Parameters
    ----------
    interval_s : float
        Seconds between readings.
    zero_ns : int, optional
        The time from which ``t_s`` counts (`time.perf_counter_ns`); by default that of the first reading.

    Attributes
    ----------
    history : History
        The readings; devices are named ``host``, ``process``, ``cgroup``, ``gpu0`` ...
    notes : list of str
        What the reader of the figures must know.
    on_rows : callable or None
        Called from a thread of the watcher's own with the rows of each tick.

    Raises
    ------
    ValueError
        If the interval is out of bounds.
    CaptureError
        If the sampler cannot be started.
    """

    def __init__(self, interval_s: float, zero_ns: int | None = None) -> None:
        if not LEAST_INTERVAL_S <= interval_s <= MOST_INTERVAL_S:
            raise ValueError(
                f"interval_s must lie between {LEAST_INTERVAL_S:g} and {MOST_INTERVAL_S:g} seconds, not {interval_s:g}."
            )
        self.interval_s, self.zero_ns = float(interval_s), zero_ns
        self.notes: list[str] = []
        self.on_rows: Callable[[list[Row]], None] | None = None
        self._facts: dict[str, dict[str, Any]] = {}
        self._absent: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._by_torch = False
        self._ticks, self._missed, self._unsent, self._cpu_ns = 0, 0, 0, 0
        self._last_ns: dict[str, int] = {}
        self._ready, self._stopping = threading.Event(), False
        self._began_ns = self._ended_ns = 0
        self._process: subprocess.Popen[bytes] | None = None
        with InterruptGate():  # an interrupt in here would leave a process that nobody knows
            self._start()

    @property
    def running(self) -> bool:
        """Whether readings still come."""
        return self._process is not None and self._thread.is_alive()

    @property
    def meta(self) -> dict[str, Any]:
        """What was found out about the run; JSON-able."""
        end = self._ended_ns or time.perf_counter_ns()
        return {
            "running": self.running,
            "interval_s": self.interval_s,
            "devices": {self._names.get(key, key): facts for key, facts in self._facts.items()},
            "absent": dict(self._absent),
            "notes": list(self.notes),
            "ticks": self._ticks,
            "missed": self._missed,
            "unsent": self._unsent,
            "sampler_cpu_s": self._cpu_ns / 1e9,
            "sampler_lived_s": (end - self._began_ns) / 1e9,
        }

    def now_s(self) -> float:
        """The time now as `t_s` counts it."""
        return (time.perf_counter_ns() - (self.zero_ns or 0)) / 1e9

    def stop(self) -> None:
        """Take a last reading and end the sampler; nothing to do if it has ended."""
        with InterruptGate():
            process, self._stopping = self._process, True
            if process is None:
                return
            assert process.stdin is not None
            try:
                process.stdin.write(b"stop\n")
                process.stdin.close()
            except OSError:
                pass  # it has ended by itself
            self._thread.join(_STOP_S)
            self._end()

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _start(self) -> None:
        config = {
            "path": _path(),
            "interval_s": self.interval_s,
            "parent": os.getpid(),
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }
        command = [sys.executable, "-P", "-s", "-S", "-c", _BOOT, json.dumps(config)]
        with tempfile.TemporaryFile() as complaints:
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, bufsize=0
                )
            except OSError as error:
                raise CaptureError(f"The sampler's process cannot be started: {error}.") from error
            _enlarge(self._process.stdout)
            self._thread = threading.Thread(target=self._receive, name="perfnb-watch", daemon=True)
            self._thread.start()
            _alive.add(self)
            if not self._ready.wait(_START_S) or not self._facts:
                self._process.kill()
                self._thread.join(_STOP_S)
                self._end()
                complaints.seek(0)
                said = complaints.read().decode(errors="replace").strip().splitlines()
                raise CaptureError(f"The sampler's process gave no reading: {said[-1] if said else 'it said nothing'}.")

    def _end(self) -> None:
        """Let go of the process, which has ended or ends now."""
        process, self._process = self._process, None
        if process is None:
            return
        self._ended_ns = self._ended_ns or time.perf_counter_ns()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        _alive.discard(self)

    def _receive(self) -> None:
        """What the thread does: take in messages until the sampler ends."""
        assert self._process is not None
        assert self._process.stdout is not None
        pipe, rest = self._process.stdout.fileno(), b""
        while chunk := os.read(pipe, 1 << 20):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._take(msgspec.json.decode(line))
        self._ended_ns = time.perf_counter_ns()
        if not self._stopping and self._facts:
            self.notes.append(f"The sampler ended by itself after {self._ticks} readings.")
        self._ready.set()

    def _take(self, message: dict[str, Any]) -> None:
        if "rows" in message:
            self._take_rows(message)
        elif "hello" in message:
            hello = message["hello"]
            self._facts, self._absent = hello["devices"], hello["absent"]
            self._began_ns = hello["zero_ns"]
            self.zero_ns = hello["zero_ns"] if self.zero_ns is None else self.zero_ns
            self.history = History(len(self._facts))
            gpus = [key for key in self._facts if key.startswith(("GPU", "MIG"))]
            self._names = {key: f"gpu{place}" for place, key in enumerate(gpus)}
        else:
            self.notes.append(message["note"])

    def _take_rows(self, message: dict[str, Any]) -> None:
        if not self._by_torch and (names := torch_devices.names(list(self._names))):
            self._names, self._by_torch = names, True
        self._ticks += 1
        self._missed += message["missed"]
        self._unsent += message.get("unsent", 0)
        self._cpu_ns = message["cpu"]
        rows: list[Row] = []
        begun = message["rows"][0][1] if message["rows"] else message["due"]
        late_ms = max(0.0, (begun - message["due"]) / 1e6)
        for key, before, after, values in message["rows"]:
            if key in self._names:
                beside = time.perf_counter_ns() - after < _BESIDE_NS
                values |= torch_devices.allocator(self._names[key], ask=self._by_torch and beside)
            last = self._last_ns.get(key)
            window = None if last is None else (before - last) / 1e9
            self._last_ns[key] = before
            own = {
                "t_s": (before - (self.zero_ns or 0)) / 1e9,
                "window_s": float("nan") if window is None else window,
                "read_ms": (after - before) / 1e6,
                "late_ms": late_ms,
                "missed_ticks": float(message["missed"]),
            }
            self.history.append(key, own, values)
            rows.append((self._names.get(key, key), own["t_s"], window, values))
        self._ready.set()
        if self.on_rows is not None:
            try:
                self.on_rows(rows)
            except Exception as error:  # a view that fails must not end the watch
                self.on_rows = None
                self.notes.append(f"The live view stopped: {type(error).__name__}: {error}")

    def columns(self) -> dict[str, Any]:
        """The readings by device and column, devices by the names that they have now."""
        return {self._names.get(key, key): columns for key, columns in self.history.columns().items()}

    def forget_in_child(self) -> None:
        """A forked process has no part in the watch: it lets go of the pipes, so that their ends are seen."""
        process, self._process = self._process, None
        if process is not None:
            process.returncode = 0  # not its child to wait for
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self.history.unlock_in_child()


def _path() -> list[str]:
    here = str(Path(__file__).resolve().parents[2])
    current = {"", os.getcwd()} - {here}
    return [*(entry for entry in sys.path if entry not in current and entry != here), here]


def _enlarge(pipe: Any) -> None:
    """Room for readings that come while this process holds the interpreter lock."""
    try:
        import fcntl

        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, 1 << 20)
    except (ImportError, AttributeError, OSError):
        pass  # the sampler keeps what does not fit


_alive: weakref.WeakSet[Watcher] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for watcher in list(_alive):
        watcher.stop()


def _forget_all_in_child() -> None:
    for watcher in list(_alive):
        watcher.forget_in_child()
    _alive.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all_in_child)
