"""Run a step with levers on and off, side by side, and put everything back."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from perfnb.bench.design import SEED, random_orders
from perfnb.bench.rounds import Bench
from perfnb.errors import CaptureError
from perfnb.remedies.ladder import Errors, affordable, fewest_rounds
from perfnb.remedies.levers import Lever, loader_with_workers
from perfnb.remedies.subject import Subject
from perfnb.remedies.values import Yardstick, errors_of
from perfnb.stats.intervals import Floats
from perfnb.step.device import random_state
from perfnb.step.steps import BatchSource

Switch = Callable[[], AbstractContextManager[Any]]
Progress = Callable[..., None]
#: Steps with a lever on before it counts, in which it prepares what it needs.
_SET_UP_STEPS = 2
_MOST_ROUNDS = 200
#: Share of a budget by which rounds may outlast it, where steps take longer than the first ones did.
_SLACK = 0.2


@dataclass
class Prepared:
    """A lever that works on the step: switched on and off at will."""

    lever: Lever
    switch: Switch
    #: What preparing took beyond the steps themselves, such as compiling.
    setup_s: float
    errors: Errors | None = None


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
        with subject.restored(), switch():
            for _ in range(_SET_UP_STEPS):
                subject.run()
        taken = time.perf_counter() - begin - _SET_UP_STEPS * step_s
        yield Prepared(lever, switch, max(0.0, taken))


def check(found: Prepared, subject: Subject, yardstick: Yardstick) -> None:
    """See how far the results with the lever on are from the truth."""
    __tracebackhide__ = True
    found.errors = errors_of(subject, found.switch, yardstick)


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


def time_loader(subject: Subject, workers: int, budget_s: float, progress: Progress) -> tuple[Floats, float]:
    """Milliseconds of a batch and its step, from the user's loader (first row) and from one with workers.

    Each runs in blocks, because workers load ahead while the other runs. Also the seconds until the workers' first
    batch.
    """
    __tracebackhide__ = True
    assert subject.loader is not None
    begin = time.perf_counter()
    with ExitStack() as stack:
        stack.enter_context(subject.restored())
        sources = [BatchSource(subject.loader[1]), BatchSource(loader_with_workers(subject.loader[1], workers))]
        for source in sources:
            stack.callback(source.close)
        stack.enter_context(subject.gate.opened())
        sources[1].next()
        setup_s = time.perf_counter() - begin
        steps = [_fed(subject.step, source) for source in sources]
        bench = stack.enter_context(Bench(steps, None, progress))
        lead = 2 * workers + 1
        turns = 2 * lead
        pilot = bench.blocks([[0, 1]], lead=lead, turns=turns, pass_name="trial")
        round_s = float(pilot.sum()) * (lead + turns) / 1e3
        count = max(fewest_rounds(1), min(40, int(budget_s / max(round_s, 1e-9))))
        orders = random_orders(count, 2, SEED)
        times = bench.blocks(orders, lead=lead, turns=turns, pass_name="trial", planned=count)
    return times, setup_s


def _fed(step: Callable[..., Any], source: BatchSource) -> Callable[[], Any]:
    return lambda: step(source.next())


def step_seconds(subject: Subject, runs: int = 3) -> float:
    """About how long a step takes."""
    __tracebackhide__ = True
    with subject.restored(), subject.gate.opened(), Bench([subject.step], subject.batches) as bench:
        return float(bench.rounds([[0]] * runs, pass_name="warmup").min()) / 1e3


def sensible(names: Sequence[str], step_s: float, budget_s: float) -> list[str]:
    """As many of the first levers as the budget allows."""
    return list(names[: affordable(len(names), step_s, budget_s)])


@contextmanager
def untouched(subject: Subject) -> Iterator[None]:
    """Prove that everything is as before: model, optimizer, random numbers, switches.

    Raises
    ------
    CaptureError
        If something is not, with what changed.
    """
    __tracebackhide__ = True
    before = fingerprint(subject)
    yield
    after = fingerprint(subject)
    if changed := [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]:
        raise CaptureError(
            f"After trying levers, {sorted(changed)[0]} is not as it was before: restart from a checkpoint."
        )


def fingerprint(subject: Subject) -> dict[str, Any]:
    """What must be as before, by name: digests of tensors, and values of switches."""
    found: dict[str, Any] = {
        "torch's number of threads": torch.get_num_threads(),
        "the float32 precision": torch.get_float32_matmul_precision(),
        "the default dtype": torch.get_default_dtype(),
        "cuDNN's benchmark": torch.backends.cudnn.benchmark,
        "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
        "gradient mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "the random state": _digest(random_state()),
    }
    for root, model in subject.models.items():
        named = itertools.chain(model.named_parameters(), model.named_buffers())
        for name, tensor in named:
            found[f"{root}.{name}"] = (_digest(tensor), tensor.requires_grad, id(tensor), tensor.data_ptr())
            found[f"the gradient of {root}.{name}"] = _digest(tensor.grad if tensor.is_leaf else None)
        for name, module in model.named_modules():
            found[f"the mode and attributes of {root}.{name}"] = (module.training, tuple(sorted(vars(module))))
    for name, optimizer in subject.optimizers.items():
        found[f"the state of {name}"] = _digest([list(state.items()) for state in optimizer.state.values()])
        groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        found[f"the groups of {name}"] = _digest(groups)
    return found


def _digest(value: Any) -> str:
    """A digest of nested tensors and plain values."""
    digest = hashlib.blake2b(digest_size=16)
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Tensor):
            dense = item.detach() if item.layout is torch.strided else item.detach().to_dense()
            digest.update(str((item.dtype, tuple(item.shape))).encode())
            digest.update(dense.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(item, Mapping):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple)):
            stack += [len(item), *item]
        elif hasattr(item, "tobytes"):
            digest.update(item.tobytes())
        else:
            digest.update(repr(item).encode())
    return digest.hexdigest()
