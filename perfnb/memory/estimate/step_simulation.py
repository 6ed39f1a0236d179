"""Simulate a step on fake tensors, recording every allocation.

The step's Python runs unchanged. Models, optimizers, and the tensors reachable from its variables are replaced by
stand-ins, and what it changes in its variables is undone.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.loss import _Loss
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from perfnb.errors import CaptureError
from perfnb.interrupts import InterruptGate
from perfnb.memory.estimate.allocator import SimulatedAllocator, Simulation, device_among, kind_of
from perfnb.memory.estimate.batches import tensor_resized, with_tensors
from perfnb.memory.estimate.fake_tensors import (
    StandIns,
    explained,
    pretending,
    replaced,
    stepping,
    variables_replaced,
)
from perfnb.step.memory import living
from perfnb.step.namespace import is_installed, reachable
from perfnb.step.steps import tensors_in

#: Most calls of a step until every optimizer has stepped, and again until they step once more.
_MOST_CALLS = 16
_NEVER_STEPPED = (
    f"did not step in any of {_MOST_CALLS} simulated calls: the estimate lacks the memory of its step and any state "
    "that it has not created yet."
)
#: Classes whose live objects are all found, as the profiler finds them when they are called or step.
_LIVING = (nn.Module, Optimizer, LRScheduler, torch.amp.GradScaler)
#: Packages whose objects are not part of a step.
_NO_PART = {*sys.stdlib_module_names, "IPython", "ipykernel", "ipywidgets", "perfnb", "traitlets", "zmq"}


def simulate_step(
    step: Callable[..., Any],
    batch: Any,
    samples: int | None,
    size: int | None,
    device: str | torch.device | None,
    model: nn.Module | None = None,
) -> tuple[Simulation, torch.device]:
    """Run a step on fake tensors until it is in steady state; return what that call did, and the simulated device.

    The first call creates the optimizer's state and the second one counts. If gradients are accumulated over several
    calls, the step is called until each optimizer has stepped, and then all calls until they step again count.

    Parameters, buffers, gradients, optimizer state, random number generators, and the variables and plain containers
    reachable from the step are restored afterwards. Other effects of its Python stay: files, counters elsewhere.

    Parameters
    ----------
    step : callable
    batch : object
        ``None`` if the step takes none.
    samples, size : int or None
        Samples in the batch, and samples to simulate.
    device : str, device or None
        The device whose allocator is simulated; ``None``: that of the step's models.
    model : Module or None
        The model that perfnb itself made the step for: then whatever it uses is reachable from its variables.

    Raises
    ------
    CaptureError
        If the step depends on the values in a tensor, or uses an op that cannot be simulated.
    Exception
        Whatever the step raises.
    """
    __tracebackhide__ = True
    near = list(reachable([step]))  # from its variables, nearest first
    elsewhere = living(_LIVING) if model is None else ()
    found = list({id(value): value for value in (*near, *elsewhere)}.values())
    modules = [value for value in found if issubclass(type(value), nn.Module)]
    optimizers = [value for value in found if issubclass(type(value), Optimizer)]
    simulated = device_among(_tensors(found, batch), device)
    allocator = _StepAllocator(simulated)
    inputs: list[Tensor] = []
    given: dict[int, tuple[Tensor, Tensor]] = {}  # each tensor of the sized batch, and the user's, by its id

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
            yield from _stepped(value)
        elif issubclass(type(value), Tensor):
            yield value
    yield from tensors_in(batch)


def _call_until_stepped(
    step: Callable[..., Any], batch: tuple[Any, ...], allocator: _StepAllocator, optimizers: list[Optimizer]
) -> list[Optimizer]:
    """Call the step until these optimizers have stepped; return those that have not after `_MOST_CALLS` calls."""
    __tracebackhide__ = True
    for _ in range(_MOST_CALLS):
        step(*batch)
        if not (late := allocator.late(optimizers)):
            break
    return late


class _StepAllocator(SimulatedAllocator):
    """An allocator that works out by itself what a step is doing."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.saved: set[int] = set()  # allocations alive when a backward pass started
        self.gradients: set[int] = set()  # those that held the gradient of a parameter
        self.trained: set[int] = set()  # those that hold parameters with a gradient
        self.alive_at_begin: set[int] = set()  # those alive when the calls that count started
        self.first_change = 0  # place of the first change in those calls
        self.models: list[nn.Module] = []  # the outermost modules that were called
        self.optimizers: list[Optimizer] = []  # those that stepped
        self.trains = False  # whether there was a backward pass
        self.casts = False  # whether a model was called under autocast
        self._called: list[nn.Module] = []
        self._stepping = 0
        self._first_step = 0
        self._between = "other"  # the phase when neither a module, backward nor an optimizer runs

    def listening(self) -> ExitStack:
        """Hook module calls and optimizer steps until this is left."""
        with ExitStack() as stack:
            stack.callback(register_module_forward_pre_hook(self._call_begins).remove)
            stack.callback(register_module_forward_hook(self._call_ends, always_call=True).remove)
            stack.callback(register_optimizer_step_pre_hook(self._optimizer_begins).remove)
            stack.callback(register_optimizer_step_post_hook(self._optimizer_ends).remove)
            return stack.pop_all()

    def steps_again(self) -> None:
        """The next call is the first that counts."""
        self.alive_at_begin, self.first_change, self._between = self.alive(), len(self.changes), "other"
        self._first_step = len(self.optimizers)

    def late(self, optimizers: Iterable[Optimizer]) -> list[Optimizer]:
        """Those of these optimizers with parameters that have gradients and that no optimizer has stepped."""
        stepped: set[int] = set()
        for optimizer in self.optimizers[self._first_step :]:
            stepped |= self.numbers(_stepped(optimizer))
        return [each for each in optimizers if (self.numbers(_stepped(each)) & self.trained) - stepped]

    def accumulated(self, parameter: Tensor) -> None:
        """A parameter has got its gradient."""
        self.gradients |= self.numbers([parameter.grad])
        self.trained |= self.numbers([parameter])

    def before_op(self) -> None:
        """Work out in which phase the op runs."""
        if torch._C._current_autograd_node() is not None:
            if self._between != "backward":
                self._between, self.trains = "backward", True
                self.saved |= self.alive()
            self.phase = "backward"
        elif self._called:
            self.phase = "loss" if isinstance(self._called[0], _Loss) else "forward"
        else:
            self._between = "other" if self._between == "backward" else self._between
            self.phase = "optimizer" if self._stepping else self._between

    def number_asked_for(self) -> float | None:
        """An optimizer gets its step count, a gradient scaler that no gradient overflowed."""
        asker = _asker()
        if asker.endswith("grad_scaler.py"):
            return 0.0
        return super().number_asked_for() if is_installed(asker) else None

    def _call_begins(self, module: nn.Module, _: Any) -> None:
        if isinstance(module, torch.jit.ScriptModule):  # it holds its tensors outside Python
            raise CaptureError(
                f"{type(module).__name__} is a scripted module, whose memory cannot be estimated: use the original one."
            )
        if any(map(is_lazy, module.parameters(recurse=False))):
            raise CaptureError(
                f"{type(module).__name__} has no parameters yet, so its memory cannot be estimated: call it once."
            )
        if not self._called and torch._C._current_autograd_node() is None:
            self.models.append(module)
            self.casts |= torch.is_autocast_enabled(self.place.type)
        self._called.append(module)

    def _call_ends(self, module: nn.Module, *_: Any) -> None:
        while self._called and self._called.pop() is not module:
            pass
        if not self._called:
            self._between = "loss"

    def _optimizer_begins(self, optimizer: Optimizer, *_: Any) -> None:
        self.gradients |= self.numbers(parameter.grad for parameter in _stepped(optimizer))
        self.optimizers.append(optimizer)
        self._stepping += 1
        for group in optimizer.param_groups:  # all parameters at once if it may choose, as on CUDA
            if self.cuda and group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True

    def _optimizer_ends(self, *_: Any) -> None:
        self._stepping -= 1


