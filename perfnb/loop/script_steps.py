"""Find the steps of an unmodified script by watching its optimizers and data loaders."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.machinery import ModuleSpec
from inspect import CO_OPTIMIZED
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from perfnb.loop.loop_steps import LoopSteps
from perfnb.step.loaders import Nameless, only_here, see_loaders

if TYPE_CHECKING:
    from perfnb.loop.driver import LoopProfiler

#: Ways to end a step: a step of the first optimizer that stepped or of the last one, or the next batch.
BY = ("first", "last", "batch")
#: Packages whose variables do not belong to the user.
_LIBRARIES = ("perfnb", "torch", "runpy", "contextlib")


class ScriptSteps:
    """Determine which loader and which optimizer define the steps of a script's training loop.

    A step ends when the chosen optimizer has stepped, and the next step starts when the loop requests the next batch
    from the same loader. Everything that is requested before the step ends belongs to it, such as further batches (with
    gradient accumulation) and waits for other loaders. Requests to other loaders between steps, for example during
    validation, are not part of any step. If every step uses several loaders, the batches of the first one count.
    Without a loader, a step starts when the previous one ended.

    Parameters
    ----------
    make_driver : callable
        A function that creates the driver. It is called with the loader, if there is one, at the first batch or step.
    by : str
        One of `BY`.

    Attributes
    ----------
    optimizers : int
        Number of optimizers that have stepped.
    """

    def __init__(self, make_driver: Callable[[Any], LoopProfiler], by: str = "first") -> None:
        self._make_driver, self._by = make_driver, by
        self._steps: LoopSteps | None = None
        self._chosen: weakref.ref[Any] | None = None
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        #: The steps' loader, once it is `_known`; the loader that was used last since the last step; the first loader
        #: used that has not run out; and the previous step's loader.
        self._loader: weakref.ref[Any] | None = None
        self._asked: weakref.ref[Any] | None = None
        self._first: weakref.ref[Any] | None = None
        self._first_before: weakref.ref[Any] | None = None
        self._known = self._open = self._ran_out = False
        self.optimizers = 0

    def take(self, loader: Any, fetch: functools.partial[Any]) -> Any:
        """Fetch a batch that the script requests from a loader, as `see_loaders` requires."""
        __tracebackhide__ = True
        waits = self._ask(loader)
        try:
            trial = self._steps.driver.trial if waits and self._steps is not None and self._is_own(loader) else None
            batch = fetch() if trial is None else trial.next(*fetch.args)
        except BaseException:
            self._run_out(loader, waits)
            raise
        if waits:
            self._open = True
            self._steps_with(loader).get(batch if self._is_own(loader) else None)
        return batch

    def _is_own(self, loader: Any) -> bool:
        """Return whether, as far as is known, a loader provides the steps' batches."""
        return not self._known or _is(self._loader, loader)

    def _ask(self, loader: Any) -> bool:
        """Record that a batch is requested, and return whether a step waits for it."""
        steps = self._steps_with(loader)
        before, self._asked = self._asked, weakref.ref(loader)
        self._first = self._first or self._asked
        own = self._is_own(loader)
        if not self._open and not own:
            return False
        if self._open and own:
            if self._by == "batch":
                steps.use()
                self._open = False
            elif self._ran_out or not (self._known or _is(before, loader)):
                steps.skip()  # the work so far was not a step, because no optimizer has stepped
                self._open = False
        if self._by == "batch" and not self._known:
            self._known, self._loader = True, self._asked
        self._ran_out = self._ran_out and self._open
        steps.ask()
        return True

    def _run_out(self, loader: Any, waits: bool) -> None:
        """Record that a loader had no more batches, or failed to produce one."""
        if _is(self._first, loader):
            self._first = None
        if waits and not self._open:
            self._steps_with(loader).skip()
            return
        if waits:
            self._steps_with(loader).get()
        self._ran_out |= self._is_own(loader)

    def step(self, optimizer: Any) -> None:
        """Record that an optimizer has stepped."""
        steps, first = self._steps_with(None), optimizer not in self._seen
        if first:
            self._seen.add(optimizer)
            self.optimizers += 1
            if self._by == "last" or self._chosen is None or self._chosen() is None:
                self._chosen = weakref.ref(optimizer)
        if self._by == "batch" or not _is(self._chosen, optimizer):
            return
        if first and self._known and not self._open and self._loader is not None:
            return  # the step ended with another optimizer; the next step will end with this one
        whole = self._open and (self._known or not self._ran_out)
        if whole:
            steps.step()
            steps.end_if_over()
        elif self._open:
            steps.skip()  # a loader ran out before the first step, so its purpose is unknown
        if not (whole and self._known):
            self._loader = None if self._ran_out else self._asked
        elif self._first is not None and _is(self._first_before, self._first()):
            self._loader = self._first
        loader = self._loader and self._loader()
        steps.driver.loader = None if isinstance(loader, Nameless) else loader
        self._first_before, self._first = self._first, None
        self._known, self._asked = True, None
        self._open = self._ran_out = False
        if self._loader is None:
            self._open = True
            steps.get()

    def _steps_with(self, loader: Any) -> LoopSteps:
        """Return the object that reports the steps to the driver.

        It is created at the first batch or step, when torch has been loaded.
        """
        if self._steps is None:
            driver = self._make_driver(None if isinstance(loader, Nameless) else loader)
            self._steps = LoopSteps(driver, optimizers_end_steps=self._by != "batch")
        return self._steps

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Watch every optimizer and loader of this process within the block. Torch does not have to be loaded yet."""
        with ExitStack() as undo:
            hooks: dict[str, Callable[[ModuleType], Any]] = {
                "torch.optim.optimizer": lambda module: undo.callback(self._see_optimizers(module)),
                "torch.utils.data.dataloader": lambda module: undo.callback(see_loaders(module, self.take)),
            }
            loaded = hooks.keys() & sys.modules.keys()
            for name in loaded:
                hooks[name](sys.modules[name])
            finder = _AfterImport({name: hook for name, hook in hooks.items() if name not in loaded})
            sys.meta_path.insert(0, finder)
            try:
                yield
            finally:
                sys.meta_path.remove(finder)

    def _see_optimizers(self, module: ModuleType) -> Callable[[], None]:
        """Wrap the `step` methods of all future optimizer classes, and return a function that stops this.

        Torch's own step hooks run inside a range that the profiler records, where the profiler can neither be started
        nor stopped and no hook can be added. They are therefore not used.
        """
        optimizer_class, here = module.Optimizer, only_here()
        original = optimizer_class.__dict__["profile_hook_step"]
        running = False
        seeing = True

        def hooked(step: Callable[..., Any]) -> Callable[..., Any]:
            own = original.__func__(step)

            @functools.wraps(own)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                nonlocal running
                __tracebackhide__ = True
                if not seeing or running or not here():  # an optimizer may call the steps of others
                    return own(*args, **kwargs)
                running = True
                try:
                    result = own(*args, **kwargs)
                finally:
                    running = False
                self.step(args[0])
                return result

            return wrapper

        def undo() -> None:
            nonlocal seeing
            seeing = False
            optimizer_class.profile_hook_step = original

        optimizer_class.profile_hook_step = staticmethod(hooked)
        return undo


def script_variables() -> dict[str, Any]:
    """Return the variables of all running functions, innermost first.

    The script's own variables are included.
    """
    frame: FrameType | None = sys._getframe(1)
    frames: list[FrameType] = []
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _LIBRARIES:
            frames.insert(0, frame)
        frame = frame.f_back
    variables: dict[str, Any] = {}
    for frame in frames:
        variables |= {name: value for name, value in frame.f_globals.items() if not name.startswith("__")}
    for frame in frames:
        own: Any = frame.f_locals
        variables |= own
        if frame.f_code.co_flags & CO_OPTIMIZED and type(own) is dict and sys.gettrace() is None:
            own.clear()  # before Python 3.13, this is a copy, which would keep objects alive
    return variables


class _AfterImport:
    """A module finder that calls a function as soon as a given module has been imported."""

    def __init__(self, calls: dict[str, Callable[[ModuleType], Any]]) -> None:
        self._calls = calls
        self._looking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find a module with the other finders, and make its loader call the function afterwards."""
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
