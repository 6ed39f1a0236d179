"""Reading answers: numbers, functions and results that a check is given, and hints for the usual slips."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from perfnb.labs.exercise import Facts, Hint, quoted, what_was_raised
from perfnb.results import ABTest

Kind = TypeVar("Kind")


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


def as_flag(answer: Any, name: str) -> bool:
    """The True or False under `name` in an answer that is a mapping; raises `Hint` for anything else."""
    if not isinstance(answer.get(name), (bool, np.bool_)):
        raise Hint(f"{name} must be True or False.")
    return bool(answer[name])


def as_word(answer: Any, name: str, contents: str) -> str:
    """The text under `name` in a mapping with the given contents; raises `Hint` for anything else."""
    if not isinstance(answer, Mapping) or not isinstance(answer.get(name), str):
        raise Hint(f"The answer must be a dictionary with {contents}.")
    word: str = answer[name]
    return word


def require(given: Any, kind: type[Kind], otherwise: str) -> Kind:
    """The given value if it is of that kind; otherwise raises `Hint` with the given words."""
    if not isinstance(given, kind):
        raise Hint(otherwise)
    return given


def as_function(answer: Any, called: str) -> Callable[..., Any]:
    """The answer, if it is callable; `called` shows how it will be called. Raises `Hint` for anything else."""
    if not callable(answer):
        raise Hint(f"Give the function itself, without calling it; the check calls {called}.")
    function: Callable[..., Any] = answer
    return function


def require_test(given: Any, called: str = "test") -> ABTest:
    """The given value if it is a `perfnb.ab_test` result; raises `Hint` for anything else."""
    return require(given, ABTest, f"Pass the test as well: test={called}, the result of perfnb.ab_test.")


def ratio_of(given: Any) -> Facts:
    """The ratio and interval of an `ab_test`; raises `Hint` if it has none."""
    test = require_test(given)
    if test.ratio_ci is None:
        raise Hint("The test ran too few pairs for a result; give it a larger budget_s.")
    return {"ratio": float(test.ratio), "ratio_ci": [float(end) for end in test.ratio_ci]}


def result_of(function: Callable[..., Any], *arguments: Any) -> float:
    """The number that the reader's function returns; raises `Hint` for anything else."""
    return as_number(outcome(function, *arguments), "The result of your function")


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


def all_close(values: Iterable[float], wanted: Iterable[float], relative: float = 1e-9) -> bool:
    """Whether every value is close to its counterpart.

    What a hint says of a function holds for all cases that the check tried: one number can match by coincidence.
    """
    return all(close(value, right, relative) for value, right in zip(values, wanted, strict=True))


def slip(value: float, wanted: float, relative: float, otherwise: str = "") -> str:
    """A hint for the common slip that comes closest (percent, inverse, factor of two, unit), or else `otherwise`."""
    if wanted and value:
        slips = [(factor * wanted, words) for factor, words in _SLIPS]
        slips.insert(2, (1 / wanted, "It looks like the inverse: which of the two is the numerator?"))
        nearest, words = min(slips, key=lambda each: abs(value - each[0]))
        if close(value, nearest, relative):
            return words
    return otherwise or "Check it against what the question asks for."


#: Factors of common slips. Of two that come equally close, the first is reported.
_SLIPS = (
    (100.0, "It looks like percent; give a fraction or ratio."),
    (0.01, "It looks like a fraction; give percent."),
    (2.0, "It is twice what it should be: is something counted twice?"),
    (0.5, "It is half of what it should be: is something left out?"),
    (1e3, "It is a thousand times too large: check the units."),
    (1e-3, "It is a thousand times too small: check the units."),
    (1e6, "It is a million times too large: check the units."),
    (1e-6, "It is a million times too small: check the units."),
    (-1.0, "Its sign is wrong: which is subtracted from which?"),
)


class AnswerFigure:
    """A number in an answer beside the right one. Its methods raise a `Hint` if it is not close to it.

    Parameters
    ----------
    said, wanted : float
    relative : float
        Relative tolerance.
    """

    def __init__(self, said: float, wanted: float, relative: float) -> None:
        self._said, self._wanted, self._relative = said, wanted, relative
        self.right = close(said, wanted, relative)

    def not_instead(self, slips: float | Iterable[float], words: str, relative: float | None = None) -> None:
        """Raise these words if the answer is a wrong number that a usual slip gives, or one of several such numbers."""
        values = slips if isinstance(slips, Iterable) else (slips,)
        if not self.right and any(close(self._said, each, relative or self._relative) for each in values):
            raise Hint(words)

    def required(self, words: str, otherwise: str = "", relative: float | None = None) -> None:
        """Raise these words, followed by what `slip` recognises or else `otherwise`, if the answer is wrong."""
        if not self.right:
            raise Hint(f"{words} {slip(self._said, self._wanted, relative or self._relative, otherwise)}".strip())
