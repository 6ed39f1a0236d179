"""Define the passes of a capture, which run one after the other over steps that other code executes.

A pass is a generator. It requests a step by yielding a `Turn`, and the executed step is then sent to the generator.
`StepRunner.drive` runs the user's step for each turn. In `perfnb.loop`, the turns are the steps of a running loop.
"""

from __future__ import annotations

import gc
import statistics
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import psutil
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from perfnb.interrupts import InterruptGate
from perfnb.step.arithmetic import OpCall, OpCounter
from perfnb.step.budget import FEWEST, Plan, is_steady, require_passing_time
from perfnb.step.capture import Capture
from perfnb.step.ceilings import MEASURABLE, measure_ceilings
from perfnb.step.checks import refuse_meta
from perfnb.step.compiler import CompilesAgain, compilations, end_for_profiling
from perfnb.step.device import StepClock, accelerator_in_use, is_out_of_memory, read_clocks, synchronize
from perfnb.step.environment import Conditions, lower_precision, usable_cpus
from perfnb.step.installed import Installed
from perfnb.step.layers import Calls, LayerSpans, function_span
from perfnb.step.memory import MemoryWatch, WatchedMemory, footprint
from perfnb.step.namespace import named_values
from perfnb.step.stack_sampler import StackSampler
from perfnb.step.steps import BatchSource, Passes, Turn
from perfnb.step.tracer import Costs, Tracer, exclusive, measure_costs
from perfnb.step.worker_stacks import WorkerStacks
from perfnb.trace_names import DATA_SPAN, STEP_SPAN

#: The recording of allocations over many steps ends when the process has grown by this many bytes (an event takes
#: 0.4 KiB), provided that there are enough steps for an interval. Reading the trace takes seven times as much memory.
MOST_RECORDED_BYTES, FEWEST_RECORDED = 256 * 2**20, 15

#: The number of steps that run while models are recompiled. The second step may encounter different shapes.
_TO_RECOMPILE = 2

#: A function that is called after each step with the name of the pass, the number of completed steps, the number of
#: planned steps (or ``None``), and sometimes a note for the user.
Progress = Callable[..., None]


