"""The live report: a widget that is drawn in the browser and never asks the kernel again."""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from perfnb.views.assets import report_script, report_style


class ReportWidget(anywidget.AnyWidget):
    """A report drawn from `data`, as `perfnb.views.report_data.report_data` gives it."""

    _esm = report_script()
    _css = report_style()
    data = traitlets.Dict().tag(sync=True)

    def __repr__(self) -> str:
        layers = self.data.get("layers", {}).get("modules", 0)
        return f"ReportWidget({self.data.get('name', '')!r}, {layers} layers)"

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        view = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        return {"application/vnd.jupyter.widget-view+json": view, "text/plain": repr(self)}, {}
