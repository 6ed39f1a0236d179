"""`Capture`: the results of the passes over a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from perfnb.step.arithmetic import OpCall
from perfnb.step.data_waits import ExecutedStep
from perfnb.step.layers import Layer
from perfnb.step.memory import WatchedMemory
from perfnb.step.stack_sampler import StackSampler
from perfnb.step.tracer import Tracer
from perfnb.step.worker_stacks import WorkerStack


@dataclass
class Capture:
    """The results of the passes over a step, filled in pass by pass."""

    #: Every completed step, in order.
    steps: list[ExecutedStep] = field(default_factory=list)
    #: The trace of the traced pass, available until `close`; ``None`` if the pass did not run or failed.
    tracer: Tracer | None = None
    #: The recorded memory and its trace.
    memory: tuple[WatchedMemory, Tracer] | None = None
    #: The counted operators and their trace.
    arithmetic: tuple[list[OpCall], Tracer] | None = None
    #: Samples of the code that Python was running.
    sampler: StackSampler | None = None
    #: Samples of the code that loader workers were running in the meantime.
    workers: list[WorkerStack] = field(default_factory=list)
    #: The number of loader workers that could not be sampled.
    unreached_workers: int = 0
    #: The layers of the models that were called.
    layers: list[Layer] = field(default_factory=list)
    #: The index in `layers` of each module, keyed by the module's ``id``.
    places: dict[int, int] = field(default_factory=dict)
    #: The number of each span, the index of its layer, and whether it is a loss.
    spans: list[tuple[int, int | None, bool]] = field(default_factory=list)
    #: The code objects that were called: the modules' forward passes, and functions passed to ``torch.compile``.
    called: list[CodeType] = field(default_factory=list)
    #: The options, the environment and other information about the run, ready for JSON.
    meta: dict[str, Any] = field(default_factory=dict)
    #: The out-of-memory error that ended the capture.
    failure: Exception | None = None

    def close(self) -> None:
        """Free the profiler's memory."""
        for tracer in (self.tracer, *(part[1] for part in (self.memory, self.arithmetic) if part is not None)):
            if tracer is not None:
                tracer.close()
