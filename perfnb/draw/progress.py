"""Show the progress of a run in a line that is updated in place and cleared at the end."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from perfnb import quantities as fmt
from perfnb.draw import escape
from perfnb.shell import in_notebook

#: The start of the pass name while a file is being read.
READING = "reading "
#: The minimum time between two updates, in seconds.
INTERVAL_S = 0.2
_MOST_OF_A_NOTE = 250


class ProgressLine(Protocol):
    """Anything that can display progress."""

    def update(self, pass_name: str, done: int, total: int | None, note: str) -> None:
        """Show how far a pass has progressed."""

    def close(self) -> None:
        """Stop showing progress."""


class Progress:
    """Context manager that displays the progress of a run's passes. It is called at every step.

    In a notebook, it shows a line of HTML, and in a terminal, it shows a bar on stderr. Elsewhere, it shows nothing. It
    does not start any threads, and it clears its output at the end.

    Parameters
    ----------
    enabled : bool
        If ``False``, nothing is shown.
    clock : callable
        A function that returns seconds, like `time.monotonic`.
    line : object, optional
        An object to show the progress instead, which must have the methods ``update(pass_name, done, total, note)`` and
        ``close()``.
    """

    def __init__(
        self, enabled: bool = True, clock: Callable[[], float] = time.monotonic, line: ProgressLine | None = None
    ) -> None:
        self._enabled = enabled
        self._clock = clock
        self._given = line
        self._line: ProgressLine | None = None

    def __enter__(self) -> Progress:
        self._line = self._given or (_line() if self._enabled else None)
        self._drawn, self._drawn_at = ("", ""), -math.inf
        return self

    def __call__(self, pass_name: str, done: int, total: int | None = None, note: str = "") -> None:
        """Report that `done` of `total` steps in a pass are done. This updates the display at most 5 times per second.

        The first call in a pass always updates it, and so does a new `note` for the user.
        """
        if self._line is None:
            return
        now = self._clock()
        if (pass_name, note) != self._drawn or now - self._drawn_at >= INTERVAL_S:
            self._drawn, self._drawn_at = (pass_name, note), now
            self._line.update(pass_name, done, total, escape.plain(note, _MOST_OF_A_NOTE))

    def of_file(self, name: str) -> Callable[[int, int], None]:
        """Return a callback for reading a file.

        The callback is called with the number of bytes read and the file's size. The progress is shown as a percentage.
        """
        return lambda done, size: self(f"{READING}{name}", 100 * done // max(size, 1), 100)

    def __exit__(self, *_: object) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()


def _line() -> _NotebookLine | _TerminalLine | None:
    if in_notebook():
        return _NotebookLine()
    return _TerminalLine() if sys.stderr is not None and sys.stderr.isatty() else None


class _NotebookLine:
    """A display that is updated using its ID and cleared at the end."""

    def __init__(self) -> None:
        from IPython.display import display

        self._handle: Any = display(_bundle("", ""), raw=True, display_id=True)

    def update(self, pass_name: str, done: int, total: int | None, note: str) -> None:
        said = words(pass_name, done, total) + (f" · {note}" if note else "")
        amount = "" if not total else f' value="{min(done, total)}" max="{total}"'
        page = (
            '<div style="display:flex;gap:10px;align-items:center">'
            f'<progress aria-label="Progress"{amount}></progress><span>{escape.html(said)}</span></div>'
        )
        self._handle.update(_bundle(said, page), raw=True)

    def close(self) -> None:
        self._handle.update(_bundle("", ""), raw=True)


class _TerminalLine:
    """A tqdm bar on stderr."""

    def __init__(self) -> None:
        from tqdm import tqdm

        class Bar(tqdm):  # type: ignore[type-arg]
            monitor_interval = 0  # on this subclass only, so that no monitor thread is started

        self._bar = Bar(leave=False, file=sys.stderr, unit="step", mininterval=0, delay=0)
        self._pass: str | None = None

    def update(self, pass_name: str, done: int, total: int | None, note: str) -> None:
        if pass_name != self._pass:
            self._pass = pass_name
            self._bar.reset(total)
            self._bar.set_description(escape.plain(fmt.PASS_WORDS.get(pass_name, pass_name), 20), refresh=False)
        self._bar.set_postfix_str(note, refresh=False)
        self._bar.total = total
        self._bar.n = done
        self._bar.refresh()

    def close(self) -> None:
        self._bar.close()


def words(pass_name: str, done: int, total: int | None) -> str:
    """Describe the current work, and how much of it is done."""
    name = escape.plain(fmt.PASS_WORDS.get(pass_name, pass_name), 40)
    if pass_name.startswith(READING):
        return f"{name}: {done} %"
    if not done:
        return name
    return f"{name}: step {done:,}" if total is None else f"{name}: step {done:,} of {total:,}"


def _bundle(words: str, page: str) -> dict[str, str]:
    return {"text/plain": words, "text/html": page}
