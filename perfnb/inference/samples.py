"""Convert runs into tables with one row per request, token or answer, and describe the key-value cache.

All functions here are pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from perfnb.stats.intervals import Floats

if TYPE_CHECKING:
    from perfnb.inference.request_runner import Served

#: The number of calls of each size that count as warm-up.
FIRST_CALLS = 2
#: The columns of the token table, which has one row per token: the request's index in its run, the token's index in its
#: answer, and the token's arrival time in milliseconds, relative to the request's arrival and to the start of its
#: service. The last column is the length of the prompt, if it is known.
TOKEN_COLUMNS = ("run", "served", "token", "after_arrival_ms", "after_start_ms", "prompt_tokens")


def samples_of(served: Sequence[Served], first: Sequence[bool] | bool = False) -> pd.DataFrame:
    """Return one row per request in a run, as described in `Latency.samples`.

    The column `first` marks warm-up calls.
    """
    names = ["request", "size", "arrival_ns", "start_ns", "end_ns", "late_ns"]
    table = pd.DataFrame(list(map(attrgetter(*names), served)), columns=names)
    began = int(table["arrival_ns"].min()) if len(table) else 0
    return pd.DataFrame(
        {
            "request": table["request"],
            "size": table["size"].astype("category"),
            "arrival_ms": (table["arrival_ns"] - began) / 1e6,
            "start_ms": (table["start_ns"] - began) / 1e6,
            "wait_ms": (table["start_ns"] - table["arrival_ns"]) / 1e6,
            "service_ms": (table["end_ns"] - table["start_ns"]) / 1e6,
            "latency_ms": (table["end_ns"] - table["arrival_ns"]) / 1e6,
            "late_ms": table["late_ns"] / 1e6,
            "first": first,
        }
    )


def tokens_of(run: str, served: Sequence[Served]) -> pd.DataFrame:
    """Return one row per token in a run."""
    rows = [
        (run, number, place, (at - one.arrival_ns) / 1e6, (at - one.start_ns) / 1e6, one.prompt_tokens)
        for number, one in enumerate(served)
        for place, at in enumerate(one.tokens_ns)
    ]
    return pd.DataFrame(rows, columns=list(TOKEN_COLUMNS))


@dataclass(frozen=True)
class OpenRun:
    """A run that served requests at arrival times that were fixed in advance.

    Attributes
    ----------
    rate_per_s : float
        The number of arrivals per second, which is either the requested rate or the rate of the recorded schedule.
    samples : DataFrame
        The same columns as in `Latency.samples`, without ``run``.
    lost : int
        The number of requests that were due but were not served during the run.
    late : float
        The clock's delay in starting requests (99th percentile), as a fraction of the median service time.
    tokens : DataFrame
        One row per token, if tokens were requested: ``run``, ``served`` (index in the samples), ``token``,
        ``after_arrival_ms`` and ``after_start_ms``.
    concurrency : int
        The number of requests that are served at the same time.
    """

    rate_per_s: float
    samples: pd.DataFrame
    lost: int
    late: float
    tokens: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(TOKEN_COLUMNS)), repr=False)
    concurrency: int = 1

    @property
    def saturated(self) -> bool:
        """Whether requests arrived faster than they were served.

        In this case, some requests were never served, or would not be served if the run continued.
        """
        busy = self.rate_per_s * float(self.samples["service_ms"].mean()) / 1e3 / self.concurrency
        return self.lost > 0 or busy >= 1


def open_run_of(
    served: Sequence[Served], arrivals_ms: Sequence[float], rate_per_s: float | None, concurrency: int
) -> OpenRun:
    """Return the results of a run on a schedule."""
    samples, count = samples_of(served), len(arrivals_ms)
    late = float(samples["late_ms"].quantile(0.99)) / float(samples["service_ms"].median())
    rate = rate_per_s or count / arrivals_ms[-1] * 1e3
    return OpenRun(rate, samples, count - len(served), late, tokens_of("open", served), concurrency)


@dataclass(frozen=True)
class Measured:
    """All measurements of a service."""

    name: str
    concurrency: int
    #: The requests served back to back, and those served alone after pauses, with the length of the pause in
    #: ``pause_ms``.
    closed: pd.DataFrame
    paused: pd.DataFrame
    open_run: OpenRun | None = None
    #: The requested rate, or ``None`` for recorded arrivals.
    asked_rate: float | None = None
    #: The requested bound, and the fraction of requests that must be within it.
    asked_bound: tuple[float, float] | None = None
    #: The service times of batches of 2 and more, by size, or ``None`` if they were not requested.
    batches_ms: Mapping[int, Sequence[float]] | None = None
    #: A batch size where the input made by ``batch`` does not seem to contain all requests.
    short_batch: int | None = None
    #: The tokens of the requests served back to back, or ``None`` if they were not requested.
    tokens: pd.DataFrame | None = None
    #: The key-value cache of an answer, or the reason why it is unknown.
    cache: Cache | str = "tokens were not requested"
    price_per_hour: float | None = None
    #: The energy per request in joules in each run, or the reason why it is unknown.
    joules: Mapping[str, float | str] = field(default_factory=dict)
    #: Whether the served model was still in training mode.
    in_training: bool = False
    #: Conditions that may have affected the requests.
    noise: Mapping[str, Any] = field(default_factory=dict)

    @property
    def steady(self) -> pd.DataFrame:
        """The requests that were served back to back, without the warm-up."""
        return self.closed[~self.closed["first"]]


@dataclass(frozen=True)
class Cache:
    """A key-value cache that was observed when it contained `length` tokens.

    For each layer, `layers` contains the number of bytes per token and the maximum number of tokens. The maximum is
    infinite if the layer grows with the answer, and 1 if its size does not depend on the length.
    """

    layers: tuple[tuple[int, float], ...]
    length: int

    def bytes_at(self, length: int) -> int:
        """Return the cache's size for a given number of tokens."""
        return sum(token_bytes * int(min(length, most)) for token_bytes, most in self.layers)


