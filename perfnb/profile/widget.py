"""The live report.

It asks the kernel for all events of a long timeline, once, when the tab is opened; and, when *Try it* is pressed, for a
trial of a finding's lever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import traitlets

from perfnb.draw.widget import DrawnWidget
from perfnb.profile.kept_step import KeptStep
from perfnb.profile.report import report_script, report_style
from perfnb.profile.trying import Trying


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
    kept : KeptStep, optional
        The step, to try the levers of the findings on.
    """

    timeline = traitlets.Bytes().tag(sync=True)
    #: What was tried, from `perfnb.profile.trying.Trying`; empty before the first trial.
    tried = traitlets.Unicode().tag(sync=True)

    def __init__(
        self,
        data: dict[str, Any],
        timeline: bytes = b"",
        whole: Callable[[], bytes | None] | None = None,
        kept: KeptStep | None = None,
    ) -> None:
        self._whole = whole
        levers = [row["remedy"] for row in (data["findings"] or {"rows": []})["rows"] if row["remedy"]]
        self._trying = Trying(kept, levers, self._tell) if kept is not None and levers else None
        keys = [key for key, _ in data["tabs"]]
        self._esm, self._css = report_script(keys), report_style(keys)  # a saved notebook contains them
        super().__init__(data, f"ReportWidget({data['name']!r}, {data['layers']['modules']} layers)")
        self.timeline = timeline
        self.on_msg(self._answer)

    def _answer(self, _: Any, content: Any, buffers: Any) -> None:
        """Send the full timeline to a page that requests it; say whether levers can be tried here, and try one."""
        if not isinstance(content, dict):
            return
        if content.get("timeline") == "whole" and self._whole is not None:
            if (whole := self._whole()) is not None:
                self.send({"timeline": "whole"}, buffers=[whole])
        elif "try" in content and self._trying is not None:
            if content["try"] is not None:
                self._trying.press(content["try"], content.get("after"))
            elif self._trying.possible:
                self.send({"try": "ready"})

    def _tell(self, state: str) -> None:
        self.tried = state

    def close(self) -> None:
        """Close the widget and release what it holds."""
        was_open = self.comm is not None
        super().close()
        if was_open:
            self._whole, self._trying, self.timeline, self.data = None, None, b"", ""
