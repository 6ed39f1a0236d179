"""The live views: widgets that are drawn in the browser from what they hold.

One thing they ask of the kernel: the whole of a long timeline, once, when its tab is opened.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import anywidget
import traitlets

from perfnb.draw import escape
from perfnb.draw.assets import (
    architectures_script,
    architectures_style,
    report_script,
    report_style,
    scaling_script,
    scaling_style,
    watch_script,
    watch_style,
)
from perfnb.watching.data import mark_data, row_data

#: A chunk repeats the pushes before it: all of the first ones, since a page takes a while to listen, later a few.
FIRST_PUSHES, REPEATED_PUSHES = 20, 4


class DrawnWidget(anywidget.AnyWidget):
    """A view drawn from data that stay as they are.

    The kernel keeps every widget that was shown, so `data` is held as JSON, a tenth of the size of the objects.
    """

    data = traitlets.Unicode().tag(sync=True)

    def __init__(self, data: dict[str, Any], words: str) -> None:
        super().__init__(data=_json(data))
        self._words = words

    def __repr__(self) -> str:
        return self._words

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        view = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        return {"application/vnd.jupyter.widget-view+json": view, "text/plain": repr(self)}, {}


class ReportWidget(DrawnWidget):
    """A report drawn from what `perfnb.profile.report_data.report_data` gives.

    Parameters
    ----------
    data : dict
    timeline : bytes
        As `perfnb.timeline.data.timeline_bytes` gives it; empty for none. A saved notebook holds it.
    whole : callable, optional
        Makes the bytes with all detail, where `timeline` has not all, for a page that asks; ``None`` where it cannot.
        Nothing holds them afterwards.
    """

    _esm = report_script(watched=False)
    _css = report_style(watched=False)

    timeline = traitlets.Bytes().tag(sync=True)

    def __init__(
        self, data: dict[str, Any], timeline: bytes = b"", whole: Callable[[], bytes | None] | None = None
    ) -> None:
        self._whole = whole
        watched, gpu = data["machine"] is not None, data["gpu"] is not None
        if watched or gpu:  # a saved notebook holds the script: one without these tabs is a third smaller
            self._esm, self._css = report_script(watched, gpu), report_style(watched, gpu)
        super().__init__(data, f"ReportWidget({data['name']!r}, {data['layers']['modules']} layers)")
        self.timeline = timeline
        self.on_msg(self._answer)

    def _answer(self, _: Any, content: Any, buffers: Any) -> None:
        """Send the whole timeline to a page that asks for it, where there is more than it has."""
        if not isinstance(content, dict) or content.get("timeline") != "whole" or self._whole is None:
            return
        if (whole := self._whole()) is not None:
            self.send({"timeline": "whole"}, buffers=[whole])

    def close(self) -> None:
        """Close the widget, which holds nothing from then on."""
        was_open = self.comm is not None
        super().close()
        if was_open:
            self._whole, self.timeline, self.data = None, b"", ""


class ArchitecturesWidget(DrawnWidget):
    """A comparison drawn from what `perfnb.models.architectures_data.architectures_data` gives."""

    _esm = architectures_script()
    _css = architectures_style()

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__(data, f"ArchitecturesWidget({len(data['names'])} architectures)")


class ScalingWidget(DrawnWidget):
    """A study of sizes drawn from what `perfnb.models.scaling_view.scaling_data` gives."""

    _esm = scaling_script()
    _css = scaling_style()

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__(data, f"ScalingWidget({len(data['measured']['size'])} sizes)")


class WatchWidget(DrawnWidget):
    """A live panel drawn from what `perfnb.watching.data.watch_data` gives, and from what is pushed afterwards.

    Parameters
    ----------
    data : dict
    refreshed : callable
        Gives `data` anew with the history until now, for a page that is loaded again.
    """

    _esm = watch_script()
    _css = watch_style()

    chunk = traitlets.Unicode().tag(sync=True)

    def __init__(self, data: dict[str, Any], refreshed: Callable[[], dict[str, Any]]) -> None:
        self._refreshed: Callable[[], dict[str, Any]] | None = None
        self._pushes: deque[str] = deque(maxlen=FIRST_PUSHES)
        self._pushed = 0
        self._marks: list[list[Any]] = []
        self._pushing = threading.Lock()
        super().__init__(data, f"WatchWidget({len(data['words'])} devices)")
        if data["state"] == "running":
            self._refreshed = refreshed

    def push(
        self,
        rows: Iterable[tuple[str, float, float | None, dict[str, float | None]]],
        marks: Iterable[tuple[str, int, float, float | None]] | None = None,
        note: str | None = None,
    ) -> None:
        """Show what was read since; called from a thread.

        Parameters
        ----------
        rows : iterable
            Device, time and window in seconds, and values by metric.
        marks : iterable, optional
            Those there are, the newest at least: name, depth, start and end (none while it lasts) in seconds.
        note : str, optional
            A sentence for the user.
        """
        with self._pushing:
            if self._refreshed is None:
                return
            self._pushed += 1
            before, self._marks = self._marks, [mark_data(*mark) for mark in marks or ()] or self._marks
            new = [mark for mark in self._marks if mark not in before]
            said = None if note is None else escape.plain(note, 600)
            self._pushes.append(_json([self._pushed, [row_data(*row) for row in rows], new, said]))
            if self._pushed > FIRST_PUSHES:
                while len(self._pushes) > REPEATED_PUSHES:
                    self._pushes.popleft()
            self.chunk = f"[{','.join(self._pushes)}]"

    def reload(self) -> None:
        """Show everything anew; called from a thread."""
        with self._pushing:
            refreshed, pushed = self._refreshed, self._pushed
        if refreshed is not None:
            self.data = _json({**refreshed(), "pushed": pushed})

    def finish(self, data: dict[str, Any]) -> None:
        """Show what there is in the end; nothing that is pushed afterwards is shown."""
        with self._pushing:
            self._refreshed = None
            self._pushes.clear()
        self.data = _json({**data, "pushed": self._pushed})
        self.chunk = ""

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> Any:
        """As every widget's; a page that asks for everything gets the history until now."""
        state = super().get_state(key, drop_defaults)
        if key is None and (refreshed := getattr(self, "_refreshed", None)) is not None:
            with self._pushing:
                pushed = self._pushed
            state["data"] = _json({**refreshed(), "pushed": pushed})
        return state


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
