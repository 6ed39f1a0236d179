"""`Tab`: one part of the report, as the room that it belongs to registers it."""

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
        Gets the `perfnb.profile.report.Report` and returns the data of the tab; the tab appears unless that is
        ``None``.
    document : callable
        Makes the document from the data. The document's kind is the tab's title, in lower case.
    """

    key: str
    shows: Callable[[Any], Any]
    document: Callable[[Any], Document]
