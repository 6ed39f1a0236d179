"""Documents of `inference`."""

from __future__ import annotations

from collections.abc import Callable

from perfnb.draw.document import Document
from tests.inference.backend_samples import backends_of_times
from tests.inference.decoding_samples import decoded
from tests.inference.latency_samples import with_everything, with_tokens
from tests.samples import HOSTILE

DOCUMENTS: dict[str, Callable[[], Document]] = {
    "backends": lambda: backends_of_times(close=0.5, low=0.4, exact_slow=1.5, wrong=0.1)._document(),
    "latency": lambda: with_everything(HOSTILE)._document(),
    "latency of tokens": lambda: with_tokens()._document(),
    "decoding": lambda: decoded(0.5)._document(),
}
