"""Define the parts of a machine check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from perfnb.system.read.reading import Unread, Unreadable


class CheckResult(NamedTuple):
    """The result of a check."""

    found: str
    verdict: str  # "ok", "attention", "info" or "unknown"
    how: str = ""  # the recommendation, if it depends on the result


class SystemFacts:
    """The facts that were read, by name.

    Each fact is a value or an `Unread`. A single `Unread` can also replace all facts.
    """

    def __init__(self, facts: Mapping[str, Any] | Unread) -> None:
        self._facts = facts

    def __getitem__(self, name: str) -> Any:
        """Return a fact.

        Raises
        ------
        Unreadable
            If the fact could not be read.
        """
        why = self.why(name)
        if why is not None:
            raise Unreadable(why)
        return self._read(name)

    def get(self, name: str) -> Any:
        """Return a fact, or ``None`` if it could not be read."""
        value = self._read(name)
        return None if isinstance(value, Unread) else value

    def why(self, name: str) -> str | None:
        """Return the reason why a fact could not be read, or ``None`` if it was read."""
        value = self._read(name)
        return value.why if isinstance(value, Unread) else None

    def _read(self, name: str) -> Any:
        return self._facts if isinstance(self._facts, Unread) else self._facts.get(name, Unread("not requested"))


Judge = Callable[[SystemFacts], CheckResult]


class Check(NamedTuple):
    """A check: its texts, and the function that judges the facts, which may raise `Unreadable`."""

    name: str
    expected: str
    why: str  # the reason why the check matters for step times
    how: str
    judge: Judge


def check(name: str, expected: str, why: str, how: str) -> Callable[[Judge], Check]:
    """Return a decorator that turns a function that judges facts into a check."""
    return lambda judge: Check(name, expected, why, how, judge)


def judged(judge: Judge, facts: SystemFacts) -> CheckResult:
    """Return a function's result, which is unknown if a fact that it needs could not be read."""
    try:
        return judge(facts)
    except Unreadable as error:
        return CheckResult(f"could not be read: {error}", "unknown")
