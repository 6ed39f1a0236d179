"""Memory of whole steps: every allocation in a trace, and marks that identify the owners of blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from perfnb.step.device import cuda_in_use
from perfnb.step.guard import profiler_active
from perfnb.step.layers import function_span
from perfnb.step.live_objects import Known, LiveObjects, everything, inputs
from perfnb.step.process_memory import ResidentMemory
from perfnb.trace_names import MARK_SPAN


@dataclass
class WatchedMemory:
    """The results of watching memory."""

    #: The blocks with a known owner, each with the mark at which it was found.
    known: list[Known] = field(default_factory=list)
    #: Unix time in nanoseconds, and resident bytes of the process.
    resident: list[tuple[int, int]] = field(default_factory=list)
    #: Unix time in nanoseconds of the start of each watched step.
    step_begins: list[int] = field(default_factory=list)
    #: Statistics of each CUDA device's allocator, by device; JSON-able.
    allocator: dict[str, dict[str, int]] = field(default_factory=dict)
    #: Number of first steps that only show what is alive before the others.
    lead_in: int = 0


class MemoryWatch:
    """Context manager that notes the owners of memory blocks while a profiler records memory.

    `models` are the modules called so far; `called` returns those called by now.
    """

    def __init__(self, models: Iterable[nn.Module], called: Callable[[], Iterable[nn.Module]]) -> None:
        self.watched = WatchedMemory()
        self._objects = LiveObjects()
        for model in models:
            self._objects.add_model(model)
        self._called = called
        self._marks = 0
        self._installed = ExitStack()

    def __enter__(self) -> MemoryWatch:
        with ExitStack() as stack:
            for register, hook in (
                (register_optimizer_step_pre_hook, self._optimizer_begins),
                (register_optimizer_step_post_hook, self._optimizer_ends),
            ):
                stack.callback(register(hook).remove)
            for parameter in self._objects.parameters:
                if parameter.requires_grad and parameter.is_leaf:
                    stack.callback(parameter.register_post_accumulate_grad_hook(self._accumulated).remove)
            resident = stack.enter_context(ResidentMemory())
            self.watched.resident = resident.readings
            self._installed = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._installed.close()
        self.watched.allocator = allocator_statistics()

    def step_begins(self) -> None:
        """Note all owners before a step."""
        self._look(lambda mark: [*self._objects.blocks(mark), *everything(mark)])
        self.watched.step_begins.append(time.time_ns())

    def step_ends(self) -> None:
        """Note all owners after a step, even if it failed."""
        for module in self._called():
            self._objects.add_model(module)
        self._objects.add_optimizers_not_seen()
        self._look(self._objects.blocks)

    def inputs(self, values: Any) -> None:
        """Note inputs: a batch, or the arguments of a model's call."""
        self._look(lambda mark: inputs(mark, values))

    def _optimizer_begins(self, optimizer: Optimizer, *_: Any) -> None:
        if not profiler_active():
            return  # on a thread that is not recorded
        self._objects.add_optimizer(optimizer)
        self._look(self._objects.blocks)

    def _optimizer_ends(self, optimizer: Optimizer, *_: Any) -> None:
        if profiler_active():
            self._look(self._objects.blocks)

    def _accumulated(self, parameter: torch.Tensor) -> None:
        if profiler_active():
            self._look(lambda mark: self._objects.gradient(mark, parameter))

    def _look(self, around: Callable[[int], Iterable[Known]]) -> None:
        mark = self._marks
        self._marks += 1  # a mark is an empty span: the moment at which owners were noted
        with function_span(f"{MARK_SPAN}{mark}"):
            pass
        self.watched.known += around(mark)


def allocator_statistics() -> dict[str, dict[str, int]]:
    """Statistics of CUDA's caching allocator by device; empty without a GPU."""
    statistics: dict[str, dict[str, int]] = {}
    if not cuda_in_use():
        return statistics
    free: dict[int, int] = {}
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                free[segment["device"]] = max(free.get(segment["device"], 0), block["size"])
    for index in range(torch.cuda.device_count()):
        counted = torch.cuda.memory_stats(index)
        if counted.get("segment.all.peak", 0):
            statistics[f"cuda:{index}"] = {
                "allocated_bytes": int(counted["allocated_bytes.all.current"]),
                "reserved_bytes": int(counted["reserved_bytes.all.current"]),
                "inactive_split_bytes": int(counted["inactive_split_bytes.all.current"]),
                "largest_free_bytes": free.get(index, 0),
                "retries": int(counted["num_alloc_retries"]),
                "ooms": int(counted["num_ooms"]),
            }
    return statistics


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that GPU or host memory ran out."""
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error) and "allocate" in str(error)
