"""Read the numbers, dictionaries, functions and results that are passed to a check as answers."""

from __future__ import annotations

import itertools
import linecache
import math
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from perfnb import Profile, Timing
from perfnb.labs.exercise import Facts, Hint, quoted, shortened, what_was_raised
from perfnb.results import ABTest, ArchitectureComparison, Leaks, Ranks, Roofline, ScalingStudy

Kind = TypeVar("Kind")

#: The hint that a check gives if its cell should have passed a result of this type.
REQUESTS: dict[type, str] = {
    ABTest: "Pass the test as well: test=NAME, the result of perfnb.ab_test.",
    ArchitectureComparison: "Pass a comparison, as from perfnb.compare_architectures.",
    Leaks: "Pass the report as well: leaks=leaks, the result of perfnb.find_leaks.",
    Profile: "Pass a profile, from perfnb.profile_step or bound by %%profile_step --into NAME: profile=p.",
    Ranks: "Pass the ranks, as perfnb.load returned them for both files.",
    Roofline: "Pass the roofline as well: roofline=p.roofline.",
    ScalingStudy: "Pass the study as well: study=study, the result of perfnb.scaling_study.",
    Timing: "Pass the timings as the check's cell does: the results of perfnb.time_step.",
}


def evidence(given: Any, kind: type[Kind]) -> Kind:
    """Return the given result if it has the required type, or raise the `Hint` in `REQUESTS` that asks for it."""
    if not isinstance(given, kind):
        raise Hint(REQUESTS[kind])
    return given


def as_number(value: Any, what: str) -> float:
    """Return the value as a finite number, converting tensors, arrays and pandas scalars.

    Raises
    ------
    Hint
        If the value is not a finite number.
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
    """Return the fields of an answer that is a dictionary. Each is a number (``float``), text (``str``) or ``bool``.

    Raises
    ------
    Hint
        If the answer is not a dictionary, or if a field is missing or has the wrong type.
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
    """Return the two numbers that the reader's function returned, or raise a `Hint` if it returned anything else.

    `what` is a description of the two numbers.
    """
    if not isinstance(returned, Iterable) or len(pair := list(returned)) != 2:
        raise Hint(f"Return two numbers: {what}.")
    return [as_number(number, "A number that your function returns") for number in pair]


#: Maximum number of items in a list whose length is not prescribed.
MANY = 1000


def as_numbers(returned: Any, count: int | None, what: str) -> list[float]:
    """Return the list of numbers that the reader's function returned.

    Parameters
    ----------
    returned : object
        A list, tuple, array, tensor or column of a frame.
    count : int or None
        The required number of items. ``None`` accepts a list of any length that is not empty.
    what : str
        The name of the numbers.

    Raises
    ------
    Hint
        If `returned` is anything else.
    """
    asked, most = (f"{count} {what}", count) if count is not None else (what, MANY)
    if returned is None:
        raise Hint("Your function returns nothing yet.")
    if isinstance(returned, (str, bytes, Mapping)) or not isinstance(returned, Iterable):
        raise Hint(f"Return a list of {asked}, not a {type(returned).__name__}.")
    numbers = [as_number(number, "A number in the list") for number in itertools.islice(returned, most + 1)]
    if count is None and not 0 < len(numbers) <= MANY:
        raise Hint(f"Return a list of {what}; yours has {'more than ' + str(MANY) if numbers else 'none'}.")
    if count is not None and len(numbers) != count:
        raise Hint(f"Return {count} {what}, one each; yours are {'more' if len(numbers) > count else len(numbers)}.")
    return numbers


def as_function(answer: Any, called: str) -> Callable[..., Any]:
    """Return the answer if it is callable, and raise a `Hint` if it is not. `called` shows how it will be called."""
    if not callable(answer):
        raise Hint(f"Give the function itself, without calling it; the check calls {called}.")
    function: Callable[..., Any] = answer
    return function


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that the reader wrote. If it raises, raise a `Hint` that quotes the line of the exception."""
    try:
        return function(*arguments)
    except Hint:
        raise
    except (Exception, SystemExit) as error:
        raise Hint(f"Your code raised {what_was_raised(error)}{_in_line(error)}") from error


def _in_line(error: BaseException) -> str:
    """Return the line in the reader's cell that raised an exception, or an empty string if it cannot be determined."""
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in ("perfnb", "torch")
    ]
    if not frames:
        return ""
    cell, line = [each for each in frames if each[0] == frames[0][0]][-1]
    code = linecache.getline(cell, line).strip()
    return f" (line {line} of its cell: {shortened(code)})" if code else ""


def result_of(function: Callable[..., Any], *arguments: Any) -> float:
    """Return the number that the reader's function returns, or raise a `Hint` if it returns anything else."""
    return as_number(outcome(function, *arguments), "The result of your function")


def tried(function: Callable[..., Any], cases: Iterable[Sequence[Any]], right: Callable[..., float]) -> list[Facts]:
    """Call the reader's function and the right one for each case, and return both numbers.

    The arguments of each case are returned as ``sizes``.
    """
    return [{"sizes": list(sizes), "said": result_of(function, *sizes), "wanted": right(*sizes)} for sizes in cases]


def ab_facts(test: Any) -> Facts:
    """Return the figures of an `ab_test` that checks need, or raise a `Hint` if the test has no ratio."""
    given = evidence(test, ABTest)
    if given.ratio_ci is None:
        raise Hint("The test ran too few pairs for a result; give it a larger budget_s.")
    return {
        "ratio": float(given.ratio),
        "ratio_ci": [float(end) for end in given.ratio_ci],
        "check": None if given.check is None else str(given.check),
    }
