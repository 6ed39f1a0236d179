"""Levers that change how an optimizer updates its parameters and clears their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from perfnb.findings.proposed_code import update_line
from perfnb.remedies.lever import Lever, always, attribute
from perfnb.remedies.lines import is_named
from perfnb.remedies.subject import Subject
from perfnb.step.optimizers import cannot_foreach, cannot_fuse, has_sparse_gradients, tensors_of

_FAMILY = "update"


def _each(why_not: Callable[[Optimizer, bool], str]) -> Callable[[Subject], str]:
    """Return a function that explains why a step's optimizers cannot all be changed."""

    def refuses(subject: Subject) -> str:
        if not subject.optimizers:
            return subject.idle or "the step calls no optimizer"
        sparse = has_sparse_gradients(subject.optimizers.values(), subject.modules(nn.Module))
        return next(filter(None, (why_not(each, sparse) for each in subject.optimizers.values())), "")

    return refuses


@contextmanager
def _with_flags(subject: Subject, **flags: bool) -> Iterator[None]:
    with ExitStack() as stack:
        for optimizer in subject.optimizers.values():
            groups = list(optimizer.param_groups)
            before = [{name: group[name] for name in flags if name in group} for group in groups]
            stack.callback(_update, groups, before)
            # A checkpoint that is saved in the meantime contains the user's own flags.
            stack.callback(optimizer.register_state_dict_post_hook(partial(_as_before, before)).remove)
            for group, own in zip(groups, before, strict=True):
                group.update({name: flags[name] for name in own})
        yield


def _as_before(values: Sequence[dict[str, Any]], _: Optimizer, state: dict[str, Any]) -> None:
    _update(state["param_groups"], values)


def _update(groups: Sequence[dict[str, Any]], values: Sequence[dict[str, Any]]) -> None:
    for group, own in zip(groups, values, strict=False):
        group.update(own)


@contextmanager
def _fused(subject: Subject) -> Iterator[None]:
    with ExitStack() as stack:
        for optimizer in subject.optimizers.values():
            stack.enter_context(_steps_on_device(optimizer))
        stack.enter_context(_with_flags(subject, fused=True, foreach=False))
        yield


@contextmanager
def _steps_on_device(optimizer: Optimizer) -> Iterator[None]:
    """Keep the update counts on the parameters' devices, where fused kernels read them.

    They are moved back to the CPU afterwards.
    """
    counts = {parameter: state.get("step") for parameter, state in optimizer.state.items()}
    before = {
        parameter: count
        for parameter, count in counts.items()
        if isinstance(count, Tensor) and count.device != parameter.device
    }
    for parameter, count in before.items():
        optimizer.state[parameter]["step"] = count.to(parameter.device, torch.float32)
    try:
        yield
    finally:
        for parameter, state in optimizer.state.items():
            count = state.get("step")
            if parameter in before:
                state["step"] = before[parameter].copy_(count)
            elif isinstance(count, Tensor):  # created while the lever was on
                state["step"] = count.cpu()


def _code(lever: str, argument: str) -> Callable[[Subject], list[str]]:
    def code(subject: Subject) -> list[str]:
        named = {name: each for name, each in subject.optimizers.items() if is_named(name, each)}
        lines = [update_line(lever, list(named))] if named else []
        lines += [
            f"# where the {type(each).__name__} is created: {argument}=True"
            for name, each in subject.optimizers.items()
            if name not in named
        ]
        if argument == "fused":  # its kernel reads the number of updates on the device
            lines += [
                f'for p, state in {name}.state.items(): state.update(step=state["step"].to(p.device)) '
                'if "step" in state else None'
                for name, each in named.items()
                if any(parameter.device.type != "cpu" for parameter in tensors_of(each))
            ]
        return lines

    return code


def _zeroed(subject: Subject) -> dict[str, Any]:
    """Return the optimizers and models whose zero_grad the step calls with ``set_to_none=False``, by name."""
    __tracebackhide__ = True
    filled: dict[str, Any] = {}

    def noting(name: str, owner: Any) -> Callable[..., Any]:
        zero_grad = owner.zero_grad

        def run(*args: Any, **kwargs: Any) -> Any:
            if not (args[0] if args else kwargs.get("set_to_none", True)):
                filled[name] = owner
            return zero_grad(*args, **kwargs)

        return run

    with subject.restored(), ExitStack() as stack:
        for name, owner in (*subject.models.items(), *subject.optimizers.items()):
            stack.enter_context(attribute(owner, "zero_grad", noting(name, owner)))
        stack.enter_context(subject.gate.opened())
        subject.run()
    return filled


def _keeps_gradients(subject: Subject) -> str:
    __tracebackhide__ = True
    if not subject.trains or subject.idle:
        return subject.idle or "the step computes no gradients"
    return "" if subject.once("zeroed", _zeroed) else "the step does not call any zero_grad with set_to_none=False"


@contextmanager
def _to_none(subject: Subject) -> Iterator[None]:
    def freeing(zero_grad: Callable[..., Any]) -> Callable[..., Any]:
        return lambda set_to_none=True: zero_grad(True)

    with ExitStack() as stack:
        for owner in subject.once("zeroed", _zeroed).values():
            stack.enter_context(attribute(owner, "zero_grad", freeing(owner.zero_grad)))
        yield


def _zero_grad_code(subject: Subject) -> list[str]:
    owners = subject.once("zeroed", _zeroed).items()
    names = [name if is_named(name, owner) else type(owner).__name__.lower() for name, owner in owners]
    return [f"# in the step: {name}.zero_grad()  instead of {name}.zero_grad(set_to_none=False)" for name in names]


FUSED_OPTIMIZER = Lever(
    "fused_optimizer",
    "the optimizer's update in one fused kernel",
    _each(cannot_fuse),
    always(_fused),
    _code("fused_optimizer", "fused"),
    answers=("optimizer",),
    family=_FAMILY,
)
FOREACH_OPTIMIZER = Lever(
    "foreach_optimizer",
    "the optimizer's update of all parameters at once instead of one by one",
    _each(cannot_foreach),
    always(lambda subject: _with_flags(subject, foreach=True)),
    _code("foreach_optimizer", "foreach"),
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
