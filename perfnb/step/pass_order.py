"""Capture a step, either by running all passes once or by running many steps to find leaks.

Each quantity is measured once, with the lightest instrument that is suitable. Memory and FLOPs are recorded in separate
steps because counting operators makes compiled regions run uncompiled, and because a profiler that records shapes keeps
tensors alive.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from perfnb.arguments import MOST
from perfnb.errors import CaptureError
from perfnb.step.budget import Plan
from perfnb.step.capture import Capture
from perfnb.step.compiler import why_not_again
from perfnb.step.device import is_out_of_memory
from perfnb.step.environment import describe_environment
from perfnb.step.layers import Calls, known_models, name_layers, own_tables, parallel_models
from perfnb.step.namespace import named_parts, named_values
from perfnb.step.refusals import is_compiled, is_compiled_function, is_compiled_in_place, wrapped_by_compiler
from perfnb.step.session import Progress, Session
from perfnb.step.steps import BatchSource, Passes, StepRunner
from perfnb.step.worker_stacks import WorkerStacks


def capture_step(
    step: Callable[..., Any],
    batches: Iterable[Any] | Callable[[], Iterable[Any]] | None = None,
    *,
    plan: Plan,
    models: list[nn.Module] | None = None,
    namespace: Mapping[str, Any] | None = None,
    labels: Collection[str] = (),
    stacks: bool = False,
    worth_sampling: Callable[[Capture], bool] | None = None,
    progress: Progress | None = None,
) -> Capture:
    """Run all passes over `step`.

    Parameters
    ----------
    step : callable
        The step to run. It is called with a batch if `batches` are given, and without arguments otherwise.
    plan : Plan
        The number of steps in each pass, and the time budget.
    models : list of Module or None
        Restrict layers to these models.
    namespace : mapping
        The variables that models are named after.
    labels : collection of str
        Names in `namespace` that are not variables but names that the user chose for models.
    stacks : bool
        Whether to record Python calls and sample Python stacks.
    worth_sampling : callable, optional
        Called after all other passes to decide whether to sample Python stacks briefly.

    Raises
    ------
    NestedProfilerError
        If another profiler or another capture is active.
    CaptureError
        If the trace does not contain a step.
    Exception
        Any exception that the step raises. All hooks are removed first. If memory is recorded, an out-of-memory error
        is stored in the capture instead of being raised.
    """
    __tracebackhide__ = True
    if plan.recompile and (reason := why_not_again()):
        raise CaptureError(
            f"recompile=True requires a version of torch that keeps recompiled code separate, but {reason}."
        )
    source = None if batches is None else BatchSource(batches)
    namespace = namespace or {}
    # The session is not stored in a variable here, and the passes are not a closure, because a traceback keeps the
    # variables of its frames alive.
    passes = _passes(Session(plan, models, source, namespace, progress), namespace, labels, stacks, worth_sampling)
    return StepRunner(step, source).drive(passes)


def _passes(
    new: Session,
    namespace: Mapping[str, Any],
    labels: Collection[str],
    stacks: bool,
    worth_sampling: Callable[[Capture], bool] | None,
) -> Passes[Capture]:
    __tracebackhide__ = True
    with new as session:
        source = session.source
        with WorkerStacks() if stacks else nullcontext() as workers:
            yield from _measure(session, workers)
        capture = _named(session, namespace)
        _name_parts(session, namespace, None if source is None else source.made, labels)
        lasts = source is None or source.starts_again  # batches must not run out during an optional pass
        if worth_sampling is not None and not stacks and lasts and capture.failure is None:
            yield from session.sample_if(worth_sampling)
        return capture


def _measure(session: Session, workers: WorkerStacks | None) -> Passes[None]:
    """Run all passes. If memory is recorded, stop when it runs out. If `workers` is given, sample Python stacks."""
    __tracebackhide__ = True
    capture, plan = session.capture, session.plan
    try:
        timed = yield from session.time((yield from session.warm_up()))
        yield from session.try_threads(timed)
        yield from session.trace(timed, workers is not None)
        if workers is not None:
            yield from session.sample_stacks(timed, workers)
        if plan.memory:
            yield from session.watch_memory()
        if plan.flops:
            yield from session.count_arithmetic()
            session.measure_ceilings()
    except Exception as error:
        if not (plan.memory and is_out_of_memory(error)):
            raise
        capture.failure, capture.meta["failed_in"] = error, session.running
    if capture.failure is not None:
        capture.failure = yield from session.watch_failure(capture.failure)
        capture.meta["failure"] = f"{type(capture.failure).__name__}: {capture.failure}".splitlines()[0]


def loop_passes(
    *,
    plan: Plan,
    models: list[nn.Module] | None = None,
    namespace: Callable[[], Mapping[str, Any]] = dict,
    batches: Any = None,
    stacks: bool = False,
) -> Passes[Capture]:
    """Return the passes of `capture_step` for the steps of a running loop, which executes them itself.

    Anything that would require additional steps is skipped: perfnb does not try other numbers of threads, uses machine
    ceilings from earlier profiles, and does not repeat a step that runs out of memory. The operations of compiled code
    are not counted, because it would have to run uncompiled, with different rounding.

    Parameters
    ----------
    plan, models, stacks
        As in `capture_step`.
    namespace : callable
        A function that is called at the end and returns the variables that models are named after.
    batches : object
        The loader whose settings are recorded.
    """
    with Session(plan, models) as session:
        timed = yield from session.time((yield from session.warm_up()))
        yield from session.trace(timed, stacks)
        if plan.memory:
            yield from session.watch_memory()
        if plan.flops and not _runs_compiled(session, namespace()):
            yield from session.count_arithmetic()
            session.measure_ceilings(only_kept=True)
        variables = namespace()
        capture = _named(session, variables)
        _name_parts(session, variables, batches, ())
        return capture


def count_step(
    step: Callable[..., Any],
    batches: Iterable[Any] | Callable[[], Iterable[Any]] | None = None,
    *,
    warmup: int,
    namespace: Mapping[str, Any] | None = None,
) -> Capture:
    """Warm up `step` and count its work: trace one step, record the memory of another, and count operations in a third.

    The number of steps does not depend on how long they take. Garbage is collected before the first step but not
    between steps, which means that it is freed at the same point each time. Parameters and errors are the same as in
    `capture_step`.
    """
    __tracebackhide__ = True
    plan = Plan(warmup=warmup, steps=1, traced=1, budget_s=_NO_BUDGET_S)
    namespace = namespace or {}
    source = None if batches is None else BatchSource(batches)

    def passes() -> Passes[Capture]:
        __tracebackhide__ = True
        with Session(plan, None, source, namespace) as session:
            yield from session.trace((yield from session.warm_up()), False)
            yield from session.watch_memory(lead_in=True)
            yield from session.count_arithmetic()
            return _named(session, namespace)

    gc.collect()
    collects = gc.isenabled()
    gc.disable()
    try:
        return StepRunner(step, source).drive(passes())
    finally:
        if collects:
            gc.enable()


def _runs_compiled(session: Session, namespace: Mapping[str, Any]) -> bool:
    """Check whether the step runs compiled code: a compiled model, a model compiled in place, or a function."""
    called = session.called()
    known = [part for _, model in named_values(namespace, nn.Module) for part in model.modules()]
    return (
        any(map(is_compiled, called))
        or any(map(is_compiled_in_place, (*called, *known)))
        or any(is_compiled_function(function) for _, function in named_values(namespace, FunctionType))
    )


def _named(session: Session, namespace: Mapping[str, Any]) -> Capture:
    """Complete the capture of a session whose passes have run with layers, spans and environment, and return it."""
    capture = session.capture
    capture.layers, capture.places = name_layers(session.watched_calls(), namespace, session.models)
    capture.spans = spans_of(session.calls, capture.places)
    capture.called = _code_of(session.called(), namespace)
    capture.meta["environment"] = describe_environment()
    if session.plan.recompile:
        found = (capture.places.get(id(wrapped_by_compiler(model) or model)) for model in session.recompiled)
        capture.meta["recompiled"] = [capture.layers[place].name for place in found if place is not None]
    return capture


def _code_of(modules: Iterable[nn.Module], namespace: Mapping[str, Any]) -> list[CodeType]:
    """Return the code objects of the modules' forward methods and of the compiled functions in some variables."""
    # A scripted module's class does not define a forward method.
    functions = [getattr(type(wrapped_by_compiler(module) or module), "forward", None) for module in modules]
    compiled = (each for _, each in named_values(namespace, FunctionType) if is_compiled_function(each))
    functions += [each._torchdynamo_orig_callable for each in compiled]
    return list({code for each in functions if isinstance(code := getattr(each, "__code__", None), CodeType)})


