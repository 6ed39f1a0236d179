"""Intercept a loop's requests to torch's data loaders, so that waits and batches can be counted."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeAlias

#: A function that is called with a loader and with a function that fetches its next batch; it calls that, and returns
#: the batch.
Take: TypeAlias = Callable[[Any, functools.partial[Any]], Any]


class Nameless:
    """Represents a loader that no longer exists, while one of its iterators is still in use."""


def see_loaders(module: ModuleType, take: Take) -> Callable[[], None]:
    """Make `take` fetch every batch that this thread requests from a loader. Return a function that stops it.

    `module` is ``torch.utils.data.dataloader``, which is passed in because it may be loaded later than this module.
    """
    iterators = module._BaseDataLoaderIter
    make, following = iterators.__init__, iterators.__next__
    loaders: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()
    nameless: dict[int, Nameless] = {}
    here, inside = only_here(), threading.Lock()

    @functools.wraps(make)
    def __init__(self_: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        make(self_, loader, *args, **kwargs)
        loaders[self_] = weakref.ref(loader)

    @functools.wraps(following)
    def __next__(self_: Any) -> Any:
        __tracebackhide__ = True
        # A loader that another loader's data set asks is part of that one's work.
        if not here() or not inside.acquire(blocking=False):
            return following(self_)
        known = loaders.get(self_)
        loader = None if known is None else known()
        if loader is None:  # as in `for batch in DataLoader(data)`
            loader = nameless.setdefault(id(self_._dataset), Nameless())
        try:
            return take(loader, functools.partial(following, self_))
        finally:
            inside.release()

    def undo() -> None:
        iterators.__init__, iterators.__next__ = make, following

    iterators.__init__, iterators.__next__ = __init__, __next__
    return undo


def only_here() -> Callable[[], bool]:
    """Return a function that checks whether it runs in the same process and thread as this call.

    The loop does not wait for threads that fetch batches ahead, and a forked process has its own loop.
    """
    process, thread = os.getpid(), threading.get_ident()
    return lambda: threading.get_ident() == thread and os.getpid() == process
