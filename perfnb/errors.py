"""The exceptions that perfnb raises. Each message states what is wrong, where, and how to fix it."""

from __future__ import annotations


class PerfnbError(Exception):
    """Base class of all errors that perfnb raises deliberately."""

    def __str__(self) -> str:
        # The message may quote the name of a file, a layer or an operator, and it may be printed in a terminal.
        return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in super().__str__())

    def _render_traceback_(self) -> list[str]:
        """Return the text that IPython shows instead of a traceback through perfnb's own code."""
        return [f"{type(self).__name__}: {self}"]


class CaptureError(PerfnbError):
    """Raised when a step cannot be captured."""


class NestedProfilerError(CaptureError):
    """Raised when another profiler is already running, because torch allows only one at a time."""


class BatchesExhaustedError(CaptureError):
    """Raised when the batches run out and cannot be restarted."""


class TraceError(PerfnbError):
    """Raised when a trace cannot be read. The message names the file and explains the problem."""


class RecordingError(PerfnbError):
    """Raised when a result cannot be saved or loaded. The message names the path and explains the problem."""


class LabError(PerfnbError):
    """Raised when a lab's exercise, results file or trace is missing or unreadable. The message names it."""
