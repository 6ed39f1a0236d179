"""The live panel of a watch in a notebook, fed from a thread, and its static twin in the saved notebook."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from perfnb.draw.shown import Bundle, live_bundle, twin_of
from perfnb.shell import in_notebook, print_text
from perfnb.telemetry.marks import Marks
from perfnb.watching.data import watch_data
from perfnb.watching.summary import MachineSummary
from perfnb.watching.view import watch_html, watch_text

#: Seconds between updates of the panel, and of its static twin.
_PUSHED_EVERY_S, _REFRESHED_EVERY_S = 0.25, 60.0

#: After a cell that took this long, nobody notices the second that a picture takes.
_UNNOTICED_AFTER_S = 30.0
#: The wait before an update of the twin, as a multiple of what the last one took.
_REST = 100
#: How many of the newest marks the panel gets with each update.
_MARKS_SHOWN = 100


class LivePanel:
    """One place in a notebook where a watch is shown.

    `summary` returns the current facts, `wanted` are keys of charts, and `noted` is how many of the watch's notes are
    already shown. `live` says whether readings can be shown as they arrive.
    """

    def __init__(
        self, summary: Callable[[], MachineSummary], wanted: Sequence[str] | None = None, noted: int = 0
    ) -> None:
        self.live = in_notebook()
        self._summary, self._wanted = summary, wanted
        self._id = uuid.uuid4().hex[:12]
        self._widget: Any = None
        self._twin: Any = None
        self._waiting: list[Any] = []
        self._pushed = self._refreshed = self._took_s = 0.0
        self._changes, self._noted = -1, noted

    def show(self) -> None:
        """Show the watch here: the static twin, and the panel, which hides the twin while it is live."""
        summary = self._summary()
        if not self.live:
            print_text("\n".join(watch_text(summary)))
            return
        from IPython.display import DisplayHandle, display

        self._twin = DisplayHandle(display_id=f"perfnb-{self._id}")
        bundle = live_bundle(self._make_widget, self._id)
        self._twin.display(self._bundle(summary, picture=not summary.running), raw=True)
        self._refreshed = time.monotonic()
        if bundle:
            display(bundle, raw=True)

    def push(self, rows: Sequence[Any], marks: Marks, notes: Sequence[str]) -> None:
        """Pass on the rows of a tick, none at the end; called from a thread, which may only change traits."""
        if self._widget is None:
            return
        self._waiting += rows
        now, new = time.monotonic(), list(notes[self._noted :])
        if not rows or new or now - self._pushed >= _PUSHED_EVERY_S:
            waiting, self._waiting, self._pushed = self._waiting, [], now
            changed, self._changes = marks.changes != self._changes, marks.changes
            self._noted += len(new)
            self._widget.push(waiting, marks.all(_MARKS_SHOWN) if changed else None, " ".join(new) or None)

    def reload(self) -> None:
        """Redraw everything after devices were renamed; called from a thread."""
        if self._widget is not None:
            self._widget.reload()

    def refresh(self, lasted_s: float) -> None:
        """Update the twin after a cell of `lasted_s` seconds, if the last update was long ago.

        Its picture is only redrawn if the cell took so long that nobody notices.
        """
        rest_s = max(_REFRESHED_EVERY_S, _REST * self._took_s)
        if self._twin is not None and time.monotonic() - self._refreshed > rest_s:
            start = time.monotonic()
            self._update(self._summary(), picture=lasted_s > _UNNOTICED_AFTER_S)
            self._took_s = time.monotonic() - start

    def finish(self) -> None:
        """Show that the watch has ended, and leave its whole history in the notebook."""
        summary = self._summary()
        if self._widget is not None:
            self._widget.finish(self._data(summary))
        self._update(summary, picture=True)

    def _update(self, summary: MachineSummary, *, picture: bool) -> None:
        if self._twin is not None:
            self._refreshed = time.monotonic()
            self._twin.update(self._bundle(summary, picture=picture), raw=True)

    def _make_widget(self, view_id: str) -> Any:
        from perfnb.watching.widget import WatchWidget

        self._widget = WatchWidget(self._data(self._summary()), lambda: self._data(self._summary()))
        return self._widget

    def _data(self, summary: MachineSummary) -> dict[str, Any]:
        return watch_data(summary, self._id, self._wanted)

    def _bundle(self, summary: MachineSummary, *, picture: bool) -> Bundle:
        twin = watch_html(summary, picture=picture)
        if self._widget is not None:
            twin = twin_of(self._id, twin)
        return {"text/plain": "\n".join(watch_text(summary)), "text/html": twin}
