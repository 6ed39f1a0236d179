"""`Tab`: one part of the report, as the room that it belongs to registers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tab:
    """One part of the report: in the browser, in the static HTML and as text.

    Attributes
    ----------
    key : str
        Names the tab in the browser's data and script.
    title : str
        Its title in the browser.
    shows : callable
        Gets the `perfnb.profile.report.Report` and returns what the functions below draw; the tab appears unless that
        is ``None``.
    text : callable, optional
        Draws it as lines of at most so many character cells.
    html : callable, optional
        Draws it as HTML without scripts.
    data : callable, optional
        Returns what the script draws it from, ready for JSON; without data the browser has no such tab.
    script, style : str
        Paths inside the package; the script puts its maker into ``tabMakers`` of ``draw/js/tabs.js``.
    is_empty : callable, optional
        Gets the data and returns whether the tab would have nothing to show: the browser then has no such tab, but
        other tabs have its data.
    upfront : bool
        In the static HTML and as text, the tab comes before all that are not.
    """

    key: str
    title: str
    shows: Callable[[Any], Any]
    text: Callable[[Any, int], list[str]] | None = None
    html: Callable[[Any], str] | None = None
    data: Callable[[Any], Any] | None = None
    script: str = ""
    style: str = ""
    is_empty: Callable[[Any], bool] | None = None
    upfront: bool = False
