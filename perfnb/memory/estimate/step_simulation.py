"""Simulate a step on fake tensors and record every allocation.

The step's Python code runs unchanged. Models, optimizers, and the tensors that can be reached from the step's variables
are replaced with stand-ins, and any changes that the step makes to its variables are undone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_leaves

from perfnb.interrupts import InterruptGate
from perfnb.memory.estimate.allocator import Allocation, SimulatedAllocator, device_among, stepped_by
from perfnb.memory.estimate.batches import tensor_resized, with_tensors
from perfnb.memory.estimate.fake_tensors import StandIns, explained, pretending, replaced, stepping, variables_replaced
from perfnb.recording.schema import CATEGORIES
from perfnb.step.data_waits import tensors_in
from perfnb.step.memory import living
from perfnb.step.namespace import is_installed, reachable

#: The maximum number of calls to a step until every optimizer has been called, and until each is called once more.
_MOST_CALLS = 16
_NEVER_STEPPED = (
    f"did not run in any of {_MOST_CALLS} simulated steps, so the estimate does not include the memory of its update "
    "or any state that it has not created yet."
)
#: Classes whose live instances are all found, because the profiler also finds them when they are called.
_LIVING = (nn.Module, Optimizer, LRScheduler, torch.amp.GradScaler)
#: The packages whose objects are not part of a step.
_NO_PART = {*sys.stdlib_module_names, "IPython", "ipykernel", "ipywidgets", "perfnb", "traitlets", "zmq"}


@dataclass(frozen=True)
class Simulation:
    """A step's memory usage in steady state, and the classes of its objects."""

    model: str
    optimizer: str | None
    training: bool  # whether the step has a backward pass
    by_category: dict[str, int]  # bytes alive at the peak
    most: dict[str, int]  # maximum number of bytes alive at the same time in each category
    buffers: int  # bytes of buffers among the parameters
    peak_phase: str
    peak_op: str | None
    single: bool  # whether parameters take at least four bytes each
    half: bool  # whether a model was called under autocast
    caveat: str | None = None  # a sentence about the limitations of the simulation


def simulate_step(
    step: Callable[..., Any],
    batch: Any,
    samples: int | None,
    size: int | None,
    device: str | torch.device | None,
    model: nn.Module | None = None,
) -> tuple[Simulation, torch.device]:
    """Run a step on fake tensors until it is in steady state, and return the results and the simulated device.

    The first call creates the optimizer's state, and the second call is counted. If gradients are accumulated over
    several calls, the step is called until each optimizer has been called. Subsequent calls are counted until every
    optimizer has been called again.

    Afterwards, parameters, buffers, gradients, optimizer state, random number generators, and the variables and plain
    containers that can be reached from the step are restored. Other effects of the step's Python code remain, such as
    changes to files or to counters elsewhere.

    Parameters
    ----------
    step : callable
        The step to simulate.
    batch : object
        The batch, or ``None`` if the step does not take one.
    samples, size : int or None
        The number of samples in the batch, and the number to simulate.
    device : str, device or None
        The device whose allocator is simulated. If it is ``None``, the device of the step's models is used.
    model : Module or None
        The model, if perfnb itself created the step from it. In this case, everything that the step uses can be reached
        from its variables.

    Raises
    ------
    CaptureError
        If the step depends on the values in a tensor, or uses an op that cannot be simulated.
    Exception
        Any exception raised by the step.
    """
    __tracebackhide__ = True
    near = list(reachable([step]))  # starting with its own variables
    elsewhere = living(_LIVING) if model is None else ()
    found = list({id(value): value for value in (*near, *elsewhere)}.values())
    modules = [value for value in found if issubclass(type(value), nn.Module)]
    optimizers = [value for value in found if issubclass(type(value), Optimizer)]
    simulated = device_among(_tensors(found, batch), device)
    allocator = SimulatedAllocator(simulated)
    inputs: list[Tensor] = []
    given: dict[int, tuple[Tensor, Tensor]] = {}  # each tensor of the resized batch and the user's tensor, by id

    def sized(tensor: Tensor) -> Tensor:
        made = tensor if samples is None or size is None else tensor_resized(tensor, samples, size)
        given[id(made)] = made, tensor
        return made

    def stood_in(tensor: Tensor) -> Tensor:
        fake = stand_ins.of(tensor)
        allocator.known.tell(fake, given[id(tensor)][1])
        inputs.append(fake)
        return fake

    batch = with_tensors(batch, sized)
    with InterruptGate() as gate, ExitStack() as stack:
        stack.enter_context(pretending())
        stand_ins = StandIns(allocator.place)
        stack.enter_context(replaced(modules, stand_ins))
        for optimizer in optimizers:
            stack.enter_context(stepping(optimizer, stand_ins))
        stack.enter_context(variables_replaced(filter(_has_variables, found), stand_ins))
        arguments = () if batch is None else (with_tensors(batch, stood_in),)
        for fake in stand_ins.all():
            allocator.see(fake)
            if fake.is_leaf and fake.requires_grad:
                fake.register_post_accumulate_grad_hook(allocator.accumulated)
        stack.enter_context(allocator.listening())
        stack.enter_context(allocator)
        with explained(model), gate.opened():
            own = {id(value) for value in near} if model is None else set()
            late = _call_until_stepped(step, arguments, allocator, [o for o in optimizers if id(o) in own])
            stepped = list(allocator.optimizers)
            allocator.steps_again()
            _call_until_stepped(step, arguments, allocator, stepped)
        return _seen(allocator, stand_ins.all(), modules, optimizers, inputs, late, model), simulated


