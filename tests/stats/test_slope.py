"""The slope of memory: planted growth is found, and 100 runs of each kind of no growth are let pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from perfnb.stats.slope import FEWEST_STEPS, Slope, memory_slope

MIB = 2**20
STEPS = 40
Levels = Callable[[np.random.Generator, int], np.ndarray]


def known(levels: object) -> Slope:
    slope = memory_slope(levels)  # type: ignore[arg-type]
    assert slope is not None
    assert slope.ci_low is not None
    assert slope.ci_high is not None
    assert slope.ci_low <= slope.bytes_per_step <= slope.ci_high
    return slope


def autoregressive(memory: float) -> Levels:
    def levels(rng: np.random.Generator, steps: int) -> np.ndarray:
        shocks, level = rng.normal(0, 1, steps + 200), np.zeros(steps + 200)
        for place in range(1, len(level)):
            level[place] = memory * level[place - 1] + shocks[place]
        return level[200:]

    return levels


def sawtooth(period: int) -> Levels:
    """Garbage that a collector frees every `period` steps."""
    return lambda rng, steps: (np.arange(steps) + rng.integers(period)) % period * 1.0


def one_jump(rng: np.random.Generator, steps: int) -> np.ndarray:
    return np.where(np.arange(steps) < rng.integers(1, steps), 0.0, 20.0)


def two_jumps(rng: np.random.Generator, steps: int) -> np.ndarray:
    return one_jump(rng, steps) + one_jump(rng, steps) * rng.exponential(1)


def high_water(rng: np.random.Generator, steps: int) -> np.ndarray:
    """Memory that is never given back, of batches that differ."""
    return np.maximum.accumulate(rng.uniform(0, 100, steps + 10))[10:]


def few_shapes(rng: np.random.Generator, steps: int) -> np.ndarray:
    """Return a cache with an entry for each of ten shapes."""
    shapes = rng.integers(0, 10, steps + 10)
    return np.array([len(set(shapes[: place + 1])) for place in range(steps + 10)], dtype=float)[10:]


NO_LEAK: dict[str, Levels] = {
    "nothing changes": lambda rng, steps: np.full(steps, 12345),
    "noise": lambda rng, steps: rng.normal(0, 5, steps),
    "batches that vary": lambda rng, steps: rng.integers(8, 65, steps) * 1000,
    "autoregressive 0.5": autoregressive(0.5),
    "autoregressive 0.9": autoregressive(0.9),
    "rare steps up and down": lambda rng, steps: (rng.normal(0, 1, steps) * (rng.random(steps) < 0.15)).cumsum(),
    "collected every 3": sawtooth(3),
    "collected every 7": sawtooth(7),
    "collected every 13": sawtooth(13),
    "collected twice": lambda rng, steps: sawtooth(steps // 2)(rng, steps),
    "one jump": one_jump,
    "two jumps": two_jumps,
    "high water": high_water,
    "high water with noise": lambda rng, steps: high_water(rng, steps) + rng.normal(0, 3, steps),
    "a cache of ten shapes": few_shapes,
    "settles": lambda rng, steps: -20 * np.exp(-np.arange(steps) / 15) + rng.normal(0, 0.02, steps),
}


@pytest.mark.slow
@pytest.mark.parametrize("steps", [20, STEPS])
@pytest.mark.parametrize("name", NO_LEAK)
def test_without_a_leak_the_interval_holds_0_in_95_of_100_runs(name: str, steps: int) -> None:
    rng = np.random.default_rng(11)
    alarms = sum(known(NO_LEAK[name](rng, steps)).excludes_zero for _ in range(100))
    assert alarms <= 5


@pytest.mark.parametrize("steps", [FEWEST_STEPS, 30, 40, 50])
def test_a_leak_of_1_mib_a_step_is_found_to_the_byte(steps: int) -> None:
    slope = known(10**9 + MIB * np.arange(steps))
    assert slope.grows
    assert (slope.bytes_per_step, slope.steps) == (MIB, steps)
    assert (slope.ci_low, slope.ci_high) == pytest.approx((MIB, MIB))


PLANTED: dict[str, Levels] = {
    "of random size": lambda rng, steps: rng.uniform(0, 2 * MIB, steps).cumsum(),
    "in every second step": lambda rng, steps: np.arange(steps) // 2 * 2 * MIB,
    "in every fifth step": lambda rng, steps: np.arange(steps) // 5 * 5 * MIB,
    "under noise": lambda rng, steps: np.arange(steps) * MIB + rng.normal(0, MIB, steps),
    "under garbage": lambda rng, steps: np.arange(steps) * MIB + sawtooth(7)(rng, steps) * MIB,
    "under what stays": lambda rng, steps: (np.arange(steps) + autoregressive(0.9)(rng, steps)) * MIB,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_leak_that_is_uneven_is_seen_in_9_of_10_runs(name: str) -> None:
    rng = np.random.default_rng(3)
    found = [known(PLANTED[name](rng, STEPS)) for _ in range(50)]
    assert sum(slope.grows for slope in found) >= 45
    assert np.median([slope.bytes_per_step for slope in found]) == pytest.approx(MIB, rel=0.03)


def test_too_few_steps_allow_no_interval() -> None:
    short = memory_slope(np.arange(FEWEST_STEPS - 1))
    assert short is not None
    assert (short.bytes_per_step, short.ci_low, short.ci_high) == (1, None, None)
    assert not short.grows
    assert not short.excludes_zero
    assert memory_slope([5]) is None
    assert memory_slope([5, None, 8]) == Slope(1.5, None, None, 2)
    assert memory_slope([]) is None
    assert memory_slope([None, float("nan"), 3]) is None


@pytest.mark.parametrize(
    ("low", "high", "excludes", "grows"),
    [
        (1, 2, True, True),
        (0, 2, False, False),
        (-2, 0, False, False),
        (-2, -1, True, False),
        (None, None, False, False),
    ],
)
def test_memory_grows_if_its_interval_is_above_zero(low: Any, high: Any, excludes: bool, grows: bool) -> None:
    slope = Slope(1.0, low, high, 30)
    assert (slope.excludes_zero, slope.grows) == (excludes, grows)


def test_unknown_readings_leave_their_places_empty() -> None:
    levels = [float(7 * place) for place in range(30)]
    levels[0] = levels[11] = levels[12] = float("nan")
    assert known(levels).bytes_per_step == 7
    assert known([None if level != level else level for level in levels]).steps == 27


LEVELS = arrays(np.int64, st.integers(FEWEST_STEPS, 45), elements=st.integers(0, 2**40))


@settings(max_examples=30)
@given(LEVELS, st.integers(0, 2**45), st.sampled_from([2, 3, 1024]))
def test_where_it_starts_its_unit_and_its_sign_play_no_part(levels: np.ndarray, start: int, factor: int) -> None:
    up, often, down = known(levels), known(levels * factor), known(-levels)
    assert memory_slope(levels + start) == up
    assert _figures(often) == pytest.approx([factor * value for value in _figures(up)], rel=1e-6, abs=1e-3)
    turned = [-down.bytes_per_step, -(down.ci_high or 0), -(down.ci_low or 0)]
    assert _figures(up) == pytest.approx(turned, rel=1e-6, abs=1e-3)
    assert up.excludes_zero == down.excludes_zero


def _figures(slope: Slope) -> list[float]:
    return [slope.bytes_per_step, slope.ci_low or 0, slope.ci_high or 0]
