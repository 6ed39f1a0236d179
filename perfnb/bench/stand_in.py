"""Stand in for a model: its forward returns copies of earlier outputs, and backward stops there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from perfnb.bench.nested import mapped
from perfnb.step.device import synchronize

#: Most kinds of inputs (by shape) whose outputs are kept; the oldest is dropped first.
_MOST_KINDS = 64

#: What runs when a module is called; the second exists after ``module.compile()``.
_CALLED = ("forward", "_compiled_call_impl")

_ABSENT = object()


@dataclass(frozen=True)
class _Kept:
    """A kept tensor, hidden from autograd."""

    tensor: Tensor


class _Joined(torch.autograd.Function):
    """A copy of a kept tensor, of any layout and dtype, that depends on a parameter and gives it a zero gradient."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, kept: _Kept) -> Tensor:
        ctx.like = anchor.shape, anchor.dtype, anchor.device
        return kept.tensor.clone()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[Tensor, None]:
        shape, dtype, device = ctx.like
        return torch.zeros(shape, dtype=dtype, device=device), None


class StandIn:
    """Record what models return, and return copies of it in their place.

    If a step calls modules inside a model rather than the model, those are replaced. One output is kept for each kind
    of input (shapes and dtypes) and each call within a step. It is copied, because the step may change it, and depends
    on the smallest parameter of the module, which gets a zero gradient: ``loss.backward()`` and ``optimizer.step()``
    work but cost next to nothing.
    """

    def __init__(self, models: list[nn.Module]) -> None:
        self.real_ns = 0  # time of real models that were replaced, for inputs of a kind not seen before
        self.compiled_in = False  # whether a compiled region, where it cannot be replaced, called one of them
        self._models = models
        self._outputs: dict[Any, list[Any]] = {}
        self._called: dict[int, nn.Module] = {}
        self._uncalled = list(models)
        self._depth = 0
        self._places: dict[Any, int] = {}
        self._anchors: dict[int, Tensor] = {}

    @property
    def called(self) -> list[nn.Module]:
        """The modules that are replaced."""
        return list(self._called.values())

    def step_starts(self) -> None:
        """Count calls from the first again."""
        self._places.clear()

    @contextmanager
    def learning(self, *, inside: bool = False) -> Iterator[None]:
        """Record which modules a step calls and what they return; `inside` looks inside models that were not called."""
        watched = self._models
        if inside:
            watched = [part for model in self._uncalled for part in model.modules()]
        self._depth = 0
        with ExitStack() as stack:
            for module in {id(module): module for module in watched}.values():
                _replace(stack, module, self._learn)
            yield
        seen = {id(part) for module in self.called for part in module.modules()}
        self._uncalled = [model for model in self._models if id(model) not in seen]

    @property
    def incomplete(self) -> bool:
        """Whether the recorded step left a model uncalled."""
        return bool(self._uncalled)

    @contextmanager
    def standing_in(self) -> Iterator[None]:
        """Replace the modules; gradients are cleared, so that an optimizer skips their parameters."""
        with ExitStack() as stack:
            for module in self.called:
                _replace(stack, module, self._answer)
            for model in self._models:
                for parameter in model.parameters():
                    parameter.grad = None
            yield

    def _learn(self, module: nn.Module, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if torch.compiler.is_compiling():  # inside a region that is compiled as a whole
            self.compiled_in = True
            return forward(*args, **kwargs)
        self._depth += 1
        try:
            output = forward(*args, **kwargs)
        finally:
            self._depth -= 1
        if not self._depth:
            self._called[id(module)] = module
            self._keep(_kind(module, args, kwargs), output)
        return output

    def _answer(self, module: nn.Module, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        kind = _kind(module, args, kwargs)
        if kind not in self._outputs:
            synchronize()
            begin = time.perf_counter_ns()
            self._keep(kind, forward(*args, **kwargs))
            synchronize()
            self.real_ns += time.perf_counter_ns() - begin
        outputs, place = self._outputs[kind], self._places.get(kind, 0)
        self._places[kind] = place + 1
        return mapped(partial(self._given, module), outputs[min(place, len(outputs) - 1)])

    def _keep(self, kind: Any, output: Any) -> None:
        if kind not in self._outputs and len(self._outputs) >= _MOST_KINDS:
            del self._outputs[next(iter(self._outputs))]
        self._outputs.setdefault(kind, []).append(mapped(_kept, output))

    def _given(self, module: nn.Module, part: Any) -> Any:
        if not isinstance(part, Tensor):
            return part
        if not part.requires_grad or not torch.is_grad_enabled():
            return part.detach().clone()
        return _Joined.apply(self._anchor(module), _Kept(part.detach()))  # type: ignore[no-untyped-call]

    def _anchor(self, module: nn.Module) -> Tensor:
        """The smallest trained parameter, so that an optimizer has something to update; else a tensor of our own."""
        if id(module) not in self._anchors:
            trained = [each for each in module.parameters() if each.requires_grad and not is_lazy(each)]
            own = torch.zeros((), requires_grad=True)
            self._anchors[id(module)] = min(trained, key=lambda each: each.numel(), default=own)
        return self._anchors[id(module)]


def _replace(stack: ExitStack, module: nn.Module, instead: Callable[..., Any]) -> None:
    """Run `instead`, given the module and its forward, until the stack is left; hooks would be compiled in."""
    own = module.__dict__
    stack.callback(_put_back, own, {name: own.get(name, _ABSENT) for name in _CALLED})
    own["forward"] = partial(instead, module, module.forward)
    own.pop("_compiled_call_impl", None)


def _put_back(own: dict[str, Any], before: dict[str, Any]) -> None:
    for name, value in before.items():
        own.pop(name, None)
        if value is not _ABSENT:
            own[name] = value


def _kind(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Key of an output: the module, whether gradients are enabled, and the shapes and dtypes of its inputs."""
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    return id(module), torch.is_grad_enabled(), tuple((each.shape, each.dtype, each.device) for each in tensors)


def _kept(part: Any) -> Any:
    return part.detach().clone().requires_grad_(part.requires_grad) if isinstance(part, Tensor) else part
