"""What all sources of telemetry have in common."""

from __future__ import annotations

from typing import Protocol

#: A reading by metric; ``None`` for a metric that could not be read.
Values = dict[str, float | None]

#: What is known about a device and does not change; JSON-able.
Facts = dict[str, str | int | float | bool | None]


class Absent(Exception):
    """This machine lacks a source; the message says why, such as ``no NVIDIA driver``."""


class Lost(Exception):
    """A device can no longer be read; the message says why. The others go on."""


class Source(Protocol):
    """Some devices and their sensors.

    Creating one raises `Absent` if there is nothing to read.

    Attributes
    ----------
    name : str
        What to call the source when it is missing: ``GPU``.
    notes : list of str
        Messages for the user, each at most once, such as a sensor that cannot be read. Whoever reads the source
        empties it.
    """

    name: str
    notes: list[str]

    def devices(self) -> list[str]:
        """The keys of the devices."""

    def facts(self, device: str) -> Facts:
        """What does not change about a device."""

    def read(self, device: str, now_ns: int) -> Values:
        """Read a device at a time (`time.perf_counter_ns`); rates cover the time since its last reading.

        Raises
        ------
        Lost
            If the device is gone.
        """

    def close(self) -> None:
        """Release what the source holds."""


class Rates:
    """Rates from counters that only grow."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, float]] = {}

    def per_second(self, counter: str, value: float | None, now_ns: int) -> float | None:
        """The counter's growth per second since the last call.

        ``None`` on the first call, if `value` is unknown, and if the counter fell: it was reset, or part of what it
        counts is gone.
        """
        before = self._last.pop(counter, None)
        if value is None:
            return None
        self._last[counter] = (now_ns, value)
        if before is None or value < before[1] or now_ns <= before[0]:
            return None
        return (value - before[1]) / (now_ns - before[0]) * 1e9
