"""Provide the widgets of live views, which a script in the browser draws from their data."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import anywidget
import traitlets

from perfnb.draw.as_text import document_line
from perfnb.draw.document import Document
from perfnb.draw.live import assets_of, widget_data


class DrawnWidget(anywidget.AnyWidget):
    """A view of data that does not change.

    The kernel keeps every displayed widget in memory. `data` is therefore stored as JSON, which needs a tenth of the
    memory of Python objects.
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


class DocumentWidget(DrawnWidget):
    """A document in a live notebook.

    Parameters
    ----------
    document : Document
    view_id : str
        The ID of its static twin.
    more : iterable of (str, str)
        Additional scripts with their style sheets, as paths inside the package.
    """

    def __init__(self, document: Document, view_id: str, more: Iterable[tuple[str, str]] = ()) -> None:
        self._esm, self._css = assets_of(document, more)  # a saved notebook contains them
        super().__init__(widget_data(document, view_id), f"{type(self).__name__}({document_line(document)!r})")


def json_of(value: Any) -> str:
    """Convert `value` to compact JSON. Unknown numbers must be ``None``."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
