"""Documents of `memory`."""

from __future__ import annotations

from collections.abc import Callable

from perfnb.draw.document import Document
from tests.memory.leak_samples import LEAKS

DOCUMENTS: dict[str, Callable[[], Document]] = {
    **{
        f"leaks: {name}": LEAKS[name]._document
        for name in ("kept", "outside", "hidden", "steady", "unknown", "hostile")
    },
}
