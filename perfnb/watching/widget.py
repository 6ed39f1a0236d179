"""The widget that shows a live watch: the history so far, and new readings as they arrive."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import traitlets

from perfnb.draw import escape
from perfnb.draw.assets import script, style
from perfnb.draw.document import Document
from perfnb.draw.live import live_data
from perfnb.draw.widget import DrawnWidget, json_of
from perfnb.watching.data import band_data, row_data

#: A chunk repeats earlier pushes: at first all of them, since a page takes a while to start listening, later a few.
FIRST_PUSHES, REPEATED_PUSHES = 20, 4


class WatchWidget(DrawnWidget):
    """A live panel that draws `perfnb.watching.data.panel_data` and the readings that are pushed afterwards.

    `refreshed` returns this data with the history so far, including for a page that is reloaded.
    """

    _esm = script("watching/js/machine.js", "watching/js/panel.js")
    _css = style("draw/js/document.css", "watching/js/watch.css")

    chunk = traitlets.Unicode().tag(sync=True)

    def __init__(self, refreshed: Callable[[], dict[str, Any]]) -> None:
        self._refreshed: Callable[[], dict[str, Any]] | None = None
        self._pushes: deque[str] = deque(maxlen=FIRST_PUSHES)
        self._pushed = 0
        self._marks: list[list[Any]] = []
        self._pushing = threading.Lock()
        super().__init__(refreshed(), "WatchWidget()")
        self._refreshed = refreshed

    def push(
        self,
        rows: Iterable[tuple[str, float, float | None, dict[str, float | None]]],
        marks: Iterable[tuple[str, int, float, float | None]] | None = None,
        note: str | None = None,
    ) -> None:
        """Display new readings, at least the newest of the changed marks, and a note.

        This is called from a thread. A row contains its device, its time and window in seconds, and values by metric. A
        mark contains its name, depth, start and end.
        """
        with self._pushing:
            if self._refreshed is None:
                return
            self._pushed += 1
            earlier, self._marks = self._marks, [band_data(*mark) for mark in marks or ()] or self._marks
            new = [mark for mark in self._marks if mark not in earlier]
            said = None if note is None else escape.plain(note, 600)
            self._pushes.append(json_of([self._pushed, [row_data(*row) for row in rows], new, said]))
            if self._pushed > FIRST_PUSHES:
                while len(self._pushes) > REPEATED_PUSHES:
                    self._pushes.popleft()
            self.chunk = f"[{','.join(self._pushes)}]"

    def reload(self) -> None:
        """Redraw everything. This is called from a thread."""
        with self._pushing:
            refreshed, pushed = self._refreshed, self._pushed
        if refreshed is not None:
            self.data = json_of({**refreshed(), "pushed": pushed})

    def finish(self, document: Document, view_id: str) -> None:
        """Display a document in place of the panel, and ignore later pushes."""
        with self._pushing:
            self._refreshed = None
            self._pushes.clear()
        self.data = json_of({**live_data(document, view_id), "running": False})
        self.chunk = ""

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> Any:
        """Return the state, like every widget.

        A page that requests the whole state also gets the history so far.
        """
        state = super().get_state(key, drop_defaults)
        if key is None and (refreshed := getattr(self, "_refreshed", None)) is not None:
            with self._pushing:
                pushed = self._pushed
            state["data"] = json_of({**refreshed(), "pushed": pushed})
        return state