def by_request(tokens: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """Return one row per request that returned a token.

    Each row contains the number of tokens, the time to first token, and the time per subsequent token.

    ``tpot_ms`` is (last - first) / (tokens - 1). It is ``NA`` for a single token, because it is undefined.
    """
    groups = tokens.groupby(["run", "served"], observed=True)
    first = groups.first()
    count = groups.size()
    spread = groups["after_start_ms"].last() - first["after_start_ms"]
    table = pd.DataFrame(
        {
            "tokens": count,
            "ttft_ms": first["after_arrival_ms"],
            "prefill_ms": first["after_start_ms"],
            "decode_ms": spread,
            "tpot_ms": (spread / (count - 1)).where(count > 1),
            "prompt_tokens": first["prompt_tokens"],
        }
    ).astype({"tpot_ms": "Float64", "prompt_tokens": "Int64"})
    numbered = samples.assign(served=samples.groupby("run", observed=True).cumcount())
    known = numbered.set_index(["run", "served"])
    return table.join(known[["request", "size", "service_ms", "latency_ms", "first"]]).reset_index()


def gaps_ms(tokens: pd.DataFrame) -> Floats:
    """Return the gaps between consecutive tokens of the same request, for all requests together."""
    gaps = tokens.groupby(["run", "served"], observed=True)["after_start_ms"].diff().dropna()
    return np.asarray(gaps, dtype=float)


def goodput(requests: pd.DataFrame, seconds: float, bounds: Mapping[str, float]) -> float:
    """Return the number of requests per second that met all bounds.

    A request with only one token always meets a bound on ``tpot_ms``.
    """
    met = pd.Series(True, index=requests.index)
    for name, bound in bounds.items():
        met &= requests[name].isna() | (requests[name] <= bound)
    return float(met.sum()) / seconds
