"""Wilcoxon's signed ranks against scipy, against tables, and the centre they give."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata, t, wilcoxon

from perfnb.stats.intervals import _below, _distribution, _rank, hodges_lehmann, signed_rank_p, spread, walsh_averages

# Integers scaled: no rounding, and ties as a coarse clock makes them.
differences = st.lists(st.integers(-50, 50), min_size=6, max_size=40).map(lambda values: [v / 64 for v in values])


@pytest.mark.parametrize("count", [6, 10, 30, 120, 200])
def test_the_p_value_is_that_of_scipy(count: int) -> None:
    values = np.random.default_rng(count).normal(0.3, 1, count)
    # Of so many it takes the normal approximation by itself; the word for it differs by version.
    method = "exact" if count <= 150 else "auto"

    expected = wilcoxon(values, method=method, correction=True).pvalue

    assert signed_rank_p(values) == pytest.approx(expected, rel=1e-6)


# Hollander, Wolfe and Chicken, table A.4; here by counting all assignments of signs.
@pytest.mark.parametrize("count", [6, 8, 11])
def test_the_distribution_counts_all_signs(count: int) -> None:
    sums = np.array(list(product([0, 1], repeat=count))) @ np.arange(1, count + 1)
    for most in (0, 1, 5, count * (count + 1) // 4):
        assert _below(count, most) == pytest.approx(np.mean(sums <= most))


@pytest.mark.parametrize(("confidence", "rank"), [(0.9, 8702), (0.95, 8444), (0.99, 7939)])
def test_for_many_differences_the_normal_rank_is_next_to_the_exact_one(confidence: float, rank: int) -> None:
    # The mean of 200 ranks is 10,050, and their standard deviation is 819.6.
    exact = np.searchsorted(_distribution(200), (1 - confidence) / 2, side="right")

    assert _rank(200, confidence) == rank
    assert abs(rank - exact) <= 6


@pytest.mark.parametrize(("count", "bounded"), [(1, False), (5, False), (6, True), (7, True)])
def test_six_differences_are_the_fewest_for_95_percent(count: int, bounded: bool) -> None:
    values = np.arange(1.0, count + 1)

    found = hodges_lehmann(values)

    assert found.bounded is bounded
    assert found.estimate == np.median(walsh_averages(values))
    assert (found.low, found.high) == ((1.0, count) if count == 6 else (found.low, found.high))
    assert hodges_lehmann(np.arange(6.0), 0.99).bounded is False


def test_many_comparisons_need_more_differences() -> None:
    assert [hodges_lehmann(np.arange(n), 1 - 0.05 / 15).bounded for n in (9, 10)] == [False, True]


@pytest.mark.parametrize("count", [6, 20])
@pytest.mark.parametrize("tails", ["normal", "heavy", "bimodal"])
def test_intervals_hold_the_centre_of_symmetric_differences(count: int, tails: str) -> None:
    rng = np.random.default_rng(21)
    rows = {
        "normal": rng.normal(0, 1, (400, count)),
        "heavy": rng.standard_t(2, (400, count)),
        "bimodal": rng.choice([-5.0, 5.0], (400, count)) + rng.normal(0, 1, (400, count)),
    }[tails]

    held = [found.low <= 0 <= found.high for found in map(hodges_lehmann, rows)]

    assert np.mean(held) >= 0.925


@given(differences, st.sampled_from([0.9, 0.95]))
def test_interval_and_p_value_agree(values: list[float], confidence: float) -> None:
    found = hodges_lehmann(values, confidence)

    assert found.low <= found.estimate <= found.high
    if 0 not in walsh_averages(values):
        assert (found.low > 0 or found.high < 0) == (signed_rank_p(values) <= 1 - confidence + 1e-9)


@given(differences, st.randoms())
def test_order_sign_and_unit(values: list[float], random: object) -> None:
    found = hodges_lehmann(values)
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert hodges_lehmann(shuffled) == found
    assert hodges_lehmann([-value for value in values]) == (-found.estimate, -found.high, -found.low)
    assert hodges_lehmann([value * 8 for value in values]) == tuple(8 * bound for bound in found)
    assert signed_rank_p([-value for value in values]) == signed_rank_p(values)


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=20))
def test_ranks_give_the_same_statistic_as_walsh_averages(values: list[float]) -> None:
    signed = np.array(values) * np.where(np.arange(len(values)) % 2, -1, 1)
    if len(set(np.abs(signed))) == len(signed) and 0 not in walsh_averages(signed):
        assert np.sum(walsh_averages(signed) > 0) == rankdata(np.abs(signed))[signed > 0].sum()


@pytest.mark.slow
@pytest.mark.parametrize("count", [6, 50])
def test_spread_is_the_standard_deviation_of_normal_differences(count: int) -> None:
    rng = np.random.default_rng(22)
    rows = rng.normal(1.0, 0.5, (200, count))
    stalled = rows.copy()
    stalled[:, 0] = 100.0

    assert np.mean([spread(row) for row in rows]) == pytest.approx(0.5, rel=0.06)
    assert count < 15 or np.mean([spread(row) for row in stalled]) < 0.85


def test_the_spread_is_that_of_the_interval_or_of_the_sample_if_there_is_no_interval() -> None:
    # Of 6 differences, the interval from the smallest to the largest excludes 1 of 64 cases on each side.
    assert spread([9.0, 1.0, 3.0, 2.0, 5.0, 4.0]) == pytest.approx(4.0 / t.ppf(63 / 64, 5) * 6**0.5)
    many = np.arange(20.0)  # the 53rd of 210 averages: P(W < 53) = 0.0242
    low, high = walsh_averages(many)[[52, -53]]
    assert spread(many) == pytest.approx((high - low) / 2 / t.ppf(1 - _below(20, 52), 19) * 20**0.5)
    assert spread([1.0, 2.0, 6.0, 2.0, 9.0]) == pytest.approx(np.std([1.0, 2.0, 6.0, 2.0, 9.0], ddof=1))
    assert spread([1.0, 3.0]) == pytest.approx(2**0.5)


def test_equal_differences_have_no_spread() -> None:
    assert spread([0.3] * 8) == 0.0
    assert np.isnan(spread([0.3]))
    assert hodges_lehmann([0.0] * 8) == (0.0, 0.0, 0.0)
    assert signed_rank_p([0.0] * 8) == 1.0
    assert signed_rank_p([]) == 1.0
    assert not hodges_lehmann([]).bounded
