"""Define `Tab`, a part of the report that is registered by the package to which it belongs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perfnb.draw.document import Document


@dataclass(frozen=True)
class Tab:
    """One part of the report."""

    #: The name of the tab.
    key: str
    #: Returns the tab's data, given the `perfnb.profile.report.Report`. The tab is omitted if the data is ``None``.
    shows: Callable[[Any], Any]
    #: Creates the document from the data. The document's kind is the tab's title in lower case.
    document: Callable[[Any], Document]
