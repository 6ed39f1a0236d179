"""What `latency` says of requests: quantiles only where there are enough, warm-up apart, runs at a rate, views."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import perfnb
from perfnb.inference import latency
from perfnb.inference.queueing import poisson_arrivals
from perfnb.inference.request_runner import SEED
from perfnb.stats.intervals import quantile_interval
from tests.fake_clock import FakeClock
from tests.inference.latency_samples import back_to_back, fake, lognormal


def words_of(found: object) -> str:
    """Return all that a result says, in one line."""
    return " ".join(str(found).split())


@pytest.mark.parametrize(("count", "known", "bounded"), [(298, False, False), (299, True, False), (368, True, True)])
def test_p99_is_given_only_where_there_are_enough_requests(count: int, known: bool, bounded: bool) -> None:
    found = fake(lognormal(count))

    assert (found.quantile_ms(0.99) is not None) == known
    assert (found.quantile_interval_ms(0.99) is not None) == bounded
    assert (found.at(20).p99_ms is not None) == known
    assert found.curve["p99_ms"].notna().all() == known
    assert found.at(20).p50_ms is not None
    if not known:
        assert "p99 of service times n/a" in str(found)
        with pytest.raises(ValueError, match=r"too few for the 0\.99 quantile"):
            found.highest_rate(100)


@pytest.mark.parametrize("kind", ["lognormal", "bimodal"])
@pytest.mark.parametrize("q", [0.5, 0.99])
def test_intervals_of_service_times_hold_the_truth(kind: str, q: float) -> None:
    rng = np.random.default_rng(12)

    def draw(count: int) -> np.ndarray:
        times = rng.lognormal(0.0, 0.5, count)
        return times if kind == "lognormal" else times + 20.0 * (rng.random(count) < 0.03)

    truth = np.quantile(draw(400_000), q)
    held = 0
    for _ in range(200):
        low, high = quantile_interval(draw(500), q)
        held += low <= truth <= high

    assert held >= 182


def test_a_load_has_its_parts_each_with_an_interval() -> None:
    found = fake(np.full(400, 10.0) + np.arange(400) % 2).at(50)

    assert found.utilization == pytest.approx(0.525)
    assert found.service_ms == pytest.approx(10.5)
    assert found.wait_ms == pytest.approx(0.525 * 10.5 / (2 * (1 - 0.525)), rel=0.1)  # almost constant service
    for name in ("p50_ms", "p90_ms", "p95_ms", "p99_ms", "wait_ms", "service_ms", "utilization"):
        low, high = found.intervals[name]
        assert low <= getattr(found, name) <= high


def test_the_highest_rate_is_confirmed_by_a_run() -> None:
    found = fake(lognormal(500)).highest_rate(60, confirm_s=1)

    assert 0 < found.low <= found.rate_per_s <= found.high
    assert found.confirmed_ms == pytest.approx(np.quantile(lognormal(500), 0.99))
    assert (found.confirmed_within, found.confirmed_requests) == (500, 500)
    assert repr(found).startswith("<perfnb.HighestRate: Up to ")
    few = fake(lognormal(500), in_run_ms=np.array([5.0] * 40 + [70.0]))
    assert (
        "In a run at this rate, 40 of 41 requests were within the bound, but this was too few to determine p99>"
        in repr(few.highest_rate(60, confirm_s=1))
    )


class Slower:
    """Takes 2 ms, and more from each of these seconds on, so that no run is like those before."""

    def __init__(self, clock: FakeClock, changes: dict[float, float]) -> None:
        self._clock, self._changes, self._began_ns = clock, changes, clock.now_ns

    def __call__(self, request: object) -> None:
        passed_s = (self._clock.now_ns - self._began_ns) / 1e9
        self._clock.pass_exactly(max((ms for at, ms in self._changes.items() if passed_s > at), default=2.0))


def test_a_rate_that_its_run_refutes_is_lowered_until_a_run_confirms_it(clock: FakeClock) -> None:
    steady = perfnb.latency(Slower(clock, {}), [1], bound_ms=20, budget_s=30)._asked
    found = perfnb.latency(Slower(clock, {13.5: 3.0}), [1], bound_ms=20, budget_s=30)
    lowered = found._asked

    assert steady.refuted_per_s == ()
    assert steady.confirmed_ms <= 20
    assert lowered.refuted_per_s == pytest.approx([steady.rate_per_s], rel=0.02)
    assert lowered.rate_per_s == pytest.approx(222, rel=0.05)  # M/D/1 whose requests take 3 ms
    assert lowered.confirmed_ms <= 20
    assert lowered.low <= lowered.rate_per_s <= lowered.high < steady.rate_per_s
    assert words_of(found).startswith("perfnb · latency · Slower Up to 2")
    assert "requests/s [2" in words_of(found)
    assert "can be served with p99 within 20.0 ms, confirmed by a run" in words_of(found)
    assert f"p99 exceeded the bound in a run at {steady.rate_per_s:.0f} requests/s." in words_of(found)
    assert found.costs.loc["highest", "requests_per_s"] == pytest.approx(lowered.rate_per_s)
    assert found.highest_rate(bound_ms=20) == lowered, "the same question has the answer that the report shows"
    assert found.highest_rate(bound_ms=20, quantile=0.95).confirmed_requests is None
    assert found.highest_rate(bound_ms=25).confirmed_requests is None


def test_a_rate_that_was_served_within_the_bound_is_not_above_the_highest(clock: FakeClock) -> None:
    found = perfnb.latency(Slower(clock, {22.5: 15.0}), [1], rate_per_s=100, bound_ms=20, budget_s=30)
    highest = found._asked

    assert highest.refuted_per_s
    assert highest.rate_per_s == pytest.approx(100, rel=0.1)
    assert highest.low <= highest.rate_per_s <= highest.high
    assert highest.confirmed_ms <= 20


def test_a_rate_that_no_run_confirms_is_not_known(clock: FakeClock) -> None:
    found = perfnb.latency(Slower(clock, {13.5: 4.0, 19.0: 12.0}), [1], bound_ms=20, price_per_hour=3.6, budget_s=30)
    unknown = found._asked

    assert unknown.rate_per_s is None
    assert len(unknown.refuted_per_s) >= 2
    assert (unknown.low, unknown.high) == (0.0, min(unknown.refuted_per_s))
    assert "The highest rate with p99 within 20.0 ms is unknown Why p99 exceeded the bound in runs at " in words_of(
        found
    )
    assert "is unknown" in repr(unknown)
    assert found.highest_rate(bound_ms=20) == unknown
    assert pd.isna(found.costs.loc["highest", "requests_per_s"])


def test_the_time_that_perfnb_takes_between_requests_lowers_the_rate(clock: FakeClock) -> None:
    class Requests(list[int]):
        """Each takes perfnb 0.02 ms to fetch."""

        def __getitem__(self, place: int) -> int:
            clock.pass_exactly(0.02)
            return super().__getitem__(place)

    found = perfnb.latency(lambda _: clock.pass_exactly(0.08), Requests([1, 1]), budget_s=2)

    assert found.at(5_000).service_ms == pytest.approx(0.08, rel=0.01)
    assert found.at(5_000).utilization == pytest.approx(0.5, rel=0.05)
    assert found.highest_rate(1.0).rate_per_s < 10_000
    assert "Between requests, a server is busy for 2" in words_of(found)
    assert found.costs.loc["closed", "requests_per_s"] == pytest.approx(10_000, rel=0.05)


@pytest.mark.slow
def test_a_real_model_alone_and_at_a_rate(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8).eval()
    requests = [torch.randn(size, 8) for size in (1, 1, 4)]

    found = perfnb.latency(model, requests, rate_per_s=200, bound_ms=10_000, budget_s=0.4)

    assert set(found.samples["run"]) == {"closed", "open"}
    assert len(found.first_calls) == 4
    assert set(found.first_calls["size"]) == {"(1, 8)", "(4, 8)"}
    assert len(found.open_run.samples) + found.open_run.lost == round(200 * 0.4 * 0.55 / 2)
    assert (found.samples["latency_ms"] >= found.samples["service_ms"] - 1e-9).all()
    assert found.to_html(tmp_path / "latency.html").read_text("utf-8").startswith("<!DOCTYPE html>")


def test_requests_too_slow_for_warm_up_are_not_all_left_out(clock: FakeClock) -> None:
    once = perfnb.latency(lambda _: clock.pass_exactly(900), ["a"], budget_s=0.1)
    each = perfnb.latency(lambda _: clock.pass_exactly(10), ["a" * n for n in range(9)], budget_s=0.1)

    assert once.at(0.1).service_ms == pytest.approx(900, rel=1e-3)
    assert len(each.first_calls) == 2
    assert len(each.samples) > 2
    assert each.at(0.1).service_ms == pytest.approx(10, rel=1e-2)
    for found in (once, each):
        assert "No size was called more than twice" in words_of(found)


def test_recorded_arrivals_are_kept(clock: FakeClock) -> None:
    found = perfnb.latency(lambda _: clock.pass_exactly(5), [1], arrivals=[10.0, 10.001, 10.1], budget_s=0.1)

    assert found.open_run.samples["wait_ms"].round(0).tolist() == [0, 4, 0]
    assert found.open_run.rate_per_s == pytest.approx(30)
    assert not found.saturated


class ColdAfterPauses:
    """Takes 2 ms, and 3 ms more if it was idle for more than 5 ms."""

    def __init__(self, clock: FakeClock, cold_ms: float) -> None:
        self._clock, self._cold_ms, self._ended_ns = clock, cold_ms, 0

    def __call__(self, request: object) -> None:
        idle_ms = (self._clock.now_ns - self._ended_ns) / 1e6
        self._clock.pass_exactly(2 + (self._cold_ms if idle_ms > 5 else 0))
        self._ended_ns = self._clock.now_ns


def test_what_a_pause_adds_is_measured_and_counted(clock: FakeClock) -> None:
    found = perfnb.latency(ColdAfterPauses(clock, 3), [1], rate_per_s=5, budget_s=60)
    warm = perfnb.latency(ColdAfterPauses(clock, 0), [1], budget_s=60)

    assert found.pauses["extra_ms"].round(2).tolist() == [0, 0, 3, 3, 3]
    assert found.pauses.index.tolist() == [0.5, 2, 8, 32, 128]
    assert (found.pauses["requests"] >= 12).all()
    assert found.quantile_ms(0.99) == pytest.approx(2, rel=0.01)  # back to back
    slowly = found.at(5)
    assert slowly.p50_ms == pytest.approx(5, rel=0.01)
    assert slowly.p50_ms == pytest.approx(found.open_run.samples["latency_ms"].median(), rel=0.01)
    assert slowly.utilization == pytest.approx(0.025, rel=0.05)
    assert "takes longer: 3.00 ms [3.00, 3.00] more after a pause of 128 ms" in words_of(found)
    assert warm.at(5).p50_ms == pytest.approx(2, rel=0.01)
    assert "takes longer" not in words_of(warm)


def test_pauses_are_left_out_where_the_budget_is_short(clock: FakeClock) -> None:
    found = perfnb.latency(ColdAfterPauses(clock, 3), [1], budget_s=1)  # 0.15 s for pauses

    assert found.pauses.index.tolist() == [0.5, 2]
    assert perfnb.latency(lambda _: clock.pass_exactly(900), ["a"], budget_s=1).pauses.empty


def test_what_comes_faster_than_it_is_served_is_saturated(clock: FakeClock) -> None:
    found = perfnb.latency(lambda _: clock.pass_exactly(100), [1], rate_per_s=100, budget_s=10)

    assert found.saturated
    assert "Saturated at 100 requests/s: requests arrive faster than they are served" in words_of(found)
    assert "requests that were due could not be served during the run." in words_of(found)


def test_two_servers_are_not_saturated_by_what_is_too_much_for_one() -> None:
    found = perfnb.latency(lambda _: None, [1], arrivals=[0.0, 0.01, 0.02], concurrency=2, tokens=None, budget_s=0.2)
    times = pd.DataFrame({"service_ms": [10.0]})

    assert not replace(found.open_run, rate_per_s=150.0, samples=times, lost=0).saturated
    assert replace(found.open_run, rate_per_s=250.0, samples=times, lost=0).saturated


def test_a_model_in_training_mode_is_noticed() -> None:
    found = perfnb.latency(torch.nn.Linear(2, 2), [torch.ones(2)], budget_s=0.05)

    assert "The model was in training mode" in str(found)


class Pipeline:
    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def __call__(self, request: torch.Tensor) -> torch.Tensor:
        return self.model(request)

    def answer(self, request: torch.Tensor) -> torch.Tensor:
        return self(request)


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
def test_a_model_in_training_mode_is_noticed_wherever_the_function_has_it(training: bool) -> None:
    model = torch.nn.Linear(2, 2).train(training)

    def serve(request: torch.Tensor) -> torch.Tensor:
        return model(request)

    def default(request: torch.Tensor, model: torch.nn.Module = model) -> torch.Tensor:
        return model(request)

    for fn in (
        serve,
        lambda x: serve(x),
        partial(torch.nn.Module.__call__, model),
        Pipeline(model),
        Pipeline(model).answer,
        default,
    ):
        found = perfnb.latency(fn, [torch.ones(2)], budget_s=0.02)
        assert ("The model was in training mode" in words_of(found)) == training


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fn": 3}, "latency needs a function or model that serves one request, not 3."),
        (
            {"rate_per_s": 0},
            "rate_per_s must be a number of requests per second that is above 0 and at most 1e6, not 0.",
        ),
        ({"rate_per_s": float("nan")}, "rate_per_s must be"),
        ({"quantile": 1}, "quantile must be a number between 0 and 1, not 1."),
        ({"bound_ms": -1}, "bound_ms must be a number of milliseconds above 0, not -1."),
        ({"concurrency": 0}, "concurrency must be a whole number of at least 1, not 0."),
        ({"budget_s": "long"}, "budget_s must be"),
        ({"arrivals": [0.0, 1e9]}, "arrivals span 1,000,000,000 s, more than budget_s=30: raise it, or pass fewer."),
        ({"arrivals": [0.0, 1.0], "rate_per_s": 3}, "Pass rate_per_s or arrivals, not both"),
        ({"requests": []}, "requests is empty"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, object], message: str) -> None:
    given = {"fn": lambda request: request, "requests": [1]} | arguments

    with pytest.raises((TypeError, ValueError), match=message.replace("(", r"\(")):
        perfnb.latency(given.pop("fn"), given.pop("requests"), **given)


def test_the_rate_is_the_one_asked_for_and_lateness_is_no_queue(clock: FakeClock) -> None:
    found = perfnb.latency(lambda _: clock.pass_exactly(0.02), [1], rate_per_s=20, budget_s=2)

    assert found.open_run.rate_per_s == 20
    assert "Waiting for earlier requests makes up 0 % of the mean" in words_of(found)


def test_bounds_of_higher_quantiles_are_no_lower_and_rates_agree_with_the_curve() -> None:
    times = lognormal(400)
    times[7] = 440.0
    found = fake(times)

    for rate in (10, 40, 80):
        highs = [found.at(rate).intervals[name][1] for name in ("p50_ms", "p90_ms", "p95_ms", "p99_ms")]
        assert highs == sorted(highs)
    highest = found.highest_rate(100)
    assert found.at(0.9 * highest.rate_per_s).p99_ms <= 100 <= found.at(1.2 * highest.rate_per_s).p99_ms


@pytest.mark.parametrize("count", [1, 5, 12, 20, 40, 300])
def test_requests_come_at_the_rate_asked_for_also_in_short_runs(count: int) -> None:
    arrivals = poisson_arrivals(count, 5.0, np.random.default_rng(SEED))

    assert len(arrivals) == count
    assert (np.diff(arrivals) >= 0).all()
    assert 0 <= arrivals[0] <= arrivals[-1] <= 1e3 * count / 5.0
    if count >= 12:  # gaps drawn one by one came at twice the rate, with this seed
        assert count / arrivals[-1] * 1e3 == pytest.approx(5.0, rel=0.25)
        assert np.std(np.diff(arrivals)) == pytest.approx(200.0, rel=0.5)  # as much as their mean: independent


def test_a_busy_machine_is_told() -> None:
    assert "busy" not in words_of(fake(lognormal(40)))

    found = fake(lognormal(40), noise={"load_before": 6.0, "cpus": 2})

    assert "The machine was already busy (load 6.0 on 2 CPUs)." in words_of(found)
    real = perfnb.latency(lambda request: request, [1], budget_s=0.05)
    assert real._measured.noise["cpus"] >= 1


def test_threads_that_wait_for_each_other_between_requests_are_told() -> None:
    """Two servers whose requests take 1 ms each, one after the other: 1,000 a second, and not 2,000."""
    found = fake(np.full(40, 1.0), concurrency=2)
    closed = back_to_back(np.full(40, 1.0)).assign(start_ms=np.arange(40) // 2 * 1.0)
    at_once = fake(np.full(40, 1.0), concurrency=2, closed=closed)

    for each, per_s in ((found, 1000), (at_once, 2000)):
        assert each.costs.loc["closed", "requests_per_s"] == pytest.approx(per_s)
        told = "1,000 requests/s were served, fewer than the 2,000 requests/s that these times allow" in words_of(each)
        assert told == (per_s == 1000)
    assert fake(np.full(19, 1.0), concurrency=2).costs.loc["closed", "requests_per_s"] == pytest.approx(2000)


@pytest.mark.parametrize(
    ("arrivals", "budget_s", "schedule"),
    [
        ([5.0, 5.25, 7.0], 2.0, [0.0, 250.0, 2000.0]),
        ([5.0, 5.0, 7.0], 2.0, [0.0, 0.0, 2000.0]),
        ([5.0, 7.0], 1.9, "more than budget_s=1.9"),
        ([5.0, 5.0], 2.0, "not all be at the same time"),
        ([5.0, 4.9, 7.0], 3.0, "in ascending order"),
        ([0.0, math.nan], 3.0, "in ascending order"),
        ([[0.0, 1.0]], 3.0, "in ascending order"),
        ([], 3.0, "at least one time"),
    ],
)
def test_a_schedule_begins_with_its_first_arrival(
    arrivals: list[Any], budget_s: float, schedule: list[float] | str
) -> None:
    if isinstance(schedule, str):
        with pytest.raises(ValueError, match=schedule):
            latency._schedule(arrivals, budget_s)
    else:
        assert latency._schedule(arrivals, budget_s) == schedule


def test_the_slowest_requests_are_those_that_took_longest_to_serve_after_the_warm_up() -> None:
    closed = back_to_back(np.array([9.0, 3.0, 7.0, 5.0])).assign(first=[True, False, False, False])
    found = fake(np.full(9, 5.0), closed=closed.assign(latency_ms=[1.0, 9.0, 2.0, 3.0]))

    assert found.slowest(2)["request"].tolist() == [2, 3]
    assert found.first_calls["request"].tolist() == [0]
    assert latency._rate(1e6) == 1e6
    with pytest.raises(ValueError, match="at most 1e6, not 1000001"):
        found.at(1_000_001)
