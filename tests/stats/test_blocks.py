"""Figures of blocks: intervals that hold for correlated steps, and changes found only where they are."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import stdtrit

from perfnb.stats import blocks
from perfnb.stats.blocks import changes_in, difference, in_blocks, log_median_of_blocks, mean_of_blocks, ratio_of_sums
from perfnb.stats.change_points import ChangePoint
from perfnb.stats.intervals import Centre, lag1


def correlated(count: int, rho: float, seed: int) -> np.ndarray:
    """Step times around 10 ms that depend on the one before."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal(count) * np.sqrt(1 - rho**2)
    for place in range(1, count):
        noise[place] += rho * noise[place - 1]
    return 10 * np.exp(0.1 * noise)


def test_blocks_are_contiguous_and_long_enough() -> None:
    found = in_blocks(np.arange(103))
    assert len(found) == 20
    assert np.concatenate([block for (block,) in found]).tolist() == list(range(103))
    assert len(in_blocks(np.arange(31))) == 6
    assert in_blocks(np.arange(29)) == []
    assert [len(in_blocks(np.arange(count))) for count in (30, 99, 100, 1000)] == [6, 19, 20, 20]


def test_the_mean_of_independent_blocks_has_students_interval() -> None:
    # By hand: mean 3.5, standard error sqrt(3.5 / 6), t(0.975, 5) = 2.5706; 1, 6, 2, 5, 3, 4 are not correlated.
    found = mean_of_blocks([1.0, 6.0, 2.0, 5.0, 3.0, 4.0])
    assert found.estimate == 3.5
    assert found.high - 3.5 == pytest.approx(2.5706 * np.sqrt(3.5 / 6), rel=1e-4)
    assert mean_of_blocks([1.0, 2.0, 4.0, 2.0, 1.0]) == (2.0, -np.inf, np.inf)
    assert np.isnan(mean_of_blocks([]).estimate)


def test_a_share_is_that_of_the_sums() -> None:
    waits, steps = np.full(100, 2.0), np.full(100, 8.0)
    assert ratio_of_sums(waits, steps) == Centre(0.25, 0.25, 0.25)
    assert not ratio_of_sums(waits[:10], steps[:10]).bounded


def test_correlated_blocks_count_for_fewer() -> None:
    # A straight line: the correlation counts as 0.9 at most, and at least 3 blocks are independent; t(0.975, 2).
    rising = np.arange(20.0)
    found = mean_of_blocks(rising)
    assert found.high - found.estimate == pytest.approx(4.302653 * rising.std(ddof=1) / np.sqrt(3), rel=1e-6)
    assert found.estimate - found.low == pytest.approx(found.high - found.estimate)
    waves = 100 + correlated(60, 0.6, 8)
    rho = lag1(waves)
    assert 0.3 < rho < 0.8
    count = 60 * (1 - rho) / (1 + rho)
    half = float(stdtrit(count - 1, 0.975)) * waves.std(ddof=1) / np.sqrt(count)
    assert mean_of_blocks(waves) == pytest.approx((waves.mean(), waves.mean() - half, waves.mean() + half))


def test_a_share_that_varies_by_block_has_the_interval_of_the_delta_method() -> None:
    shares = np.tile([0.1, 0.6, 0.2, 0.5, 0.3, 0.4], 3)
    steps = np.full(90, 2.0)
    found = ratio_of_sums(steps * np.repeat(shares, 5), steps)
    off = mean_of_blocks(10.0 * (shares - shares.mean()))
    assert found == pytest.approx((0.35, 0.35 + off.low / 10, 0.35 + off.high / 10))
    seldom = np.zeros(90)
    seldom[0] = 5.0
    assert ratio_of_sums(seldom, steps).low == 0.0
    assert np.isnan(ratio_of_sums(np.zeros(90), np.zeros(90)).estimate)
    assert ratio_of_sums([2.0] * 29, [8.0] * 29) == (0.25, -np.inf, np.inf)


def test_the_logarithm_of_a_runs_median_is_that_of_its_blocks() -> None:
    times = np.repeat([1.0, 6.0, 2.0, 5.0, 3.0, 4.0], 5) * np.tile([0.5, 0.9, 1.0, 1.1, 90.0], 6)
    assert log_median_of_blocks(times) == mean_of_blocks(np.log([1.0, 6.0, 2.0, 5.0, 3.0, 4.0]))
    short = log_median_of_blocks([1.0, 2.0, 40.0])
    assert (short.estimate, short.bounded) == (np.log(2.0), False)
    assert np.isnan(log_median_of_blocks([]).estimate)


def test_a_difference_joins_both_intervals() -> None:
    assert difference(Centre(1.0, 0.7, 1.3), Centre(3.0, 2.6, 3.4)) == pytest.approx((2.0, 1.5, 2.5))


