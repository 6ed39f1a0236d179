"""Record a whole run at low cost and in bounded space: the time and the data wait of each step, and memory.

`RunRecorder.step` is called once per step and takes about a microsecond. Slower operations, such as joining rows or
reading memory, are so rare that their cost is negligible. On an accelerator, an event marks the end of each step.
Events are read after the device has passed them, so nothing ever waits for them.
"""

from __future__ import annotations

import os
import time
from array import array
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

from perfnb.loop.thinning import COLUMNS, READING_COLUMNS, WINDOW_COLUMNS, Rows, joined, rows_of
from perfnb.step.device import accelerator_in_use, accelerators, capacity_bytes
from perfnb.step.environment import place_in_job

#: The number of rows beyond which neighbouring rows are joined, and the number of steps between two checks of this
#: limit, which must be a power of two.
MOST_ROWS, _CHUNK = 100_000, 4096
#: The largest number of batches over which gradients may be accumulated.
_MOST_JOINED = 512
#: The number of values that are stored for each step until then.
_KEPT = 5
#: The nanoseconds between the first memory readings, the multiple of a reading's cost that must pass before the next
#: reading, and the number of readings beyond which every second one is dropped.
_READING_NS, _REST, MOST_READINGS = 50_000_000, 1000, 2048
#: A step's device time is unknown if the host paused before the step for more than this share of it.
_PAUSED = 0.05
#: Kinds of devices whose events can be used to measure time.
_TIMED_KINDS = ("cuda", "xpu")


@dataclass(frozen=True)
class Recorded:
    """The record of a run so far; unknown integers are -1."""

    rows: Rows  # with the columns of `COLUMNS`, excluding profiled steps
    windows: Rows  # with `WINDOW_COLUMNS`, a row for each profiled window
    readings: Rows  # with `READING_COLUMNS`
    facts: dict[str, Any]


