"""Measure a step with levers on and off, side by side: time, memory, and the user's own losses."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import numpy as np

from perfnb.bench.design import SEED, random_orders
from perfnb.bench.quality import Loss, losses_of
from perfnb.bench.rounds import Bench
from perfnb.errors import CaptureError
from perfnb.remedies.lever import Switch
from perfnb.remedies.subject import Subject
from perfnb.remedies.verdicts import fewest_rounds, not_hopeless
from perfnb.stats.intervals import Floats
from perfnb.step.memory import LiveObjects, inputs
from perfnb.step.tracer import Tracer, exclusive

#: The number of steps before quality is judged, which is the same with and without each lever.
_QUALITY_STEPS = 3
_MOST_ROUNDS, _MOST_BLOCKS = 200, 40
#: The share by which rounds may exceed a budget if steps take longer than the first ones.
_SLACK = 0.15


def step_seconds(subject: Subject, most_s: float) -> float:
    """Estimate how long a step takes, with two more steps if the first one takes less than `most_s`."""
    __tracebackhide__ = True
    with subject.restored(), subject.gate.opened(), Bench([subject.step], subject.batches) as bench:
        first_s = float(bench.rounds([[0]], pass_name="warmup").min()) / 1e3
        return first_s if first_s > most_s else float(bench.rounds([[0]] * 2, pass_name="warmup").min()) / 1e3


def time_levers(
    subject: Subject,
    switches: Sequence[Switch],
    budget_s: float,
    progress: Callable[..., None],
    *,
    seed: int = SEED,
    warm: int,
    block: int,
    ahead: bool,
) -> Floats:
    """Return the milliseconds of the unmodified step (first row) and of the step under each switch, by round.

    In each round, every variant runs once, in random order, on the same batch and with the same random numbers. With a
    `block`, it runs that many times back to back, after a step that does not count. Variants that are hopeless in the
    warm-up rounds are excluded from the other rounds, and their rows are NaN.

    If levers work `ahead`, each variant uses its own batches, and its turns run back to back. Turns that use up batches
    made in advance do not count. The times then include both the batch and its step.
    """
    __tracebackhide__ = True
    until = time.perf_counter() + budget_s
    variants: list[Switch] = [nullcontext, *switches]
    everyone = range(len(variants))
    with subject.restored(), ExitStack() as stack:
        steps: list[Callable[..., Any]] = [subject.step] * len(variants)
        if ahead:
            for number, switch in enumerate(variants):
                with switch():
                    steps[number] = subject.fed(stack)
        stack.enter_context(subject.gate.opened())
        bench = stack.enter_context(Bench(steps, None if ahead else subject.batches, progress, switches=variants))
        lead, turns = (1, block) if block > 1 else (0, 1)
        if ahead:
            bench.blocks([everyone], lead=0, turns=warm)  # starts the workers
            found = bench.prefetching()
            lead = turns = 1 + (0 if found is None else found.ahead)
            warm = 1
        run: Callable[..., Floats] = partial(bench.blocks, lead=lead, turns=turns) if lead else bench.rounds
        pilot = run([everyone] * warm, until=until)
        kept = not_hopeless(pilot)
        if len(kept) == 1:
            return np.full_like(pilot, np.nan)
        round_s = float(pilot[kept, -1].sum()) * (lead + turns) / 1e3
        affordable = int((until - time.perf_counter()) / max(round_s, 1e-9))
        count = max(fewest_rounds(len(kept) - 1), min(affordable, _MOST_BLOCKS if ahead else _MOST_ROUNDS))
        orders = [[kept[place] for place in order] for order in random_orders(count, len(kept), seed)]
        return run(orders, planned=count, until=until + _SLACK * budget_s)


def peak_bytes(subject: Subject, switch: Switch = nullcontext) -> int | None:
    """Return the peak memory of a step's tensors on its device.

    This is the memory of parameters, buffers, gradients, optimizer state and the batch at the start of a step, plus the
    memory that the step allocates, minus the memory that it frees. The result is ``None`` if the step has its own
    profiler.
    """
    __tracebackhide__ = True
    tracer, live = Tracer(memory=True), LiveObjects()
    for model in subject.models.values():
        live.add_model(model)
    for optimizer in subject.optimizers.values():
        live.add_optimizer(optimizer)
    gc.collect()  # garbage that is freed during the trace counts as freed by the step
    try:
        with exclusive(), subject.restored(), switch():
            with tracer:
                with subject.gate.opened():
                    subject.run()  # a gradient that is freed later is counted only if it was allocated during the trace
                held = {block.address: block for block in (*live.blocks(), *inputs(subject.sample))}
                start_ns = time.time_ns()
                with subject.gate.opened():
                    subject.run()
            changes = tracer.memory_changes()
    except CaptureError:
        return None
    at_start = sum(block.bytes for block in held.values() if block.device.partition(":")[0] == subject.kind)
    sizes = (size for at_ns, size, kind in changes if at_ns >= start_ns and kind == subject.kind)
    return max(itertools.accumulate(sizes, initial=at_start))


def losses(
    subject: Subject, quality: Callable[[], Any], limits: Mapping[str, float], switch: Switch = nullcontext
) -> tuple[Loss, ...]:
    """Return the losses from `quality` after a few steps with a lever on."""
    __tracebackhide__ = True
    with subject.restored(), switch(), subject.gate.opened():
        for _ in range(_QUALITY_STEPS):
            subject.run()
        return losses_of(quality(), limits)
