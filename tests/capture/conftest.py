"""What tests of captures share."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest


@pytest.fixture
def feeders_end(nothing_left: None) -> Iterator[None]:
    """Wait for the threads that feed a loader's workers: multiprocessing ends them a moment after the workers."""
    yield
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(5)
