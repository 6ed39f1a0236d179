"""Make sure that a failed call does not keep the user's objects alive."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

_OWN = str(Path(__file__).parent) + os.sep


def keeps_nothing(function: _Function) -> _Function:
    """Decorate a function so that its exceptions do not keep the user's variables alive.

    Python and IPython keep the last exception together with its traceback, and the traceback's frames keep the user's
    variables alive until the next exception. After an out-of-memory error, ``del model`` would therefore free nothing.
    To prevent this, perfnb clears its own frames in the traceback.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            del args, kwargs
            with suppress(Exception):  # nothing may replace the user's error
                _free(error)
            raise

    return call  # type: ignore[return-value]


def with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes, and all exceptions in any exception groups among them, without repetition."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        cause = waiting.pop()
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        members = cause.exceptions if isinstance(cause, BaseExceptionGroup) else ()
        waiting += [*members, cause.__context__, cause.__cause__]


def _free(error: BaseException) -> None:
    """Clear perfnb's frames in the tracebacks of an exception and its causes."""
    for cause in with_causes(error):
        cause.__traceback__ = _freed(cause.__traceback__)


def _freed(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without perfnb's hidden frames, since a cleared frame is no longer marked as hidden."""
    entries = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    for entry in reversed(entries):
        frame: FrameType | None = entry.tb_frame
        if not (_is_own(entry.tb_frame) and "__tracebackhide__" in entry.tb_frame.f_code.co_varnames):
            trace = TracebackType(trace, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
        # A caller that handled the exception is not in the traceback, but its frame is kept too.
        while frame is not None:
            # A generator that only handled the exception may continue.
            if _is_own(frame) and (frame is entry.tb_frame or not frame.f_code.co_flags & inspect.CO_GENERATOR):
                with suppress(RuntimeError):  # the generator is still running
                    frame.clear()
            frame = frame.f_back
    return trace


def _is_own(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OWN)
