"""The sampler's loop: read every device at each tick and send the result through a pipe, until stopped or orphaned.

The output consists of lines of JSON, and the only input is the line ``stop``. Times are from `time.perf_counter_ns`, a
clock that all processes on a machine share and that also times the trace's steps.
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

#: The end of the parent is noticed within this many seconds.
PARENT_SEEN_S = 1.0
#: How many bytes may wait to be sent while the kernel is busy in code that holds the interpreter lock.
MOST_WAITING_BYTES = 32 * 2**20
#: At the end a last reading is taken if the previous one is at least this old; rates over less time are not meaningful.
LAST_READING_S = 0.05

_FLUSH_S = 2.0


def main(config: dict[str, Any]) -> None:
    """Run the sampler. Its process does nothing else.

    `config` contains ``interval_s``, ``parent`` and ``watched`` (the ids of the process that started this one, and of
    the watched process), and ``visible`` and ``hip_visible`` (the environment variables that hide NVIDIA and AMD GPUs,
    or ``None``).
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
    """Return the sources on this machine, and the reasons why other sources are missing."""
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
        except Exception as error:  # one failing source must not cost the others
            why = str(error) if isinstance(error, Absent) else f"cannot be read: {type(error).__name__}: {error}"
            absent[name] = _text(f"{name}: {why}")
    if any(isinstance(source, amd.AmdSource) for source in sources):
        absent.pop("GPU", None)  # an NVIDIA driver is not missed there
    return sources, absent


class Sampler:
    """Reads every device at each tick.

    Ticks are at whole multiples of the interval after the first reading, so delays do not accumulate. A tick that
    occurs during a reading is skipped and counted.
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
        """Read all devices.

        Send when the tick was due, and each device's values with the times before and after reading them.
        """
        rows: list[tuple[str, int, int, Values]] = []
        for source, device in list(self._devices):
            before = time.perf_counter_ns()
            try:
                values = source.read(device, before)
            except Exception as error:  # also a bug of ours or of a library: report it and continue with the others
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
        """Wait until a time. Return false if the sampler has to stop earlier."""
        while True:
            if os.getppid() != self._parent:
                return False
            rest = (until - time.perf_counter_ns()) / 1e9
            writers = [self._outbox.pipe] if self._outbox.waiting else []
            readable, writable, _ = select.select([0], writers, [], min(max(rest, 0.0), PARENT_SEEN_S))
            if readable:  # "stop", or the end of a pipe that nobody holds any more
                return False
            if writable:
                self._outbox.push()
            if rest <= 0:
                return True


def _plain(facts: DeviceFacts) -> DeviceFacts:
    return {name: _text(value) if isinstance(value, str) else value for name, value in facts.items()}


def _text(words: str) -> str:
    """Return text that can be sent. This is needed because, for example, a process's name may not be valid text."""
    return words.encode("utf-8", "replace").decode()


class Outbox:
    """Messages on their way to the kernel. Sending never waits."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self.waiting = bytearray()
        self.lost = 0
        os.set_blocking(pipe, False)

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message, or store it until there is room. Return false if too much is already waiting."""
        if len(self.waiting) > MOST_WAITING_BYTES:
            return False
        if self.lost and "rows" in message:
            message, self.lost = message | {"unsent": self.lost}, 0
        self.waiting += msgspec.json.encode(message) + b"\n"
        self.push()
        return True

    def push(self) -> None:
        """Write as much as the pipe accepts."""
        while self.waiting:
            try:
                done = os.write(self.pipe, self.waiting[:65536])
            except BlockingIOError:
                return
            del self.waiting[:done]

    def flush(self, most_s: float) -> None:
        """Write everything, for at most `most_s` seconds."""
        until = time.perf_counter() + most_s
        while self.waiting and (rest := until - time.perf_counter()) > 0:
            if select.select([], [self.pipe], [], rest)[1]:
                self.push()
