"""Documents of `system`."""

from __future__ import annotations

from collections.abc import Callable

from perfnb.draw.document import Document
from perfnb.system.view import resolution_document, system_document
from tests.samples import HOSTILE
from tests.system.test_system_check import checks, resolution

_FOUND = checks(
    ("dark", HOSTILE, "unknown"), ("disk of the data", HOSTILE[:40], "attention"), ("swap", "none", "ok")
).checks

DOCUMENTS: dict[str, Callable[[], Document]] = {
    "system check": lambda: system_document(_FOUND, resolution(1.0, 0.01)),
    "resolution": lambda: resolution_document(resolution(1.2, 0.001)),
}
