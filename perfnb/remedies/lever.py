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
from perfnb.quantities import counted
from perfnb.remedies.subject import Subject
from perfnb.remedies.verdicts import LeverTrial

Switch = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Lever:
    """A change to how a step runs, which is applied from outside and can be undone."""

    name: str
    #: The lever's effect, in one line.
    words: str
    #: Returns the reason why the lever cannot be tried on a step; empty if it can.
    refuses: Callable[[Subject], str]
    #: A context that prepares the lever and yields a function, which returns a context with the lever on.
    prepared: Callable[[Subject], AbstractContextManager[Switch]]
    #: Returns the lines that make the lever permanent, using the user's names, or comments with instructions if
    #: something has no name.
    code: Callable[[Subject], list[str]]
    #: The dtype that the lever computes in on purpose, if it is lower than the step's own.
    lowers: str = ""
    #: The bottlenecks in `findings` that the lever addresses.
    answers: tuple[str, ...] = ()
    #: Whether preparing the lever is so expensive that it is tried only by name, or if a finding suggests it.
    costly: bool = False
    #: Whether it may draw random numbers in another order, as compiled code does.
    reorders: bool = False
    #: The same lever, prepared to draw random numbers in the step's own order. It is slower and used only for the
    #: check.
    in_order: Callable[[Subject], AbstractContextManager[Switch]] | None = None
    #: Whether the lever saves memory, and is therefore tried with ``goal="memory"`` even without a finding.
    for_memory: bool = False
    #: Whether the lever works ahead and must be timed in blocks of turns. While it is on, it changes the subject's
    #: `batches`.
    in_blocks: bool = False
    #: Whether the first step after switching the lever on differs from later steps, as with compiled code. If so, it is
    #: timed in blocks of steps, the first of which does not count.
    settles: bool = False
    #: Whether the lever's compilation times several kernels for each operation, which takes minutes.
    autotunes: bool = False
    #: The lever's own check of results, once it is prepared. By default, results are compared with float64.
    check: Callable[[Subject, Switch], Values] | None = None
    #: Returns the choices made for this step, such as a number of workers, once the lever is prepared.
    says: Callable[[Subject], list[str]] = lambda _: []
    #: Only one of the levers in the same family can be on.
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
    #: The preparation time in addition to the steps themselves, for example for compiling.
    setup_s: float = 0.0
    #: The compilations while the lever was on: during its preparation, and in total so far.
    at_first: Compiled = NOTHING_COMPILED
    until_now: Compiled = NOTHING_COMPILED
    on: bool = False  # stays set if the step raises with the lever on
    #: The time to switch the lever on and off, which is not part of any step's time.
    switching_s: float = math.inf
    #: Notes about the trial.
    trial: LeverTrial = field(default_factory=lambda: LeverTrial("", "not tried"))

    @property
    def notes(self) -> list[str]:
        """Notes on the lever's compilation."""
        graphs, breaks = self.at_first
        again = self.until_now.graphs - graphs
        notes = [f"{counted(graphs, 'graph')}, {counted(breaks, 'graph break')}"] if graphs else []
        return notes + ([f"recompiled {counted(again, 'time')} since"] if again else [])


@contextmanager
def prepared(lever: Lever, subject: Subject, step_s: float, set_up: int = 2) -> Iterator[PreparedLever]:
    """Prepare a lever and run the step a few times with the lever on.

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
    """Return the reason why levers for models do not apply to the step."""
    return "" if subject.models else "the step calls no model that perfnb can see"


def always(on: Callable[[Subject], AbstractContextManager[Any]]) -> Callable[[Subject], Any]:
    """Return the preparation for a lever that needs none."""

    @contextmanager
    def prepared(subject: Subject) -> Iterator[Switch]:
        yield lambda: on(subject)

    return prepared


@contextmanager
def attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Temporarily set an attribute of an object."""
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
    """Temporarily replace the forward methods of modules."""
    with ExitStack() as stack:
        for module, forward in list(changed):
            stack.enter_context(attribute(module, "forward", forward))
        yield


def forward_within(subject: Subject, context: Switch) -> AbstractContextManager[None]:
    """Run only the models' forward within a context."""

    def inside(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with context():
                return forward(*args, **kwargs)

        return run

    return forwards((model, inside(model.forward)) for model in subject.models.values())
