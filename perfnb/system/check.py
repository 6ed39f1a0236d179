"""What a check of the machine is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from perfnb.system.read.reading import Unread


class NotRead(Exception):
    """A fact that a check needs could not be read; the message says why."""


class Finding(NamedTuple):
    """What a check found.

    Attributes
    ----------
    found : str
        In words.
    verdict : str
        "ok", "attention", "info" or "unknown".
    how : str
        What to do, where that depends on what was found.
    """

    found: str
    verdict: str
    how: str = ""


class Facts:
    """What was read.

    Parameters
    ----------
    facts : mapping
        By name the value, or an `Unread`.
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._facts = facts

    def __getitem__(self, name: str) -> Any:
        """A fact.

        Raises
        ------
        NotRead
            Where it could not be read.
        """
        value = self._facts.get(name, Unread("nobody asked"))
        if isinstance(value, Unread):
            raise NotRead(value.why)
        return value

    def get(self, name: str) -> Any:
        """A fact, or ``None`` where it could not be read."""
        value = self._facts.get(name)
        return None if isinstance(value, Unread) else value

    def why(self, name: str) -> str | None:
        """Why a fact could not be read; ``None`` where it was."""
        value = self._facts.get(name, Unread("nobody asked"))
        return value.why if isinstance(value, Unread) else None


class Check(NamedTuple):
    """A check: its words, and the function that judges what was read.

    Attributes
    ----------
    name, expected, why, how : str
        What is looked at, what would be good, why it matters for a step's time, and how to change it.
    judge : callable
        Gives a `Finding`, or raises `NotRead`.
    """

    name: str
    expected: str
    why: str
    how: str
    judge: Callable[[Facts], Finding]


def size_words(count: float) -> str:
    """An amount of memory: ``512 B``, ``2.3 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1023.5 or unit == "GiB":
            break
        count /= 1024
    return f"{count:,.0f} {unit}" if count >= 100 or unit == "B" else f"{count:.3g} {unit}"


def counted(count: int, thing: str) -> str:
    """``1 core``, ``2 cores``."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
