"""Format numbers consistently, with three significant digits and a suitable unit.

Every function accepts a number or an unknown value (``None``, ``NA``, ``nan``), which is formatted as ``n/a``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: The minus sign of negative numbers, and the text for an unknown value.
MINUS = "−"
UNKNOWN = "n/a"

#: How the passes of a run are described to the user.
PASS_WORDS = {
    "warmup": "warm-up",
    "timed": "timed",
    "trial": "trial",
    "recompiled": "recompiling",
    "lead_in": "lead-in",
    "traced": "traced",
    "sampled": "sampled",
    "counted": "counted",
    "pilot": "pilot",
    "ceilings": "measuring ceilings",
    "process": "reading the process",
}

_SIGNS = {"watts": "W", "joules": "J", "celsius": "°C", "megahertz": "MHz", "": ""}
_DECIMAL_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def known(value: Any) -> float | None:
    """Return `value` as a finite float, or ``None`` if it is unknown."""
    if value is None or type(value).__name__ == "NAType":  # pandas' NA, without loading pandas
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def rounded(value: float, digits: int = 3) -> float:
    """Round `value` to `digits` significant digits."""
    return float(f"{value:.{digits - 1}e}")


def short(value: Any, digits: int = 6) -> float | None:
    """Round `value` to `digits` significant digits for JSON: whole numbers become `int`, unknown values ``None``."""
    if type(value) is int and abs(value) < 10**digits:
        return value
    number = known(value)
    if number is None:
        return None
    number = rounded(number, digits)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def significant(value: Any, *, trim: bool = False) -> str:
    """Format a number with three significant digits, using an exponent only below a millionth or above a quadrillion.

    Parameters
    ----------
    value : number or unknown
    trim : bool
        Whether to drop trailing zeros after the decimal point. This is appropriate for counts: ``2``, not ``2.00``.
    """
    number = known(value)
    if number is None:
        return UNKNOWN
    number = rounded(number)
    if number == 0:
        return "0"
    exponent = math.floor(math.log10(abs(number)) + 1e-12)
    if not -6 <= exponent < 15:
        return f"{number:.2e}"
    text = f"{number:,.{max(0, 2 - exponent)}f}"
    return text.rstrip("0").rstrip(".") if trim and "." in text else text


def duration(ms: Any) -> str:
    """Format a time given in milliseconds: ``12.3 ms``, ``54.0 µs`` below 0.1 ms, ``1.20 s`` from 1,000 ms."""
    number = known(ms)
    if number is None:
        return UNKNOWN
    factor, unit = _time_unit(number)
    return f"{significant(number * factor)} {unit}"


def durations(times_ms: Iterable[float]) -> str:
    """Format several times in a common unit.

    For example: ``1.2, 980 ms``, or ``0.98, 3.44 s`` from 1,000 ms, or ``13.8, 117 µs`` if all times are short.
    """
    values = [rounded(value) for value in times_ms]
    sizes = [abs(value) for value in values if value]
    in_us = bool(sizes) and min(sizes) < 0.1 and max(sizes) < 1
    factor, unit = (1e3, "µs") if in_us else (1e-3, "s") if max(sizes, default=0.0) >= 1000 else (1.0, "ms")
    return ", ".join(f"{value * factor:.3g}" for value in values) + f" {unit}"


def interval(ms: Any, bounds: tuple[Any, Any] | None) -> str:
    """Format a time with its interval: ``12.3 ms [12.1, 12.6]``."""
    return with_interval(duration(ms), ms, bounds)


def with_interval(text: str, value: Any, bounds: tuple[Any, Any] | None) -> str:
    """Append an interval to a formatted quantity, with the same unit and precision: ``0.540 × [0.512, 0.571]``.

    Parameters
    ----------
    text : str
        The quantity, as formatted by a function in this module.
    value : number or unknown
        The number from which `text` was formatted.
    bounds : tuple or None
        Both ends of the interval. If they are missing, the text is returned unchanged.
    """
    inside, number = known_bounds(bounds), known(value)
    if inside is None or number is None:
        return text
    shown, _, unit = text.partition(" ")
    factor = _factor(unit, number)
    low, high = (_with_digits_of(shown, bound * factor) for bound in inside)
    return f"{text} [{low}, {high}]".replace("-", MINUS).replace(f"e{MINUS}", "e-")


def _with_digits_of(shown: str, number: float) -> str:
    """Round a number to the same decimal place as a number already formatted by `significant` or `share`."""
    if "e" in shown:
        return f"{number:.2e}"
    if shown == "0":
        return significant(number)
    whole, _, decimals = shown.lstrip(f"<-{MINUS}").replace(",", "").partition(".")
    places = len(decimals) or min(0, 3 - len(whole))
    number = round(number, places) or 0.0  # never a zero below 0
    return f"{number:,.{max(0, places)}f}"


def _factor(unit: str, number: float) -> float:
    """Return the factor that converts a number to the given unit."""
    if unit == "%":
        return 100.0
    if unit in ("s", "ms", "µs"):
        return _time_unit(number)[0]
    if unit.removesuffix("/s") in _BYTE_UNITS:
        return 1 / byte_unit(number)[0]
    prefix, rest = unit[:1], unit[1:]
    prefixed = prefix in _DECIMAL_PREFIXES and (not rest or rest.startswith((" ", "/", "FLOP")))
    return 1000.0 ** -_DECIMAL_PREFIXES.index(prefix) if prefixed else 1.0


def known_bounds(bounds: tuple[Any, Any] | None) -> tuple[float, float] | None:
    """Return both bounds of an interval as floats, or ``None`` if either bound is unknown."""
    low, high = (known(bound) for bound in bounds or (None, None))
    return None if low is None or high is None else (low, high)


def relative(ratio: Any, bounds: tuple[Any, Any] | None = None) -> str:
    """Format a ratio with its interval: ``0.912 [0.905, 0.921]``.

    Ratios near 1 are rounded to three decimal places, and all others to three significant digits.
    """
    number = known(ratio)
    if number is None:
        return UNKNOWN
    inside = known_bounds(bounds) or ()
    one, *others = (f"{each:.3f}" if 0.1 <= each < 10 else significant(each) for each in (number, *inside))
    return one + (f" [{', '.join(others)}]" if others else "")


def change(ratio: Any, bounds: tuple[Any, Any] | None = None) -> str:
    """Format a ratio as a percentage, ``−10.0 % [−10.6, −9.4]``, or as a factor if it or either bound is far from 1."""
    number, inside = known(ratio), known_bounds(bounds) or ()
    if number is None:
        return UNKNOWN
    near = 0.5 <= number <= 2 and all(0.25 <= bound <= 4 for bound in inside)
    one, *others = (_percent(each) if near else significant(each) for each in (number, *inside))
    return f"{one} {'%' if near else '×'}" + (f" [{', '.join(others)}]" if others else "")


def counted(number: float, thing: str) -> str:
    """Format a count with its noun: ``1 pair``, ``1,200 pairs``, ``2 copies``, ``3 batches``."""
    whole = round(number)
    if whole != 1:
        thing = re.sub(r"(?<=[^aeiou])y$", "ie", thing) + ("es" if thing.endswith(("s", "x", "ch", "sh")) else "s")
    return f"{whole:,} {thing}"


def named(names: Sequence[str], most: int = 3) -> str:
    """List the first few names and the number of remaining names: ``a, b, c and 4 more``."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def share(fraction: Any) -> str:
    """Format a fraction as a percentage: ``34 %``, with one decimal place below 10 %, and ``<0.1 %`` if it is tiny."""
    number = known(fraction)
    if number is None:
        return UNKNOWN
    percent = 100.0 * number
    if percent == 0:
        return "0 %"
    if 0 < percent < 0.05:
        return "<0.1 %"
    tenths = round(percent, 1)
    return f"{tenths:.1f} %" if abs(tenths) < 10 else f"{significant(round(percent), trim=True)} %"


