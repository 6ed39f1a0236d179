"""Try levers on a running loop, by switching them on and off between blocks of its own steps."""

from __future__ import annotations

import inspect
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from perfnb import quantities as fmt
from perfnb.bench.restored import Restored
from perfnb.interrupts import InterruptGate
from perfnb.profile import places
from perfnb.remedies.blocks import IN_LOOPS, LEAD, BlockTrial, answer, counted_steps, judged
from perfnb.remedies.lever import Lever, Switch, attribute
from perfnb.remedies.levers import by_name
from perfnb.remedies.levers.loading import RestOfData, no_rest, workers_for, workers_needed
from perfnb.remedies.levers.threads import candidates
from perfnb.remedies.subject import Subject
from perfnb.remedies.verdicts import bound_of, worth_trying
from perfnb.step.device import accelerator_in_use, synchronize
from perfnb.step.environment import place_in_job, usable_cpus
from perfnb.step.namespace import named_values, names_of
from perfnb.step.steps import SkippedStep, after_optimizer_steps

if TYPE_CHECKING:
    from perfnb.profile.profile import Profile

#: A trial's course from step to step: a generator that is sent ``None`` when a step begins, and the step's milliseconds
#: when it has ended. `SkippedStep` is thrown into the generator if the current step does not count.
_Steps = Generator[None, float | None, Any]


