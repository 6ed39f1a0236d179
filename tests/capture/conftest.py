"""What tests of captures share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import psutil
import pytest


@pytest.fixture
def feeders_end(nothing_left: None) -> Iterator[None]:
    """Wait for the threads that feed a loader's workers: multiprocessing ends them a moment after the workers."""
    yield
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(5)


@pytest.fixture
def workers() -> Callable[[], list[psutil.Process]]:
    """The processes that the test has started: others, such as a browser's, may be there already."""
    before = {process.pid for process in psutil.Process().children()}
    return lambda: [process for process in psutil.Process().children() if process.pid not in before]
