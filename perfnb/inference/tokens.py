"""When each token came: time to the first, gaps between the others, goodput. Pure functions on a frame of tokens."""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfnb.stats.intervals import Floats

#: Columns of the frame of tokens, a row per token: the served request's number in its run, the token's in its answer,
#: and when it came, in milliseconds after the request's arrival and after the start of its service.
COLUMNS = ("run", "served", "token", "after_arrival_ms", "after_start_ms")


def by_request(tokens: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """A row per request that gave a token: time to the first token, time per later token, and rate.

    ``tpot_ms`` is (last - first) / (tokens - 1); undefined, and ``NA``, for a single token.
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
        }
    ).astype({"tpot_ms": "Float64"})
    numbered = samples.assign(served=samples.groupby("run", observed=True).cumcount())
    known = numbered.set_index(["run", "served"])
    return table.join(known[["request", "size", "service_ms", "latency_ms", "first"]]).reset_index()


def gaps_ms(tokens: pd.DataFrame) -> Floats:
    """The gaps between consecutive tokens of a request, all requests together."""
    gaps = tokens.groupby(["run", "served"], observed=True)["after_start_ms"].diff().dropna()
    return np.asarray(gaps, dtype=float)


def goodput(requests: pd.DataFrame, seconds: float, bounds: dict[str, float]) -> float:
    """Requests per second that were within all bounds; one without a second token meets a bound on ``tpot_ms``."""
    met = pd.Series(True, index=requests.index)
    for name, bound in bounds.items():
        met &= requests[name].isna() | (requests[name] <= bound)
    return float(met.sum()) / seconds
