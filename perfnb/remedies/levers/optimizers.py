"""How an optimizer updates its parameters and clears their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from perfnb.remedies.lever import Lever, always, attribute, is_named
from perfnb.remedies.subject import Subject

_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
_FUSED_ON_CPU_ALONE = (torch.optim.Adagrad,)
_NONE = "the step has no optimizer that perfnb can see"
_FAMILY = "update"


def _has_sparse_gradients(subject: Subject) -> bool:
    held = [parameter for each in subject.optimizers.values() for parameter in _parameters(each)]
    tables = subject.modules(nn.Embedding, nn.EmbeddingBag)
    return any(module.sparse for module in tables) or any(
        parameter.grad is not None and parameter.grad.is_sparse for parameter in held
    )


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _cannot_fuse(subject: Subject) -> str:
    if not subject.optimizers:
        return _NONE
    for optimizer in subject.optimizers.values():
        if type(optimizer) not in _FUSED:
            return f"{type(optimizer).__name__} has no fused implementation"
        groups, held = optimizer.param_groups, _parameters(optimizer)
        if any(group.get("fused") for group in groups):
            return "the optimizer is fused already"
        if any(group.get("differentiable") or group.get("capturable") for group in groups):
            return "a differentiable or capturable optimizer cannot be fused"
        kinds = {parameter.device.type for parameter in held}
        if kinds - {"cpu", "cuda"} or not all(parameter.is_floating_point() for parameter in held):
            return "a fused update needs real floating-point parameters on CPU or CUDA"
        if type(optimizer) in _FUSED_ON_CPU_ALONE and kinds != {"cpu"}:
            return f"{type(optimizer).__name__} has a fused implementation for CPUs alone"
    return "a fused update does not take sparse gradients" if _has_sparse_gradients(subject) else ""


def _cannot_foreach(subject: Subject) -> str:
    if not subject.optimizers:
        return _NONE
    for optimizer in subject.optimizers.values():
        groups = optimizer.param_groups
        if not all("foreach" in group for group in groups):
            return f"{type(optimizer).__name__} has no implementation that updates all parameters at once"
        if any(group["foreach"] or group.get("fused") for group in groups):
            return "the optimizer updates all parameters at once already"
        if any(group.get("differentiable") for group in groups):
            return "a differentiable optimizer cannot update all parameters at once"
        if subject.kinds == {"cuda"} and all(group["foreach"] is None for group in groups):
            return "on CUDA the optimizer updates all parameters at once already, unless told otherwise"
    return "updating all parameters at once does not take sparse gradients" if _has_sparse_gradients(subject) else ""


@contextmanager
def _with_flags(subject: Subject, **flags: bool) -> Iterator[None]:
    groups = [group for optimizer in subject.optimizers.values() for group in optimizer.param_groups]
    before = [{name: group[name] for name in flags if name in group} for group in groups]
    for group in groups:
        group.update({name: value for name, value in flags.items() if name in group})
    try:
        yield
    finally:
        for group, values in zip(groups, before, strict=True):
            group.update(values)


@contextmanager
def _fused(subject: Subject) -> Iterator[None]:
    with ExitStack() as stack:
        for optimizer in subject.optimizers.values():
            stack.enter_context(_steps_on_device(optimizer))
        stack.enter_context(_with_flags(subject, fused=True, foreach=False))
        yield


@contextmanager
def _steps_on_device(optimizer: Optimizer) -> Iterator[None]:
    """Keep the counts of updates on the parameters' devices, where a fused kernel reads them, and on the CPU again."""
    before: dict[Any, Tensor] = {}
    for parameter, state in optimizer.state.items():
        count = state.get("step")
        if isinstance(count, Tensor) and count.device != parameter.device:
            before[parameter] = count
            state["step"] = count.to(parameter.device, torch.float32)
    try:
        yield
    finally:
        for parameter, state in optimizer.state.items():
            count = state.get("step")
            if parameter in before and isinstance(count, Tensor):
                state["step"] = before[parameter].copy_(count)
            elif isinstance(count, Tensor) and count.device.type != "cpu":  # made while the lever was on
                state["step"] = count.cpu()


