"""Documents of `models`."""

from __future__ import annotations

from collections.abc import Callable

from perfnb.draw.document import Document
from tests.models import architecture_samples as samples

DOCUMENTS: dict[str, Callable[[], Document]] = {
    "architectures": lambda: samples.three()._document(),
    "architectures of strange names": lambda: samples.hostile()._document(),
    "architectures of which little is known": lambda: samples.unknown()._document(),
    "one architecture": lambda: samples.one()._document(),
}
