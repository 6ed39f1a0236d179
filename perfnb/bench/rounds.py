"""Time steps side by side without instrumentation. In each round, every step runs once or many times back to back.

This module also detects whether anything prefetches for a step while another step runs, and copies return values.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from multiprocessing.process import BaseProcess
from queue import Queue, SimpleQueue
from typing import Any, Self

import numpy as np
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from perfnb.bench.design import Prefetching
from perfnb.interrupts import InterruptGate
from perfnb.stats.intervals import Floats
from perfnb.step.data_waits import common_size
from perfnb.step.device import StepClock, random_state, read_clocks, set_random_state, synchronize
from perfnb.step.environment import Conditions
from perfnb.step.namespace import reachable
from perfnb.step.session import Progress
from perfnb.step.steps import BatchSource, taking_batches
from perfnb.step.tracer import exclusive

#: The number of prefetched batches that is assumed if it is unknown.
UNKNOWN_AHEAD = 16
#: Packages whose threads never load batches: the notebook kernel, progress bars, and perfnb itself.
_OTHER_THREADS = ("ipykernel", "IPython", "zmq", "tornado", "traitlets", "tqdm", "perfnb")


class Bench:
    """Context manager that runs steps in rounds.

    In each round, every step runs once, on the same batch and with the same random numbers. The order therefore does
    not favour any step. Interrupts and errors are raised after perfnb has removed everything that it installed.

    Parameters
    ----------
    steps : sequence of callable
        Called without arguments, or with a batch if `batches` is given.
    batches : iterable, or callable returning one, optional
        Restarted when exhausted.
    progress : callable, optional
        Called with the pass, the number of completed rounds, and the number of planned rounds.
    around : sequence of context manager
        Contexts that are entered before the first step and exited after the last.
    switches : sequence of callable, optional
        For each step, a function that creates the context for its turns. Entering and exiting it is not timed.
    """

    def __init__(
        self,
        steps: Sequence[Callable[..., Any]],
        batches: Iterable[Any] | Callable[[], Iterable[Any]] | None = None,
        progress: Progress | None = None,
        around: Sequence[AbstractContextManager[Any]] = (),
        switches: Sequence[Callable[[], AbstractContextManager[Any]]] = (),
    ) -> None:
        self.conditions = Conditions()  # what may have disturbed the steps
        self.sizes: list[int | None] = []  # the number of samples in each round's batch
        self.results: list[Any] = []  # the return value of each step in the last round that kept results
        self._steps = list(map(taking_batches, steps))
        self.count = len(self._steps)
        self._switches = list(switches) or [nullcontext] * self.count
        self._waits = False  # whether to wait for each step, because events do not cover all of its work
        self._source = None if batches is None else BatchSource(batches)
        self._progress = progress or (lambda *_: None)
        self._gate = InterruptGate()
        self._around: list[AbstractContextManager[Any]] = [self._gate, exclusive(), *around]
        self._installed = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for context in self._around:
                stack.enter_context(context)
            if self._source is not None:
                stack.callback(self._source.close)
            stack.enter_context(self.conditions)
            self._installed = stack.pop_all()
        return self

    def __exit__(self, *exc_info: Any) -> bool | None:
        return self._installed.__exit__(*exc_info)

    def rounds(
        self,
        orders: Iterable[Sequence[int]],
        *,
        pass_name: str = "timed",
        planned: int | None = None,
        until: float | None = None,
        keep_results: bool = False,
        repeat: int = 1,
    ) -> Floats:
        """Run rounds, and return the milliseconds with a row per step and a column per round.

        Parameters
        ----------
        orders : iterable of sequence of int
            The order of the steps in each round, as step numbers. It is consumed as needed. A step that is not part of
            any round gets a row of NaN.
        until : float, optional
            The time (`time.perf_counter`) after which no further round is started. The first round always runs.
        keep_results : bool
            Whether to keep the steps' return values in `results`.
        repeat : int
            How many times the step runs per round. The runs are timed together. This only works for a single step
            without batches.
        """
        __tracebackhide__ = True
        synchronize()
        clocks = [StepClock(wait=self._waits) for _ in self._steps]
        for done, order in enumerate(orders, start=1):
            if done > 1 and until is not None and time.perf_counter() > until:
                break
            if repeat > 1:
                self._block(repeat, clocks[0])
            else:
                self._round(order, clocks, keep_results)
            self._progress(pass_name, done, planned)
        return self._durations(clocks)

    def blocks(
        self,
        orders: Iterable[Sequence[int]],
        *,
        lead: int,
        turns: int,
        parts: int = 1,
        pass_name: str = "timed",
        planned: int | None = None,
        until: float | None = None,
    ) -> Floats:
        """Run rounds of many back-to-back turns on one batch, and return the milliseconds per turn with a row per step.

        Each step first uses up the batches that its own loader prefetched while other steps ran, in `lead` turns that
        do not count. If the loader's queue can be read, the number of turns is corrected for the number of batches that
        the queue gained or lost.

        Parameters
        ----------
        orders, until
            As in `rounds`.
        lead, turns : int
            In each block, the number of initial turns that do not count, and the number of turns that count.
        parts : int
            The number of consecutive parts, each of which has `turns` turns and its own column.
        """
        __tracebackhide__ = True
        synchronize()
        clocks = [StepClock(wait=self._waits) for _ in self._steps]
        made: list[list[float]] = [[] for _ in self._steps]
        for done, order in enumerate(orders, start=1):
            if done > 1 and until is not None and time.perf_counter() > until:
                break
            arguments, numbers = self._batch(), random_state()
            for number in order:
                set_random_state(numbers)
                with self._switches[number](), self._gate.opened():
                    self._repeat(number, arguments, lead)
                    made[number] += [self._counted(number, arguments, turns, clocks[number]) for _ in range(parts)]
            self.sizes.append(common_size(arguments[0]) if arguments else None)
            self._progress(pass_name, done, planned)
        counted = [each or [1.0] * max(map(len, made)) for each in made]  # for a step that is not in any order
        return np.divide(self._durations(clocks), counted)

    def prefetching(self) -> Prefetching | None:
        """Find out what prefetches batches for one step while another runs. Call this after each step has run."""
        return prefetching(self._steps, self._source)

    def _durations(self, clocks: list[StepClock]) -> Floats:
        durations, lagged = read_clocks(*clocks)
        self._waits = self._waits or lagged
        never = [float("nan")] * max(map(len, durations))
        return np.asarray([row or never for row in durations], dtype=np.float64) / 1e6

    def _counted(self, number: int, arguments: tuple[Any, ...], turns: int, clock: StepClock) -> float:
        """Time turns back to back, and return how many batches were loaded for them during that time."""
        __tracebackhide__ = True
        before = batches_ready(self._steps[number])
        synchronize()
        self.conditions.running = True
        clock.begin()
        begin = time.perf_counter_ns()
        self._repeat(number, arguments, turns)
        end = time.perf_counter_ns()
        clock.end(end - begin)
        self.conditions.ended(begin, end)
        after = batches_ready(self._steps[number])
        drawn = 0 if before is None or after is None else before - after
        # Never subtract more than half. If there is more to subtract, the lead was too short to use up the prefetched
        # batches.
        return max(turns - drawn, turns / 2)

    def _repeat(self, number: int, arguments: tuple[Any, ...], times: int) -> None:
        __tracebackhide__ = True
        step = self._steps[number]
        for _ in range(times):
            step(*arguments)
            self.conditions.step += 1

    def _block(self, times: int, clock: StepClock) -> None:
        __tracebackhide__ = True
        step, turns = self._steps[0], itertools.repeat(None, times)
        with self._gate.opened():
            self.conditions.running = True
            clock.begin()
            begin = time.perf_counter_ns()
            for _ in turns:
                step()
            end = time.perf_counter_ns()
            clock.end(end - begin)
            self.conditions.ended(begin, end)
        self.conditions.step += 1
        self.sizes.append(None)

    def _round(self, order: Sequence[int], clocks: list[StepClock], keep: bool) -> None:
        __tracebackhide__ = True
        alone = len(self._steps) == 1
        arguments = () if alone else self._batch()
        numbers = None if alone else random_state()
        results: list[Any] = [None] * len(self._steps)
        for turn, number in enumerate(order):
            if numbers is not None and turn:
                set_random_state(numbers)
            step, clock = self._steps[number], clocks[number]
            with self._switches[number](), self._gate.opened():
                self.conditions.running = True
                clock.begin()
                begin = time.perf_counter_ns()
                if alone and self._source is not None:
                    arguments = (self._source.next(),)  # a single step waits for it, several steps share it
                result = step(*arguments)
                end = time.perf_counter_ns()
                clock.end(end - begin)
                self.conditions.ended(begin, end)
            self.conditions.step += 1
            if keep:
                # The next step may write its result to the same memory.
                results[number] = result if turn == len(order) - 1 else mapped(_copy, result)
            del result
        self.sizes.append(common_size(arguments[0]) if arguments else None)
        if keep:
            self.results = results

    def _batch(self) -> tuple[Any, ...]:
        __tracebackhide__ = True
        if self._source is None:
            return ()
        with self._gate.opened():
            return (self._source.next(),)


def _copy(part: Any) -> Any:
    """Copy a tensor or array, unless it is a model parameter."""
    if isinstance(part, np.ndarray):
        return part.copy()
    return part if isinstance(part, nn.Parameter) else part.detach().clone()


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to each tensor and array in a value, and copy the containers and objects that contain them.

    This covers containers that torch supports, mappings, data classes, and objects whose attributes contain tensors.
    """

    def leaf(part: Any) -> Any:
        if isinstance(part, (Tensor, np.ndarray)):
            return function(part)
        if not (inner := _inside(part)):
            return part
        try:
            fresh = copy.copy(part)
            for name, inside in inner.items():
                new = tree_map(leaf, inside)
                if isinstance(fresh, Mapping):
                    fresh[name] = new  # type: ignore[index]
                else:
                    object.__setattr__(fresh, name, new)  # even if the class is frozen
        except Exception:  # the object cannot be copied or modified
            return part
        return fresh

    return tree_map(leaf, value)


