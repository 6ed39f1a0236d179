"""How results show themselves: live in a notebook, static wherever that is saved, as text elsewhere."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfnb.files import write_text
from perfnb.shell import in_notebook, print_text

#: What a notebook shows, by mime type.
Bundle = dict[str, str]

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class Shown:
    """Mixin of results: their text where they are printed, static HTML in a notebook, one line in a list."""

    def _line(self) -> str:
        raise NotImplementedError

    def _text(self) -> str:
        raise NotImplementedError

    def _html(self) -> str:
        raise NotImplementedError

    def __str__(self) -> str:
        return self._text()

    def __repr__(self) -> str:
        return f"<perfnb.{type(self).__name__}: {self._line()}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Bundle:
        return {"text/plain": self._text(), "text/html": self._html()}


class ShownLive(Shown):
    """Mixin of results that are drawn by a script in a live notebook."""

    def _widget(self, view_id: str) -> Any:
        """Make the widget, given the ID by which it finds its static twin."""
        raise NotImplementedError

    def _ipython_display_(self) -> None:
        if in_notebook():
            show_live(self._repr_mimebundle_(), self._widget)
        else:
            print_text(self._text())


class Page:
    """Mixin of results that have a page of their own."""

    def _page(self) -> str:
        raise NotImplementedError

    def to_html(self, path: str | Path) -> Path:
        """Write all of it to one self-contained HTML file.

        Raises
        ------
        RecordingError
            If it cannot be written.
        """
        return write_text(self._page(), path)


def show_live(static: Bundle, widget_of: Callable[[str], Any]) -> None:
    """Show a view as two outputs: its static twin, then the live view, which hides the twin while it is there.

    A saved, exported or untrusted notebook still shows the twin, and the twin hides the error that the notebook puts
    in the place of a widget without a model.

    Parameters
    ----------
    static : dict of str to str
        The twin: text and HTML without scripts.
    widget_of : callable
        Makes the widget, given the ID by which it finds its twin.
    """
    from IPython.display import display

    view_id = uuid.uuid4().hex[:12]
    live = live_bundle(widget_of, view_id)
    if live:
        static = static | {"text/html": twin_of(view_id, static["text/html"])}
    display(static, raw=True)
    if live:
        display(live, raw=True)


def twin_of(view_id: str, html: str) -> str:
    """Wrap the HTML of a static twin so that its live view finds it."""
    return f'<div class="perfnb-static-live perfnb-static-{view_id}">{html}</div>'


def live_bundle(widget_of: Callable[[str], Any], view_id: str) -> dict[str, Any] | None:
    """Return a live view as a display bundle; ``None`` if widgets are not installed.

    It holds no text, so that a front end without widgets shows the static twin alone.
    """
    try:
        widget = widget_of(view_id)
    except ImportError:
        return None
    bundle, _ = widget._repr_mimebundle_()
    return {WIDGET_VIEW: bundle[WIDGET_VIEW]}
