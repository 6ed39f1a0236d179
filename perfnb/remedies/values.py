"""Check whether a step computes the same results with a lever on.

Outputs and gradients are compared, as well as parameters and buffers after a few more steps. The yardstick is the step
itself in float64: with a lever on, the distance from its results may be at most a few times the unmodified step's
distance. If the step cannot run in float64, the yardstick is the difference between the step's results with two numbers
of threads, which sum in different orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice, zip_longest
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves, tree_map

from perfnb.bench.distances import Results, differ, errors_between, kept
from perfnb.bench.values import DIFFERENT, NOISE, SAME, UNCHECKED, Errors, Values, judge_values
from perfnb.remedies.dtypes import in_float64, widened
from perfnb.remedies.lever import PreparedLever, Switch, all_on, attribute
from perfnb.remedies.state import digest
from perfnb.remedies.subject import Subject
from perfnb.remedies.switches import THREADS, switched
from perfnb.step.device import capacity_bytes
from perfnb.telemetry.sampler.cgroup import memory_limit_bytes

#: The number of batches that are compared between two loaders. It exceeds the number of workers, which means that at
#: least one worker makes two batches.
_BATCHES = 6


@dataclass(frozen=True)
class Yardstick:
    """The unmodified step's results and their distance from the true results."""

    own: Results
    truth: Results
    #: The reason why `truth` is not computed in float64, but with another number of threads; empty if it is in float64.
    why_not: str
    #: Whether the step's results depend on random numbers.
    random: bool
    #: Whether the step's results are the same if it runs twice from the same state.
    repeats: bool
    #: The number of steps after which parameters and buffers are compared.
    steps: int

    @property
    def exact(self) -> bool:
        """Whether the true results were computed in float64."""
        return not self.why_not


def measure_yardstick(
    subject: Subject, peak_bytes: int | None = None, brief: bool = False, steps: int = 3
) -> Yardstick:
    """Determine the yardstick by running the step a few times, and restore everything.

    `peak_bytes` is the memory that the step needs; in float64, it needs twice as much, plus a copy of its state. If
    `brief`, the step is assumed to draw random numbers. Parameters are compared after several `steps`, because errors
    in an optimizer's state become visible only in the second step.
    """
    __tracebackhide__ = True
    steps = steps if subject.optimizers else 1
    own = results_of(subject, steps=steps)
    again = own if brief else results_of(subject, steps=steps)
    # Either bit for bit or within noise.
    repeats = not differ(own, again) or judge_values(errors_between(own, again, own, kind_of=_kind)).verdict == NOISE
    random = brief or differ(own, results_of(subject, seed_shift=1, steps=steps))
    free = free_bytes(subject.kind)
    why_not = (
        "there is not enough memory for float64" if peak_bytes and free is not None and 2 * peak_bytes > free else ""
    )
    if not why_not:
        try:
            truth = results_of(subject, float64=True, steps=steps)
        except Exception as error:  # an operator or a part of the step that does not support float64
            words = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
            why_not = f"the step does not run in float64 ({words[:150]})"
    if why_not:
        with switched(THREADS, 2 if torch.get_num_threads() == 1 else 1):
            truth = results_of(subject, steps=steps)
    return Yardstick(own, truth, why_not, random, repeats, steps)


def free_bytes(kind: str) -> int | None:
    """Return the memory that this process can still allocate on a kind of device; ``None`` if it is unknown."""
    if kind == "cpu":
        limit = memory_limit_bytes()
        free = int(psutil.virtual_memory().available)
        return free if limit is None else min(free, limit - int(psutil.Process().memory_info().rss))
    total, module = capacity_bytes(kind), getattr(torch, kind, None)
    held = getattr(module, "memory_allocated", None)
    return None if total is None or held is None else total - int(held())


def errors_of(subject: Subject, switch: Switch, yardstick: Yardstick) -> Errors:
    """Return how far the results with a lever on, and the step's own results, are from the true results."""
    __tracebackhide__ = True
    found = results_of(subject, switch, steps=yardstick.steps)
    return errors_between(yardstick.own, found, yardstick.truth, random=yardstick.random, kind_of=_kind)