def _inside(part: Any) -> dict[Any, Any]:
    """Return the values inside an object that must be visited, by key or attribute name."""
    if isinstance(part, Mapping):
        return dict(part)
    if isinstance(part, (type, nn.Module)):
        return {}
    if dataclasses.is_dataclass(part):
        names = [field.name for field in dataclasses.fields(part)]
        return {name: getattr(part, name) for name in names if hasattr(part, name)}
    attributes = getattr(part, "__dict__", {})
    return {name: value for name, value in attributes.items() if any(isinstance(x, Tensor) for x in tree_leaves(value))}


def prefetching(steps: Sequence[Callable[..., Any]], shared: Any = None) -> Prefetching | None:
    """Find a mechanism that prefetches for one of the steps while another runs. Return ``None`` if there is none.

    All objects that are reachable from a step are searched for live loader workers, processes, threads and queues. Then
    the child processes of `multiprocessing` are checked. Call this function after each step has run, because a
    generator does not refer to anything before it has started. `shared` is the common source of batches, whose workers
    do not favour any step.
    """
    of_all = list({id(value): value for value in reachable([shared])}.values())
    ignored = {id(value) for value in of_all}
    everyones = {pid for value in of_all for pid in _pids(value)}
    seen = [value for value in reachable(list(steps)) if id(value) not in ignored]
    if iterators := [value for value in seen if _is_working(value)]:
        return Prefetching("worker processes", max(map(_most_ahead, iterators)))
    queues = [value for value in seen if _is_a(value, Queue) or _is_a(value, SimpleQueue)]
    ahead = max((getattr(queue, "maxsize", 0) for queue in queues), default=0)
    ahead = ahead + 1 if ahead > 0 else UNKNOWN_AHEAD  # a thread has one more batch
    if any(_is_a(value, BaseProcess) and _pids(value) for value in seen):
        return Prefetching("processes", ahead)
    if queues or any(_fetches(value) for value in seen):
        return Prefetching("threads", ahead)
    children = {child.pid for child in multiprocessing.active_children()}
    return Prefetching("processes", UNKNOWN_AHEAD) if children - everyones else None


