"""What `latency` says of requests: quantiles only where there are enough, warm-up apart, runs at a rate, views."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import perfnb
from perfnb.inference import latency
from perfnb.inference.latency import Latency, OpenRun
from perfnb.inference.latency_view import _waiting
from perfnb.inference.load_model import HighestRate, LoadModel
from perfnb.inference.queueing import poisson_arrivals
from perfnb.inference.request_runner import SEED, RequestRunner
from perfnb.inference.serving import Requests
from tests.fake_clock import FakeClock
from tests.inference.latency_samples import back_to_back, fake, lognormal


@pytest.mark.parametrize(("count", "known", "bounded"), [(298, False, False), (299, True, False), (368, True, True)])
def test_p99_is_given_only_where_there_are_enough_requests(count: int, known: bool, bounded: bool) -> None:
    found = fake(lognormal(count))

    assert (found.quantile_ms(0.99) is not None) == known
    assert (found.quantile_interval_ms(0.99) is not None) == bounded
    if not known:
        assert found.at(20).p99_ms is None
        assert found.at(20).p50_ms is not None
        with pytest.raises(ValueError, match=r"too few for the 0\.99 quantile"):
            found.highest_rate(100)


def test_a_load_has_its_parts_each_with_an_interval() -> None:
    found = fake(np.full(400, 10.0) + np.arange(400) % 2).at(50)

    assert found.utilization == pytest.approx(0.525)
    assert found.service_ms == pytest.approx(10.5)
    assert found.wait_ms == pytest.approx(0.525 * 10.5 / (2 * (1 - 0.525)), rel=0.1)  # almost constant service
    for name in ("p50_ms", "p90_ms", "p95_ms", "p99_ms", "wait_ms", "service_ms", "utilization"):
        low, high = found.intervals[name]
        assert low <= getattr(found, name) <= high


class OfMeanTime(LoadModel):
    """A service whose highest rate keeps it busy for a fifth of the time."""

    def highest_rate(self, bound_ms: float, share: float) -> HighestRate:
        rate = 200 / float(self.service_ms.mean())
        return HighestRate(rate, 0.8 * rate, 1.2 * rate, bound_ms, share)


def run_at(rate: float, ms: float, count: int = 400) -> OpenRun:
    return OpenRun(rate, back_to_back(np.full(count, ms)), 0, 0.0)


@pytest.mark.parametrize(
    ("times_ms", "own", "expected", "lasted"),
    [
        ([10.0], None, (20, 16, 24, 10.0, ()), [20]),
        ([20.0], None, (20, 16, 24, 20.0, ()), [20]),  # at the bound
        ([40.0, 12.0], None, (5, 4, 6, 12.0, (20,)), [20, 40]),
        ([21.0, 12.0], None, (9.524, 7.619, 11.429, 12.0, (20,)), [20, 31.395]),
        ([21.0] * 3, None, (None, 0, 8.571, None, (20, 9.524, 8.571)), [20, 31.395, 8.605]),
        ([40.0], run_at(12, 15), (12, 4, 12, 15.0, (20,)), [20]),
        ([40.0, 15.0], run_at(4, 15), (5, 4, 6, 15.0, (20,)), [20, 40]),
        ([40.0, 15.0], run_at(12, 21), (5, 4, 6, 15.0, (20,)), [20, 40]),  # exceeded the bound itself
        ([40.0, 15.0], run_at(12, 15, 40), (5, 4, 6, 15.0, (20,)), [20, 40]),  # too few requests
        ([], run_at(20, 15), (20, 16, 24, 15.0, ()), []),
    ],
)
def test_a_rate_that_a_run_refutes_is_lowered_until_a_run_confirms_it_or_the_time_is_over(
    times_ms: list[float], own: OpenRun | None, expected: tuple[Any, ...], lasted: list[float]
) -> None:
    runs, seconds = iter(times_ms), list[float]()

    def serve_at(rate: float, lasts: float) -> OpenRun:
        seconds.append(lasts)
        return run_at(rate, next(runs))

    found = Latency(fake(lognormal(9), open_run=own)._measured, OfMeanTime(np.full(400, 10.0)), serve_at)
    highest = found.highest_rate(20.0, confirm_s=60)

    figures = highest.rate_per_s, highest.low, highest.high, highest.confirmed_ms, highest.refuted_per_s
    assert figures == (*map(approximately, expected[:4]), approximately(expected[4]))
    assert seconds == pytest.approx(lasted, rel=1e-3)
    assert found.highest_rate(20.0) is highest, "the same question has the answer that the report shows"
    assert found.highest_rate(25.0).confirmed_requests is None


def approximately(expected: Any) -> Any:
    return expected if expected is None else pytest.approx(expected, rel=1e-3)


def test_a_rate_of_0_is_not_tried() -> None:
    none = HighestRate(0.0, 0.0, 0.0, 20.0, 0.99)
    assert fake(lognormal(9))._confirmed(none, 1.0) is none


class Slower:
    """Takes 2 ms, and more from each of these seconds on, so that no run is like those before."""

    def __init__(self, clock: FakeClock, changes: dict[float, float]) -> None:
        self._clock, self._changes, self._began_ns = clock, changes, clock.now_ns

    def __call__(self, request: object) -> None:
        passed_s = (self._clock.now_ns - self._began_ns) / 1e9
        self._clock.pass_exactly(max((ms for at, ms in self._changes.items() if passed_s > at), default=2.0))


def test_the_highest_rate_for_the_bound_is_confirmed_by_runs(clock: FakeClock) -> None:
    found = perfnb.latency(Slower(clock, {5.4: 3.0}), [1], bound_ms=20, budget_s=12)
    lowered = found._asked

    assert len(lowered.refuted_per_s) == 1
    assert lowered.rate_per_s == pytest.approx(222, rel=0.1)  # M/D/1 whose requests take 3 ms
    assert lowered.confirmed_ms <= 20
    assert lowered.low <= lowered.rate_per_s <= lowered.high < lowered.refuted_per_s[0]
    assert found.costs.loc["highest", "requests_per_s"] == lowered.rate_per_s


def test_the_time_that_perfnb_takes_between_requests_lowers_the_rate(clock: FakeClock) -> None:
    class Slowly(list[int]):
        """Each takes perfnb 0.02 ms to fetch."""

        def __getitem__(self, place: int) -> int:
            clock.pass_exactly(0.02)
            return super().__getitem__(place)

    found = perfnb.latency(lambda _: clock.pass_exactly(0.08), Slowly([1, 1]), budget_s=0.1)

    assert found.at(5_000).service_ms == pytest.approx(0.08, rel=0.01)
    assert found.at(5_000).utilization == pytest.approx(0.5, rel=0.05)
    assert found.costs.loc["closed", "requests_per_s"] == pytest.approx(10_000, rel=0.05)


@pytest.mark.slow
def test_a_real_model_alone_and_at_a_rate(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8).eval()
    requests = [torch.randn(size, 8) for size in (1, 1, 4)]

    found = perfnb.latency(model, requests, rate_per_s=200, bound_ms=10_000, batch=torch.cat, budget_s=0.6)

    assert set(found.samples["run"]) == {"closed", "open"}
    assert len(found.first_calls) == 4
    assert set(found.first_calls["size"]) == {"(1, 8)", "(4, 8)"}
    assert len(found.open_run.samples) + found.open_run.lost == round(200 * 0.6 * 0.55 / 3)
    assert {1, 2, 4} <= set(found.batching.sizes.index)
    assert (found.samples["latency_ms"] >= found.samples["service_ms"] - 1e-9).all()
    assert found.to_html(tmp_path / "latency.html").read_text("utf-8").startswith("<!DOCTYPE html>")


def test_requests_too_slow_for_warm_up_are_not_all_left_out(clock: FakeClock) -> None:
    once = perfnb.latency(lambda _: clock.pass_exactly(900), ["a"], budget_s=0.1)
    each = perfnb.latency(lambda _: clock.pass_exactly(10), ["a" * n for n in range(9)], budget_s=0.1)

    assert once.at(0.1).service_ms == pytest.approx(900, rel=1e-3)
    assert len(each.first_calls) == 2
    assert len(each.samples) > 2
    assert each.at(0.1).service_ms == pytest.approx(10, rel=1e-2)


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ({}, {"alone": 8.5, "paused": 1.5}),
        ({"rate_per_s": 100}, {"alone": 3.825, "paused": 0.675, "open": 5.5}),
        ({"bound_ms": 500, "quantile": 0.5}, {"alone": 3.825, "paused": 0.675, "highest": 5.5}),
        ({"batch": list}, {"alone": 3.825, "paused": 0.675, "batches": 5.5}),
        (
            {"rate_per_s": 100, "batch": list, "bound_ms": 500, "quantile": 0.4},
            {"alone": 3.825, "paused": 0.675, **dict.fromkeys(("open", "batches", "highest"), 5.5 / 3)},
        ),
    ],
)
def test_runs_share_the_budget(
    asked: dict[str, Any], seconds: dict[str, float], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, serve = dict[str, float](), RequestRunner.back_to_back
    for name, method in {
        "back_to_back": lambda self, seconds: told.update(alone=seconds) or serve(self, seconds),
        "after_pauses": lambda _, __, seconds: told.update(paused=seconds) or ([], []),
        "on_schedule": lambda self, arrivals: told.update(open=len(arrivals) / 100) or serve(self, 0),
        "in_batches": lambda _, __, ___, seconds: told.update(batches=seconds) or ({}, None),
    }.items():
        monkeypatch.setattr(RequestRunner, name, method)
    monkeypatch.setattr(Latency, "highest_rate", lambda _, *__, confirm_s: told.update(highest=confirm_s))
    perfnb.latency(lambda _: clock.pass_exactly(100), [1], budget_s=10, **asked)

    assert told == pytest.approx(seconds, abs=0.005)


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
    found = perfnb.latency(ColdAfterPauses(clock, 3), [1], rate_per_s=5, budget_s=40)

    assert found.pauses["extra_ms"].round(2).tolist() == [0, 0, 3, 3, 3]
    assert found.pauses.index.tolist() == [0.5, 2, 8, 32, 128]
    assert (found.pauses["requests"] >= 12).all()
    assert found.quantile_ms(0.99) == pytest.approx(2, rel=0.01)  # back to back
    slowly = found.at(5)
    assert slowly.p50_ms == pytest.approx(5, rel=0.01)
    assert slowly.p50_ms == pytest.approx(found.open_run.samples["latency_ms"].median(), rel=0.01)
    assert slowly.utilization == pytest.approx(0.025, rel=0.05)


@pytest.mark.parametrize(
    ("usual_ms", "seconds", "pauses"),
    [
        (2, 9.0, [0.5, 2, 8, 32, 128]),
        (2, 0.15, [0.5, 2]),
        (2, 12 * 0.0025, [0.5]),
        (2, 12 * 0.0025 - 1e-9, []),
        (900, 0.15, []),
    ],
)
def test_as_many_kinds_of_pauses_are_measured_as_the_time_allows(
    usual_ms: float, seconds: float, pauses: list[float], clock: FakeClock
) -> None:
    runner = RequestRunner(lambda _: clock.pass_exactly(usual_ms), Requests([1]), 1, lambda *_: None)

    served, found = runner.after_pauses(usual_ms / 1e3, seconds)

    assert sorted(set(found)) == pauses
    assert len(served) == len(found)
    assert all(found.count(pause) >= 12 for pause in pauses)


def test_the_facts_of_a_run_are_kept() -> None:
    model = torch.nn.Linear(2, 2)

    found = perfnb.latency(model, [torch.ones(2)], arrivals=[0.0, 0.01], concurrency=2, tokens=None, budget_s=0.05)

    assert found._measured.in_training
    assert found._measured.noise["cpus"] >= 1
    assert (found.open_run.concurrency, found._load.servers) == (2, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fn": 3}, "latency needs a function or model that serves one request, not 3."),
        (
            {"rate_per_s": 0},
            "rate_per_s must be a number of requests per second that is above 0 and at most 1e6, not 0",
        ),
        ({"rate_per_s": float("nan")}, "rate_per_s must be"),
        ({"quantile": 1}, "quantile must be a number between 0 and 1, not 1."),
        ({"quantile": 0}, "quantile must be a number between 0 and 1, not 0."),
        ({"bound_ms": -1}, "bound_ms must be a number of milliseconds above 0, not -1."),
        ({"concurrency": 0}, "concurrency must be a whole number of at least 1, not 0."),
        ({"budget_s": "long"}, "budget_s must be"),
        ({"arrivals": [0.0, 1e9]}, "arrivals span 1,000,000,000 s, more than budget_s=30: raise it, or pass fewer."),
        ({"arrivals": [0.0, 1.0], "rate_per_s": 3}, "Pass rate_per_s or arrivals, not both"),
        ({"requests": []}, "requests is empty"),
        ({"batch": 3}, "batch must be a function that makes one input from a list of requests, not 3."),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, object], message: str) -> None:
    given = {"fn": lambda request: request, "requests": [1]} | arguments

    with pytest.raises((TypeError, ValueError), match=message.replace("(", r"\(")):
        perfnb.latency(given.pop("fn"), given.pop("requests"), **given)


def test_the_rate_is_the_requested_one_and_lateness_is_not_a_queue(clock: FakeClock) -> None:
    found = perfnb.latency(lambda _: clock.pass_exactly(0.02), [1], rate_per_s=200, budget_s=0.2)

    assert found.open_run.rate_per_s == 200
    assert _waiting(found.open_run) == "Waiting for earlier requests makes up 0 % of the mean latency."


def test_bounds_of_higher_quantiles_are_no_lower_and_rates_agree_with_the_curve() -> None:
    times = lognormal(400)
    times[7] = 440.0
    found = fake(times)

    loads = [found.at(rate) for rate in (10, 80)]
    for load in loads:
        highs = [load.intervals[name][1] for name in ("p50_ms", "p90_ms", "p95_ms", "p99_ms")]
        assert highs == sorted(highs)
    assert 10 < found.highest_rate((loads[0].p99_ms + loads[1].p99_ms) / 2).rate_per_s < 80


@pytest.mark.parametrize("count", [1, 12, 300])
def test_requests_come_at_the_rate_asked_for_also_in_short_runs(count: int) -> None:
    arrivals = poisson_arrivals(count, 5.0, np.random.default_rng(SEED))

    assert len(arrivals) == count
    assert (np.diff(arrivals) >= 0).all()
    assert 0 <= arrivals[0] <= arrivals[-1] <= 1e3 * count / 5.0
    if count >= 12:  # gaps drawn one by one came at twice the rate, with this seed
        assert count / arrivals[-1] * 1e3 == pytest.approx(5.0, rel=0.25)
        assert np.std(np.diff(arrivals)) == pytest.approx(200.0, rel=0.5)  # as much as their mean: independent


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
