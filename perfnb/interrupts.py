"""Deliver interrupts only where it is safe to do so. This ensures that perfnb's hooks are always removed."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, TypeVar

#: Code where Python discards exceptions.
_LOSES_EXCEPTIONS: set[CodeType] = set()

_Function = TypeVar("_Function", bound=Callable[..., Any])


def loses_exceptions(function: _Function) -> _Function:
    """Mark a function as a garbage collector callback. Interrupts are deferred while it runs."""
    _LOSES_EXCEPTIONS.add(function.__code__)
    return function


class InterruptGate:
    """Context manager that delivers an interrupt only while the user's code runs, and at most once.

    Outside `opened()`, an interrupt is deferred until the gate exits, so that all hooks are removed first. Python
    discards an interrupt that is raised in a finalizer, a weak reference's callback or a garbage collector callback.
    Such interrupts are also deferred. Only the main thread receives interrupts, so the gate does nothing in other
    threads.
    """

    def __init__(self) -> None:
        self._open = False
        self._waiting = False
        self._previous: Any = None
        self._previous_hook: Any = None
        self._installed = False

    def __enter__(self) -> InterruptGate:
        if threading.current_thread() is threading.main_thread():
            previous = signal.getsignal(signal.SIGINT)
            if callable(previous):
                self._previous = previous
                self._previous_hook, sys.unraisablehook = sys.unraisablehook, self._dropped
                signal.signal(signal.SIGINT, self._handle)
                self._installed = True
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._open = False
        if self._installed:
            self._installed = False
            sys.unraisablehook = self._previous_hook  # first: the user's handler may raise once it is back
            signal.signal(signal.SIGINT, self._previous)
        if self._waiting and exc_info[0] is None:
            self._waiting = False
            if self._previous is None:
                raise KeyboardInterrupt
            self._previous(signal.SIGINT, None)  # may be another gate's handler
        self._forget_handler(exc_info[2])

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Allow interrupts in this block. An interrupt that was deferred earlier is raised immediately.

        An interrupt may occur after torch has disabled gradients but before it has entered the block that enables them
        again. The gradient mode is therefore restored.
        """
        if self._waiting:
            self._waiting = False
            raise KeyboardInterrupt
        torch = sys.modules.get("torch")
        gradients = torch is not None and torch.is_grad_enabled()
        self._open = True
        try:
            yield
        except KeyboardInterrupt:
            if torch is not None:
                torch.set_grad_enabled(gradients)
            raise
        finally:
            self._open = False

    def _forget_handler(self, trace: Any) -> None:
        """Remove the signal handler's frame from an interrupt's traceback, so that it ends in the user's code."""
        while trace is not None and trace.tb_next is not None:
            if trace.tb_next.tb_frame.f_code is InterruptGate._handle.__code__:
                trace.tb_next = None
            trace = trace.tb_next

    @loses_exceptions
    def _dropped(self, dropped: sys.UnraisableHookArgs) -> None:
        """Defer an interrupt that Python discarded, here and in any outer gates. Pass on all other exceptions."""
        if issubclass(dropped.exc_type, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            self._waiting = self._open = True
            if not isinstance(getattr(self._previous_hook, "__self__", None), InterruptGate):
                return
        self._previous_hook(dropped)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if not self._open or (frame is not None and frame.f_code in _LOSES_EXCEPTIONS):
            self._waiting = True
            return
        # Closed before the handler raises, so that a second interrupt cannot stop the cleanup.
        self._open = False
        previous: Callable[[int, FrameType | None], Any] = self._previous
        previous(signum, frame)
        self._open = True
