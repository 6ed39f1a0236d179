"""The ladder of backends: text, static HTML and a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.bench.values import UNCHECKED
from perfnb.draw import escape, ladder, tables
from perfnb.draw.frame import framed, header, static_page
from perfnb.profile.timing import noise_sentences

if TYPE_CHECKING:
    from perfnb.inference.compare_inference import InferenceComparison

_HEADS = ("backend", "latency", "against eager", "outputs", "on disk", "peak memory", "set-up", "decision", "why")


def comparison_line(found: InferenceComparison) -> str:
    """One line: what to use."""
    return f"{escape.plain(found._rounds.model, 40)}: {_summary(found.table)}"


def comparison_text(found: InferenceComparison, width: int = 100) -> str:
    """The ladder as text."""
    table = found.table
    rows = [_HEADS, *(_row(str(name), row) for name, row in _ordered(table).iterrows())]
    said = [line for sentence in _sentences(found, table) for line in escape.wrapped(sentence, width)]
    return "\n".join([f"Backends for {escape.plain(found._rounds.model, 40)}", "", *ladder.text_table(rows), "", *said])


def comparison_html(found: InferenceComparison) -> str:
    """The ladder as static HTML."""
    table = found.table
    first, *rest = _sentences(found, table)
    scale = ladder.longest(table)
    rows, reasons = [], []
    for name, row in _ordered(table).iterrows():
        _, latency, against, outputs, *sizes, decision, why = _row(str(name), row)
        outputs = outputs.replace("e-", "e\N{MINUS SIGN}")  # lines are not broken after it, as after a hyphen
        cells = (escape.html(cell, 300) for cell in (latency, against, *sizes, outputs))
        rows.append([escape.html(name), escape.html(decision), ladder.bar(row, scale), *cells])
        if why:
            reasons.append(f"<li>{escape.html(name)}: {escape.html(why, 300)}</li>")
    backend, latency, against, outputs, *sizes, decision, _ = _HEADS
    heads = (backend, decision, "faster | slower", latency, against, *sizes, outputs)
    drawn = tables.table("Backends, each against the model as it is (eager)", heads, rows, texts=3, last_texts=1)
    listed = f"<ul>{''.join(reasons)}</ul>" if reasons else ""
    return framed(f"{header(found._rounds.model, 'backends', first, *rest)}{drawn}{listed}", narrow=True)


def comparison_page(found: InferenceComparison) -> str:
    """A page of its own."""
    return static_page(f"Backends for {found._rounds.model}", comparison_html(found))


def _ordered(table: pd.DataFrame) -> pd.DataFrame:
    """The fastest first; what did not run last."""
    return table.sort_values("median_ms", kind="stable", na_position="last")


def _summary(table: pd.DataFrame) -> str:
    accepted = table[table["decision"] == "accept"].sort_values("ratio")
    if accepted.empty:
        return "no backend is faster and as good as eager"
    best = accepted.iloc[0]
    interval = None if pd.isna(best["ratio_low"]) else (float(best["ratio_low"]), float(best["ratio_high"]))
    said = ladder.ratio_words(float(best["ratio"]), interval)
    return f"use {accepted.index[0]}: {fmt.duration(best['median_ms'])} a call, {said}"


def _sentences(found: InferenceComparison, table: pd.DataFrame) -> list[str]:
    rounds = len(found.samples)
    said = [f"{fmt.capital(_summary(table))}."]
    said.append(f"{rounds:,} rounds, in each of which every backend served the example once, in random order.")
    own = found._rounds.trials[0].values
    if own.verdict == UNCHECKED and own.why:
        said.append(f"Outputs were not checked: {own.why}.")
    else:
        said.append("With the outputs stands their distance from the model's in float64, relative to their size.")
    open_ones = table[(table["decision"] == "inconclusive") & (table["verdict"] == "faster")]
    if len(open_ones):
        names = " and ".join(str(name) for name in open_ones.index)
        said.append(f"Faster, but not accepted yet: {names}.")
    if found._rounds.steady is False:
        said.append("Not all backends had reached steady state when the warm-up ended.")
    return [*said, *noise_sentences(found._rounds.noise)]


def _row(name: str, row: Any) -> tuple[str, ...]:
    decision, why = row["decision"], escape.plain(row["reason"], 300)
    if row["verdict"] == "refused":
        return name, fmt.UNKNOWN, "", "", "", "", "", decision, why
    values = row["values"]
    if not pd.isna(row["error"]):
        values = f"{values} ({float(row['error']):.1g})"
    return (
        name,
        fmt.interval(row["median_ms"], (row["ci_low_ms"], row["ci_high_ms"])),
        "" if pd.isna(row["ratio"]) else ladder.row_words(row),
        values,
        fmt.size(row["size_bytes"]),
        fmt.size(row["peak_memory_bytes"]),
        fmt.duration(float(row["setup_s"]) * 1e3),
        decision,
        why,
    )