def check(levers: Sequence[PreparedLever], subject: Subject, yardstick: Yardstick, again: bool = True) -> Values:
    """Check whether the step computes the same results with levers on.

    If random numbers prevent an answer, the levers are prepared `again`.
    """
    __tracebackhide__ = True
    if len(levers) == 1 and (own_check := levers[0].lever.check) is not None:
        return own_check(subject, levers[0].switch)
    if not yardstick.repeats:
        return Values(
            UNCHECKED, None, "the step is not reproducible: two runs from the same state gave different results"
        )
    if not yardstick.own:
        return Values(UNCHECKED, None, "the step calls no model and returns no tensor, so there is nothing to compare")
    lowers = next((one.lever.lowers for one in levers if one.lever.lowers), "")
    reorders = any(one.lever.reorders for one in levers)
    switches = [one.switch for one in levers]
    values = judge_values(errors_of(subject, all_on(switches), yardstick), lowers, reorders)
    if values.verdict != UNCHECKED or not again or not any(one.lever.in_order for one in levers):
        return values
    with ExitStack() as stack:
        for number, one in enumerate(levers):
            if one.lever.in_order is not None:
                switches[number] = stack.enter_context(one.lever.in_order(subject))
        return judge_values(errors_of(subject, all_on(switches), yardstick), lowers, reorders)


def compare_batches(mine: Iterable[Any], other: Iterable[Any], subject: Subject) -> Values:
    """Return whether two loaders produce the same first batches, in the same order, from the same random numbers."""
    __tracebackhide__ = True

    def first(loader: Iterable[Any], seed_shift: int = 0) -> list[Any]:
        with subject.restored():
            if seed_shift:
                torch.manual_seed(torch.initial_seed() + seed_shift)
            with subject.gate.opened():
                return list(islice(loader, _BATCHES))

    own = first(mine)
    different = _first_difference(own, first(other))
    if different is None:
        return Values(SAME, 0.0)
    if _first_difference(own, first(mine, seed_shift=1)) is not None:
        return Values(UNCHECKED, None, "the loader draws random numbers, and workers may draw different ones")
    return Values(DIFFERENT, None, f"batch {different} is different with workers")


def _first_difference(a: Sequence[Any], b: Sequence[Any]) -> int | None:
    """Return the index of the first batch with any difference."""
    pairs = zip_longest(a, b)
    return next((place for place, (x, y) in enumerate(pairs) if digest(x) != digest(y)), None)


def results_of(
    subject: Subject, switch: Switch = nullcontext, *, float64: bool = False, seed_shift: int = 0, steps: int
) -> Results:
    """Return a step's outputs and gradients, and parameters and buffers after `steps` steps, as float64 on the CPU."""
    __tracebackhide__ = True
    results: Results = {}
    calls = 0

    def note_output(name: str, out: Any) -> None:
        nonlocal calls
        for place, leaf in enumerate(tree_leaves(out)):
            if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
                results[f"output {place} of {name}, call {calls}"] = kept(leaf)
        calls += 1

    def note_gradients(*_: Any) -> None:
        for name, parameter in named.items():
            if f"gradient of {name}" not in results and parameter.requires_grad:
                results[f"gradient of {name}"] = None if parameter.grad is None else kept(parameter.grad)

    named = {
        f"{root}.{name}": parameter
        for root, model in subject.models.items()
        for name, parameter in model.named_parameters()
    }
    with subject.restored(), ExitStack() as stack:
        if seed_shift:
            torch.manual_seed(torch.initial_seed() + seed_shift)
        if float64:
            stack.enter_context(in_float64(subject))
        first = stack.enter_context(ExitStack())
        for name, model in subject.models.items():
            note = partial(note_output, name)
            if (own := model._compiled_call_impl) is None:
                first.callback(model.register_forward_hook(lambda _, __, out, note=note: note(out)).remove)
            else:  # compiled in place: torch.compile would trace a hook
                first.enter_context(attribute(model, "_compiled_call_impl", _noted(own, note)))
        first.callback(register_optimizer_step_pre_hook(note_gradients).remove)
        sample = tree_map(widened, subject.sample) if float64 else subject.sample
        with switch():
            with subject.gate.opened():
                returned = subject.step(*sample)
            if not subject.models:
                note_output("the step", returned)
            del returned
            note_gradients()
            first.close()
            with subject.gate.opened():
                for _ in range(steps - 1):
                    subject.step(*sample)
            when = f"after {steps} steps" if steps > 1 else "after the step"
            for root, model in subject.models.items():
                for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                    results[f"{root}.{name} {when}"] = kept(tensor)
    return results


def _noted(call: Callable[..., Any], note: Callable[[Any], None]) -> Callable[..., Any]:
    def noted(*args: Any, **kwargs: Any) -> Any:
        out = call(*args, **kwargs)
        note(out)
        return out

    return noted


def _kind(name: str) -> str:
    """Return the kind of a result: outputs, gradients, or the state after the step."""
    return name.partition(" ")[0] if name.startswith(("output ", "gradient ")) else "after"
