"""Quality of the candidate: the user's limits and losses, or a comparison of what the two steps return."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any

from perfnb.arguments import shown, storable
from perfnb.experiments.decision import Loss
from perfnb.experiments.report_table import DIFFERENCE, RESOURCES, Quality

_BOTH = {"baseline", "candidate"}
_EXAMPLE = "{'loss': 0.31}"


def require_quality(given: Any) -> None:
    """Reject an invalid quality function before anything runs.

    Raises
    ------
    TypeError
    """
    if given is None:
        return
    if not callable(given):
        kind = type(given).__name__
        raise TypeError(f"quality must be a function of no arguments, not {kind}: pass quality, not quality().")
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):  # some C functions have no signature
        return
    try:
        signature.bind()
    except TypeError as error:
        raise TypeError(f"quality must be a function of no arguments: {error}.") from None


def limits_of(given: Any, *, judged: bool, profiled: bool) -> dict[str, float]:
    """Largest accepted values by name, validated as far as possible before anything runs.

    `judged` says that a quality function will return losses, whose names are not known yet; `profiled`, that memory
    will be measured.

    Raises
    ------
    TypeError, ValueError
        For invalid limits, and for limits on what will not be measured.
    """
    limits = _numbers({} if given is None else given, "limits", "limits must be a mapping such as {'loss': 0.32}")
    for name, limit in limits.items():
        if not math.isfinite(limit):
            raise ValueError(f"the limit of {shown(name)} is {limit}: give a finite value, or leave it out.")
        if not judged and name not in (*RESOURCES, DIFFERENCE):
            raise ValueError(
                f"limits names {shown(name)}, which is not measured{_near(name, (*RESOURCES, DIFFERENCE))}: without "
                f"quality, limits can be set for {DIFFERENCE!r}, {', '.join(map(repr, RESOURCES))}."
            )
    if not judged and limits.get(DIFFERENCE, 0.0) < 0:
        raise ValueError(f"the limit of {DIFFERENCE!r} is relative to the largest value and must not be negative.")
    if not profiled and "peak_memory_bytes" in limits:
        raise ValueError("memory is measured in a profile: remove profile=False, or the limit 'peak_memory_bytes'.")
    return limits


def losses_of(returned: Any, limits: Mapping[str, float]) -> tuple[Loss, ...]:
    """The losses that the quality function returned: the candidate's by name, or such a mapping for each side.

    Raises
    ------
    TypeError, ValueError
        For anything else.
    """
    wanted = f"quality must return a mapping of names to numbers such as {_EXAMPLE}"
    if not isinstance(returned, Mapping):
        raise TypeError(f"{wanted}, not {type(returned).__name__}.")
    if len(only := [name for name in _BOTH if isinstance(returned.get(name), Mapping)]) == 1 == len(returned):
        raise ValueError(f"quality returned losses of the {only[0]} only: return {_EXAMPLE}, or losses of both.")
    baseline: dict[str, float] = {}
    if set(returned) == _BOTH and all(isinstance(part, Mapping) for part in returned.values()):
        baseline = _numbers(returned["baseline"], "quality", wanted)
        candidate = _numbers(returned["candidate"], "quality", wanted)
        if baseline.keys() != candidate.keys():
            odd = sorted(baseline.keys() ^ candidate.keys())[0]
            raise ValueError(f"quality returned {shown(odd)} for only one of the two: return every loss for both.")
    else:
        candidate = _numbers(returned, "quality", wanted)
    if not candidate:
        raise ValueError(f"quality returned no loss: it must return at least one, such as {_EXAMPLE}.")
    if taken := [name for name in candidate if name in _MEASURED]:
        raise ValueError(
            f"quality returned a loss named {shown(taken[0])}, which perfnb measures itself: use another name."
        )
    return tuple(Loss(name, value, baseline.get(name), limits.get(name)) for name, value in candidate.items())


class ComparedResults:
    """Compare what the two steps return, with the tolerance of their dtype, and keep the result."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self.quality = Quality((), "results", "the steps were not compared")

    def __call__(self, first: Any, second: Any) -> None:
        from perfnb.bench.agreement import Difference, holds_numbers, worst_difference

        worst = worst_difference(first, second, self._limit)
        if worst is None or not (holds_numbers(first) and holds_numbers(second)):
            worst = Difference(0.0, "a step returns no tensor or number", known=False)
        if not worst.known:
            self.quality = Quality((), "results", worst.words)
            raise AssertionError(self.quality.said)
        wrong = worst.relative > worst.tolerance
        loss = Loss(DIFFERENCE, worst.relative, limit=worst.tolerance)
        said = worst.words if wrong else ""
        self.quality = Quality((loss,), "results", said, worst.dtype if self._limit is None else "")
        if wrong:
            raise AssertionError(said)


_MEASURED = {*RESOURCES, "throughput_per_s", "utilisation", "flops", "flops_per_s"}


def _numbers(given: Any, what: str, wanted: str) -> dict[str, float]:
    if not isinstance(given, Mapping):
        raise TypeError(f"{wanted}, not {type(given).__name__}.")
    numbers = {}
    for name, value in given.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"names in {what} must be non-empty strings, not {shown(name)}.")
        try:
            if isinstance(value, (str, bytes, bool)):
                raise TypeError
            # A one-element tensor counts as a number.
            numbers[storable(name)] = float(value.detach() if hasattr(value, "detach") else value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"{shown(name)} in {what} must be a number, not {type(value).__name__}.") from error
    return numbers


def _near(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
