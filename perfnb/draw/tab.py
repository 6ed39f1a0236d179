"""`Tab`: one part of the report, registered by the room to which it belongs."""

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
        Returns the tab's data, given the `perfnb.profile.report.Report`. The tab appears unless the data is ``None``.
    document : callable
        Makes the document from the data. The document's kind is the tab's title in lower case.
    """

    key: str
    shows: Callable[[Any], Any]
    document: Callable[[Any], Document]
