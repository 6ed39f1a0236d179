"""Show what a loop requests from torch's data loaders to whoever counts the waits and batches of its steps."""

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
    """Represents a loader that nobody holds, while one of its iterators is used."""


def see_loaders(module: ModuleType, take: Take) -> Callable[[], None]:
    """Have `take` fetch every batch that this thread requests from a loader. Return what ends that.

    `module` is ``torch.utils.data.dataloader``, which need not be loaded yet when this one is.
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
    """Return whether this is the process and the thread that this function was called in.

    The loop does not wait for a thread that fetches batches ahead, and a forked process has a loop of its own.
    """
    process, thread = os.getpid(), threading.get_ident()
    return lambda: threading.get_ident() == thread and os.getpid() == process
