"""Captures of a step: one run of all passes, or many steps to find leaks.

Everything is measured once, with the lightest instrument that can see it. Memory and FLOPs are counted in steps of
their own: counting operators makes compiled regions run uncompiled, and a profiler that records shapes keeps tensors
alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from perfnb.arguments import MOST
from perfnb.interrupts import InterruptGate
from perfnb.step.arithmetic import OpCall
from perfnb.step.budget import Plan
from perfnb.step.environment import describe_environment
from perfnb.step.guard import exclusive
from perfnb.step.layers import Calls
from perfnb.step.memory import WatchedMemory, is_out_of_memory
from perfnb.step.naming import Layer, known_models, name_layers, own_tables
from perfnb.step.parts import named_parts
from perfnb.step.session import ExecutedStep, Progress, Session
from perfnb.step.steps import BatchSource, StepRunner
from perfnb.step.tracer import Tracer


@dataclass
class Capture:
    """The results of a capture."""

    #: In order of execution.
    steps: list[ExecutedStep]
    #: The trace of the traced pass, until `close`; ``None`` if the capture failed before.
    tracer: Tracer | None
    #: The layers of the models that were called.
    layers: list[Layer]
    #: Index in `layers` of each module, by the module's ``id``.
    places: dict[int, int]
    #: Number of each span, index of its layer, and whether it is a loss.
    spans: list[tuple[int, int | None, bool]]
    #: Recorded memory, and its trace.
    memory: tuple[WatchedMemory, Tracer] | None
    #: Counted operators, and their trace.
    arithmetic: tuple[list[OpCall], Tracer] | None
    #: Options, environment and facts about the run; JSON-able.
    meta: dict[str, Any] = field(default_factory=dict)
    #: The out-of-memory error that ended the capture.
    failure: Exception | None = None

    def close(self) -> None:
        """Free the profiler's memory."""
        tracers = (self.tracer, *(part[1] for part in (self.memory, self.arithmetic) if part is not None))
        for tracer in tracers:
            if tracer is not None:
                tracer.close()


def capture_step(
    step: Callable[..., Any],
    batches: Iterable[Any] | Callable[[], Iterable[Any]] | None = None,
    *,
    plan: Plan,
    models: list[nn.Module] | None = None,
    namespace: Mapping[str, Any] | None = None,
    labels: Collection[str] = (),
    stacks: bool = False,
    progress: Progress | None = None,
) -> Capture:
    """Run all passes over `step`.

    Parameters
    ----------
    step : callable
        Called with a batch if there are `batches`, else without arguments.
    plan : Plan
        Steps of each pass, and the time budget.
    models : list of Module or None
        Restrict layers to these models.
    namespace : mapping
        Variables by which models are named.
    labels : collection of str
        Names in `namespace` that the user gave to models and that are not variables.

    Raises
    ------
    NestedProfilerError
        Inside another profiler or another capture.
    CaptureError
        If the trace has no step.
    Exception
        Whatever the step raises, after all hooks have been removed. If memory is watched, an out-of-memory error is
        not raised but returned in the capture.
    """
    __tracebackhide__ = True
    with InterruptGate() as gate, exclusive(), ExitStack() as stack:
        source = None if batches is None else BatchSource(batches)
        if source is not None:
            stack.callback(source.close)
        session = Session(StepRunner(step, source), plan, models, gate, progress or (lambda *_: None), namespace)
        tracer, failure = _measure(session, plan, stacks)
        layers, places = name_layers(session.watched_calls(), namespace or {}, models)
        called = [module for _, module, _ in session.calls.records]
        parts = named_parts(namespace or {}, None if source is None else source.made, called)
        variables = {name: value for name, value in (namespace or {}).items() if name not in labels}
        parts["models"] = known_models(session.watched_calls(), variables, layers, places)
        parts["own_tables"] = own_tables(layers, places, called, namespace or {})
        meta = session.meta | {"environment": describe_environment(), "parts": parts}
        if failure is not None:
            meta["failure"] = f"{type(failure).__name__}: {failure}".splitlines()[0]
        return Capture(
            session.executed,
            tracer,
            layers,
            places,
            spans_of(session.calls, places),
            session.memory,
            session.arithmetic,
            meta,
            failure,
        )


