"""Documents of `memory`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from perfnb.draw.document import Document
from perfnb.memory.estimate.view import estimate_document
from perfnb.memory.fits import options_to_fit
from perfnb.memory.snapshot.reading import decode
from perfnb.memory.snapshot.snapshot import MemorySnapshot
from perfnb.memory.tab import memory_document
from perfnb.memory.table import MemorySummary
from perfnb.recording.schema import CATEGORIES
from tests.memory import memory_samples
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


def memory(summary: MemorySummary) -> Document:
    """Of a step with as many owners as text lists."""
    return memory_document(replace(summary, owners=summary.owners.head(8)))


LEAKS_SHOWN = ("kept", "outside", "hidden", "steady", "few", "hostile")
DOCUMENTS: dict[str, Callable[[], Document]] = {
    **{f"leaks: {name}": LEAKS[name]._document for name in LEAKS_SHOWN},
    "memory": lambda: memory(memory_samples.transformer(1, gpu=True)),
    "memory: out of memory": lambda: memory(memory_samples.out_of_memory()),
    "memory: hostile": lambda: memory(memory_samples.hostile()),
    "memory: unknown": lambda: memory_document(memory_samples.unknown()),
    "memory: empty": lambda: memory_document(memory_samples.empty()),
    "snapshot": snapshot,
    "snapshot: small": lambda: MemorySnapshot(decode(dumped(small())))._document(),
    "snapshot: hostile": lambda: MemorySnapshot(decode(dumped(strange())), HOSTILE)._document(),
    "estimate: fits": lambda: estimate(8 * 2**30, 4096),
    "estimate: does not fit": lambda: estimate(2**30, 0),
    "estimate: hostile": lambda: estimate(None, model=HOSTILE, optimizer=HOSTILE, peak_op=HOSTILE, caveat=HOSTILE),
}
