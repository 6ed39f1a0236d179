"""Simulate one training or inference step of a model on fake tensors, recording every allocation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from perfnb.arguments import shown
from perfnb.errors import CaptureError
from perfnb.memory.estimate.allocator import Change, SimulatedAllocator, Simulation, allocator_of, kind_of
from perfnb.memory.estimate.fake_mode import explained, pretending
from perfnb.memory.estimate.model_step import call_model, loss_and_held
from perfnb.memory.estimate.stand_ins import StandIns, replaced, stepping


@dataclass(frozen=True)
class StepPlan:
    """What to simulate.

    Attributes
    ----------
    model : Module
    batch : object
        Tensor, tuple with the target last, or mapping of keyword arguments; on ``meta`` if it was resized.
    sample : object
        The user's batch, whose integer values are given to code that reads them.
    optimizer : str, Optimizer, callable or None
    loss : callable or None
    training : bool
    device : device
        The device whose allocator is simulated.
    autocast : dtype or None
    """

    model: nn.Module
    batch: Any
    sample: Any
    optimizer: Any
    loss: Callable[..., Any] | None
    training: bool
    device: torch.device
    autocast: torch.dtype | None


def simulate(plan: StepPlan) -> Simulation:
    """Run one step of `plan` on fake tensors.

    Model, loss, optimizer and random number generators are restored afterwards.

    Raises
    ------
    CaptureError
        If the step depends on the values in a tensor, or uses an op that cannot be simulated.
    """
    __tracebackhide__ = True
    cuda = plan.device.type == "cuda"
    allocator, place = allocator_of(plan.device, SimulatedAllocator)
    modules = [m for m in (plan.model, plan.loss) if isinstance(m, nn.Module)]
    with ExitStack() as stack:
        stack.enter_context(pretending())
        stand_ins = StandIns(place)
        agrees = plan.model.training == plan.training
        stack.enter_context(replaced(modules, stand_ins, None if agrees else plan.training))
        own = stand_ins.all()
        batch = stand_ins.within(_plain(plan.batch))
        for fake, real in zip(tree_leaves(batch), tree_leaves(_plain(plan.sample)), strict=True):
            allocator.numbers_known(fake, real)
        optimizer = _optimizer(plan, stand_ins, stack, foreach=cuda) if plan.training else None
        stack.enter_context(allocator)
        stack.enter_context(torch.set_grad_enabled(plan.training))
        return _Step(plan, allocator, own, stand_ins.all()).run(batch, optimizer)


class _Step:
    """A step being simulated."""

    def __init__(self, plan: StepPlan, allocator: SimulatedAllocator, own: list[Tensor], fakes: list[Tensor]) -> None:
        self._plan, self._allocator, self._own, self._fakes = plan, allocator, own, fakes
        self._output_at = 0

    def run(self, batch: Any, optimizer: torch.optim.Optimizer | None) -> Simulation:
        """Forward, loss, backward, and the optimizer's second step (the first creates its state)."""
        __tracebackhide__ = True
        allocator = self._allocator
        for fake in self._fakes:
            allocator.hold(fake)
        inputs = allocator.numbers(tree_leaves(batch))
        parameters = allocator.numbers(self._own)
        others = allocator.alive() - inputs
        buffers = others & allocator.numbers(b for b in self._own if not isinstance(b, nn.Parameter))
        buffers -= allocator.numbers(p for p in self._own if isinstance(p, nn.Parameter))
        begin = len(allocator.changes)
        with explained(self._plan.model):
            saved, loss, output = self._forward_and_backward(batch)
        gradients = allocator.numbers(p.grad for p in self._parameters(optimizer))
        changes = allocator.changes[begin:]
        state: set[int] = set()
        if optimizer is not None:
            with torch.no_grad(), explained(self._plan.model):
                allocator.phase = "optimizer"
                before = allocator.alive()
                optimizer.step()
                kept = [list(values.values()) for values in optimizer.state.values() if isinstance(values, dict)]
                state = (allocator.alive() - before) | allocator.numbers(tree_leaves(kept))
                begin = len(allocator.changes)
                optimizer.step()
            changes += allocator.changes[begin:]
        if output is not None:
            begin = len(allocator.changes)
            del loss, output
            changes = self._with_last_output(changes, allocator.changes[begin:])
        resident = {
            "parameters": parameters - inputs,
            "inputs": inputs,
            "optimizer_state": state - parameters - inputs,
        }
        kinds = {n: name for name, numbers in resident.items() for n in numbers}
        kinds |= dict.fromkeys(gradients, "gradients")
        for number in {change.allocation for change in changes}:
            if number not in kinds:
                kinds[number] = kind_of(allocator.made[number], number in saved, self._plan.training)
        return Simulation(
            changes=changes,
            resident={name: self._size(numbers) for name, numbers in resident.items()},
            category=kinds,
            buffers=self._size(buffers),
            optimizer=None if optimizer is None else type(optimizer).__name__,
            model=type(self._plan.model).__name__,
            training=self._plan.training,
        )

    def _with_last_output(self, changes: list[Change], freed: list[Change]) -> list[Change]:
        """What the previous output still holds stays alive until this step's output replaces it."""
        known = {change.allocation for change in changes}
        freed = [change for change in freed if change.allocation in known]
        before = [change._replace(size=-change.size, phase="forward") for change in freed]
        there = self._output_at or len(changes)
        return [*before, *changes[:there], *freed, *changes[there:]]

    def _forward_and_backward(self, batch: Any) -> tuple[set[int], Any, Any]:
        """The allocations alive when backward starts, and the loss and output that the step holds."""
        __tracebackhide__ = True
        plan, allocator = self._plan, self._allocator
        allocator.phase = "forward"
        if not plan.training:
            with self._casting():
                call_model(plan.model, batch)
            return set(), None, None
        begin = len(allocator.changes)
        with self._casting():
            loss, output = self._loss(batch)
        self._output_at = len(allocator.changes) - begin
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise CaptureError("The loss must be a tensor with one element: reduce it with mean or sum.")
        if not loss.requires_grad:
            raise CaptureError(
                "Nothing in this step requires a gradient: pass training=False, or unfreeze a parameter that is used."
            )
        allocator.phase = "backward"
        saved = allocator.alive()
        loss.backward()
        return saved, loss, output

    def _loss(self, batch: Any) -> tuple[Any, Any]:
        __tracebackhide__ = True

        def output_is_there() -> None:
            self._allocator.phase = "loss"

        return loss_and_held(self._plan.model, batch, self._plan.loss, output_is_there)

    def _casting(self) -> Any:
        kind = self._plan.device.type if torch.cuda.is_available() else "cpu"
        return nullcontext() if self._plan.autocast is None else torch.autocast(kind, self._plan.autocast)

    def _parameters(self, optimizer: torch.optim.Optimizer | None) -> list[Any]:
        stepped = [] if optimizer is None else [p for group in optimizer.param_groups for p in group["params"]]
        return [p for p in (*self._own, *stepped) if isinstance(p, Tensor) and p.is_leaf]

    def _size(self, numbers: set[int]) -> int:
        return sum(self._allocator.made[n].size for n in numbers)


