"""Run a step in another dtype, including its models, optimizer state and inputs.

In float64, the step draws the same random numbers as in its own dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from perfnb.remedies.lever import attribute
from perfnb.remedies.subject import Subject
from perfnb.step.refusals import is_compiled_in_place

_DOUBLE = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64}
WIDER = _DOUBLE | {torch.complex32: torch.complex128, torch.complex64: torch.complex128}
NARROWER = {torch.float64: torch.float32, torch.complex128: torch.complex64}
#: Operators that create a tensor of random numbers in the default dtype, unless another dtype is requested.
_MAKERS = ("randn", "rand", "normal")
#: Operators that draw random numbers and whose result does not depend on their input, unlike that of dropout.
_DRAWS = (
    *_MAKERS,
    *("randn_like", "rand_like", "normal_", "uniform_", "bernoulli", "bernoulli_", "exponential_", "log_normal_"),
    *("cauchy_", "geometric_", "multinomial", "poisson", "binomial"),
)


def _cast(dtypes: Mapping[torch.dtype, torch.dtype], value: Any) -> Any:
    return value.to(dtypes[value.dtype]) if isinstance(value, Tensor) and value.dtype in dtypes else value


#: Convert a tensor to float64 or complex128, or one of these to float32 or complex64; leave anything else unmodified.
widened, narrowed = partial(_cast, WIDER), partial(_cast, NARROWER)


@contextmanager
def converted(subject: Subject, dtypes: Mapping[torch.dtype, torch.dtype]) -> Iterator[None]:
    """Convert parameters, buffers, gradients, optimizer state and the models' inputs to other dtypes.

    Afterwards, everything is restored, and all changes made by steps in the meantime are discarded.
    """
    cast = partial(_cast, dtypes)
    buffers = (buffer for model in subject.models.values() for buffer in model.buffers())
    with ExitStack() as stack:
        for tensor in (*subject.parameters, *buffers):
            if tensor.dtype in dtypes:
                grad = tensor.grad if tensor.is_leaf else None
                stack.callback(_bind, tensor, tensor.data, grad)
                _bind(tensor, cast(tensor.data), cast(grad))
        for optimizer in subject.optimizers.values():
            before = dict(optimizer.state)
            stack.callback(optimizer.state.update, before)
            stack.callback(optimizer.state.clear)
            for key, state in before.items():
                optimizer.state[key] = {
                    name: value if name == "step" else tree_map(cast, value) for name, value in state.items()
                }
        for model in subject.models.values():
            hook = model.register_forward_pre_hook(
                lambda _, args, kwargs: (tree_map(cast, args), tree_map(cast, kwargs)), with_kwargs=True
            )
            stack.callback(hook.remove)
        yield


def _bind(tensor: Tensor, data: Tensor, grad: Tensor | None) -> None:
    if tensor.is_leaf:
        tensor.grad = None  # the old gradient has another dtype
    tensor.data = data
    if grad is not None:
        tensor.grad = grad


@contextmanager
def in_float64(subject: Subject) -> Iterator[None]:
    """Run the step in float64, but with the same random numbers that it draws in its own dtype."""
    with ExitStack() as stack:
        stack.enter_context(converted(subject, WIDER))
        for module in subject.modules(nn.Module):
            if is_compiled_in_place(module):
                stack.enter_context(attribute(module, "_compiled_call_impl", None))
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)
        stack.enter_context(_SameDraws())  # type: ignore[no-untyped-call]
        yield


class _SameDraws(TorchDispatchMode):
    """Draw the same numbers as in float32, because generators return different numbers in float64."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options, name = dict(kwargs or {}), func.overloadpacket.__name__
        if name not in _DRAWS or torch.Tag.nondeterministic_seeded not in func.tags or "out" in options:
            return func(*args, **options)
        if name in _MAKERS and options.get("dtype") is None and not any(isinstance(each, Tensor) for each in args):
            options["dtype"] = torch.float32
        run: Callable[..., Any] = func
        drawn = run(*tree_map(narrowed, args), **options)
        if name.endswith("_"):
            return args[0].copy_(drawn)
        return widened(drawn) if isinstance(drawn, Tensor) and (kwargs or {}).get("dtype") is None else drawn
