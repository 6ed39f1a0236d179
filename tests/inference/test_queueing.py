"""Queues against closed forms: M/M/1, M/D/1, M/G/1, M/M/2, an independent simulation, and coverage of intervals."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest

from perfnb.inference import queueing
from perfnb.inference.queueing import (
    RUNS,
    Pauses,
    poisson_arrivals,
    served_in_turn,
    simulate,
    simulate_batches,
    waits,
)

REQUESTS = 10**6


@pytest.mark.parametrize("busy", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("kind", ["exponential", "constant", "lognormal"])
def test_the_mean_wait_of_one_server_is_that_of_pollaczek_and_khinchine(kind: str, busy: float) -> None:
    rng = np.random.default_rng(4)
    draw = {
        "exponential": lambda: rng.exponential(1.0, REQUESTS),
        "constant": lambda: np.ones(REQUESTS),
        "lognormal": lambda: rng.lognormal(-0.125, 0.5, REQUESTS),  # mean 1
    }[kind]
    second_moment = {"exponential": 2.0, "constant": 1.0, "lognormal": math.exp(0.25)}[kind]

    runs = [waits(poisson_arrivals(REQUESTS, 1e3 * busy, rng), draw()).mean() for _ in range(12)]

    assert np.mean(runs) == pytest.approx(busy * second_moment / (2 * (1 - busy)), rel=0.02)


@pytest.mark.parametrize("busy", [0.5, 0.8, 0.9])
def test_the_mean_wait_of_two_servers_is_that_of_erlang(busy: float) -> None:
    rng = np.random.default_rng(5)

    runs = [
        waits(poisson_arrivals(REQUESTS, 2e3 * busy, rng), rng.exponential(1.0, REQUESTS), servers=2).mean()
        for _ in range(1 if busy < 0.9 else 4)
    ]

    assert np.mean(runs) == pytest.approx(busy**2 / (1 - busy**2), rel=0.02)


def test_p99_of_two_service_times_is_that_of_a_simulation_by_events() -> None:
    rng = np.random.default_rng(6)
    service = np.where(rng.random(200_000) < 0.9, 1.0, 6.0)
    arrivals = poisson_arrivals(len(service), 500, rng)

    found = np.quantile(waits(arrivals, service) + service, 0.99)

    assert found == pytest.approx(np.quantile(_by_events(arrivals, service), 0.99), rel=1e-9)


def _by_events(arrivals: np.ndarray, service: np.ndarray) -> list[float]:
    """Latencies of one server, by a heap of events: 0 a request arrives, 1 the server has finished."""
    events = [(float(at), 0, place) for place, at in enumerate(arrivals)]
    heapq.heapify(events)
    queue: list[int] = []
    serving, latency = False, [0.0] * len(arrivals)
    while events:
        now, kind, place = heapq.heappop(events)
        if kind == 0:
            queue.append(place)
        else:
            latency[place], serving = now - arrivals[place], False
        if not serving and queue:
            first, serving = queue.pop(0), True
            heapq.heappush(events, (now + service[first], 1, first))
    return latency


def test_several_runs_at_once_are_as_one_by_one() -> None:
    rng = np.random.default_rng(7)
    arrivals, service = np.cumsum(rng.exponential(1.0, (3, 500)), axis=1), rng.exponential(0.8, (3, 500))

    for servers in (1, 2):
        assert np.allclose(
            waits(arrivals, service, servers), [waits(*run, servers) for run in zip(arrivals, service, strict=True)]
        )


def test_p99_and_the_highest_rate_are_those_of_a_queue_with_exponential_times() -> None:
    loads = simulate(np.random.default_rng(8).exponential(1.0, 20_000))

    p99 = loads.summed_up(loads.at(500, [0.99])[:, 0])
    rate = loads.highest_rate(math.log(100) / 0.2, 0.99)  # p99 = ln 100 / (1 - busy), in mean service times

    assert p99[1] <= math.log(100) / 0.5 <= p99[2]
    assert p99[0] == pytest.approx(math.log(100) / 0.5, rel=0.06)
    assert rate[1] <= 800 <= rate[2]
    assert rate[0] == pytest.approx(800, rel=0.03)


def test_a_bound_below_every_service_time_allows_no_rate() -> None:
    loads = simulate(np.full(500, 5.0), runs=20)

    assert loads.highest_rate(4.0, 0.99)[0] == 0
    assert loads.highest_rate(1e6, 0.99)[0] == pytest.approx(0.985 * 200)


def test_requests_that_come_faster_than_they_are_served_wait_without_end() -> None:
    loads = simulate(np.full(500, 5.0), runs=20)

    assert loads.summed_up(loads.at(201, [0.5])[:, 0]) == (math.inf, math.inf, math.inf)


def test_a_higher_rate_never_means_a_shorter_wait() -> None:
    loads = simulate(np.random.default_rng(9).lognormal(0, 1, 700), runs=30)

    found = np.stack([loads.at(loads.rate(each), [0.5, 0.99]) for each in (0.1, 0.3, 0.5, 0.7, 0.9)])

    assert (np.diff(np.nan_to_num(found, posinf=1e12), axis=0) >= -1e-9).all()


@pytest.mark.parametrize(
    ("kind", "runs", "requests"),
    [
        ("lognormal", 40, 3_000),
        pytest.param("lognormal", RUNS, queueing.REQUESTS, marks=pytest.mark.simulation),
        pytest.param("bimodal", RUNS, queueing.REQUESTS, marks=pytest.mark.simulation),
    ],
)
def test_intervals_of_a_load_curve_hold_the_truth(
    kind: str, runs: int, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With shorter runs, which makes intervals wider by little, in `make test`."""
    monkeypatch.setattr(queueing, "REQUESTS", requests)
    rng = np.random.default_rng(10)

    def draw(count: int) -> np.ndarray:
        if kind == "lognormal":
            return rng.lognormal(0.0, 0.5, count)
        return np.where(rng.random(count) < 0.95, 1.0, 5.0) * rng.lognormal(0.0, 0.1, count)

    everything = draw(REQUESTS if runs < RUNS else 4 * REQUESTS)
    held = 0
    for busy, quantile in ((0.5, 0.5), (0.7, 0.99), (0.8, 0.95), (0.9, 0.99)):
        rate = busy * 1e3 / float(everything.mean())
        latency = waits(poisson_arrivals(len(everything), rate, rng), everything) + everything
        truth = float(np.quantile(latency, quantile))
        for number in range(50):
            loads = simulate(draw(500), seed=number, runs=runs)
            _, low, high = loads.summed_up(loads.at(rate, [quantile])[:, 0])
            held += low <= truth <= high

    assert held >= 182


