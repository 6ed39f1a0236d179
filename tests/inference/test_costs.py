"""What a thousand requests cost: price of time, energy from counters, and why what is not known is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import perfnb
from perfnb.errors import CaptureError
from perfnb.inference.energy import NO_GPU, energy_meter, joules_between
from perfnb.inference.latency import HighestRate, OpenRun
from tests.fake_clock import FakeClock
from tests.inference.latency_samples import back_to_back, fake, words_of


def test_a_thousand_requests_cost_the_time_of_the_machine() -> None:
    times = np.full(400, 10.0)
    found = fake(
        times,
        asked=HighestRate(80.0, 70.0, 90.0, 50.0, 0.99),
        price_per_hour=7.2,
        joules={"closed": NO_GPU, "open": 0.5},
        open_run=OpenRun(20.0, back_to_back(times), 0, 0.0),
    )

    costs = found.costs

    assert costs["requests_per_s"].tolist() == [100, 20, 80]
    assert costs["price"].tolist() == pytest.approx([7.2 / 3600 / rate * 1000 for rate in (100, 20, 80)])
    assert costs["joules"].tolist() == [pd.NA, 500.0, pd.NA]
    assert costs["why"].tolist() == [NO_GPU, "", "it is only measured back to back and at the requested rate"]
    assert "back to back 100 /s 0.0200 n/a at the requested rate 20.0 /s 0.100 500" in words_of(found)
    assert f"Energy n/a: {NO_GPU}." in words_of(found)


def test_a_highest_rate_that_no_run_confirmed_has_no_price() -> None:
    asked = HighestRate(None, 0.0, 80.0, 50.0, 0.99, refuted_per_s=(80.0,))
    found = fake(np.full(400, 10.0), asked=asked, price_per_hour=7.2)

    assert pd.isna(found.costs.loc["highest", "requests_per_s"])
    assert pd.isna(found.costs.loc["highest", "price"])
    assert "at the highest rate n/a n/a" in words_of(found)


def test_without_a_price_there_is_no_cost(clock: FakeClock) -> None:
    found = perfnb.latency(lambda _: clock.pass_exactly(100), [1], rate_per_s=100, budget_s=10)

    assert found.costs["price"].isna().all()
    assert pd.isna(found.costs.loc["open", "requests_per_s"])  # saturated
    assert "Cost of 1,000 requests" not in words_of(found)
    free = perfnb.latency(lambda _: clock.pass_exactly(100), [1], price_per_hour=0, budget_s=1)
    assert free.costs["price"].tolist() == [0.0]
    with pytest.raises(ValueError, match="price_per_hour must be a number of at least 0, not -1"):
        perfnb.latency(lambda _: None, [1], price_per_hour=-1)


def readings(**columns: list[float]) -> dict[str, np.ndarray]:
    return {name: np.array(values, dtype=float) for name, values in columns.items()}


def test_energy_is_that_of_the_gpus_in_use_between_two_instants() -> None:
    seconds = [0.0, 1.0, 2.0, 3.0, 4.0]
    gpus = {
        "gpu0": readings(t_s=seconds, energy_j=[0, 100, 300, 500, 700], torch_allocated_bytes=[0, 1, 1, 1, 1]),
        "gpu1": readings(t_s=seconds, energy_j=[5, 55, 105, 155, 205], torch_allocated_bytes=[9, 9, 9, 9, 9]),
        "gpu2": readings(t_s=seconds, energy_j=[0, 9, 19, 29, 39], torch_allocated_bytes=[0, 0, 0, 0, 0]),
        "host": readings(t_s=seconds),
    }

    assert joules_between(gpus, 0.5, 2.5) == pytest.approx((400 - 50) + (130 - 30))
    assert joules_between({"host": gpus["host"]}, 0, 3) == NO_GPU
    assert "at least 1 s" in str(joules_between(gpus, 0, 0.5))
    unread = {"gpu0": gpus["gpu0"] | {"energy_j": np.full(5, np.nan)}}
    assert "gpu0 has no energy counter" in str(joules_between(unread, 0, 3))
    reset = {"gpu0": gpus["gpu0"] | {"energy_j": np.array([0.0, 100, 3, 5, 7])}}
    assert "was reset" in str(joules_between(reset, 0, 3))


#: A GPU that uses 100 W and is used by torch after 3 s.
EVEN = readings(t_s=[0, 1, 2, 3, 4], energy_j=[7, 107, 207, 307, 407], torch_allocated_bytes=[0, 0, 0, 0, 1])


@pytest.mark.parametrize(
    ("start", "end", "joules"),
    [
        (1.0, 2.0, 100.0),
        (1.0, 1.99, "an energy counter needs a run of at least 1 s"),
        (1.0625, 2.0625, 100.0),  # the readings at 1 and 2 s are near enough
        (1.1, 2.4, 130.0),  # the reading at 1 s is just near enough
        (1.5, 2.9, 140.0),  # and so is the one at 3 s
        (1.2, 2.2, "gpu0 has no energy counter, or it could not be read"),
        (1.05, 2.85, "gpu0 has no energy counter, or it could not be read"),
        (0.5, 3.25, 275.0),
    ],
)
def test_energy_is_known_where_two_readings_are_near_the_run(start: float, end: float, joules: float | str) -> None:
    unread = EVEN | readings(energy_j=[7, 107, np.nan, 307, 407]) if end == 2.85 else EVEN

    found = joules_between({"gpu0": unread}, start, end)

    assert found == (joules if isinstance(joules, str) else pytest.approx(joules))


def test_a_gpu_without_memory_of_torch_is_not_counted_and_one_at_rest_is() -> None:
    of_others = {name: values for name, values in EVEN.items() if name != "torch_allocated_bytes"}
    at_rest = EVEN | readings(energy_j=[5, 5, 5, 5, 5])

    assert joules_between({"gpu0": of_others, "gpu1": EVEN | readings(torch_allocated_bytes=[0] * 5)}, 0, 2) == NO_GPU
    assert joules_between({"gpu0": of_others, "gpu1": EVEN}, 0, 2) == pytest.approx(200)
    assert joules_between({"gpu0": at_rest}, 0, 2) == 0.0


class Watching:
    """Readings that began 5 s after the clock's zero."""

    zero_ns = 5 * 10**9
    stopped = 0

    def __init__(self, interval_s: float) -> None:
        assert interval_s > 0

    def columns(self) -> dict[str, Any]:
        return {"gpu0": EVEN}

    def stop(self) -> None:
        type(self).stopped += 1


def with_gpu(monkeypatch: pytest.MonkeyPatch, watcher: Any, used: bool = True) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: used)
    monkeypatch.setattr("perfnb.inference.energy.Watcher", watcher)


def test_instants_of_the_clock_are_found_among_the_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watching, "stopped", 0)
    with_gpu(monkeypatch, Watching)

    with energy_meter() as meter:
        assert meter(6_000_000_000, 8_500_000_000) == 250  # from 1 to 3.5 s of the readings
        assert Watching.stopped == 0
    assert Watching.stopped == 1


def test_energy_is_unknown_without_a_gpu_in_use_or_a_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: float) -> None:
        raise CaptureError("the sampler did not start")

    with_gpu(monkeypatch, fails)
    with energy_meter() as meter:
        assert meter(0, 2 * 10**9) == "the sampler did not start"
    with_gpu(monkeypatch, fails, used=False)
    with energy_meter() as meter:
        assert meter(0, 2 * 10**9) == NO_GPU
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with energy_meter() as meter:
        assert meter(0, 2 * 10**9) == NO_GPU
