"""Reading answers: numbers, functions and results that a check is given, and hints for the usual slips."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from perfnb import Profile, Timing
from perfnb.labs.exercise import Facts, Hint, all_there, quoted, what_was_raised
from perfnb.results import ABTest, ArchitectureComparison, Leaks, Ranks, Roofline, ScalingStudy

Kind = TypeVar("Kind")

#: How a check asks for a result that its cell passes to it.
REQUESTS: dict[type, str] = {
    ABTest: "Pass the test as well: test=NAME, the result of perfnb.ab_test.",
    ArchitectureComparison: "Pass a comparison, as from perfnb.compare_architectures.",
    Leaks: "Pass the report as well: leaks=leaks, the result of perfnb.find_leaks.",
    Profile: "Pass a profile, from perfnb.profile_step or bound by %%profile_step --into NAME: profile=p.",
    Ranks: "Pass the ranks, as perfnb.load returned them for both files.",
    Roofline: "Pass the roofline as well: roofline=p.roofline.",
    ScalingStudy: "Pass the study as well: study=study, the result of perfnb.scaling_study.",
    Timing: "Pass the timings as well: the check also needs the results of perfnb.time_step.",
}


def evidence(given: Any, kind: type[Kind]) -> Kind:
    """The given result if it is of a kind in `REQUESTS`; otherwise raises the `Hint` that asks for it."""
    if not isinstance(given, kind):
        raise Hint(REQUESTS[kind])
    return given


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


def as_fields(answer: Any, **kinds: type) -> Facts:
    """The fields of an answer that is a dictionary, each a number (``float``), text (``str``) or ``bool``.

    Raises
    ------
    Hint
        If it is anything else, a field is missing or has the wrong type.
    """
    if not isinstance(answer, Mapping):
        raise Hint(f"The answer must be a dictionary with the keys {', '.join(kinds)}.")
    if missing := [name for name in kinds if name not in answer]:
        raise Hint(f"The dictionary is missing {', '.join(missing)}.")
    fields: Facts = {}
    for name, kind in kinds.items():
        value = answer[name]
        if kind is bool and isinstance(value, np.bool_):
            value = bool(value)
        if kind is not float and not isinstance(value, kind):
            raise Hint(f"{name} must be {'True or False' if kind is bool else 'text in quotes'}.")
        fields[name] = as_number(value, name) if kind is float else value
    return fields


def as_pair(returned: Any, what: str) -> list[float]:
    """The two numbers that the reader's function returned; `what` names them. Raises `Hint` for anything else."""
    if not isinstance(returned, Iterable) or len(pair := list(returned)) != 2:
        raise Hint(f"Return two numbers: {what}.")
    return [as_number(number, "A number that your function returns") for number in pair]


def as_function(answer: Any, called: str) -> Callable[..., Any]:
    """The answer, if it is callable; `called` shows how it will be called. Raises `Hint` for anything else."""
    if not callable(answer):
        raise Hint(f"Give the function itself, without calling it; the check calls {called}.")
    function: Callable[..., Any] = answer
    return function


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """The return value of the reader's function; an exception in it becomes a `Hint`."""
    try:
        return function(*arguments)
    except Hint:
        raise
    except (Exception, SystemExit) as error:
        raise Hint(f"Your code raised {what_was_raised(error)}") from error


def result_of(function: Callable[..., Any], *arguments: Any) -> float:
    """The number that the reader's function returns; raises `Hint` for anything else."""
    return as_number(outcome(function, *arguments), "The result of your function")


def tried(function: Callable[..., Any], cases: Iterable[Sequence[Any]], right: Callable[..., float]) -> list[Facts]:
    """For each case (the arguments, as ``sizes``), the number that the reader's function returns and the right one."""
    return [{"sizes": list(sizes), "said": result_of(function, *sizes), "wanted": right(*sizes)} for sizes in cases]


