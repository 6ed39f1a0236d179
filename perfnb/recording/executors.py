"""Run functions elsewhere: in concurrent.futures executors, Dask clients, ipyparallel views, or pools."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

#: The maximum number of calls that are queued or whose answers have not been retrieved. The results of these calls take
#: up memory.
_MOST_WAITING = 256


def is_executor(given: object) -> bool:
    """Check whether an object can run functions."""
    return any(callable(getattr(given, name, None)) for name in ("submit", "map")) and not isinstance(given, type)


def answers(
    executor: Any, function: Callable[..., Any], questions: Sequence[tuple[Any, ...]]
) -> Generator[tuple[int, Any], None, None]:
    """Call a function through an executor, once per set of arguments, and yield the answers as they arrive.

    Parameters
    ----------
    executor : object
        An object with a ``submit`` method that returns a future, or otherwise with a ``map`` method.
    function : callable
        The function to call. It must be at module level, because other processes import it.
    questions : sequence of tuple
        The arguments of each call.

    Yields
    ------
    int, object
        The index of the call, and its answer or the exception that it raised.
    """
    if not callable(getattr(executor, "submit", None)):
        yield from enumerate(executor.map(partial(_called, function), questions))
        return
    done: SimpleQueue[tuple[int, Any]] = SimpleQueue()
    waiting: dict[int, Any] = {}
    unasked = iter(enumerate(questions))
    try:
        for _ in questions:
            while len(waiting) < _MOST_WAITING and (question := next(unasked, None)) is not None:
                place, given = question
                waiting[place] = executor.submit(function, *given)
                waiting[place].add_done_callback(lambda task, place=place: done.put((place, task)))
            place, task = done.get()
            del waiting[place]
            yield place, _result(task)
    finally:
        for task in waiting.values():
            task.cancel()


def _called(function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    return function(*given)


def _result(task: Any) -> Any:
    try:
        return task.result()
    except Exception as error:
        return error