class LoopTrial:
    """Switch levers on and off over blocks of a loop's own steps, and remove everything at the end.

    The code that runs the loop calls `begin` before a step requests its batch, `next` to get this batch, and `end`
    after the step. It calls `pause` when the loop is interrupted: all levers are then switched off, and the current
    block starts over with the next step. If a lever causes an error, its trial ends, and the step continues without it.

    Parameters
    ----------
    wanted : list of str
        The levers to try. If empty, these are the levers that address a finding and those that cost little to try.
    bounds : mapping of str to float
        The largest possible saving according to each of the profile's findings, in milliseconds.
    roots : sequence of str
        The names of the models that the loop's steps call.
    usual_ms : tuple of float
        The usual duration of the loop's steps, and the part of it spent waiting for data.
    namespace : callable
        A function that returns the loop's variables.
    loader : object
        The object that provides the loop's batches.

    Attributes
    ----------
    finished : bool
        Whether there is nothing left to try.
    trials : list of BlockTrial
    """

    def __init__(
        self,
        wanted: Sequence[str],
        bounds: Mapping[str, float],
        roots: Sequence[str],
        usual_ms: tuple[float, float],
        namespace: Callable[[], Mapping[str, Any]],
        loader: Any,
    ) -> None:
        self._wanted, self._bounds, self._roots = wanted, bounds, set(roots)
        self._step_ms, self._wait_ms = usual_ms
        self._namespace, self._loader = namespace, loader
        self.finished = self._in_step = False
        self.trials: list[BlockTrial] = []
        self._rest: RestOfData | None = None
        self._steps = self._run()
        next(self._steps)

    def begin(self) -> None:
        """Record that a step begins."""
        self._in_step = True
        self._go_on(self._steps.send, None)

    def next(self, batches: Iterator[Any]) -> Any:
        """Return the next batch from the loop's loader."""
        return next(batches) if self._rest is None else self._rest.next(batches)

    def end(self, ms: float) -> None:
        """Record the end of the step and its duration."""
        self._in_step = False
        self._go_on(self._steps.send, ms)

    def pause(self) -> None:
        """Turn all levers off, because the loop was interrupted or is over."""
        self._in_step = False
        self._go_on(self._steps.throw, SkippedStep())
        if self._rest is not None:
            self._rest.stop()

    def close(self) -> None:
        """End the trial and turn all levers off for good."""
        self.finished = True
        with InterruptGate():
            self._steps.close()

    def found(self) -> tuple[list[dict[str, Any]], str]:
        """Return the results so far, both as entries for the run's summary and as a line of text."""
        trials = judged(self.trials)
        return [one.as_tried(kept=one.helps("time"), left=None) for one in trials], answer(trials)

    def _fail(self, error: Exception) -> None:
        """Record that the active lever has failed in the current step."""
        self._go_on(self._steps.throw, error)

    def _go_on(self, move: Callable[[Any], Any], with_this: Any) -> None:
        """Switch levers or do other work that is due. Interrupts are deferred until this is done."""
        if self.finished:
            return
        with InterruptGate():
            try:
                move(with_this)
            except StopIteration:
                self.finished = True
            except Exception as error:
                self.finished = True
                warnings.warn(f"perfnb: no more levers are tried: {_first_line(error)}", RuntimeWarning, stacklevel=4)

    # The trial from the first step to the last. Each `yield` waits until a step begins or ends.

    def _run(self) -> _Steps:
        subject = yield from self._look()
        ready = self._chosen(subject)
        if ready:
            names = ", ".join(lever.name for lever, _ in ready)
            steps = fmt.counted(sum(trial.steps for _, trial in ready), "step")
            print(
                f"perfnb: in the next {steps}, levers are switched on and off at random: {names}. Each step runs once. "
                "The run remains valid but not bit-identical, and your own settings are restored afterwards.",
                file=sys.stderr,
            )
        for lever, trial in ready:
            try:
                with self._prepared(lever, subject) as switch:
                    trial.code = self._lines(lever, subject)
                    yield from self._pairs(trial, switch)
            except Exception as error:
                trial.why_not = f"the step fails with it: {_first_line(error)}"
                if self._in_step:  # the step ends without the lever
                    with suppress(SkippedStep):
                        yield

    def _look(self) -> _Steps:
        """Determine which optimizers step in a step without levers, and the names of all parts."""
        stepped: list[Optimizer] = []
        while True:
            with suppress(SkippedStep), ExitStack() as stack:
                yield
                namespace = self._namespace()
                self._files, self._place = places.users_files(), places.users_place()
                stack.callback(after_optimizer_steps(lambda optimizer, *_: stepped.append(optimizer)))
                yield
                break
        models = {name: model for name, model in named_values(namespace, nn.Module) if name in self._roots}
        named = names_of(namespace, Optimizer)
        optimizers = {named.get(id(one), type(one).__name__): one for one in stepped}
        loader = self._loader if isinstance(self._loader, DataLoader) else None
        of_loader = None if loader is None else (names_of(namespace, DataLoader).get(id(loader)), loader)
        subject = Subject(lambda: None, self._loader, models, optimizers, of_loader, trains=bool(optimizers))
        subject.kinds = {parameter.device.type for parameter in subject.parameters} or {"cpu"}
        workers = workers_needed(self._wait_ms, self._step_ms - self._wait_ms, usable_cpus())
        subject.chosen = {"workers": workers, "threads": next(iter(candidates()), 0)}
        return subject

    def _chosen(self, subject: Subject) -> list[tuple[Lever, BlockTrial]]:
        """Return the levers to try with their notes, most promising first."""
        known, ready = by_name(), []
        usual = worth_trying((known[name] for name in IN_LOOPS), self._bounds, "time")
        for lever in [known[name] for name in self._wanted] or usual:
            lead = 1 + 2 * workers_for(subject) if lever.in_blocks and subject.loader else LEAD
            trial = BlockTrial(lever.name, "not timed", family=lever.family, lead=lead)
            trial.counted = counted_steps(self._step_ms, lead)
            trial.why_not = (no_rest(subject) if lever.in_blocks else "") or lever.refuses(subject)
            if not trial.why_not:
                ready.append((lever, trial))
            elif lever.in_blocks and subject.loader:
                trial.why_not += f"; to try it yourself: {'; '.join(self._lines(lever, subject))}"
            if not trial.why_not or self._wanted or bound_of(lever, self._bounds) is not None:
                self.trials.append(trial)
        return ready

    def _pairs(self, trial: BlockTrial, switch: Switch) -> _Steps:
        for order in trial.orders():
            took: dict[bool, float] = {}
            for on in order:
                before_ms, took[on] = yield from self._block(trial, switch if on else nullcontext)
                if on and trial.setup_s is None:
                    trial.setup_s = max(0.0, before_ms - trial.lead * self._step_ms) / 1e3
            trial.add(took)

    def _block(self, trial: BlockTrial, switch: Switch) -> _Steps:
        """Run a block to its end.

        Return the total milliseconds of the steps that do not count, and the milliseconds per counted step.
        """
        while True:
            with suppress(SkippedStep):
                yield
                with switch():
                    times: list[Any] = []
                    for place in range(trial.lead + trial.counted):
                        if place:
                            yield
                        if place == trial.lead:
                            synchronize()
                            begin = time.perf_counter()
                        times.append((yield))
                    synchronize()
                    elapsed_ms = (time.perf_counter() - begin) * 1e3
                counted_ms = elapsed_ms if accelerator_in_use() else sum(times[trial.lead :])
                return sum(times[: trial.lead]), counted_ms / trial.counted

    # One lever

    @contextmanager
    def _prepared(self, lever: Lever, subject: Subject) -> Iterator[Switch]:
        """Prepare a lever, whose switch then keeps the lever's errors from affecting the loop's step."""
        with ExitStack() as stack:
            if lever.in_blocks:
                self._rest = rest = RestOfData(subject, self._fail)
                stack.callback(setattr, self, "_rest", None)
                stack.callback(rest.stop)
                switch: Switch = rest.on
            else:
                switch = stack.enter_context(lever.prepared(subject))
            yield partial(self._guarded, lever, subject, switch, set())

    @contextmanager
    def _guarded(self, lever: Lever, subject: Subject, switch: Switch, rehearsed: set[int]) -> Iterator[None]:
        own = [(model, model.forward, vars(model).get("forward")) for model in subject.models.values()]
        with switch(), ExitStack() as guards:
            for model, forward, before in own:
                if (changed := vars(model).get("forward")) is not before:
                    rehearse = rehearsed if lever.settles else None
                    guarded = _GuardedForward(model, forward, changed, self._fail, rehearse)
                    guards.enter_context(attribute(model, "forward", guarded))
            for optimizer in subject.optimizers.values() if lever.family == "update" else ():
                hook = optimizer.register_step_pre_hook(partial(self._rehearse_update, rehearsed))
                guards.callback(hook.remove)
            yield

    def _rehearse_update(self, rehearsed: set[int], optimizer: Optimizer, *_: Any) -> None:
        """Rehearse an optimizer's first step with a lever on, without any effect."""
        if id(optimizer) in rehearsed:
            return
        rehearsed.add(id(optimizer))
        try:
            with Restored([], [optimizer]), torch.no_grad():
                inspect.unwrap(type(optimizer).step)(optimizer)  # without any hooks
        except Exception as error:
            self._fail(error)

    def _lines(self, lever: Lever, subject: Subject) -> list[str]:
        """Return the lines that make a lever permanent, adapted to the place where they belong if it is known."""
        parts: list[tuple[str, str | None]] = []
        changed: dict[str, int | None] = {"fused": True, "foreach": None}
        if lever.in_blocks and subject.loader is not None:
            parts, changed = [("DataLoader", subject.loader[0])], {"num_workers": workers_for(subject)}
        elif lever.family == "update":
            parts = [(type(one).__name__, name) for name, one in subject.optimizers.items()]
            changed = changed if lever.name == "fused_optimizer" else {"foreach": True}
        lines = [places.rewritten(self._files, kind, name, **changed) for kind, name in parts]
        if lines and all(lines):
            return lines
        where = f"  # before the loop: {self._place}" if self._place else "  # the place is unknown"
        return [line if line.startswith("#") else line + where for line in lever.code(subject)]


