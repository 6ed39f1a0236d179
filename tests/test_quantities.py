"""Numbers become text by one set of rules."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfnb import quantities as fmt

FIGURES = st.floats(min_value=1e-5, max_value=1e12, allow_nan=False)
SCALE = {"µs": 1e-3, "ms": 1.0, "s": 1e3}
POWERS = dict(zip(("", "k", "M", "G", "T", "P", "E"), (1000.0**n for n in range(7)), strict=True))
BYTES = dict(zip(("B", "KiB", "MiB", "GiB", "TiB"), (1024.0**n for n in range(5)), strict=True))
FORMATS = (fmt.duration, fmt.size, fmt.count, fmt.flops, fmt.rate, fmt.share, fmt.ratio, fmt.significant)


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("unknown", [None, pd.NA, math.nan, float("inf")])
def test_the_unknown_is_not_a_number(format_, unknown):
    assert format_(unknown) == "n/a"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (12.34, "12.3 ms"), (5, "5.00 ms"), (0.1, "0.100 ms"), (0.0999, "99.9 µs"), (0.09999, "0.100 ms"),
        (0.054, "54.0 µs"), (999.4, "999 ms"), (999.6, "1.00 s"), (1234.5, "1.23 s"), (0, "0 ms"), (-2.5, "-2.50 ms"),
        (123456789, "123,000 s"),
    ],
)  # fmt: skip
def test_durations(ms, text):
    assert fmt.duration(ms) == text


@pytest.mark.parametrize(
    ("format_", "value", "text"),
    [
        (fmt.size, 0, "0 B"), (fmt.size, 512, "512 B"), (fmt.size, 1536, "1.50 KiB"), (fmt.size, 5 * 2**30, "5.00 GiB"),
        (fmt.count, 1, "1"), (fmt.count, 1.333, "1.33"), (fmt.count, 4096, "4.10 k"), (fmt.count, 124_439_808, "124 M"),
        (fmt.flops, 85_200_000, "85.2 MFLOP"), (fmt.flops, 512, "512 FLOP"),
        (fmt.rate, 2600, "2,600 /s"), (fmt.rate, 0.5, "0.500 /s"),
        (fmt.share, 0.341, "34 %"), (fmt.share, 0.0423, "4.2 %"), (fmt.share, 0.0001, "<0.1 %"), (fmt.share, 0, "0 %"),
        (fmt.share, 1, "100 %"), (fmt.share, 0.0999, "10 %"), (fmt.share, -0.02, "-2.0 %"),
        (fmt.ratio, 1.337, "1.34 ×"),
    ],
)  # fmt: skip
def test_other_figures(format_, value, text):
    assert format_(value) == text


def test_a_rate_names_what_it_counts():
    assert fmt.rate(2600, "samples") == "2,600 samples/s"
    assert fmt.rate(1.234e6, "samples") == "1.23 M samples/s"


def test_an_interval_keeps_the_unit_of_its_middle():
    assert fmt.interval(12.3, (12.1, 12.6)) == "12.3 ms [12.1, 12.6]"
    assert fmt.interval(990, (900, 1010)) == "990 ms [900, 1,010]"
    assert fmt.interval(0.05, (0.04, 0.2)) == "50.0 µs [40.0, 200.0]"
    assert fmt.interval(12.3, None) == "12.3 ms"


def test_executions_name_the_passes():
    assert fmt.executions({"warmup": 5, "timed": 20, "counted": 0}) == "ran 25 times: 5 warm-up, 20 timed"
    assert fmt.executions({"timed": 1}) == "ran once: 1 timed"
    assert fmt.executions({}) == "did not run"


@given(FIGURES)
def test_never_more_than_three_significant_digits(value):
    for format_ in FORMATS:
        digits = re.sub(r"e[+-]?\d+|[^\d.]", "", format_(value)).lstrip("0.").replace(".", "")
        assert len(digits.rstrip("0")) <= 3, (format_, value)


@given(FIGURES, FIGURES)
def test_order_is_kept(a, b):
    low, high = sorted((a, b))
    for format_, units in ((fmt.duration, SCALE), (fmt.size, BYTES), (fmt.count, POWERS)):
        assert read(format_(low), units) <= read(format_(high), units)


@given(FIGURES)
def test_the_text_is_within_half_a_percent_of_the_figure(value):
    for format_, units in ((fmt.duration, SCALE), (fmt.count, POWERS)):
        assert read(format_(value), units) == pytest.approx(value, rel=0.0051)


@given(st.floats(min_value=1e-6, max_value=2))
def test_a_share_is_within_half_a_percent_point(value):
    text = fmt.share(value)
    assert text == "<0.1 %" if value < 0.0005 else abs(float(text.removesuffix(" %")) - 100 * value) <= 0.501


def read(text, units):
    number, _, unit = text.partition(" ")
    return float(number.replace(",", "")) * units[unit]


def test_ratios_have_thousandths_near_one_and_else_three_digits():
    assert fmt.relative(0.98449, (0.9, 1.0261)) == "0.984 [0.900, 1.026]"
    assert fmt.relative(249.798, (2.0271, 363.9)) == "250 [2.027, 364]"
    assert fmt.relative(0.01234, None) == "0.0123"


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        ((0.9, 0.894, 0.906), "−10.0 % [−10.6, −9.4]"),
        ((1.1, 1.09, 1.12), "+10.0 % [+9.0, +12.0]"),
        ((1.0, 0.99, 1.01), "0.0 % [−1.0, +1.0]"),
        ((0.1, 0.09, 0.11), "0.100 × [0.0900, 0.110]"),
        ((0.8, 0.2, 3.8), "0.800 × [0.200, 3.80]"),
        ((1.0, None, None), "0.0 %"),
        ((None, None, None), "n/a"),
    ],
)
def test_a_ratio_is_given_in_percent_unless_it_is_far_from_1(ratio, words):
    assert fmt.change(ratio[0], ratio[1:]) == words


@pytest.mark.parametrize(
    ("write", "value", "bounds", "text"),
    [
        (fmt.duration, 12.3, (12.1, 12.6), "12.3 ms [12.1, 12.6]"),
        (fmt.duration, 12.3, (9.7, 112.6), "12.3 ms [9.7, 112.6]"),
        (fmt.duration, 0.054, (0.0512, 0.0571), "54.0 µs [51.2, 57.1]"),
        (fmt.duration, 1200.0, (990.0, 1300.0), "1.20 s [0.99, 1.30]"),
        (fmt.duration, -5.0, (-6.0, 0.5), "−5.00 ms [−6.00, 0.50]"),
        (fmt.duration, 0.0, (-0.013, 0.02), "0 ms [−0.0130, 0.0200]"),
        (fmt.ratio, 0.54, (0.5123, 0.5706), "0.540 × [0.512, 0.571]"),
        (fmt.ratio, 1234.0, (1199.0, 1301.0), "1,230 × [1,200, 1,300]"),
        (fmt.share, 0.34, (0.294, 0.401), "34 % [29, 40]"),
        (fmt.share, 0.042, (-0.0001, 0.051), "4.2 % [0.0, 5.1]"),
        (fmt.share, 0.0002, (0.0001, 0.0013), "<0.1 % [0.0, 0.1]"),
        (fmt.share, 10.64, (9.0, 11.0), "1,060 % [900, 1,100]"),
        (fmt.size, 1536, (1024, 2048), "1.50 KiB [1.00, 2.00]"),
        (fmt.size, 512, (500, 530), "512 B [500, 530]"),
        (lambda value: f"{fmt.size(value)}/s", 3 * 2**30, (2**30, 4 * 2**30), "3.00 GiB/s [1.00, 4.00]"),
        (fmt.flops, 8.52e7, (8.5e7, 8.6e7), "85.2 MFLOP [85.0, 86.0]"),
        (lambda value: f"{fmt.flops(value)}/s", 1.5e12, (1.4e12, 1.6e12), "1.50 TFLOP/s [1.40, 1.60]"),
        (fmt.count, 4100, (3900, 4300), "4.10 k [3.90, 4.30]"),
        (fmt.count, 12, (11, 13), "12 [11, 13]"),
        (lambda value: fmt.rate(value, "samples"), 2617.0, (2606.0, 2641.0), "2,620 samples/s [2,610, 2,640]"),
        (lambda value: fmt.rate(value, "samples"), 1.23e6, (1.2e6, 1.3e6), "1.23 M samples/s [1.20, 1.30]"),
        (fmt.rate, 1.5, (1.25, 2.0), "1.50 /s [1.25, 2.00]"),
        (fmt.rate, 1.23e6, (1.2e6, 1.3e6), "1.23 M/s [1.20, 1.30]"),
        (fmt.significant, 2e-7, (1e-7, 3.14159e-7), "2.00e-07 [1.00e-07, 3.14e-07]"),
        (fmt.significant, 0.0123, (0.01, 0.02), "0.0123 [0.0100, 0.0200]"),
    ],
)
def test_an_interval_has_the_unit_and_the_digits_of_its_value(
    write: Callable[[float], str], value: float, bounds: tuple[float, float], text: str
) -> None:
    assert fmt.with_interval(write(value), value, bounds) == text
    assert fmt.with_interval(write(value), value, None) == write(value)
    assert fmt.with_interval(write(value), value, (bounds[0], float("nan"))) == write(value)


def test_an_unknown_value_has_no_interval() -> None:
    assert fmt.with_interval(fmt.duration(None), None, (1.0, 2.0)) == "n/a"


def test_many_names_are_the_first_ones_and_a_count() -> None:
    assert [fmt.named("abcde"[:count], 3) for count in (0, 1, 3, 5)] == ["", "a", "a, b, c", "a, b, c and 2 more"]


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("a/train.py", "train.py:31"),
        (r"C:\a\train.py", "train.py:31"),
        ("/tmp" + "/ipykernel_7/8.py", "line 31 of a cell"),
        ("<ipython-input-7>", "line 31 of a cell"),
        ("", "line 31"),
    ],
)
def test_a_place_is_a_file_s_name_and_a_line(file: str, place: str) -> None:
    assert fmt.place(file, 31) == place
