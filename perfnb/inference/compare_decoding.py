"""`compare_decoding`: measure how much speculative decoding gains.

The comparison also shows how many guesses are kept and whether the answers differ.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from perfnb.arguments import require_seconds, shown
from perfnb.draw.document import Document
from perfnb.draw.documented import Documented
from perfnb.draw.step_output import StepOutput
from perfnb.experiments.ab_test import ABTest, ab_test
from perfnb.inference.decoding_view import decoding_document

#: The number of requests whose answers are compared, and the share of the budget that this may take.
_COMPARED, _COMPARED_SHARE = 8, 0.3
_COLUMNS = ("request", "tokens", "passes", "proposed", "accepted", "same", "alike_tokens")


@dataclass(frozen=True, repr=False, eq=False)
class DecodingComparison(Documented):
    """A comparison of speculative and plain decoding, request by request. A notebook displays it.

    Attributes
    ----------
    ab : ABTest
        The experiment: each pair is one request, answered both ways in random order.
    requests : DataFrame
        The requests whose answers were compared, a row each: ``request`` (its place among yours), ``tokens`` (of the
        assisted answer), ``passes`` (of the model itself), ``proposed`` (tokens guessed ahead) and ``accepted`` (how
        many of those were kept; ``NA`` if the model's cache does not show it), ``same`` (whether both answers are the
        same; ``NA`` if plain decoding draws random tokens) and ``alike_tokens`` (before they differ).
    """

    ab: ABTest
    requests: pd.DataFrame

    @property
    def verdict(self) -> str:
        """``faster``, ``slower``, ``same`` or ``inconclusive``, for assisted decoding compared with plain decoding."""
        return self.ab.verdict

    @property
    def gain(self) -> float:
        """How many times as fast as plain decoding it is."""
        return 1 / self.ab.ratio

    @property
    def gain_interval(self) -> tuple[float, float] | None:
        """The gain's 95 % interval, or ``None`` if there are fewer than 6 pairs."""
        interval = self.ab.ratio_ci
        return None if interval is None else (1 / interval[1], 1 / interval[0])

    @property
    def acceptance(self) -> float | None:
        """The share of guessed tokens that were kept, or ``None`` if there were none or they could not be observed."""
        known = self.requests.dropna(subset=["proposed", "accepted"])
        proposed = int(known["proposed"].sum())
        return int(known["accepted"].sum()) / proposed if proposed else None

    @property
    def tokens_per_pass(self) -> float:
        """The number of tokens per forward pass of the model. In plain decoding, it is 1."""
        passes = int(self.requests["passes"].sum())
        return int(self.requests["tokens"].sum()) / passes if passes else math.nan

    @property
    def same(self) -> bool | None:
        """Whether all answers are the same, or ``None`` if plain decoding draws random tokens."""
        return None if self.requests["same"].isna().any() else bool(self.requests["same"].all())

    def _document(self) -> Document:
        return decoding_document(self)


def compare_decoding(
    plain: Callable[..., Any], assisted: Callable[..., Any], requests: Iterable[Any], *, budget_s: float = 30.0
) -> DecodingComparison:
    """Compare speculative (assisted) decoding with plain decoding.

    Both methods answer the same requests, in random order within each pair, and their times are compared. A few
    requests are then answered once more without being timed, to count the guesses that were kept and to compare the
    answers.

    Parameters
    ----------
    plain, assisted : callable
        As for `perfnb.latency` with ``tokens=True``: each takes ``streamer=`` and passes it to Hugging Face's
        ``generate``, or yields tokens.
    requests : iterable
        The requests that they are called with.
    budget_s : float
        The approximate total time in seconds.

    Returns
    -------
    DecodingComparison

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit.
    CaptureError
        Inside a profiler.
    Exception
        Whatever the functions raise.
    """
    from perfnb.inference.generation import watch_generation
    from perfnb.inference.serving import Requests, tokens_served_by

    __tracebackhide__ = True
    for name, fn in (("plain", plain), ("assisted", assisted)):
        if not callable(fn):
            raise TypeError(f"{name} must be a function that answers a request, not {shown(fn)}.")
    require_seconds("budget_s", budget_s)
    held = Requests(requests)
    begin = time.perf_counter()
    rows: list[dict[str, Any]] = []
    with StepOutput():
        first = watch_generation(plain, held[0]).tokens
        random = False
        for place in range(min(_COMPARED, len(held))):
            if rows and time.perf_counter() - begin > _COMPARED_SHARE * budget_s:
                break
            answer, guessed = watch_generation(plain, held[place]).tokens, watch_generation(assisted, held[place])
            random |= place == 0 and answer != first
            rows.append({"request": place, **_compared(answer, guessed.tokens)})
            rows[-1] |= {name: getattr(guessed, name) for name in ("passes", "proposed", "accepted")}
    answers = pd.DataFrame(rows).astype(dict.fromkeys(("proposed", "accepted", "alike_tokens"), "Int64"))
    answers = answers.astype({"same": "boolean"})[list(_COLUMNS)]
    if random:
        answers[["same", "alike_tokens"]] = pd.NA
    serve = {"plain": tokens_served_by(plain), "assisted": tokens_served_by(assisted)}
    for name, server in serve.items():
        server.__name__ = name
    left_s = max(0.1 * budget_s, begin + budget_s - time.perf_counter())
    ab = ab_test(serve["plain"], serve["assisted"], [held[place] for place in range(len(held))], budget_s=left_s)
    return DecodingComparison(ab, answers)


def _compared(plain: Sequence[Any], assisted: Sequence[Any]) -> dict[str, Any]:
    """Compare two answers to the same request."""
    pairs = enumerate(zip(plain, assisted, strict=False))
    differs_at = next((place for place, (one, other) in pairs if one != other), min(len(plain), len(assisted)))
    return {"tokens": len(assisted), "same": plain == assisted, "alike_tokens": differs_at}
