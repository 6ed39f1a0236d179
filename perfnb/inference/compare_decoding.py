"""`compare_decoding`: measure the speed-up from speculative decoding.

The comparison also shows how many guessed tokens are kept, and whether the answers differ.
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

#: The number of requests whose answers are compared, and the fraction of the budget that may be spent on this.
_COMPARED, _COMPARED_SHARE = 8, 0.3
_COLUMNS = ("request", "tokens", "passes", "proposed", "accepted", "same", "alike_tokens")


@dataclass(frozen=True, repr=False, eq=False)
class DecodingComparison(Documented):
    """A request-by-request comparison of speculative and plain decoding, which is displayed in notebooks.

    Attributes
    ----------
    ab : ABTest
        The experiment. In each pair, a request is answered with both methods, in random order.
    requests : DataFrame
        One row for each request whose answers were compared. The columns are ``request`` (its index in your requests),
        ``tokens`` (length of the assisted answer), ``passes`` (forward passes of the model itself), ``proposed``
        (number of guessed tokens), ``accepted`` (number of guessed tokens that were kept; ``NA`` if the model's cache
        does not show it), ``same`` (whether both answers are the same; ``NA`` if plain decoding draws random tokens),
        and ``alike_tokens`` (number of tokens before the answers differ).
    """

    ab: ABTest
    requests: pd.DataFrame

    @property
    def verdict(self) -> str:
        """The speed of assisted relative to plain decoding: ``faster``, ``slower``, ``same`` or ``inconclusive``."""
        return self.ab.verdict

    @property
    def gain(self) -> float:
        """The speed-up of assisted decoding: the time of plain decoding divided by the time of assisted decoding."""
        return 1 / self.ab.ratio

    @property
    def gain_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of `gain`, or ``None`` if there are fewer than 6 pairs."""
        interval = self.ab.ratio_ci
        return None if interval is None else (1 / interval[1], 1 / interval[0])

    @property
    def acceptance(self) -> float | None:
        """The fraction of guessed tokens that were kept, or ``None`` if it is undefined or could not be observed."""
        known = self.requests.dropna(subset=["proposed", "accepted"])
        proposed = int(known["proposed"].sum())
        return int(known["accepted"].sum()) / proposed if proposed else None

    @property
    def tokens_per_pass(self) -> float:
        """The number of tokens per forward pass of the model, which is 1 in plain decoding."""
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

    Both methods answer the same requests, in random order within each pair, and their times are compared. Afterwards, a
    few requests are answered again without being timed. perfnb uses these answers to count the guesses that were kept,
    and to check whether the two methods give the same answers.

    Parameters
    ----------
    plain, assisted : callable
        The functions that answer a request. Like the functions for `perfnb.latency` with ``tokens=True``, they must
        yield tokens, or accept ``streamer=`` and pass it to Hugging Face's ``generate``.
    requests : iterable
        The requests to answer.
    budget_s : float
        The approximate total time in seconds.

    Returns
    -------
    DecodingComparison

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.
    CaptureError
        If this is called inside a profiler.
    Exception
        Any exception that the functions raise.
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
    """Return the figures of two answers to the same request, and whether they are the same."""
    pairs = enumerate(zip(plain, assisted, strict=False))
    differs_at = next((place for place, (one, other) in pairs if one != other), min(len(plain), len(assisted)))
    return {"tokens": len(assisted), "same": plain == assisted, "alike_tokens": differs_at}
