"""Define the errors that perfnb raises: one clear sentence each, with the fault, its place, and a recommendation."""

from __future__ import annotations


class PerfnbError(Exception):
    """Base of every error that perfnb raises on purpose."""

    def __str__(self) -> str:
        # A sentence may quote the name of a file, a layer or an operator, and ends up in a terminal.
        return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in super().__str__())

    def _render_traceback_(self) -> list[str]:
        """Return the text that IPython shows in place of a traceback through perfnb's own code."""
        return [f"{type(self).__name__}: {self}"]


class CaptureError(PerfnbError):
    """A step could not be captured."""


class NestedProfilerError(CaptureError):
    """Another profiler is running; torch allows one at a time."""


class BatchesExhaustedError(CaptureError):
    """The batches ended and cannot be started again."""


class TraceError(PerfnbError):
    """A trace cannot be read; the message names the file and the fault."""


class RecordingError(PerfnbError):
    """Something saved cannot be written or read; the message names the path and the fault."""


class LabError(PerfnbError):
    """An exercise, a file of results or a trace of a lab is missing or unreadable; the message names it."""
