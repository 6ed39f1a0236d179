"""The steps of a script that knows nothing of perfnb: seen in what its optimizers and data loaders do."""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.machinery import ModuleSpec
from inspect import CO_OPTIMIZED
from types import FrameType, ModuleType
from typing import Any, Protocol

#: What ends a step: a step of the first optimizer that stepped, or of the one that came last, or the next batch.
BY = ("first", "last", "batch")
#: Code in these packages names no variables of the user's.
_LIBRARIES = ("perfnb", "torch", "runpy", "contextlib")


class Driver(Protocol):
    """What is told of the steps, as `perfnb.loop.driver.LoopProfiler` is."""

    def wait(self) -> None:
        """A step starts to wait for its batch."""

    def begin(self, batch: Any = None) -> None:
        """Its work starts."""

    def end(self) -> None:
        """It has ended."""

    def skip(self) -> None:
        """It does not take place."""


class ScriptSteps:
    """Finds the steps of a script's training loop and tells a driver of them.

    A step ends when the chosen optimizer has stepped, and the next one starts where the loop asks the same loader for
    the next batch. Batches asked for in between, as for gradient accumulation, belong to the step that has started, and
    other loaders, as for validation, to none. Without a loader a step starts where the last one ended.

    Parameters
    ----------
    make_driver : callable
        Makes the driver, given the loader if there is one; called at the first batch or step.
    by : str
        One of `BY`.

    Attributes
    ----------
    optimizers : int
        Number of optimizers that have stepped.
    """

    def __init__(self, make_driver: Callable[[Any], Driver], by: str = "first") -> None:
        self._make_driver, self._by = make_driver, by
        self._driver: Driver | None = None
        self._chosen: weakref.ref[Any] | None = None
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        #: The loader of the steps, once that is `_known`, and the one that was asked since the last step.
        self._loader: weakref.ref[Any] | None = None
        self._asked: weakref.ref[Any] | None = None
        self._known = self._open = self._ran_out = False
        self.optimizers = 0

    def asks(self, loader: Any) -> bool:
        """A batch is asked for; whether a step starts to wait for it."""
        driver = self._driver_of(None if isinstance(loader, _Nameless) else loader)
        before, self._asked = self._asked, weakref.ref(loader)
        if self._known and not _is(self._loader, loader):
            return False
        if self._open and self._by == "batch":
            driver.end()
        elif self._open:
            if not self._ran_out and (self._known or _is(before, loader)):
                return False
            driver.skip()  # what came before was no step: no optimizer has stepped
        if self._by == "batch":
            self._known, self._loader = True, self._asked
        self._open = self._ran_out = False
        driver.wait()
        return True

    def gets(self, batch: Any) -> None:
        """The batch that a step waited for is there."""
        self._open = True
        self._driver_of(None).begin(batch)

    def runs_out(self, waiting: bool) -> None:
        """A loader had no batch, or none could be made; `waiting` is what `asks` said."""
        if waiting:
            self._driver_of(None).skip()
        elif _is(self._loader, self._asked and self._asked()) or not self._known:
            self._ran_out = True

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped."""
        driver, first = self._driver_of(None), optimizer not in self._seen
        if first:
            self._seen.add(optimizer)
            self.optimizers += 1
            if self._by == "last" or self._chosen is None or self._chosen() is None:
                self._chosen = weakref.ref(optimizer)
        if self._by == "batch" or not _is(self._chosen, optimizer):
            return
        if first and self._known and not self._open and self._loader is not None:
            return  # the step has ended with another optimizer; the next one will end with this one
        whole = self._open and (self._known or not self._ran_out)
        if whole:
            driver.end()
        elif self._open:
            driver.skip()  # a loader ran out before the first step: what it was for is not known
        if not (whole and self._known):
            self._loader = None if self._ran_out else self._asked
        self._known, self._asked = True, None
        self._open = self._ran_out = False
        if self._loader is None:
            self._open = True
            driver.begin()

    def _driver_of(self, loader: Any) -> Driver:
        if self._driver is None:
            self._driver = self._make_driver(loader)
        return self._driver

    @contextmanager
    def installed(self) -> Iterator[None]:
        """See every optimizer and loader of this process in the block; torch need not be loaded yet, and is not."""
        with ExitStack() as undo:
            hooks: dict[str, Callable[[ModuleType], Any]] = {
                "torch.optim.optimizer": lambda module: undo.callback(self._see_optimizers(module)),
                "torch.utils.data.dataloader": lambda module: undo.callback(self._see_loaders(module)),
            }
            later = {}
            for name, hook in hooks.items():
                if name in sys.modules:
                    hook(sys.modules[name])
                else:
                    later[name] = hook
            finder = _AfterImport(later)
            sys.meta_path.insert(0, finder)
            try:
                yield
            finally:
                sys.meta_path.remove(finder)

    def _see_optimizers(self, module: ModuleType) -> Callable[[], None]:
        """Wrap the steps of all optimizer classes to come; returns what ends that.

        Torch's own hooks after a step run inside a range that the profiler records, where it can be neither started nor
        stopped, and no hook can be added there.
        """
        optimizer_class, here = module.Optimizer, _only_here()
        original = optimizer_class.__dict__["profile_hook_step"]
        running = False
        seeing = True

        def hooked(step: Callable[..., Any]) -> Callable[..., Any]:
            own = original.__func__(step)

            @functools.wraps(own)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                nonlocal running
                __tracebackhide__ = True
                if not seeing or running or not here():  # an optimizer may step others
                    return own(*args, **kwargs)
                running = True
                try:
                    result = own(*args, **kwargs)
                finally:
                    running = False
                self.stepped(args[0])
                return result

            return wrapper

        def undo() -> None:
            nonlocal seeing
            seeing = False
            optimizer_class.profile_hook_step = original

        optimizer_class.profile_hook_step = staticmethod(hooked)
        return undo

    def _see_loaders(self, module: ModuleType) -> Callable[[], None]:
        """Wrap what all iterators of loaders have in common; returns what unwraps it."""
        iterators = module._BaseDataLoaderIter
        make, following = iterators.__init__, iterators.__next__
        loaders: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()
        nameless: dict[int, _Nameless] = {}
        here, inside = _only_here(), threading.Lock()

        @functools.wraps(make)
        def __init__(self_: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            make(self_, loader, *args, **kwargs)
            loaders[self_] = weakref.ref(loader)

        @functools.wraps(following)
        def __next__(self_: Any) -> Any:
            __tracebackhide__ = True
            # A loader that is asked by another one's data set is part of that one's work.
            if not here() or not inside.acquire(blocking=False):
                return following(self_)
            known = loaders.get(self_)
            loader = None if known is None else known()
            if loader is None:  # as in `for batch in DataLoader(data)`
                loader = nameless.setdefault(id(self_._dataset), _Nameless())
            try:
                waiting = self.asks(loader)
                try:
                    batch = following(self_)
                except BaseException:
                    self.runs_out(waiting)
                    raise
                if waiting:
                    self.gets(batch)
                return batch
            finally:
                inside.release()

        def undo() -> None:
            iterators.__init__, iterators.__next__ = make, following

        iterators.__init__, iterators.__next__ = __init__, __next__
        return undo


class _Nameless:
    """Stands for a loader that nobody holds, while one of its iterators is used."""


def script_variables() -> dict[str, Any]:
    """The variables of the functions that are running now, those of the script itself included; inner ones first."""
    found: dict[str, Any] = {}
    frame: FrameType | None = sys._getframe(1)
    frames: list[FrameType] = []
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _LIBRARIES:
            frames.insert(0, frame)
        frame = frame.f_back
    for each in frames:
        found |= {name: value for name, value in each.f_globals.items() if not name.startswith("__")}
    for each in frames:
        own: Any = each.f_locals
        found |= own
        if each.f_code.co_flags & CO_OPTIMIZED and type(own) is dict and sys.gettrace() is None:
            own.clear()  # before Python 3.13 a copy, which would keep what the function lets go
    return found


class _AfterImport:
    """A finder of modules that only calls a function when one of some modules has been imported."""

    def __init__(self, calls: dict[str, Callable[[ModuleType], Any]]) -> None:
        self._calls = calls
        self._looking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find a module by the other finders, and have its loader call back."""
        if name not in self._calls or self._looking:
            return None
        from importlib.util import find_spec

        self._looking = True
        try:
            spec = find_spec(name)
        finally:
            self._looking = False
        if spec is None or spec.loader is None:
            return spec
        execute, call = spec.loader.exec_module, self._calls[name]

        def exec_module(module: ModuleType) -> None:
            execute(module)
            call(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _is(reference: weakref.ref[Any] | None, thing: Any) -> bool:
    return thing is not None and reference is not None and reference() is thing


def _only_here() -> Callable[[], bool]:
    """Whether this is the process and the thread that this function was called in.

    A thread that fetches batches ahead is not what the loop waits for, and a forked process has a loop of its own.
    """
    process, thread = os.getpid(), threading.get_ident()
    return lambda: threading.get_ident() == thread and os.getpid() == process
