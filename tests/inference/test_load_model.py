"""What runs of requests say of a rate, in figures and in words, and the model of a service by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb.inference.load_model import (
    HighestRate,
    LoadedLatency,
    LoadModel,
    bounded_words,
    exceeds,
    highest_evidence,
    highest_sentence,
    load_model_of,
    seen_in,
)


def run(latency_ms: list[float], lost: int = 0, saturated: bool = False) -> Any:
    samples = pd.DataFrame({"latency_ms": np.array(latency_ms, dtype=float)})
    return SimpleNamespace(samples=samples, lost=lost, saturated=saturated)


@pytest.mark.parametrize(
    ("times", "saturated", "refuted"),
    [
        # Too few for p99: so many over the bound of 10 ms are refuted if chance gives them in less than 5 %.
        ([5.0] * 10, False, False),
        ([5.0] * 9 + [11.0], False, False),  # 9.6 %
        ([5.0] * 8 + [11.0] * 2, False, True),  # 0.4 %
        ([5.0] * 4 + [11.0], False, True),  # 4.9 %
        ([5.0] * 5 + [11.0], False, False),  # 5.9 %
        ([5.0] * 4 + [10.0], False, False),
        ([], True, True),
        # Enough for p99.
        ([10.0] * 400, False, False),
        ([10.0] * 390 + [11.0] * 10, False, True),
    ],
)
def test_a_run_refutes_a_rate_beyond_chance(times: list[float], saturated: bool, refuted: bool) -> None:
    assert exceeds(run(times, saturated=saturated), 10.0, 0.99) is refuted


def test_what_a_run_shows_of_its_rate() -> None:
    highest = HighestRate(100.0, 90.0, 110.0, bound_ms=10.0, quantile=0.5)
    few = seen_in(highest, run([9.0, 10.0, 11.0], lost=2))
    assert (few.confirmed_requests, few.confirmed_within, few.confirmed_interval_ms) == (5, 2, None)
    many = seen_in(highest, run([9.0, 10.0, 11.0, 8.0, 7.0, 12.0]))
    assert (many.confirmed_ms, many.confirmed_interval_ms) == (pytest.approx(9.5), (7.0, 12.0))


def rate(per_s: float | None, **facts: Any) -> HighestRate:
    return HighestRate(per_s, 9.0, 11.0, 50.0, 0.99, **facts)


FEW = "In a run at this rate, 1,100 of 1,200 requests were within the bound, but this was too few to determine p99."


@pytest.mark.parametrize(
    ("highest", "sentence", "evidence"),
    [
        (rate(None), " is unknown", "There were too few requests to determine p99: raise budget_s."),
        (rate(None, refuted_per_s=(20.0,)), " is unknown", "p99 exceeded the bound in a run at 20.0 requests/s."),
        (rate(0.0), ": even requests served alone take longer", ""),
        (rate(10.0), ", not confirmed by a run", ""),
        (
            rate(10.0, confirmed_ms=40.0, confirmed_requests=400, confirmed_within=399),
            ", confirmed by a run",
            "In a run at this rate, p99 was 40.0 ms.",
        ),
        (
            rate(10.0, confirmed_requests=1200, confirmed_within=1100, refuted_per_s=(20.0, 15.0)),
            ", not refuted by a run with few requests",
            f"{FEW} p99 exceeded the bound in runs at 20.0 requests/s and 15.0 requests/s.",
        ),
    ],
)
def test_the_highest_rate_in_words(highest: HighestRate, sentence: str, evidence: str) -> None:
    words = {
        None: "The highest rate",
        0.0: "No rate can be served",
        10.0: "Up to 10.0 requests/s [9.0, 11.0] can be served",
    }
    assert highest_sentence(highest) == f"{words[highest.rate_per_s]} with p99 within 50.0 ms{sentence}"
    assert highest_evidence(highest) == evidence
    whole = f"{highest_sentence(highest)}. {evidence}".strip().removesuffix(".")
    assert repr(highest) == f"<perfnb.HighestRate: {whole}>"


@pytest.mark.parametrize(
    ("ms", "bounds", "words"),
    [
        (math.inf, None, "infinite"),
        (math.inf, (1.0, math.inf), "infinite"),
        (5.0, (4.0, math.inf), "5.00 ms [from 4.00 ms]"),
        (5.0, (4.0, 6.0), "5.00 ms [4.00, 6.00]"),
        (5.0, None, "5.00 ms"),
        (None, None, "n/a"),
    ],
)
def test_a_time_may_have_no_end(ms: float | None, bounds: tuple[float, float] | None, words: str) -> None:
    assert bounded_words(ms, bounds) == words


def test_a_load_in_a_line() -> None:
    load = LoadedLatency(12.0, 0.25, 5.0, 6.0, 7.0, None, 1.0, 4.0, {"p50_ms": (4.0, 6.0)})
    assert repr(load) == (
        "<perfnb.LoadedLatency: 12.0/s, 25 % busy: p50 5.00 ms [4.00, 6.00], p95 7.00 ms, p99 n/a, mean wait 1.00 ms>"
    )


def test_a_service_by_hand() -> None:
    made = LoadModel(np.array([5.0, 15.0] * 20), 2, 10.0, {100.0: np.array([1.0, 3.0, 2.0])}, runs=3)
    assert (made.capacity_per_s, made.closed_per_s) == (200.0, 100.0)
    assert made.pauses.loc[100.0].tolist() == [3, 2.0, pd.NA, pd.NA]
    low = made.at(1e-6)
    assert low.p50_ms is not None
    assert low.p90_ms is not None
    assert low.p95_ms is None  # needs 59 requests
    assert low.p99_ms is None
    assert (low.service_ms, low.wait_ms) == (pytest.approx(10.0), pytest.approx(0.0, abs=1e-3))
    assert low.utilization == pytest.approx(1e-6 * 20 / 1e3 / 2)
    assert {"p50_ms", "p90_ms", "wait_ms", "service_ms", "utilization"} == set(low.intervals)
    assert low.intervals["p50_ms"][1] <= low.intervals["p90_ms"][1]
    curve = made.curve
    assert (curve["utilization"].diff().dropna() > 0).all()
    assert (curve["rate_per_s"] < 100).all()
    assert curve["p95_ms"].isna().all()
    assert (curve["p90_high_ms"] >= curve["p50_high_ms"]).all()


def measured(count: int, concurrency: int = 1) -> Any:
    """Back to back requests take 5 and 3 ms and start 6 ms after the one before; some come after a pause."""
    closed = pd.DataFrame(
        {"start_ms": 6.0 * np.arange(count + 2), "service_ms": 5.0, "size": ["a", "b"] * (count // 2 + 1)}
    )
    closed.loc[closed["size"] == "b", "service_ms"] = 3.0
    paused = pd.DataFrame({"pause_ms": [10.0, 10.0, 50.0], "size": ["a", "b", "c"], "service_ms": [6.0, 6.0, 6.0]})
    return SimpleNamespace(steady=closed.iloc[2:], closed=closed, concurrency=concurrency, paused=paused)


def test_the_model_of_what_was_measured() -> None:
    found = load_model_of(measured(10))
    assert found.service_ms.tolist() == [5.0, 3.0] * 5
    # From the first start to the last end 57 ms, of which requests take 40.
    assert found.between_ms == pytest.approx((57 - 40) / 10)
    assert {pause: extra.tolist() for pause, extra in found.extra_ms.items()} == {10.0: [1.0, 3.0], 50.0: [2.0]}
    assert load_model_of(measured(8)).between_ms == 0.0
    assert load_model_of(measured(10, concurrency=2)).between_ms == 0.0
    assert load_model_of(measured(20, concurrency=2)).between_ms == pytest.approx((2 * 117 - 80) / 20)
