"""The passes of a capture, one after the other, over the same step."""

from __future__ import annotations

import gc
import itertools
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from typing import Any, NamedTuple

import psutil
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from perfnb.interrupts import InterruptGate
from perfnb.step.arithmetic import OpCall, OpCounter
from perfnb.step.budget import FEWEST, Plan, is_steady, require_passing_time
from perfnb.step.ceilings import measure_ceilings
from perfnb.step.conditions import Conditions
from perfnb.step.device import StepClock, cuda_in_use, synchronize
from perfnb.step.environment import lower_precision, usable_cpus
from perfnb.step.given import refuse_meta
from perfnb.step.layers import Calls, LayerSpans
from perfnb.step.memory import MemoryWatch, WatchedMemory, is_out_of_memory
from perfnb.step.namespace import named_values
from perfnb.step.process_memory import Footprint
from perfnb.step.steps import StepRunner
from perfnb.step.tracer import Costs, Tracer, data_span, measure_costs, step_span

#: Growth of the process, 0.4 KiB per event, at which the recording of allocations over many steps stops, if it has the
#: fewest steps needed for an interval: reading the trace takes seven times as much memory.
MOST_RECORDED_BYTES, FEWEST_RECORDED = 256 * 2**20, 15

#: Called after each step with the pass, its steps done, its steps planned (or ``None``), and sometimes a note for the
#: user.
Progress = Callable[..., None]


class ExecutedStep(NamedTuple):
    """An executed step of any pass; `begin_ns` is `time.perf_counter_ns` at its start."""

    pass_name: str
    begin_ns: int
    wall_ns: int
    data_ns: int
    samples: int | None