def _plain(batch: Any) -> Any:
    return dict(batch) if isinstance(batch, Mapping) else batch


def _optimizer(plan: StepPlan, stand_ins: StandIns, stack: ExitStack, foreach: bool) -> torch.optim.Optimizer | None:
    wanted = plan.optimizer
    if wanted is None:
        return None
    if not isinstance(wanted, torch.optim.Optimizer):
        parameters = [p for p in dict.fromkeys(plan.model.parameters()) if p.requires_grad]
        wanted = _factory(wanted)(parameters)
        if not isinstance(wanted, torch.optim.Optimizer):
            raise TypeError(f"optimizer must return a torch optimizer, not {type(wanted).__name__}.")
    if isinstance(wanted, torch.optim.LBFGS):
        raise CaptureError("LBFGS evaluates the loss any number of times per step, so its memory cannot be estimated.")
    stack.enter_context(stepping(wanted, stand_ins, foreach))
    return wanted


def _factory(wanted: Any) -> Callable[[list[nn.Parameter]], Any]:
    if isinstance(wanted, str):
        classes = {
            name.lower(): kind
            for name, kind in vars(torch.optim).items()
            if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
        }
        if wanted.lower() not in classes:
            raise ValueError(f"torch.optim has no optimizer {shown(wanted)}; it has {', '.join(sorted(classes))}.")
        return classes[wanted.lower()]
    if not callable(wanted):
        raise TypeError(
            "optimizer must be a name in torch.optim, an optimizer, or a function that makes one from parameters, "
            f"not {type(wanted).__name__}."
        )
    return wanted  # type: ignore[no-any-return]
