"""A step with its loader, without its model, without its loader: run in blocks that take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from perfnb.bench.prefetching import prefetching
from perfnb.bench.restored import Restored
from perfnb.bench.standing_in import StandIn
from perfnb.errors import CaptureError
from perfnb.interrupts import InterruptGate
from perfnb.step.conditions import Conditions
from perfnb.step.device import cuda_in_use, synchronize
from perfnb.step.guard import exclusive
from perfnb.step.namespace import named_modules, reachable
from perfnb.step.naming import COMPILED_CHILD
from perfnb.step.steps import BatchSource

#: What a block may run: all, no model, no loader, neither, or only the taking of batches.
KINDS = ("together", "loader", "model", "rest", "iteration")
_WITH_LOADER = ("together", "loader", "iteration")
_WITHOUT_MODEL = ("loader", "rest")

#: Most batches that are taken to empty what a loader has prepared, and to find out its pace.
_MOST_DRAINED, _MOST_PACED, _FEWEST_PACED = 64, 64, 4
#: A loader that takes less for a batch gains nothing by preparing some.
_INSTANT_NS = 50_000


class InputTrial:
    """Context manager that runs blocks of steps; what they change is put back when it is left.

    A loader with workers prepares batches while others run, and workers deliver in bursts. So whole blocks are timed,
    not steps. Before a block that uses the loader what lies prepared is taken out, and a burst of steps leads in: else
    the last step would count in full of which the next batch's making hides a part.

    Parameters
    ----------
    step : callable
        ``step(batch)``.
    batches : iterable, or callable returning one
        Begun again when they run out.
    models : list of Module
        What is replaced by its own outputs.
    namespace : mapping
        The variables that the step sees.

    Attributes
    ----------
    conditions : Conditions
        What went on beside the steps.
    executed : int
        How many times the step ran.
    unforeseen_ms : float
        Time in which true models ran in blocks without model, for batches of new shapes; it is taken off.
    workers : int
        How many of the loader's workers deliver at once; 0 where it has none, or is not known to have some.
    parallel : bool
        Whether anything can load while the model runs; known when the trial has learned.
    """

    def __init__(
        self,
        step: Callable[[Any], Any],
        batches: Iterable[Any] | Callable[[], Iterable[Any]],
        models: list[nn.Module],
        namespace: Mapping[str, Any],
    ) -> None:
        self.conditions = Conditions()
        self.executed = 0
        self.unforeseen_ms = 0.0
        self._step = step
        self._source = BatchSource(batches)
        self._stand_in = StandIn([*_compiled(models, namespace), *models])
        self._restored = Restored(models, [*namespace.values(), step, batches])
        self._gate = InterruptGate()
        self._installed = ExitStack()
        self._batch: Any = None
        self._pace_ns = 0.0
        self._loaders = [value for value in reachable([batches]) if issubclass(type(value), DataLoader)]
        told = getattr(batches, "num_workers", 0)  # other libraries' loaders call it so, too
        told = told if isinstance(told, int) and not isinstance(told, bool) else 0
        self.workers: int = max([told, *(loader.num_workers for loader in self._loaders)])
        self.parallel = True
        self._is_list = isinstance(batches, (list, tuple))

    def __enter__(self) -> InputTrial:
        with ExitStack() as stack:
            stack.enter_context(self._gate)
            stack.enter_context(exclusive())
            stack.enter_context(self._restored)
            stack.callback(self._source.close)
            stack.callback(self._forget)
            stack.enter_context(self.conditions)
            self._installed = stack.pop_all()
        return self

    def __exit__(self, *exc_info: Any) -> bool | None:
        return self._installed.__exit__(*exc_info)

    def _forget(self) -> None:
        self._batch = None

    @property
    def batches_a_start(self) -> float | None:
        """Batches between two starts of the loader's workers; ``None`` where they stay, or it has none."""
        loaders = [loader for loader in self._loaders if loader.num_workers]
        if not loaders or any(loader.persistent_workers for loader in loaders) or self._source.starts < 2:
            return None
        return self._source.taken / self._source.starts

    def learn(self) -> None:
        """Run a step or two, to see what the models give, and keep a batch.

        Raises
        ------
        CaptureError
            If the step calls none of the models, or only in what is compiled as a whole.
        """
        __tracebackhide__ = True
        with self._gate.opened():
            batch = self._source.next()
            self._batch = _rebuilt(batch)
        for inside in (False, True):
            with self._stand_in.learning(inside=inside), self._gate.opened():
                self._run(_rebuilt(self._batch))
            if not self._stand_in.incomplete:
                break
        if not self._stand_in.called and self._stand_in.compiled_in:
            raise CaptureError(
                "The step calls the model inside a function that torch.compile made, where it cannot be replaced: give "
                "the step as it was before, and compile the model alone where it is to be compiled."
            )
        if not self._stand_in.called:
            raise CaptureError(
                "The step calls neither the model that was given nor a module inside it: give the model that the step "
                "calls, or a list of them."
            )
        # Beside a GPU the host can load; else it takes workers or threads, which other loaders than torch's may hide.
        works = cuda_in_use() or self.workers > 0 or prefetching([self._source.next]) is not None
        self.parallel = works or not (self._loaders or self._is_list)

    def find_pace(self, until: float) -> float:
        """Take batches and do nothing else; milliseconds a batch, of the later half.

        Parameters
        ----------
        until : float
            Moment (`time.perf_counter`) after which no more are taken, but the first few.
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
        """Run a block.

        Parameters
        ----------
        kind : str
            One of `KINDS`.
        steps : int

        Returns
        -------
        float
            Milliseconds a step.
        """
        __tracebackhide__ = True
        with ExitStack() as stack:
            if kind in _WITHOUT_MODEL:
                stack.enter_context(self._stand_in.standing_in())
            if kind in _WITH_LOADER and self._pace_ns >= _INSTANT_NS:
                with self._gate.opened():
                    self._drain()
                    if kind != "iteration":
                        self._steps(kind, max(1, self.workers))
            synchronize()
            unforeseen = self._stand_in.real_ns
            with self._gate.opened():
                self.conditions.running = True
                begin = time.perf_counter_ns()
                self._steps(kind, steps)
                synchronize()
                taken = time.perf_counter_ns() - begin
                self.conditions.running = False
            unforeseen = self._stand_in.real_ns - unforeseen
        self.unforeseen_ms += unforeseen / 1e6
        return (taken - unforeseen) / 1e6 / steps

    def _steps(self, kind: str, count: int) -> None:
        __tracebackhide__ = True
        for _ in range(count):
            batch = self._source.next() if kind in _WITH_LOADER else _rebuilt(self._batch)
            if kind != "iteration":
                self._run(batch)
            del batch

    def _run(self, batch: Any) -> None:
        __tracebackhide__ = True
        self._stand_in.step_begins()
        self._step(batch)
        self.executed += 1
        self.conditions.step += 1

    def _drain(self) -> None:
        """Take batches until one had to be waited for: what others' time prepared is no merit of the loader."""
        __tracebackhide__ = True
        for _ in range(_MOST_DRAINED):
            begin = time.perf_counter_ns()
            self._source.next()
            if time.perf_counter_ns() - begin > self._pace_ns / 2:
                return


def _compiled(models: list[nn.Module], namespace: Mapping[str, Any]) -> list[nn.Module]:
    """What ``torch.compile`` made of the models, among the variables: the step may call that."""
    known = {id(model) for model in models}
    named = [module for _, module in named_modules(namespace) if id(module) not in known]
    return [module for module in named if id(module._modules.get(COMPILED_CHILD)) in known]


def _rebuilt(batch: Any) -> Any:
    """The batch with lists, tuples and dicts of its own, and the same tensors: a step may take it apart."""
    return tree_map(lambda leaf: leaf, batch)
