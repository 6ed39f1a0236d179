"""Define levers, their preparation for a step, and the building blocks of most levers."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import nn

from perfnb.bench.values import Values
from perfnb.remedies.subject import Subject
from perfnb.remedies.verdicts import LeverTrial

Switch = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Lever:
    """A change to how a step runs, which is applied from outside and can be undone."""

    name: str
    #: Its effect, in one line.
    words: str
    #: The reason why it cannot be tried on a step; empty if it can.
    refuses: Callable[[Subject], str]
    #: A context that prepares it and gives a function, which returns a context with the lever on.
    prepared: Callable[[Subject], AbstractContextManager[Switch]]
    #: The lines that keep it, in the user's names; comments with instructions where something has no name.
    code: Callable[[Subject], list[str]]
    #: The dtype that it computes in on purpose, if lower than the step's own.
    lowers: str = ""
    #: The bottlenecks in `findings` that it answers.
    answers: tuple[str, ...] = ()
    #: Whether preparing it costs so much that it is tried only by name, or if a finding gives reason.
    costly: bool = False
    #: Whether it may draw random numbers in another order, as compiled code does.
    reorders: bool = False
    #: The same lever, prepared so that it draws random numbers as the step does: slower, only for the check.
    in_order: Callable[[Subject], AbstractContextManager[Switch]] | None = None
    #: Whether it saves memory, and is therefore tried with ``goal="memory"`` without any finding.
    for_memory: bool = False
    #: Whether it works ahead, so that it is timed in blocks of turns; while on, it changes the subject's `batches`.
    in_blocks: bool = False
    #: Whether its first step after it was switched on is unlike those that follow, as with compiled code. It is then
    #: timed in blocks of steps, the first of which does not count.
    settles: bool = False
    #: Its own check of results, once it is prepared; by default results are compared with float64.
    check: Callable[[Subject, Switch], Values] | None = None
    #: The choice made for this step, such as a number of workers, once it is prepared.
    says: Callable[[Subject], list[str]] = lambda _: []
    #: Of levers with the same word, only one can be on.
    family: str = ""


class Compiled(NamedTuple):
    """Counts of torch.compile's work."""

    graphs: int
    breaks: int


NOTHING_COMPILED = Compiled(0, 0)


@dataclass(eq=False)
class PreparedLever:
    """A lever that applies to the step and can be switched on and off at any time."""

    lever: Lever
    switch: Switch
    #: The time that preparing took beyond the steps themselves, such as compiling.
    setup_s: float = 0.0
    #: The compilations while it was on: while preparing it, and until now.
    at_first: Compiled = NOTHING_COMPILED
    until_now: Compiled = NOTHING_COMPILED
    on: bool = False  # stays set if the step raises with the lever on
    #: The time of switching it on and off, which no step's time includes.
    switching_s: float = math.inf
    #: Notes about it.
    trial: LeverTrial = field(default_factory=lambda: LeverTrial("", "not tried"))

    @property
    def notes(self) -> list[str]:
        """Notes on the lever's compilation."""
        graphs, breaks = self.at_first
        again = self.until_now.graphs - graphs
        notes = [f"{graphs} graph{'s' * (graphs > 1)}, {breaks} graph break{'s' * (breaks != 1)}"] if graphs else []
        return notes + ([f"recompiled {again} times since"] if again else [])


@contextmanager
def prepared(lever: Lever, subject: Subject, step_s: float, set_up: int = 2) -> Iterator[PreparedLever]:
    """Prepare a lever, and run the step a few times with the lever on.

    Raises
    ------
    Exception
        Any exception that the step raises with the lever on.
    """
    __tracebackhide__ = True
    with lever.prepared(subject) as switch:

        @contextmanager
        def counted() -> Iterator[None]:
            before, one.on = _compiled(), True
            begin = time.perf_counter()
            with switch():
                one.switching_s = min(one.switching_s, 2 * (time.perf_counter() - begin))
                yield
            one.on = False
            so_far = zip(one.until_now, _compiled(), before, strict=True)
            one.until_now = Compiled(*(held + now - then for held, now, then in so_far))

        one = PreparedLever(lever, counted)
        begin = time.perf_counter()
        with subject.restored(), ExitStack() as stack, counted():
            run = subject.fed(stack) if lever.in_blocks else subject.run
            with subject.gate.opened():
                for _ in range(set_up):
                    run()
        one.setup_s = max(0.0, time.perf_counter() - begin - set_up * step_s)
        one.at_first = one.until_now
        yield one


def _compiled() -> Compiled:
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return NOTHING_COMPILED
    counters: Mapping[str, Mapping[str, int]] = dynamo.counters
    return Compiled(counters["stats"].get("unique_graphs", 0), sum(counters["graph_break"].values()))


def all_on(switches: Sequence[Switch]) -> Switch:
    """Turn several levers on at once, in order."""

    @contextmanager
    def on() -> Iterator[None]:
        with ExitStack() as stack:
            for switch in switches:
                stack.enter_context(switch())
            yield

    return on


def without_models(subject: Subject) -> str:
    """Return the reason why levers for models do not apply."""
    return "" if subject.models else "the step calls no model that perfnb can see"


def always(on: Callable[[Subject], AbstractContextManager[Any]]) -> Callable[[Subject], Any]:
    """Return the preparation for a lever that needs none."""

    @contextmanager
    def prepared(subject: Subject) -> Iterator[Switch]:
        yield lambda: on(subject)

    return prepared


@contextmanager
def attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Temporarily set an attribute on an object itself."""
    own = vars(owner)
    had, before = name in own, own.get(name)
    own[name] = value
    try:
        yield
    finally:
        if had:
            own[name] = before
        else:
            own.pop(name, None)


@contextmanager
def forwards(changed: Iterable[tuple[nn.Module, Callable[..., Any]]]) -> Iterator[None]:
    """Temporarily replace the forward of modules."""
    with ExitStack() as stack:
        for module, forward in list(changed):
            stack.enter_context(attribute(module, "forward", forward))
        yield


def forward_within(subject: Subject, context: Switch) -> AbstractContextManager[None]:
    """Run the models' forward within a context, and nothing else."""

    def inside(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with context():
                return forward(*args, **kwargs)

        return run

    return forwards((model, inside(model.forward)) for model in subject.models.values())
