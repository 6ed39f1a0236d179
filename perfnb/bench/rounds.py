"""Steps timed side by side, without any instrument: rounds in which each has its turn, or many, in whatever order."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from perfnb.bench.design import Prefetching
from perfnb.bench.prefetching import prefetching, prepared
from perfnb.bench.result_copies import copied
from perfnb.interrupts import InterruptGate
from perfnb.step.conditions import Conditions
from perfnb.step.device import StepClock, random_state, set_random_state, synchronize
from perfnb.step.guard import exclusive
from perfnb.step.session import Progress
from perfnb.step.steps import BatchSource, common_size


class Bench:
    """Context manager that runs steps in rounds.

    In a round each step runs once, on the same batch and with the same random numbers, so that no order gives one of
    them an easier task. The user's interrupts and errors come through after everything installed has been removed.

    Parameters
    ----------
    steps : sequence of callable
        Called without arguments, or with a batch where there are `batches`.
    batches : iterable, or callable returning one, optional
        Begun again when they run out.
    progress : callable, optional
        Told the pass, the rounds done and the rounds planned.

    Attributes
    ----------
    conditions : Conditions
        What went on beside the steps.
    sizes : list of (int or None)
        Samples in the batch of each round.
    results : list
        What each step returned in the last round that kept results, as it was when the step ended.
    """

    def __init__(
        self,
        steps: Sequence[Callable[..., Any]],
        batches: Iterable[Any] | Callable[[], Iterable[Any]] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.conditions = Conditions()
        self.sizes: list[int | None] = []
        self.results: list[Any] = []
        self._steps = list(steps)
        self._source = None if batches is None else BatchSource(batches)
        self._progress = progress or (lambda *_: None)
        self._gate = InterruptGate()
        self._installed = ExitStack()

    @property
    def count(self) -> int:
        """Number of steps."""
        return len(self._steps)

    def __enter__(self) -> Bench:
        with ExitStack() as stack:
            stack.enter_context(self._gate)
            stack.enter_context(exclusive())
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
        """Run rounds.

        Parameters
        ----------
        orders : iterable of sequence of int
            For each round the numbers of the steps in the order in which they run; asked for as they are needed.
        until : float, optional
            Moment (`time.perf_counter`) after which no round begins, but the first.
        keep_results : bool
            Keep what the steps return, in `results`.
        repeat : int
            How often the step runs in a round, timed as one; for one step alone, without batches.

        Returns
        -------
        list of list of int
            For each step its durations in nanoseconds, a value a round.
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
        """Run rounds in each of which every step runs many times in a row, all on one batch.

        What a step's own loader had prepared while others ran is used up first: `lead` turns do not count, and of those
        that count a batch that lay prepared is taken off, and one that was added to what lies prepared is added, where
        the loader tells.

        Parameters
        ----------
        orders : iterable of sequence of int
            As for `rounds`.
        lead, turns : int
            How many turns of each block come before those that count, and how many count.
        parts : int
            How often they count: in so many parts one after the other, each with a value of its own.
        until : float, optional
            Moment (`time.perf_counter`) after which no round begins, but the first.

        Returns
        -------
        list of list of float
            For each step nanoseconds a turn, a value a block, or part of one.
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
        """What prepares batches for one of the steps while another runs; to be asked when each has run."""
        return prefetching(self._steps, self._source)

    def _counted(self, number: int, arguments: tuple[Any, ...], turns: int, clock: StepClock) -> float:
        """Time turns in a row; how many batches were made for them meanwhile."""
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
        # More than half is never taken off: then what came before was too short to tell.
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
                arguments = self._batch()  # the wait for it is part of a step, but cannot be shared out among several
            result = step(*arguments)
            clock.end(time.perf_counter_ns() - begin)
            self.conditions.running = False
            self.conditions.step += 1
            if keep:
                # The next step may write its result to the same memory.
                results[number] = result if place == len(order) - 1 else copied(result)
            del result
        self.sizes.append(common_size(arguments[0]) if arguments else None)
        if keep:
            self.results = results

    def _batch(self) -> tuple[Any, ...]:
        __tracebackhide__ = True
        return () if self._source is None else (self._source.next(),)
