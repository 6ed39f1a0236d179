"""A dynamic batcher simulated from measured batches: what it gains, what it costs, when it is overrun."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch

import perfnb
from perfnb.inference.batching import Batcher, Batching, simulate_batches
from perfnb.inference.latency import Latency
from tests.fake_clock import FakeClock
from tests.inference.test_latency import words_of


def linear(fixed_ms: float, each_ms: float) -> Batching:
    """Return batches whose time is a constant and so much a request."""
    return Batching({size: np.full(100, fixed_ms + each_ms * size) for size in (1, 2, 4, 8, 16)})


def test_batches_pay_where_a_request_more_costs_little() -> None:
    batching = linear(9.0, 1.0)

    assert batching.gain == pytest.approx((16 / 25) / (1 / 10))
    assert batching.sizes["marginal_ms"].dropna().tolist() == pytest.approx([1.0] * 4)
    assert pd.isna(batching.sizes["marginal_ms"].iloc[0])
    best = batching.best(200)  # one by one 100 a second are served
    assert best is not None
    assert best.most > 1
    assert np.isfinite(best.p99_ms)
    assert np.isinf(batching.at(200, 1, 0.0).p99_ms)


def test_batches_do_not_pay_where_each_request_costs_the_same() -> None:
    batching = linear(0.0, 10.0)

    assert batching.gain == pytest.approx(1.0)
    assert batching.best(50).most == 1
    assert batching.best(101) is None


def test_delay_costs_as_much_as_it_is_at_low_load() -> None:
    batching = linear(9.0, 1.0)

    assert batching.at(0.5, 8, 20.0).p50_ms == pytest.approx(30.0, rel=0.01)
    assert batching.at(0.5, 8, 0.0).p50_ms == pytest.approx(10.0, rel=0.01)


def test_sizes_between_those_measured_are_interpolated() -> None:
    batching = linear(9.0, 1.0)

    assert batching.at(10**9, 16, 0.0).batch_size == pytest.approx(16, rel=0.01)
    assert batching._time(3, 0.5) == pytest.approx(12.0)


def test_of_settings_that_are_as_good_the_simplest_is_best() -> None:
    found = linear(9.0, 1.0).best(0.5)

    assert found is not None
    assert (found.most, found.delay_ms) == (1, 0.0)


def test_the_batcher_for_a_bound_serves_the_highest_rate_within_it() -> None:
    batching = linear(9.0, 1.0)

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


def test_a_bad_quantile_is_refused() -> None:
    with pytest.raises(ValueError, match=r"quantile must be 0\.5, 0\.95 or 0\.99"):
        linear(1, 1).best(1, 0.9)


@pytest.mark.deep
def test_real_batches_are_measured() -> None:
    seen = set()

    class Model(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.add(len(x))
            return super().forward(x)

    found = perfnb.latency(Model(4, 4), [torch.randn(4) for _ in range(3)], batch=torch.stack, budget_s=0.5)

    assert {1, 2, 4} <= seen
    assert found.batching.sizes.index[0] == 1
    assert "Measured batches" in str(found)
    with pytest.raises(ValueError, match="Batches were not measured"):
        perfnb.latency(lambda x: x, [1], budget_s=0.05).batching  # noqa: B018
    with pytest.raises(TypeError, match="batch must be a function that makes one input"):
        perfnb.latency(lambda x: x, [1], batch=3)


def test_a_batch_that_leaves_requests_out_is_noticed(clock: FakeClock) -> None:
    def found(batch: Callable[[list[int]], list[int]]) -> Latency:
        return perfnb.latency(lambda _: clock.pass_exactly(50), [1, 2, 3], batch=batch, budget_s=6)

    words = "No part of the input that batch= makes from 2 requests has the length 2"
    assert words in words_of(found(lambda given: given[:1]))
    assert words not in words_of(found(list))


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
    tried = linear(9.0, 1.0).grid(10.0)
    assert tried["most"].tolist() == [1] + [size for size in (2, 4, 8, 16) for _ in range(6)]
    assert tried["delay_ms"].tolist() == [0.0] + [0.0, 2.5, 5.0, 10.0, 20.0, 40.0] * 4
