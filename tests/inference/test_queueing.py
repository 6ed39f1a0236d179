"""Queues against closed forms: M/M/1, M/D/1, M/G/1, M/M/2, an independent simulation, and coverage of intervals."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfnb.inference import queueing
from perfnb.inference.queueing import Pauses, poisson_arrivals, served_in_turn, simulate


def waits(arrivals_ms: np.ndarray, service_ms: np.ndarray) -> np.ndarray:
    """Waits for one server that starts idle (Lindley): the distance of a random walk from its minimum so far."""
    walk = np.cumsum(np.append(0.0, service_ms[:-1] - np.diff(arrivals_ms)))
    return walk - np.minimum.accumulate(walk)


def estimate(loads: queueing.Loads, busy: float, quantile: float) -> tuple[float, float]:
    """Return the quantile of latency and the mean wait at a utilization."""
    found = loads.at(loads.rate(busy), [quantile])[0]
    return float(found[0]), float(found[1])


#: Measured service times: their values, and how many of 1,000 have each.
KINDS = {"constant": {1.0: 1000}, "bimodal": {1.0: 950, 20.0: 50}, "rarely slow": {1.0: 980, 50.0: 20}}


def measured(kind: str) -> np.ndarray:
    times = KINDS[kind]
    return np.random.default_rng(2).permutation(np.repeat([*times], [*times.values()]))


def _p99_in_steady_state(times: np.ndarray, busy: float) -> float:
    """p99 of latency in M/G/1, from the transform of Pollaczek and Khinchine, by Fourier transform."""
    values, counts = np.unique(times, return_counts=True)
    mean_wait = busy * float(np.mean(times**2)) / float(np.mean(times)) / (2 * (1 - busy))
    cells = 2**17
    width = (25 * mean_wait + 30 * float(times.max())) / cells
    edges = np.arange(cells + 1) * width
    left = np.diff(sum(count * np.minimum(edges, value) for value, count in zip(values, counts, strict=True)))
    remainder = np.fft.fft(left / times.sum()) * np.exp(-1j * np.pi * np.fft.fftfreq(cells))  # centres of cells
    service = np.zeros(cells)
    service[np.round(values / width).astype(int)] = counts / len(times)
    density = np.fft.ifft((1 - busy) / (1 - busy * remainder) * np.fft.fft(service)).real
    return float(edges[np.searchsorted(np.cumsum(density), 0.99)])


@pytest.mark.parametrize(("kind", "busy"), [("constant", 0.95), ("bimodal", 0.5), ("rarely slow", 0.95)])
def test_p99_and_the_mean_wait_are_those_of_the_steady_state(kind: str, busy: float) -> None:
    times = measured(kind)

    p99, wait = estimate(simulate(times), busy, 0.99)

    assert p99 == pytest.approx(_p99_in_steady_state(times, busy), rel=0.06)
    assert wait == pytest.approx(busy * np.mean(times**2) / times.mean() / (2 * (1 - busy)), rel=0.06)


@pytest.mark.parametrize(("servers", "busy"), [(1, 0.5), (2, 0.9)])
def test_waits_and_rates_of_exponential_times_are_those_of_erlang(servers: int, busy: float) -> None:
    times = -np.log(1 - (np.arange(2_000) + 0.5) / 2_000)
    loads = simulate(np.random.default_rng(5).permutation(times), servers, runs=100)

    p99, wait = estimate(loads, busy, 0.99)

    assert wait == pytest.approx(busy**servers / (1 - busy**servers), rel=0.06)
    if servers == 1:
        assert p99 == pytest.approx(math.log(100) / (1 - busy), rel=0.06)
        rate, low, high = loads.highest_rate(math.log(100) / 0.2, 0.99)
        assert rate == pytest.approx(800, rel=0.03)
        assert low <= 800 <= high


def test_the_time_between_requests_takes_room_and_is_in_no_latency() -> None:
    times = np.full(500, 0.8)
    loads = simulate(times, between_ms=0.2, runs=40)

    p99, wait = estimate(loads, 0.8, 0.99)

    assert loads.rate(1.0) == pytest.approx(1000)
    assert wait == pytest.approx(0.8 / (2 * (1 - 0.8)), rel=0.06)  # as of requests that take 1 ms
    assert p99 == pytest.approx(_p99_in_steady_state(np.ones(500), 0.8) - 0.2, rel=0.06)
    assert loads.highest_rate(5.0, 0.99)[0] < 0.85 * simulate(times, runs=40).highest_rate(5.0, 0.99)[0]


def test_p99_of_service_times_that_come_together_is_that_of_one_long_run() -> None:
    rng, requests = np.random.default_rng(13), 400_000
    slow = np.repeat(rng.random(400) < 0.3, 10)  # ten slow ones after each other
    times = np.where(slow, 3.0, 1.0)
    arrivals = poisson_arrivals(requests, 0.9 * 1e3 / float(times.mean()), rng)
    starts = rng.integers(0, len(times), (requests // 16, 1))
    again = times[(starts + np.arange(16)) % len(times)].ravel()

    p99, _ = estimate(simulate(times), 0.9, 0.99)

    assert p99 == pytest.approx(np.quantile(waits(arrivals, again) + again, 0.99), rel=0.1)
    assert estimate(simulate(rng.permutation(times)), 0.9, 0.99)[0] < 0.7 * p99


def test_a_bound_below_every_service_time_allows_no_rate_and_a_queue_may_have_no_end() -> None:
    loads = simulate(np.full(500, 5.0), runs=8)

    assert loads.highest_rate(4.0, 0.99)[0] == 0
    assert loads.highest_rate(1e6, 0.99)[0] == pytest.approx(0.985 * 200)
    assert loads.summed_up(loads.at(201, [0.5])[:, 0]) == (math.inf, math.inf, math.inf)


def test_a_higher_rate_never_means_a_shorter_wait() -> None:
    loads = simulate(np.random.default_rng(9).lognormal(0, 1, 700), runs=30)

    found = np.stack([loads.at(loads.rate(each), [0.5, 0.99]) for each in (0.1, 0.3, 0.5, 0.7, 0.9)])

    assert (np.diff(np.nan_to_num(found, posinf=1e12), axis=0) >= -1e-9).all()


@pytest.mark.simulation
@pytest.mark.parametrize("kind", ["lognormal", "bimodal"])
def test_intervals_of_a_load_curve_hold_the_truth(kind: str) -> None:
    rng = np.random.default_rng(10)

    def draw(count: int) -> np.ndarray:
        if kind == "lognormal":
            return rng.lognormal(0.0, 0.5, count)
        return np.where(rng.random(count) < 0.95, 1.0, 5.0) * rng.lognormal(0.0, 0.1, count)

    everything = draw(4_000_000)
    held = 0
    for busy, quantile in ((0.5, 0.5), (0.7, 0.99), (0.8, 0.95), (0.9, 0.99)):
        rate = busy * 1e3 / float(everything.mean())
        latency = waits(poisson_arrivals(len(everything), rate, rng), everything) + everything
        truth = float(np.quantile(latency, quantile))
        for number in range(50):
            loads = simulate(draw(500), seed=number)
            _, low, high = loads.summed_up(loads.at(rate, [quantile])[:, 0])
            held += low <= truth <= high

    assert held >= 182


@pytest.mark.parametrize("servers", [1, 2])
def test_what_pauses_add_is_that_of_a_simulation_one_by_one(servers: int) -> None:
    rng = np.random.default_rng(11)
    arrivals, service = np.cumsum(rng.exponential(2.0, (400, 2)), axis=0), rng.exponential(1.0, (400, 2))
    pauses = Pauses(np.array([0.0, 1.0, 4.0]), np.array([0.0, 0.2, 1.0]), np.array([1.0, 0.5]))

    waited, taken = served_in_turn(arrivals, service, servers, pauses=pauses, between_ms=0.1)

    for run, scale in enumerate(pauses.scale):
        free = [0.0] * servers
        for place, (arrival, each) in enumerate(zip(arrivals[:, run], service[:, run], strict=True)):
            idle = min(4.0, max(0.0, arrival - min(free)))
            extra = scale * (0.2 * idle if idle < 1 else 0.2 + 0.8 * (idle - 1) / 3)
            start = max(arrival, min(free))
            free[free.index(min(free))] = start + each + extra + 0.1
            assert waited[place, run] == pytest.approx(start - arrival)
            assert taken[place, run] == pytest.approx(each + extra)


def test_a_rate_that_is_too_low_for_a_bound_does_not_hide_the_highest() -> None:
    alone = simulate(np.full(500, 1.0), runs=12)
    paused = simulate(np.full(500, 1.0), extra_ms={0.5: np.zeros(20), 50.0: np.full(20, 9.0)}, runs=12)

    rate, low, high = paused.highest_rate(5.0, 0.99)

    assert paused.at(10, [0.99])[0, 0] > 5.0  # after pauses of 100 ms
    assert 0 < low <= rate <= high
    assert 0.9 < rate / alone.highest_rate(5.0, 0.99)[0] <= 1  # where it is hardly ever idle


@pytest.mark.parametrize(
    ("latency", "bound", "rate"),
    [
        ([5, 6, 7, 8], 4.9, 0),
        ([5, 6, 7, 8], 6, 2),
        ([5, 6, 7, 9], 8, 3.5),
        ([5, 6, 7, 8], 8, 4),
        ([5, 6, math.inf, math.inf], 7, 2),
        ([9, 5, 7, 9], 6, 2.5),  # a low rate is too high for the bound because of pauses
    ],
)
def test_the_rate_at_a_bound_is_interpolated(latency: list[float], bound: float, rate: float) -> None:
    assert queueing._crossing(np.arange(1.0, 5.0), np.array(latency, dtype=float), bound) == rate


@pytest.mark.parametrize(
    ("estimate", "summed_up"),
    [
        (50.0, (50, 2, 97)),
        (40.0, (40, 0, 92)),  # Efron: the percentiles of two normal distributions, moved by twice -0.253
        (200.0, (200, 99, 200)),
        (-5.0, (-5, -5, 0)),
        (math.inf, (math.inf, 0, math.inf)),
    ],
)
def test_intervals_are_percentiles_of_the_resampled_runs_corrected_for_bias(
    estimate: float, summed_up: tuple[float, float, float]
) -> None:
    loads: Any = SimpleNamespace(own=2)
    runs = np.random.default_rng(1).permutation(100).astype(float)
    assert queueing.Loads.summed_up(loads, np.append([estimate, 7.0], runs)) == summed_up
    assert queueing.Loads.summed_up(loads, np.append([3.0, 7.0], runs), estimate) == summed_up
    above_all = np.append([2e4, 7.0], np.arange(1e4))
    assert queueing.Loads.summed_up(loads, above_all) == (2e4, 9999, 2e4)


def test_what_runs_are_made_of_by_hand() -> None:
    rng = np.random.default_rng(2)
    assert np.sort(queueing._remainders(np.array([[2.0, 4.0]]), 3, rng)).tolist() == [[1, 1, 3]]  # at 1, 3 and 5
    places = queueing._places(rng, (50, 5), 3, 2)
    assert ((places[:, [0, 2]] + 1) % 3 == places[:, [1, 3]]).all()
    assert np.unique(places).tolist() == [0, 1, 2]
    # The sums of three in a row, around the end: 3, 5, 7, 9, 7, 5.
    together = np.array([1.0, 1, 1, 3, 3, 3])
    assert queueing._clustering(together, 3) == pytest.approx((22 / 6 / 3 / 4 + 1) / (1 / 4 + 1))
    assert [queueing._clustering(together, 1), queueing._clustering(together * 0, 3)] == [1, 1]
    pauses = queueing._pauses({2.0: np.array([4.0, 8.0]), 0.5: np.array([-3.0, -1.0])}, 50, 3, rng)
    assert (pauses.pause_ms.tolist(), pauses.extra_ms.tolist()) == ([0, 0.5, 2], [0, 0, 6])
    assert set((6 * pauses.scale[3:]).round(9)) == {4, 6, 8}
    assert pauses.scale[:3].tolist() == [1, 1, 1]
    assert queueing._pauses({2.0: np.zeros(3)}, 4, 1, rng).scale.tolist() == [1] * 4
