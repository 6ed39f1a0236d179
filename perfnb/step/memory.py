"""Record the memory of whole steps.

The record consists of a trace with every allocation, marks that identify the owners of blocks, and the memory used by
the process.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import psutil
import torch
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from perfnb.step.data_waits import tensors_in
from perfnb.step.device import allocator_statistics
from perfnb.step.installed import Installed
from perfnb.step.layers import function_span, profiler_active
from perfnb.step.steps import SkippedStep
from perfnb.trace_names import MARK_SPAN


class Known(NamedTuple):
    """A block of memory with a known owner."""

    #: The address and size of the storage.
    address: int
    bytes: int
    #: The device, such as ``cpu`` or ``cuda:0``.
    device: str
    #: ``parameters`` (and buffers), ``gradients``, ``optimizer_state``, ``inputs``, or ``other`` for any other tensor.
    category: str
    #: The ``id`` of the module that the parameter or buffer belongs to.
    module: int | None = None
    #: The name of the parameter or buffer in that module.
    name: str | None = None


class LiveObjects:
    """Finds the memory blocks of the live objects that a step uses.

    A model becomes known when it is called, and an optimizer becomes known when its ``step`` is called. If no optimizer
    is called, the optimizers of the known models are used.
    """

    def __init__(self) -> None:
        self._owner: dict[int, tuple[int, str]] = {}
        self._parameters: dict[int, torch.Tensor] = {}
        self._buffers: dict[int, torch.Tensor] = {}
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        self._modules: set[int] = set()

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters of all known models and optimizers."""
        return list(self._parameters.values())

    def add_model(self, model: nn.Module) -> None:
        """Add the parameters and buffers of a module and its submodules."""
        if id(model) in self._modules:
            return
        for module in model.modules():
            self._modules.add(id(module))
            for known, named in ((self._parameters, module._parameters), (self._buffers, module._buffers)):
                for name, tensor in named.items():
                    if tensor is not None:
                        known[id(tensor)] = tensor
                        self._owner.setdefault(id(tensor), (id(module), name))

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Add the state of an optimizer, and any of its parameters that do not belong to a known model."""
        self._optimizers[id(optimizer)] = optimizer
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._parameters.setdefault(id(parameter), parameter)

    def add_optimizers_not_seen(self) -> None:
        """Add the optimizers of the known models if no optimizer was called, for example because the step failed."""
        if self._optimizers:
            return
        ours = self._parameters.keys()
        for optimizer in living(torch.optim.Optimizer):
            if any(id(parameter) in ours for group in optimizer.param_groups for parameter in group["params"]):
                self.add_optimizer(optimizer)

    def blocks(self) -> Iterator[Known]:
        """Yield the blocks that currently contain parameters, buffers, gradients and optimizer state."""
        for tensor in (*self._parameters.values(), *self._buffers.values()):
            yield from self._known(tensor, "parameters", tensor)
        for parameter in self._parameters.values():
            yield from self.gradient(parameter)
        for optimizer in self._optimizers.values():
            for key, state in list(optimizer.state.items()):
                values = state.items() if isinstance(state, dict) else [("", state)]
                for word, value in list(values):
                    for tensor in tensors_in(value):
                        yield from self._known(tensor, "optimizer_state", key, str(word))

    def gradient(self, parameter: torch.Tensor) -> Iterator[Known]:
        """Yield the block that contains a parameter's gradient, if the parameter has one."""
        if parameter.grad is not None:
            yield from self._known(parameter.grad, "gradients", parameter)

    def _known(self, tensor: torch.Tensor, category: str, owner: Any, word: str = "") -> Iterator[Known]:
        module, name = self._owner.get(id(owner), (None, None))
        if word and name is not None:
            name = f"{name} ({word})"
        for block in storages(tensor):
            yield Known(*block, category, module, name)


def inputs(values: Any) -> Iterator[Known]:
    """Yield the blocks used by a batch or by a model's arguments, except for tensors that autograd created."""
    try:
        tensors = list(tensors_in(values))
    except Exception:  # a batch can be any object, and unknown memory is no reason to fail
        return
    for tensor in tensors:
        if tensor.grad_fn is None and not isinstance(tensor, nn.Parameter):
            for block in storages(tensor):
                yield Known(*block, "inputs")


def everything() -> Iterator[Known]:
    """Yield the blocks of all live tensors."""
    for tensor in living(torch.Tensor):
        for block in storages(tensor):
            yield Known(*block, "other")


def living(kind: type[Any] | tuple[type[Any], ...]) -> Iterator[Any]:
    """Yield the live instances of a class. The type is checked because `isinstance` may run a proxy's code."""
    return (candidate for candidate in gc.get_objects() if issubclass(type(candidate), kind))


def storages(tensor: torch.Tensor) -> Iterator[tuple[int, int, str]]:
    """Yield the address, size in bytes and device of each of a tensor's storages, if it has any."""
    try:
        for part in _parts(tensor):
            storage = part.untyped_storage()
            # A fake tensor, for example one left behind by torch.compile, has a meta storage, and reading the address
            # of a meta storage emits a warning.
            if storage.device.type != "meta" and storage.data_ptr():
                yield storage.data_ptr(), storage.nbytes(), str(part.device)
    except (RuntimeError, NotImplementedError, AttributeError):
        return  # the tensor has no storage, for example because it is sparse, fake or functional


