"""Lower precision: autocast, with a gradient scaler for float16, and float32 products on faster units."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from perfnb.errors import CaptureError
from perfnb.findings.proposed_code import lever_line
from perfnb.remedies.dtypes import NARROWER, converted
from perfnb.remedies.lever import (
    Lever,
    Switch,
    always,
    attribute,
    forward_within,
    without_models,
)
from perfnb.remedies.lines import for_models, is_named
from perfnb.remedies.subject import Subject
from perfnb.remedies.switches import BACKWARD, PRECISION, kept, newer_parts, older_precision, switched
from perfnb.step.environment import lower_precision
from perfnb.step.optimizers import tensors_of
from perfnb.step.refusals import without_dtype

_FAMILY = "autocast"
#: The lowest compute capability of NVIDIA GPUs with units for TF32.
_TF32 = (8, 0)
#: The faster setting for float32 products by kind of device: in torch's older interface, and in its newer interface
#: with the part that the setting belongs to.
_FASTER = {
    "cuda": ("high", "torch.backends.cuda.matmul", "tf32"),
    "cpu": ("medium", "torch.backends.mkldnn.matmul", "bf16"),
}
#: The number of steps within which a scaler must find a scale without overflow; each overflow halves the scale.
_MOST_HALVINGS = 24
_BY_HAND = "write scaler.scale(loss).backward(), scaler.step(optimizer) and scaler.update() in the step itself"


def _refuses(subject: Subject) -> str:
    if why := without_models(subject) or without_dtype(torch.float32, subject.parameters):
        return why
    others = sorted(subject.kinds - {"cpu", "cuda"})
    return f"perfnb has not been tested with autocast on {', '.join(others)}" if others else ""


def _refuses_float16(subject: Subject) -> str:
    if "cuda" not in subject.kinds:
        return "float16 is for CUDA: on CPUs, it is slower than float32, and bfloat16 needs no gradient scaler"
    return _refuses(subject)


def _autocast_code(kind: str, dtype: str) -> Callable[[Subject], list[str]]:
    return for_models("{0}.forward = torch.autocast(" + repr(kind) + ", torch." + dtype + ")({0}.forward)")


@contextmanager
def scaled_steps(subject: Subject, scaler: Any) -> Iterator[None]:
    """Scale the loss in ``loss.backward()``, unscale the gradients afterwards, and skip updates that overflowed.

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
            if any(parameter.grad is not None for parameter in tensors_of(optimizer)):
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
        stack.enter_context(switched(BACKWARD, scaled))
        yield


@contextmanager
def prepared_float16(subject: Subject, kind: str = "cuda") -> Iterator[Switch]:
    """Autocast to float16. If the step trains, use a scaler that has already found its scale."""
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
    lines = _autocast_code("cuda", "float16")(subject)
    if not subject.trains or not lines:
        return lines
    names = [name for name, one in subject.optimizers.items() if is_named(name, one)] or ["optimizer"]
    return [
        *lines,
        'scaler = torch.amp.GradScaler("cuda")',
        "# in the step: scaler.scale(loss).backward()  instead of loss.backward()",
        *(f"# scaler.step({name})  instead of {name}.step()" for name in names),
        "# scaler.update()  at the end",
    ]


@contextmanager
def _float32_products(subject: Subject) -> Iterator[None]:
    """Compute float32 products faster, using the same interface as the user's code."""
    older, part, newer = _FASTER[subject.kind]
    with kept(PRECISION):
        if older_precision() is not None:
            torch.set_float32_matmul_precision(older)
        else:
            newer_parts()[part].fp32_precision = newer
        yield


def _refuses_products(subject: Subject) -> str:
    if why := without_dtype(torch.float32, subject.parameters):
        return why
    if subject.kind not in _FASTER:
        return f"torch has no such setting for {subject.kind}"
    _, part, newer = _FASTER[subject.kind]
    now = getattr(newer_parts().get(part), "fp32_precision", "none")
    if older_precision() not in (None, "highest") or now == newer:
        return "float32 products already use lower precision"
    if subject.kind == "cuda":
        return "this GPU has no units for TF32" if torch.cuda.get_device_capability() < _TF32 else ""
    if lower_precision("cpu") is None:
        return "this CPU has no bfloat16 instructions, so torch would not use a lower precision"
    return ""


def _products_code(subject: Subject) -> list[str]:
    older, part, newer = _FASTER[subject.kind]
    if older_precision() is None:
        return [f'{part}.fp32_precision = "{newer}"']
    return [lever_line("float32_precision", older)]


def _refuses_float32(subject: Subject) -> str:
    return without_models(subject) or without_dtype(torch.float64, subject.parameters)


def _float32_code(subject: Subject) -> list[str]:
    lines = for_models(lever_line("float32", "{0}"))(subject)
    if not subject.optimizers:
        return lines
    return [
        "# before the optimizer is created, because its state would stay in float64:",
        *(f"# {line}" for line in lines),
    ]


FLOAT32 = Lever(
    "float32",
    "float32 in place of float64 for the models, their inputs and the optimizers' state",
    _refuses_float32,
    always(lambda subject: converted(subject, NARROWER)),
    _float32_code,
    lowers="float32",
    answers=("float64",),
    family=_FAMILY,
)
AUTOCAST = Lever(
    "autocast",
    "bfloat16 autocast of the models' forward pass",
    _refuses,
    always(lambda subject: forward_within(subject, lambda: torch.autocast(subject.kind, torch.bfloat16))),
    lambda subject: _autocast_code(subject.kind, "bfloat16")(subject),
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
    "products of float32 matrices in TF32 (NVIDIA) or bfloat16 (CPUs that support it)",
    _refuses_products,
    always(_float32_products),
    _products_code,
    lowers="bfloat16",
    answers=("low precision unused", "compute"),
)
