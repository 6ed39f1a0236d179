"""Compute the tables for a comparison of architectures.

They show each model's cost, how its time is divided among the kinds of layer, and how much the models differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from perfnb.profile.summary import Summary
from perfnb.recording.schema import SPECIAL_ROWS
from perfnb.recording.text import TEXT
from perfnb.stats.comparisons import compare_all, ratio_table
from perfnb.stats.intervals import interval_of_median
from perfnb.stats.step_times import StepTimes

#: Columns of `ArchitectureComparison.table` and their types.
COLUMNS = {
    **dict.fromkeys(("parameters", "parameter_bytes", "forward_flops", "backward_flops"), "Int64"),
    **dict.fromkeys(("median_ms", "ci_low_ms", "ci_high_ms", "throughput_per_s"), "Float64"),
    **dict.fromkeys(("peak_bytes", "activation_bytes"), "Int64"),
    **dict.fromkeys(("achieved_flops_per_s", "intensity", "launches_or_ops"), "Float64"),
}

#: The kinds of work that layers and operators do, which make models of different designs comparable.
KINDS = ("attention", "linear", "convolution", "normalisation", "activation", "embedding", "other")

#: The operators of each kind by name, including those of autograd. The first match counts.
_OPS = {
    "attention": r"attention",
    # a hand-written layer takes the square root of a variance
    "normalisation": r"norm(?!al)|rsqrt|::(var|std)",
    "convolution": r"conv",
    "embedding": r"embedding",
    "linear": r"addmm|addmv|addbmm|baddbmm|bmm|matmul|linear|::mm$|::mv$|^mm|einsum|dot$",
    # dropout is also elementwise and just as cheap
    "activation": r"(re|ge|se|ce|si|g|pre)lu|tanh|sigmoid|softmax|softplus|swish|mish|threshold|dropout|clamp_min",
}
#: Operators of attention that is not a single operator: products of two activations, and the softmax.
_WITHIN_ATTENTION = "bmm|matmul|einsum|softmax"


def architecture_tables(
    summaries: Mapping[str, Summary],
    samples_ms: Mapping[str, Sequence[float]],
    batch_sizes: Mapping[str, int | None],
    equal_within: float,
) -> dict[str, Any]:
    """Combine the measurements into an `ArchitectureComparison`'s tables, by name.

    For each model, there is a summary of its profile, its step times, one per round, and the number of samples in its
    batch.
    """
    rows = {
        name: _row(summary, StepTimes(tuple(samples_ms[name]), batch_sizes[name]))
        for name, summary in summaries.items()
    }
    table = pd.DataFrame.from_dict(rows, orient="index", columns=list(COLUMNS)).rename_axis("name")
    shares = [_shares(name, summary, float(rows[name]["median_ms"])) for name, summary in summaries.items()]
    ratios = ratio_table(compare_all(samples_ms, equal_within))
    ratios = ratios.rename(columns={"baseline": "a", "candidate": "b", "p_value": "p_holm"})
    return {
        "table": table.astype(COLUMNS),
        "shares": pd.concat(shares, ignore_index=True),
        "ratios": ratios[["a", "b", "ratio", "ci_low", "ci_high", "p_holm", "verdict", "smallest_detectable"]],
        "layers": {
            name: summary.layers.assign(kind=kinds_of_layers(summary.layers.index, summary.layer_ops))
            for name, summary in summaries.items()
        },
    }


def _row(summary: Summary, timing: StepTimes) -> dict[str, Any]:
    layers = summary.layers
    roots = layers[(layers["depth"] == 0) & ~layers.index.isin(SPECIAL_ROWS)]
    sums = {
        name: roots[name].sum(min_count=1)
        for name in ("parameters", "parameter_bytes", "forward_flops", "backward_flops", "activation_bytes")
    }
    low, high = (interval_of_median(timing.samples_ms) or (None, None))[:2]
    memory, roofline = summary.memory, summary.roofline
    flops = None if roofline is None else roofline.flops
    moved = None if roofline is None else roofline.points.loc[roofline.points["kind"] == "op", "bytes"].sum()
    count = roots["kernels"] if roots["kernels"].notna().any() else roots["ops"]
    return sums | {
        "median_ms": timing.median_ms,
        "ci_low_ms": low,
        "ci_high_ms": high,
        "throughput_per_s": timing.throughput_per_s,
        # `other` is the memory of everything else in the process.
        "peak_bytes": None if memory is None else memory.peak_bytes - memory.by_category["other"],
        "achieved_flops_per_s": flops / timing.median_ms * 1e3 if flops is not None and timing.median_ms else None,
        "intensity": flops / moved if flops is not None and moved else None,
        "launches_or_ops": count.sum(min_count=1),
    }


def _shares(name: str, summary: Summary, median_ms: float) -> pd.DataFrame:
    """Return how the median time is divided among the kinds of layer and among the phases."""
    phases = summary.phases["share"].astype("Float64")
    parts = {"kind": time_by_kind(summary.layers, summary.layer_ops), "phase": phases}
    tables = []
    for by, values in parts.items():
        share = values / values.sum() if values.sum() > 0 else values
        table = pd.DataFrame({"name": name, "by": by, "part": [str(part) for part in values.index]})
        tables.append(table.assign(ms=(share * median_ms).to_numpy(dtype=float), share=share.to_numpy(dtype=float)))
    return pd.concat(tables, ignore_index=True)


def kind_of_op(name: str) -> str | None:
    """Return an operator's kind according to its name, or ``None`` if the name does not reveal it."""
    return next((kind for kind, words in _OPS.items() if re.search(words, name, re.IGNORECASE)), None)