def ab_facts(test: Any) -> Facts:
    """What checks ask of an `ab_test`; raises `Hint` if it has no ratio."""
    given = evidence(test, ABTest)
    if given.ratio_ci is None:
        raise Hint("The test ran too few pairs for a result; give it a larger budget_s.")
    return {
        "ratio": float(given.ratio),
        "ratio_ci": [float(end) for end in given.ratio_ci],
        "check": None if given.check is None else str(given.check),
    }


def judge_checked(check: str | None) -> None:
    """Raise a `Hint` unless an `ab_test` compared the results of its two steps and found them equal."""
    if check is None:
        raise Hint("The test did not compare the results: pass check=1e-3, and let both steps return the loss.")
    if check:
        raise Hint(
            f"The two steps of the test return different results: {check.rstrip('.')}. Do both models start from the "
            "same weights, each with its own optimizer?"
        )


def close(value: float, wanted: float, relative: float, absolute: float = 1e-12) -> bool:
    """Whether `value` is within a relative or absolute tolerance of `wanted`."""
    return math.isclose(value, wanted, rel_tol=relative, abs_tol=absolute)


def usual_slip(value: float, wanted: float, relative: float, otherwise: str = "") -> str:
    """A hint for the common slip that comes closest (percent, inverse, factor of two, unit), or else `otherwise`."""
    if wanted and value:
        slips = [(factor * wanted, words) for factor, words in _SLIPS]
        slips.insert(2, (1 / wanted, "It looks like the inverse: which of the two is the numerator?"))
        nearest, words = min(slips, key=lambda slip: abs(value - slip[0]))
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


class Number:
    """A number in an answer next to the right one. Unless it is close to it, `slip` and `wrong` raise a `Hint`.

    Parameters
    ----------
    said : float
    wanted : float or several
        The right number, or several of which any is right.
    within : float
        Relative tolerance.
    about : str
        How every hint begins, such as ``"share:"``.
    absolute : float
        Absolute tolerance, if the relative one is narrower.
    """

    def __init__(
        self, said: float, wanted: float | Sequence[float], within: float, about: str = "", absolute: float = 1e-12
    ) -> None:
        every = wanted if isinstance(wanted, Sequence) else (wanted,)
        self._said, self._wanted, self._about, self._tolerances = said, every[0], about, (within, absolute)
        self.right = self._near(every)

    def slip(self, values: float | Iterable[float], words: str, within: float | None = None) -> None:
        """Raise these words if the answer is the number, or one of several, to which a usual slip leads."""
        every = values if isinstance(values, Iterable) else (values,)
        if not self.right and self._near(every, *(() if within is None else (within,))):
            raise Hint(f"{self._about} {words}".strip())

    def wrong(self, words: str = "", otherwise: str = "", within: float | None = None) -> None:
        """Raise these words, followed by what `usual_slip` recognises or else `otherwise`, if the answer is wrong."""
        if not self.right:
            slip = usual_slip(self._said, self._wanted, within or self._tolerances[0], otherwise)
            raise Hint(" ".join(filter(None, (self._about, words, slip.strip()))))

    def _near(self, values: Iterable[float], *tolerances: float) -> bool:
        return any(close(self._said, value, *(tolerances or self._tolerances)) for value in values)


class Numbers:
    """What a function returned for every case of a check, next to what is right.

    What a hint says of a function holds for all of the cases: one number can match by coincidence.
    """

    def __init__(self, cases: Any, count: int, within: float, absolute: float = 1e-12) -> None:
        self._cases = all_there(cases, count)
        self._tolerances = within, absolute
        self.said = [case["said"] for case in self._cases]
        self.right = self._are([case["wanted"] for case in self._cases])

    def slip(self, values: Callable[[Facts], float], words: str) -> None:
        """Raise these words if not all answers are right, and each is the number to which a slip leads in its case."""
        if not self.right and self._are(map(values, self._cases)):
            raise Hint(words)

    def _are(self, values: Iterable[float]) -> bool:
        return all(close(said, value, *self._tolerances) for said, value in zip(self.said, values, strict=True))
