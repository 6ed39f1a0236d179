"""Decide whether results are still good enough, based on losses and on limits for losses and resources."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfnb.arguments import shown, storable

#: Without a limit, the candidate's loss may exceed the baseline's loss by this share.
SLACK = 1e-3

#: The keys of `limits` that are not losses. They are measured for the candidate, and smaller is better.
RESOURCES = ("peak_memory_bytes", "median_ms", "p95_ms")
#: The loss that is used without a quality function: the largest difference between the steps' return values.
DIFFERENCE = "difference"
_MEASURED = {*RESOURCES, "throughput_per_s", "utilisation", "flops", "flops_per_s"}
_BOTH = {"baseline", "candidate"}
_EXAMPLE = "{'loss': 0.31}"


@dataclass(frozen=True)
class Loss:
    """A loss of quality; smaller is better."""

    name: str
    candidate: float  # a value that is not finite, even negative infinity, counts as worse than any limit
    baseline: float | None = None  # the baseline's loss, if known
    limit: float | None = None  # the largest accepted value, if one was given

    unsure = False  # a loss has no interval that could contain its limit

    @property
    def largest(self) -> float | None:
        """The largest accepted value: the limit, or without a limit the baseline's loss plus a share of `SLACK`.

        It is ``None`` if both are unknown.
        """
        if self.limit is not None:
            return self.limit
        if self.baseline is None or not math.isfinite(self.baseline):
            return None
        return self.baseline + SLACK * abs(self.baseline)

    @property
    def exceeded(self) -> bool:
        """Whether the candidate's loss exceeds the largest accepted value."""
        if not math.isfinite(self.candidate):
            return True
        return self.largest is not None and self.candidate > self.largest


def require_quality(given: Any) -> None:
    """Raise an error if the quality function is invalid, before anything runs.

    Raises
    ------
    TypeError
    """
    if given is None:
        return
    if not callable(given):
        kind = type(given).__name__
        raise TypeError(f"quality must be a function without arguments, not {kind}: pass quality, not quality().")
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):  # some C functions have no signature
        return
    try:
        signature.bind()
    except TypeError as error:
        raise TypeError(f"quality must be a function without arguments: {error}.") from None


def limits_of(given: Any, *, judged: bool, profiled: bool) -> dict[str, float]:
    """Return the largest accepted values by name, after checking whatever can be checked before anything runs.

    If `judged` is true, a quality function will return losses, whose names are not known yet. If `profiled` is true,
    memory will be measured.

    Raises
    ------
    TypeError, ValueError
        If a limit is invalid, or if it applies to a quantity that will not be measured.
    """
    limits = _numbers({} if given is None else given, "limits", "limits must be a mapping such as {'loss': 0.32}")
    for name, limit in limits.items():
        if not math.isfinite(limit):
            raise ValueError(f"the limit of {shown(name)} must be a finite number, not {limit}.")
        if not judged and name not in (*RESOURCES, DIFFERENCE):
            near = difflib.get_close_matches(name, (*RESOURCES, DIFFERENCE), n=1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(
                f"limits contains {shown(name)}, which is not measured{meant}: without quality, limits can be set for "
                f"{DIFFERENCE!r}, {', '.join(map(repr, RESOURCES))}."
            )
    if not judged and limits.get(DIFFERENCE, 0.0) < 0:
        raise ValueError(f"the limit of {DIFFERENCE!r} is relative to the largest value and must not be negative.")
    if not profiled and "peak_memory_bytes" in limits:
        raise ValueError("'peak_memory_bytes' can only be limited if memory is measured: pass profile=True.")
    return limits


def losses_of(returned: Any, limits: Mapping[str, float]) -> tuple[Loss, ...]:
    """Check the quality function's return value: the candidate's losses by name, or one such mapping for each side.

    Raises
    ------
    TypeError, ValueError
        If the value is invalid.
    """
    wanted = f"quality must return a mapping of names to numbers such as {_EXAMPLE}"
    if not isinstance(returned, Mapping):
        raise TypeError(f"{wanted}, not {type(returned).__name__}.")
    if len(only := [name for name in _BOTH if isinstance(returned.get(name), Mapping)]) == 1 == len(returned):
        raise ValueError(f"quality returned losses for the {only[0]} only: return {_EXAMPLE}, or losses for both.")
    baseline: dict[str, float] = {}
    if set(returned) == _BOTH and all(isinstance(part, Mapping) for part in returned.values()):
        baseline = _numbers(returned["baseline"], "quality", wanted)
        candidate = _numbers(returned["candidate"], "quality", wanted)
        if baseline.keys() != candidate.keys():
            odd = sorted(baseline.keys() ^ candidate.keys())[0]
            raise ValueError(f"quality returned {shown(odd)} for only one side: return every loss for both sides.")
    else:
        candidate = _numbers(returned, "quality", wanted)
    if not candidate:
        raise ValueError(f"quality returned no losses: it must return at least one loss, such as {_EXAMPLE}.")
    if taken := [name for name in candidate if name in _MEASURED]:
        raise ValueError(
            f"quality returned a loss named {shown(taken[0])}, which perfnb measures itself: use another name."
        )
    return tuple(Loss(name, value, baseline.get(name), limits.get(name)) for name, value in candidate.items())


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
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise TypeError(f"{shown(name)} in {what} must be a number, not {type(value).__name__}.") from error
    return numbers
