"""Many steps, to see what each leaves behind: the process read after each, then every allocation recorded.

These are steps of their own: while a profiler records, its own memory makes the process grow. And whoever looks for
what stays must keep nothing himself: no live object is noted here, and the modules that were called only weakly.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import nn

from perfnb.arguments import MOST
from perfnb.interrupts import InterruptGate
from perfnb.step.budget import Plan
from perfnb.step.device import describe_environment
from perfnb.step.guard import exclusive
from perfnb.step.layers import Calls
from perfnb.step.naming import name_layers
from perfnb.step.run import Capture, spans_of
from perfnb.step.session import Progress, Session
from perfnb.step.steps import BatchSource, StepRunner

#: As many steps are run as were asked for, however long they take.
_NO_BUDGET_S = float(MOST)


@dataclass
class ManySteps:
    """What watching many steps leaves.

    Attributes
    ----------
    capture : Capture
        With the trace of the steps whose allocations were recorded, and no other.
    recorded : int
        How many those are: fewer than asked for where the recording grew too large.
    process_bytes : list of int
        The process's resident memory after each of the steps before those.
    """

    capture: Capture
    recorded: int
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
    """Run `step` `warmup` times, then `steps` times reading the process, then `steps` times recording allocations.

    Parameters
    ----------
    step : callable
        Called without arguments, or with a batch where there are `batches`.
    models : list of Module or None
        Restrict layers to these models.
    namespace : mapping
        Variables by which models are named.

    Raises
    ------
    NestedProfilerError
        Inside another profiler or another capture.
    Exception
        Whatever the step raises, after everything installed has been removed.
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
    """Keeps the modules of calls no longer than the steps do, for what they own would stay with them."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._modules: list[tuple[weakref.ref[nn.Module], str]] = []
        self._nobody = nn.Module()

    def let_go(self) -> None:
        """Let go of the modules that were called since."""
        records = self._calls.records
        for place in range(len(self._modules), len(records)):
            number, module, around = records[place]
            self._modules.append((weakref.ref(module), type(module).__name__))
            records[place] = (number, self._nobody, around)

    def restore(self) -> None:
        """Put back the modules that are still alive; for the others there is one of their class."""
        instead: dict[str, nn.Module] = {}
        for place, (reference, kind) in enumerate(self._modules):
            number, _, around = self._calls.records[place]
            module = reference()
            if module is None:
                module = instead.setdefault(kind, type(kind, (nn.Module,), {})())
            self._calls.records[place] = (number, module, around)
