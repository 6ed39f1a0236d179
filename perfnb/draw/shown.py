"""Show results in a notebook, both as a live view and as a static twin that is saved with the notebook."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

#: A result in the formats that a notebook can display, by MIME type.
Bundle = dict[str, str]

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def show_live(static: Bundle, widget_of: Callable[[str], Any]) -> None:
    """Show a view as two outputs: a static twin, and the live view, which hides the twin while it is visible.

    A saved, exported or untrusted notebook still shows the twin. The twin also hides the error that is displayed in
    place of a widget without a model.

    Parameters
    ----------
    static : dict of str to str
        The twin, as text and as HTML without scripts.
    widget_of : callable
        A function that creates the widget, given the ID that the widget uses to find its twin.
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
    """Wrap a static twin's HTML so that its live view can find it."""
    return f'<div class="perfnb-static-live perfnb-static-{view_id}">{html}</div>'


def live_bundle(widget_of: Callable[[str], Any], view_id: str) -> dict[str, Any] | None:
    """Return a live view as a display bundle, or ``None`` if widgets are not installed.

    The bundle does not contain text, so a front end without widgets shows only the static twin.
    """
    try:
        widget = widget_of(view_id)
    except ImportError:
        return None
    bundle, _ = widget._repr_mimebundle_()
    return {WIDGET_VIEW: bundle[WIDGET_VIEW]}