def test_a_batcher_takes_what_waits_when_it_is_full_or_the_first_has_waited_long_enough() -> None:
    arrivals = np.array([0.0, 1.0, 2.0, 20.0, 50.0, 50.0, 50.0, 50.0])

    found = simulate_batches(arrivals, lambda size: 2.0 + size, most=3, delay_ms=5.0)

    # 0, 1 and 2 fill a batch at 2, which is done at 7; 20 waits 5 for others, then 3; three of the last four fill a
    # batch at 50, done at 55; the fourth has waited 5 by then, and is done at 58.
    assert found.sizes.tolist() == [3, 1, 3, 1]
    assert found.latency_ms.tolist() == [7.0, 6.0, 5.0, 8.0, 5.0, 5.0, 5.0, 8.0]


def test_without_delay_and_with_batches_of_one_a_batcher_is_a_queue() -> None:
    rng = np.random.default_rng(11)
    arrivals = poisson_arrivals(5_000, 800, rng)
    for servers in (1, 2):
        found = simulate_batches(arrivals, lambda size: 1.0, most=1, delay_ms=0.0, servers=servers)

        assert np.allclose(found.latency_ms, waits(arrivals, np.ones(len(arrivals)), servers) + 1.0)


def test_the_mean_wait_after_exceptional_first_services_is_that_of_welch() -> None:
    rng, rate, extra = np.random.default_rng(10), 0.6, 0.7
    service = rng.exponential(1.0, (40, REQUESTS // 20))
    arrivals = np.cumsum(rng.exponential(1 / rate, service.shape), axis=1)
    always = Pauses(np.array([0.0, 1e-9]), np.array([0.0, extra]), np.ones(len(service)))

    waited, taken = served_in_turn(arrivals, service, 1, always)

    first, usual = 1 + extra, 1.0  # means of a service after a pause, and of others
    second_first, second_usual = 2 + 2 * extra + extra**2, 2.0  # moments
    waits_usually = rate * second_usual / (2 * (1 - rate * usual))
    expected = waits_usually + rate * (second_first - second_usual) / (2 * (1 - rate * usual + rate * first))
    assert waited.mean() == pytest.approx(expected, rel=0.02)
    idle = (1 - rate * usual) / (1 - rate * usual + rate * first)  # share of requests that find the server idle
    assert (taken - service).mean() == pytest.approx(idle * extra, rel=0.02)


@pytest.mark.parametrize("servers", [1, 2])
def test_what_pauses_add_is_that_of_a_simulation_one_by_one(servers: int) -> None:
    rng = np.random.default_rng(11)
    arrivals, service = np.cumsum(rng.exponential(2.0, (2, 400)), axis=1), rng.exponential(1.0, (2, 400))
    pauses = Pauses(np.array([0.0, 1.0, 4.0]), np.array([0.0, 0.2, 1.0]), np.array([1.0, 0.5]))

    waited, taken = served_in_turn(arrivals, service, servers, pauses)

    for run, scale in enumerate(pauses.scale):
        free = [0.0] * servers
        for place, (arrival, each) in enumerate(zip(arrivals[run], service[run], strict=True)):
            idle = min(4.0, max(0.0, arrival - min(free)))
            extra = scale * (0.2 * idle if idle < 1 else 0.2 + 0.8 * (idle - 1) / 3)
            start = max(arrival, min(free))
            free[free.index(min(free))] = start + each + extra
            assert waited[run, place] == pytest.approx(start - arrival)
            assert taken[run, place] == pytest.approx(each + extra)


def test_a_rate_that_is_too_low_for_a_bound_does_not_hide_the_highest() -> None:
    alone = simulate(np.full(500, 1.0), runs=20)
    paused = simulate(np.full(500, 1.0), extra_ms={0.5: np.zeros(20), 50.0: np.full(20, 9.0)}, runs=20)

    rate, low, high = paused.highest_rate(5.0, 0.99)

    assert paused.at(10, [0.99])[0, 0] > 5.0  # after pauses of 100 ms
    assert 0 < low <= rate <= high
    assert 0.9 < rate / alone.highest_rate(5.0, 0.99)[0] <= 1  # where it is hardly ever idle
