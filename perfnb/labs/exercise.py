"""What an exercise is: facts measured from an answer, and a judgement based on those facts alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: What was measured from an answer: numbers, text, lists and mappings, so that JSON can hold them.
Facts = dict[str, Any]


class Hint(Exception):
    """What is wrong with an answer and where to look, but never the answer itself."""


#: Longest piece of somebody else's text that a hint repeats, in characters.
LONGEST_QUOTE = 80


def quoted(value: Any, longest: int = LONGEST_QUOTE) -> str:
    """Short, printable repr of an answer, even if its own repr raises."""
    try:
        return shortened(repr(value), longest)
    except (Exception, SystemExit):
        return f"a {type(value).__name__} that cannot be shown"


def what_was_raised(error: BaseException) -> str:
    """Short description of an exception from the reader's code, even if its own text cannot be read."""
    try:
        text = str(error)
    except (Exception, SystemExit):
        text = ""
    return shortened(f"{type(error).__name__}: {text}".removesuffix(": "), 300)


def shortened(text: str, longest: int = LONGEST_QUOTE) -> str:
    """Somebody else's text: short, and without terminal control characters."""
    cut = text if len(text) <= longest else f"{text[: longest - 3]}..."
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in cut)


@dataclass(frozen=True)
class Exercise:
    """One exercise of a lab.

    Attributes
    ----------
    number : str
        Lab and position, such as ``2.3``.
    title : str
    measure : callable
        ``measure(answer, **evidence)`` returns the facts; it runs the reader's code if that is the answer.
    judge : callable
        ``judge(facts)`` raises `Hint` if they are wrong. It runs no code of the reader, so a teacher can repeat it
        on the facts alone.
    accepted : str
        The word for an answer that passes: ``noted`` for a prediction, where only the form is judged.
    doubts : callable, optional
        ``doubts(facts)`` names why the measurement behind a right answer is unreliable; empty if it is fine.
    timed : bool
        Whether a busy machine can cause a right answer to be rejected, because times are judged.
    """

    number: str
    title: str
    measure: Callable[..., Facts]
    judge: Callable[[Facts], None]
    accepted: str = "right"
    doubts: Callable[[Facts], str] | None = None
    timed: bool = False


class Flag:
    """A true or false read from a file; unlike Python's own, it is not a number."""

    def __init__(self, value: bool) -> None:
        self._value = value

    def __bool__(self) -> bool:
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (bool, Flag)) and bool(other) == self._value

    def __hash__(self) -> int:
        return hash(self._value)


def flagged(value: Any) -> Any:
    """JSON content with a `Flag` for each true and false, so that arithmetic on one raises `TypeError`."""
    if isinstance(value, dict):
        return {name: flagged(part) for name, part in value.items()}
    if isinstance(value, list):
        return [flagged(part) for part in value]
    return Flag(value) if isinstance(value, bool) else value


def is_false(value: Any) -> bool:
    """Whether a fact is ``False``, not just empty, zero or missing."""
    return isinstance(value, (bool, Flag)) and not value
