"""What a comparison of architectures found: costs, where the time goes, and how far the models differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from perfnb.models.layer_kinds import kinds_of_layers, time_by_kind
from perfnb.profile.summary import Summary
from perfnb.recording.schema import SPECIAL_ROWS
from perfnb.stats.comparisons import compare_all, ratio_table
from perfnb.stats.intervals import interval_of_median
from perfnb.stats.step_times import Timing

_INTEGERS = ("parameters", "parameter_bytes", "forward_flops", "backward_flops", "peak_bytes", "activation_bytes")
_FLOATS = (
    *("median_ms", "ci_low_ms", "ci_high_ms", "throughput_per_s"),
    *("achieved_flops_per_s", "intensity", "launches_or_ops"),
)
COLUMNS = (*_INTEGERS[:4], *_FLOATS[:4], *_INTEGERS[4:], *_FLOATS[4:])


@dataclass(frozen=True)
class ArchitectureFigures:
    """Figures of a comparison of architectures.

    Attributes
    ----------
    table : DataFrame
        One row per name (the index), in the given order: ``parameters``, ``parameter_bytes``, ``forward_flops``,
        ``backward_flops``, ``median_ms``, ``ci_low_ms``, ``ci_high_ms``, ``throughput_per_s``, ``peak_bytes``,
        ``activation_bytes``, ``achieved_flops_per_s``, ``intensity`` (FLOP/byte), ``launches_or_ops``; each may be NA.
    shares : DataFrame
        Where the time goes: ``name``, ``by`` (kind or phase), ``part`` (one of `layer_kinds.KINDS`, or a phase),
        ``ms``, ``share``. For each name and ``by`` the shares add up to 1, and the times to the median.
    ratios : DataFrame
        Pairs: ``a``, ``b``, ``ratio`` (time of b to time of a), ``ci_low``, ``ci_high``, ``p_holm``, ``verdict`` of b
        against a (faster, slower, same, inconclusive), ``smallest_detectable`` (relative).
    layers : mapping of str to DataFrame
        Each model's frame ``layers`` with a column ``kind``.
    samples_ms : mapping of str to tuple of float
        Step times of each model; the n-th of all models were measured side by side.
    training : bool
        With loss and backward pass, or forward only.
    device : str
        Name of the device.
    batch : str
        Description of the batch.
    rounds : int
        Measurements per model.
    equal_within : float
        Relative difference up to which two times count as the same: 0.02 is 2 %.
    notes : tuple of str
        Caveats.
    """

    table: pd.DataFrame
    shares: pd.DataFrame
    ratios: pd.DataFrame
    layers: Mapping[str, pd.DataFrame]
    samples_ms: Mapping[str, tuple[float, ...]]
    training: bool
    device: str
    batch: str
    rounds: int
    equal_within: float
    notes: tuple[str, ...] = ()


def architecture_figures(
    summaries: Mapping[str, Summary],
    samples_ms: Mapping[str, Sequence[float]],
    batch_sizes: Mapping[str, int | None],
    *,
    equal_within: float,
    **rest: Any,
) -> ArchitectureFigures:
    """Combine what was measured.

    Parameters
    ----------
    summaries : mapping of str to Summary
        Summary of each model's profile.
    samples_ms : mapping of str to sequence of float
        Step times of each model, one per round.
    batch_sizes : mapping of str to (int or None)
        Samples in each model's batch.
    """
    rows = {
        name: _row(summary, Timing(tuple(samples_ms[name]), batch_sizes[name])) for name, summary in summaries.items()
    }
    table = pd.DataFrame.from_dict(rows, orient="index", columns=list(COLUMNS)).rename_axis("name")
    types = dict.fromkeys(_INTEGERS, "Int64") | dict.fromkeys(_FLOATS, "Float64")
    shares = [_shares(name, summary, float(rows[name]["median_ms"])) for name, summary in summaries.items()]
    return ArchitectureFigures(
        table=table.astype(types),
        shares=pd.concat(shares, ignore_index=True),
        ratios=_ratios(samples_ms, equal_within),
        layers={
            name: summary.layers.assign(kind=kinds_of_layers(summary.layers)) for name, summary in summaries.items()
        },
        samples_ms={name: tuple(samples) for name, samples in samples_ms.items()},
        rounds=min((len(samples) for samples in samples_ms.values()), default=0),
        equal_within=equal_within,
        **rest,
    )


def _row(summary: Summary, timing: Timing) -> dict[str, Any]:
    layers = summary.layers
    roots = layers[(layers["depth"] == 0) & ~layers.index.isin(SPECIAL_ROWS)]
    sums = {
        name: roots[name].sum(min_count=1)
        for name in ("parameters", "parameter_bytes", "forward_flops", "backward_flops", "activation_bytes")
    }
    interval, memory, roofline = interval_of_median(timing.samples_ms), summary.memory, summary.roofline
    flops = None if roofline is None else roofline.flops
    moved = None if roofline is None else roofline.points.loc[roofline.points["kind"] == "op", "bytes"].sum()
    count = roots["kernels"] if roots["kernels"].notna().any() else roots["ops"]
    return sums | {
        "median_ms": timing.median_ms,
        "ci_low_ms": None if interval is None else interval.low,
        "ci_high_ms": None if interval is None else interval.high,
        "throughput_per_s": timing.throughput_per_s,
        # `other` is what else is alive in the process.
        "peak_bytes": None if memory is None else memory.peak_bytes - memory.by_category["other"],
        "achieved_flops_per_s": flops / timing.median_ms * 1e3 if flops is not None and timing.median_ms else None,
        "intensity": flops / moved if flops is not None and moved else None,
        "launches_or_ops": count.sum(min_count=1),
    }


def _shares(name: str, summary: Summary, median_ms: float) -> pd.DataFrame:
    """Shares of the median time by kind of layer and by phase."""
    phases = summary.phases["share"].astype("Float64")
    parts = {"kind": time_by_kind(summary.layers, summary.layer_ops), "phase": phases}
    tables = []
    for by, values in parts.items():
        share = values / values.sum() if values.sum() > 0 else values
        table = pd.DataFrame({"name": name, "by": by, "part": [str(part) for part in values.index]})
        tables.append(table.assign(ms=(share * median_ms).to_numpy(dtype=float), share=share.to_numpy(dtype=float)))
    return pd.concat(tables, ignore_index=True)


def _ratios(samples_ms: Mapping[str, Sequence[float]], equal_within: float) -> pd.DataFrame:
    table = ratio_table(compare_all(samples_ms, equal_within))
    table = table.rename(columns={"baseline": "a", "candidate": "b", "p_value": "p_holm"})
    return table[["a", "b", "ratio", "ci_low", "ci_high", "p_holm", "verdict", "smallest_detectable"]]
