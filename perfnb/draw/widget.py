"""The live views: widgets that are drawn in the browser from what they hold.

One thing they ask of the kernel: the whole of a long timeline, once, when its tab is opened.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anywidget
import traitlets

from perfnb.draw.assets import (
    architectures_script,
    architectures_style,
    report_script,
    report_style,
    scaling_script,
    scaling_style,
)


class DrawnWidget(anywidget.AnyWidget):
    """A view drawn from data that stay as they are.

    The kernel keeps every widget that was shown, so `data` is held as JSON, a tenth of the size of the objects.
    """

    data = traitlets.Unicode().tag(sync=True)

    def __init__(self, data: dict[str, Any], words: str) -> None:
        super().__init__(data=json_of(data))
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


def json_of(value: Any) -> str:
    """A value as compact JSON, in which no number is NaN."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
