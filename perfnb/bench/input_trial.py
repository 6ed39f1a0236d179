"""Run a step with and without its loader and its model, in interleaved blocks.

To exclude the model, it is replaced by a stand-in that returns copies of earlier outputs. The backward pass stops at
these copies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from perfnb.bench.restored import Restored, rebuilt
from perfnb.bench.rounds import Bench, mapped, prefetching
from perfnb.errors import CaptureError
from perfnb.step.device import accelerator_in_use, synchronize
from perfnb.step.namespace import named_modules, reachable
from perfnb.step.refusals import COMPILED_CHILD
from perfnb.step.steps import BatchSource

_WITH_LOADER = ("together", "loader", "iteration")
_WITHOUT_MODEL = ("loader", "rest")

#: The maximum number of batches that are taken to use up prefetched batches, and the maximum and minimum number that
#: are taken to measure the loader's pace.
_MOST_DRAINED, _MOST_PACED, _FEWEST_PACED = 64, 64, 4
#: A loader that is faster than this gains nothing from prefetching.
_INSTANT_NS = 50_000

#: The maximum number of input kinds (by shape) whose outputs are kept. The oldest outputs are dropped first.
_MOST_KINDS = 64

#: The attributes that are called when a module is called. The second one exists after ``module.compile()``.
_CALLED = ("forward", "_compiled_call_impl")

_ABSENT = object()


class InputTrial(Bench):
    """Context manager that runs blocks of steps and restores everything that they change on exit.

    Workers prefetch while other blocks run, and they deliver in bursts, so whole blocks are timed instead of individual
    steps. Before a block that uses the loader, prefetched batches are used up and one burst of steps runs without being
    counted. Otherwise, the last step would count in full although part of the next batch is loaded while it runs.

    Parameters
    ----------
    step, batches
        As in `confirm_input_bound`.
    models : list of Module
        The models to replace by copies of their outputs.
    namespace : mapping
        The variables that the step can access.
    """

    _source: BatchSource

    def __init__(
        self,
        step: Callable[[Any], Any],
        batches: Iterable[Any] | Callable[[], Iterable[Any]],
        models: list[nn.Module],
        namespace: Mapping[str, Any],
    ) -> None:
        restored = Restored(models, [*namespace.values(), step, batches])
        super().__init__([step], batches, around=[restored])
        self.unforeseen_ms = 0.0  # subtracted time of real models in blocks without a model, for batches of new shapes
        self._stand_in = StandIn([*_compiled(models, namespace), *models])
        self._kept: Any = None
        self._pace_ns = 0.0
        self._loaders = [value for value in reachable([batches]) if issubclass(type(value), DataLoader)]
        own = getattr(batches, "num_workers", 0)  # other libraries' loaders use the same name
        own = own if isinstance(own, int) and not isinstance(own, bool) else 0
        # The number of workers that deliver at once; 0 if there are none or they are unknown.
        self.workers: int = max([own, *(loader.num_workers for loader in self._loaders)])
        self.parallel = True  # whether anything can load while the model runs; known after `learn`
        self._is_list = isinstance(batches, (list, tuple))

    def __exit__(self, *exc_info: Any) -> bool | None:
        self._kept = None
        return super().__exit__(*exc_info)

    @property
    def batches_a_start(self) -> float | None:
        """The number of batches between two starts of the workers, or ``None`` if they persist or do not exist."""
        loaders = [loader for loader in self._loaders if loader.num_workers]
        if not loaders or any(loader.persistent_workers for loader in loaders) or self._source.starts < 2:
            return None
        return self._source.taken / self._source.starts

    def learn(self) -> None:
        """Run one or two steps to record the models' outputs, and keep one of the batches.

        Raises
        ------
        CaptureError
            If the step calls none of the models, or calls them only inside a function that is compiled as a whole.
        """
        __tracebackhide__ = True
        with self._gate.opened():
            self._kept = rebuilt(self._source.next())
        for inside in (False, True):
            with self._stand_in.learning(inside=inside), self._gate.opened():
                self._run(rebuilt(self._kept))
            if not self._stand_in.uncalled:
                break
        if not self._stand_in.called and self._stand_in.compiled_in:
            raise CaptureError(
                "The step calls the model inside a function compiled by torch.compile, where the model cannot be "
                "replaced. Pass the uncompiled step, and compile only the model if needed."
            )
        if not self._stand_in.called:
            raise CaptureError(
                "The step calls neither the given model nor any module inside it. Pass the model that the step calls, "
                "or a list of models."
            )
        # If there is a GPU, the host is free to load batches. Otherwise, this requires workers or threads, which some
        # loaders hide.
        works = accelerator_in_use() or self.workers > 0 or prefetching([self._source.next]) is not None
        self.parallel = works or not (self._loaders or self._is_list)

    def find_pace(self, until: float) -> float:
        """Take batches without using them, until the time `until` (`time.perf_counter`).

        Return the milliseconds per batch in the second half of that time.
        """
        __tracebackhide__ = True
        taken: list[int] = []
        with self._gate.opened():
            while len(taken) < _MOST_PACED and (len(taken) < _FEWEST_PACED or time.perf_counter() < until):
                begin = time.perf_counter_ns()
                self._source.next()
                taken.append(time.perf_counter_ns() - begin)
        later = taken[len(taken) // 2 :]
        self._pace_ns = sum(later) / len(later)
        return self._pace_ns / 1e6

    def block(self, kind: str, steps: int) -> float:
        """Run a block of `steps` steps of one of the `KINDS`, and return the milliseconds per step."""
        __tracebackhide__ = True
        with ExitStack() as stack:
            if kind in _WITHOUT_MODEL:
                stack.enter_context(self._stand_in.standing_in())
            if kind in _WITH_LOADER and self._pace_ns >= _INSTANT_NS:
                with self._gate.opened():
                    self._drain()
                    if kind != "iteration":
                        self._several(kind, max(1, self.workers))
            synchronize()
            unforeseen = self._stand_in.real_ns
            with self._gate.opened():
                self.conditions.running = True
                begin = time.perf_counter_ns()
                self._several(kind, steps)
                synchronize()
                end = time.perf_counter_ns()
                self.conditions.ended(begin, end)
            unforeseen = self._stand_in.real_ns - unforeseen
        self.unforeseen_ms += unforeseen / 1e6
        return (end - begin - unforeseen) / 1e6 / steps

    def _several(self, kind: str, count: int) -> None:
        __tracebackhide__ = True
        for _ in range(count):
            batch = self._source.next() if kind in _WITH_LOADER else rebuilt(self._kept)
            if kind != "iteration":
                self._run(batch)
            del batch

    def _run(self, batch: Any) -> None:
        __tracebackhide__ = True
        self._stand_in.step_starts()
        self._steps[0](batch)
        self.conditions.step += 1

    def _drain(self) -> None:
        """Take batches until the step has to wait for the loader, which means that prefetched batches are used up."""
        __tracebackhide__ = True
        for _ in range(_MOST_DRAINED):
            begin = time.perf_counter_ns()
            self._source.next()
            if time.perf_counter_ns() - begin > self._pace_ns / 2:
                return


def _compiled(models: list[nn.Module], namespace: Mapping[str, Any]) -> list[nn.Module]:
    """Return the modules that ``torch.compile`` created from the models and that are among the step's variables.

    The step may call these modules instead of the models.
    """
    known = {id(model) for model in models}
    named = [module for _, module in named_modules(namespace) if id(module) not in known]
    return [module for module in named if id(module._modules.get(COMPILED_CHILD)) in known]


@dataclass(frozen=True)
class _Kept:
    """A wrapper that hides a kept tensor from autograd."""

    tensor: Tensor


class _Joined(torch.autograd.Function):
    """Copy a kept tensor of any layout and dtype. The copy depends on a parameter but gives it a gradient of zero."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, kept: _Kept) -> Tensor:
        ctx.like = anchor.shape, anchor.dtype, anchor.device
        return kept.tensor.clone()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[Tensor, None]:
        shape, dtype, device = ctx.like
        return torch.zeros(shape, dtype=dtype, device=device), None