def _name_parts(session: Session, namespace: Mapping[str, Any], batches: Any, labels: Collection[str]) -> None:
    """Record the names of the parts that the steps used in a session's capture. Its layers must already have names."""
    capture, called = session.capture, session.called()
    parts = named_parts(namespace, batches, called)
    variables = {name: value for name, value in namespace.items() if name not in labels}
    parts["models"] = known_models(session.calls, variables, capture.layers, capture.places)
    parts["own_tables"] = own_tables(capture.layers, capture.places, called, namespace)
    parts["parallel"] = parallel_models(capture.layers, capture.places, called)
    capture.meta["parts"] = parts


def spans_of(calls: Calls, places: Mapping[int, int]) -> list[tuple[int, int | None, bool]]:
    """Return the number of each span, the index of its layer, and whether it is a loss.

    If a span's module is not a layer, the span belongs to the layer of the enclosing span. Spans inside a loss are also
    part of the loss. Modules that were called only on threads that the profiler does not record are assigned numbers
    that do not occur in the trace.
    """
    known: dict[int, tuple[int | None, bool]] = {}
    for number, module, parent in calls.records:  # parents first
        layer, loss = places.get(id(module)), number in calls.loss
        above, lossy = (None, False) if parent is None else known[parent]
        known[number] = (above if layer is None and not loss else layer, loss or lossy)
    unseen = [places[id(module)] for module in calls.unseen() if id(module) in places]
    spans = [(number, *found) for number, found in known.items()]
    return spans + [(number, place, False) for number, place in enumerate(unseen, start=len(spans))]


