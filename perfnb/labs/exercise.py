"""What an exercise is: facts measured from an answer, and a judgement based on those facts alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from perfnb import ABTest

#: What was measured from an answer: numbers, text, lists and mappings, so that JSON can hold them.
Facts = dict[str, Any]


class Hint(Exception):
    """What is wrong with an answer and where to look, but never the answer itself."""


#: Longest piece of somebody else's text that a hint repeats, in characters.
LONGEST_QUOTE = 80


def quoted(value: Any, longest: int = LONGEST_QUOTE) -> str:
    """Short, printable repr of an answer, even if its own repr raises."""
    try:
        text = repr(value)
    except (Exception, SystemExit):
        return f"a {type(value).__name__} that cannot be shown"
    return _short(text, longest)


def what_was_raised(error: BaseException) -> str:
    """Short description of an exception from the reader's code, even if its own text cannot be read."""
    try:
        text = str(error)
    except (Exception, SystemExit):
        text = ""
    return _short(f"{type(error).__name__}: {text}".removesuffix(": "), 300)


def printable(text: str, longest: int = LONGEST_QUOTE) -> str:
    """Somebody else's text: short, on one line, and without terminal control characters."""
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
        Lab and position, such as ``2.3``.
    title : str
    measure : callable
        ``measure(answer, **evidence)`` returns the facts; it runs the reader's code if that is the answer.
    judge : callable
        ``judge(facts)`` raises `Hint` if they are wrong. It runs none of the reader's code, so a teacher can repeat it
        on the facts alone.
    accepted : str
        The word for an answer that passes: ``noted`` for a prediction, where only the form is judged.
    doubts : callable, optional
        ``doubts(facts)`` says why the measurement behind a right answer is unreliable; empty if it is fine.
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


def as_number(value: Any, what: str) -> float:
    """A finite number; tensors, arrays and pandas scalars are converted.

    Raises
    ------
    Hint
        If it is anything else.
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
        raise Hint(f"{what} is {number}, which cannot be a measurement.")
    return number


def as_numbers(answer: Any, names: tuple[str, ...]) -> dict[str, float]:
    """A mapping with one number for each of `names`; raises `Hint` for anything else."""
    if not isinstance(answer, Mapping):
        raise Hint(f"The answer must be a dictionary with the keys {', '.join(names)}.")
    missing = [name for name in names if name not in answer]
    if missing:
        raise Hint(f"The dictionary is missing {', '.join(missing)}.")
    return {name: as_number(answer[name], name) for name in names}


def as_function(answer: Any, called: str) -> Callable[..., Any]:
    """The answer, if it is callable; `called` shows how it will be called. Raises `Hint` for anything else."""
    if not callable(answer):
        raise Hint(f"Give the function itself, without calling it; the check calls {called}.")
    function: Callable[..., Any] = answer
    return function


def require_test(given: Any, called: str = "test") -> ABTest:
    """The given value if it is a `perfnb.ab_test` result; raises `Hint` for anything else."""
    if not isinstance(given, ABTest):
        raise Hint(f"Pass the test as well: test={called}, the result of perfnb.ab_test.")
    return given


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

    def __repr__(self) -> str:
        return repr(self._value)


def flagged(value: Any) -> Any:
    """JSON content with a `Flag` for each true and false, so that arithmetic on one raises `TypeError`."""
    if isinstance(value, dict):
        return {name: flagged(one) for name, one in value.items()}
    if isinstance(value, list):
        return [flagged(one) for one in value]
    return Flag(value) if isinstance(value, bool) else value


def is_false(value: Any) -> bool:
    """Whether a fact is ``False``, not just empty, zero or missing."""
    return isinstance(value, (bool, Flag)) and not value


def all_there(cases: Any, count: int, *, or_more: bool = False) -> Any:
    """The cases of a check (a list or a mapping), if there are `count` of them; raises `Hint` otherwise.

        A check always measures the same number of cases.     accept them.
    Fewer come from an edited file, and a loop over an empty list would
        accept them.
        accept them.
    """
    if not isinstance(cases, (list, dict)) or len(cases) < count or (len(cases) > count and not or_more):
        raise Hint("The facts are incomplete.")
    return cases


def ratio_of(given: Any) -> Facts:
    """The ratio and interval of an `ab_test`; raises `Hint` if it has none."""
    test = require_test(given)
    if test.ratio_ci is None:
        raise Hint("The test ran too few pairs for a result; give it a larger budget_s.")
    return {"ratio": float(test.ratio), "ratio_ci": [float(end) for end in test.ratio_ci]}


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """The return value of the reader's function; an exception in it becomes a `Hint`."""
    try:
        return function(*arguments)
    except Hint:
        raise
    except (Exception, SystemExit) as error:
        raise Hint(f"Your code raised {what_was_raised(error)}") from error


def close(value: float, wanted: float, relative: float) -> bool:
    """Whether `value` is within a relative tolerance of `wanted`."""
    return math.isclose(value, wanted, rel_tol=relative, abs_tol=1e-12)


def slip(value: float, wanted: float, relative: float, otherwise: str = "") -> str:
    """A hint for common slips (factor of two, percent vs. fraction, unit, inverse), or else `otherwise`."""
    if wanted and value:
        for factor, words in _SLIPS:
            if close(value, factor * wanted, relative):
                return words
        if close(value * wanted, 1.0, relative):
            return "It looks like the inverse: which of the two is the numerator?"
    return otherwise or "Check it against what the question asks for."


_SLIPS = (
    (2.0, "It is twice what it should be: is something counted twice?"),
    (0.5, "It is half of what it should be: is something left out?"),
    (100.0, "It looks like percent; give a fraction or ratio."),
    (0.01, "It looks like a fraction; give percent."),
    (1e3, "It is a thousand times too large: check the units."),
    (1e-3, "It is a thousand times too small: check the units."),
    (1e6, "It is a million times too large: check the units."),
    (1e-6, "It is a million times too small: check the units."),
    (-1.0, "Its sign is wrong: which is subtracted from which?"),
)
