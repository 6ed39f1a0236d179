"""The live views: widgets that are drawn in the browser and never ask the kernel again."""

from __future__ import annotations

import json
from typing import Any

import anywidget
import traitlets

from perfnb.views.assets import (
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
        super().__init__(data=json.dumps(data, allow_nan=False, separators=(",", ":")))
        self._words = words

    def __repr__(self) -> str:
        return self._words

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        view = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        return {"application/vnd.jupyter.widget-view+json": view, "text/plain": repr(self)}, {}


class ReportWidget(DrawnWidget):
    """A report drawn from what `perfnb.views.report_data.report_data` gives."""

    _esm = report_script()
    _css = report_style()

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__(data, f"ReportWidget({data['name']!r}, {data['layers']['modules']} layers)")


class ArchitecturesWidget(DrawnWidget):
    """A comparison drawn from what `perfnb.views.architectures_data.architectures_data` gives."""

    _esm = architectures_script()
    _css = architectures_style()

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__(data, f"ArchitecturesWidget({len(data['names'])} architectures)")


class ScalingWidget(DrawnWidget):
    """A study of sizes drawn from what `perfnb.views.scaling.scaling_data` gives."""

    _esm = scaling_script()
    _css = scaling_style()

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__(data, f"ScalingWidget({len(data['measured']['size'])} sizes)")