@pytest.mark.parametrize("seed", range(5))
def test_no_change_in_correlated_steps(seed: int) -> None:
    found = changes_in(correlated(2000, 0.5, seed))
    assert found is not None
    assert (found.kind, found.places, found.ratio) == ("steady", (), (1.0, 1.0, 1.0))


@pytest.mark.parametrize("place", [300, 1000, 1700])
def test_a_jump_is_found_where_it_is(place: int) -> None:
    times = correlated(2000, 0.5, 1)
    times[place:] *= 1.2
    found = changes_in(times)
    assert found is not None
    assert found.kind == "jumps"
    assert len(found.places) == 1
    assert abs(found.places[0] - place) <= 12
    assert found.ratio.low < 1.2 < found.ratio.high


def test_a_jump_inside_a_block_has_its_exact_place_and_a_drift_its_ends() -> None:
    times = np.repeat([10.0, 12.0], [305, 295])  # 60 blocks of 10 steps
    times[1::10] *= 1.5  # a stall in each block changes no median
    found = changes_in(times)
    assert found is not None
    assert (found.kind, found.places) == ("jumps", (305,))
    assert found.levels == pytest.approx((10.0, 12.0), rel=0.005)
    assert found.ratio.estimate == found.levels[1] / found.levels[0]

    for slope in (0.001, -0.001):
        drift = changes_in(10 * np.exp(slope * np.arange(600)))
        assert drift is not None
        assert (drift.kind, drift.places) == ("drift", ())
        assert drift.levels == pytest.approx((10 * np.exp(slope * 4.5), 10 * np.exp(slope * 594.5)), rel=1e-4)
        assert drift.ratio == pytest.approx((np.exp(slope * 590),) * 3, rel=1e-4)


@pytest.mark.parametrize("place", [15, 16, 20, 280, 284, 285])
def test_a_jump_near_an_end_has_its_exact_place(place: int) -> None:
    found = changes_in(np.repeat([10.0, 20.0], [place, 300 - place]))  # 60 blocks of 5 steps, of which 3 are enough
    assert found is not None
    assert (found.kind, found.places, found.levels) == ("jumps", (place,), pytest.approx((10.0, 20.0)))


def test_the_interval_of_a_jump_is_that_of_the_blocks_before_and_after_it() -> None:
    pattern = np.array([1.0, 1.02, 0.99, 1.01, 0.98, 1.0])
    found = changes_in(np.repeat(np.concatenate([10 * np.tile(pattern, 5), 12 * np.tile(pattern, 5)]), 10))
    assert found is not None
    (around,) = {mean_of_blocks(np.log(np.tile(pattern, 5)))}
    apart = difference(around, around)
    assert found.levels == pytest.approx((10 * np.exp(around.estimate), 12 * np.exp(around.estimate)))
    assert found.ratio == pytest.approx((1.2, 1.2 * np.exp(apart.low), 1.2 * np.exp(apart.high)))


def test_only_the_three_clearest_jumps_count(monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = [ChangePoint(12, 0.004), ChangePoint(24, 0.001), ChangePoint(36, 0.003), ChangePoint(48, 0.002)]
    monkeypatch.setattr(blocks, "change_points", lambda *given, fewest: jumps if fewest == 3 else [])
    found = changes_in(np.repeat([10.0, 20.0, 10.0, 30.0, 10.0], 120))
    assert found is not None
    assert (found.kind, found.places) == ("jumps", (240, 360, 480))
    assert found.levels == pytest.approx((200**0.5, 10.0, 30.0, 10.0))


def test_two_jumps_and_a_drift() -> None:
    times = correlated(3000, 0.3, 2)
    times[1000:2000] *= 1.5
    found = changes_in(times)
    assert found is not None
    assert [round(place, -2) for place in found.places] == [1000, 2000]
    drifting = changes_in(correlated(3000, 0.3, 2) * np.linspace(1, 1.3, 3000))
    assert drifting is not None
    assert drifting.kind == "drift"
    assert drifting.ratio.low < 1.3 < drifting.ratio.high * 1.01


def test_too_few_steps_for_changes() -> None:
    assert changes_in(correlated(59, 0.0, 1)) is None
    found = changes_in(np.repeat([9.0, 10.0, 20.0], [29, 2, 29]))
    assert found is not None
    assert (found.kind, found.levels) == ("steady", (10.0,))


@pytest.mark.simulation
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_intervals_of_two_runs_cover_the_truth(rho: float) -> None:
    apart = [
        difference(*(log_median_of_blocks(correlated(1000, rho, 2 * seed + side)) for side in (0, 1)))
        for seed in range(400)
    ]
    assert np.mean([one.low <= 0 <= one.high for one in apart]) > 0.92


@pytest.mark.simulation
@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_chance_seldom_looks_like_a_change(rho: float) -> None:
    kinds = [changes_in(correlated(1000, rho, seed)) for seed in range(300)]
    assert np.mean([found is not None and found.kind != "steady" for found in kinds]) < 0.05
