"""Speculative against plain decoding: text, static HTML and a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, tables
from perfnb.draw.frame import framed, header, static_page

if TYPE_CHECKING:
    from perfnb.inference.compare_decoding import DecodingComparison

_HEADS = ("request", "tokens", "passes", "guessed", "kept", "same answer")


def decoding_line(found: DecodingComparison) -> str:
    """One line: the gain, and the guesses kept."""
    return f"assisted decoding is {found.verdict}" + ("" if found.gain_interval is None else f": {_gain(found)}")


def decoding_text(found: DecodingComparison, width: int = 100) -> str:
    """All of it as text."""
    lines = [line for sentence in _sentences(found) for line in escape.wrapped(sentence, width)]
    rows = [_HEADS, *_rows(found)]
    wide = [max(len(row[place]) for row in rows) for place in range(len(_HEADS))]
    lines += ["", *("  ".join(cell.rjust(each) for cell, each in zip(row, wide, strict=True)) for row in rows)]
    return "\n".join([*lines, "", str(found.ab)])


def decoding_html(found: DecodingComparison) -> str:
    """Sentences, a table of the answers, and the experiment."""
    first, *rest = _sentences(found)
    said = "".join(f"<p>{escape.html_sentence(sentence)}</p>" for sentence in rest)
    rows = [[escape.html(cell) for cell in row] for row in _rows(found)]
    answers = tables.table("Answers that were compared, untimed", _HEADS, rows, texts=0, last_texts=1)
    return framed(f"{header('assisted against plain', 'decoding', first)}{said}{answers}") + found.ab._html()


def decoding_page(found: DecodingComparison) -> str:
    """A page of its own."""
    return static_page("Assisted against plain decoding", decoding_html(found))


def _gain(found: DecodingComparison) -> str:
    interval = found.gain_interval
    bounds = "" if interval is None else f" [{', '.join(fmt.significant(bound) for bound in interval)}]"
    return f"{fmt.significant(found.gain)}{bounds} times as fast as plain decoding"


def _sentences(found: DecodingComparison) -> list[str]:
    if found.gain_interval is None:
        pairs = fmt.counted(len(found.ab.pairs), "pair")
        said = [f"Whether assisted decoding is faster is not known from {pairs} of answers: raise budget_s."]
    else:
        unsure = " (inconclusive)" if found.verdict == "inconclusive" else ""
        said = [f"Assisted decoding is {_gain(found)}{unsure}."]
    per_pass = f"{fmt.significant(found.tokens_per_pass)} tokens for each pass of the model"
    if found.acceptance is None:
        guessed = found.requests["proposed"]
        why = "the model's cache does not show them" if guessed.isna().any() else "there were none"
        said.append(f"Share of guessed tokens that were kept {fmt.UNKNOWN}: {why}; {per_pass}.")
    else:
        said.append(f"Of the tokens guessed ahead, {fmt.share(found.acceptance)} were kept: {per_pass}.")
    compared = fmt.counted(len(found.requests), "request")
    if found.same is None:
        said.append("Answers were not compared: plain decoding answers the same request in different ways.")
    elif found.same:
        said.append(f"The answers to {compared} are the same.")
    else:
        other = found.requests[~found.requests["same"].astype(bool)]
        alike = fmt.counted(int(other["alike_tokens"].min()), "token")
        said.append(f"{len(other):,} of the answers to {compared} differ, the earliest after {alike}.")
    return said


def _rows(found: DecodingComparison) -> list[tuple[str, ...]]:
    return [
        (
            f"{row['request']:,}",
            f"{row['tokens']:,}",
            f"{row['passes']:,}",
            *(fmt.UNKNOWN if pd.isna(row[name]) else f"{row[name]:,}" for name in ("proposed", "accepted")),
            fmt.UNKNOWN if pd.isna(row["same"]) else "yes" if row["same"] else f"first {row['alike_tokens']:,} tokens",
        )
        for row in found.requests.to_dict("records")
    ]
