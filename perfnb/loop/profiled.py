"""`profiled`: profile some steps of a loop by wrapping its loader, which changes a single line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from perfnb.arguments import shown
from perfnb.loop.driver import LoopProfiler
from perfnb.loop.kept import KeptProfiles
from perfnb.loop.kept_run import KeptRun
from perfnb.loop.loop_steps import LoopSteps
from perfnb.loop.run import RunSummary, summarise
from perfnb.profile.profile import Profile
from perfnb.shell import in_notebook, print_text
from perfnb.step.namespace import is_installed, variables_of
from perfnb.step.steps import after_optimizer_steps

if TYPE_CHECKING:
    from perfnb.profile.profiling import Models

_Batch = TypeVar("_Batch")


def profiled(
    loader: Iterable[_Batch],
    at: int | Iterable[int] = 100,
    every: int | None = None,
    save: str | Path | None = None,
    on_done: Callable[[Profile], Any] | None = None,
    *,
    model: Models | None = None,
    steps_by: Any = None,
    steps: int = 20,
    traced: int = 3,
    memory: bool = True,
    flops: bool = True,
    stacks: bool = False,
    keep_trace: bool | None = None,
    name: str = "loop",
    try_levers: bool | str | Iterable[str] = False,
) -> ProfiledLoop[_Batch]:
    """Profile some steps of a running loop: ``for batch in perfnb.profiled(loader):``.

    A step is one optimizer step with all batches whose gradients it accumulates; the time spent waiting for them is the
    step's ``data`` phase. If the loop does not use a torch optimizer, each batch is a step. Starting at step `at`, the
    loop's own steps are used for the passes of `profile_step`, and each step runs only once. Afterwards, everything is
    removed. Before and after the profiled steps, only the duration of each step is recorded, for `ProfiledLoop.run`. If
    you use the same object for several epochs, it continues where it stopped.

    Parameters
    ----------
    loader : iterable
        A loader, or any other iterable of batches.
    at : int or list of int
        Number of steps before each window of profiled steps. With ``at=100``, the first profiled step is the
        hundred-and-first.
    every : int, optional
        Profile again after this many steps, repeatedly.
    save : str or Path, optional
        Folder where each profile is saved, as ``step_000100``. Without a folder, profiles stay in memory.
    on_done : callable, optional
        A function that is called with each `Profile` at the end of its window.
    model : Module, list of Module, or dict of name to Module, optional
        As in `profile_step`.
    steps_by : Optimizer or "batch", optional
        A step ends with the batch after which this optimizer has stepped; by default, any torch optimizer counts. With
        ``"batch"``, every batch is a step.
    steps, traced : int
        The number of steps to time and to trace in each window.
    memory, flops, stacks : bool
        As in `profile_step`. Compiled code is not counted, because counting would change its rounding.
    keep_trace : bool, optional
        Whether profiles keep the raw trace or are reduced to their tables. By default, the trace is kept if there is
        only one profile.
    name : str
        Title of the profiles.
    try_levers : bool or list of str
        Whether to try levers after the first window, or which ones. Levers are switched on and off over random blocks
        of the loop's own steps, each of which runs only once, and neighbouring blocks are compared. With ``True``,
        perfnb tries the levers that address a finding in the first profile, and those that cost little to try. A
        message announces beforehand how many steps this takes. Levers affect rounding in your run but not what it
        computes, and all changes are undone at the end. The results are in ``run.tried``.

    Returns
    -------
    ProfiledLoop
        The object to iterate over instead of the loader. Its attribute `profiles` contains the profiles made so far.

    Raises
    ------
    TypeError
        If `loader` is not iterable, or if an option is invalid.
    ValueError
        If `try_levers` names a lever that lowers precision, or one that requires a step that can be called again.
    """
    return ProfiledLoop(
        loader,
        steps_by,
        at=at,
        every=every,
        save=save,
        on_done=on_done,
        model=model,
        steps=steps,
        traced=traced,
        memory=memory,
        flops=flops,
        stacks=stacks,
        keep_trace=keep_trace,
        name=name,
        try_levers=try_levers,
    )


class ProfiledLoop(Generic[_Batch]):
    """A loader whose loop is profiled, as returned by `profiled`. All other attributes are those of the loader.

    Notebooks display the last profile when its window or the loop has ended.

    Attributes
    ----------
    profiles : sequence of Profile
        The profiles made so far; saved ones are loaded on access.
    """

    def __init__(self, loader: Iterable[_Batch], steps_by: Any = None, **options: Any) -> None:
        if not isinstance(loader, Iterable):
            raise TypeError(f"loader must be an iterable of batches, not {shown(loader)}.")
        if steps_by not in (None, "batch") and not hasattr(steps_by, "register_step_post_hook"):
            raise TypeError(f'steps_by must be an optimizer or "batch", not {shown(steps_by)}.')
        self._loader, self._steps_by = loader, steps_by
        #: Number of batches that remain in this epoch, if known.
        self._batches_left: int | None = None
        self._shown, self._said = 0, False
        self._run_shown: Any = None
        self._profiler = LoopProfiler(**options, namespace=_users_variables, loader=loader, left=self._left)
        self._iteration: object = None
        self._steps = LoopSteps(self._profiler, optimizers_end_steps=steps_by not in (None, "batch"))
        self._kept_run = KeptRun(self._profiler, asked=options.get("on_done") is not None)

    @property
    def profiles(self) -> KeptProfiles:
        """The profiles made so far; saved ones are loaded on access."""
        self._kept_run.asked = True
        return self._profiler.profiles

    @property
    def run(self) -> RunSummary | None:
        """All steps so far, inside and outside the windows; ``None`` before the first step has ended."""
        self._kept_run.asked = True
        return summarise(self._profiler.recorder)

    def close(self) -> None:
        """Remove everything immediately. If a window is open and the loop continues, the window starts over."""
        self._profiler.close()

    def _close(self, iteration: object) -> None:
        """Remove everything, unless a newer iteration has begun. An abandoned one may only be collected during it."""
        if iteration is self._iteration:
            self._profiler.close()

    def __iter__(self) -> Iterator[_Batch]:
        __tracebackhide__ = True
        profiler, steps = self._profiler, self._steps
        self._kept_run.begin()
        with ExitStack() as stack:
            stack.push(self._show_at_once)
            stack.callback(self._kept_run.end)
            if profiler.is_open:  # by an iteration that was abandoned
                profiler.close()
            self._iteration = iteration = object()
            stack.callback(self._close, iteration)
            try:
                self._batches_left = len(self._loader)  # type: ignore[arg-type]
            except Exception:  # the loop does not need the length, so any failure of the loader can be ignored
                self._batches_left = None
            steps.restart()
            if self._steps_by != "batch":
                stack.callback(after_optimizer_steps(steps.step, self._steps_by))
            source = iter(self._loader)
            while True:
                steps.ask()
                try:
                    # Kept in a list, because a variable here would keep the batch alive while the loop's body runs.
                    box = [next(source) if profiler.trial is None else profiler.trial.next(source)]
                except StopIteration:
                    break
                steps.get(box[0])
                if self._batches_left is not None:
                    self._batches_left -= 1
                yield box.pop()
                steps.use()
                steps.end_if_over()
                if profiler.next_at is None:
                    self._show()
        self._show()
        self._show_run()
        if not profiler.profiles and not self._said and profiler.next_at is not None:
            self._said = True
            why = profiler.why_no_profile("the epoch's end")
            early = profiler.done <= (profiler.planned_at or 0)
            more = ", or make one profiled object before the epochs and iterate over it in each of them"
            print_text(
                f"perfnb: no step has been profiled yet: the loop {why}. Choose a smaller at= or steps={more * early}."
            )

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __repr__(self) -> str:
        return f"<perfnb.ProfiledLoop after {self._profiler.done:,} steps: {self._profiler.profiles!r}>"

    def _left(self) -> int | None:
        """Return the number of remaining steps in this epoch."""
        return None if self._batches_left is None else self._batches_left // self._steps.batches

    def _show(self) -> None:
        """Show the last profile in a notebook, once."""
        profiles = self._profiler.profiles
        if len(profiles) > self._shown:
            self._shown = len(profiles)
            if in_notebook():
                profiles[-1]._ipython_display_()

    def _show_at_once(self, error: type[BaseException] | None, *_: object) -> None:
        """Show the results so far if the loop was left by ``break``, an exception or an interrupt."""
        if error is not None:
            with suppress(Exception):  # the user's own exception comes first
                self._show()
                self._show_run()

    def _show_run(self) -> None:
        """Show the whole run in a notebook, below the profile, and update it after each further epoch."""
        run = summarise(self._profiler.recorder) if in_notebook() else None
        if run is None:
            return
        static = run._repr_mimebundle_()  # only static output can be replaced
        if self._run_shown is None:
            from IPython.display import DisplayHandle

            self._run_shown = DisplayHandle()
            self._run_shown.display(static, raw=True)
        else:
            self._run_shown.update(static, raw=True)


def _users_variables() -> dict[str, Any]:
    """Return the variables of the loop that is currently requesting its next batch."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_installed(frame.f_code.co_filename):
        frame = frame.f_back
    return variables_of(frame)