def _tensors(found: Iterable[Any], batch: Any) -> Iterator[Tensor]:
    for value in found:
        if issubclass(type(value), nn.Module):
            yield from value.parameters()
        elif issubclass(type(value), Optimizer):
            yield from stepped_by(value)
        elif issubclass(type(value), Tensor):
            yield value
    yield from tensors_in(batch)


def _call_until_stepped(
    step: Callable[..., Any], batch: tuple[Any, ...], allocator: SimulatedAllocator, optimizers: list[Optimizer]
) -> list[Optimizer]:
    """Call the step until it has called these optimizers.

    Return the optimizers that have not been called after `_MOST_CALLS` calls to the step.
    """
    __tracebackhide__ = True
    for _ in range(_MOST_CALLS):
        step(*batch)
        if not (late := allocator.late(optimizers)):
            break
    return late


def _seen(
    allocator: SimulatedAllocator,
    stand_ins: Iterable[Tensor],
    modules: Iterable[nn.Module],
    optimizers: Iterable[Optimizer],
    inputs: Iterable[Tensor],
    late: Iterable[Optimizer],
    model: nn.Module | None,
) -> Simulation:
    """Return the counted calls and the owners of all allocations, given the optimizers that were never called."""
    batch, stood_in = allocator.numbers(inputs), allocator.numbers(stand_ins)
    parameters: set[int] = set()
    buffers: set[int] = set()
    for module in (*modules, *allocator.models):
        own, others = allocator.numbers(module.parameters()), allocator.numbers(module.buffers())
        if (own | others) & allocator.used:
            parameters |= own
            buffers |= others
    stepped = {id(optimizer): optimizer for optimizer in allocator.optimizers}.values()
    for optimizer in stepped:
        parameters |= allocator.numbers(stepped_by(optimizer))
    holding = [each for each in optimizers if allocator.numbers(stepped_by(each)) & allocator.used]
    state = allocator.numbers(tensor for optimizer in (*stepped, *holding) for tensor in _state(optimizer))
    state -= batch | parameters | buffers
    loose = (allocator.used & stood_in) - parameters - buffers - state - allocator.gradients
    owners = {
        "gradients": allocator.gradients,
        "optimizer_state": state,
        "inputs": batch | loose,
        "parameters": (parameters | buffers) - batch,
    }
    category = {number: name for name, numbers in owners.items() for number in numbers}
    changes = allocator.changes[allocator.first_change :]
    at_begin = allocator.alive_at_begin - (stood_in - category.keys())
    for number in {change.allocation for change in changes} | at_begin:
        if number not in category:
            category[number] = _kind_of(allocator.made[number], number in allocator.saved, allocator.trains)
    now = dict.fromkeys(CATEGORIES, 0)
    for number in at_begin:
        now[category[number]] += allocator.made[number].size
    most, peak, phase, op = dict(now), dict(now), "forward", ""
    total = highest = sum(now.values())
    for change in changes:
        kind = category[change.allocation]
        now[kind] += change.size
        total += change.size
        most[kind] = max(most[kind], now[kind])
        if total > highest:
            highest, peak, phase, op = total, dict(now), change.phase, change.op
    never = _classes(late)
    trained = [m for m in allocator.models if next(m.parameters(), None) is not None]
    return Simulation(
        model=_classes(trained if model is None else [model]) or "step",
        optimizer=_classes(stepped) or None,
        training=allocator.trains,
        by_category=peak,
        most=most,
        buffers=sum(allocator.made[number].size for number in buffers - parameters),
        peak_phase=phase,
        peak_op=op or None,
        single=min((p.element_size() for m in trained for p in m.parameters()), default=0) >= 4,
        half=allocator.casts,
        caveat=f"{never} {_NEVER_STEPPED}" if never else None,
    )


def _kind_of(made: Allocation, saved: bool, training: bool) -> str:
    """Return the category of an allocation that does not belong to a live object.

    The category depends on where the memory was allocated and on whether the backward pass needs it.
    """
    if made.scratch or made.phase == "optimizer":
        return "temporaries"
    if made.phase == "backward":
        return "activations" if made.recorded else "temporaries"  # recorded in backward means recomputation
    return "activations" if saved or not training else "temporaries"


def _has_variables(value: Any) -> bool:
    """Check whether a step may store tensors in a value, which is a user function or an object other than a model."""
    kind = type(value)
    if kind is FunctionType:
        return not is_installed(value.__code__.co_filename)
    if issubclass(kind, (nn.Module, Optimizer, type, Tensor)):
        return False
    try:
        if not isinstance(vars(value), dict):
            return False
    except Exception:  # there are no variables, or they cannot be read
        return False
    return kind is SimpleNamespace or str(kind.__module__).partition(".")[0] not in _NO_PART


def _state(optimizer: Optimizer) -> list[Tensor]:
    groups = [[value for name, value in group.items() if name != "params"] for group in optimizer.param_groups]
    kept = [list(values.values()) if isinstance(values, dict) else values for values in optimizer.state.values()]
    return [leaf for leaf in tree_leaves((groups, kept)) if isinstance(leaf, Tensor)]


def _classes(objects: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(type(value).__name__ for value in objects))
