"""Documents of `inference`."""

from __future__ import annotations

from collections.abc import Callable

from perfnb.draw.document import Document
from tests.inference.backend_samples import backends_of_times

DOCUMENTS: dict[str, Callable[[], Document]] = {
    "backends": lambda: backends_of_times(close=0.5, low=0.4, exact_slow=1.5, wrong=0.1)._document(),
}
