"""Check the user's arguments, and reject invalid ones with a clear error message."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

#: The largest count, and the largest number of seconds, that an argument may have.
MOST = 10**9
_LONGEST_SHOWN = 60


def finite(value: object) -> float | None:
    """Convert the value to a float. Return ``None`` if it is not a number or does not fit into a float."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return None
    return number if math.isfinite(number) else None


def require_flag(name: str, value: object) -> None:
    """Raise an error unless the value is a boolean, 0 or 1.

    Raises
    ------
    TypeError
    """
    if not isinstance(value, (bool, int)) or value not in (0, 1):
        raise TypeError(f"{name} must be True or False, not {shown(value)}.")


def require_stacks(value: object) -> None:
    """Raise an error unless the value is a boolean or ``"auto"``.

    Raises
    ------
    TypeError
    """
    if value != "auto" and (not isinstance(value, (bool, int)) or value not in (0, 1)):
        raise TypeError(f'stacks must be True, False or "auto", not {shown(value)}.')


def require_count(name: str, value: object, least: int) -> None:
    """Raise an error unless the value is a whole number from `least` to `MOST`.

    Raises
    ------
    ValueError
    """
    given: Any = value
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not least <= given <= MOST:
        most = f" and at most {MOST:.0e}" if whole and given > MOST else ""
        raise ValueError(f"{name} must be a whole number of at least {least}{most}, not {shown(value)}.")


def require_seconds(name: str, value: object) -> None:
    """Raise an error unless the value is a number greater than 0 and at most `MOST`.

    The unit in the error message is milliseconds if the argument's name ends in ``_ms``, and seconds otherwise.

    Raises
    ------
    ValueError
    """
    number = finite(value)
    if number is None or not 0 < number <= MOST:
        most = "" if number is None or number <= MOST else f" and at most {MOST:.0e}"
        unit = "milliseconds" if name.endswith("_ms") else "seconds"
        raise ValueError(f"{name} must be a number of {unit} above 0{most}, not {shown(value)}.")


def shown(value: Any) -> str:
    """Format a value for an error message, shortened if it is long."""
    try:
        text = repr(value)
    except Exception:  # Python cannot print an integer with thousands of digits, and any object may be passed
        return f"such a {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 10]}…{text[-9:]}"


def storable(name: str) -> str:
    """Return the name with lone surrogates escaped as ``\\udc80``, because UTF-8 cannot encode them."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
