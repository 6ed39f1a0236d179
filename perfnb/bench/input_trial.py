"""Run a step with and without its loader and its model, in interleaved blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from perfnb.bench.prefetching import prefetching
from perfnb.bench.restored import Restored, rebuilt
from perfnb.bench.rounds import Bench
from perfnb.bench.stand_in import StandIn
from perfnb.errors import CaptureError
from perfnb.step.device import cuda_in_use, synchronize
from perfnb.step.namespace import named_modules, reachable
from perfnb.step.naming import COMPILED_CHILD
from perfnb.step.steps import BatchSource

_WITH_LOADER = ("together", "loader", "iteration")
_WITHOUT_MODEL = ("loader", "rest")

#: Most batches taken to use up what a loader has prefetched; most and fewest taken to measure its pace.
_MOST_DRAINED, _MOST_PACED, _FEWEST_PACED = 64, 64, 4
#: A loader faster than this gains nothing from prefetching.
_INSTANT_NS = 50_000


class InputTrial(Bench):
    """Context manager that runs blocks of steps; what they change is put back on exit.

    Workers prefetch while other blocks run, and deliver in bursts. So whole blocks are timed, not steps. Before a block
    that uses the loader, prefetched batches are used up and one uncounted burst of steps runs: otherwise the last step
    would count in full although it hides part of the next batch's time.

    Parameters
    ----------
    step, batches
        As for `confirm_input_bound`.
    models : list of Module
        Replaced by copies of their outputs.
    namespace : mapping
        The variables that the step sees.
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
        told = getattr(batches, "num_workers", 0)  # other libraries' loaders use this name too
        told = told if isinstance(told, int) and not isinstance(told, bool) else 0
        # How many workers deliver at once; 0 if there are none or they are unknown.
        self.workers: int = max([told, *(loader.num_workers for loader in self._loaders)])
        self.parallel = True  # whether anything can load while the model runs; known after `learn`
        self._is_list = isinstance(batches, (list, tuple))

    def __exit__(self, *exc_info: Any) -> bool | None:
        self._kept = None
        return super().__exit__(*exc_info)

    @property
    def batches_a_start(self) -> float | None:
        """Batches between two starts of the loader's workers; ``None`` if they persist or it has none."""
        loaders = [loader for loader in self._loaders if loader.num_workers]
        if not loaders or any(loader.persistent_workers for loader in loaders) or self._source.starts < 2:
            return None
        return self._source.taken / self._source.starts

    def learn(self) -> None:
        """Run a step or two to record what the models return, and keep a batch.

        Raises
        ------
        CaptureError
            If the step calls none of the models, or only inside a function that is compiled as a whole.
        """
        __tracebackhide__ = True
        with self._gate.opened():
            self._kept = rebuilt(self._source.next())
        for inside in (False, True):
            with self._stand_in.learning(inside=inside), self._gate.opened():
                self._run(rebuilt(self._kept))
            if not self._stand_in.incomplete:
                break
        if not self._stand_in.called and self._stand_in.compiled_in:
            raise CaptureError(
                "The step calls the model inside a function compiled by torch.compile, where the model cannot be "
                "replaced: pass the uncompiled step, and compile only the model if needed."
            )
        if not self._stand_in.called:
            raise CaptureError(
                "The step calls neither the given model nor a module inside it: pass the model that the step calls, or "
                "a list of them."
            )
        # With a GPU the host is free to load; otherwise it takes workers or threads, which some loaders hide.
        works = cuda_in_use() or self.workers > 0 or prefetching([self._source.next]) is not None
        self.parallel = works or not (self._loaders or self._is_list)

    def find_pace(self, until: float) -> float:
        """Only take batches, until the time `until` (`time.perf_counter`); milliseconds a batch in the later half."""
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
        """Run a block of `steps` steps of one of the `KINDS`; milliseconds a step."""
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
                taken = time.perf_counter_ns() - begin
                self.conditions.running = False
            unforeseen = self._stand_in.real_ns - unforeseen
        self.unforeseen_ms += unforeseen / 1e6
        return (taken - unforeseen) / 1e6 / steps

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
        """Take batches until one has to be waited for, so that the loader gets no credit for earlier prefetching."""
        __tracebackhide__ = True
        for _ in range(_MOST_DRAINED):
            begin = time.perf_counter_ns()
            self._source.next()
            if time.perf_counter_ns() - begin > self._pace_ns / 2:
                return


def _compiled(models: list[nn.Module], namespace: Mapping[str, Any]) -> list[nn.Module]:
    """Modules that ``torch.compile`` made from the models, among the step's variables: the step may call those."""
    known = {id(model) for model in models}
    named = [module for _, module in named_modules(namespace) if id(module) not in known]
    return [module for module in named if id(module._modules.get(COMPILED_CHILD)) in known]
