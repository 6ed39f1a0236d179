"""Documents of `launching`."""

from __future__ import annotations

from collections.abc import Callable

from perfnb.draw.document import Document

DOCUMENTS: dict[str, Callable[[], Document]] = {}
