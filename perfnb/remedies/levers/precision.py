"""Lower precision: autocast, with a gradient scaler for float16, and float32 products on faster units."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from perfnb.errors import CaptureError
from perfnb.findings.code import lever_line
from perfnb.remedies.float32 import float32_precisions, newer_parts, older_precision, set_float32_precisions
from perfnb.remedies.float64 import narrowed, widened
from perfnb.remedies.lever import (
    Lever,
    Switch,
    always,
    attribute,
    device_kind,
    for_models,
    forward_within,
    is_named,
    without_models,
)
from perfnb.remedies.subject import Subject
from perfnb.step.environment import lower_precision

_FAMILY = "autocast"
#: Least compute capability of NVIDIA GPUs with units for TF32.
_TF32 = (8, 0)
#: Steps in which a scaler must find a scale without overflow; each halves it.
_MOST_HALVINGS = 24
_BY_HAND = "write scaler.scale(loss).backward(), scaler.step(optimizer) and scaler.update() in the step itself"


def _refuses(subject: Subject) -> str:
    if why := without_models(subject):
        return why
    if torch.float32 not in {parameter.dtype for parameter in subject.parameters}:
        return "the model is not in float32"
    if subject.kinds - {"cpu", "cuda"}:
        return f"perfnb has not tried autocast on {', '.join(sorted(subject.kinds))}"
    return ""


def _refuses_float16(subject: Subject) -> str:
    if "cuda" not in subject.kinds:
        return "float16 is for CUDA: CPUs compute it slower than float32, and bfloat16 needs no gradient scaler"
    return _refuses(subject)


@contextmanager
def scaled_steps(subject: Subject, scaler: Any) -> Iterator[None]:
    """Scale the loss in ``loss.backward()``, unscale the gradients after it, and skip updates that overflowed.

    Code between backward and update, such as gradient clipping, sees unscaled gradients.
    """
    backward: Any = Tensor.backward
    states = {id(optimizer): False for optimizer in subject.optimizers.values()}  # whether its gradients are ready
    inside = False

    def scaled(self: Tensor, *args: Any, **kwargs: Any) -> None:
        if any(states.values()):
            raise CaptureError(f"The step calls backward more than once per update: {_BY_HAND}.")
        backward(scaler.scale(self), *args, **kwargs)
        for optimizer in subject.optimizers.values():
            if any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"]):
                scaler.unscale_(optimizer)
                states[id(optimizer)] = True

    def stepping(optimizer: Any) -> Callable[..., Any]:
        plain = optimizer.step

        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside:
                return plain(*args, **kwargs)
            if not states[id(optimizer)]:
                raise CaptureError(f"The optimizer's gradients do not come from loss.backward(): {_BY_HAND}.")
            inside, states[id(optimizer)] = True, False
            try:
                found = scaler.step(optimizer, *args, **kwargs)
            finally:
                inside = False
            if not any(states.values()):
                scaler.update()
            return found

        return step

    with ExitStack() as stack:
        for optimizer in subject.optimizers.values():
            stack.enter_context(attribute(optimizer, "step", stepping(optimizer)))
        stack.callback(setattr, Tensor, "backward", backward)
        Tensor.backward = scaled  # type: ignore[method-assign]
        yield


@contextmanager
def prepared_float16(subject: Subject, kind: str = "cuda") -> Iterator[Switch]:
    """Autocast to float16; where the step trains, with a scaler that has found its scale."""
    __tracebackhide__ = True
    scaler = torch.amp.GradScaler(kind) if subject.trains else None

    @contextmanager
    def on() -> Iterator[None]:
        with forward_within(subject, lambda: torch.autocast(kind, torch.float16)), ExitStack() as stack:
            if scaler is not None:
                stack.enter_context(scaled_steps(subject, scaler))
            yield

    if scaler is not None:
        with subject.restored(), on(), subject.gate.opened():
            before = None
            for _ in range(_MOST_HALVINGS):
                if before is not None and scaler.get_scale() >= before:
                    break
                before = scaler.get_scale()
                subject.run()
    yield on


def _float16_code(subject: Subject) -> list[str]:
    lines = for_models("{0}.forward = torch.autocast('cuda', torch.float16)({0}.forward)")(subject)
    if not subject.trains or not lines:
        return lines
    names = [name for name, each in subject.optimizers.items() if is_named(name, each)] or ["optimizer"]
    steps = [f"# scaler.step({name})  instead of {name}.step()" for name in names]
    return [
        *lines,
        'scaler = torch.amp.GradScaler("cuda")',
        "# in the step: scaler.scale(loss).backward()  instead of loss.backward()",
        *steps,
        "# scaler.update()  at the end",
    ]


def _newer(subject: Subject) -> tuple[str, str]:
    """Which part of the newer interface a device uses, and its faster setting."""
    cuda = device_kind(subject) == "cuda"
    return ("torch.backends.cuda.matmul", "tf32") if cuda else ("torch.backends.mkldnn.matmul", "bf16")


def _older(subject: Subject) -> str:
    return "high" if device_kind(subject) == "cuda" else "medium"


@contextmanager
def _float32_products(subject: Subject) -> Iterator[None]:
    """Faster float32 products, through the interface that the user's code uses."""
    before = float32_precisions()
    try:
        if older_precision() is not None:
            torch.set_float32_matmul_precision(_older(subject))
        else:
            name, value = _newer(subject)
            newer_parts()[name].fp32_precision = value
        yield
    finally:
        set_float32_precisions(before)


