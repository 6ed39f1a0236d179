"""One step of a model on a batch: forward, a loss, backward; for real, or simulated on fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from perfnb.arguments import shown
from perfnb.errors import CaptureError
from perfnb.memory.estimate.allocator import Change, SimulatedAllocator, Simulation, kind_of
from perfnb.memory.estimate.fake_tensors import StandIns, explained, pretending, replaced, stepping
from perfnb.step.checks import require_loss


@contextmanager
def left_as_they_were(models: Iterable[nn.Module], *, training: bool) -> Iterator[None]:
    """Put models in training or evaluation mode; restore modes and buffers (running means) at the end."""
    modules = [module for model in models for module in model.modules()]
    modes = [module.training for module in modules]
    buffers = [(buffer, buffer.clone()) for module in modules for buffer in module.buffers(recurse=False)]
    try:
        for module in modules:
            module.training = training and module.training
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
        with torch.no_grad():
            for buffer, kept in buffers:
                buffer.copy_(kept)


def model_step(
    model: nn.Module, batch: Any, loss: Callable[..., Any] | None = None, *, training: bool = True
) -> Callable[[], None]:
    """A step of a model that changes nothing in it except gradients and buffers.

    Parameters
    ----------
    loss : callable or None
        ``loss(output, target)``; ``loss(output, batch)`` for a mapping, ``loss(output)`` for a lone tensor. Without
        one, ``output.loss`` if there is one, else the sum of the outputs.
    training : bool
        Forward, loss and backward, with gradients cleared first; or forward only, without gradients.
    """
    __tracebackhide__ = True
    if training or not callable(loss):  # inference does not call it
        require_loss(loss, batch)

    def train() -> None:
        __tracebackhide__ = True
        model.zero_grad(set_to_none=True)
        _loss_and_held(partial(_call, model, batch), batch, loss)[0].backward()

    def infer() -> None:
        __tracebackhide__ = True
        with torch.no_grad():
            _call(model, batch)

    return train if training else infer


@dataclass(frozen=True)
class ModelStep:
    """A training or inference step of a model, to simulate; its parts are as in `estimate_memory`."""

    model: nn.Module
    batch: Any  # on "meta" if it was resized
    sample: Any  # the user's batch, whose integer values are given to code that reads them
    optimizer: Any
    loss: Callable[..., Any] | None
    training: bool
    device: torch.device  # whose allocator is simulated
    autocast: torch.dtype | None

    def simulated(self) -> Simulation:
        """Run it on fake tensors: forward, loss, backward, and the optimizer's second step (the first makes its state).

        Model, loss, optimizer and random number generators are restored afterwards.

        Raises
        ------
        CaptureError
            If the step depends on the values in a tensor, or uses an op that cannot be simulated.
        """
        __tracebackhide__ = True
        allocator = SimulatedAllocator(self.device)
        modules = [m for m in (self.model, self.loss) if isinstance(m, nn.Module)]
        with ExitStack() as stack:
            stack.enter_context(pretending())
            stand_ins = StandIns(allocator.place)
            agrees = self.model.training == self.training
            stack.enter_context(replaced(modules, stand_ins, None if agrees else self.training))
            own = stand_ins.all()
            batch = stand_ins.within(_plain(self.batch))
            for fake, real in zip(tree_leaves(batch), tree_leaves(_plain(self.sample)), strict=True):
                allocator.known.tell(fake, real)
            optimizer = self._optimizer() if self.training else None
            if optimizer is not None:
                stack.enter_context(stepping(optimizer, stand_ins, foreach=self.device.type == "cuda"))
            stack.enter_context(allocator)
            stack.enter_context(torch.set_grad_enabled(self.training))
            for fake in stand_ins.all():
                allocator.see(fake)
            return self._run(allocator, own, batch, optimizer)

    def _run(
        self, allocator: SimulatedAllocator, own: list[Tensor], batch: Any, optimizer: torch.optim.Optimizer | None
    ) -> Simulation:
        __tracebackhide__ = True
        inputs = allocator.numbers(tree_leaves(batch))
        parameters = allocator.numbers(own)
        buffers = allocator.numbers(b for b in own if not isinstance(b, nn.Parameter))
        buffers -= inputs | allocator.numbers(p for p in own if isinstance(p, nn.Parameter))
        begin = len(allocator.changes)
        with explained(self.model):
            saved, output_at, *held = self._forward_and_backward(allocator, batch)
        stepped = [] if optimizer is None else [p for group in optimizer.param_groups for p in group["params"]]
        leaves = [p for p in (*own, *stepped) if isinstance(p, Tensor) and p.is_leaf]
        gradients = allocator.numbers(p.grad for p in leaves)
        changes = allocator.changes[begin:]
        state: set[int] = set()
        if optimizer is not None:
            with torch.no_grad(), explained(self.model):
                allocator.phase = "optimizer"
                before = allocator.alive()
                optimizer.step()
                kept = [list(values.values()) for values in optimizer.state.values() if isinstance(values, dict)]
                state = (allocator.alive() - before) | allocator.numbers(tree_leaves(kept))
                begin = len(allocator.changes)
                optimizer.step()
            changes += allocator.changes[begin:]
        if held[-1] is not None:
            begin = len(allocator.changes)
            held.clear()
            changes = _with_last_output(changes, output_at, allocator.changes[begin:])
        resident = {
            "parameters": parameters - inputs,
            "inputs": inputs,
            "optimizer_state": state - parameters - inputs,
        }
        kinds = {n: name for name, numbers in resident.items() for n in numbers}
        kinds |= dict.fromkeys(gradients, "gradients")
        for number in {change.allocation for change in changes}:
            if number not in kinds:
                kinds[number] = kind_of(allocator.made[number], number in saved, self.training)
        return Simulation(
            changes=changes,
            resident={name: allocator.size_of(numbers) for name, numbers in resident.items()},
            category=kinds,
            buffers=allocator.size_of(buffers),
            optimizer=None if optimizer is None else type(optimizer).__name__,
            model=type(self.model).__name__,
            training=self.training,
        )

    def _forward_and_backward(self, allocator: SimulatedAllocator, batch: Any) -> tuple[set[int], int, Any, Any]:
        """The allocations alive when backward starts, how many changes came before, and what the step holds: its loss
        and output."""
        __tracebackhide__ = True
        kind = self.device.type if torch.cuda.is_available() else "cpu"
        casting: Any = nullcontext() if self.autocast is None else torch.autocast(kind, self.autocast)
        begin = len(allocator.changes)

        def forward() -> Any:
            __tracebackhide__ = True
            output = _call(self.model, batch)
            allocator.phase = "loss"
            return output

        allocator.phase = "forward"
        if not self.training:
            with casting:
                _call(self.model, batch)
            return set(), 0, None, None
        with casting:
            loss, output = _loss_and_held(forward, batch, self.loss)
        output_at = len(allocator.changes) - begin
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise CaptureError("The loss must be a tensor with one element: reduce it with mean or sum.")
        if not loss.requires_grad:
            raise CaptureError(
                "Nothing in this step requires a gradient: pass training=False, or unfreeze a parameter that is used."
            )
        allocator.phase = "backward"
        saved = allocator.alive()
        loss.backward()
        return saved, output_at, loss, output

    def _optimizer(self) -> torch.optim.Optimizer | None:
        wanted = self.optimizer
        if wanted is None:
            return None
        if isinstance(wanted, str):
            classes = {
                name.lower(): kind
                for name, kind in vars(torch.optim).items()
                if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
            }
            del classes["optimizer"]
            if wanted.lower() not in classes:
                raise ValueError(f"torch.optim has no optimizer {shown(wanted)}; it has {', '.join(sorted(classes))}.")
            wanted = classes[wanted.lower()]
        if not isinstance(wanted, torch.optim.Optimizer):
            if not callable(wanted):
                raise TypeError(
                    "optimizer must be a name in torch.optim, an optimizer, or a function that makes one from "
                    f"parameters, not {type(wanted).__name__}."
                )
            wanted = wanted([p for p in dict.fromkeys(self.model.parameters()) if p.requires_grad])
            if not isinstance(wanted, torch.optim.Optimizer):
                raise TypeError(f"optimizer must return a torch optimizer, not {type(wanted).__name__}.")
        if isinstance(wanted, torch.optim.LBFGS):
            raise CaptureError(
                "LBFGS evaluates the loss any number of times per step, so its memory cannot be estimated."
            )
        return wanted


def _call(model: nn.Module, batch: Any) -> Any:
    """The model's output. In a tuple the last element is the target, if there is another; a mapping holds keywords."""
    __tracebackhide__ = True
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, (tuple, list)):
        return model(*(batch[:-1] if len(batch) > 1 else batch))
    return model(batch)


