"""Microseconds as a Chrome trace writes them, made nanoseconds without losing a digit."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal, InvalidOperation, localcontext
from typing import Any

import numpy as np

from perfnb.trace.columns import Ints, plain_floats, plain_ints

#: Below this many microseconds a float64 tells neighbouring nanoseconds apart.
_FINE_US = 2.0**43
_LEAST_NS, _MOST_NS = -(2**63), 2**63 - 1
_MOST_WHOLE_US = _MOST_NS // 1000
_FAR_US = Decimal(10**17)
#: Above this many microseconds a float64 moves in quarters, which some writers shorten to one decimal.
_COARSE_US = 2**50
_QUARTERS_NS = np.array([0, 200, 250, 500, 750, 800])


def quick_nanoseconds(microseconds: Sequence[Any]) -> Ints | None:
    """Exact nanoseconds of times as int, float or text, or ``None`` where only `exact_nanoseconds` can tell."""
    whole = plain_ints(microseconds)
    if whole is not None:
        fits = not len(whole) or -_MOST_WHOLE_US <= whole.min() <= whole.max() <= _MOST_WHOLE_US
        return whole * 1000 if fits else None
    try:
        times = plain_floats(microseconds)
        if times is None:
            times = np.array(microseconds, dtype=np.float64)
    except (ValueError, OverflowError):
        return None
    if not (np.abs(times) < _FINE_US).all():
        return None
    # In two parts: a product with 1000 would be rounded to less than a nanosecond's worth of digits.
    whole_us = np.trunc(times)
    return whole_us.astype(np.int64) * 1000 + np.rint((times - whole_us) * 1000).astype(np.int64)


def exact_nanoseconds(microseconds: Sequence[Decimal | int]) -> Ints:
    """Nanoseconds of times that kept every digit; below a nanosecond they are rounded.

    Raises
    ------
    ValueError
        If a time is no number or does not fit into int64; it is the error's only argument.
    """
    times = []
    with localcontext(Context(prec=60)):
        for value in microseconds:
            try:
                inside = -_FAR_US < value < _FAR_US  # asked before it is made an int, which could have a million digits
            except InvalidOperation:
                inside = False
            time = round(value * 1000) if inside else _MOST_NS + 1
            if not _LEAST_NS <= time <= _MOST_NS:
                raise ValueError(f"{Decimal(value):.6g}")
            times.append(time)
    return np.array(times, dtype=np.int64)


def resolution(*columns: Ints) -> int:
    """The resolution of a file's times in ns: 1 for full digits, 1000 where all are whole microseconds."""
    unit = 1000
    for times in columns:
        if unit > 1 and len(times):
            unit = int(np.gcd(unit, np.gcd.reduce(times % 1000)))
    starts = columns[0]
    if 1 < unit < 1000 and starts.min() > _COARSE_US * 1000 and np.isin(starts % 1000, _QUARTERS_NS).all():
        return 250
    return unit