def kinds_of_layers(layers: pd.Index, layer_ops: pd.DataFrame) -> pd.Series:
    """Return each layer's kind, which is missing for a container without operators of a known kind.

    A layer that computes attention has the kind attention. Any other layer has the kind that takes most of its own
    time.
    """
    ops = _kinds_of_ops(layer_ops).dropna(subset="kind")
    attention = ops["kind"] == "attention"
    ops = ops[attention | ~ops["layer"].isin(ops["layer"][attention])]
    sums = ops.groupby(["layer", "kind"])["ms"].sum().reset_index().sort_values("ms", ascending=False, kind="stable")
    kinds = sums.drop_duplicates("layer").set_index("layer")["kind"]
    found: pd.Series = pd.Series(kinds.reindex(layers).to_numpy(dtype=object), index=layers, dtype=TEXT)
    return found


def _kinds_of_ops(layer_ops: pd.DataFrame) -> pd.DataFrame:
    """Return ``layer``, ``op``, ``ms`` and ``kind``, which can be missing, for each row of the table ``layer_ops``."""
    time = layer_ops["gpu_ms" if layer_ops["gpu_ms"].notna().any() else "self_cpu_ms"]
    layer, op = layer_ops["layer"].astype(object), layer_ops["op"].astype(object)
    kind = op.map({name: kind_of_op(str(name)) for name in op.unique()})
    attends = set(layer[kind == "attention"])
    bmm, softmax = (set(layer[op.str.contains(word, case=False)]) for word in ("bmm", "softmax"))
    within = layer.isin(attends | bmm & softmax) & op.str.contains(_WITHIN_ATTENTION, case=False)
    kind = kind.mask(within, "attention")
    return pd.DataFrame({"layer": layer, "op": op, "kind": kind, "ms": time.astype("Float64").fillna(0.0)})


def time_by_kind(layers: pd.DataFrame, layer_ops: pd.DataFrame) -> pd.Series:
    """Return the milliseconds of a traced step's operators by kind, in GPU time if there is any.

    The result contains all of `KINDS`, in order. Operators of unknown kind, such as copies, are attributed to their
    layer's kind if the layer does not call another layer.
    """
    ops = _kinds_of_ops(layer_ops)
    called = layers[layers["calls"].fillna(0) > 0]
    calls_others = called.index[called["depth"].shift(-1) > called["depth"]]
    kinds = kinds_of_layers(layers.index, layer_ops)
    kinds = kinds[~kinds.index.duplicated() & ~kinds.index.isin(calls_others)]
    kind = ops["kind"].mask(ops["layer"].isin(SPECIAL_ROWS))  # a loss outside all layers is not an activation
    kind = kind.fillna(ops["layer"].map(kinds.astype(object))).fillna("other")
    return ops["ms"].groupby(kind.astype(TEXT)).sum().reindex(list(KINDS), fill_value=0.0)