def size(count_of_bytes: Any) -> str:
    """Format an amount of memory: ``512 B``, ``1.50 KiB``, ``2.34 GiB``."""
    number = known(count_of_bytes)
    if number is None:
        return UNKNOWN
    factor, unit = byte_unit(number)
    return f"{significant(number / factor, trim=factor == 1)} {unit}"


def byte_unit(count_of_bytes: float) -> tuple[int, str]:
    """Choose a suitable unit for an amount of memory. Return its size in bytes and its name: ``(1048576, "MiB")``."""
    step = 0
    while step < len(_BYTE_UNITS) - 1 and abs(count_of_bytes) / 1024**step >= 1023.5:
        step += 1
    return 1024**step, _BYTE_UNITS[step]


def on_axis(text: str) -> str:
    """Shorten a formatted quantity for an axis label by dropping trailing zeros: ``2 GiB`` for ``2.00 GiB``."""
    number, _, unit = text.partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def growth(bytes_per_step: float, bounds: tuple[float | None, float | None]) -> str:
    """Format the growth of memory per step, with its interval in the same unit: ``1.00 MiB per step [0.990, 1.01]``."""
    ends = [bound for bound in bounds if bound is not None]
    factor, unit = byte_unit(max(map(abs, (bytes_per_step, *ends))))
    value, *inside = (significant(one / factor, trim=factor == 1) for one in (bytes_per_step, *ends))
    return (f"{value} {unit} per step" + (f" [{', '.join(inside)}]" if inside else "")).replace("-", MINUS)


