"""One capture at a time, never inside another profiler, with a higher recursion limit for the calls that hooks add."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from perfnb.errors import NestedProfilerError

#: Most extra nested calls. With hooks, torch calls each module through one more function, so at most twice as many
#: calls nest; thousands more could overflow the C stack.
_MOST_ROOM = 3000

_running = threading.Lock()
_room = threading.Lock()
_limits: list[int] = []


@contextmanager
def room_to_nest() -> Iterator[None]:
    """Raise Python's recursion limit, so that a deep model runs here if it runs without perfnb.

    A limit set by the step itself is kept.
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
    """Allow one capture at a time.

    Raises
    ------
    NestedProfilerError
        If a capture or a torch profiler is already running. torch's profiler does not nest: the outer one would
        silently lose its events.
    """
    if not _running.acquire(blocking=False):
        raise NestedProfilerError(
            "A step is already being profiled, and profilers do not nest: remove the inner %%profile_step or "
            "profile_step()."
        )
    try:
        if profiler_active() or _profiler_prepared():
            raise NestedProfilerError(
                "A torch profiler is already running, and profilers do not nest: stop it before profiling a step."
            )
        with room_to_nest():
            yield
    finally:
        _running.release()


def profiler_active() -> bool:
    """Whether torch's profiler is recording this thread."""
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]


def _profiler_prepared() -> bool:
    """Whether a torch profiler is in the warm-up of its schedule, or records another thread.

    torch has no API for this, and a second session would crash the process when the first one ends.
    """
    for candidate in gc.get_objects():
        if issubclass(type(candidate), torch.autograd.profiler.profile):
            entered = getattr(candidate, "entered", False)
            if entered and getattr(candidate, "kineto_results", None) is None:
                return True
    return False
