"""Show results in a notebook: live, and by a static twin wherever the notebook is saved."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

#: The forms that a notebook shows, by mime type.
Bundle = dict[str, str]

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


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