def count(value: Any) -> str:
    """Format a count: ``12``, ``1.33``, ``4.10 k``, ``124 M``."""
    number = known(value)
    if number is None:
        return UNKNOWN
    scaled, prefix = _decimal(number)
    return f"{significant(scaled, trim=not prefix)} {prefix}".rstrip()


def flops(value: Any) -> str:
    """Format a number of floating-point operations, with decimal prefixes: ``85.2 MFLOP``."""
    number = known(value)
    if number is None:
        return UNKNOWN
    scaled, prefix = _decimal(number)
    return f"{significant(scaled, trim=not prefix)} {prefix}FLOP"


def rate(per_second: Any, thing: str = "") -> str:
    """Format a number per second: ``2,600 samples/s``, ``1.23 M/s``."""
    number = known(per_second)
    if number is None:
        return UNKNOWN
    scaled, prefix = (number, "") if abs(rounded(number)) < 1e6 else _decimal(number)
    unit = f"{prefix} {thing}".strip()
    return f"{significant(scaled)} {unit}/s" if unit else f"{significant(scaled)} /s"


def ratio(value: Any) -> str:
    """Format a ratio: ``1.34 ×``."""
    number = known(value)
    return UNKNOWN if number is None else f"{significant(number)} ×"


def clock(seconds: Any, decimals: int = 0) -> str:
    """Format the number of seconds since the start as a clock would show it: ``0:42``, ``1:02:03``."""
    number = known(seconds)
    if number is None:
        return UNKNOWN
    parts = 10**decimals
    ticks = math.floor(abs(number) * parts + 0.5)
    minutes, second = divmod(ticks // parts, 60)
    hours, minute = divmod(minutes, 60)
    fraction = f".{ticks % parts:0{decimals}}" if decimals else ""
    before = f"{hours}:{minute:02}" if hours else str(minute)
    return f"{'-' if number < 0 and ticks else ''}{before}:{second:02}{fraction}"


def reading(value: Any, unit: str) -> str:
    """Format a telemetry reading.

    Parameters
    ----------
    value : number or unknown
    unit : str
        ``percent``, ``bytes``, ``bytes_per_s``, ``watts``, ``joules``, ``celsius``, ``megahertz``, or an empty string
        for a plain number.
    """
    number = known(value)
    if number is None:
        return UNKNOWN
    if unit == "percent":
        return share(number / 100)
    if unit in ("bytes", "bytes_per_s"):
        return size(number) + ("/s" if unit == "bytes_per_s" else "")
    return f"{significant(number, trim=True)} {_SIGNS[unit]}".rstrip()


def executions(executed: Mapping[str, int]) -> str:
    """Describe how many times the step ran in each pass: ``ran 29 times: 5 warm-up, 20 timed, 4 traced``."""
    passes = [f"{times:,} {PASS_WORDS.get(name, name)}" for name, times in executed.items() if times]
    total = sum(executed.values())
    times = "once" if total == 1 else f"{total:,} times"
    return f"ran {times}: {', '.join(passes)}" if passes else "did not run"


def _percent(ratio: float) -> str:
    percent = round(100 * (ratio - 1), 1)
    return f"{percent:+.1f}".replace("-", "−") if percent else "0.0"


def _time_unit(ms: float) -> tuple[float, str]:
    magnitude = abs(rounded(ms))
    if magnitude >= 1000:
        return 1e-3, "s"
    return (1e3, "µs") if 0 < magnitude < 0.1 else (1.0, "ms")


def _decimal(value: float) -> tuple[float, str]:
    step = 0
    while step < len(_DECIMAL_PREFIXES) - 1 and abs(rounded(value)) >= 1000:
        value, step = value / 1000, step + 1
    return value, _DECIMAL_PREFIXES[step]


def place(file: str, line: int | str) -> str:
    """Return where code is, such as ``train.py:31``, or ``line 31 of a cell`` of a notebook."""
    if "ipykernel_" in file or file.startswith("<"):
        return f"line {line} of a cell"
    name = file.replace("\\", "/").rpartition("/")[2]
    return f"{name}:{line}" if name else f"line {line}"


def capital(text: str) -> str:
    """Capitalise the first letter of a sentence."""
    return text[:1].upper() + text[1:]