def _measure(session: Session, plan: Plan, stacks: bool) -> tuple[Tracer | None, Exception | None]:
    """Run the passes; return the trace of the traced one, and the out-of-memory error that ended them, if any."""
    __tracebackhide__ = True
    tracer: Tracer | None = None
    failure: Exception | None = None
    with ExitStack() as on_error:
        on_error.callback(session.close)
        try:
            timed = session.time(session.warm_up())
            session.try_threads(timed)
            tracer = session.trace(timed, stacks)
            on_error.callback(tracer.close)
            if plan.memory:
                session.watch_memory()
            if plan.flops:
                session.count_arithmetic()
                session.measure_ceilings()
        except Exception as error:
            if not (plan.memory and is_out_of_memory(error)):
                raise
            failure, session.meta["failed_in"] = error, session.running
        if failure is not None:
            failure = session.watch_failure(failure)
        on_error.pop_all()
    return tracer, failure


def spans_of(calls: Calls, places: Mapping[int, int]) -> list[tuple[int, int | None, bool]]:
    """Number, layer index and whether it is a loss, of each span.

    Modules called only on threads that the profiler does not record get numbers that the trace does not contain.
    """
    spans = [(n, places.get(id(module)), n in calls.loss) for n, module, _ in calls.records]
    unseen = [places[id(module)] for module in calls.unseen() if id(module) in places]
    return [*_inherit(spans, calls), *((n, place, False) for n, place in enumerate(unseen, start=len(spans)))]


def _inherit(spans: list[tuple[int, int | None, bool]], calls: Calls) -> list[tuple[int, int | None, bool]]:
    """Spans of modules that are not layers belong to the span around them; spans inside a loss are loss."""
    around = {number: parent for number, _, parent in calls.records}
    known: dict[int, tuple[int | None, bool]] = {}
    for number, layer, loss in spans:  # parents first
        parent = around[number]
        above, lossy = (None, False) if parent is None else known[parent]
        known[number] = (above if layer is None and not loss else layer, loss or lossy)
    return [(number, *known[number]) for number, _, _ in spans]


#: Steps are run until there are as many as requested, however long they take.
_NO_BUDGET_S = float(MOST)


@dataclass
class ManySteps:
    """The results of watching many steps."""

    #: Its only trace is that of the steps whose allocations were recorded.
    capture: Capture
    #: How many those are: fewer than requested if the recording grew too large.
    recorded: int
    #: Resident memory of the process after each of the steps before them.
    process_bytes: list[int]


def watch_steps(
    step: Callable[..., Any],
    batches: Iterable[Any] | Callable[[], Iterable[Any]] | None = None,
    *,
    steps: int,
    warmup: int,
    models: list[nn.Module] | None = None,
    namespace: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> ManySteps:
    """Run `step` `warmup` times, `steps` times while reading process memory, and `steps` times recording allocations.

    These passes are separate because a recording profiler makes the process grow. To find what a step leaks, nothing
    here may keep objects alive: live objects are not looked at, and called modules are only referenced weakly.

    Parameters and errors are those of `capture_step`, but an out-of-memory error is always raised.
    """
    __tracebackhide__ = True
    plan = Plan(warmup=warmup, steps=steps, budget_s=_NO_BUDGET_S, flops=False)
    with InterruptGate() as gate, exclusive(), ExitStack() as stack:
        source = None if batches is None else BatchSource(batches)
        if source is not None:
            stack.callback(source.close)
        session = Session(StepRunner(step, source), plan, models, gate, progress or (lambda *_: None), namespace)
        called = _Called(session.calls)
        session.warm_up()
        process_bytes = session.read_process(steps)
        recorded = session.record_allocations(steps, called.let_go)
        called.restore()
        layers, places = name_layers(session.calls, namespace or {}, models)
        return ManySteps(
            Capture(
                session.executed,
                None,
                layers,
                places,
                spans_of(session.calls, places),
                session.memory,
                None,
                session.meta | {"environment": describe_environment()},
            ),
            recorded,
            process_bytes,
        )


class _Called:
    """Replaces called modules by weak references, so that the record of calls does not keep their memory."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._modules: list[tuple[weakref.ref[nn.Module], str]] = []
        self._nobody = nn.Module()

    def let_go(self) -> None:
        """Release the modules called since the last time."""
        records = self._calls.records
        for place in range(len(self._modules), len(records)):
            number, module, around = records[place]
            self._modules.append((weakref.ref(module), type(module).__name__))
            records[place] = (number, self._nobody, around)

    def restore(self) -> None:
        """Put back the modules that are still alive, and an empty one of the same class name for each other one."""
        instead: dict[str, nn.Module] = {}
        for place, (reference, kind) in enumerate(self._modules):
            number, _, around = self._calls.records[place]
            module = reference()
            if module is None:
                module = instead.setdefault(kind, type(kind, (nn.Module,), {})())
            self._calls.records[place] = (number, module, around)
