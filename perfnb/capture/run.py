"""The four passes: warm-up, timed, traced, counted. Each thing is measured once, with the lightest instrument."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from torch import nn

from perfnb.capture.budget import Plan
from perfnb.capture.calibration import measure_costs
from perfnb.capture.device import StepClock, cuda_in_use, describe_environment, synchronize
from perfnb.capture.guard import InterruptGate, exclusive
from perfnb.capture.layers import Calls, LayerSpans
from perfnb.capture.naming import Layer, name_layers
from perfnb.capture.steady import is_steady
from perfnb.capture.steps import BatchSource, StepRunner
from perfnb.capture.tracer import Tracer, data_span, step_span

#: Told of each executed step: the pass, how many of its steps are done, how many are planned (if known).
Progress = Callable[[str, int, "int | None"], None]


class ExecutedStep(NamedTuple):
    """One executed step, in whatever pass."""

    pass_name: str
    wall_ns: int
    data_ns: int
    samples: int | None


@dataclass
class Capture:
    """What a capture leaves: the steps, the trace, and which layer each span belongs to.

    Attributes
    ----------
    steps : list of ExecutedStep
        Every step, in order of execution.
    tracer : Tracer
        Holds the trace until `close`.
    layers : list of Layer
        The layers of the models that were called.
    spans : list of (int, int or None, bool)
        Number of each span, the place of its layer, and whether it is a loss.
    meta : dict
        Options, environment, what was found out about the run; JSON-able.
    """

    steps: list[ExecutedStep]
    tracer: Tracer
    layers: list[Layer]
    spans: list[tuple[int, int | None, bool]]
    meta: dict[str, Any] = field(default_factory=dict)

    def close(self) -> None:
        """Free the profiler's memory."""
        self.tracer.close()


def capture_step(
    step: Callable[..., Any],
    batches: Iterable[Any] | Callable[[], Iterable[Any]] | None = None,
    *,
    plan: Plan,
    models: list[nn.Module] | None = None,
    namespace: Mapping[str, Any] | None = None,
    stacks: bool = False,
    progress: Progress | None = None,
) -> Capture:
    """Run `step` in its passes and return what was seen.

    Parameters
    ----------
    step : callable
        Called without arguments, or with a batch where there are `batches`.
    plan : Plan
        How many steps each pass may run, and for how long in all.
    models : list of Module or None
        Restrict layers to these models.
    namespace : mapping
        Variables by which models are named.

    Raises
    ------
    NestedProfilerError
        Inside another profiler or another capture.
    CaptureError
        If the trace holds no step.
    Exception
        Whatever the step raises, after everything installed has been removed.
    """
    __tracebackhide__ = True
    if not callable(step):
        raise TypeError(
            f"step must be a function that runs one step, not {type(step).__name__}: pass step, not step()."
        )
    if inspect.iscoroutinefunction(step) or inspect.isgeneratorfunction(step):
        raise TypeError("step must run when it is called: a coroutine or generator function does not.")
    with InterruptGate() as gate, exclusive(), ExitStack() as stack:
        source = None if batches is None else BatchSource(batches)
        if source is not None:
            stack.callback(source.close)
        session = _Session(StepRunner(step, source), plan, gate, progress or (lambda *_: None))
        warm = session.warm_up()
        timed = session.time(warm)
        calls, tracer = session.trace(timed, models, stacks)
        layers, places = name_layers(calls, namespace or {}, models)
        spans = [
            (n, None if n in calls.loss else places.get(id(module)), n in calls.loss) for n, module, _ in calls.records
        ]
        spans = _inherit(spans, calls)
        return Capture(session.executed, tracer, layers, spans, session.meta | {"environment": describe_environment()})


def _inherit(spans: list[tuple[int, int | None, bool]], calls: Calls) -> list[tuple[int, int | None, bool]]:
    """Spans whose module is no layer belong to the span around them; spans inside a loss are loss."""
    around = {number: parent for number, _, parent in calls.records}
    known = {number: (layer, loss) for number, layer, loss in spans}
    for number, layer, loss in spans:
        parent = around[number]
        if layer is None and not loss and parent is not None:
            known[number] = known[parent]
    return [(number, *known[number]) for number, _, _ in spans]