def _parts(tensor: torch.Tensor) -> Iterable[torch.Tensor]:
    """Return the plain tensors inside an instance of a wrapper subclass."""
    if not bool(is_traceable_wrapper_subclass(tensor)):
        return [tensor]
    names, _ = getattr(tensor, "__tensor_flatten__")()  # noqa: B009 - not every tensor has this attribute
    return [part for name in names for part in _parts(getattr(tensor, name))]


@dataclass
class WatchedMemory:
    """The results of watching memory."""

    #: The blocks with a known owner. Each is preceded by the number of the mark in the trace at which it was found.
    known: list[tuple[int, Known]] = field(default_factory=list)
    #: Readings of the Unix time in nanoseconds and the process's resident memory in bytes.
    resident: list[tuple[int, int]] = field(default_factory=list)
    #: The Unix time in nanoseconds at which each watched step began.
    step_begins: list[int] = field(default_factory=list)
    #: The statistics of each accelerator's allocator, keyed by device and ready for JSON.
    allocator: dict[str, dict[str, int]] = field(default_factory=dict)


class MemoryWatch(Installed):
    """Context manager that records the owners of memory blocks while a profiler records memory.

    `called` is a function that returns the modules called so far.
    """

    def __init__(self, called: Callable[[], Iterable[nn.Module]]) -> None:
        self.watched = WatchedMemory()
        self._objects = LiveObjects()
        self._called = called
        self._marks = 0

    def _install(self, stack: ExitStack) -> None:
        self._add_models()
        stack.callback(register_optimizer_step_pre_hook(self._optimizer_begins).remove)
        stack.callback(register_optimizer_step_post_hook(self._optimizer_ends).remove)
        for parameter in self._objects.parameters:
            if parameter.requires_grad and parameter.is_leaf:
                stack.callback(parameter.register_post_accumulate_grad_hook(self._accumulated).remove)
        self.watched.resident = stack.enter_context(resident_memory())

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)
        self.watched.allocator = allocator_statistics()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Record all owners before and after a step, even if it fails."""
        self._look(chain(self._objects.blocks(), everything()))
        self.watched.step_begins.append(time.time_ns())
        try:
            yield
        except SkippedStep:
            self.watched.step_begins.pop()
            raise
        finally:
            self._add_models()
            self._objects.add_optimizers_not_seen()
            self._look(self._objects.blocks())

    def _add_models(self) -> None:
        for module in self._called():
            self._objects.add_model(module)

    def inputs(self, values: Any) -> None:
        """Record the blocks of inputs, which are a batch or the arguments of a call to a model."""
        self._look(inputs(values))

    def _optimizer_begins(self, optimizer: Optimizer, *_: Any) -> None:
        if profiler_active():
            self._objects.add_optimizer(optimizer)
            self._look(self._objects.blocks())

    def _optimizer_ends(self, optimizer: Optimizer, *_: Any) -> None:
        self._look(self._objects.blocks())

    def _accumulated(self, parameter: torch.Tensor) -> None:
        self._look(self._objects.gradient(parameter))

    def _look(self, blocks: Iterable[Known]) -> None:
        if not profiler_active():
            return  # this thread is not recorded
        mark = self._marks
        self._marks += 1  # a mark is an empty span that shows when the owners were recorded
        with function_span(f"{MARK_SPAN}{mark}"):
            pass
        self.watched.known += [(mark, block) for block in blocks]


#: The seconds between samples.
INTERVAL_S = 0.001


@contextmanager
def resident_memory() -> Iterator[list[tuple[int, int]]]:
    """Sample the process's resident memory in a thread.

    Each reading consists of the Unix time in nanoseconds and the number of bytes.
    """
    readings: list[tuple[int, int]] = []
    end = threading.Event()

    def read_on() -> None:
        process = psutil.Process()
        while True:
            before = time.time_ns()
            resident = process.memory_info().rss
            readings.append(((before + time.time_ns()) // 2, resident))
            if end.wait(INTERVAL_S):
                return

    thread = threading.Thread(target=read_on, name="perfnb-resident-memory", daemon=True)
    thread.start()
    try:
        yield readings
    finally:
        end.set()
        thread.join()


@contextmanager
def footprint() -> Iterator[Callable[[], int]]:
    """Provide a function that reads the process's resident memory in bytes, in a way that makes readings comparable.

    Plain readings hide leaks because the C library keeps freed pages. Memory usage jumps if batches vary in shape, and
    a leak can fill the free pages for a hundred steps before the process grows. For this reason, garbage is collected
    before each reading, and free pages are returned to the system if the C library supports it (glibc's
    `malloc_trim`). Objects that exist at the start are frozen inside the context, because collecting all of them takes
    0.1 s.
    """
    process, trim = psutil.Process(), _malloc_trim()

    def read() -> int:
        gc.collect()
        if trim is not None:
            trim(0)
        return int(process.memory_info().rss)

    gc.collect()
    frozen = gc.get_freeze_count() == 0  # otherwise, the user has frozen objects
    if frozen:
        gc.freeze()
    try:
        yield read
    finally:
        if frozen:
            gc.unfreeze()


def _malloc_trim() -> Any:
    """Return the glibc function that returns free pages to the system, or ``None`` with other C libraries."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim
