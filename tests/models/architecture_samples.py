"""Made-up comparisons of architectures with known figures, for the tests of the views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import pandas as pd

from perfnb.models.architectures import ArchitectureComparison
from perfnb.recording.schema import PHASES
from tests.summaries import HOSTILE, Leaf, make_summary

_KINDS = {
    "MultiheadAttention": "attention", "Linear": "linear", "NonDynamicallyQuantizableLinear": "linear",
    "Conv2d": "convolution", "BatchNorm2d": "normalisation", "LayerNorm": "normalisation", "ReLU": "activation",
    "GELU": "activation", "Embedding": "embedding",
}  # fmt: skip

_MLP: list[Leaf] = [
    ("mlp", "MLP", 1, 0.02, 0.01, 0, 0),
    ("mlp.layers", "Sequential", 1, 0.03, 0.0, 0, 0),
    ("mlp.layers.0", "Linear", 1, 0.52, 0.81, 0, 401_920),
    ("mlp.layers.1", "ReLU", 1, 0.06, 0.08, 0, 0),
    ("mlp.layers.2", "Linear", 1, 0.48, 0.9, 0, 524_800),
    ("mlp.layers.3", "ReLU", 1, 0.06, 0.08, 0, 0),
    ("mlp.head", "Linear", 1, 0.07, 0.12, 0, 10_250),
]
_CNN: list[Leaf] = [
    ("cnn", "CNN", 1, 0.04, 0.02, 0, 0),
    ("cnn.features", "Sequential", 1, 0.05, 0.0, 0, 0),
    *[
        (f"cnn.features.{3 * i + j}", kind, 1, forward * (1 + i), backward * (1 + i), 0, parameters)
        for i in range(3)
        for j, (kind, forward, backward, parameters) in enumerate(
            [("Conv2d", 0.31, 0.62, 147_584), ("BatchNorm2d", 0.09, 0.14, 256), ("ReLU", 0.04, 0.05, 0)]
        )
    ],
    ("cnn.pool", "AdaptiveAvgPool2d", 1, 0.06, 0.08, 0, 0),
    ("cnn.head", "Linear", 1, 0.03, 0.05, 0, 10_250),
]


def transformer(blocks: int = 4) -> list[Leaf]:
    """Return the layers of a small transformer."""
    rows: list[Leaf] = [
        ("transformer", "Transformer", 1, 0.05, 0.02, 0, 0),
        ("transformer.embed", "Embedding", 1, 0.11, 0.23, 0, 128_000),
        ("transformer.blocks", "ModuleList", 1, 0, 0, 0, 0),
    ]
    for block in range(blocks):
        at = f"transformer.blocks.{block}"
        rows += [
            (at, "Block", 1, 0.03, 0.02, 0, 0),
            (f"{at}.norm_1", "LayerNorm", 1, 0.08, 0.13, 0, 256),
            (f"{at}.attention", "MultiheadAttention", 1, 0.62, 1.21, 0, 49_536),
            (f"{at}.attention.out_proj", "NonDynamicallyQuantizableLinear", 1, 0.11, 0.2, 0, 16_512),
            (f"{at}.norm_2", "LayerNorm", 1, 0.08, 0.13, 0, 256),
            (f"{at}.up", "Linear", 1, 0.22, 0.4, 0, 66_048),
            (f"{at}.gelu", "GELU", 1, 0.07, 0.11, 0, 0),
            (f"{at}.down", "Linear", 1, 0.2, 0.38, 0, 65_664),
        ]
    return [*rows, ("transformer.head", "Linear", 1, 0.2, 0.37, 0, 1290)]


def three() -> ArchitectureComparison:
    """Return an MLP, a CNN and a transformer of about a million parameters, trained on one batch."""
    return compared({"mlp": _MLP, "cnn": _CNN, "transformer": transformer()})


def inference() -> ArchitectureComparison:
    """Return the forward pass alone: no backward pass, no phase of it."""
    forward = {name: [(*row[:4], 0, 0, row[6]) for row in rows] for name, rows in (("mlp", _MLP), ("cnn", _CNN))}
    return compared(forward, training=False)


def one() -> ArchitectureComparison:
    """Return nothing to compare with."""
    return compared({"transformer": transformer()})


def eight() -> ArchitectureComparison:
    """As many as one compares: transformers of growing depth next to the others."""
    deep = {f"transformer, {blocks} blocks": transformer(blocks) for blocks in (1, 2, 4, 8, 12)}
    return compared({"mlp": _MLP, "cnn": _CNN, "mlp again": _MLP, **deep})


def alike() -> ArchitectureComparison:
    """Return one architecture three times: measured well it is the same, measured badly nothing can be said."""
    return compared({"mlp": _MLP, "mlp again": _MLP, "mlp, noisy": _MLP})


def hostile() -> ArchitectureComparison:
    """Return every name that a stranger could choose, chosen."""
    rows: list[Leaf] = [("model", HOSTILE[0], 1, 0.1, 0.1, 0, 0)]
    rows += [(f"model.{name}", HOSTILE[i - 1], 1, 1 + i / 10, 2.0, 0, 10) for i, name in enumerate(HOSTILE) if name]
    made = compared(
        {HOSTILE[0]: rows, HOSTILE[3]: _MLP, HOSTILE[7]: _CNN, HOSTILE[9]: _MLP, HOSTILE[11]: rows, HOSTILE[12]: _CNN},
        batch=HOSTILE[1],
        device=HOSTILE[2],
        notes=HOSTILE[:9],
    )
    strange = made.shares.assign(part=made.shares["part"].replace({"other": HOSTILE[1]}))
    return replace(made, shares=strange)


def unknown() -> ArchitectureComparison:
    """Return a comparison without figures of the second model, and only one time of the first."""
    made = compared({"mlp": _MLP, "cnn": _CNN})
    table = made.table.copy()
    for column in table.columns:
        table[column] = table[column].mask(table.index == "cnn")
        if column != "median_ms":
            table[column] = pd.Series(pd.NA, index=table.index, dtype=table[column].dtype)
    ratios = made.ratios.assign(
        **{
            column: pd.array([pd.NA], "Float64")
            for column in ("ratio", "ci_low", "ci_high", "p_value", "p_holm", "smallest_detectable")
        }
    )
    return replace(
        made,
        table=table,
        shares=made.shares[made.shares["name"] == "mlp"],
        ratios=ratios.assign(verdict="inconclusive"),
        layers={"mlp": made.layers["mlp"]},
        rounds=1,
    )


def compared(
    models: Mapping[str, Sequence[Leaf]],
    *,
    training: bool = True,
    device: str = "CPU, 2 threads (no GPU)",
    batch: str = "64 × 128 × 64",
    notes: Sequence[str] = ("The machine was busy with something else in 2 of 40 rounds.",),
) -> ArchitectureComparison:
    """Return a comparison where the time of a step is the sum of its layers, the loss and the optimizer."""
    layers, shares, rows = {}, [], []
    for place, (name, leaves) in enumerate(models.items()):
        beside = {"(loss)": 0.1, "(unattributed)": 0.25} if training else {"(unattributed)": 0.12}
        frame = make_summary(leaves, special=beside).layers
        kinds = [_KINDS.get(str(module), "other") for module in frame["module"]]
        frame = frame.assign(kind=pd.Series(kinds, frame.index).mask(frame["module"].isna()))
        optimizer = 0.3 if training else 0.0
        step = float(frame["self_ms"].sum()) + optimizer
        layers[name] = frame.assign(share=frame["total_ms"] / step)
        by_kind = frame["self_ms"].groupby(frame["kind"].fillna("other")).sum().to_dict()
        by_kind["other"] = by_kind.get("other", 0.0) + optimizer
        forward, backward = float(sum(row[3] for row in leaves)), float(sum(row[4] for row in leaves))
        by_phase = dict(zip(PHASES, (0, 0, forward, 0.1 * training, backward, optimizer, 0, 0), strict=True))
        by_phase["other"] = step - sum(by_phase.values())
        for by, parts in (("kind", by_kind), ("phase", by_phase)):
            shares += [(name, by, part, ms, ms / step) for part, ms in parts.items() if ms > 0]
        parameters = sum(row[6] for row in leaves)
        flops = int(parameters * 128 * (1 + place) + 3e6)
        rows.append(
            (
                parameters, 4 * parameters, flops, 2 * flops if training else pd.NA, step, 0.985 * step, 1.02 * step,
                64e3 / step, 4 * parameters * 4 + 2**20 * (9 + 30 * place), 2**20 * (5 + 25 * place),
                (3 if training else 1) * flops / step * 1e3, 9.4 + 7 * place, 60 + 110 * place,
            )
        )  # fmt: skip
    return ArchitectureComparison(
        table=pd.DataFrame(rows, index=pd.Index(models, name="name"), columns=list(_TYPES)).astype(_TYPES),
        shares=pd.DataFrame(shares, columns=["name", "by", "part", "ms", "share"]),
        ratios=_ratios(dict(zip(models, (row[4] for row in rows), strict=True))),
        layers=layers,
        training=training,
        device=device,
        batch=batch,
        rounds=40,
        equal_within=0.02,
        notes=tuple(notes),
    )


_TYPES = {
    "parameters": "Int64", "parameter_bytes": "Int64", "forward_flops": "Int64", "backward_flops": "Int64",
    "median_ms": "Float64", "ci_low_ms": "Float64", "ci_high_ms": "Float64", "throughput_per_s": "Float64",
    "peak_bytes": "Int64", "activation_bytes": "Int64", "achieved_flops_per_s": "Float64", "intensity": "Float64",
    "launches_or_ops": "Int64",
}  # fmt: skip


def _ratios(times: Mapping[str, float]) -> pd.DataFrame:
    rows = []
    for a, b in combinations(times, 2):
        ratio = times[b] / times[a]
        wide = 0.05 if 0.97 < ratio < 1.03 and "again" not in b else 0.012
        low, high = (1 - wide) * ratio, (1 + wide) * ratio
        verdict = "same" if low > 0.98 and high < 1.02 else "inconclusive" if low < 1 < high else ""
        rows.append((a, b, ratio, low, high, 1e-4, 3e-4, verdict or ("slower" if ratio > 1 else "faster"), wide))
    columns = ["a", "b", "ratio", "ci_low", "ci_high", "p_value", "p_holm", "verdict", "smallest_detectable"]
    numbers = [column for column in columns if column not in ("a", "b", "verdict")]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(numbers, "Float64"))
