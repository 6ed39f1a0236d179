"""Documents of `memory`."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from perfnb.draw.document import Document
from perfnb.memory.estimate.view import estimate_document
from perfnb.memory.fits import options_to_fit
from perfnb.memory.snapshot.reading import decode
from perfnb.memory.snapshot.snapshot import MemorySnapshot
from perfnb.recording.schema import CATEGORIES
from tests.memory.leak_samples import LEAKS
from tests.memory.snapshots import dumped, small, strange, two_devices
from tests.samples import HOSTILE


def estimate(capacity: int | None, largest: int | None = None, **known: Any) -> Document:
    """Of a training step that needs 2.4 GiB."""
    held = dict(zip(CATEGORIES, (2**29, 2**29, 2**30, 0, 2**20, 3 * 2**27, 0), strict=True))
    facts = {
        "model": "Transformer", "device": "cpu", "batch_size": 32, "training": True, "optimizer": "AdamW",
        "peak_phase": "optimizer", "peak_op": "sqrt", "by_category": held, "peak_bytes": sum(held.values()),
        "caveat": None, "options": options_to_fit(held, of_optimizer=3 * 2**27, single=True, half=False),
    }  # fmt: skip
    made: Any = SimpleNamespace(**facts | known)
    return estimate_document(made, capacity, largest)


def snapshot(name: str = "step.pickle") -> Document:
    """Of two devices, one of which has a history and ran out of memory."""
    return MemorySnapshot(decode(dumped(two_devices())), name)._document()


LEAKS_SHOWN = ("kept", "outside", "hidden", "steady", "unknown", "hostile")
DOCUMENTS: dict[str, Callable[[], Document]] = {
    **{f"leaks: {name}": LEAKS[name]._document for name in LEAKS_SHOWN},
    "snapshot": snapshot,
    "snapshot: small": lambda: MemorySnapshot(decode(dumped(small())))._document(),
    "snapshot: hostile": lambda: MemorySnapshot(decode(dumped(strange())), HOSTILE)._document(),
    "estimate: fits": lambda: estimate(8 * 2**30, 4096),
    "estimate: does not fit": lambda: estimate(2**30, 0),
    "estimate: hostile": lambda: estimate(None, model=HOSTILE, optimizer=HOSTILE, peak_op=HOSTILE, caveat=HOSTILE),
}
