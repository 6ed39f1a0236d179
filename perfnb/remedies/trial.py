"""Run a step with levers on and off, side by side, and put everything back."""

from __future__ import annotations

import gc
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from perfnb.bench.design import SEED, random_orders
from perfnb.bench.quality import Loss, losses_of
from perfnb.bench.rounds import Bench
from perfnb.bench.values import UNCHECKED, Values, judge_values
from perfnb.errors import CaptureError
from perfnb.remedies.lever import Lever, Switch
from perfnb.remedies.subject import Subject
from perfnb.remedies.values import Yardstick, errors_of
from perfnb.remedies.verdicts import fewest_rounds, not_hopeless
from perfnb.stats.intervals import Floats
from perfnb.step.memory import LiveObjects, inputs
from perfnb.step.steps import BatchSource
from perfnb.step.tracer import Tracer, exclusive

Progress = Callable[..., None]
#: Steps before quality is judged: as many with each lever as without.
_QUALITY_STEPS = 3
_MOST_ROUNDS, _MOST_BLOCKS = 200, 40
#: Share of a budget by which rounds may outlast it, where steps take longer than the first ones did.
_SLACK = 0.15


class Compiled(NamedTuple):
    """What torch.compile did."""

    graphs: int
    breaks: int


NOTHING_COMPILED = Compiled(0, 0)


@dataclass
class Prepared:
    """A lever that works on the step: switched on and off at will."""

    lever: Lever
    switch: Switch
    #: What preparing took beyond the steps themselves, such as compiling.
    setup_s: float = 0.0
    #: What was compiled while it was on: while preparing it, and until now.
    at_first: Compiled = NOTHING_COMPILED
    until_now: Compiled = NOTHING_COMPILED
    on: bool = False  # stays so if the step raises with it on
    #: What switching it on and off takes, which is in no time of a step.
    switching_s: float = math.inf

    @property
    def notes(self) -> list[str]:
        """What to know of its compiling."""
        graphs, breaks = self.at_first
        again = self.until_now.graphs - graphs
        said = [f"{graphs} graph{'s' * (graphs > 1)}, {breaks} graph break{'s' * (breaks != 1)}"] if graphs else []
        return said + ([f"recompiled {again} times since"] if again else [])


@contextmanager
def prepared(lever: Lever, subject: Subject, step_s: float, set_up: int = 2) -> Iterator[Prepared]:
    """Prepare a lever and run the step a few times with it on.

    Raises
    ------
    Exception
        Whatever the step raises with the lever on.
    """
    __tracebackhide__ = True
    with lever.prepared(subject) as switch:

        @contextmanager
        def counted() -> Iterator[None]:
            before, found.on = _compiled(), True
            begin = time.perf_counter()
            with switch():
                found.switching_s = min(found.switching_s, 2 * (time.perf_counter() - begin))
                yield
            found.on = False
            so_far = zip(found.until_now, _compiled(), before, strict=True)
            found.until_now = Compiled(*(held + now - then for held, now, then in so_far))

        found = Prepared(lever, counted)
        begin = time.perf_counter()
        with subject.restored(), ExitStack() as stack, counted():
            run = fed(subject, stack) if lever.in_blocks else subject.run
            with subject.gate.opened():
                for _ in range(set_up):
                    run()
        found.setup_s = max(0.0, time.perf_counter() - begin - set_up * step_s)
        found.at_first = found.until_now
        yield found


def _compiled() -> Compiled:
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return NOTHING_COMPILED
    counters: Mapping[str, Mapping[str, int]] = dynamo.counters
    return Compiled(counters["stats"].get("unique_graphs", 0), sum(counters["graph_break"].values()))


def check(found: Prepared, subject: Subject, yardstick: Yardstick, again: bool = True) -> Values:
    """Whether the step computes the same with the lever on; prepared `again` if its random numbers forbid to say."""
    __tracebackhide__ = True
    lever = found.lever
    if lever.check is not None:
        return lever.check(subject, found.switch)
    if not yardstick.repeats:
        return Values(UNCHECKED, None, "the step does not repeat itself: run twice from the same state, results differ")
    if not yardstick.own:
        return Values(UNCHECKED, None, "the step calls no model and returns no tensor, so there is nothing to compare")
    values = judge_values(errors_of(subject, found.switch, yardstick), lever.lowers, lever.reorders)
    if values.verdict != UNCHECKED or lever.in_order is None or not again:
        return values
    with lever.in_order(subject) as switch:
        return judge_values(errors_of(subject, switch, yardstick), lever.lowers, lever.reorders)


def check_together(levers: Sequence[Prepared], subject: Subject, yardstick: Yardstick) -> Values:
    """Whether the step computes the same with several levers on."""
    __tracebackhide__ = True
    with ExitStack() as stack:
        switches = [one.switch for one in levers]
        if yardstick.random:  # as each was checked
            switches = [
                one.switch if one.lever.in_order is None else stack.enter_context(one.lever.in_order(subject))
                for one in levers
            ]
        errors = errors_of(subject, all_on(switches), yardstick)
    lowers = next((one.lever.lowers for one in levers if one.lever.lowers), "")
    return judge_values(errors, lowers, any(one.lever.reorders for one in levers))


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
    subject: Subject,
    switches: Sequence[Switch],
    budget_s: float,
    progress: Progress,
    what: str,
    seed: int = SEED,
    warm: int = 2,
    block: int = 1,
) -> Floats:
    """Milliseconds of the step as it is (first row) and under each switch, a column per round.

    In each round every variant runs once, in random order, on the same batch and with the same random numbers; or
    `block` times back to back, after a step that does not count. One that is hopeless in the rounds that warm up is
    left out of the others; its row is NaN.
    """
    __tracebackhide__ = True
    variants: list[Switch] = [nullcontext, *switches]
    step = subject.step
    if block > 1:
        variants, step = [_settled(subject, switch) for switch in variants], _repeated(step, block)
    until = time.perf_counter() + budget_s
    with (
        subject.restored(),
        subject.gate.opened(),
        Bench([step] * len(variants), subject.batches, progress, switches=variants) as bench,
    ):
        pilot = bench.rounds([range(len(variants))] * warm, pass_name=what, until=until)
        kept = not_hopeless(pilot)
        if len(kept) == 1:
            return np.full_like(pilot, np.nan)
        lead = (block + 1) / block if block > 1 else 1.0
        count = _rounds(len(kept) - 1, lead * float(pilot[kept, -1].sum()) / 1e3, until, _MOST_ROUNDS)
        orders = [[kept[place] for place in order] for order in random_orders(count, len(kept), seed)]
        return bench.rounds(orders, pass_name=what, planned=count, until=until + _SLACK * budget_s) / block


