"""Documents of `roofline`."""

from __future__ import annotations

from collections.abc import Callable

from perfnb.draw.document import Document
from perfnb.roofline.tab import roofline_document
from tests.roofline import roofline_samples as samples

DOCUMENTS: dict[str, Callable[[], Document]] = {
    "one roof": lambda: roofline_document(samples.roofline(1)),
    "two roofs": lambda: roofline_document(samples.two_roofs(1)),
    "hostile roofline": lambda: roofline_document(samples.hostile_roofline(1)),
    "roofline without ceilings": lambda: roofline_document(samples.unknown_roofline()),
}
