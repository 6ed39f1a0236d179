"""Convert a notebook cell's compiled code to a step, and its ``for`` clause to batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any, NamedTuple

#: The name under which a clause's code gets its batch.
BATCH = "__perfnb_batch__"


class Clause(NamedTuple):
    """A compiled ``for TARGET in ITERABLE`` clause."""

    #: Code that binds a batch, named `BATCH`, to the target.
    assign: CodeType
    #: Code that evaluates the iterable.
    iterable: CodeType
    text: str


def step_of(body: CodeType, namespace: dict[str, Any], assign: CodeType | None) -> Callable[..., None]:
    """Return a step that binds the batch to the clause's target with `assign` and then runs `body` in `namespace`."""

    def step(*batch: Any) -> None:
        __tracebackhide__ = True
        if assign is not None:
            # The batch's internal name must not appear in the user's namespace.
            bound = {BATCH: batch[0]}
            exec(assign, namespace, bound)
            del bound[BATCH]
            namespace.update(bound)
        exec(body, namespace)

    return step


def batches_of(
    clause: Clause, namespace: dict[str, Any], refuse: Callable[[str], Exception]
) -> Callable[[], Iterable[Any]]:
    """Return a function that evaluates a clause's iterable again whenever the batches restart.

    This is required for iterators such as ``enumerate(loader)``.
    """

    def batches() -> Iterable[Any]:
        __tracebackhide__ = True
        result: Iterable[Any] = eval(clause.iterable, namespace)
        if not hasattr(type(result), "__iter__") and not hasattr(type(result), "__getitem__"):
            raise refuse(f"{clause.text!r} yields no batches: {type(result).__name__} is not iterable.")
        return result

    return batches
