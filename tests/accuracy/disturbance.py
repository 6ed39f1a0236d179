"""Was the machine disturbed while something was measured? Other processes, the hypervisor and the clock tell."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil

#: Cores' worth of CPU time that others may use, and a hypervisor take away, before the machine counts as disturbed.
OTHERS_CORES, STEAL_CORES = 0.1, 0.02
#: How far the pace of a fixed loop may change.
PACE_CHANGE = 0.1
_LOOP, _REPEATS = 100_000, 9


class Disturbance:
    """Looks at the machine before a check (`start`) and after it (`reason`)."""

    def start(self) -> None:
        """Remember how things stand."""
        self._pace_s = _pace_s()
        self._at_s, self._busy_s, self._steal_s, self._own_s = time.monotonic(), *_machine_s(), _own_s()

    def reason(self) -> str | None:
        """Return what disturbed the machine since `start`; ``None`` if nothing did."""
        elapsed_s = max(1e-3, time.monotonic() - self._at_s)
        busy_s, steal_s = _machine_s()
        others = (busy_s - self._busy_s - (_own_s() - self._own_s)) / elapsed_s
        stolen = (steal_s - self._steal_s) / elapsed_s
        before_s, after_s = self._pace_s, _pace_s()
        change = max(before_s, after_s) / min(before_s, after_s) - 1
        found = []
        if others > OTHERS_CORES:
            found.append(f"other processes used {others:.2f} cores")
        if stolen > STEAL_CORES:
            found.append(f"the hypervisor took {stolen:.2f} cores")
        if change > PACE_CHANGE:
            found.append(f"the pace of a fixed loop changed by {change:.0%}")
        return ", ".join(found) or None


def _pace_s() -> float:
    """Shortest time of a fixed loop: what other processes take from it does not count, a change of clock speed does."""
    times = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        for _ in range(_LOOP):
            pass
        times.append(time.perf_counter() - begin)
    return min(times)


def _machine_s() -> tuple[float, float]:
    """CPU seconds that all processes have used since the machine started, and those that the hypervisor took."""
    times = psutil.cpu_times()
    return times.user + times.system + getattr(times, "nice", 0.0), getattr(times, "steal", 0.0)


def _own_s() -> float:
    """CPU seconds of this process and everything below it, children that have ended included."""
    this = psutil.Process()
    total = 0.0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):  # it has just ended, and its parent has taken its time over
            total += sum(process.cpu_times()[:4])  # user, system, and both of children that were waited for
    return total
