"""Documents of `remedies`."""

from __future__ import annotations

from collections.abc import Callable

from perfnb.draw.document import Document
from tests.remedies.lever_samples import lever_trials
from tests.samples import HOSTILE

DOCUMENTS: dict[str, Callable[[], Document]] = {
    "levers": lambda: lever_trials(name=HOSTILE, own_peak=3 * 2**30, fed_ms=12.0)._document(),
    "levers without a gain": lambda: lever_trials(confirmed=None)._document(),
}
