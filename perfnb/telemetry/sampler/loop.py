"""Run the sampler's loop, which reads every device at each tick and sends the values through a pipe.

The loop ends when it is stopped or when its parent process has ended. The output consists of lines of JSON, and the
only input is the line ``stop``. Times are from `time.perf_counter_ns`. All processes on a machine share this clock, and
the steps in a trace are timed by it as well.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from perfnb.telemetry.sampler.source import Absent, DeviceFacts, Lost, Source, Values

#: The maximum number of seconds until the loop notices that its parent has ended.
PARENT_SEEN_S = 1.0
#: The maximum number of bytes waiting to be sent while the kernel is busy with code that holds the interpreter lock.
MOST_WAITING_BYTES = 32 * 2**20
#: At the end, a final reading is taken if the previous one is at least this old. Rates over a shorter time are not
#: meaningful.
LAST_READING_S = 0.05

_FLUSH_S = 2.0


def main(config: dict[str, Any]) -> None:
    """Run the sampler in a process that does nothing else.

    `config` contains ``interval_s``, ``parent`` and ``watched`` (the ids of the process that started the sampler, and
    of the watched process), and ``visible`` and ``hip_visible`` (the values of the environment variables that hide
    NVIDIA and AMD GPUs, or ``None``).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # interrupting the notebook signals the whole process group
    outbox = Outbox(1)
    sources, absent = open_sources(config)
    try:
        Sampler(sources, absent, outbox, config["interval_s"], config["parent"]).run()
    except BrokenPipeError:
        pass
    finally:
        for source in sources:
            source.close()


def open_sources(config: dict[str, Any]) -> tuple[list[Source], dict[str, str]]:
    """Open the sources that exist on this machine. Return them, and the reasons why other sources are missing."""
    from perfnb.telemetry.sampler import amd
    from perfnb.telemetry.sampler.cgroup import CgroupSource
    from perfnb.telemetry.sampler.host import HostSource
    from perfnb.telemetry.sampler.nvml import NvmlSource
    from perfnb.telemetry.sampler.process import ProcessSource

    makers: dict[str, Callable[[], Source]] = {
        "GPU": lambda: NvmlSource(config["visible"]),
        "process": lambda: ProcessSource(config["watched"], os.getpid()),
        "cgroup": CgroupSource,
        "host": HostSource,
    }
    if amd.is_likely():
        makers = {"AMD GPU": lambda: amd.AmdSource(config["hip_visible"]), **makers}
    sources: list[Source] = []
    absent: dict[str, str] = {}
    for name, make in makers.items():
        try:
            sources.append(make())
        except Exception as error:  # a failing source must not affect the others
            why = str(error) if isinstance(error, Absent) else f"cannot be read: {type(error).__name__}: {error}"
            absent[name] = _text(f"{name}: {why}")
    if any(isinstance(source, amd.AmdSource) for source in sources):
        absent.pop("GPU", None)  # a missing NVIDIA driver is not worth mentioning on such a machine
    return sources, absent


class Sampler:
    """Reads every device at each tick.

    Ticks are at whole multiples of the interval after the first reading, so delays do not accumulate. If a tick occurs
    during a reading, it is skipped, and the number of skipped ticks is recorded.
    """

    def __init__(
        self, sources: Sequence[Source], absent: dict[str, str], outbox: Outbox, interval_s: float, parent: int
    ) -> None:
        self._sources, self._absent, self._outbox, self._parent = sources, absent, outbox, parent
        self._interval_ns = round(interval_s * 1e9)
        self._devices = [(source, device) for source in sources for device in source.devices()]
        self._zero = 0

    def run(self) -> None:
        """Read until a stop is requested."""
        facts = {device: _plain(source.facts(device)) for source, device in self._devices}
        self._zero = time.perf_counter_ns()
        self._outbox.send({"hello": {"zero_ns": self._zero, "devices": facts, "absent": self._absent}})
        tick, missed = 0, 0
        start_cpu, last = time.process_time_ns(), self._zero
        while True:
            due = self._zero + tick * self._interval_ns
            going = self._wait(due)
            now = time.perf_counter_ns()
            if going or now - last >= LAST_READING_S * 1e9:
                self._read(due if going else now, missed, start_cpu)
                last = now
            if not going:
                self._outbox.flush(_FLUSH_S)
                return
            following = max(tick + 1, -((self._zero - time.perf_counter_ns()) // self._interval_ns))
            missed, tick = following - tick - 1, following

    def _read(self, due: int, missed: int, start_cpu: int) -> None:
        """Read all devices and send their values, each with the times before and after the reading.

        The message also contains the time when the tick was due.
        """
        rows: list[tuple[str, int, int, Values]] = []
        for source, device in list(self._devices):
            before = time.perf_counter_ns()
            try:
                values = source.read(device, before)
            except Exception as error:  # even if it is a bug, report it and continue with the other devices
                self._devices.remove((source, device))
                words = f"{device} can no longer be read: {type(error).__name__}: {error}"
                self._outbox.send({"lost": device, "note": _text(str(error) if isinstance(error, Lost) else words)})
            else:
                rows.append((device, before, time.perf_counter_ns(), values))
            for note in source.notes:
                self._outbox.send({"note": _text(note)})
            source.notes.clear()
        if not self._outbox.send(
            {"rows": rows, "due": due, "missed": missed, "cpu": time.process_time_ns() - start_cpu}
        ):
            self._outbox.lost += 1

    def _wait(self, until: int) -> bool:
        """Wait until a time, and return false if the sampler must stop before then."""
        while True:
            if os.getppid() != self._parent:
                return False
            rest = (until - time.perf_counter_ns()) / 1e9
            writers = [self._outbox.pipe] if self._outbox.waiting else []
            readable, writable, _ = select.select([0], writers, [], min(max(rest, 0.0), PARENT_SEEN_S))
            if readable:  # the line "stop", or the end of the pipe if no process has it open any more
                return False
            if writable:
                self._outbox.push()
            if rest <= 0:
                return True


def _plain(facts: DeviceFacts) -> DeviceFacts:
    return {name: _text(value) if isinstance(value, str) else value for name, value in facts.items()}


def _text(words: str) -> str:
    """Return text that can be encoded and sent. For example, the name of a process may not be valid text."""
    return words.encode("utf-8", "replace").decode()


class Outbox:
    """Sends messages to the kernel without ever blocking."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self.waiting = bytearray()
        self.lost = 0
        os.set_blocking(pipe, False)

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message, or store it until there is room in the pipe. Return false if too much data is waiting."""
        if len(self.waiting) > MOST_WAITING_BYTES:
            return False
        if self.lost and "rows" in message:
            message, self.lost = message | {"unsent": self.lost}, 0
        self.waiting += msgspec.json.encode(message) + b"\n"
        self.push()
        return True

    def push(self) -> None:
        """Write as much of the waiting data as the pipe accepts."""
        while self.waiting:
            try:
                done = os.write(self.pipe, self.waiting[:65536])
            except BlockingIOError:
                return
            del self.waiting[:done]

    def flush(self, most_s: float) -> None:
        """Write all waiting data, but give up after `most_s` seconds."""
        until = time.perf_counter() + most_s
        while self.waiting and (rest := until - time.perf_counter()) > 0:
            if select.select([], [self.pipe], [], rest)[1]:
                self.push()
