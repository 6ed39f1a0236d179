"""The interval of the median, against ranks from tables and against its own promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from perfnb.quantities import durations
from perfnb.stats.intervals import quantile_interval
from perfnb.stats.step_times import StepTimes, timing_of_batches


# Conover, Practical Nonparametric Statistics; Hahn and Meeker, Statistical Intervals, for 95 %.
@pytest.mark.parametrize(
    ("count", "ranks"), [(6, (1, 6)), (10, (2, 9)), (20, (6, 15)), (30, (10, 21)), (100, (40, 61))]
)
def test_the_interval_lies_between_the_known_ranks(count: int, ranks: tuple[int, int]) -> None:
    samples = np.random.default_rng(count).permutation(np.arange(1, count + 1)).astype(float)

    assert quantile_interval(samples, 0.5) == ranks


@pytest.mark.parametrize("count", range(6))
def test_fewer_than_six_samples_allow_no_interval(count: int) -> None:
    assert quantile_interval(list(range(count)), 0.5) is None


@pytest.mark.parametrize(
    ("count", "q", "ranks"),
    [
        (71, 0.95, None),
        (72, 0.95, (64, 72)),
        (72, 0.05, (1, 9)),
        (100, 0.9, (84, 96)),
    ],
)
def test_the_interval_of_a_quantile_lies_between_ranks_of_the_binomial_distribution(
    count: int, q: float, ranks: tuple[int, int] | None
) -> None:
    assert quantile_interval(np.arange(1, count + 1)[::-1], q) == ranks
    assert quantile_interval(np.arange(1, 7), 0.5, 31 / 32) == (1, 6)  # each end excludes 1 of 64 cases


@given(st.integers(6, 400), st.sampled_from([0.9, 0.95, 0.99]))
def test_the_interval_covers_as_promised_and_the_next_narrower_one_does_not(count: int, confidence: float) -> None:
    interval = quantile_interval(np.arange(1, count + 1), 0.5, confidence)

    def coverage(rank: int) -> float:
        return float(1 - 2 * binom.cdf(rank - 1, count, 0.5))

    if interval is None:
        assert coverage(1) < confidence
        return
    low, high = map(int, interval)
    assert low + high == count + 1
    assert coverage(low) >= confidence
    assert low == count // 2 or coverage(low + 1) < confidence


def test_timing_tells_median_interval_and_throughput() -> None:
    timing = StepTimes((5.0, 1.0, 8.0, 3.0, 10.0, 2.0, 7.0, 4.0, 9.0, 6.0), batch_size=32)

    assert (timing.steps, timing.median_ms, timing.ci_ms) == (10, 5.5, (2.0, 9.0))
    assert timing.throughput_per_s == pytest.approx(32 / 5.5e-3)
    assert StepTimes((1.0, 2.0)).ci_ms is None
    assert StepTimes((1.0, 2.0)).throughput_per_s is None


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([1.234], "1.23 ms"),
        ([980, 1.2], "980, 1.2 ms"),
        ([3441, 980.4], "3.44, 0.98 s"),
        ([999.6], "1 s"),
        ([61_234], "61.2 s"),
        ([0.0138, 0.117, 0.0137], "13.8, 117, 13.7 µs"),
        ([0.0667], "66.7 µs"),
        ([0.05, 1.5], "0.05, 1.5 ms"),
        ([0.1, 0.9996], "0.1, 1 ms"),
        ([0.0], "0 ms"),
        ([], " ms"),
    ],
)
def test_times_are_given_in_the_unit_of_their_size(times, words):
    assert durations(times) == words


@pytest.mark.parametrize("sizes", [{}, {"batch_size": 8, "samples": 8}, {"samples": 8}])
def test_without_a_step_nothing_is_known(sizes: dict[str, int]) -> None:
    timing = StepTimes(samples_ms=(), **sizes)

    assert (timing.median_ms, timing.ci_ms, timing.quantile_ms(0.5), timing.throughput_per_s) == (None,) * 4
    assert repr(timing) == "<perfnb.Timing: no step>"


FEW = ": too few for a 95 % interval"


@pytest.mark.parametrize(
    ("timing", "line", "basis"),
    [
        (StepTimes((5.0,)), "5 ms, 1 step", f"1 timed step{FEW}"),
        (StepTimes((1.0, 3.0)), "2 ms, 2 steps", f"median of 2 timed steps{FEW}"),
        (StepTimes((6.0, 1.0, 5.0, 2.0, 4.0, 3.0)), "3.5 ms [1, 6], 6 steps", "95 % interval, median of 6 timed steps"),
        (StepTimes((0.02,), block=50), "20 µs, 50 steps", f"1 block of 50 steps{FEW}"),
        (StepTimes((0.02, 0.04), block=1000), "30 µs, 2000 steps", f"median of 2 blocks of 1,000 steps{FEW}"),
        (StepTimes(()), "no step", "no timed step"),
    ],
)
def test_a_timing_states_its_steps_and_whether_it_has_an_interval(timing: StepTimes, line: str, basis: str) -> None:
    assert repr(timing) == f"<perfnb.Timing: {line}>"
    assert timing.basis == basis
    assert timing.ci_method == ("order statistics" if timing.ci_ms else None)


def test_quantiles_of_blocks_are_unknown() -> None:
    samples = tuple(float(ms) for ms in range(1, 101))
    assert StepTimes(samples).quantile_ms(0.9) is not None
    assert StepTimes(samples, block=2).quantile_ms(0.9) is None
    assert StepTimes(samples, block=2).steps == 200


def test_batches_of_one_size_give_a_rate_at_the_median_and_others_one_over_all_steps() -> None:
    alike, mixed = timing_of_batches([10.0, 10.0, 40.0], [8] * 3), timing_of_batches([10.0, 30.0], [8, 4], wanted=9)
    assert (alike.batch_size, alike.samples, alike.throughput_per_s) == (8, 24, 800.0)
    assert (mixed.batch_size, mixed.samples, mixed.throughput_per_s, mixed.wanted) == (None, 12, 300.0, 9)
    for unknown in (timing_of_batches([10.0, 30.0], [8, None]), timing_of_batches([], [])):
        assert (unknown.batch_size, unknown.samples, unknown.throughput_per_s) == (None, None, None)


def test_outliers_of_a_timing_are_those_of_its_steps() -> None:
    assert StepTimes((10.0, 11.0, 12.0, 13.0, 14.0, 90.0)).outliers.high_severe == (5,)