def _loss_and_held(forward: Callable[[], Any], batch: Any, loss: Callable[..., Any] | None) -> tuple[Any, Any]:
    """The loss of a model on a batch, as in `model_step`, and the output if a training loop holds it in a variable.

    That is usual in ``out = model(**batch); out.loss.backward()``, but not in ``loss(model(x), y).backward()``.
    """
    __tracebackhide__ = True
    if loss is not None:
        target = [batch] if isinstance(batch, Mapping) else list(batch[-1:]) if isinstance(batch, (tuple, list)) else []
        return loss(forward(), *target), None  # only the graph holds the output when backward starts
    output = forward()
    own = getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own, output
    values = output.values() if isinstance(output, Mapping) else tree_leaves(output)
    parts = [t.sum() for t in values if isinstance(t, Tensor) and t.requires_grad]
    if not parts:
        raise CaptureError("The model's output requires no gradient: pass training=False, or a loss.")
    return sum(parts[1:], parts[0]), None


def _with_last_output(changes: list[Change], output_at: int, freed: list[Change]) -> list[Change]:
    """What the previous output still holds stays alive until this step's output replaces it."""
    known = {change.allocation for change in changes}
    freed = [change for change in freed if change.allocation in known]
    before = [change._replace(size=-change.size, phase="forward") for change in freed]
    there = output_at or len(changes)
    return [*before, *changes[:there], *freed, *changes[there:]]


def _plain(batch: Any) -> Any:
    return dict(batch) if isinstance(batch, Mapping) else batch
