"""A step in float64: its models, its optimizers' state, its batch, and the same random numbers as before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from perfnb.remedies.lever import attribute
from perfnb.remedies.subject import Subject

_DOUBLE = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64}
_WIDER = _DOUBLE | {torch.complex32: torch.complex128, torch.complex64: torch.complex128}
_NARROWER = {torch.float64: torch.float32, torch.complex128: torch.complex64}
#: Operators that make a tensor of random numbers in the default dtype, unless they are told another one.
_MAKERS = ("randn", "rand", "normal")
#: Operators that draw random numbers and whose result is not made of numbers that they were given: not dropout.
_DRAWS = (
    *_MAKERS,
    *("randn_like", "rand_like", "normal_", "uniform_", "bernoulli", "bernoulli_", "exponential_", "log_normal_"),
    *("cauchy_", "geometric_", "multinomial", "poisson", "binomial"),
)


@contextmanager
def in_float64(subject: Subject) -> Iterator[None]:
    """Parameters, buffers and optimizers' state in float64, and afterwards in their own memory again.

    A surrounding `restored` puts back their values and gradients.
    """
    default = torch.get_default_dtype()
    tensors = [*subject.parameters, *(buffer for model in subject.models.values() for buffer in model.buffers())]
    states = [(state, dict(state)) for each in subject.optimizers.values() for state in each.state.values()]
    with ExitStack() as stack:
        for tensor in tensors:
            if tensor.dtype in _WIDER:
                stack.callback(_set_data, tensor, tensor.data)
                grad = tensor.grad if tensor.is_leaf else None
                _set_data(tensor, widened(tensor.data))
                if grad is not None:
                    tensor.grad = widened(grad)
        for state, before in states:
            state.update({name: widened(value) for name, value in before.items() if name != "step"})
            stack.callback(state.update, before)
        for module in subject.modules(nn.Module):
            if module._compiled_call_impl is not None:  # compiled in place
                stack.enter_context(attribute(module, "_compiled_call_impl", None))
        for model in subject.models.values():
            hook = model.register_forward_pre_hook(
                lambda _, args, kwargs: (tree_map(widened, args), tree_map(widened, kwargs)), with_kwargs=True
            )
            stack.callback(hook.remove)
        stack.callback(torch.set_default_dtype, default)
        torch.set_default_dtype(torch.float64)
        stack.enter_context(_SameDraws())  # type: ignore[no-untyped-call]
        yield


def widened(value: Any) -> Any:
    """A tensor in float64 or complex128; anything else as it is."""
    return value.to(_WIDER[value.dtype]) if isinstance(value, Tensor) and value.dtype in _WIDER else value


def narrowed(value: Any) -> Any:
    """A tensor of float64 or complex128 in float32 or complex64; anything else unmodified."""
    return value.to(_NARROWER[value.dtype]) if isinstance(value, Tensor) and value.dtype in _NARROWER else value


def _set_data(tensor: Tensor, data: Tensor) -> None:
    if tensor.is_leaf:
        tensor.grad = None  # of another dtype
    tensor.data = data


class _SameDraws(TorchDispatchMode):
    """Draws the numbers that float32 would draw: a generator gives other ones in float64."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options, name = dict(kwargs or {}), func.overloadpacket.__name__
        if name not in _DRAWS or torch.Tag.nondeterministic_seeded not in func.tags or "out" in options:
            return func(*args, **options)
        if name in _MAKERS and options.get("dtype") is None and not any(isinstance(each, Tensor) for each in args):
            options["dtype"] = torch.float32
        run: Callable[..., Any] = func
        found = run(*tree_map(narrowed, args), **options)
        if name.endswith("_"):
            return args[0].copy_(found)
        return widened(found) if isinstance(found, Tensor) and (kwargs or {}).get("dtype") is None else found
