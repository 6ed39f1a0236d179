"""Present a comparison of backends as a document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

from perfnb import quantities as fmt
from perfnb.bench.values import UNCHECKED
from perfnb.draw.document import Column, Document, Effect, Effects, Interval, Table, Verdict
from perfnb.profile.timing import noise_sentences

if TYPE_CHECKING:
    from perfnb.inference.backend_figures import BackendRounds


def comparison_document(rounds: BackendRounds, table: pd.DataFrame, count: int) -> Document:
    """Return a document that shows each backend's cost and accuracy.

    The fastest backend comes first, and backends that did not run come last. `count` is the number of rounds.
    """
    ordered = table.sort_values("median_ms", kind="stable", na_position="last")
    effects = [
        Effect(str(name), row["ratio"], _bounds(row), f"{row['decision']}, {row['verdict']}")
        for name, row in ordered[ordered["ratio"].notna()].iterrows()
    ]
    columns = {
        "name": Column("backend"),
        ("median_ms", "ci_low_ms", "ci_high_ms"): Column("latency", "ms"),
        "decision": Column("decision"),
        "values": Column("outputs", priority=1),
        "error": Column("error", "number", 3, help="Distance from the model's float64 outputs, relative to their size"),
        "size_bytes": Column("on disk", "bytes", priority=2),
        "peak_memory_bytes": Column("peak memory", "bytes", priority=2),
        "setup_ms": Column("set-up", "ms", priority=3),
    }
    shown = ordered.rename_axis("name").reset_index().assign(setup_ms=ordered["setup_s"].array * 1e3)
    sections = (
        Effects("Latency relative to the unmodified model (eager)", tuple(effects), head="backend"),
        Table.of("Backends", shown, columns, details=ordered["reason"].map(str).tolist(), noun="backend"),
    )
    return Document(
        "backends",
        rounds.model,
        verdict=_verdict(table),
        facts=(
            f"{fmt.counted(count, 'round')}; in each round, every backend served the example once, in random order",
        ),
        sections=sections,
        notes=tuple(_notes(rounds)),
    )


def _bounds(row: pd.Series) -> Interval | None:
    return fmt.known_bounds((row["ratio_low"], row["ratio_high"]))


def _verdict(table: pd.DataFrame) -> Verdict:
    accepted = table[table["decision"] == "accept"].sort_values("ratio")
    if accepted.empty:
        return Verdict("none", "No backend is both faster than eager and as accurate")
    best = accepted.iloc[0]
    ratio = float(best["ratio"])
    effect = fmt.with_interval(fmt.ratio(ratio), ratio, _bounds(best))
    less = f"{fmt.share(1 - ratio)} less than eager" if ratio < 1 else "no longer than eager"
    return Verdict("good", f"Use {accepted.index[0]}: {fmt.duration(best['median_ms'])} per call, {less}: {effect}")


def _notes(rounds: BackendRounds) -> Iterator[str]:
    own = rounds.trials[0].values
    if own.verdict == UNCHECKED and own.why:
        yield f"Outputs were not checked: {own.why}."
    if rounds.steady is False:
        yield "Not all backends had reached steady state when the warm-up ended."
    yield from noise_sentences(rounds.noise)
