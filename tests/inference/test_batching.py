"""A dynamic batcher simulated from measured batches: what it gains, what it costs, when it is overrun."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch

import perfnb
from perfnb.inference.batching import Batching
from perfnb.inference.latency import Latency
from tests.fake_clock import FakeClock
from tests.inference.test_latency import words_of


def linear(fixed_ms: float, each_ms: float) -> Batching:
    """Batches whose time is a constant and so much a request."""
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
    assert "Batches, measured" in str(found)
    with pytest.raises(ValueError, match="Batches were not measured"):
        perfnb.latency(lambda x: x, [1], budget_s=0.05).batching  # noqa: B018
    with pytest.raises(TypeError, match="batch must make one input"):
        perfnb.latency(lambda x: x, [1], batch=3)


def test_a_batch_that_leaves_requests_out_is_noticed(clock: FakeClock) -> None:
    def found(batch: Callable[[list[int]], list[int]]) -> Latency:
        return perfnb.latency(lambda _: clock.pass_exactly(50), [1, 2, 3], batch=batch, budget_s=6)

    words = "Nothing in the input that batch= makes of 2 requests has the length 2"
    assert words in words_of(found(lambda given: given[:1]))
    assert words not in words_of(found(list))
