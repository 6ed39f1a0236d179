"""What a check of the machine consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from perfnb.system.read.reading import Unread


class NotRead(Exception):
    """A fact that a check needs could not be read; the message says why."""


class Finding(NamedTuple):
    """What a check found."""

    found: str
    verdict: str  # "ok", "attention", "info" or "unknown"
    how: str = ""  # what to do, if that depends on what was found


class Facts:
    """What was read: by name a value, or an `Unread`."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._facts = facts

    def __getitem__(self, name: str) -> Any:
        """A fact.

        Raises
        ------
        NotRead
            If it could not be read.
        """
        value = self._facts.get(name, Unread("not requested"))
        if isinstance(value, Unread):
            raise NotRead(value.why)
        return value

    def get(self, name: str) -> Any:
        """A fact, or ``None`` if it could not be read."""
        value = self._facts.get(name)
        return None if isinstance(value, Unread) else value

    def why(self, name: str) -> str | None:
        """Why a fact could not be read; ``None`` if it was."""
        value = self._facts.get(name, Unread("not requested"))
        return value.why if isinstance(value, Unread) else None


class Check(NamedTuple):
    """A check: its text, and the function that judges what was read, which may raise `NotRead`."""

    name: str
    expected: str
    why: str  # why it matters for step time
    how: str
    judge: Callable[[Facts], Finding]


def counted(count: int, thing: str) -> str:
    """``1 core``, ``2 cores``."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
