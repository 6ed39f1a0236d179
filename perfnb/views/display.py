"""Showing a report where the reader is: live in a notebook, static wherever that is saved, as text elsewhere."""

from __future__ import annotations

import sys
import uuid
from typing import Any

from perfnb.analysis.summary import Summary
from perfnb.views.html import summary_html
from perfnb.views.report_data import report_data
from perfnb.views.text import summary_text

_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def show(summary: Summary) -> None:
    """Show the report.

    In a notebook this makes two outputs. The first is the static twin, text and HTML without scripts, which a
    saved, exported or untrusted notebook still shows. The second is the live report, which hides its twin while
    it stands; where its model is gone, the twin hides the error that the notebook puts in its place. Elsewhere
    the text is printed.
    """
    if not in_notebook():
        print_text(summary_text(summary))
        return
    from IPython.display import display

    report_id = uuid.uuid4().hex[:12]
    live = live_bundle(report_data(summary, report_id))
    display(static_bundle(summary, report_id if live else None), raw=True)
    if live:
        display(live, raw=True)


def static_bundle(summary: Summary, report_id: str | None = None) -> dict[str, str]:
    """The report as a display bundle of text and HTML.

    Parameters
    ----------
    summary : Summary
    report_id : str, optional
        Id of the live report that follows as the next output, if one does.
    """
    page = summary_html(summary)
    if report_id is not None:
        page = f'<div class="perfnb-static-live perfnb-static-{report_id}">{page}</div>'
    return {"text/plain": summary_text(summary), "text/html": page}


def live_bundle(data: dict[str, Any]) -> dict[str, Any] | None:
    """The live report as a display bundle; ``None`` where widgets are not installed.

    The bundle holds no text: its static twin says everything, so that a front end without widgets shows nothing
    more.
    """
    try:
        from perfnb.views.widget import ReportWidget
    except ImportError:
        return None
    bundle, _ = ReportWidget(data=data)._repr_mimebundle_()
    return {_WIDGET_VIEW: bundle[_WIDGET_VIEW]}


def in_notebook() -> bool:
    """Does this code run in a Jupyter kernel? Does not import IPython where it is not in use."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return getattr(shell, "kernel", None) is not None


def print_text(text: str) -> None:
    """Print `text`, with ``?`` for characters that the terminal's encoding lacks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))
