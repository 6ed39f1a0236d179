"""Windows that are requested from outside a running loop, by a signal or a file."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

#: Creating or touching a file of this name in the folder of the profiles requests a window.
FILE = "now"
_BETWEEN_NS = 500_000_000


class _Signal:
    """Count SIGUSR1 signals while anybody is listening, without replacing the user's own handlers."""

    def __init__(self) -> None:
        self.heard = self._listeners = 0

    def listen(self) -> bool:
        """Start listening, and return whether this is possible here."""
        number: Any = getattr(signal, "SIGUSR1", None)
        if number is None or threading.current_thread() is not threading.main_thread():
            return False
        if self._listeners == 0:
            if signal.getsignal(number) not in (signal.SIG_DFL, self._hear):  # left to another thread
                return False
            signal.signal(number, self._hear)
        self._listeners += 1
        return True

    def stop(self) -> None:
        """Stop listening. The last listener restores the signal handler."""
        number: Any = getattr(signal, "SIGUSR1", None)
        self._listeners -= 1
        here = threading.current_thread() is threading.main_thread()
        if self._listeners == 0 and here and signal.getsignal(number) == self._hear:
            signal.signal(number, signal.SIG_DFL)

    def _hear(self, *_: object) -> None:
        self.heard += 1


_SIGNAL = _Signal()


class OnDemand:
    """Inform a loop that a window has been requested.

    Parameters
    ----------
    folder : Path or None
        The folder that is checked for the file, at most twice per second.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / FILE
        self._since_ns, self._due_ns, self._heard = time.time_ns(), 0, _SIGNAL.heard
        self._listens = False

    def begin(self) -> None:
        """Listen for the signal until `end` is called, and create a folder for the file."""
        if self._file is not None:
            with suppress(OSError):  # saving will report the reason
                self._file.parent.mkdir(parents=True, exist_ok=True)
        if not self._listens:
            self._heard, self._listens = _SIGNAL.heard, _SIGNAL.listen()

    def end(self) -> None:
        """Stop listening, because the loop is over."""
        if self._listens:
            self._listens = False
            _SIGNAL.stop()

    def asked(self, now_ns: int) -> bool:
        """Return whether a window was requested since the last call.

        `now_ns` is a time from `time.perf_counter_ns`.
        """
        if _SIGNAL.heard != self._heard:
            self._heard = _SIGNAL.heard
            return self._listens
        if self._file is None or now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + _BETWEEN_NS
        try:
            touched_ns = self._file.stat().st_mtime_ns
        except OSError:
            return False
        before, self._since_ns = self._since_ns, max(self._since_ns, touched_ns)
        return touched_ns > before