def begin_trial(
    wanted: Sequence[str], profile: Profile, namespace: Callable[[], Mapping[str, Any]], loader: Any
) -> LoopTrial | None:
    """Start trying levers on a loop after some of its steps have been profiled.

    If this is not possible, issue a warning and return ``None``.
    """
    from perfnb.remedies.try_levers import bounds_of

    if (place_in_job() or {}).get("world_size", 1) > 1:
        reason = "the job has several ranks, which would have to switch levers together"
        warnings.warn(f"perfnb: no levers were tried: {reason}.", RuntimeWarning, stacklevel=4)
        return None
    modules, steps = profile._recording.modules, profile.steps
    step_ms, wait_ms = steps.loc[steps["pass"] == "timed", ["wall_ms", "data_ms"]].median().fillna(0.0)
    roots = modules.loc[modules["parent"] < 0, "name"].tolist()
    return LoopTrial(wanted, bounds_of(profile.findings), roots, (step_ms, wait_ms), namespace, loader)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


class _GuardedForward:
    """Run a model's forward with a lever on, and continue without the lever after an error.

    A copy of the model has its own forward. The forward is first `rehearsed` without effect. If errors can occur in the
    backward pass, it is rehearsed as well.
    """

    def __init__(self, model: nn.Module, own: Any, changed: Any, failed: Any, rehearsed: set[int] | None) -> None:
        update_wrapper(self, own)
        self._model, self._own, self._changed, self._failed, self._rehearsed = model, own, changed, failed, rehearsed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            if self._rehearsed is not None and id(self._model) not in self._rehearsed:
                self._rehearsed.add(id(self._model))
                self._rehearse(args, kwargs)
            return self._changed(*args, **kwargs)
        except Exception as error:
            self._failed(error)
        return self._own(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._own.__reduce_ex__(protocol)

    def _rehearse(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with Restored([self._model], []):
            leaves = [leaf for leaf in tree_leaves(self._changed(*args, **kwargs)) if isinstance(leaf, Tensor)]
            roots = [leaf for leaf in leaves if leaf.requires_grad]
            trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
            if roots and trained:
                torch.autograd.grad(roots, trained, list(map(torch.zeros_like, roots)), allow_unused=True)
