"""What judges say of facts: hints for numbers that are not the right ones, and for the usual slips."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from perfnb.labs.exercise import Facts, Hint


def hint_if(wrong: Any, words: str) -> None:
    """Raise a `Hint` with these words if something is wrong."""
    if wrong:
        raise Hint(words)


def all_there(cases: Any, count: int, *, or_more: bool = False) -> Any:
    """The cases of a check (a list or a mapping), if there are `count` of them; raises `Hint` otherwise.

    A check always measures the same number of cases. Fewer come from an edited file, and a loop over an empty list
    would accept them.
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
        self._said = [case["said"] for case in self._cases]
        self.right = self._are([case["wanted"] for case in self._cases])

    def slip(self, values: Callable[[Facts], float], words: str) -> None:
        """Raise these words if not all answers are right, and each is the number to which a slip leads in its case."""
        if not self.right and self._are(map(values, self._cases)):
            raise Hint(words)

    def _are(self, values: Iterable[float]) -> bool:
        return all(close(said, value, *self._tolerances) for said, value in zip(self._said, values, strict=True))


class Lists:
    """The lists of numbers that a function returned for every case of a check, next to those that are right."""

    def __init__(self, cases: Any, count: int, right: Callable[[Facts], Sequence[float]], within: float = 1e-6) -> None:
        self._cases, self._within = all_there(cases, count), within
        self.right = self._are(right)

    def slip(self, values: Callable[[Facts], Sequence[float]], words: str) -> None:
        """Raise these words if a slip leads to the lists of every case."""
        hint_if(not self.right and self._are(values), words)

    def wrong(self, words: str) -> None:
        """Raise these words if the lists are not right."""
        hint_if(not self.right, words)

    def _are(self, values: Callable[[Facts], Sequence[float]]) -> bool:
        return all(_same(case["said"], values(case), self._within) for case in self._cases)


def _same(said: Sequence[float], wanted: Sequence[float], within: float) -> bool:
    if len(said) != len(wanted) or not said:
        return False
    return all(close(one, other, within, within) for one, other in zip(said, wanted, strict=True))