class StandIn:
    """Record the models' return values, and return copies of them in place of running the models.

    If a step calls modules inside a model rather than the model itself, those modules are replaced. One output is kept
    for each kind of input (shapes and dtypes) and for each call within a step. The stand-in returns a copy, because the
    step may modify it. The copy depends on the module's smallest parameter, which receives a gradient of zero. As a
    result, ``loss.backward()`` and ``optimizer.step()`` work but take almost no time.
    """

    def __init__(self, models: list[nn.Module]) -> None:
        self.real_ns = 0  # time of real models that were replaced, for inputs of a kind not seen before
        self.compiled_in = False  # whether a compiled region, where it cannot be replaced, called one of them
        self._models = models
        self._outputs: dict[Any, list[Any]] = {}
        self.called: list[nn.Module] = []  # the modules that are replaced
        self.uncalled = list(models)  # models that the recorded step did not call
        self._depth = 0
        self._calls: dict[Any, int] = {}
        self._anchors: dict[int, Tensor] = {}

    def step_starts(self) -> None:
        """Restart the count of calls at the first call."""
        self._calls.clear()

    @contextmanager
    def learning(self, *, inside: bool = False) -> Iterator[None]:
        """Record which modules a step calls and what they return, optionally also `inside` models it did not call."""
        watched = self._models
        if inside:
            watched = [part for model in self.uncalled for part in model.modules()]
        self._depth = 0
        with ExitStack() as stack:
            for module in {id(module): module for module in watched}.values():
                _replace(stack, module, self._learn)
            yield
        seen = {id(part) for module in self.called for part in module.modules()}
        self.uncalled = [model for model in self._models if id(model) not in seen]

    @contextmanager
    def standing_in(self) -> Iterator[None]:
        """Replace the modules, and clear their gradients so that an optimizer skips their parameters."""
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
            if not any(module is known for known in self.called):
                self.called.append(module)
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
        outputs, call = self._outputs[kind], self._calls.get(kind, 0)
        self._calls[kind] = call + 1
        return mapped(partial(self._given, module), outputs[min(call, len(outputs) - 1)])

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
        """Return the module's smallest trainable parameter, or a new tensor if it has none.

        The optimizer then has something to update.
        """
        if id(module) not in self._anchors:
            trained = [weight for weight in module.parameters() if weight.requires_grad and not is_lazy(weight)]
            own = torch.zeros((), requires_grad=True)
            self._anchors[id(module)] = min(trained, key=lambda weight: weight.numel(), default=own)
        return self._anchors[id(module)]


def _replace(stack: ExitStack, module: nn.Module, instead: Callable[..., Any]) -> None:
    """Call `instead`, with the module and its forward, in place of the module until the stack is closed.

    This does not use hooks, because hooks would be compiled in.
    """
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
    """Return the key under which an output is kept.

    The key consists of the module, whether gradients are enabled, and the shapes and dtypes of the inputs.
    """
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    return id(module), torch.is_grad_enabled(), tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors)


def _kept(part: Any) -> Any:
    return part.detach().clone().requires_grad_(part.requires_grad) if isinstance(part, Tensor) else part