def _fused_code(subject: Subject) -> list[str]:
    lines = []
    for name, optimizer in subject.optimizers.items():
        if not is_named(name, optimizer):
            lines.append(f"# where the {type(optimizer).__name__} is made: fused=True")
            continue
        lines.append(f"for group in {name}.param_groups: group.update(fused=True, foreach=False)")
        if any(parameter.device.type != "cpu" for parameter in _parameters(optimizer)):
            lines.append(
                f'for p, state in {name}.state.items(): state.update(step=state["step"].to(p.device)) '
                'if "step" in state else None'
            )
    return lines


def _foreach_code(subject: Subject) -> list[str]:
    return [
        f"for group in {name}.param_groups: group.update(foreach=True)"
        if is_named(name, optimizer)
        else f"# where the {type(optimizer).__name__} is made: foreach=True"
        for name, optimizer in subject.optimizers.items()
    ]


def _zeroed(subject: Subject) -> dict[str, Any]:
    """The optimizers and models whose zero_grad the step calls with ``set_to_none=False``, by name."""
    __tracebackhide__ = True
    if "zeroed" not in subject.chosen:
        subject.chosen["zeroed"] = _watched(subject)
    found: dict[str, Any] = subject.chosen["zeroed"]
    return found


def _watched(subject: Subject) -> dict[str, Any]:
    __tracebackhide__ = True
    owners: dict[str, Any] = {**subject.models, **subject.optimizers}
    filled: dict[str, Any] = {}

    def noting(name: str, owner: Any) -> Callable[..., Any]:
        zero_grad = owner.zero_grad

        def run(*args: Any, **kwargs: Any) -> Any:
            if not (args[0] if args else kwargs.get("set_to_none", True)):
                filled[name] = owner
            return zero_grad(*args, **kwargs)

        return run

    with subject.restored(), ExitStack() as stack:
        for name, owner in owners.items():
            stack.enter_context(attribute(owner, "zero_grad", noting(name, owner)))
        stack.enter_context(subject.gate.opened())
        subject.run()
    return filled


def _keeps_gradients(subject: Subject) -> str:
    __tracebackhide__ = True
    if not subject.trains:
        return "the step computes no gradients"
    return "" if _zeroed(subject) else "no zero_grad of the step is called with set_to_none=False"


@contextmanager
def _to_none(subject: Subject) -> Iterator[None]:
    def freeing(zero_grad: Callable[..., Any]) -> Callable[..., Any]:
        return lambda set_to_none=True: zero_grad(True)

    with ExitStack() as stack:
        for owner in _zeroed(subject).values():
            stack.enter_context(attribute(owner, "zero_grad", freeing(owner.zero_grad)))
        yield


def _zero_grad_code(subject: Subject) -> list[str]:
    names = [
        name if is_named(name, owner) else type(owner).__name__.lower() for name, owner in _zeroed(subject).items()
    ]
    return [f"# in the step: {name}.zero_grad()  instead of {name}.zero_grad(set_to_none=False)" for name in names]


FUSED_OPTIMIZER = Lever(
    "fused_optimizer",
    "the optimizer's update in one fused kernel",
    _cannot_fuse,
    always(_fused),
    _fused_code,
    answers=("optimizer",),
    family=_FAMILY,
)
FOREACH_OPTIMIZER = Lever(
    "foreach_optimizer",
    "the optimizer's update of all parameters at once, instead of one after the other",
    _cannot_foreach,
    always(lambda subject: _with_flags(subject, foreach=True)),
    _foreach_code,
    answers=("optimizer",),
    family=_FAMILY,
)
SET_TO_NONE = Lever(
    "set_to_none",
    "zero_grad frees gradients instead of filling them with zeros",
    _keeps_gradients,
    always(_to_none),
    _zero_grad_code,
    answers=("memory bandwidth",),
)