def _refuses_products(subject: Subject) -> str:
    if torch.float32 not in {parameter.dtype for parameter in subject.parameters}:
        return "the model is not in float32"
    kind, old = device_kind(subject), older_precision()
    name, value = _newer(subject)
    now = getattr(newer_parts().get(name), "fp32_precision", "none")
    if (old is not None and old != "highest") or now == value:
        return "float32 products are in lower precision already"
    if kind == "cuda" and torch.cuda.get_device_capability() < _TF32:
        return "this GPU has no units for TF32"
    if kind == "cpu" and lower_precision("cpu") is None:
        return "this CPU has no bfloat16 instructions, so torch would not use a lower precision"
    return "" if kind in ("cpu", "cuda") else f"torch has no such setting for {kind}"


def _products_code(subject: Subject) -> list[str]:
    name, value = _newer(subject)
    if older_precision() is None:
        return [f'{name}.fp32_precision = "{value}"']
    return [lever_line("float32_precision", _older(subject))]


def _refuses_float32(subject: Subject) -> str:
    if why := without_models(subject):
        return why
    double = {torch.float64, torch.complex128} & {parameter.dtype for parameter in subject.parameters}
    return "" if double else "the model is not in float64"


@contextmanager
def _in_float32(subject: Subject) -> Iterator[None]:
    """Parameters, buffers, gradients, optimizers' state and the models' inputs in float32, and in float64 again."""

    def cast(how: Callable[[Any], Any], back: Callable[[Tensor, Tensor], Any]) -> None:
        for tensor in tensors:
            grad, before = tensor.grad if tensor.is_leaf else None, tensor.data
            if tensor.is_leaf:
                tensor.grad = None  # of another dtype
            tensor.data = back(tensor, how(before))
            if grad is not None:
                tensor.grad = how(grad)
        for optimizer in subject.optimizers.values():
            for state in optimizer.state.values():
                state.update({name: how(value) for name, value in state.items() if name != "step"})

    buffers = [buffer for model in subject.models.values() for buffer in model.buffers()]
    tensors = [tensor for tensor in (*subject.parameters, *buffers) if narrowed(tensor) is not tensor]
    own = {id(tensor): tensor.data for tensor in tensors}
    with ExitStack() as stack:
        stack.callback(cast, widened, lambda tensor, value: own[id(tensor)].copy_(value))
        cast(narrowed, lambda _, value: value)
        for model in subject.models.values():
            hook = model.register_forward_pre_hook(
                lambda _, args, kwargs: (tree_map(narrowed, args), tree_map(narrowed, kwargs)), with_kwargs=True
            )
            stack.callback(hook.remove)
        yield


def _float32_lines(subject: Subject) -> list[str]:
    lines = for_models(lever_line("float32", "{0}"))(subject)
    return (
        lines
        if not subject.optimizers
        else ["# before the optimizer is made, whose state would stay in float64:", *(f"# {line}" for line in lines)]
    )


FLOAT32 = Lever(
    "float32",
    "float32 in place of float64 for the models, their inputs and the optimizers' state",
    _refuses_float32,
    always(_in_float32),
    _float32_lines,
    lowers="float32",
    answers=("float64",),
    family=_FAMILY,
)
AUTOCAST = Lever(
    "autocast",
    "bfloat16 autocast of the models' forward pass",
    _refuses,
    always(
        lambda subject: forward_within(subject, lambda: torch.autocast(device_kind(subject), torch.bfloat16)),
    ),
    lambda subject: for_models(
        "{0}.forward = torch.autocast(" + repr(device_kind(subject)) + ", torch.bfloat16)({0}.forward)"
    )(subject),
    lowers="bfloat16",
    answers=("low precision unused", "compute"),
    family=_FAMILY,
)
AUTOCAST_FLOAT16 = Lever(
    "autocast_float16",
    "float16 autocast of the models' forward pass, with a scaler for the gradients (CUDA)",
    _refuses_float16,
    prepared_float16,
    _float16_code,
    lowers="float16",
    answers=("low precision unused",),
    family=_FAMILY,
)
FLOAT32_PRECISION = Lever(
    "float32_precision",
    "products of float32 matrices in TF32 (NVIDIA) or bfloat16 (CPUs that have it)",
    _refuses_products,
    always(_float32_products),
    _products_code,
    lowers="bfloat16",
    answers=("low precision unused", "compute"),
)
