"""Time steps side by side without instruments, in rounds in which each step runs once, or many times back to back."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Self

import numpy as np
import torch

from perfnb.bench.design import Prefetching
from perfnb.bench.nested import mapped
from perfnb.bench.prefetching import prefetching, prepared
from perfnb.interrupts import InterruptGate
from perfnb.step.conditions import Conditions
from perfnb.step.device import StepClock, random_state, set_random_state, synchronize
from perfnb.step.guard import exclusive
from perfnb.step.session import Progress
from perfnb.step.steps import BatchSource, common_size


class Bench:
    """Context manager that runs steps in rounds.

    In a round each step runs once, on the same batch and with the same random numbers, so that the order favours none
    of them. Interrupts and errors propagate after everything perfnb installed has been removed.

    Parameters
    ----------
    steps : sequence of callable
        Called without arguments, or with a batch if `batches` are given.
    batches : iterable, or callable returning one, optional
        Restarted when exhausted.
    progress : callable, optional
        Called with the pass, the rounds done and the rounds planned.
    around : sequence of context manager
        Entered before the first step and left after the last.
    """

    def __init__(
        self,
        steps: Sequence[Callable[..., Any]],
        batches: Iterable[Any] | Callable[[], Iterable[Any]] | None = None,
        progress: Progress | None = None,
        around: Sequence[AbstractContextManager[Any]] = (),
    ) -> None:
        self.conditions = Conditions()  # what may have disturbed the steps
        self.sizes: list[int | None] = []  # samples in the batch of each round
        self.results: list[Any] = []  # what each step returned in the last round that kept results
        self._steps = list(steps)
        self._source = None if batches is None else BatchSource(batches)
        self._progress = progress or (lambda *_: None)
        self._gate = InterruptGate()
        self._around: list[AbstractContextManager[Any]] = [self._gate, exclusive(), *around]
        self._installed = ExitStack()

    @property
    def count(self) -> int:
        """Number of steps."""
        return len(self._steps)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for each in self._around:
                stack.enter_context(each)
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
    ) -> list[list[int]]:
        """Run rounds; for each step its durations in nanoseconds, one per round.

        Parameters
        ----------
        orders : iterable of sequence of int
            The order of the steps in each round, as their numbers; consumed as needed.
        until : float, optional
            Time (`time.perf_counter`) after which no round starts, except the first.
        keep_results : bool
            Keep what the steps return in `results`.
        repeat : int
            How often the step runs in a round, timed as one; only for a single step without batches.
        """
        __tracebackhide__ = True
        synchronize()
        clocks = [StepClock() for _ in self._steps]
        for done, order in enumerate(orders, start=1):
            if done > 1 and until is not None and time.perf_counter() > until:
                break
            with self._gate.opened():
                if repeat > 1:
                    self._block(repeat, clocks[0])
                else:
                    self._round(order, clocks, keep_results)
            self._progress(pass_name, done, planned)
        return [clock.durations_ns() for clock in clocks]

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
    ) -> list[list[float]]:
        """Run rounds of many turns back to back, all on one batch; for each step nanoseconds a turn, per block or part.

        Batches that a step's own loader prefetched while others ran are used up first: `lead` turns do not count. Where
        the loader's queue can be read, the count of turns is corrected by how many prefetched batches it gained or
        lost.

        Parameters
        ----------
        orders, until
            As for `rounds`.
        lead, turns : int
            Turns of each block that run first and do not count, and turns that count.
        parts : int
            Number of counted parts of `turns` each, one after the other, each with its own value.
        """
        __tracebackhide__ = True
        synchronize()
        clocks = [StepClock() for _ in self._steps]
        made: list[list[float]] = [[] for _ in self._steps]
        for done, order in enumerate(orders, start=1):
            if done > 1 and until is not None and time.perf_counter() > until:
                break
            with self._gate.opened():
                arguments, numbers = self._batch(), random_state()
                for number in order:
                    set_random_state(numbers)
                    self._repeat(number, arguments, lead)
                    made[number] += [self._counted(number, arguments, turns, clocks[number]) for _ in range(parts)]
                self.sizes.append(common_size(arguments[0]) if arguments else None)
            self._progress(pass_name, done, planned)
        return [
            [whole / count for whole, count in zip(clock.durations_ns(), counts, strict=True)]
            for clock, counts in zip(clocks, made, strict=True)
        ]

    def prefetching(self) -> Prefetching | None:
        """What prefetches batches for one step while another runs; call it once each has run."""
        return prefetching(self._steps, self._source)

    def _counted(self, number: int, arguments: tuple[Any, ...], turns: int, clock: StepClock) -> float:
        """Time turns back to back; return how many batches were made for them in that time."""
        __tracebackhide__ = True
        before = prepared(self._steps[number])
        synchronize()
        self.conditions.running = True
        clock.begin()
        begin = time.perf_counter_ns()
        self._repeat(number, arguments, turns)
        clock.end(time.perf_counter_ns() - begin)
        self.conditions.running = False
        after = prepared(self._steps[number])
        drawn = 0 if before is None or after is None else before - after
        # Never subtract more than half: the lead was then too short to use up what was prefetched.
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
        self.conditions.running = True
        clock.begin()
        begin = time.perf_counter_ns()
        for _ in turns:
            step()
        clock.end(time.perf_counter_ns() - begin)
        self.conditions.running = False
        self.conditions.step += 1
        self.sizes.append(None)

    def _round(self, order: Sequence[int], clocks: list[StepClock], keep: bool) -> None:
        __tracebackhide__ = True
        alone = len(self._steps) == 1
        arguments = () if alone else self._batch()
        numbers = None if alone else random_state()
        results: list[Any] = [None] * len(self._steps)
        for place, number in enumerate(order):
            if numbers is not None and place:
                set_random_state(numbers)
            step, clock = self._steps[number], clocks[number]
            self.conditions.running = True
            clock.begin()
            begin = time.perf_counter_ns()
            if alone:
                arguments = self._batch()  # waiting for it is part of a single step, but cannot be split among several
            result = step(*arguments)
            clock.end(time.perf_counter_ns() - begin)
            self.conditions.running = False
            self.conditions.step += 1
            if keep:
                # The next step may write its result to the same memory.
                results[number] = result if place == len(order) - 1 else mapped(_copy, result)
            del result
        self.sizes.append(common_size(arguments[0]) if arguments else None)
        if keep:
            self.results = results

    def _batch(self) -> tuple[Any, ...]:
        __tracebackhide__ = True
        return () if self._source is None else (self._source.next(),)


def _copy(part: Any) -> Any:
    """Copy a tensor or array, unless it is a parameter of a model."""
    if isinstance(part, np.ndarray):
        return part.copy()
    return part if isinstance(part, torch.nn.Parameter) else part.detach().clone()
