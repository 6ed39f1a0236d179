"""What a lever is, and what most levers are made of."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from perfnb.bench.values import Values
from perfnb.remedies.subject import Subject
from perfnb.stats.intervals import Floats

Switch = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Lever:
    """A change of how a step runs, applied from outside and undone."""

    name: str
    #: One line: what it does.
    words: str
    #: Why it cannot be tried on a step; empty if it can.
    refuses: Callable[[Subject], str]
    #: A context in which it is prepared; gives a function that returns a context in which the lever is on.
    prepared: Callable[[Subject], AbstractContextManager[Switch]]
    #: The lines that keep it, in the user's names; comments that say what to do where something has no name.
    code: Callable[[Subject], list[str]]
    #: The dtype in which it computes on purpose, if lower than the step's own.
    lowers: str = ""
    #: Bottlenecks in `findings` that it answers.
    answers: tuple[str, ...] = ()
    #: Whether preparing it costs so much that it is tried only if a finding gives reason, or by name.
    costly: bool = False
    #: Whether it may draw random numbers in another order, as compiled code does.
    reorders: bool = False
    #: Such a lever prepared so that it draws them as the step does: slower, for the check alone.
    in_order: Callable[[Subject], AbstractContextManager[Switch]] | None = None
    #: Whether it is for memory, and so tried with ``goal="memory"`` without any finding.
    for_memory: bool = False
    #: Whether it works ahead, so that it is timed in blocks of turns; while on, it changes the subject's `batches`.
    in_blocks: bool = False
    #: Whether its first step after it was switched on is unlike those that follow, as with compiled code, so that it is
    #: timed in blocks of steps of which the first does not count.
    settles: bool = False
    #: Its own check of results, with it prepared; by default results are compared with float64.
    check: Callable[[Subject, Switch], Values] | None = None
    #: Its own timing, as `perfnb.remedies.trial.time_blocks`, if it cannot be switched in this process.
    timed: Callable[..., Floats] | None = None
    #: What was chosen for this step, such as a number of workers, once it is prepared.
    says: Callable[[Subject], list[str]] = lambda _: []
    #: Of levers with the same word only one can be on.
    family: str = ""

    @property
    def timed_alone(self) -> bool:
        """Whether it has rounds of its own, which it does not share with other levers."""
        return self.in_blocks or self.settles or self.timed is not None


def nothing(_: Subject) -> str:
    """No reason to refuse."""
    return ""


def without_models(subject: Subject) -> str:
    """Why what acts on models does not apply."""
    return "" if subject.models else "the step calls no model that perfnb can see"


def without_cuda(subject: Subject) -> str:
    """Why what acts on CUDA does not apply."""
    return "" if "cuda" in subject.kinds else "the step does not run on CUDA"


def device_kind(subject: Subject) -> str:
    """The kind of device that computes the step."""
    return next((kind for kind in sorted(subject.kinds) if kind != "cpu"), "cpu")


def always(on: Callable[[Subject], AbstractContextManager[Any]]) -> Callable[[Subject], Any]:
    """How to prepare a lever that needs no preparing."""

    @contextmanager
    def prepared(subject: Subject) -> Iterator[Switch]:
        yield lambda: on(subject)

    return prepared


@contextmanager
def attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of an object itself, and take it away again."""
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
def forward_within(subject: Subject, context: Switch) -> Iterator[None]:
    """Run the models' forward, and nothing else, within a context."""

    def inside(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with context():
                return forward(*args, **kwargs)

        return run

    with ExitStack() as stack:
        for model in subject.models.values():
            stack.enter_context(attribute(model, "forward", inside(model.forward)))
        yield


def for_models(*lines: str) -> Callable[[Subject], list[str]]:
    """Code with these lines for each model, whose name ``{0}`` stands for; a line without it comes once, at the end.

    Comments where a model is in no variable.
    """

    def code(subject: Subject) -> list[str]:
        if not subject.models:
            return []
        each = [written(line, name, model) for name, model in subject.models.items() for line in lines if "{0}" in line]
        return each + [line for line in lines if "{0}" not in line]

    return code


def written(line: str, name: str | None, value: Any) -> str:
    """A line with the name of a value for ``{0}``; a comment about its class if perfnb knows no name."""
    if name is not None and is_named(name, value):
        return line.format(name)
    return "# with your " + type(value).__name__ + ": " + line.format(type(value).__name__.lower())


def is_named(name: str, value: Any) -> bool:
    """Whether a name is an expression of the user's: a variable, an attribute, or an item; not just the class."""
    if name == type(value).__name__ or "<" in name:
        return False
    try:
        found = ast.parse(name, mode="eval").body
    except SyntaxError:
        return False
    while isinstance(found, (ast.Attribute, ast.Subscript)):
        found = found.value
    return isinstance(found, ast.Name)


def lines_of(lever: Lever, subject: Subject) -> list[str]:
    """The lines that keep a lever, under a comment that says where its names exist, unless they are global."""
    lines = lever.code(subject)
    function = getattr(subject.step, "__func__", subject.step)
    known = getattr(function, "__globals__", None)
    name = getattr(function, "__qualname__", "")
    if known is None or str(getattr(function, "__module__", "")).startswith("perfnb."):
        return lines
    loader = [] if subject.loader is None or subject.loader[0] is None else [subject.loader[0]]
    roots = {re.split(r"[.\[]", each)[0] for each in (*subject.models, *subject.optimizers, *loader)}
    words = {word for line in lines if not line.startswith("#") for word in re.findall(r"\w+", line)}
    local = sorted(root for root in roots & words if root not in known)
    if not local:
        return lines
    owner, _, own = name.rpartition(".<locals>.")
    where = f"inside {owner}, where {own} finds" if owner else f"where {own} finds"
    return [f"# {where} {' and '.join(local)}:", *lines]
