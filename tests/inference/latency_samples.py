"""Latencies of known times, for the tests of what computes and shows them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from perfnb.inference.latency import HighestRate, Latency, OpenRun
from perfnb.inference.load_model import LoadModel, load_model_of
from perfnb.inference.samples import TOKEN_COLUMNS, Measured

#: Simulated runs behind intervals: enough for all but their accuracy.
FEW_RUNS = 20
_LOADS: dict[tuple[bytes, int, float], LoadModel] = {}


def words_of(found: object) -> str:
    """Return all that a result says, in one line."""
    return " ".join(str(found).split())


def back_to_back(times_ms: np.ndarray) -> pd.DataFrame:
    """Return samples of requests that one server served without a pause."""
    count = len(times_ms)
    return pd.DataFrame(
        {
            "request": range(count),
            "size": pd.Categorical(["(1,)"] * count),
            "arrival_ms": np.cumsum(times_ms) - times_ms,
            "start_ms": np.cumsum(times_ms) - times_ms,
            "wait_ms": 0.0,
            "service_ms": times_ms,
            "latency_ms": times_ms,
            "late_ms": 0.0,
            "first": False,
        }
    )


def fake(
    times_ms: np.ndarray,
    concurrency: int = 1,
    *,
    name: str = "model",
    asked: HighestRate | None = None,
    in_run_ms: np.ndarray | None = None,
    **measured: Any,
) -> Latency:
    """Return a latency of known service times, in runs at a rate `in_run_ms`; `asked` is the highest rate asked for."""
    closed = measured.pop("closed", back_to_back(times_ms))
    asked_bound = None if asked is None else (asked.bound_ms, asked.quantile)
    paused = closed.iloc[:0].assign(pause_ms=0.0)
    facts = Measured(name, concurrency, closed, paused, asked_bound=asked_bound, **measured)

    def serve_at(rate_per_s: float, seconds: float) -> OpenRun:
        return OpenRun(rate_per_s, back_to_back(times_ms if in_run_ms is None else in_run_ms), 0, 0.0)

    load = replace(load_model_of(facts), runs=FEW_RUNS)
    # Simulations and curves are shared by all latencies with the same service times.
    load = _LOADS.setdefault((load.service_ms.tobytes(), load.servers, load.between_ms), load)
    return Latency(facts, load, serve_at, [] if asked is None else [asked])


def lognormal(count: int) -> np.ndarray:
    return np.random.default_rng(3).lognormal(2.0, 0.3, count)


def with_everything(name: str = "model") -> Latency:
    """Return a highest rate for a bound, a run at a rate, batches, costs and a machine that was busy."""
    times = lognormal(400)
    run = OpenRun(20.0, back_to_back(times + 1).assign(latency_ms=times + 4, wait_ms=3.0), 0, 0.02)
    asked = HighestRate(70.0, 60.0, 80.0, 40.0, 0.99, 38.0, (35.0, 42.0), 700, 694, (90.0,))
    batches_ms = {size: np.full(100, 9.0 + size) for size in (2, 4)}
    return fake(
        times,
        name=name,
        asked=asked,
        open_run=run,
        asked_rate=20.0,
        batches_ms=batches_ms,
        price_per_hour=7.2,
        joules={"closed": 0.4, "open": 0.5},
        noise={"load_before": 6.0, "cpus": 2},
    )


def with_tokens() -> Latency:
    """Return a request that waited 30 ms, with tokens after 50 and 5 and 5 ms, in a run at a rate."""
    closed = [("closed", 0, 0, 7.0, 7.0)]
    opened = [("open", 0, 0, 80.0, 50.0), ("open", 0, 1, 85.0, 55.0), ("open", 0, 2, 90.0, 60.0)]
    tokens, opened_tokens = (
        pd.DataFrame(rows, columns=list(TOKEN_COLUMNS)[:5]).reindex(columns=list(TOKEN_COLUMNS))
        for rows in (closed, opened)
    )
    sample = back_to_back(lognormal(40)).iloc[:1].assign(wait_ms=30.0, service_ms=61.0, latency_ms=91.0)
    return fake(lognormal(40), tokens=tokens, open_run=OpenRun(10.0, sample, 0, 0.0, opened_tokens))
