"""The first execution of a step: does it hold a whole loop of training?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from perfnb.step.namespace import named_values

#: An optimizer that steps more often than this in one step seems to be in a loop; some methods step a few times.
MOST_STEPS = 8
#: A longer name, as of a key in a dict of optimizers, tells less than the optimizer's class.
_LONGEST_NAME = 60


class Looped(NamedTuple):
    """An optimizer that steps many times in one step."""

    optimizer: str
    times: int


class FirstStep:
    """Context manager around the first execution of a step: counts how often each optimizer steps.

    Parameters
    ----------
    tell : callable
        Told in a few words, while the step still runs, that it seems to be a loop.
    namespace : mapping
        Variables by which optimizers are named; one that is in none is called by its class.
    """

    def __init__(self, tell: Callable[[str], Any], namespace: Mapping[str, Any]) -> None:
        self._tell, self._namespace = tell, namespace
        self._times: Counter[tuple[int, str]] = Counter()
        self._hook: Any = None

    def __enter__(self) -> FirstStep:
        self._hook = register_optimizer_step_post_hook(self._stepped)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._hook.remove()

    @property
    def looped(self) -> Looped | None:
        """The optimizer that stepped most often, if that was too often for one iteration."""
        for key, times in self._times.most_common(1):
            return Looped(self._name(*key), times) if times > MOST_STEPS else None
        return None

    @property
    def note(self) -> str | None:
        """What the user should know, in a few words."""
        found = self.looped
        return None if found is None else f"your step calls {found.optimizer}.step() {found.times:,} times: {_ADVICE}"

    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        key = id(optimizer), type(optimizer).__name__
        self._times[key] += 1
        if self._times[key] == MOST_STEPS + 1:
            self._tell(f"your step has called {self._name(*key)}.step() {MOST_STEPS + 1} times already: {_ADVICE}")

    def _name(self, identity: int, kind: str) -> str:
        """The optimizer as the user wrote it, where that is known."""
        names = (name for name, value in named_values(self._namespace, Optimizer) if id(value) == identity)
        return next((name for name in names if len(name) <= _LONGEST_NAME), kind)


_ADVICE = "profile one iteration, not the whole loop"
