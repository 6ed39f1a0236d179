"""The passes of a capture laid over the steps of a loop that goes on: whoever runs the loop says where they begin."""

from __future__ import annotations

import atexit
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from perfnb.arguments import MOST, require_flag, shown
from perfnb.loop.kept import KeptProfiles
from perfnb.loop.windows import Windows
from perfnb.profile.profile import Profile
from perfnb.step.budget import FLOOR, FLOOR_GPU, Plan
from perfnb.step.capture import loop_passes
from perfnb.step.checks import require_name
from perfnb.step.device import accelerator_in_use
from perfnb.step.namespace import chosen_models
from perfnb.step.session import Capture
from perfnb.step.steps import ExecutedStep, Passes, SkippedStep, Turn, common_size, token_count, total
from perfnb.step.to_recording import recording_of

if TYPE_CHECKING:
    from perfnb.profile.profiling import Models

#: No window is to come.
_NEVER = sys.maxsize
#: A step's wait for data, if nobody said when it waited.
_UNKNOWN = -1


class StepRecorder(Protocol):
    """What is told of every step."""

    #: Whether each batch counts as a step, and how many batches a step takes.
    by_batch: bool
    batches: int

    def step(self, wall_ns: int, data_ns: int, begin_ns: int) -> None:
        """Note a step: its duration, its wait for data (-1 if unknown), `time.perf_counter_ns` at its start."""

    def join_first(self) -> bool:
        """Make one step of all so far, which were its batches; whether that was possible."""

    def enter(self, pass_name: str) -> None:
        """The steps noted from now on belong to a window, in this pass of it."""

    def leave(self) -> None:
        """The window, if there was one, is over and everything is removed."""


