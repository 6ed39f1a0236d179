"""Intercept a loop's requests to torch's data loaders in order to count waits and batches."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeAlias

#: A function that takes a loader and a function that fetches the loader's next batch. It calls the latter and returns
#: the batch.
Take: TypeAlias = Callable[[Any, functools.partial[Any]], Any]


class Nameless:
    """Represents a loader that no longer exists although one of its iterators is still in use."""


def see_loaders(module: ModuleType, take: Take) -> Callable[[], None]:
    """Make `take` fetch every batch that this thread requests from a loader, and return a function that undoes this.

    `module` is ``torch.utils.data.dataloader``. It is a parameter because it may be loaded later than this module.
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
        # If a loader's dataset uses another loader, that counts as part of the first loader's work.
        if not here() or not inside.acquire(blocking=False):
            return following(self_)
        known = loaders.get(self_)
        loader = None if known is None else known()
        if loader is None:  # for example in `for batch in DataLoader(data)`
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
    """Return a function that checks whether it is called in the same process and thread as this function.

    The loop does not wait for threads that prefetch batches, and a forked process has its own loop.
    """
    process, thread = os.getpid(), threading.get_ident()
    return lambda: threading.get_ident() == thread and os.getpid() == process
