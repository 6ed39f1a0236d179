"""The browser writes numbers as Python does."""

from __future__ import annotations

import random

from perfnb import quantities as fmt
from tests.scripts import evaluated

_NUMBERS = """(figures) => figures.map((n) => [
  duration(n), count(n), flopCount(n), byteSize(n), share(Math.min(n, 1)), rate(n, "samples"),
])"""
_READINGS = """([figures, units]) => figures.map((n) => [
  clock(n), clock(n, 1), reading(Math.min(n, 900), "percent"), ...units.map((unit) => reading(n, unit)),
])"""


def test_numbers_are_written_as_python_writes_them() -> None:
    rng = random.Random(0)
    figures = [fmt.rounded(rng.uniform(1, 10) * 10 ** rng.randint(-6, 13), 6) for _ in range(500)]
    figures += [0, 1, 999.4, 999.6, 0.0999, 0.09999, 1000, 1024, 0.341, 0.0423, 0.0001]
    assert evaluated("draw/js/format.js", _NUMBERS, figures) == [
        [fmt.duration(n), fmt.count(n), fmt.flops(n), fmt.size(n), fmt.share(min(n, 1)), fmt.rate(n, "samples")]
        for n in figures
    ]


def test_clocks_and_readings_are_written_as_python_writes_them() -> None:
    rng = random.Random(1)
    figures = [fmt.rounded(rng.uniform(1, 10) * 10 ** rng.randint(-3, 11), 6) for _ in range(300)] + [0, 59.96, 3599.96]
    units = ["bytes", "bytes_per_s", "watts", "celsius", "megahertz"]
    assert evaluated("draw/js/format.js", _READINGS, [figures, units]) == [
        [fmt.clock(n), fmt.clock(n, 1), fmt.reading(min(n, 900), "percent"), *(fmt.reading(n, unit) for unit in units)]
        for n in figures
    ]


def test_what_is_unknown_says_so() -> None:
    unknown = "(none) => [duration, count, flopCount, byteSize, share, clock].map((form) => form(none))"
    assert evaluated("draw/js/format.js", unknown, None) == [fmt.UNKNOWN] * 6
