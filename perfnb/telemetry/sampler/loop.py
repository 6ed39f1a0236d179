"""The sampler's loop: a reading at each tick, sent down a pipe, until it is told to stop or its parent has gone.

Lines of JSON go out; what comes in is one line, ``stop``. Times are `time.perf_counter_ns`, one clock for all processes
of a machine: the trace's steps are timed by it too.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from perfnb.telemetry.sampler.source import Absent, Facts, Lost, Source, Values

#: At most so many seconds pass before the parent's end is noticed.
PARENT_SEEN_S = 1.0
#: What may wait to be sent while the kernel does not read, being busy in code that holds the interpreter lock.
MOST_WAITING_BYTES = 32 * 2**20
#: A last reading is taken at the stop if the one before is this old; rates over less say little.
LAST_READING_S = 0.05

_FLUSH_S = 2.0


def main(config: dict[str, Any]) -> None:
    """Run the sampler: what its process does.

    Parameters
    ----------
    config : dict
        ``interval_s``, ``parent`` (process id, the process that is watched), ``visible`` (the value of
        ``CUDA_VISIBLE_DEVICES``, or ``None``).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt of the notebook reaches the whole process group
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
    """The sources that this machine has, and why it lacks the others."""
    from perfnb.telemetry.sampler.cgroup import CgroupSource
    from perfnb.telemetry.sampler.host import HostSource
    from perfnb.telemetry.sampler.nvml import NvmlSource
    from perfnb.telemetry.sampler.process import ProcessSource

    makers: dict[str, Callable[[], Source]] = {
        "GPU": lambda: NvmlSource(config["visible"]),
        "process": lambda: ProcessSource(config["parent"], os.getpid()),
        "cgroup": CgroupSource,
        "host": HostSource,
    }
    sources: list[Source] = []
    absent: dict[str, str] = {}
    for name, make in makers.items():
        try:
            sources.append(make())
        except Absent as reason:
            absent[name] = _text(f"{name}: {reason}")
        except Exception as error:  # one source must not cost the others
            absent[name] = _text(f"{name}: it cannot be read: {type(error).__name__}: {error}")
    return sources, absent


class Sampler:
    """Reads every device at each tick.

    Ticks lie at whole multiples of the interval from the first reading on, so that delays do not add up. A tick that
    passes while a reading takes place is left out and counted.
    """

    def __init__(
        self, sources: Sequence[Source], absent: dict[str, str], outbox: Outbox, interval_s: float, parent: int
    ) -> None:
        self._sources, self._absent, self._outbox, self._parent = sources, absent, outbox, parent
        self._interval_ns = round(interval_s * 1e9)
        self._devices = [(source, device) for source in sources for device in source.devices()]
        self._zero = 0

    def run(self) -> None:
        """Read until told to stop."""
        facts = {device: _plain(source.facts(device)) for source, device in self._devices}
        self._zero = time.perf_counter_ns()
        self._outbox.send({"hello": {"zero_ns": self._zero, "devices": facts, "absent": self._absent}})
        tick, missed = 0, 0
        begun, last = time.process_time_ns(), self._zero
        while True:
            due = self._zero + tick * self._interval_ns
            going = self._wait(due)
            now = time.perf_counter_ns()
            if going or now - last >= LAST_READING_S * 1e9:
                self._read(due if going else now, missed, begun)
                last = now
            if not going:
                self._outbox.flush(_FLUSH_S)
                return
            following = max(tick + 1, -((self._zero - time.perf_counter_ns()) // self._interval_ns))
            missed, tick = following - tick - 1, following

    def _read(self, due: int, missed: int, begun: int) -> None:
        """Read all devices; what is sent is the delay of the tick and each device's values between two times."""
        rows: list[tuple[str, int, int, Values]] = []
        for source, device in list(self._devices):
            before = time.perf_counter_ns()
            try:
                values = source.read(device, before)
            except Lost as reason:
                self._devices.remove((source, device))
                self._outbox.send({"lost": device, "note": _text(str(reason))})
            except Exception as error:  # a fault of ours or of a library: said, and the other devices go on
                self._devices.remove((source, device))
                words = f"{device} cannot be read any longer: {type(error).__name__}: {error}"
                self._outbox.send({"lost": device, "note": _text(words)})
            else:
                rows.append((device, before, time.perf_counter_ns(), values))
            for note in source.notes:
                self._outbox.send({"note": _text(note)})
            source.notes.clear()
        if not self._outbox.send({"rows": rows, "due": due, "missed": missed, "cpu": time.process_time_ns() - begun}):
            self._outbox.lost += 1

    def _wait(self, until: int) -> bool:
        """Wait for a moment; false if the sampler shall stop before."""
        while True:
            if os.getppid() != self._parent:
                return False
            rest = (until - time.perf_counter_ns()) / 1e9
            writers = [self._outbox.pipe] if self._outbox.waiting else []
            readable, writable, _ = select.select([0], writers, [], min(max(rest, 0.0), PARENT_SEEN_S))
            if readable:  # "stop", or the end of a pipe that nobody holds any longer
                return False
            if writable:
                self._outbox.push()
            if rest <= 0:
                return True


def _plain(facts: Facts) -> Facts:
    return {name: _text(value) if isinstance(value, str) else value for name, value in facts.items()}


def _text(words: str) -> str:
    """Names that are no text, as of a process, could not be sent."""
    return words.encode("utf-8", "replace").decode()


class Outbox:
    """Messages on their way to the kernel; sending never waits for it."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self.waiting = bytearray()
        self.lost = 0
        os.set_blocking(pipe, False)

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message, or keep it until there is room; false if too much waits already."""
        if len(self.waiting) > MOST_WAITING_BYTES:
            return False
        if self.lost and "rows" in message:
            message, self.lost = message | {"unsent": self.lost}, 0
        self.waiting += msgspec.json.encode(message) + b"\n"
        self.push()
        return True

    def push(self) -> None:
        """Write what the pipe takes."""
        while self.waiting:
            try:
                done = os.write(self.pipe, self.waiting[:65536])
            except BlockingIOError:
                return
            del self.waiting[:done]

    def flush(self, most_s: float) -> None:
        """Write all, for at most `most_s` seconds."""
        until = time.perf_counter() + most_s
        while self.waiting and (rest := until - time.perf_counter()) > 0:
            if select.select([], [self.pipe], [], rest)[1]:
                self.push()
