"""What an exercise is: facts measured from an answer on the reader's machine, and a judgement of the facts alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from perfnb import ABTest

#: What was measured of an answer: numbers, text, lists and mappings, so that JSON holds them.
Facts = dict[str, Any]


class Hint(Exception):
    """What is wrong with an answer, and where to look; never the answer."""


#: Characters of somebody else's text that a hint repeats.
LONGEST_QUOTE = 80


def quoted(value: Any, longest: int = LONGEST_QUOTE) -> str:
    """The repr of an answer, short and printable, even if its class has a repr that raises."""
    try:
        text = repr(value)
    except (Exception, SystemExit):
        return f"a {type(value).__name__} that cannot be shown"
    return _short(text, longest)


def what_was_raised(error: BaseException) -> str:
    """An exception from the reader's code in a few words, even if its own text cannot be had."""
    try:
        text = str(error)
    except (Exception, SystemExit):
        text = ""
    return _short(f"{type(error).__name__}: {text}".removesuffix(": "), 300)


def printable(text: str, longest: int = LONGEST_QUOTE) -> str:
    """Somebody else's text, short, on one line, and without what would steer a terminal."""
    return _short(text, longest).replace("\n", " ")


def _short(text: str, longest: int) -> str:
    cut = text if len(text) <= longest else f"{text[: longest - 3]}..."
    return "".join(each if each.isprintable() or each == "\n" else "?" for each in cut)


@dataclass(frozen=True)
class Exercise:
    """One exercise of a lab.

    Attributes
    ----------
    number : str
        Lab and place, such as ``2.3``.
    title : str
    measure : callable
        ``measure(answer, **evidence)`` gives the facts; it runs the reader's code where that is the answer.
    judge : callable
        ``judge(facts)`` raises `Hint` unless they are right. It runs nothing of the reader's, so that a teacher can
        repeat it on the facts alone.
    accepted : str
        The word for an answer that passes: ``noted`` for a prediction, of which only the form is judged.
    doubts : callable, optional
        ``doubts(facts)`` says why a right answer rests on a measurement that went wrong; empty where it did not.
    timed : bool
        Whether a right answer can be refused on a machine that is busy with other things, for times are judged.
    """

    number: str
    title: str
    measure: Callable[..., Facts]
    judge: Callable[[Facts], None]
    accepted: str = "right"
    doubts: Callable[[Facts], str] | None = None
    timed: bool = False


def as_number(value: Any, what: str) -> float:
    """A finite number, also from a tensor, array or pandas scalar.

    Raises
    ------
    Hint
        If it is something else.
    """
    if value is None or value is ...:
        raise Hint(f"{what} has no value yet.")
    if isinstance(value, (bool, str, bytes)):
        raise Hint(f"{what} must be a number, not {quoted(value)}.")
    try:
        number = float(value)
    except OverflowError:
        raise Hint(f"{what} is too large to be a measurement.") from None
    except (Exception, SystemExit):
        raise Hint(f"{what} must be one number, not a {type(value).__name__}.") from None
    if not math.isfinite(number):
        raise Hint(f"{what} is {number}, which is no measurement.")
    return number


def as_numbers(answer: Any, names: tuple[str, ...]) -> dict[str, float]:
    """A mapping with one number for each of `names`; raises `Hint` for anything else."""
    if not isinstance(answer, Mapping):
        raise Hint(f"The answer must be a dictionary with the keys {', '.join(names)}.")
    missing = [name for name in names if name not in answer]
    if missing:
        raise Hint(f"The dictionary lacks {', '.join(missing)}.")
    return {name: as_number(answer[name], name) for name in names}


def as_function(answer: Any, called: str) -> Callable[..., Any]:
    """Something that can be called as `called` tells; raises `Hint` for anything else."""
    if not callable(answer):
        raise Hint(f"Give the function itself, without calling it; it will be called as {called}.")
    function: Callable[..., Any] = answer
    return function


def require_test(given: Any, called: str = "test") -> ABTest:
    """What was given, if it is the result of `perfnb.ab_test`; raises `Hint` for anything else."""
    if not isinstance(given, ABTest):
        raise Hint(f"Give the test as well: test={called}, what perfnb.ab_test returned.")
    return given


class Flag:
    """A true or false that came from a file: unlike Python's own, it is no number."""

    def __init__(self, value: bool) -> None:
        self._value = value

    def __bool__(self) -> bool:
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (bool, Flag)) and bool(other) == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return repr(self._value)


def flagged(value: Any) -> Any:
    """What JSON holds, with a `Flag` for each true and false: arithmetic on one raises `TypeError`."""
    if isinstance(value, dict):
        return {name: flagged(one) for name, one in value.items()}
    if isinstance(value, list):
        return [flagged(one) for one in value]
    return Flag(value) if isinstance(value, bool) else value


def is_false(value: Any) -> bool:
    """Whether a fact is ``False``, and not just empty, zero or missing."""
    return isinstance(value, (bool, Flag)) and not value


def all_there(cases: Any, count: int, *, or_more: bool = False) -> Any:
    """The cases of a check, a list or a mapping, if there are `count` of them; raises `Hint` otherwise.

    A check always measures the same number of cases. Facts with fewer come from a file that somebody changed, and a
    judge that went through an empty list would accept them.
    """
    if not isinstance(cases, (list, dict)) or len(cases) < count or (len(cases) > count and not or_more):
        raise Hint("The facts are incomplete.")
    return cases


def ratio_of(given: Any) -> Facts:
    """The ratio and interval of an `ab_test`; raises `Hint` where there are none."""
    test = require_test(given)
    if test.ratio_ci is None:
        raise Hint("The test ran too few pairs to say anything; give it a larger budget_s.")
    return {"ratio": float(test.ratio), "ratio_ci": [float(end) for end in test.ratio_ci]}


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the reader's function returns; an exception in it becomes a `Hint`."""
    try:
        return function(*arguments)
    except Hint:
        raise
    except (Exception, SystemExit) as error:
        raise Hint(f"Your code raised {what_was_raised(error)}") from error


def close(value: float, wanted: float, relative: float) -> bool:
    """Whether `value` lies within a share `relative` of `wanted`."""
    return math.isclose(value, wanted, rel_tol=relative, abs_tol=1e-12)


def slip(value: float, wanted: float, relative: float, otherwise: str = "") -> str:
    """A hint for the usual slips: a factor of two, percent for a share, a unit, the inverse; else `otherwise`."""
    if wanted and value:
        for factor, words in _SLIPS:
            if close(value, factor * wanted, relative):
                return words
        if close(value * wanted, 1.0, relative):
            return "It looks like the inverse: which of the two stands above the line?"
    return otherwise or "It does not follow from the measurement; look again at what the question asks for."


_SLIPS = (
    (2.0, "It is twice what it should be: is something counted twice?"),
    (0.5, "It is half of what it should be: is something left out?"),
    (100.0, "It looks like percent where a share or ratio is asked for."),
    (0.01, "It looks like a share where percent is asked for."),
    (1e3, "It is a thousand times too large: look at the units."),
    (1e-3, "It is a thousand times too small: look at the units."),
    (1e6, "It is a million times too large: look at the units."),
    (1e-6, "It is a million times too small: look at the units."),
    (-1.0, "Its sign is wrong: which is subtracted from which?"),
)
