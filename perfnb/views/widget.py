"""The live report: a widget that is drawn in the browser and never asks the kernel again."""

from __future__ import annotations

import json
from typing import Any

import anywidget
import traitlets

from perfnb.views.assets import report_script, report_style


class ReportWidget(anywidget.AnyWidget):
    """A report drawn from what `perfnb.views.report_data.report_data` gives.

    The kernel keeps every widget that was shown, so `data` is held as JSON, a tenth of the size of the objects.
    """

    _esm = report_script()
    _css = report_style()
    data = traitlets.Unicode().tag(sync=True)

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__(data=json.dumps(data, allow_nan=False, separators=(",", ":")))
        self._words = f"ReportWidget({data['name']!r}, {data['layers']['modules']} layers)"

    def __repr__(self) -> str:
        return self._words

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        view = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        return {"application/vnd.jupyter.widget-view+json": view, "text/plain": repr(self)}, {}