class RunRecorder:
    """Counts the steps of a loop that other code runs.

    Parameters
    ----------
    name : str
        The name of the run in its summary.
    """

    def __init__(self, name: str = "run") -> None:
        self.name = name
        #: Whether each batch counts as a step, because no optimizer's step shows where a step ends.
        self.by_batch = False
        #: The number of batches per step, if known.
        self.batches = 1
        #: The levers tried during the run, as `RunFacts` describes them.
        self.tried: list[dict[str, Any]] = []
        #: The number of steps that had ended when the trial was over, if the remaining steps are counted from then on.
        self._tried_at: int | None = None
        self._count = 0
        self._first_ns = self._end_ns = 0
        # Parallel arrays of numbers are used because objects that are kept alive would trigger Python's garbage
        # collector.
        self._chunk, self._window = array("q"), array("q")
        self._add = self._chunk.extend
        self._rows: list[Rows] = []
        self._stride = 1
        self._choice = np.random.default_rng(5)  # separate, to leave the run's random numbers unchanged
        self._pass: str | None = None
        self._timed_ns: list[int] = []
        self._windows: list[tuple[int, ...]] = []
        self._readings: list[tuple[int, int, int, int]] = []
        self._due_ns, self._spacing_ns, self._peaks = 0, _READING_NS, [-1, -1]
        self._waits_known = False
        self._reading_cost_ns = _READING_NS
        self._loads = [0.0, 0]
        self._process = psutil.Process()
        #: The last result, and the state of the run that it belongs to.
        self._recorded: tuple[object, Recorded] | None = None
        self._device: _DeviceClock | None = None
        self._place = _place()
        _allocated_bytes()  # the first call is slow, and should not slow down the first step
        self._process.memory_info()

    def step(self, wall_ns: int, data_ns: int, begin_ns: int) -> None:
        """Count a step that has just ended.

        Parameters
        ----------
        wall_ns : int
            The step's duration, including its wait for data.
        data_ns : int
            How long the step waited for data; -1 if this is not known.
        begin_ns : int
            The time when the step began, from `time.perf_counter_ns`.
        """
        count, end_ns = self._count, begin_ns + wall_ns
        self._add((count, begin_ns, wall_ns, data_ns, begin_ns - self._end_ns))
        self._count, self._end_ns = count + 1, end_ns
        if self._device is not None:
            self._device.mark(count)
        if self._pass == "timed":
            self._timed_ns.append(wall_ns)
        if end_ns >= self._due_ns:
            self._read(end_ns)
        if not self._count & (_CHUNK - 1):
            self._fold()

    def join_first(self) -> bool:
        """Merge all steps so far into one, because they turned out to be the batches of a single step.

        Return whether this was possible, which is not the case if there are too many steps. If some of them were in a
        window, which must be closed, the merged step counts as part of the window.
        """
        if self._pass is not None or not 1 < self._count <= _MOST_JOINED:
            return False
        waits = [wait for wait in self._chunk[3::_KEPT] if wait >= 0] + [window[4] for window in self._windows]
        wall = self._end_ns - self._first_ns
        del self._chunk[:]
        if self._windows:
            self._windows = [(0, 1, 0, wall, sum(waits), 0, 0, -1)]
        else:
            self._add((0, self._first_ns, wall, sum(waits) if waits else -1, 0))
        self._count = 1
        self._readings = [(at_ns, 0, resident, allocated) for at_ns, _, resident, allocated in self._readings]
        self._device = None  # it has numbered the batches; the next memory reading creates a new one
        return True

    def enter(self, pass_name: str) -> None:
        """Mark all steps that end from now on as part of this pass of a profiled window."""
        if self._pass is None:
            self._add = self._window.extend
        self._pass = pass_name

    def leave(self, now_ns: int | None = None) -> None:
        """End the open profiled window, if any. The time since its last step is counted as part of it."""
        row = self._window_row()
        self._pass, self._add = None, self._chunk.extend
        del self._window[:], self._timed_ns[:]
        if row is None:
            return
        now_ns = time.perf_counter_ns() if now_ns is None else now_ns
        self._windows.append((*row[:5], row[5] + max(0, now_ns - self._end_ns), *row[6:]))
        self._end_ns = max(now_ns, self._end_ns)
        if self._device is not None:
            self._device.cut(self._count)

    def paused(self) -> None:
        """Count the time since the last step as part of the last profiled window."""
        now_ns = time.perf_counter_ns()
        if self._windows:
            *before, other, timed, median = self._windows[-1]
            self._windows[-1] = (*before, other + max(0, now_ns - self._end_ns), timed, median)
        self._end_ns = now_ns
        if self._device is not None:
            self._device.cut(self._count)

    def note_tried(self, tried: list[dict[str, Any]], over: bool) -> None:
        """Store the levers' results so far. Once the trial is `over`, all further steps count as remaining."""
        self.tried, self._tried_at, self._recorded = tried, self._count if over else None, None

    def recorded(self) -> Recorded:
        """Return what has been recorded so far, while the run may continue.

        The result does not change until another step ends.
        """
        state = (self._count, len(self._windows), self._pass, self.by_batch, self.batches)
        if self._recorded is None or self._recorded[0] != state:
            self._recorded = state, self._recorded_now()
        return self._recorded[1]

    def _recorded_now(self) -> Recorded:
        self._look_around()
        rows = [*self._rows, joined(self._rows_of_chunk(), self._stride, self._choice)]
        left = None if self._tried_at is None else self._count - self._tried_at
        tried = self.tried if not left else [{**one, "left": left} for one in self.tried]
        windows = self._windows + ([] if (open_window := self._window_row()) is None else [open_window])
        readings = self._readings + ([self._look(self._end_ns)] if self._count else [])
        return Recorded(
            np.concatenate(rows),
            np.array(windows, dtype=np.int64).reshape(-1, len(WINDOW_COLUMNS)),
            np.array(readings, dtype=np.int64).reshape(-1, len(READING_COLUMNS)),
            {
                "name": self.name,
                **({"by_batch": True} if self.by_batch else {}),
                **({"batches": self.batches} if self.batches > 1 and not self.by_batch else {}),
                **({"tried": tried} if tried else {}),
                "steps": self._count,
                "stride": self._stride,
                "duration_ns": self._end_ns - self._first_ns,
                "dropped_windows": dict.fromkeys(WINDOW_COLUMNS[1:6], 0),  # earlier versions kept only 4,096
                "peak_resident_bytes": self._peaks[0],
                "peak_allocated_bytes": self._peaks[1],
                "memory_bytes": capacity_bytes("cpu"),
                "load": round(self._loads[0] / self._loads[1], 2) if self._loads[1] else None,
                "cpus": os.cpu_count(),
                "waits_known": self._waits_known,
                "device": None if self._device is None else self._device.kind,
                **self._place,
            },
        )

    def _rows_of_chunk(self) -> Rows:
        if not self._chunk:
            return np.empty((0, len(COLUMNS)), dtype=np.int64)
        step, begin, wall, data, other = self._table(self._chunk)
        if step[0] == 0:
            self._first_ns = int(begin[0])
            other[0] = 0
        device = np.full(len(step), -1, dtype=np.int64)
        if self._device is not None:
            device = self._device.times_of(step)
            device[other > _PAUSED * device] = -1
        return rows_of(step, begin - self._first_ns, wall, data, other, device)

    def _table(self, numbers: array[int]) -> Rows:
        """Return the steps' figures as rows of step, begin, wall, data and other.

        The result is a copy, because the array must remain free to grow.
        """
        table: Rows = np.array(numbers, dtype=np.int64).reshape(-1, _KEPT).T
        if numbers is self._chunk:
            self._waits_known |= bool((table[3] >= 0).any())
        table[3:] = np.maximum(table[3:], 0)
        return table

    def _fold(self) -> None:
        """Convert the last steps to rows, and join rows if there are too many."""
        if self._device is not None:
            self._device.poll()
        rows = self._rows_of_chunk()
        ready = len(rows) // self._stride * self._stride
        if ready:
            self._rows.append(joined(rows[:ready], self._stride, self._choice))
            del self._chunk[: ready * _KEPT]
        if sum(map(len, self._rows)) >= MOST_ROWS:
            self._rows = [joined(np.concatenate(self._rows), 2, self._choice)]
            self._stride *= 2

    def _window_row(self) -> tuple[int, ...] | None:
        if not self._window:
            return None
        step, begin, wall, data, other = self._table(self._window)
        first = int(step[0])
        if first == 0:
            self._first_ns, other[0] = int(begin[0]), 0
        sums = (int(times.sum()) for times in (wall, data, other))
        median = int(np.median(self._timed_ns)) if self._timed_ns else -1
        return (first, len(step), int(begin[0]) - self._first_ns, *sums, len(self._timed_ns), median)

    def _read(self, now_ns: int) -> None:
        """Read memory and plan the next reading."""
        begin = time.perf_counter_ns()
        self._look_around()
        if self._device is None and accelerator_in_use():
            self._device = _device_clock()
        elif self._device is not None:
            self._device.poll()
        self._readings.append(self._look(now_ns))
        if len(self._readings) > MOST_READINGS:
            del self._readings[1::2]
            self._spacing_ns *= 2
        # This is the minimum so far, because an interrupted reading looks expensive on a busy machine.
        self._reading_cost_ns = min(self._reading_cost_ns, time.perf_counter_ns() - begin)
        self._due_ns = now_ns + max(self._spacing_ns, _REST * self._reading_cost_ns)

    def _look_around(self) -> None:
        """Record the process's rank now, because the process group may no longer exist at the end of the run."""
        place = _place()
        if place["ranks"] is not None:
            self._place = place

    def _look(self, now_ns: int) -> tuple[int, int, int, int]:
        resident = int(self._process.memory_info().rss)
        allocated = _allocated_bytes()
        self._peaks = [max(self._peaks[0], resident), max(self._peaks[1], allocated)]
        with suppress(OSError, AttributeError):  # not every system has it
            self._loads = [self._loads[0] + os.getloadavg()[0], self._loads[1] + 1]
        if not self._first_ns:
            self._first_ns = (self._chunk or self._window)[1]
        return now_ns - self._first_ns, self._count - 1, resident, allocated