class LoopProfiler:
    """Profiles a few steps in the middle of a loop, each executed once, and then removes everything.

    The loop's owner calls `wait` where the loop asks for a batch (if that is known) and `begin` where it has the batch.
    The first of these calls after `end` begins a step, and all that follow until `end` belong to it, so that a step of
    several batches, as for accumulated gradients, has all their waits. `close` is called when the loop is over, however
    it ended. Work between `end` and the next step belongs to no step. Outside its windows a step costs a counter, and
    nothing is installed.

    A failure of perfnb itself, such as another profiler that is running, ends the window with a warning; the loop goes
    on.

    Parameters
    ----------
    at : int or list of int
        Number of steps before each window: with ``at=100`` the first profiled step is the hundred-and-first.
    every : int, optional
        Profile again after this many steps, over and over.
    save : str or Path, optional
        Folder in which each profile is saved, as ``step_000100``. Without it they stay in memory. In a job of several
        ranks each saves its own in that folder, as ``rank_3``.
    on_done : callable, optional
        Called with each `Profile` when its window has ended.
    model : Module, list of Module, or dict of name to Module, optional
        As in `profile_step`.
    steps, traced : int
        Steps to time and to trace in each window.
    memory, flops, stacks : bool
        As in `profile_step`. Compiled code is not counted, because counting would change how it rounds.
    keep_trace : bool, optional
        Whether profiles keep the raw trace, or are reduced to their tables. By default a single profile keeps it.
    name : str
        Title of the profiles.
    namespace : callable, optional
        Returns the variables by which models and optimizers are named; called when a window ends.
    loader : object
        The loader, whose settings are noted.
    left : callable, optional
        Returns the number of steps that are certain to come, or ``None`` if that is not known: a window that would not
        fit times fewer steps, or waits until after these steps.
    recorder : StepRecorder, optional
        Told of every step, inside the windows and outside.

    Attributes
    ----------
    profiles : KeptProfiles
        Those made so far; saved ones are loaded when they are asked for.
    done : int
        Number of steps that have ended.
    loader : object
        The loader, which its owner may name later than at the start, but before a window opens.
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
        namespace: Callable[[], Mapping[str, Any]] | None = None,
        loader: Any = None,
        left: Callable[[], int | None] | None = None,
        recorder: StepRecorder | None = None,
    ) -> None:
        self._windows = Windows(at, every)
        self._plan = Plan(warmup=0, steps=steps, traced=traced, budget_s=float(MOST), memory=memory, flops=flops)
        require_flag("stacks", stacks)
        if keep_trace is not None:
            require_flag("keep_trace", keep_trace)
        require_name(name)
        if on_done is not None and not callable(on_done):
            raise TypeError(f"on_done must be a function of the profile, not {shown(on_done)}.")
        self._models, self._names = chosen_models(model)
        self._namespace, self._left = namespace, left
        self.loader = loader
        self._stacks, self._name, self._on_done = stacks, name, on_done
        self.recorder = recorder
        self.profiles = KeptProfiles(save, keep_trace=self._windows.single if keep_trace is None else bool(keep_trace))
        self.done = 0
        self._by_batch = False
        #: Steps before the next window as the user planned it, and before the one that opens: later if it did not fit.
        self._planned = self._next = self._due(0)
        #: The open window, if there is one: its passes, their next turn, and what surrounds the open step.
        self._passes: Passes[Capture] | None = None
        self._turn: Turn | None = None
        self._around: ExitStack | None = None
        self._waiting: ExitStack | None = None
        self._first = 0
        #: Of the open step: when its wait and it itself began (0 for not), how long it has waited, its batches' sizes.
        self._wait_ns, self._begin_ns, self._data_ns = 0, 0, _UNKNOWN
        self._sizes: list[int | None] = []
        self._tokens: list[int | None] = []
        self._made: Profile | None = None

    @property
    def next_at(self) -> int | None:
        """Number of steps before the next window; ``None`` if there is none to come."""
        return None if self._next == _NEVER else self._next

    @property
    def planned_at(self) -> int | None:
        """Number of steps after which the user planned the next window, also if it did not fit there."""
        return None if self._planned == _NEVER else self._planned

    @property
    def by_batch(self) -> bool:
        """Whether each batch counts as a step because no optimizer's step shows where a step ends."""
        return self._by_batch

    @by_batch.setter
    def by_batch(self, by_batch: bool) -> None:
        self._by_batch = by_batch
        if self.recorder is not None:
            self.recorder.by_batch = by_batch

    @property
    def is_open(self) -> bool:
        """Whether a window is open."""
        return self._passes is not None

    @property
    def length(self) -> int:
        """Steps in a window, apart from warm-up steps at the start of a run."""
        plan = self._plan
        return (plan.steps or 0) + 1 + plan.traced + 2 * plan.memory + plan.flops

    def wait(self) -> None:
        """The loop asks for a batch: the next step begins, or the open one waits once more."""
        if self._passes is not None or (not self._begin_ns and self.done >= self._next):
            self._guarded(self._starts_to_wait)
        elif not self._wait_ns:
            self._wait_ns = time.perf_counter_ns()
            self._begin_ns = self._begin_ns or self._wait_ns

    def begin(self, batch: Any = None) -> None:
        """The loop has the batch that it asked for, if there was one, and works on it."""
        if self._passes is not None or (not self._begin_ns and self.done >= self._next):
            self._guarded(self._works_on, batch)
        else:
            self._note_wait()

    def end(self) -> None:
        """The step has ended."""
        if self._passes is not None:
            self._guarded(self._step_ends, time.perf_counter_ns())
        elif self._begin_ns:
            begin, data = self._begin_ns, self._data_ns
            self._wait_ns, self._begin_ns, self._data_ns = 0, 0, _UNKNOWN
            if self.recorder is not None:
                self.recorder.step(time.perf_counter_ns() - begin, data, begin)
        self.done += 1
        if self._made is not None:
            self._tell()

    def skip(self) -> None:
        """The step that has begun does not take place: its batches ran out, or it failed and the loop goes on."""
        self._wait_ns, self._begin_ns, self._data_ns = 0, 0, _UNKNOWN
        if self._around is not None:
            self._guarded(self._step_is_skipped)

    def close(self) -> None:
        """Remove everything. A window that was open is given up, and starts over if more steps come.

        Can be called at any time, as before a validation, and again.
        """
        passes, self._passes, self._turn = self._passes, None, None
        self._wait_ns, self._begin_ns, self._data_ns = 0, 0, _UNKNOWN
        if passes is None:
            return
        atexit.unregister(self.close)
        self._next = self.done
        try:
            self._leave(GeneratorExit())
        finally:
            passes.close()
            if self.recorder is not None:
                self.recorder.leave()

    def join_first(self) -> int:
        """Count all steps so far as one, because they were its batches: its batches, or 1 if that was not possible.

        A window that is open starts over. Steps of a finished profile keep their numbers.
        """
        self.close()
        batches = self.done
        if self.profiles or self.recorder is None or not self.recorder.join_first():
            return 1
        self.recorder.batches = batches
        self.done, self._next = 1, max(1, self._planned)
        return batches

    def _guarded(self, part: Callable[..., None], *args: Any) -> None:
        """Run a part of a window; if it fails, the window is given up and the loop goes on."""
        first = self.done if self._passes is None else self._first
        try:
            part(*args)
        except Exception as error:
            self.close()
            self._next = self._due(self.done + 1)
            warnings.warn(
                f"perfnb: no profile at step {first}: {type(error).__name__}: {error}", RuntimeWarning, stacklevel=3
            )
        except BaseException:
            self.close()
            raise

    def _due(self, done: int) -> int:
        due = self._windows.next(done)
        self._planned = _NEVER if due is None else due
        return self._planned

    def _note_wait(self) -> None:
        """Add the wait that ends now, if there was one, to the step's."""
        now = time.perf_counter_ns()
        if self._wait_ns:
            self._data_ns = max(0, self._data_ns) + now - self._wait_ns
            self._wait_ns = 0
        self._begin_ns = self._begin_ns or now

    def _starts_to_wait(self) -> None:
        if self._waiting is not None:
            return
        begins = self._around is None
        if begins and not self._enter():
            self._wait_ns = self._begin_ns = time.perf_counter_ns()
            return
        assert self._turn is not None
        self._wait_ns = self._begin_ns if begins else time.perf_counter_ns()
        self._waiting = ExitStack()
        self._waiting.enter_context(self._turn.data())

    def _works_on(self, batch: Any) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.close()
        elif self._around is None:
            self._enter()
        self._note_wait()
        if batch is None or self._turn is None:
            return
        if self._turn.seen is not None:
            self._turn.seen(batch)
        begin = time.perf_counter_ns()
        self._sizes.append(common_size(batch))
        self._tokens.append(token_count(batch))
        self._begin_ns += time.perf_counter_ns() - begin  # not the step's

    def _step_ends(self, now: int) -> None:
        turn = self._turn
        if self._around is None or self._waiting is not None or turn is None:
            return
        begin, data = self._begin_ns, self._data_ns
        taken = total(self._sizes), total(self._tokens), max(1, len(self._sizes))
        self._leave(None)
        self._begin_ns, self._data_ns = 0, _UNKNOWN
        if self.recorder is not None:
            self.recorder.enter(turn.pass_name)
            self.recorder.step(now - begin, data, begin)
        self._advance(ExecutedStep(turn.pass_name, begin, now - begin, max(0, data), *taken))

    def _step_is_skipped(self) -> None:
        self._leave(SkippedStep())
        self._advance(None)

    def _open(self) -> bool:
        """Open a window unless one is open already; whether one is now."""
        if self._passes is not None:
            return True
        floor = FLOOR_GPU if accelerator_in_use() else FLOOR
        warmup, steps = max(0, floor - self.done), self._plan.steps or 1
        left = None if self._left is None else self._left()
        if left is not None:
            missing = warmup + self.length - left
            if missing >= steps:
                self._next = self.done + max(1, left)
                return False
            steps -= max(0, missing)
        self._first = self.done
        self._passes = loop_passes(
            plan=replace(self._plan, warmup=warmup, steps=steps),
            models=self._models,
            namespace=self._variables,
            batches=self.loader,
            stacks=self._stacks,
        )
        # torch's profiler must not outlive the interpreter.
        atexit.register(self.close)
        self._turn = next(self._passes)
        return True

    def _variables(self) -> Mapping[str, Any]:
        return {**({} if self._namespace is None else self._namespace()), **self._names}

    def _enter(self) -> bool:
        """Open what surrounds the next step, in a window that is open or opens now; whether there is one."""
        if not self._open():
            return False
        assert self._turn is not None
        self._sizes.clear()
        self._tokens.clear()
        self._around = ExitStack()
        self._around.enter_context(self._turn.around())
        self._wait_ns, self._data_ns, self._begin_ns = 0, _UNKNOWN, time.perf_counter_ns()
        return True

    def _leave(self, error: BaseException | None) -> None:
        """Close what surrounds the open step."""
        waiting, around, self._waiting, self._around = self._waiting, self._around, None, None
        for stack in (waiting, around):
            if stack is not None:
                stack.__exit__(None if error is None else type(error), error, None)

    def _advance(self, executed: ExecutedStep | None) -> None:
        assert self._passes is not None
        try:
            self._turn = self._passes.send(executed)
        except StopIteration as end:
            self._passes = self._turn = None
            atexit.unregister(self.close)
            self._next = self._due(self.done + 1)
            try:
                self._finish(end.value)
            finally:
                if self.recorder is not None:
                    self.recorder.leave()

    def _finish(self, capture: Capture) -> None:
        recording = recording_of(capture, self._name)
        loop = {"step": self._first, "batches": recording.meta.get("batches", 1)}
        if self.by_batch:
            loop["by_batch"] = True
        if self.recorder is not None:
            self.recorder.batches = loop["batches"]
        profile = Profile(replace(recording, meta={**recording.meta, "loop": loop}))
        self.profiles.add(profile, self._first)
        self._made = profile

    def _tell(self) -> None:
        """Give the profile just made to the user, whose errors are not perfnb's."""
        profile, self._made = self._made, None
        if self._on_done is not None and profile is not None:
            self._on_done(profile)
