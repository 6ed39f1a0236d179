"""Documents of `watching`."""

from __future__ import annotations

from collections.abc import Callable

from perfnb.draw.document import Document
from perfnb.watching.view import watch_document
from tests.watching import watch_samples as machines

DOCUMENTS: dict[str, Callable[[], Document]] = {
    "watch": lambda: watch_document(machines.laptop()),
    "watch of a server": lambda: watch_document(machines.server(60.0, 2)),
    "watch with strange names": lambda: watch_document(machines.hostile()),
    "watch of nothing": lambda: watch_document(machines.empty()),
    "watch with hardly a reading": lambda: watch_document(machines.unknown()),
    "machine": lambda: watch_document(machines.profiled(), "machine"),
}
