"""Present a comparison of speculative and plain decoding as a document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.bench.pairs_view import STATES
from perfnb.draw.document import Axis, Column, Document, Effect, Effects, Figure, Strip, Table, Verdict
from perfnb.draw.palette import BLUE, Mark
from perfnb.profile.timing import noise_sentences

if TYPE_CHECKING:
    from perfnb.inference.compare_decoding import DecodingComparison

_PAIRS = Mark("pairs", BLUE, "█", "solid")


def decoding_document(found: DecodingComparison) -> Document:
    """Return a comparison's document.

    It shows whether assisted decoding is faster, how many guesses were kept, and whether the answers differ.
    """
    ab = found.ab
    pairs = fmt.counted(len(ab.pairs), "pair")
    effect = Effect("assisted", ab.ratio, ab.ratio_ci, ab.verdict if ab.ratio_ci else "too few pairs")
    heads = {"request": "request", "tokens": "tokens", "passes": "passes", "proposed": "guessed", "accepted": "kept"}
    columns = {name: Column(head, "count") for name, head in heads.items()} | {"answer": Column("same answer")}
    answers = found.requests.assign(answer=list(map(_same, found.requests["same"], found.requests["alike_tokens"])))
    return Document(
        "decoding",
        "assisted relative to plain",
        verdict=_verdict(found, pairs),
        figures=(
            Figure("assisted", ab.b.median_ms, "ms", ab.b.ci_ms, "median per answer"),
            Figure("plain", ab.a.median_ms, "ms", ab.a.ci_ms, "median per answer"),
            Figure("guesses kept", found.acceptance, "share"),
            Figure("tokens per forward pass of the model", found.tokens_per_pass, "number"),
        ),
        facts=(f"{pairs} of answers, each to the same request, in random order",),
        sections=(
            Effects("Time per answer relative to plain decoding", (effect,)),
            Strip("Pairs", Axis("assisted / plain", "ratio"), ((_PAIRS, list(ab.pairs["ratio"])),), ("same", 1.0)),
            Table.of("Compared answers (not timed)", answers, columns, noun="answer"),
        ),
        notes=tuple(_notes(found)),
    )


def _verdict(found: DecodingComparison, pairs: str) -> Verdict:
    if found.gain_interval is None:
        sentence = f"{pairs} of answers are too few to show whether assisted decoding is faster"
        return Verdict("open", sentence, next="Raise budget_s.")
    ratio, verdict = found.ab.ratio, found.verdict
    effect = fmt.with_interval(fmt.ratio(ratio), ratio, found.ab.ratio_ci)
    less = f"{fmt.share(abs(1 - ratio))} {'less' if ratio < 1 else 'more'}"
    sentences = {
        "same": f"Assisted decoding takes as long as plain decoding: {effect}",
        "inconclusive": f"It is not clear whether assisted decoding is faster: {effect} the time of plain decoding",
    }
    clear = f"Assisted decoding is {verdict}: an answer takes {less} time than with plain decoding, {effect}"
    return Verdict(STATES[verdict], sentences.get(verdict, clear), _answers(found))


def _answers(found: DecodingComparison) -> str:
    compared = fmt.counted(len(found.requests), "answer")
    if found.same is None:
        return "Answers were not compared, because plain decoding gives different answers to the same request."
    if found.same:
        return f"{compared} compared: all are the same."
    other = found.requests[~found.requests["same"].astype(bool)]
    alike = fmt.counted(int(other["alike_tokens"].min()), "token")
    differ = "differs" if len(other) == 1 else "differ"
    return f"{len(other):,} of {compared} {differ} from plain decoding, the earliest after {alike}."


def _same(same: Any, alike: int) -> str:
    return fmt.UNKNOWN if pd.isna(same) else "yes" if same else f"first {alike:,} tokens"


def _notes(found: DecodingComparison) -> Iterator[str]:
    if found.acceptance is None:
        unknown = found.requests["proposed"].isna().any()
        why = "the model's cache does not reveal it" if unknown else "nothing was guessed"
        yield f"Fraction of guessed tokens that were kept {fmt.UNKNOWN}: {why}."
    if found.ab.steady is False:
        yield "The answers had not reached steady state when the warm-up ended."
    yield from noise_sentences(found.ab.noise)
