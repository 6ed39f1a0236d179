"""Nothing is left behind: one capture at a time, never inside another profiler, interrupts only where it is safe."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, TypeVar

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


#: Code in which Python would lose an exception.
_LOSES_EXCEPTIONS: set[CodeType] = set()


_Function = TypeVar("_Function", bound=Callable[..., Any])


def loses_exceptions(function: _Function) -> _Function:
    """Mark a callback of the garbage collector: an interrupt that comes while it runs waits until later."""
    _LOSES_EXCEPTIONS.add(function.__code__)
    return function


class InterruptGate:
    """Lets an interrupt through only while the user's code runs, and at most once.

    Outside `opened()` an interrupt waits until the gate is left, so that whatever was installed is removed
    first. In a thread other than the main one Python delivers no interrupts, and the gate does nothing.
    """

    def __init__(self) -> None:
        self._open = False
        self._waiting = False
        self._previous: Any = None
        self._installed = False

    def __enter__(self) -> InterruptGate:
        if threading.current_thread() is threading.main_thread():
            previous = signal.getsignal(signal.SIGINT)
            if callable(previous):
                self._previous = previous
                signal.signal(signal.SIGINT, self._handle)
                self._installed = True
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._open = False
        if self._installed:
            self._installed = False
            signal.signal(signal.SIGINT, self._previous)
        if self._waiting and exc_info[0] is None:
            self._waiting = False
            raise KeyboardInterrupt
        self._forget_handler(exc_info[2])

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Let interrupts through in this block; one that waited is raised at once."""
        if self._waiting:
            self._waiting = False
            raise KeyboardInterrupt
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def _forget_handler(self, trace: Any) -> None:
        """Let the traceback of an interrupt end in the user's code, not in the handler below."""
        while trace is not None and trace.tb_next is not None:
            if trace.tb_next.tb_frame.f_code is InterruptGate._handle.__code__:
                trace.tb_next = None
            trace = trace.tb_next

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if not self._open or (frame is not None and frame.f_code in _LOSES_EXCEPTIONS):
            self._waiting = True
            return
        # Closed before the handler raises: a second interrupt cannot cut the removal short.
        self._open = False
        previous: Callable[[int, FrameType | None], Any] = self._previous
        previous(signum, frame)
        self._open = True