def _settled(subject: Subject, switch: Switch) -> Switch:
    """Run a step when switched on, which is not timed; an interrupt waits for the next one."""

    @contextmanager
    def on() -> Iterator[None]:
        __tracebackhide__ = True
        with switch():
            subject.run()
            yield

    return on


def _repeated(step: Callable[..., Any], times: int) -> Callable[..., None]:
    def steps(*args: Any) -> None:
        __tracebackhide__ = True
        for _ in range(times):
            step(*args)

    return steps


def time_blocks(
    subject: Subject,
    switches: Sequence[Switch],
    budget_s: float,
    progress: Progress,
    what: str,
    seed: int = SEED,
    warm: int = 1,
) -> Floats:
    """As `time_switches`, for levers that work ahead: milliseconds of a batch and its step, turns back to back.

    Each variant takes its own batches, and uses up what was made ahead before its turns count.
    """
    __tracebackhide__ = True
    until = time.perf_counter() + budget_s
    with subject.restored(), ExitStack() as stack:
        variants: list[Switch] = [nullcontext, *switches]
        steps = []
        for switch in variants:
            with switch():
                steps.append(fed(subject, stack))
        stack.enter_context(subject.gate.opened())
        bench = stack.enter_context(Bench(steps, None, progress, switches=variants))
        every = range(len(steps))
        bench.blocks([every], lead=0, turns=warm, pass_name=what)  # starts the workers
        found = bench.prefetching()
        lead = turns = 1 + (0 if found is None else found.ahead)
        pilot = bench.blocks([every], lead=lead, turns=turns, pass_name=what)
        count = _rounds(len(switches), float(pilot.sum()) * (lead + turns) / 1e3, until, _MOST_BLOCKS)
        orders = random_orders(count, len(steps), seed)
        late = until + _SLACK * budget_s
        return bench.blocks(orders, lead=lead, turns=turns, pass_name=what, planned=count, until=late)


def _rounds(levers: int, round_s: float, until: float, most: int) -> int:
    """As many rounds as there is time for, and at least as many as a verdict needs."""
    return max(fewest_rounds(levers), min(int((until - time.perf_counter()) / max(round_s, 1e-9)), most))


def fed(subject: Subject, stack: ExitStack) -> Callable[[], Any]:
    """The step with batches of its own, from what feeds it now; the stack ends their iteration."""
    source = BatchSource(subject.batches)
    stack.callback(source.close)
    return lambda: subject.step(source.next())


def step_seconds(subject: Subject, most_s: float) -> float:
    """About how long a step takes; two more are run after one that takes less than `most_s`."""
    __tracebackhide__ = True
    with subject.restored(), subject.gate.opened(), Bench([subject.step], subject.batches) as bench:
        first_s = float(bench.rounds([[0]], pass_name="warmup").min()) / 1e3
        return first_s if first_s > most_s else float(bench.rounds([[0]] * 2, pass_name="warmup").min()) / 1e3


def peak_bytes(subject: Subject, switch: Switch = nullcontext) -> int | None:
    """Most memory that a step's tensors take at once on its device; ``None`` if the step has a profiler of its own.

    That is the memory of parameters, buffers, gradients, optimizers' state and the batch at the start of a step, and
    what the step allocates from there on, less what it frees.
    """
    __tracebackhide__ = True
    tracer, live = Tracer(memory=True), LiveObjects()
    for model in subject.models.values():
        live.add_model(model)
    for optimizer in subject.optimizers.values():
        live.add_optimizer(optimizer)
    gc.collect()  # garbage that is freed while tracing counts as freed by the step
    try:
        with exclusive(), subject.restored(), switch():
            with tracer:
                with subject.gate.opened():
                    subject.run()  # gradients freed later are known only if allocated while tracing
                held = {block.address: block for block in (*live.blocks(), *inputs(subject.sample))}
                start_ns = time.time_ns()
                with subject.gate.opened():
                    subject.run()
            changes = tracer.memory_changes()
    except CaptureError:
        return None
    finally:
        tracer.close()
    level = peak = sum(block.bytes for block in held.values() if block.device.partition(":")[0] == subject.kind)
    for at_ns, size, kind in changes:
        if at_ns >= start_ns and kind == subject.kind:
            level += size
            peak = max(peak, level)
    return peak


def losses(
    subject: Subject, quality: Callable[[], Any], limits: Mapping[str, float], switch: Switch = nullcontext
) -> tuple[Loss, ...]:
    """What `quality` says after a few steps with a lever on."""
    __tracebackhide__ = True
    with subject.restored(), switch(), subject.gate.opened():
        for _ in range(_QUALITY_STEPS):
            subject.run()
        return losses_of(quality(), limits)
