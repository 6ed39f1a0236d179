"""Display the live report.

When the tab with a long timeline is opened for the first time, the page requests all events from the kernel. When
*Try it* is pressed, it requests a trial of the finding's lever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import traitlets

from perfnb.draw.document import Cards, Document
from perfnb.draw.widget import DocumentWidget
from perfnb.profile.kept_step import KeptStep
from perfnb.profile.trying import Trying

_TRY_IT = ("findings/js/try.js", "findings/js/try.css")


class ReportWidget(DocumentWidget):
    """The widget that displays a report.

    Parameters
    ----------
    document : Document
        The document returned by `perfnb.profile.report.report_document`.
    view_id : str
        The identifier of the view.
    timeline : bytes
        The bytes returned by `perfnb.timeline.data.timeline_bytes`, or empty if there is no timeline. These bytes are
        stored in saved notebooks.
    whole : callable, optional
        A function that returns the bytes of all events on request, or ``None`` if they are no longer available. It is
        needed if `timeline` contains only a coarser level. The bytes are not kept.
    kept : KeptStep, optional
        The step on which the findings' levers can be tried.
    """

    timeline = traitlets.Bytes().tag(sync=True)
    #: The results of trials, as sent by `perfnb.profile.trying.Trying`. Empty before the first trial.
    tried = traitlets.Unicode().tag(sync=True)

    def __init__(
        self,
        document: Document,
        view_id: str,
        timeline: bytes = b"",
        whole: Callable[[], bytes | None] | None = None,
        kept: KeptStep | None = None,
    ) -> None:
        self._whole = whole
        sections = (section for tab in document.tabs for section in tab.sections)
        levers = [card.lever for part in sections if isinstance(part, Cards) for card in part.cards if card.lever]
        self._trying = Trying(kept, levers, self._tell) if kept is not None and levers else None
        super().__init__(document, view_id, [_TRY_IT] if self._trying is not None else [])
        self.timeline = timeline
        self.on_msg(self._answer)

    def _answer(self, _: Any, content: Any, buffers: Any) -> None:
        """Send the full timeline to a page that requests it.

        Other requests check whether levers can be tried in this kernel, start a trial, or stop it.
        """
        if not isinstance(content, dict):
            return
        if content.get("timeline") == "whole" and self._whole is not None:
            if (whole := self._whole()) is not None:
                self.send({"timeline": "whole"}, buffers=[whole])
        elif "stop" in content and self._trying is not None:
            self._trying.stop()
        elif "try" in content and self._trying is not None:
            if content["try"] is not None:
                self._trying.press(content["try"], content.get("after"))
            elif self._trying.possible:
                self.send({"try": "ready"})

    def _tell(self, state: str) -> None:
        self.tried = state

    def close(self) -> None:
        """Close the widget and release its contents."""
        was_open = self.comm is not None
        super().close()
        if was_open:
            self._whole, self._trying, self.timeline, self.data = None, None, b"", ""
