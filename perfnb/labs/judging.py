"""Helpers that judge facts and raise hints for wrong numbers and common mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from perfnb.labs.exercise import Facts, Hint


def hint_if(wrong: Any, words: str) -> None:
    """Raise a `Hint` with the given text if `wrong` is true."""
    if wrong:
        raise Hint(words)


def all_there(cases: Any, count: int, *, or_more: bool = False) -> Any:
    """Return the cases of a check (a list or a mapping), or raise `Hint` unless there are `count` of them.

    A check always measures the same number of cases. If there are fewer, somebody has edited the file, and a loop over
    an empty list would accept any answer.
    """
    if not isinstance(cases, (list, dict)) or len(cases) < count or (len(cases) > count and not or_more):
        raise Hint("The facts are incomplete.")
    return cases


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
    """Check whether `value` is within a relative or absolute tolerance of `wanted`."""
    return math.isclose(value, wanted, rel_tol=relative, abs_tol=absolute)


def usual_slip(value: float, wanted: float, relative: float, otherwise: str = "") -> str:
    """Return a hint for the common mistake that explains the value best, or `otherwise` if none does.

    The mistakes are percentages, inverses, factors of two, and wrong units.
    """
    if wanted and value:
        slips = [(factor * wanted, words) for factor, words in _SLIPS]
        slips.insert(2, (1 / wanted, "It looks like the inverse: which of the two is the numerator?"))
        nearest, words = min(slips, key=lambda slip: abs(value - slip[0]))
        if close(value, nearest, relative):
            return words
    return otherwise or "Check it against what the question asks for."


#: Factors by which common mistakes change a number. If two explain it equally well, the first one is reported.
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
    """A number in an answer and the right number.

    If the two are not close to each other, `slip` and `wrong` raise a `Hint`.

    Parameters
    ----------
    said : float
    wanted : float or several
        The right number, or several numbers if any of them is accepted.
    within : float
        The relative tolerance.
    about : str
        The beginning of every hint, such as ``"share:"``.
    absolute : float
        The absolute tolerance, which applies if the relative tolerance is narrower.
    """

    def __init__(
        self, said: float, wanted: float | Sequence[float], within: float, about: str = "", absolute: float = 1e-12
    ) -> None:
        every = wanted if isinstance(wanted, Sequence) else (wanted,)
        self._said, self._wanted, self._about, self._tolerances = said, every[0], about, (within, absolute)
        self.right = self._near(every)

    def slip(self, values: float | Iterable[float], words: str, within: float | None = None) -> None:
        """Raise a `Hint` with this text if the answer is one of the numbers that a common mistake leads to."""
        every = values if isinstance(values, Iterable) else (values,)
        if not self.right and self._near(every, *(() if within is None else (within,))):
            raise Hint(f"{self._about} {words}".strip())

    def wrong(self, words: str = "", otherwise: str = "", within: float | None = None) -> None:
        """Raise a `Hint` if the answer is wrong.

        The hint consists of this text and the mistake that `usual_slip` recognises, or `otherwise` if it recognises
        none.
        """
        if not self.right:
            slip = usual_slip(self._said, self._wanted, within or self._tolerances[0], otherwise)
            raise Hint(" ".join(filter(None, (self._about, words, slip.strip()))))

    def _near(self, values: Iterable[float], *tolerances: float) -> bool:
        return any(close(self._said, value, *(tolerances or self._tolerances)) for value in values)


class Numbers:
    """The numbers that a function returned for every case of a check, and the right numbers.

    A hint is only raised if it fits all of the cases, because a single number can match by coincidence.
    """

    def __init__(self, cases: Any, count: int, within: float, absolute: float = 1e-12) -> None:
        self._cases = all_there(cases, count)
        self._tolerances = within, absolute
        self._said = [case["said"] for case in self._cases]
        self.right = self._are([case["wanted"] for case in self._cases])

    def slip(self, values: Callable[[Facts], float], words: str) -> None:
        """Raise a `Hint` with this text if the mistake explains the answer in every case, and some answer is wrong."""
        if not self.right and self._are(map(values, self._cases)):
            raise Hint(words)

    def _are(self, values: Iterable[float]) -> bool:
        return all(close(said, value, *self._tolerances) for said, value in zip(self._said, values, strict=True))


class Lists:
    """The lists of numbers that a function returned for every case of a check, and the right lists."""

    def __init__(self, cases: Any, count: int, right: Callable[[Facts], Sequence[float]], within: float = 1e-6) -> None:
        self._cases, self._within = all_there(cases, count), within
        self.right = self._are(right)

    def slip(self, values: Callable[[Facts], Sequence[float]], words: str) -> None:
        """Raise a `Hint` with this text if the mistake explains the lists of every case."""
        hint_if(not self.right and self._are(values), words)

    def wrong(self, words: str) -> None:
        """Raise a `Hint` with this text if the lists are not right."""
        hint_if(not self.right, words)

    def _are(self, values: Callable[[Facts], Sequence[float]]) -> bool:
        return all(_same(case["said"], values(case), self._within) for case in self._cases)


def _same(said: Sequence[float], wanted: Sequence[float], within: float) -> bool:
    if len(said) != len(wanted) or not said:
        return False
    return all(close(one, other, within, within) for one, other in zip(said, wanted, strict=True))
