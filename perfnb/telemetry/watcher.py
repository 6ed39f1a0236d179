"""The kernel's side of telemetry: start the sampler, take in what it reads, end it whatever happens."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from numbers import Real
from typing import Any

from perfnb.arguments import shown
from perfnb.errors import CaptureError
from perfnb.interrupts import InterruptGate
from perfnb.telemetry import torch_devices
from perfnb.telemetry.history import History
from perfnb.telemetry.launch import SamplerProcess

_START_S = 20.0
#: torch's allocator is read when a reading arrives; a reading that waited longer than this is no longer simultaneous.
_SIMULTANEOUS_NS = 100_000_000
#: A shorter interval costs more than it shows; NVML and the kernel's counters are no faster.
LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.02, 3600.0

#: A reading passed on: device, ``t_s``, ``window_s``, values by metric.
Row = tuple[str, float, float | None, dict[str, float | None]]


class Watcher:
    """A sampler and its readings. Ends when it is stopped, or when nobody holds it any more.

    Parameters
    ----------
    interval_s : float
        Seconds between readings.

    Attributes
    ----------
    history : History
        The readings; devices are ``host``, ``process``, ``cgroup``, and GPUs by UUID.
    notes : list of str
        Caveats for the reader.
    zero_ns : int
        The time of the first reading, where ``t_s`` is 0 (`time.perf_counter_ns`).
    renamed : int
        How often the GPUs' names changed.
    on_rows : callable or None
        Called from the watcher's thread with the rows of each tick, and with none when the sampler ends by itself.

    Raises
    ------
    TypeError, ValueError
        If the interval is not a number, or out of range.
    CaptureError
        If the sampler cannot be started.
    """

    def __init__(self, interval_s: float) -> None:
        given: Any = interval_s
        if isinstance(given, bool) or not isinstance(given, Real):
            raise TypeError(f"interval_s must be a number of seconds, not {shown(interval_s)}.")
        if not LEAST_INTERVAL_S <= interval_s <= MOST_INTERVAL_S:
            raise ValueError(
                f"interval_s must be between {LEAST_INTERVAL_S:g} and {MOST_INTERVAL_S:g} seconds, "
                f"not {shown(interval_s)}."
            )
        self.interval_s, self.zero_ns, self.renamed = float(interval_s), 0, 0
        self.history = History(1)
        self.notes: list[str] = []
        self.on_rows: Callable[[list[Row]], None] | None = None
        self._facts: dict[str, dict[str, Any]] = {}
        self._absent: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._by_torch = False
        self._ticks, self._missed, self._unsent, self._cpu_ns, self._ended_ns = 0, 0, 0, 0, 0
        self._last_ns: dict[str, int] = {}
        self._ready, self._stopping = threading.Event(), threading.Lock()
        self._process: SamplerProcess | None = None
        try:
            with InterruptGate() as gate:  # an interrupt would leave an orphan
                self._start(gate)
        except BaseException:
            self.stop()
            raise

    @property
    def running(self) -> bool:
        """Whether the sampler is still reading."""
        process = self._process
        return process is not None and not process.ended

    @property
    def meta(self) -> dict[str, Any]:
        """Facts about the run; JSON-able."""
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
            "sampler_lived_s": (end - self.zero_ns) / 1e9,
            "exact": {self._names.get(key, key): figures for key, figures in self.history.exact().items()},
        }

    def columns(self) -> dict[str, Any]:
        """The readings by device and column, devices by their current names."""
        return {self._names.get(key, key): columns for key, columns in self.history.columns().items()}

    def now_s(self) -> float:
        """The current time on the scale of `t_s`."""
        return (time.perf_counter_ns() - self.zero_ns) / 1e9

    def stop(self) -> None:
        """Take a last reading and end the sampler; does nothing if it has ended."""
        with InterruptGate(), self._stopping:
            process, self._process = self._process, None
            if process is not None:
                process.end()
                self._ended_ns = self._ended_ns or time.perf_counter_ns()
                _alive.discard(self)

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _start(self, gate: InterruptGate) -> None:
        process = self._process = SamplerProcess(self.interval_s, weakref.WeakMethod(self._take))
        _alive.add(self)
        with gate.opened():
            ready = self._ready.wait(_START_S)
        if not ready or not self._facts:
            process.end()
            with gate.opened():  # an interrupt that arrived takes precedence
                raise CaptureError(f"The sampler's process sent no reading: {process.last_words()}.")

    def _take(self, message: dict[str, Any] | None) -> None:
        """Take in a message from the sampler; ``None`` when it has ended."""
        if message is None:
            self._ended_ns = time.perf_counter_ns()
            process = self._process
            if process is not None and not process.asked_to_end and self._facts:
                said = process.last_words("")
                why = f": {said}" if said else ""
                self.notes.append(f"The sampler ended by itself after {self._ticks} readings{why}.")
                self._hand_on([])
            self._ready.set()
        elif "rows" in message:
            self._take_rows(message)
        elif "hello" in message:
            hello = message["hello"]
            self._facts, self._absent, self.zero_ns = hello["devices"], hello["absent"], hello["zero_ns"]
            self.history = History(len(self._facts))
            gpus = [key for key in self._facts if key.startswith(("GPU", "MIG"))]
            self._names = {key: f"gpu{place}" for place, key in enumerate(gpus)}
        else:
            self.notes.append(message["note"])

    def _take_rows(self, message: dict[str, Any]) -> None:
        if not self._by_torch and (names := torch_devices.names(list(self._names))):
            self.renamed += names != self._names
            self._names, self._by_torch = names, True
        self._ticks += 1
        self._missed += message["missed"]
        self._unsent += message.get("unsent", 0)
        self._cpu_ns = message["cpu"]
        started = message["rows"][0][1] if message["rows"] else message["due"]
        late_ms = max(0.0, (started - message["due"]) / 1e6)
        rows: list[Row] = []
        for key, before, after, values in message["rows"]:
            if key in self._names:
                simultaneous = time.perf_counter_ns() - after < _SIMULTANEOUS_NS
                values |= torch_devices.allocator(self._names[key], ask=self._by_torch and simultaneous)
            last = self._last_ns.get(key)
            window = None if last is None else (before - last) / 1e9
            self._last_ns[key] = before
            own = {
                "t_s": (before - self.zero_ns) / 1e9,
                "window_s": float("nan") if window is None else window,
                "read_ms": (after - before) / 1e6,
                "late_ms": late_ms,
                "missed_ticks": float(message["missed"]),
            }
            self.history.append(key, own, values)
            rows.append((self._names.get(key, key), own["t_s"], window, values))
        self._ready.set()
        self._hand_on(rows)

    def _hand_on(self, rows: list[Row]) -> None:
        if self.on_rows is None:
            return
        try:
            self.on_rows(rows)
        except Exception as error:  # a view that fails must not end the watch
            self.on_rows = None
            self.notes.append(f"The live view stopped: {type(error).__name__}: {error}")

    def forget_in_child(self) -> None:
        """In a forked process, close the pipes so that their ends are seen."""
        process, self._process = self._process, None
        if process is not None:
            process.forget_in_child()
        self._stopping = threading.Lock()  # like the history's: maybe held by a thread that does not exist here
        self.history.unlock_in_child()


_alive: weakref.WeakSet[Watcher] = weakref.WeakSet()


def running() -> int:
    """How many watchers are running in this process."""
    return sum(watcher.running for watcher in list(_alive))


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
