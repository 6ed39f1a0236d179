"""What every source of readings has in common."""

from __future__ import annotations

from typing import Protocol

#: A reading by metric; ``None`` where a metric could not be read.
Values = dict[str, float | None]

#: What is known of a device and does not change; JSON-able.
Facts = dict[str, str | int | float | bool | None]


class Absent(Exception):
    """A source does not exist on this machine; the message says so in words, such as ``no NVIDIA driver``."""


class Lost(Exception):
    """A device can no longer be read; the message says why. Others go on."""


class Source(Protocol):
    """Some devices and what can be read of them.

    To make one raises `Absent` where there is nothing to read.

    Attributes
    ----------
    name : str
        What the source is called where it is absent: ``GPU``.
    notes : list of str
        Sentences for the user, each at most once: a field that cannot be read, say. Whoever reads the source empties
        it.
    """

    name: str
    notes: list[str]

    def devices(self) -> list[str]:
        """The keys of the devices."""

    def facts(self, device: str) -> Facts:
        """What does not change of a device."""

    def read(self, device: str, now_ns: int) -> Values:
        """Read a device; rates are over the time since it was read last.

        Parameters
        ----------
        device : str
            One of `devices`.
        now_ns : int
            The time of this reading (`time.perf_counter_ns`).

        Raises
        ------
        Lost
            If the device has gone.
        """

    def close(self) -> None:
        """Let go of what the source holds."""


class Rates:
    """Rates from counters that only grow."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, float]] = {}

    def per_second(self, counter: str, value: float | None, now_ns: int) -> float | None:
        """The counter's growth per second since it was last told.

        ``None`` at first, where `value` is unknown, and where the counter fell: it was reset, or part of what it
        counts has gone.
        """
        before = self._last.pop(counter, None)
        if value is None:
            return None
        self._last[counter] = (now_ns, value)
        if before is None or value < before[1] or now_ns <= before[0]:
            return None
        return (value - before[1]) / (now_ns - before[0]) * 1e9
