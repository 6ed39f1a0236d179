"""Define the base class of all telemetry sources."""

from __future__ import annotations

import os

from perfnb.telemetry.metrics import METRIC_WORDS

#: The values of a reading by metric, with ``None`` for metrics that could not be read.
Values = dict[str, float | None]

#: Facts about a device that do not change and can be written as JSON.
DeviceFacts = dict[str, str | int | float | bool | None]


class Absent(Exception):
    """Raised if this machine does not have a source. The message contains the reason, such as ``no NVIDIA driver``."""


class Lost(Exception):
    """Raised if a device can no longer be read. The message contains the reason. Other devices are still read."""


class Source:
    """A group of devices and their sensors.

    Creating a source raises `Absent` if there is nothing to read.

    Attributes
    ----------
    name : str
        The name of the source in messages, such as ``GPU``. Unless `devices` is overridden, it is also the key of the
        source's only device.
    notes : list of str
        Messages for the user, for example about a sensor that cannot be read. Each message appears at most once. The
        code that reads the source empties the list.
    """

    name: str

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._unreadable = set[tuple[str, str]]()

    def note_unreadable(self, device: str, metric: str, why: str) -> None:
        """Add a note that a metric of a device cannot be read, unless the same note was added before."""
        if (device, metric) not in self._unreadable:
            self._unreadable.add((device, metric))
            self.notes.append(f"{device}: {METRIC_WORDS.get(metric, 'throttle reasons')} cannot be read: {why}.")

    def devices(self) -> list[str]:
        """Return the keys of the devices."""
        return [self.name]

    def facts(self, device: str) -> DeviceFacts:
        """Return the facts about a device that do not change."""
        raise NotImplementedError

    def read(self, device: str, now_ns: int) -> Values:
        """Read a device. `now_ns` is the current time from `time.perf_counter_ns`.

        Rates cover the time since the last reading of the device.

        Raises
        ------
        Lost
            If the device is gone.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release the source's resources."""


class Rates:
    """Computes rates from counters that only increase."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, float]] = {}

    def per_second(self, counter: str, value: float | None, now_ns: int) -> float | None:
        """Return the counter's increase per second since the last call.

        The result is ``None`` on the first call, if `value` is unknown, or if the counter decreased because it was
        reset or because one of its parts no longer exists.
        """
        before = self._last.pop(counter, None)
        if value is None:
            return None
        self._last[counter] = (now_ns, value)
        if before is None or value < before[1] or now_ns <= before[0]:
            return None
        return (value - before[1]) / (now_ns - before[0]) * 1e9


def file_bytes(path: str, most: int = 1 << 22) -> bytes:
    """Return the contents of a small system file without blocking, regardless of the kind of file.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If the path is not valid.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        text = b""
        while len(text) < most and (more := os.read(descriptor, 1 << 16)):
            text += more
        return text
    finally:
        os.close(descriptor)


class KeptFiles:
    """A cache of at most `most` open files.

    Reading a file that is already open takes half the time, and always refers to the same process.
    """

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._open: dict[str, int] = {}

    def text(self, path: str, size: int = 8192) -> bytes:
        """Return the first `size` bytes of a file's current contents.

        Raises
        ------
        OSError
            If the file cannot be read, or if the process that it describes no longer exists.
        """
        descriptor = self._open.get(path)
        if descriptor is None:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            if len(self._open) >= self._most:
                try:
                    return _text(descriptor, size)
                finally:
                    os.close(descriptor)
            self._open[path] = descriptor
        try:
            return _text(descriptor, size)
        except OSError:
            self.forget(path)
            raise

    def forget(self, path: str) -> None:
        """Close a file if it is open."""
        if (descriptor := self._open.pop(path, None)) is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Close all files."""
        for path in list(self._open):
            self.forget(path)


def _text(descriptor: int, size: int) -> bytes:
    text = part = os.pread(descriptor, size, 0)
    # The kernel generates some files one page at a time, in whole rows. A result that fills less than half a page is
    # therefore complete.
    while len(part) > 2048 and len(text) < size:
        part = os.pread(descriptor, size - len(text), len(text))
        text += part
    return text
