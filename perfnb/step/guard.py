"""One capture at a time, never inside another profiler, and with room for the calls that it adds to a step's own."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from perfnb.errors import NestedProfilerError

#: Nested calls that a step may need more than without perfnb. torch calls a module through one function more where
#: hooks listen, which is at most as much again; beyond some thousands C's own stack might not suffice.
_MOST_ROOM = 3000

_running = threading.Lock()
_room = threading.Lock()
_limits: list[int] = []


@contextmanager
def room_to_nest() -> Iterator[None]:
    """Let calls nest deeper than Python's limit allows: a model that runs without perfnb runs in here too.

    A limit that the step itself sets stays.
    """
    with _room:
        limit = sys.getrecursionlimit()
        if not _limits:
            sys.setrecursionlimit(limit + min(limit, _MOST_ROOM))
        _limits.append(limit)
    try:
        yield
    finally:
        with _room:
            own = _limits[0]
            _limits.pop()
            if not _limits and sys.getrecursionlimit() == own + min(own, _MOST_ROOM):
                sys.setrecursionlimit(own)


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
        with room_to_nest():
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
