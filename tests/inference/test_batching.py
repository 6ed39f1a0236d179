"""A dynamic batcher simulated from measured batches: what it gains, what it costs, when it is overrun."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from perfnb.inference.batching import Batcher, Batching, simulate_batches
from perfnb.inference.request_runner import RequestRunner
from perfnb.inference.serving import Requests
from tests.fake_clock import FakeClock


def linear(fixed_ms: float, each_ms: float, *sizes: int) -> Batching:
    """Return batches whose time is a constant and so much a request."""
    return Batching({size: np.full(100, fixed_ms + each_ms * size) for size in sizes or (1, 2, 4, 8, 16)})


def test_batches_pay_where_a_request_more_costs_little() -> None:
    batching = linear(9.0, 1.0)
    assert batching.gain == pytest.approx((16 / 25) / (1 / 10))
    assert batching.sizes["marginal_ms"].dropna().tolist() == pytest.approx([1.0] * 4)
    assert linear(0.0, 10.0).gain == pytest.approx(1.0)


def batcher(most: int, delay_ms: float, p99_ms: float) -> Batcher:
    return Batcher(most, delay_ms, 10.0, 9.0, 9.0, p99_ms, 1.0, 0.5, 10.0)


@pytest.mark.parametrize(
    ("p99_ms", "best"),
    [
        ([21.1, 21.0, 20.0], (2, 0.0)),  # the first of those within 5 % of the lowest
        ([21.0, 20.0, 20.0], (1, 0.0)),
        ([np.inf, np.inf, 9.0], (2, 5.0)),
        ([np.inf] * 3, None),
    ],
)
def test_of_settings_that_are_as_good_the_simplest_is_best(
    p99_ms: list[float], best: tuple[int, float] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [(1, 0.0), (2, 0.0), (2, 5.0)]
    known = {setting: batcher(*setting, ms) for setting, ms in zip(settings, p99_ms, strict=True)}
    monkeypatch.setattr(Batching, "_settings", settings)
    monkeypatch.setattr(Batching, "at", lambda self, rate, most, delay_ms: known[most, delay_ms])

    found = linear(9.0, 1.0).best(10.0)

    assert (found and (found.most, found.delay_ms)) == best
    assert linear(9.0, 1.0).best(10.0, 0.95) == (known[1, 0.0])
    with pytest.raises(ValueError, match=r"quantile must be 0\.5, 0\.95 or 0\.99"):
        linear(9.0, 1.0).best(10.0, 0.9)


def test_delay_costs_as_much_as_it_is_at_low_load() -> None:
    batching = linear(9.0, 1.0)

    assert batching.at(0.5, 8, 20.0).p50_ms == pytest.approx(30.0, rel=0.01)
    assert batching.at(0.5, 8, 0.0).p50_ms == pytest.approx(10.0, rel=0.01)


def test_sizes_between_those_measured_are_interpolated() -> None:
    batching = linear(9.0, 1.0)

    assert batching.at(10**9, 16, 0.0).batch_size == pytest.approx(16, rel=0.01)
    assert batching._time(3, 0.5) == pytest.approx(12.0)


def test_the_batcher_for_a_bound_serves_the_highest_rate_within_it() -> None:
    batching = linear(9.0, 1.0, 1, 16)

    found = batching.best_within(60.0)

    assert found is not None
    assert found.p99_ms <= 60
    assert found == batching.at(found.rate_per_s, found.most, found.delay_ms)
    assert 100 < found.rate_per_s < 640  # more than one by one, less than full batches of 16
    for most, delay_ms in batching._settings:
        assert batching.at(1.06 * found.rate_per_s, most, delay_ms).p99_ms > 60
    assert batching.best_within(9.0) is None
    with pytest.raises(ValueError, match="bound_ms must be"):
        batching.best_within(-1)


@pytest.mark.parametrize(("batch", "short"), [(list, None), (lambda given: given[:1], 2), (lambda given: given[:3], 4)])
def test_batches_are_measured_while_there_is_time_and_one_that_leaves_requests_out_is_noticed(
    batch: Callable[[list[int]], list[int]], short: int | None, clock: FakeClock
) -> None:
    runner = RequestRunner(abs, Requests([1, 2, 3]), 1, lambda *_: None)

    times, found = runner.in_batches(lambda given: clock.pass_exactly(10 + 40 * (len(given) > 4)), batch, 1.2)

    assert found == short
    assert all(ms == pytest.approx(10, rel=0.01) for size in (2, 4) for ms in times[size])
    assert (len(times), max(times)) == (2, 4) if short is None else len(times) >= 2


@pytest.mark.parametrize(
    ("arrivals", "most", "delay_ms", "servers", "latency", "sizes", "busy"),
    [
        # Full at 2; then the first has waited 3; the last two come together.
        ([0, 1, 2, 10, 20, 20], 2, 3.0, 1, [7, 6, 10, 8, 6, 6], [2, 1, 1, 2], 22 / 26),
        # The server is busy until 6 and takes what waits by then, at most 3.
        ([0, 1, 2, 3, 4, 30], 3, 0.0, 1, [5, 11, 10, 9, 13, 5], [1, 3, 1, 1], 22 / 35),
        # Two servers, one by one.
        ([0, 1, 2, 9], 1, 7.0, 2, [5, 5, 8, 5], [1, 1, 1, 1], 20 / 2 / 14),
        # Never full: each batch waits for its delay.
        ([0, 4, 5], 9, 4.5, 1, [10.5, 6.5, 10.5], [2, 1], 11 / 15.5),
    ],
)
def test_batches_by_hand(
    arrivals: list[float], most: int, delay_ms: float, servers: int, latency: list[float], sizes: list[int],
    busy: float,
) -> None:  # fmt: skip
    found, made, share = simulate_batches(
        np.array(arrivals, dtype=float), lambda size: 4.0 + size, most, delay_ms, servers
    )
    assert found.tolist() == latency
    assert made == sizes
    assert share == pytest.approx(busy)


def test_the_table_of_sizes_by_hand() -> None:
    sizes = Batching({4: [20.0, 24.0, 22.0], 1: [10.0] * 6}, servers=2).sizes
    assert sizes.index.tolist() == [1, 4]
    assert sizes["median_ms"].tolist() == [10.0, 22.0]
    assert sizes["ci_low_ms"].tolist() == [10.0, pd.NA]
    assert sizes["per_request_ms"].tolist() == [10.0, 5.5]
    assert sizes["requests_per_s"].tolist() == pytest.approx([200.0, 2000 / 5.5])
    assert sizes["marginal_ms"].tolist() == [pd.NA, 4.0]
    assert sizes["batches"].tolist() == [6, 3]


def test_a_batcher_states_its_setting_and_what_it_does() -> None:
    made = Batcher(8, 20.0, 150.0, 30.0, 40.0, 50.0, 3.0, 0.5, 150.0)
    assert repr(made) == "<perfnb.Batcher: at most 8, 20.0 ms delay, at 150/s: p99 50.0 ms>"
    overrun = linear(9.0, 1.0).at(641.0, 16, 0.0)
    assert repr(overrun).endswith("p99 infinite>")
    assert (overrun.served_per_s, overrun.utilization) == (pytest.approx(640.0), pytest.approx(1.0, abs=0.01))
    assert (overrun.p50_ms, overrun.p95_ms) == (np.inf, np.inf)
    assert linear(9.0, 1.0).at(100.0, 1, 0.0).p50_ms == np.inf  # as many as it serves
    below = linear(9.0, 1.0).at(50.0, 1, 0.0)
    assert (below.served_per_s, below.batch_size) == (50.0, 1.0)
    assert below.utilization == pytest.approx(0.5, abs=0.02)


def test_the_settings_that_are_tried_are_the_sizes_with_delays_of_parts_of_a_request_alone() -> None:
    delays = [0.0, 2.5, 5.0, 10.0, 20.0, 40.0]
    assert linear(9.0, 1.0)._settings == [(1, 0.0)] + [(size, delay) for size in (2, 4, 8, 16) for delay in delays]
    assert linear(9.0, 1.0, 1, 2).grid(10.0)["most"].tolist() == [1] + [2] * 6
