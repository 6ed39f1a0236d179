"""Exercises, which measure facts about an answer and then judge the answer from those facts alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: The measurements of an answer. They consist of numbers, text, lists and mappings, so they can be saved as JSON.
Facts = dict[str, Any]


class Hint(Exception):
    """Raised to tell the reader what is wrong with an answer and where to look, without revealing the answer."""


#: Maximum length of a quotation in a hint, in characters.
LONGEST_QUOTE = 80


def quoted(value: Any, longest: int = LONGEST_QUOTE) -> str:
    """Return a short, printable repr of an answer, even if the answer's own repr raises."""
    try:
        return shortened(repr(value), longest)
    except (Exception, SystemExit):
        return f"a {type(value).__name__} that cannot be shown"


def what_was_raised(error: BaseException) -> str:
    """Return a short description of an exception from the reader's code, even if its message cannot be read."""
    try:
        text = str(error)
    except (Exception, SystemExit):
        text = ""
    return shortened(f"{type(error).__name__}: {text}".removesuffix(": "), 300)


def shortened(text: str, longest: int = LONGEST_QUOTE) -> str:
    """Shorten a text that does not come from perfnb, and replace its terminal control characters."""
    cut = text if len(text) <= longest else f"{text[: longest - 3]}..."
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in cut)


@dataclass(frozen=True)
class Exercise:
    """One exercise of a lab.

    Attributes
    ----------
    number : str
        The lab and the position of the exercise in it, such as ``2.3``.
    title : str
    measure : callable
        ``measure(answer, **evidence)`` returns the facts. If the answer is code, this function runs it.
    judge : callable
        ``judge(facts)`` raises `Hint` if the answer is wrong. It does not run the reader's code, so a teacher can
        repeat it with only the facts.
    accepted : str
        The word that is printed for an answer that passes. It is ``noted`` for a prediction, because only the form of
        a prediction is judged.
    doubts : callable, optional
        ``doubts(facts)`` explains why the measurement behind a right answer is unreliable. It returns an empty string
        if the measurement is fine.
    timed : bool
        Whether times are judged. If so, a right answer may be rejected on a busy machine.
    """

    number: str
    title: str
    measure: Callable[..., Facts]
    judge: Callable[[Facts], None]
    accepted: str = "right"
    doubts: Callable[[Facts], str] | None = None
    timed: bool = False


class Flag:
    """A boolean read from a file. Unlike Python's ``bool``, it is not a number."""

    def __init__(self, value: bool) -> None:
        self._value = value

    def __bool__(self) -> bool:
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (bool, Flag)) and bool(other) == self._value

    def __hash__(self) -> int:
        return hash(self._value)


def flagged(value: Any) -> Any:
    """Replace every boolean in JSON content with a `Flag`, so that arithmetic on it raises `TypeError`."""
    if isinstance(value, dict):
        return {name: flagged(part) for name, part in value.items()}
    if isinstance(value, list):
        return [flagged(part) for part in value]
    return Flag(value) if isinstance(value, bool) else value


def is_false(value: Any) -> bool:
    """Check whether a fact is ``False`` rather than empty, zero or missing."""
    return isinstance(value, (bool, Flag)) and not value
