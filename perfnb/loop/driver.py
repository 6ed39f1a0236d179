"""Profile a running loop. Its own steps serve as the passes, and the loop's owner reports where each step begins."""

from __future__ import annotations

import atexit
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from perfnb.arguments import MOST, require_flag, shown
from perfnb.draw import escape
from perfnb.loop.kept import KeptProfiles
from perfnb.loop.on_demand import OnDemand
from perfnb.loop.record import RunRecorder
from perfnb.loop.windows import Windows
from perfnb.profile.profile import Profile
from perfnb.profile.registry import FOR_LOOPS, IN_LOOP
from perfnb.quantities import counted
from perfnb.step.budget import FLOOR, FLOOR_GPU, Plan
from perfnb.step.capture import Capture
from perfnb.step.checks import require_name
from perfnb.step.data_waits import ExecutedStep, Intake
from perfnb.step.device import accelerator_in_use
from perfnb.step.namespace import chosen_models
from perfnb.step.pass_order import loop_passes
from perfnb.step.steps import Passes, SkippedStep, Turn
from perfnb.step.to_recording import recording_of

if TYPE_CHECKING:
    from perfnb.profile.profiling import Models


class LoopProfiler:
    """Profile a few steps in the middle of a loop, each of which runs only once, and then remove everything.

    The loop's owner calls `wait` when the loop requests a batch (if this is known) and `begin` when the loop has
    received it. The first of these calls after `end` begins a step, and all further calls before `end` belong to that
    step. A step with several batches, as with gradient accumulation, therefore includes all waits for them. `close` is
    called when the loop is over, however it ended. Work between `end` and the next step is not part of any step.
    Outside the windows, nothing is installed, and a step only increments a counter.

    If perfnb itself fails, for example because another profiler is active, the window ends with a warning and the loop
    continues.

    Parameters
    ----------
    at : int or list of int
        Number of steps before each window. With ``at=100``, the first profiled step is the hundred-and-first.
    every : int, optional
        Profile again after this many steps, repeatedly.
    save : str or Path, optional
        Folder where each profile is saved, as ``step_000100``. Without a folder, profiles stay in memory. In a job with
        several ranks, each rank saves its own profile in that folder, as ``rank_3``.
    on_done : callable, optional
        A function that is called with each `Profile` at the end of its window.
    model : Module, list of Module, or dict of name to Module, optional
        As in `profile_step`.
    steps, traced : int
        The number of steps to time and to trace in each window.
    memory, flops, stacks : bool
        As in `profile_step`. Compiled code is not counted, because counting would change its rounding.
    keep_trace : bool, optional
        Whether profiles keep the raw trace or are reduced to their tables. By default, the trace is kept if there is
        only one profile.
    name : str
        Title of the profiles.
    namespace : callable, optional
        A function that returns the variables that models and optimizers are named after. It is called when a window
        ends.
    loader : object
        The loader whose settings are recorded.
    left : callable, optional
        A function that returns the number of steps that are certain to follow, or ``None`` if it is unknown. If a
        window would not fit, it times fewer steps or is postponed until after these steps.
    trainer : str
        ``"transformers"`` or ``"lightning"``. Findings then use this trainer's names for settings.
    try_levers : bool, str or list of str
        The levers to try on the loop's own steps after the first window; see `profiled`.

    Attributes
    ----------
    profiles : KeptProfiles
        The profiles made so far; saved ones are loaded on access.
    done : int
        Number of steps that have ended.
    next_at, planned_at : int or None
        The number of steps before the next window, and the number that the user planned. The planned number is smaller
        if the window did not fit there.
    loader : object
        The loader, which the owner may set after the start, but before a window opens.
    recorder : RunRecorder
        Records every step, inside and outside the windows.
    on_demand : OnDemand
        Opens a window at the next step on request. The loop's owner reports when the loop begins and ends.
    trial : LoopTrial or None
        The lever trial in progress, if any; during the trial, it supplies the batches from the loop's loader.
    """

    def __init__(
        self,
        at: int | Iterable[int] = 100,
        every: int | None = None,
        save: str | Path | None = None,
        on_done: Callable[[Profile], Any] | None = None,
        model: Models | None = None,
        *,
        steps: int = 20,
        traced: int = 3,
        memory: bool = True,
        flops: bool = True,
        stacks: bool = False,
        keep_trace: bool | None = None,
        name: str = "loop",
        namespace: Callable[[], Mapping[str, Any]] = dict,
        loader: Any = None,
        left: Callable[[], int | None] = lambda: None,
        trainer: str = "",
        try_levers: Any = False,
    ) -> None:
        self._levers: list[str] | None = resolve_name(FOR_LOOPS)(try_levers) if try_levers is not False else None
        self.trial: Any = None
        self._windows = Windows(at, every)
        self._plan = Plan(warmup=0, steps=steps, traced=traced, budget_s=float(MOST), memory=memory, flops=flops)
        require_flag("stacks", stacks)
        if keep_trace is not None:
            require_flag("keep_trace", keep_trace)
        require_name(name)
        if on_done is not None and not callable(on_done):
            raise TypeError(f"on_done must be a function of the profile, not {shown(on_done)}.")
        self._models, self._names = chosen_models(model)
        self._namespace, self._left, self._trainer = namespace, left, trainer
        self.loader = loader
        self._stacks, self._name, self._on_done = stacks, name, on_done
        self.recorder = RunRecorder(name)
        self.profiles = KeptProfiles(save, keep_trace=self._windows.single if keep_trace is None else bool(keep_trace))
        self.on_demand = OnDemand(self.profiles.folder)
        self.done = 0
        self.planned_at = self.next_at = self._windows.next(0)
        self._step = Intake()
        #: The open window, if there is one: its passes, their next turn, and what surrounds the open step and its wait.
        self._passes: Passes[Capture] | None = None
        self._turn: Turn | None = None
        self._around: ExitStack | None = None
        self._waiting: ExitStack | None = None
        self._first = 0
        self._made: Profile | None = None

    @property
    def is_open(self) -> bool:
        """Whether a window is open."""
        return self._passes is not None

    @property
    def length(self) -> int:
        """Number of steps in a window, excluding warm-up steps at the start of a run."""
        plan = self._plan
        return (plan.steps or 0) + 1 + plan.traced + 2 * plan.memory + plan.flops

    def why_no_profile(self, until: str) -> str:
        """Explain why there is no profile yet, in words that follow the loop's name.

        A window must have ended before `until`.
        """
        at, had = self.planned_at or 0, f"had {counted(self.done, 'step')}, and"
        if self.done <= at:
            return f"{had} the window of {self.length} opens only after {at:,}"
        return f"{had} no window of {self.length} fitted between step {at:,} and {until}"

    def wait(self) -> None:
        """Record that the loop requests a batch: either the next step begins, or the current step waits again."""
        self._begin_step()
        if self._turn is not None and self._waiting is None:
            self._guarded(self._open_wait, self._turn)
        self._step.wait()

    def begin(self, batch: Any = None) -> None:
        """Record that the loop has received the batch that it requested, if any, and starts to work on it."""
        self._begin_step()
        if self._turn is None:
            self._step.get()
        else:
            self._guarded(self._close_wait, batch)

    def end(self) -> None:
        """Record the end of the step."""
        step, turn = self._step, self._turn
        if turn is not None and self._around is not None:
            self._guarded(self._end_in_window, step.end(turn.pass_name))
        elif step.is_open:
            wall_ns, begin_ns, wait_ns = time.perf_counter_ns() - step.begin_ns, step.begin_ns, step.wait_ns
            step.reset()
            if self.trial is not None:
                self.recorder.enter("levers")
            self._record(wall_ns, wait_ns, begin_ns)
            if self.trial is not None:
                self.trial.end(wall_ns / 1e6)
                if self.trial.finished:
                    self._note_trial()
            if self.on_demand.asked(begin_ns + wall_ns):
                self._open_next()
        self.done += 1
        profile, self._made = self._made, None
        if profile is not None and self._levers is not None:
            levers, self._levers = self._levers, None
            self.trial = resolve_name(IN_LOOP)(levers, profile, self._names_of_loop, self.loader)
        if self._on_done is not None and profile is not None:
            self._on_done(profile)  # its errors are meant for the user

    def skip(self) -> None:
        """Discard the current step, because its batches ran out, or because it failed and the loop continues."""
        self._step.reset()
        if self._around is not None:
            self._guarded(self._advance, None)
        elif self._passes is None:
            self._pause_trial()

    def close(self) -> None:
        """Remove everything. An open window is abandoned and starts over if more steps follow.

        This may be called at any time, for example before a validation, and repeatedly.
        """
        passes, self._passes, self._turn = self._passes, None, None
        self._step.reset()
        self._pause_trial()
        if passes is None:
            return
        atexit.unregister(self.close)
        self.next_at = self.done
        try:
            self._leave(GeneratorExit())
        finally:
            passes.close()
            self.recorder.leave()

    def join_first(self) -> int:
        """Merge all steps so far into one, because they turned out to be the batches of a single step.

        Return the step's number of batches, or 1 if merging was not possible. An open window starts over. The steps in
        a finished profile keep their numbers.
        """
        self.close()
        batches = self.done
        if self.profiles or not self.recorder.join_first():
            return 1
        self.recorder.batches = batches
        self.done, self.next_at = 1, max(1, self.planned_at or 1)
        return batches

    def _guarded(self, part: Callable[..., Any], *args: Any) -> Any:
        """Run part of a window. If it fails, abandon the window and let the loop continue."""
        first = self.done if self._passes is None else self._first
        try:
            return part(*args)
        except Exception as error:
            self.close()
            self._plan_next()
            warnings.warn(
                f"perfnb: no profile at step {first}: {type(error).__name__}: {error}", RuntimeWarning, stacklevel=3
            )
        except BaseException:
            self.close()
            raise

    def _plan_next(self) -> None:
        self.planned_at = self.next_at = self._windows.next(self.done + 1)

    def _open_next(self) -> None:
        """Open a window at the next step, without losing the window that was planned for later."""
        if self.planned_at is not None and self.planned_at > self.done + 1:
            self._windows.postpone(self.planned_at)
        self.planned_at = self.next_at = self.done + 1

    def _begin_step(self) -> None:
        """Begin a step if none is in progress, either in the open window or in a window that is due."""
        if self._step.is_open:
            return
        due = self._passes is not None or (self.next_at is not None and self.done >= self.next_at)
        if due and self._passes is None:
            self._pause_trial()
        if not (due and self._guarded(self._enter)):
            if self.trial is not None:
                self.trial.begin()
            self._step.begin()

    def _pause_trial(self) -> None:
        """Turn all levers off until the next step outside the windows."""
        if self.trial is not None:
            self.trial.pause()
            self._note_trial()
            self.recorder.leave()

    def _note_trial(self) -> None:
        """Store the results so far, and print them at the end of the trial."""
        over = self.trial.finished
        facts, answer = self.trial.found()
        self.recorder.note_tried(facts, over)
        if over:
            self.trial = None
            self.recorder.leave()
            print(escape.plain(f"perfnb: {answer}", 500), file=sys.stderr)

    def _names_of_loop(self) -> Mapping[str, Any]:
        return {**self._namespace(), **self._names}

    def _enter(self) -> bool:
        """Begin a step in a window, opening a window if necessary. Return whether a window is open."""
        if self._passes is None and not self._open():
            return False
        assert self._turn is not None
        self._around = ExitStack()
        self._around.enter_context(self._turn.around())
        self._step.begin(self._turn.seen)
        return True

    def _open(self) -> bool:
        """Open a window if it fits before the loop ends or is interrupted. Return whether it fits."""
        floor = FLOOR_GPU if accelerator_in_use() else FLOOR
        warmup, steps = max(0, floor - self.done), self._plan.steps or 1
        left = self._left()
        if left is not None:
            missing = warmup + self.length - left
            if missing >= steps:
                self.next_at = self.done + max(1, left)
                return False
            steps -= max(0, missing)
        self._first = self.done
        self._passes = loop_passes(
            plan=replace(self._plan, warmup=warmup, steps=steps),
            models=self._models,
            namespace=self._names_of_loop,
            batches=self.loader,
            stacks=self._stacks,
        )
        # torch's profiler must not outlive the interpreter.
        atexit.register(self.close)
        self._turn = next(self._passes)
        return True

    def _open_wait(self, turn: Turn) -> None:
        self._waiting = ExitStack()
        self._waiting.enter_context(turn.data())

    def _close_wait(self, batch: Any) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.close()
        self._step.get(batch)

    def _end_in_window(self, executed: ExecutedStep) -> None:
        self._leave(None)
        self.recorder.enter(executed.pass_name)
        self._record(executed.wall_ns, executed.data_ns, executed.begin_ns)
        self._advance(executed)

    def _record(self, wall_ns: int, wait_ns: int | None, begin_ns: int) -> None:
        self.recorder.step(wall_ns, -1 if wait_ns is None else wait_ns, begin_ns)

    def _leave(self, error: BaseException | None) -> None:
        """Close the contexts around the current step."""
        waiting, around, self._waiting, self._around = self._waiting, self._around, None, None
        for stack in (waiting, around):
            if stack is not None:
                stack.__exit__(None if error is None else type(error), error, None)

    def _advance(self, executed: ExecutedStep | None) -> None:
        """Report to the passes whether the step took place, and end the window after the last pass."""
        assert self._passes is not None
        if executed is None:
            self._leave(SkippedStep())
        try:
            self._turn = self._passes.send(executed)
        except StopIteration as end:
            self._passes = self._turn = None
            atexit.unregister(self.close)
            self._plan_next()
            try:
                self._finish(end.value)
            finally:
                self.recorder.leave()

    def _finish(self, capture: Capture) -> None:
        recording = recording_of(capture, self._name)
        self.recorder.batches = recording.meta.get("batches", 1)
        loop: dict[str, Any] = {"step": self._first, "batches": self.recorder.batches}
        if self.recorder.by_batch:
            loop["by_batch"] = True
        if self._trainer:
            loop["trainer"] = self._trainer
        profile = Profile(replace(recording, meta={**recording.meta, "loop": loop}))
        self.profiles.add(profile, self._first)
        self._made = profile