def batches_ready(step: Callable[..., Any]) -> int | None:
    """Return the number of prefetched batches in the queue of a step's loader, or ``None`` if it is unknown.

    With several loaders, this is the smallest number, because each turn takes one batch from every loader.
    """
    ready = [_ready(value) for value in reachable([step]) if _is_working(value)]
    known = [count for count in ready if count is not None]
    return min(known) if known and len(known) == len(ready) else None


def _is_a(value: Any, kind: type) -> bool:
    # Compare types, because isinstance would ask a proxy for its class, which it may not have.
    return issubclass(type(value), kind)


def _is_working(value: Any) -> bool:
    return _is_a(value, _MultiProcessingDataLoaderIter) and not getattr(value, "_shutdown", True)


def _most_ahead(iterator: Any) -> int:
    """Return the maximum number of batches that a loader's workers prefetch."""
    workers, factor = getattr(iterator, "_num_workers", None), getattr(iterator, "_prefetch_factor", None)
    return workers * factor if isinstance(workers, int) and isinstance(factor, int) else UNKNOWN_AHEAD


def _ready(iterator: Any) -> int | None:
    """Return the number of batches that were delivered but not yet taken, either in the queue or out of order."""
    try:
        queues = {id(queue): queue for queue in (iterator._data_queue, iterator._worker_result_queue)}
        waiting = int(sum(queue.qsize() for queue in queues.values()))
        return waiting + sum(len(info) == 2 for info in list(iterator._task_info.values()))
    except Exception:  # another torch version, or macOS, where the size of a queue is not available
        return None


def _fetches(value: Any) -> bool:
    """Return whether a thread may be loading batches for a step."""
    if not _is_a(value, threading.Thread) or value in (threading.main_thread(), threading.current_thread()):
        return False
    return value.is_alive() and type(value).__module__.partition(".")[0] not in _OTHER_THREADS


def _pids(value: Any) -> list[int]:
    """Return the ID of a live child process in a list, or an empty list for anything else."""
    if not _is_a(value, BaseProcess):
        return []
    try:
        return [value.pid] if value.is_alive() and value.pid is not None else []
    except Exception:  # a child of another process, or a closed process
        return []
