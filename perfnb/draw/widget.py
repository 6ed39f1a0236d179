"""Live views: widgets that a script in the browser draws from what they hold."""

from __future__ import annotations

import json
from typing import Any

import anywidget
import traitlets


class DrawnWidget(anywidget.AnyWidget):
    """A view of data that do not change.

    The kernel keeps every widget that was shown, so `data` is kept as JSON, a tenth of the size of the objects.
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


def json_of(value: Any) -> str:
    """Return `value` as compact JSON; unknown numbers must be ``None``."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
