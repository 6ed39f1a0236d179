"""Define the widget that displays a live watch: the history so far, and new readings as they arrive."""

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

#: Each chunk repeats earlier pushes. The first chunks repeat all of them, because a page takes a while to start
#: listening. Later chunks repeat only a few.
FIRST_PUSHES, REPEATED_PUSHES = 20, 4


class WatchWidget(DrawnWidget):
    """A live panel that draws the data from `perfnb.watching.data.panel_data` and the readings that are pushed later.

    `refreshed` returns this data including the history so far, which is needed when a page is reloaded.
    """

    _esm = script("watching/js/machine.js", "watching/js/panel.js")
    _css = style("draw/js/document.css", "watching/js/watch.css")

    chunk = traitlets.Unicode().tag(sync=True)
    _refreshed: Callable[[], dict[str, Any]] | None = None

    def __init__(self, refreshed: Callable[[], dict[str, Any]]) -> None:
        self._pushes = deque[str](maxlen=FIRST_PUSHES)
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

        This method is called from a thread. A row contains its device, its time and window in seconds, and its values
        by metric. A mark contains its name, depth, start and end.
        """
        with self._pushing:
            if self._refreshed is None:
                return
            self._pushed += 1
            earlier, self._marks = self._marks, [band_data(*mark) for mark in marks or ()] or self._marks
            new = [mark for mark in self._marks if mark not in earlier]
            said = None if note is None else escape.plain(note, 600)
            self._pushes.append(json_of([self._pushed, [row_data(*row) for row in rows], new, said]))
            repeated = FIRST_PUSHES if self._pushed <= FIRST_PUSHES else REPEATED_PUSHES
            self.chunk = f"[{','.join(list(self._pushes)[-repeated:])}]"

    def reload(self) -> None:
        """Redraw everything. This method is called from a thread."""
        self.data = self._whole()

    def _whole(self) -> str:
        """Return the data with the history so far or, if the watch has ended, the document."""
        with self._pushing:
            refreshed, pushed = self._refreshed, self._pushed
        return self.data if refreshed is None else json_of({**refreshed(), "pushed": pushed})

    def finish(self, document: Document, view_id: str) -> None:
        """Replace the panel with a document, and ignore later pushes."""
        with self._pushing:
            self._refreshed = None
            self._pushes.clear()
        self.data = json_of({**live_data(document, view_id), "running": False})
        self.chunk = ""

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> Any:
        """Return the widget's state.

        If a page requests the whole state, the state includes the history so far.
        """
        state = super().get_state(key, drop_defaults)
        return state if key is not None else state | {"data": self._whole()}
