"""One capture at a time, and never inside another profiler."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from perfnb.errors import NestedProfilerError

_running = threading.Lock()


@contextmanager
def exclusive() -> Iterator[None]:
    """Hold the one right to capture.

    Raises
    ------
    NestedProfilerError
        If a capture or any torch profiler is already running: torch's profiler does not nest, the outer
        one would silently lose its events.
    """
    if not _running.acquire(blocking=False):
        raise NestedProfilerError(
            "A step is already being profiled: perfnb cannot profile inside a profiled step; "
            "take the inner %%profile_step or profile_step() out."
        )
    try:
        if profiler_active() or _profiler_prepared():
            raise NestedProfilerError(
                "A torch profiler is already running and profilers do not nest: stop it before profiling a step."
            )
        yield
    finally:
        _running.release()


def profiler_active() -> bool:
    """Whether torch's profiler is recording in this thread."""
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]


def _profiler_prepared() -> bool:
    """Whether a torch profiler is warming up by its schedule, or records in another thread.

    torch does not tell, and a second session then crashes the process when the first one ends.
    """
    for candidate in gc.get_objects():
        if issubclass(type(candidate), torch.autograd.profiler.profile):
            entered = getattr(candidate, "entered", False)
            if entered and getattr(candidate, "kineto_results", None) is None:
                return True
    return False
