"""Times as text become nanoseconds exactly, whatever a float64 would make of them."""

from __future__ import annotations

import decimal
import json
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfnb.errors import TraceError
from perfnb.trace.kineto import decode, quick_nanoseconds, resolution

MOST = 2**62 // 1000 * 1000 - 1
LEAST = -MOST
INSTANTS = (
    st.integers(LEAST, MOST) | st.integers(-(10**16), 10**16) | st.integers(1_600_000 * 10**12, 1_800_000 * 10**12)
)


def micro(ns: int, *, short: bool = False, quoted: bool = False) -> str:
    """Return nanoseconds written as microseconds with three decimals, or with as few as needed."""
    whole, part = divmod(abs(ns), 1000)
    text = f"{'-' if ns < 0 else ''}{whole}.{part:03}"
    text = text.rstrip("0").rstrip(".") if short else text
    return f'"{text}"' if quoted else text


def trace_of(*times: tuple[str, str]) -> Any:
    events = ",".join(f'{{"ph": "X", "ts": {ts}, "dur": {dur}}}' for ts, dur in times)
    return decode(f"[{events}]".encode())


@given(st.lists(INSTANTS, min_size=1, max_size=9), st.booleans(), st.booleans())
@example([MOST, 0, 1], False, False)
@example([LEAST, -1, -2], False, False)
@example([1_712_867_402_348_256_789], False, False)
@example([2**43 * 1000 - 1, 2**43 * 1000 + 1, 2**42 * 1000 + 1], False, True)
@settings(deadline=None)
def test_any_nanosecond_comes_back(times: list[int], short: bool, quoted: bool) -> None:
    trace = trace_of(*((micro(ns, short=short, quoted=quoted), "0") for ns in times))

    assert trace.start_ns.tolist() == times


@given(st.lists(st.integers(0, 2**43 * 1000), min_size=1, max_size=9))
def test_a_float_below_2_to_the_43_microseconds_needs_no_second_look(times: list[int]) -> None:
    quick = quick_nanoseconds([ns / 1000 for ns in times])

    assert quick is None if max(times) == 2**43 * 1000 else quick.tolist() == times


def test_durations_are_exact_next_to_other_kinds_of_numbers() -> None:
    long = 1_712_867_402_348_256_789
    trace = trace_of(("1", micro(long)), (micro(5), '"2.5"'), ("1e3", "0.0004"), ("-1.5e-1", "0.0006"))

    assert trace.duration_ns.tolist() == [long, 2500, 0, 1]
    assert trace.start_ns.tolist() == [1000, 5, 1_000_000, -150]


@pytest.mark.parametrize(
    "time",
    [
        *("1e999999999", '"1e999999999"', '"NaN"', '"sNaN"', '"Infinity"', "9" * 400, "9223372036854775.808"),
        *("-9223372036854775808", "9223372036854775807", str(2**62 // 1000), str(-(2**62 // 1000))),
    ],
)
def test_what_int64_cannot_hold_is_refused_at_once(time: str) -> None:
    for text in ((time, "0"), ("0", time)):
        with pytest.raises(TraceError, match=r"^the trace "):
            trace_of(text)


def test_the_callers_own_decimal_context_is_neither_used_nor_changed() -> None:
    with decimal.localcontext(Context(prec=3)) as context:
        assert trace_of(("1712867402348256.789", "0")).start_ns.tolist() == [1_712_867_402_348_256_789]
        assert decimal.getcontext() is context
        assert context.prec == 3


@pytest.mark.parametrize(
    ("texts", "unit"),
    [
        (["1712867402348256", "1712867402348257"], 1000),
        (["1712867402348256.0", "7"], 1000),
        (["1.001", "2"], 1),
        (["1.5", "2"], 500),
        (["1712867402348256.2", "1712867402348256.8", "1712867402348257", "1712867402348256.5"], 250),
        (["1712867402348256.25", "1712867402348256.75"], 250),
        (["1712867402348256.2", "1712867402348256.25"], 250),
        (["1712867402348256.8", "1712867402348256.75"], 250),
        (["1712867402348256.1", "1712867402348256.2"], 100),
        (["1.2", "1.8"], 200),  # a float64 is fine enough for such times
        (["2.5", "1712867402348256.5"], 500),
        ([f"{2**50 + 1}.2", f"{2**50 + 1}.8"], 250),  # from here on, it is not
        ([f"{2**50 + 1}.2", f"{2**50 + 1}.4"], 200),
        ([], 1000),
    ],
)
def test_the_resolution_of_a_files_times_is_known(texts: list[str], unit: int) -> None:
    assert trace_of(*((text, "1") for text in texts)).unit_ns == unit


def test_resolution_looks_at_durations_too() -> None:
    assert resolution(np.array([1000, 2000]), np.array([1000, 1001])) == 1
    assert Decimal(json.loads("0.25")) * 1000 == resolution(np.array([1000]), np.array([250]))
