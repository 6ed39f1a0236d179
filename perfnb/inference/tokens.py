"""When each token came: time to the first, gaps between the others, goodput; the size of a key-value cache. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.stats.intervals import Floats

#: Columns of the frame of tokens, a row per token: the served request's number in its run, the token's in its answer,
#: and when it came, in milliseconds after the request's arrival and after the start of its service.
#: The last column is the length of the prompt, where it is known.
COLUMNS = ("run", "served", "token", "after_arrival_ms", "after_start_ms", "prompt_tokens")


@dataclass(frozen=True)
class CacheLayer:
    """Keys and values of one layer: bytes per token, most tokens that it keeps, and bytes whatever the length."""

    token_bytes: int
    most_tokens: int | None
    fixed_bytes: int


@dataclass(frozen=True)
class Cache:
    """A key-value cache, layer by layer, as it was seen with `length` tokens."""

    layers: tuple[CacheLayer, ...]
    length: int

    def bytes_at(self, length: int) -> int:
        """Its size with so many tokens."""
        return sum(
            layer.fixed_bytes
            + layer.token_bytes * (length if layer.most_tokens is None else min(length, layer.most_tokens))
            for layer in self.layers
        )


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
            "prompt_tokens": first["prompt_tokens"],
        }
    ).astype({"tpot_ms": "Float64", "prompt_tokens": "Int64"})
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


def answers_compared(rows: Sequence[Mapping[str, object]], random: bool) -> pd.DataFrame:
    """A row per request that two ways of decoding answered: whether the answers are the same, and guesses kept.

    Parameters
    ----------
    rows : sequence of mapping
        ``request``, ``plain`` and ``assisted`` (tokens in order), ``passes``, ``proposed`` and ``accepted``.
    random : bool
        Whether the same request gets different answers, so that they cannot be compared.
    """
    table = pd.DataFrame(list(rows))
    pairs = list(zip(table["plain"], table["assisted"], strict=True))
    alike = [next((at for at, (one, other) in enumerate(zip(*pair)) if one != other), None) for pair in pairs]  # noqa: B905
    found = pd.DataFrame(
        {
            "request": table["request"],
            "tokens": [len(assisted) for _, assisted in pairs],
            "passes": table["passes"],
            "proposed": table["proposed"],
            "accepted": table["accepted"],
            "same": pd.NA if random else [plain == assisted for plain, assisted in pairs],
            "alike_tokens": pd.NA
            if random
            else [min(map(len, pair)) if at is None else at for at, pair in zip(alike, pairs, strict=True)],
        }
    )
    whole = dict.fromkeys(("proposed", "accepted", "alike_tokens"), "Int64")
    return found.astype(whole | {"same": "boolean"})