#: An unlimited budget. All requested steps run, regardless of how long they take.
_NO_BUDGET_S = float(MOST)


def watch_steps(
    step: Callable[..., Any],
    batches: Iterable[Any] | Callable[[], Iterable[Any]] | None = None,
    *,
    steps: int,
    warmup: int,
    grows: Callable[[list[int]], bool],
    models: list[nn.Module] | None = None,
    namespace: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> tuple[Capture, list[int], int, list[int]]:
    """Run `step` several times to find out whether it leaks memory.

    The step runs `warmup` times, then `steps` times while the process's memory is read, and then `steps` times while
    allocations are recorded. The last two passes are separate because a recording profiler makes the process grow. If
    the process grew, its memory is read again after the recording to check whether it continues to grow. No object may
    be kept alive here, because that would hide leaks. Live objects are therefore not inspected, and called modules are
    only referenced weakly.

    Parameters and errors are the same as in `capture_step`, except that an out-of-memory error is always raised.

    Parameters
    ----------
    grows : callable
        A function that takes the process's memory after each step and returns whether the process grew.

    Returns
    -------
    tuple of (Capture, list of int, int, list of int)
        The capture, which only contains the trace of the steps whose allocations were recorded; the process's resident
        memory after each of the preceding steps; the number of recorded steps, which is lower than requested if the
        recording grew too large; and the resident memory after each of the same number of steps that followed. The last
        list is empty if the process did not grow.
    """
    __tracebackhide__ = True
    namespace = namespace or {}
    plan = Plan(warmup=warmup, steps=steps, budget_s=_NO_BUDGET_S, flops=False)
    source = None if batches is None else BatchSource(batches)

    def passes() -> Passes[tuple[Capture, list[int], int, list[int]]]:
        __tracebackhide__ = True
        with Session(plan, models, source, namespace, progress) as session:
            called = _Called(session.calls)
            yield from session.warm_up()
            process_bytes = yield from session.read_process(steps)
            recorded = yield from session.record_allocations(steps, called.let_go)
            called.restore()
            capture = _named(session, namespace)
            later = (yield from session.read_process(recorded)) if grows(process_bytes) else []
            return capture, process_bytes, recorded, later

    return StepRunner(step, source).drive(passes())


class _Called:
    """Replaces called modules with weak references, to prevent the record of calls from keeping them alive."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._modules: list[tuple[weakref.ref[nn.Module], str]] = []
        self._nobody = nn.Module()

    def let_go(self) -> None:
        """Release the modules that have been called since this method last ran."""
        records = self._calls.records
        for place in range(len(self._modules), len(records)):
            number, module, around = records[place]
            self._modules.append((weakref.ref(module), type(module).__name__))
            records[place] = (number, self._nobody, around)

    def restore(self) -> None:
        """Put back the modules that are still alive.

        Modules that no longer exist are replaced with empty modules that have the same class name.
        """
        instead: dict[str, nn.Module] = {}
        for place, (reference, kind) in enumerate(self._modules):
            number, _, around = self._calls.records[place]
            module = reference()
            if module is None:
                module = instead.setdefault(kind, type(kind, (nn.Module,), {})())
            self._calls.records[place] = (number, module, around)