class Session:
    """Runs the passes of a capture and keeps their shared state.

    Attributes
    ----------
    executed : list of ExecutedStep
        Every completed step, in order.
    calls : Calls
        The module calls of all passes with layer spans.
    memory : tuple of WatchedMemory and Tracer, or None
        Recorded memory, and its trace.
    arithmetic : tuple of list of OpCall and Tracer, or None
        Counted operators, and their trace.
    running : str
        The current or last pass.
    meta : dict
        Facts about the run; JSON-able.
    """

    def __init__(
        self,
        runner: StepRunner,
        plan: Plan,
        models: list[nn.Module] | None,
        gate: InterruptGate,
        progress: Progress,
        namespace: Mapping[str, Any] | None = None,
    ) -> None:
        self.executed: list[ExecutedStep] = []
        self.calls = Calls()
        self.memory: tuple[WatchedMemory, Tracer] | None = None
        self.arithmetic: tuple[list[OpCall], Tracer] | None = None
        self.running = "warmup"
        self.meta: dict[str, Any] = {"options": asdict(plan), "models_chosen": models is not None}
        self._runner, self._plan, self._models, self._gate, self._progress = runner, plan, models, gate, progress
        self._begin = time.perf_counter()
        self._bare: Costs | None = None
        self._uncompiled_from: int | None = None
        self._timed_already: list[int] = []
        self._notes: list[str] = []
        self._first: FirstStep | None = FirstStep(lambda note: progress("warmup", 0, None, note), namespace or {})

    def _spent_s(self) -> float:
        return time.perf_counter() - self._begin

    def warm_up(self) -> list[int]:
        """Run until the step time is in steady state, or as often as requested."""
        __tracebackhide__ = True
        plan = self._plan

        def more(times: list[int]) -> bool:
            if plan.warmup is None and len(times) == FEWEST:
                require_passing_time(times)
            return plan.goes_on_warming(times, self._spent_s(), cuda_in_use())

        times = self._run("warmup", plan.warmup, more=more)
        if len(times) == 2 and plan.steps_are_long(times, self._spent_s()):
            # Steps this long are too precious: the first one was the warm-up, the second counts as timed.
            self.executed[-1] = self.executed[-1]._replace(pass_name="timed")
            self._timed_already.append(times.pop())
        self.meta["steady"] = is_steady(times)
        return times

    def time(self, warm_ns: list[int]) -> list[int]:
        """Run without profiler and hooks, for the true step time."""
        __tracebackhide__ = True
        plan, already = self._plan, self._timed_already
        wanted = plan.timed_steps(warm_ns)

        def more(times: list[int]) -> bool:
            recent = times or already or warm_ns
            step_s = recent[-1] / 1e9 if recent else 0.0
            return plan.goes_on_timing(len(already) + len(times), wanted, self._spent_s(), step_s)

        before = measure_costs()
        with Conditions() as conditions:
            times = already + self._run("timed", wanted - len(already), more=more, beside=conditions)
        require_passing_time(times)
        self._bare = before.least(measure_costs())
        noise = conditions.facts
        noise["gc_pauses"] = [[step + len(already), ms] for step, ms in noise["gc_pauses"]]
        self.meta["noise"] = noise
        self.meta["timed_cut_short"] = len(times) < wanted
        return times

    def try_threads(self, timed_ns: list[int]) -> None:
        """Time a few steps with one thread per core, if torch uses more or far fewer threads; into `meta`."""
        __tracebackhide__ = True
        threads, cores = torch.get_num_threads(), max(1, int(usable_cpus()))
        if cuda_in_use() or not timed_ns or not (threads > cores or 2 * threads < cores):
            return
        step_s = sorted(timed_ns)[len(timed_ns) // 2] / 1e9
        count = self._plan.steps_to_try(self._spent_s(), step_s)
        if count == 0:
            return
        torch.set_num_threads(cores)
        try:
            self._run("trial", 2)
            times = self._run("trial", count)
        finally:
            torch.set_num_threads(threads)
        self.meta["threads_tried"] = {"threads": cores, "steps_ms": [ns / 1e6 for ns in times]}

    def trace(self, timed_ns: list[int], stacks: bool) -> Tracer:
        """Run under torch.profiler with layer spans, in a single session."""
        __tracebackhide__ = True
        count, lead_in = self._plan.traced_steps(self._spent_s(), sorted(timed_ns)[len(timed_ns) // 2] / 1e9)
        bare = measure_costs()
        tracer = Tracer(cuda=cuda_in_use(), stacks=stacks)
        with _closed_on_error(tracer):
            with tracer, _with_hooks():
                with LayerSpans() as idle:
                    traced = measure_costs(idle)
                with LayerSpans(self._models, self.calls, outermost=refuse_meta):
                    if lead_in:
                        self._run("lead_in", 1, nullcontext)
                    self._run("traced", count, self._numbered())
                with LayerSpans() as idle:
                    traced = traced.least(measure_costs(idle))
            bare = bare.least(measure_costs())
        self.meta["cost"] = traced.beyond(bare)._asdict()
        # The machine's speed varies: the least of all measurements matches the fastest steps best.
        self.meta["bare_cost"] = (bare if self._bare is None else self._bare.least(bare))._asdict()
        self.meta["stacks"] = stacks
        self.meta["traced_cut_short"] = count < self._plan.traced
        return tracer

    def watch_memory(self, count: int = 1, *, lead_in: bool | None = None) -> None:
        """Run with every allocation recorded, into `memory`, even if a step runs out of memory.

        A lead-in step, watched but not counted, shows what is alive when the others start.
        """
        __tracebackhide__ = True
        tracer = Tracer(cuda=False, memory=True)
        if lead_in is None:
            lead_in = self._plan.affords_lead_in(self._spent_s(), self.executed[-1].wall_ns / 1e9)
        watch = MemoryWatch(self._called(), self._called)
        watch.watched.lead_in = int(lead_in)

        @contextmanager
        def watched(span: AbstractContextManager[Any]) -> Iterator[None]:
            watch.step_begins()
            try:
                with span:
                    yield
            finally:
                watch.step_ends()

        numbered = self._numbered()
        with _closed_on_error(tracer, spare=is_out_of_memory):
            self.memory = (watch.watched, tracer)
            with tracer, _with_hooks(), watch, LayerSpans(self._models, self.calls, outermost=watch.inputs):
                if lead_in:
                    self._run("lead_in", 1, lambda: watched(numbered()), watch.inputs)
                self._run("counted", count, lambda: watched(numbered()), watch.inputs)
                gc.collect()  # garbage cycles are not leaks

    def count_arithmetic(self) -> None:
        """Run one step with every operator counted, into `arithmetic`."""
        __tracebackhide__ = True
        tracer = Tracer(cuda=False)
        self._uncompiled_from = len(self.calls.records)
        spans, counter = LayerSpans(self._models, self.calls), OpCounter()
        with _closed_on_error(tracer), tracer, _with_hooks(), spans, counter:
            self._run("counted", 1, self._numbered())
        self.arithmetic = (counter.calls, tracer)

    def measure_ceilings(self) -> None:
        """Measure the machine's ceilings in the dtypes of the counted step, into `meta`."""
        __tracebackhide__ = True
        if self.arithmetic is None:
            return
        self._progress("ceilings", 0, None)
        with self._gate.opened():
            device = "cuda" if cuda_in_use() else "cpu"
            dtypes = dict.fromkeys(call.dtype for call in self.arithmetic[0] if call.flops)
            if "float32" in dtypes and (lower := lower_precision()) is not None:
                dtypes[lower] = None  # for the gain from lower precision
            if "float64" in dtypes:
                dtypes["float32"] = None
            self.meta["ceilings"] = {"on": device, **measure_ceilings(dtypes, device)}

    def read_process(self, count: int) -> list[int]:
        """Run without profiler and hooks; return the process's resident bytes after each step."""
        __tracebackhide__ = True
        readings: list[int] = []
        with Footprint() as footprint:
            self._run("process", count, after=lambda: readings.append(footprint.read()))
        return readings

    def record_allocations(self, count: int, at_end: Callable[[], None]) -> int:
        """Run with every allocation recorded but no live objects noted, then collect garbage; into `memory`.

        `at_end` is called inside each step, at its end. Returns the number of steps, which is lower than requested if
        the recording grows too large.
        """
        __tracebackhide__ = True
        tracer = Tracer(cuda=False, memory=True)
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

        with _closed_on_error(tracer), tracer, _with_hooks(), LayerSpans(self._models, self.calls):
            times = self._run("counted", count, recorded, more=more)
            gc.collect()
        self.memory = (WatchedMemory(), tracer)
        return len(times)

    def watch_failure(self, error: Exception) -> Exception:
        """Find the owners of memory after a step ran out of it; return the error to report.

        If memory was not watched, the memory held by the error's traceback is released and the step is run again on the
        same batch. The second error, if there is one, is then returned.
        """
        __tracebackhide__ = True
        if self.memory is not None:
            return error
        first = "".join(traceback.format_exception(error))
        error.__traceback__ = error.__context__ = None
        self._runner.repeat_batch()
        try:
            self.watch_memory(lead_in=False)
        except Exception as again:
            return again
        error.add_note(f"The step was run again and did not run out of memory. The first error:\n{first}")
        return error

    def close(self) -> None:
        """Free the memory of the profiler's sessions."""
        for session in (self.memory, self.arithmetic):
            if session is not None:
                session[1].close()

    def watched_calls(self) -> Calls:
        """The calls by which layers are named, without the counted step, in which compiled regions run uncompiled."""
        until = self._uncompiled_from
        begins = [begin for begin in self.calls.begins if until is None or begin < until]
        calls = self.calls
        return Calls(calls.records[:until], calls.loss, begins, calls.called_whole, calls.elsewhere)

    def _called(self) -> list[nn.Module]:
        return list({id(module): module for _, module, _ in self.calls.records}.values())

    def _numbered(self) -> Callable[[], AbstractContextManager[Any]]:
        """A function that returns the span of the session's next step."""
        numbers = itertools.count()

        def next_span() -> AbstractContextManager[Any]:
            self.calls.begin_step()
            return step_span(next(numbers))  # type: ignore[no-any-return]

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
        beside: Conditions | None = None,
    ) -> list[int]:
        """Run `count` steps of a pass, or as long as `more` returns true for their durations; return durations in ns.

        `after` is called after each step, outside its time. `beside` gets to know when a step is running.
        """
        __tracebackhide__ = True
        self.running = pass_name
        hosts: list[int] = []
        begins: list[int] = []
        rest: list[tuple[int, int | None]] = []
        synchronize()
        clock = StepClock()
        try:
            while more(hosts) if more is not None else len(hosts) < (count or 0):
                with self._first or nullcontext(), self._gate.opened():
                    if beside is not None:
                        beside.step, beside.running = len(hosts), True
                    clock.begin()
                    if span is None:
                        times = self._runner.run()
                    else:
                        with span():
                            times = self._runner.run(data_span, seen)
                begins.append(times.begin_ns)
                hosts.append(times.end_ns - times.begin_ns)
                rest.append((times.ready_ns - times.begin_ns, times.samples))
                clock.end(hosts[-1])
                if beside is not None:
                    beside.running = False
                if after is not None:
                    after()
                if self._first is not None:
                    self._first_step_ended(self._first, hosts[-1] / 1e9)
                self._progress(pass_name, len(hosts), count, *self._notes)
        finally:
            # Do not wait for a device that may have failed.
            self.executed += [
                ExecutedStep(pass_name, begin, wall, *row) for begin, wall, row in zip(begins, hosts, rest, strict=True)
            ]
        durations = clock.durations_ns()
        for place, wall in enumerate(durations, start=len(self.executed) - len(durations)):
            self.executed[place] = self.executed[place]._replace(wall_ns=wall)
        return durations

    def _first_step_ended(self, first: FirstStep, step_s: float) -> None:
        """Collect what the user should know after the first execution."""
        self._first = None
        if first.looped is not None:
            self.meta["optimizer_steps"] = first.looped._asdict()
        longer = self._plan.why_longer(self._spent_s(), step_s)
        notes = [note for note in (first.note, longer) if note]
        self._notes = ["; ".join(notes)] if notes else []


@contextmanager
def _closed_on_error(tracer: Tracer, spare: Callable[[BaseException], bool] = lambda _: False) -> Iterator[None]:
    """Free a session's events on an error, unless `spare` returns true for it."""
    try:
        yield
    except BaseException as error:
        if not spare(error):
            tracer.close()
        raise


@contextmanager
def _with_hooks() -> Iterator[None]:
    """Silence torch's warning that global hooks see a compiled model as one more module."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using `torch.compile.* when there are global hooks")
        yield


#: More optimizer steps than this in one step look like a loop; some training methods need a few.
MOST_STEPS = 8
#: A longer name, such as a key in a dict of optimizers, is less helpful than the class.
_LONGEST_NAME = 60


class Looped(NamedTuple):
    """An optimizer that is called many times in one step."""

    optimizer: str
    times: int


class FirstStep:
    """Context manager for the first execution of a step that counts how often each optimizer is called.

    If the step looks like a loop, `tell` is called with a note while it still runs. Optimizers are named by their
    variables in `namespace`, or else by their class.
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
    def looped(self) -> Looped | None:
        """The optimizer called most often, if that was too often for one iteration."""
        for key, times in self._times.most_common(1):
            return Looped(self._name(*key), times) if times > MOST_STEPS else None
        return None

    @property
    def note(self) -> str | None:
        """The note for the user."""
        found = self.looped
        return None if found is None else f"your step calls {found.optimizer}.step() {found.times:,} times: {_ADVICE}"

    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        key = id(optimizer), type(optimizer).__name__
        self._times[key] += 1
        if self._times[key] == MOST_STEPS + 1:
            self._tell(f"your step has called {self._name(*key)}.step() {MOST_STEPS + 1} times already: {_ADVICE}")

    def _name(self, identity: int, kind: str) -> str:
        """The optimizer's variable, if known."""
        names = (name for name, value in named_values(self._namespace, Optimizer) if id(value) == identity)
        return next((name for name in names if len(name) <= _LONGEST_NAME), kind)


_ADVICE = "profile one iteration, not the whole loop"