class Session(Installed):
    """Context manager for a capture, whose methods are the passes. If an error occurs, the profiler's memory is freed.

    Parameters
    ----------
    plan : Plan
    models : list of Module or None
        Restrict layers to these models.
    source : BatchSource or None
        The source of batches, which is closed at the end.
    namespace : mapping or None
        The variables that the first step's optimizers are named after. If ``None``, optimizer calls are not counted.
    progress : callable, optional

    Attributes
    ----------
    capture : Capture
        The results so far.
    calls : Calls
        The module calls in all passes that record layer spans.
    plan, models, source
        The corresponding parameters.
    running : str
        The name of the current or most recent pass.
    """

    def __init__(
        self,
        plan: Plan,
        models: list[nn.Module] | None = None,
        source: BatchSource | None = None,
        namespace: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.capture = Capture(meta={"options": asdict(plan), "models_chosen": models is not None})
        self.calls = Calls()
        self.running = "warmup"
        progress = progress or (lambda *_: None)
        self.plan, self.models, self._progress = plan, models, progress
        self.source, self._gate, self._conditions = source, InterruptGate(), Conditions()
        self._begin = time.perf_counter()
        self._bare: Costs | None = None
        #: Whether to wait for the device after each step, because events do not cover all of the step's work.
        self._waits = False
        self._uncompiled_from: int | None = None
        self._timed_already: list[int] = []
        self._notes: list[str] = []
        self._again = False
        #: The models that were recompiled, and that ran the recompiled code in the traced steps.
        self.recompiled: list[nn.Module] = []
        self._first: FirstStep | None = None
        if namespace is not None:
            self._first = FirstStep(lambda note: progress("warmup", 0, None, note), namespace)

    def _install(self, stack: ExitStack) -> None:
        stack.enter_context(self._gate)
        stack.enter_context(exclusive())
        stack.callback(end_for_profiling)
        if self.source is not None:
            stack.callback(self.source.close)

    def __exit__(self, *exc_info: Any) -> None:
        if exc_info[0] is not None:
            self.capture.close()
        self._installed.__exit__(*exc_info)

    def _spent_s(self) -> float:
        return time.perf_counter() - self._begin

    @contextmanager
    def _outside_budget(self) -> Iterator[None]:
        """Exclude the time spent inside the block from the time budget, which applies only to steps."""
        begin = self._spent_s()
        yield
        self._begin += self._spent_s() - begin

    def warm_up(self) -> Passes[list[int]]:
        """Run steps until the step time is in steady state, or as many steps as requested."""
        __tracebackhide__ = True
        plan = self.plan

        def more(times: list[int]) -> bool:
            if plan.warmup is None and len(times) == FEWEST:
                require_passing_time(times)
            return plan.goes_on_warming(times, self._spent_s(), accelerator_in_use())

        times = yield from self._run("warmup", plan.warmup, more=more)
        if len(times) == 2 and plan.steps_are_long(times, self._spent_s()):
            # Steps that take this long must not be wasted. The first was the warm-up, and the second counts as timed.
            self.capture.steps[-1] = self.capture.steps[-1]._replace(pass_name="timed")
            self._timed_already.append(times.pop())
        self.capture.meta["steady"] = is_steady(times)
        return times

    def time(self, warm_ns: list[int]) -> Passes[list[int]]:
        """Run steps without a profiler or hooks to measure the true step time."""
        __tracebackhide__ = True
        plan, already = self.plan, self._timed_already
        wanted = plan.timed_steps(warm_ns)

        def more(times: list[int]) -> bool:
            recent = times or already or warm_ns
            step_s = recent[-1] / 1e9 if recent else 0.0
            return plan.goes_on_timing(len(already) + len(times), wanted, self._spent_s(), step_s)

        before = measure_costs()
        with self._conditions:
            times = already + (yield from self._run("timed", wanted - len(already), more=more))
        require_passing_time(times)
        self._bare = before.least(measure_costs())
        noise = self._conditions.facts
        noise["gc_pauses"] = [[step + len(already), ms] for step, ms in noise["gc_pauses"]]
        self.capture.meta["noise"] = noise
        self.capture.meta["timed_cut_short"] = len(times) < wanted
        self._note_compilations("compilations", "timed")
        return times

    def _note_compilations(self, key: str, pass_name: str) -> None:
        """Record the compilations that took place during the steps of a pass."""
        steps = [step for step in self.capture.steps if step.pass_name == pass_name]
        if compiled := compilations([(step.begin_ns, step.begin_ns + step.wall_ns) for step in steps]):
            self.capture.meta[key] = compiled

    def try_threads(self, timed_ns: list[int]) -> Passes[None]:
        """Time a few steps with one thread per core, and record the result in `meta`.

        This pass only runs if torch uses more threads than there are cores, or far fewer threads.
        """
        __tracebackhide__ = True
        threads, cores = torch.get_num_threads(), max(1, int(usable_cpus()))
        if accelerator_in_use() or not timed_ns or not (threads > cores or 2 * threads < cores):
            return
        step_s = _median_s(timed_ns)
        count = self.plan.steps_to_try(self._spent_s(), step_s)
        if count == 0:
            return
        torch.set_num_threads(cores)
        try:
            yield from self._run("trial", 2)
            times = yield from self._run("trial", count)
        finally:
            torch.set_num_threads(threads)
        self.capture.meta["threads_tried"] = {"threads": cores, "steps_ms": [ns / 1e6 for ns in times]}

    def trace(self, timed_ns: list[int], stacks: bool) -> Passes[None]:
        """Run steps with layer spans in a single torch.profiler session, using recompiled code if requested."""
        __tracebackhide__ = True
        with CompilesAgain() if self.plan.recompile else nullcontext() as again:
            if again is not None:
                self.recompiled = again.models
                with self._outside_budget():
                    yield from self._run("recompiled", _TO_RECOMPILE)
            yield from self._trace(timed_ns, stacks)

    def _trace(self, timed_ns: list[int], stacks: bool) -> Passes[None]:
        __tracebackhide__ = True
        count, lead_in = self.plan.traced_steps(self._spent_s(), _median_s(timed_ns))
        bare = measure_costs()
        with Tracer(devices=True, stacks=stacks) as tracer:
            with LayerSpans() as idle:
                traced = measure_costs(idle)
            with LayerSpans(self.models, self.calls, outermost=refuse_meta):
                if lead_in:
                    yield from self._run("lead_in", 1, nullcontext)
                yield from self._run("traced", count, self._numbered())
            with LayerSpans() as idle:
                traced = traced.least(measure_costs(idle))
        self.capture.tracer = tracer
        if tracer.devices:
            with self._outside_budget():
                tracer.read()
        self._note_compilations("traced_compilations", "traced")
        bare = bare.least(measure_costs())
        self.capture.meta |= {
            "cost": traced.beyond(bare)._asdict(),
            # The machine's speed varies, and the smallest of all measurements is the best match for the fastest steps.
            "bare_cost": (bare if self._bare is None else self._bare.least(bare))._asdict(),
            "stacks": stacks,
            "traced_cut_short": count < self.plan.traced,
        }

    def sample_stacks(self, timed_ns: list[int], workers: WorkerStacks) -> Passes[None]:
        """Run steps without a profiler while threads sample Python stacks in this process and in each loader worker."""
        __tracebackhide__ = True
        count = self.plan.sampled_steps(self._spent_s(), _median_s(timed_ns))
        with workers.sampling():
            yield from self._sample(count)
        self.capture.workers, self.capture.unreached_workers = workers.read(), workers.unreached

    def sample_if(self, worth: Callable[[Capture], bool]) -> Passes[None]:
        """Sample Python stacks briefly if there is enough time and `worth` approves the results of all other passes.

        `worth` is allowed to close the capture.
        """
        __tracebackhide__ = True
        timed_ns = [step.wall_ns for step in self.capture.steps if step.pass_name == "timed"]

        def affordable() -> int:
            return self.plan.briefly_sampled_steps(self._spent_s(), _median_s(timed_ns), len(timed_ns))

        if affordable() == 0:
            return
        with self._gate.opened():
            wanted = worth(self.capture)
        if wanted and (count := affordable()):  # calling `worth` took time
            yield from self._sample(count)

    def _sample(self, count: int) -> Passes[None]:
        """Run steps while a thread samples Python stacks."""
        __tracebackhide__ = True
        outermost = {
            id(module): (module, number in self.calls.loss)
            for number, module, around in self.calls.records
            if around is None
        }
        with StackSampler(outermost.values()) as sampler:
            yield from self._run("sampled", count, sampler.step)
        self.capture.sampler = sampler

    def watch_memory(self, *, lead_in: bool | None = None) -> Passes[None]:
        """Run one step and record every allocation, even if the step runs out of memory.

        An optional lead-in step is also recorded, but not counted. It shows which objects are alive when the counted
        step starts.
        """
        __tracebackhide__ = True
        if lead_in is None:
            lead_in = self.plan.affords_lead_in(self._spent_s(), self.capture.steps[-1].wall_ns / 1e9)
        tracer, watch = Tracer(memory=True, keeps=is_out_of_memory), MemoryWatch(self.called)
        self.capture.memory = (watch.watched, tracer)
        numbered = self._numbered()

        @contextmanager
        def watched() -> Iterator[None]:
            with watch.step(), numbered():
                yield

        with tracer, watch, LayerSpans(self.models, self.calls, outermost=watch.inputs):
            if lead_in:
                yield from self._run("lead_in", 1, watched, watch.inputs)
            yield from self._run("counted", 1, watched, watch.inputs)
            gc.collect()  # garbage in reference cycles is not a leak

    def count_arithmetic(self) -> Passes[None]:
        """Run one step and count its operators."""
        __tracebackhide__ = True
        self._uncompiled_from = len(self.calls.records)
        with Tracer() as tracer, LayerSpans(self.models, self.calls, uncompiled=True), OpCounter() as counter:
            yield from self._run("counted", 1, self._numbered())
        self.capture.arithmetic = (counter.calls, tracer)

    def measure_ceilings(self, *, only_kept: bool = False) -> None:
        """Measure the machine's ceilings for the dtypes in the counted step, and record them in `meta`.

        This method must be called after `count_arithmetic`. If `only_kept` is true, only ceilings that were measured
        earlier are used.
        """
        __tracebackhide__ = True
        assert self.capture.arithmetic is not None
        calls, _ = self.capture.arithmetic
        device = _where_computed(calls)
        if device not in MEASURABLE:
            return
        self._progress("ceilings", 0, None)
        with self._gate.opened():
            dtypes = dict.fromkeys(call.dtype for call in calls if call.flops)
            if "float32" in dtypes and (lower := lower_precision(device)) is not None:
                dtypes[lower] = None  # needed to estimate the gain from lower precision
            if "float64" in dtypes:
                dtypes["float32"] = None
            ceilings = measure_ceilings(dtypes, device, only_kept=only_kept)
            self.capture.meta["ceilings"] = {"on": device, **ceilings}

    def read_process(self, count: int) -> Passes[list[int]]:
        """Run steps without a profiler or hooks, and return the process's resident memory in bytes after each step."""
        __tracebackhide__ = True
        readings: list[int] = []
        with footprint() as read:
            yield from self._run("process", count, after=lambda: readings.append(read()))
        return readings

    def record_allocations(self, count: int, at_end: Callable[[], None]) -> Passes[int]:
        """Run steps while every allocation is recorded, then collect garbage. Live objects are not inspected.

        `at_end` is called inside each step, at its end. The method returns the number of steps, which is lower than
        requested if the recording grows too large.
        """
        __tracebackhide__ = True
        numbered = self._numbered()
        resident = psutil.Process().memory_info
        begin = resident().rss

        @contextmanager
        def recorded() -> Iterator[None]:
            with numbered():
                yield
                at_end()

        def more(times: list[int]) -> bool:
            done = len(times)
            return done < min(count, FEWEST_RECORDED) or (done < count and resident().rss - begin < MOST_RECORDED_BYTES)

        with Tracer(memory=True) as tracer, LayerSpans(self.models, self.calls):
            times = yield from self._run("counted", count, recorded, more=more)
            gc.collect()
        self.capture.memory = (WatchedMemory(), tracer)
        return len(times)

    def watch_failure(self, error: Exception) -> Passes[Exception]:
        """Find the owners of memory after a step ran out of memory, and return the error to report.

        If memory was not being recorded, the objects in the error's traceback are released, and the step is run again
        on the same batch. If it fails again, the second error is returned.
        """
        __tracebackhide__ = True
        if self.capture.memory is not None:
            return error
        first = "".join(traceback.format_exception(error))
        error.__traceback__ = error.__context__ = None
        self._again = True
        try:
            yield from self.watch_memory(lead_in=False)
        except Exception as again:
            return again
        error.add_note(f"The step was run again and did not run out of memory. The first error:\n{first}")
        return error

    def watched_calls(self) -> Calls:
        """Return the calls that are used to name layers.

        Calls in the counted step are left out, because this step runs compiled regions uncompiled.
        """
        until = self._uncompiled_from
        if until is None:
            return self.calls
        begins = [begin for begin in self.calls.begins if begin < until]
        records, uncompiled = self.calls.records[:until], self.calls.records[until:]
        seen = {id(part) for _, module, _ in records for part in (module, *module.children())}
        hidden = {
            id(module): module
            for number, module, around in uncompiled
            if around is None and number not in self.calls.loss and id(module) not in seen
        }
        return replace(self.calls, records=records, begins=begins, hidden=[*hidden.values()])

    def called(self) -> list[nn.Module]:
        return list({id(module): module for _, module, _ in self.calls.records}.values())

    def _numbered(self) -> Callable[[], AbstractContextManager[Any]]:
        """Return a function that returns a span for the pass's next step.

        If a step is skipped, the span of the following step has the same number.
        """
        first = len(self.capture.steps)

        def next_span() -> AbstractContextManager[Any]:
            self.calls.begin_step()
            return function_span(f"{STEP_SPAN}{len(self.capture.steps) - first}")  # type: ignore[no-any-return]

        return next_span

    def _run(
        self,
        pass_name: str,
        count: int | None,
        span: Callable[[], AbstractContextManager[Any]] | None = None,
        seen: Callable[[Any], None] | None = None,
        *,
        more: Callable[[list[int]], bool] | None = None,
        after: Callable[[], None] | None = None,
    ) -> Passes[list[int]]:
        """Run `count` steps of a pass, or run steps as long as `more` returns true, and return their durations in ns.

        `more` is called with the durations so far. `span` returns the span around each step, and `seen` is called with
        the step's batch. `after` is called after each step and is not included in the step's duration.
        """
        __tracebackhide__ = True
        self.running = pass_name
        steps, conditions = self.capture.steps, self._conditions
        hosts: list[int] = []
        first = len(steps)
        synchronize()
        clock = StepClock(wait=self._waits)
        data = nullcontext if span is None else partial(function_span, DATA_SPAN)

        @contextmanager
        def around() -> Iterator[None]:
            __tracebackhide__ = True
            with self._first or nullcontext(), self._gate.opened():
                conditions.step, conditions.running = len(hosts), True
                clock.begin()
                with nullcontext() if span is None else span():
                    yield

        while more(hosts) if more is not None else len(hosts) < (count or 0):
            again, self._again = self._again, False
            executed = yield Turn(pass_name, around, data, seen, again)
            if executed is None:
                conditions.running = False
                continue
            steps.append(executed)
            hosts.append(steps[-1].wall_ns)
            clock.end(hosts[-1])
            conditions.ended(executed.begin_ns, executed.begin_ns + executed.wall_ns)
            if after is not None:
                after()
            if self._first is not None:
                self._first_step_ended(self._first.looped, hosts[-1] / 1e9)
            self._progress(pass_name, len(hosts), count, *self._notes)
        [durations], lagged = read_clocks(clock)
        self._waits = self._waits or lagged
        for place, wall in enumerate(durations, start=first):
            steps[place] = steps[place]._replace(wall_ns=wall)
        return durations

    def _first_step_ended(self, looped: dict[str, Any] | None, step_s: float) -> None:
        """Collect notes for the user after the first step has run."""
        self._first = None
        notes = [self.plan.why_longer(self._spent_s(), step_s)]
        if looped is not None:
            self.capture.meta["optimizer_steps"] = looped
            notes.insert(0, f"your step calls {looped['optimizer']}.step() {looped['times']:,} times: {_ADVICE}")
        self._notes = ["; ".join(filter(None, notes))] if any(notes) else []


def _median_s(times_ns: list[int]) -> float:
    return statistics.median_high(times_ns) / 1e9


def _where_computed(calls: list[OpCall]) -> str:
    """Return the kind of device that performed most of the arithmetic."""
    flops: Counter[str] = Counter()
    for call in calls:
        flops[call.device] += call.flops or 0
    return max(flops, key=flops.__getitem__, default="cpu")


#: If a step contains more optimizer steps than this, it is probably a loop. Some training methods require a few.
MOST_STEPS = 8


#: The maximum length of a name. A longer one, such as a key in a dict of optimizers, is less helpful than the class.
_LONGEST_NAME = 60


class FirstStep:
    """Context manager that counts how often each optimizer is called while a step is executed for the first time.

    If the step looks like a loop, `tell` is called with a note while the step is still running. Optimizers are named
    after their variables in `namespace` or, if an optimizer is not in a variable, after its class.
    """

    def __init__(self, tell: Callable[[str], Any], namespace: Mapping[str, Any]) -> None:
        self._tell, self._namespace = tell, namespace
        self._times: Counter[tuple[int, str]] = Counter()
        self._hook: Any = None

    def __enter__(self) -> FirstStep:
        self._hook = register_optimizer_step_post_hook(self._stepped)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._hook.remove()

    @property
    def looped(self) -> dict[str, Any] | None:
        """The name and call count of the optimizer called most often, if there are too many calls for one iteration."""
        key, times = next(iter(self._times.most_common(1)), ((0, ""), 0))
        return {"optimizer": self._name(*key), "times": times} if times > MOST_STEPS else None

    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        key = id(optimizer), type(optimizer).__name__
        self._times[key] += 1
        if self._times[key] == MOST_STEPS + 1:
            self._tell(f"your step has called {self._name(*key)}.step() {MOST_STEPS + 1} times already: {_ADVICE}")

    def _name(self, identity: int, kind: str) -> str:
        """Return the name of the variable that refers to the optimizer or, if there is none, the optimizer's class."""
        names = (name for name, value in named_values(self._namespace, Optimizer) if id(value) == identity)
        return next((name for name in names if len(name) <= _LONGEST_NAME), kind)


_ADVICE = "profile one iteration, not the whole loop"
