"""Run a step with levers on and off, side by side, and put everything back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from perfnb.bench.design import SEED, random_orders
from perfnb.bench.rounds import Bench
from perfnb.remedies.ladder import Values, affordable, fewest_rounds, judge_values
from perfnb.remedies.lever import Lever, Switch
from perfnb.remedies.subject import Subject
from perfnb.remedies.values import Yardstick, errors_of
from perfnb.stats.intervals import Floats
from perfnb.step.steps import BatchSource

Progress = Callable[..., None]
#: Steps with a lever on before it counts, in which it prepares what it needs.
_SET_UP_STEPS = 2
_MOST_ROUNDS, _MOST_BLOCKS = 200, 40
#: Share of a budget by which rounds may outlast it, where steps take longer than the first ones did.
_SLACK = 0.2


@dataclass(frozen=True)
class Prepared:
    """A lever that works on the step: switched on and off at will."""

    lever: Lever
    switch: Switch
    #: What preparing took beyond the steps themselves, such as compiling.
    setup_s: float


@contextmanager
def prepared(lever: Lever, subject: Subject, step_s: float) -> Iterator[Prepared]:
    """Prepare a lever and run the step a few times with it on.

    Raises
    ------
    Exception
        Whatever the step raises with the lever on.
    """
    __tracebackhide__ = True
    with lever.prepared(subject) as switch:
        begin = time.perf_counter()
        with subject.restored(), ExitStack() as stack, switch():
            run = fed(subject, stack) if lever.in_blocks else subject.run
            with subject.gate.opened():
                for _ in range(_SET_UP_STEPS):
                    run()
        taken = time.perf_counter() - begin - _SET_UP_STEPS * step_s
        yield Prepared(lever, switch, max(0.0, taken))


def check(found: Prepared, subject: Subject, yardstick: Yardstick) -> Values:
    """Whether the step computes the same with the lever on."""
    __tracebackhide__ = True
    lever = found.lever
    if lever.check is not None:
        return lever.check(subject, found.switch)
    return judge_values(errors_of(subject, found.switch, yardstick), lever.lowers, lever.reorders)


def all_on(switches: Sequence[Switch]) -> Switch:
    """Several levers at once, in order."""

    @contextmanager
    def on() -> Iterator[None]:
        with ExitStack() as stack:
            for switch in switches:
                stack.enter_context(switch())
            yield

    return on


def time_switches(
    subject: Subject, switches: Sequence[Switch], budget_s: float, progress: Progress, what: str, seed: int = SEED
) -> Floats:
    """Milliseconds of the step as it is (first row) and under each switch, a column per round.

    In each round every variant runs once, in random order, on the same batch and with the same random numbers.
    """
    __tracebackhide__ = True
    variants: list[Switch] = [nullcontext, *switches]
    until = time.perf_counter() + budget_s
    with (
        subject.restored(),
        subject.gate.opened(),
        Bench([subject.step] * len(variants), subject.batches, progress, switches=variants) as bench,
    ):
        warm = bench.rounds([range(len(variants))] * 2, pass_name=what)
        round_s = float(warm[:, -1].sum()) / 1e3
        count = int((until - time.perf_counter()) / max(round_s, 1e-9))
        count = max(fewest_rounds(len(switches)), min(count, _MOST_ROUNDS))
        orders = random_orders(count, len(variants), seed)
        return bench.rounds(orders, pass_name=what, planned=count, until=until + _SLACK * budget_s)


def time_blocks(
    subject: Subject, switches: Sequence[Switch], budget_s: float, progress: Progress, what: str, seed: int = SEED
) -> Floats:
    """As `time_switches`, for levers that work ahead: milliseconds of a batch and its step, turns back to back.

    Each variant takes its own batches, and uses up what was made ahead before its turns count.
    """
    __tracebackhide__ = True
    until = time.perf_counter() + budget_s
    with subject.restored(), ExitStack() as stack:
        steps = []
        for switch in (nullcontext, *switches):
            with switch():
                steps.append(fed(subject, stack))
        stack.enter_context(subject.gate.opened())
        bench = stack.enter_context(Bench(steps, None, progress))
        every = range(len(steps))
        bench.blocks([every], lead=0, turns=1, pass_name=what)  # starts the workers
        found = bench.prefetching()
        lead = turns = 1 + (0 if found is None else found.ahead)
        pilot = bench.blocks([every], lead=lead, turns=turns, pass_name=what)
        round_s = float(pilot.sum()) * (lead + turns) / 1e3
        count = int((until - time.perf_counter()) / max(round_s, 1e-9))
        count = max(fewest_rounds(len(switches)), min(count, _MOST_BLOCKS))
        orders = random_orders(count, len(steps), seed)
        late = until + _SLACK * budget_s
        return bench.blocks(orders, lead=lead, turns=turns, pass_name=what, planned=count, until=late)


def fed(subject: Subject, stack: ExitStack) -> Callable[[], Any]:
    """The step with batches of its own, from what feeds it now; the stack ends their iteration."""
    source = BatchSource(subject.batches)
    stack.callback(source.close)
    return lambda: subject.step(source.next())


def step_seconds(subject: Subject, runs: int = 3) -> float:
    """About how long a step takes."""
    __tracebackhide__ = True
    with subject.restored(), subject.gate.opened(), Bench([subject.step], subject.batches) as bench:
        return float(bench.rounds([[0]] * runs, pass_name="warmup").min()) / 1e3


def sensible(names: Sequence[str], step_s: float, budget_s: float) -> list[str]:
    """As many of the first levers as the budget allows."""
    return list(names[: affordable(len(names), step_s, budget_s)])