def _seen(
    allocator: _StepAllocator,
    stand_ins: Iterable[Tensor],
    modules: Iterable[nn.Module],
    optimizers: Iterable[Optimizer],
    inputs: Iterable[Tensor],
    late: Iterable[Optimizer],
    model: nn.Module | None,
) -> Simulation:
    """The calls that count, and who owns what was allocated, given the optimizers that never stepped."""
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
        parameters |= allocator.numbers(_stepped(optimizer))
    holding = [each for each in optimizers if allocator.numbers(_stepped(each)) & allocator.used]
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
            category[number] = kind_of(allocator.made[number], number in allocator.saved, allocator.trains)
    resident: Counter[str] = Counter()
    for number in at_begin:
        resident[category[number]] += allocator.made[number].size
    never = _classes(late)
    trained = [m for m in allocator.models if next(m.parameters(), None) is not None]
    return Simulation(
        changes=changes,
        resident=resident,
        category=category,
        buffers=allocator.size_of(buffers - parameters),
        optimizer=_classes(stepped) or None,
        model=_classes(trained if model is None else [model]) or "step",
        training=allocator.trains,
        single=min((p.element_size() for m in trained for p in m.parameters()), default=0) >= 4,
        half=allocator.casts,
        caveat=f"{never} {_NEVER_STEPPED}" if never else None,
    )


def _has_variables(value: Any) -> bool:
    """Whether a step may keep something in a value: a user's function, or an object that is not a model."""
    kind = type(value)
    if kind is FunctionType:
        return not is_installed(value.__code__.co_filename)
    if issubclass(kind, (nn.Module, Optimizer, type, Tensor)):
        return False
    try:
        if not isinstance(vars(value), dict):
            return False
    except Exception:  # it has none, or refuses
        return False
    return kind is SimpleNamespace or str(kind.__module__).partition(".")[0] not in _NO_PART


def _stepped(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _state(optimizer: Optimizer) -> list[Tensor]:
    groups = [[value for name, value in group.items() if name != "params"] for group in optimizer.param_groups]
    kept = [list(values.values()) if isinstance(values, dict) else values for values in optimizer.state.values()]
    return [leaf for leaf in tree_leaves((groups, kept)) if isinstance(leaf, Tensor)]


def _classes(objects: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(type(value).__name__ for value in objects))


def _asker() -> str:
    """The file of the code that reads a tensor's value."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in _DISPATCHING:
        frame = frame.f_back
    return "" if frame is None else str(frame.f_code.co_filename)


#: Files between the code that reads a value and the allocator.
_DISPATCHING = {
    __file__,
    str(sys.modules[SimulatedAllocator.__module__].__file__),
    *(str(Path(torch.__file__).parent / name) for name in ("_compile.py", "_dynamo/eval_frame.py")),
}