class _Session:
    """The state that the passes share."""

    def __init__(self, runner: StepRunner, plan: Plan, gate: InterruptGate, progress: Progress) -> None:
        self.executed: list[ExecutedStep] = []
        self.meta: dict[str, Any] = {"options": asdict(plan)}
        self._runner, self._plan, self._gate, self._progress = runner, plan, gate, progress
        self._begin = time.perf_counter()

    def _spent_s(self) -> float:
        return time.perf_counter() - self._begin

    def warm_up(self) -> list[int]:
        """Run until steady, at least once unless told otherwise."""
        __tracebackhide__ = True
        plan = self._plan
        times = self._run("warmup", plan.warmup, lambda t: plan.goes_on_warming(t, self._spent_s(), cuda_in_use()))
        self.meta["steady"] = is_steady(times)
        return times

    def time(self, warm_ns: list[int]) -> list[int]:
        """Run without profiler and hooks: the honest step time."""
        __tracebackhide__ = True
        plan = self._plan
        wanted = plan.timed_steps(warm_ns)

        def more(times: list[int]) -> bool:
            recent = times or warm_ns
            step_s = recent[-1] / 1e9 if recent else 0.0
            return plan.goes_on_timing(len(times), wanted, self._spent_s(), step_s)

        times = self._run("timed", wanted, more)
        self.meta["timed_cut_short"] = len(times) < wanted
        return times

    def trace(self, timed_ns: list[int], models: list[nn.Module] | None, stacks: bool) -> tuple[Calls, Tracer]:
        """Run under torch.profiler with layer spans, in one session."""
        __tracebackhide__ = True
        count, lead_in = self._plan.traced_steps(self._spent_s(), sorted(timed_ns)[len(timed_ns) // 2] / 1e9)
        bare = measure_costs()
        tracer = Tracer(cuda=cuda_in_use(), stacks=stacks)
        try:
            with tracer, warnings.catch_warnings():
                # torch warns that global hooks see a compiled model as one module more; that is what is wanted.
                warnings.filterwarnings("ignore", message="Using `torch.compile.* when there are global hooks")
                with LayerSpans() as idle:
                    traced = measure_costs(idle)
                with LayerSpans(models) as spans:
                    if lead_in:
                        self._run("lead_in", 1, lambda times: not times, lambda: nullcontext())
                    numbers = iter(range(count))

                    def numbered() -> AbstractContextManager[Any]:
                        spans.calls.begin_step()
                        return step_span(next(numbers))  # type: ignore[no-any-return]

                    self._run("traced", count, lambda times: len(times) < count, numbered)
                with LayerSpans() as idle:
                    traced = traced.least(measure_costs(idle))
            bare = bare.least(measure_costs())
        except BaseException:
            tracer.close()
            raise
        self.meta["cost"] = traced.beyond(bare)._asdict()
        self.meta["stacks"] = stacks
        self.meta["models_chosen"] = models is not None
        self.meta["traced_cut_short"] = count < self._plan.traced
        return spans.calls, tracer

    def _run(
        self,
        pass_name: str,
        count: int | None,
        more: Callable[[list[int]], bool],
        span: Callable[[], AbstractContextManager[Any]] | None = None,
    ) -> list[int]:
        """Run steps of a pass while `more`, given their durations so far, says so; the durations in ns."""
        __tracebackhide__ = True
        seen: list[int] = []
        rest: list[tuple[int, int | None]] = []
        synchronize()
        clock = StepClock()
        while more(seen):
            with self._gate.opened():
                clock.begin()
                if span is None:
                    times = self._runner.run()
                else:
                    with span():
                        times = self._runner.run(data_span)
            seen.append(times.end_ns - times.begin_ns)
            rest.append((times.ready_ns - times.begin_ns, times.samples))
            clock.end(seen[-1])
            self._progress(pass_name, len(seen), count)
        durations = clock.durations_ns()
        self.executed += [ExecutedStep(pass_name, wall, *row) for wall, row in zip(durations, rest, strict=True)]
        return durations
