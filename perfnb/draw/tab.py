"""Define `Tab`, a part of the report that is registered by the package to which it belongs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perfnb.draw.document import Document


@dataclass(frozen=True)
class Tab:
    """One part of the report.

    Attributes
    ----------
    key : str
        The name of the tab.
    shows : callable
        A function that returns the tab's data, given the `perfnb.profile.report.Report`. The tab is omitted if the data
        is ``None``.
    document : callable
        A function that creates the document from the data. The document's kind is the tab's title in lower case.
    """

    key: str
    shows: Callable[[Any], Any]
    document: Callable[[Any], Document]