class _DeviceClock:
    """Measure steps with device events at their ends, which are read once the device has passed them."""

    def __init__(self, kind: str, module: Any, index: int) -> None:
        self.kind = kind
        self._module, self._index = module, index
        self._waiting: deque[tuple[int, Any]] = deque()
        self._free: list[Any] = []
        self._last: tuple[int, Any] | None = None
        self._times: dict[int, int] = {}
        self._cut = -1

    def cut(self, step: int) -> None:
        """Record that the time of this step is unknown, because other work ran before it."""
        self._cut = step

    def mark(self, step: int) -> None:
        """Mark the end of a step on the device's current stream."""
        event = self._free.pop() if self._free else self._module.Event(enable_timing=True)
        event.record(self._module.current_stream(self._index))
        self._waiting.append((step, event))
        if len(self._waiting) > _CHUNK // 4:
            self.poll()

    def poll(self) -> None:
        """Read the events that the device has passed."""
        while self._waiting and self._waiting[0][1].query():
            step, event = self._waiting.popleft()
            if self._last is not None:
                if self._last[0] == step - 1 and step != self._cut:
                    self._times[step] = round(self._last[1].elapsed_time(event) * 1e6)
                self._free.append(self._last[1])
            self._last = step, event

    def times_of(self, steps: Rows) -> Rows:
        """Return nanoseconds from the end of the previous step to the end of each step, -1 where unknown."""
        self.poll()
        times = np.array([self._times.get(step, -1) for step in steps.tolist()], dtype=np.int64)
        first = int(steps[0])
        self._times = {step: ns for step, ns in self._times.items() if step >= first}
        return times


def _device_clock() -> _DeviceClock | None:
    """Return a clock on the only device in use; ``None`` if there are several, or if its events do not measure time."""
    used = accelerators()
    if len(used) != 1 or len(used[0].indices) != 1 or used[0].kind not in _TIMED_KINDS:
        return None
    return _DeviceClock(used[0].kind, used[0].module, used[0].indices[0])


def _allocated_bytes() -> int:
    """Return the number of bytes that tensors occupy on all accelerators in use.

    The result is -1 without an accelerator, because torch does not track tensors on the CPU.
    """
    held = [
        int(used.module.memory_allocated(index))
        for used in (accelerators() if accelerator_in_use() else ())
        if hasattr(used.module, "memory_allocated")
        for index in used.indices
    ]
    return sum(held) if held else -1


def _place() -> dict[str, int | None]:
    """Return the rank and the number of ranks if this process is one of several.

    They are taken from torch or, if it does not report them, from the launcher.
    """
    if (job := place_in_job()) is not None:
        return {"rank": job["rank"], "ranks": job["world_size"]}
    given = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")]
    if all(number.isascii() and number.isdigit() and len(number) < 9 for number in given):
        rank, ranks = map(int, given)
        if rank < ranks and ranks > 1:
            return {"rank": rank, "ranks": ranks}
    return {"rank": None, "ranks": None}
