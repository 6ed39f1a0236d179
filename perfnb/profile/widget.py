"""The live report.

It makes one request to the kernel: all events of a long timeline, once, when the tab is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import traitlets

from perfnb.draw.widget import DrawnWidget
from perfnb.profile.report import report_script, report_style


class ReportWidget(DrawnWidget):
    """A report drawn from `perfnb.profile.report.report_data`.

    Parameters
    ----------
    data : dict
    timeline : bytes
        From `perfnb.timeline.data.timeline_bytes`; empty for none. A saved notebook contains it.
    whole : callable, optional
        Makes the bytes of all events on request, if `timeline` has only a coarser level; returns ``None`` if it cannot.
        They are not kept.
    """

    timeline = traitlets.Bytes().tag(sync=True)

    def __init__(
        self, data: dict[str, Any], timeline: bytes = b"", whole: Callable[[], bytes | None] | None = None
    ) -> None:
        self._whole = whole
        keys = [key for key, _ in data["tabs"]]
        self._esm, self._css = report_script(keys), report_style(keys)  # a saved notebook contains them
        super().__init__(data, f"ReportWidget({data['name']!r}, {data['layers']['modules']} layers)")
        self.timeline = timeline
        self.on_msg(self._answer)

    def _answer(self, _: Any, content: Any, buffers: Any) -> None:
        """Send the full timeline to a page that requests it."""
        if not isinstance(content, dict) or content.get("timeline") != "whole" or self._whole is None:
            return
        if (whole := self._whole()) is not None:
            self.send({"timeline": "whole"}, buffers=[whole])

    def close(self) -> None:
        """Close the widget and release what it holds."""
        was_open = self.comm is not None
        super().close()
        if was_open:
            self._whole, self.timeline, self.data = None, b"", ""
