"""Limit the output of a repeated step to its first lines, followed by the number of lines that were left out."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

#: The number of lines that are shown immediately, and the number of last lines that are shown if the step fails.
FIRST_LINES, LAST_LINES = 10, 10
#: The number of characters that are kept from the end of an unfinished line.
LONGEST_LINE = 10_000


class StepOutput:
    """Context manager that shows the first lines of standard output and counts the remaining lines.

    After an exception, it also shows the last lines. Standard output is restored at the end, even if the step replaced
    it.
    """

    def __enter__(self) -> StepOutput:
        self._outer = sys.stdout
        self._stream = _Shortened(self._outer)
        if self._outer is not None:
            sys.stdout = self._stream
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        sys.stdout = self._outer
        if self._outer is not None:
            self._stream.finish(failed=kind is not None)


class _Shortened:
    """Wrapper around a text stream that holds back all text after the first lines."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._shown = self._hidden = 0
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._line = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the first lines, and keep track of the remaining lines."""
        rest = text
        while rest and self._shown < FIRST_LINES:
            line, end, rest = rest.partition("\n")
            self._stream.write(line + end)
            self._shown += bool(end)
        if rest:
            *lines, line = (self._line + rest).split("\n")
            self._line = line[-LONGEST_LINE:]
            self._hidden += len(lines)
            self._last.extend(lines)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several strings."""
        for line in lines:
            self.write(line)

    def finish(self, *, failed: bool) -> None:
        """Print how many lines were not shown. After a failure, also print the last of these lines."""
        if self._line:
            self._hidden += 1
            self._last.append(self._line)
        last = list(self._last) if failed else []
        left_out = self._hidden - len(last)
        if left_out:
            lines = "line" if left_out == 1 else "lines"
            self._stream.write(f"[perfnb: {left_out:,} more {lines} printed by the step]\n")
        for line in last:
            self._stream.write(line + "\n")
