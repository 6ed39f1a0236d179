"""Made-up summaries with known figures for the tests of the views. Each is created once, because none is changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pandas as pd

from perfnb.profile.summary import Summary
from perfnb.recording import schema
from perfnb.stats.step_times import StepTimes

HOSTILE = (
    '</script><img src=x onerror="window.__pwned=1">',
    "<script>window.__pwned=2</script>",
    '"><svg onload=alert(1)>',
    'it\'s "quoted" & <b>bold</b>',
    "two\nlines\r\tand a tab",
    "\x1b[31mred\x1b[0m\x07",
    "\u202egnirts desrever\u202c",
    r"$\frac{1}{0}$ \sin",
    "\u2028\u2029\ufeff\u200b",
    "汉字" * 30,
    "z" + "\u0301" * 300,
    "x" * 10_000,
    "__proto__",
    "constructor",
    "",
)

_SAMPLES = tuple(12.3 + 0.07 * ((7 * i) % 11 - 5) for i in range(20))
_EXECUTED = {"warmup": 5, "timed": 20, "lead_in": 1, "traced": 3, "counted": 0}

#: name, class, calls, own forward ms, own backward ms, own recompute ms, parameters of its own
Leaf = tuple[str, str, float, float, float, float, int]


def make_summary(
    leaves: Iterable[Leaf],
    *,
    name: str = "step",
    special: Mapping[str, float] | None = None,
    phases: Mapping[str, float] | None = None,
    notes: Sequence[str] = (),
    batch_size: int | None = 32,
    gpu: bool = False,
    device: str = "CPU, 2 threads (no GPU)",
) -> Summary:
    """Return a summary where the figures of containers are the sums of their children's figures."""
    rows = list(leaves)
    names = [row[0] for row in rows]
    totals = {row[0]: [0.0, 0.0, 0.0, 0.0] for row in rows}
    for row in rows:
        for owner in _with_ancestors(row[0], totals):
            for place, value in enumerate((*row[3:6], row[6])):
                totals[owner][place] += value
    special = special or {}
    roots = [n for n in names if len(list(_with_ancestors(n, totals))) == 1]
    times = {n: sum(totals[n][:3]) for n in names}
    traced = sum(phases.values()) if phases else sum(times[n] for n in roots) + sum(special.values())
    frame = pd.DataFrame(
        {
            "module": [row[1] for row in rows],
            "depth": [len(list(_with_ancestors(n, totals))) - 1 for n in names],
            "calls": [row[2] for row in rows],
            "forward_ms": [totals[n][0] for n in names],
            "backward_ms": [totals[n][1] for n in names],
            "recompute_ms": [totals[n][2] for n in names],
            "total_ms": [times[n] for n in names],
            "self_ms": [sum(row[3:6]) for row in rows],
            "share": [times[n] / traced for n in names],
            "self_share": [sum(row[3:6]) / traced for row in rows],
            "parameters": [int(totals[n][3]) for n in names],
            "parameter_bytes": [4 * int(totals[n][3]) for n in names],
        },
        index=names,
    )
    if gpu:
        frame["gpu_ms"] = [0.5 * times[n] for n in names]
    beside = pd.DataFrame(
        {
            "total_ms": list(special.values()),
            "self_ms": list(special.values()),
            "backward_ms": list(special.values()),
            "share": [value / traced for value in special.values()],
        },
        index=list(special),
    )
    layers = pd.concat([schema.conform(frame, "layers"), schema.conform(beside, "layers")])
    layer_ops = _layer_ops(rows, gpu)
    return Summary(
        name=name,
        timing=StepTimes(_SAMPLES, batch_size),
        executed=_EXECUTED,
        traced_ms=traced,
        slowdown=traced / 12.3,
        device=device,
        phases=_phases(phases or {"forward": 0.35 * traced, "backward": 0.65 * traced}),
        layers=schema.conform(layers, "layers"),
        ops=_ops(layer_ops),
        layer_ops=layer_ops,
        hot_path=_hot_path(names, times, totals),
        notes=tuple(notes),
    )


@cache
def small_cnn() -> Summary:
    """Return a model with eight modules, with all phases and a note."""
    return make_summary(
        [
            ("model", "SmallCNN", 1, 0.12, 0.05, 0, 0),
            ("model.features", "Sequential", 1, 0.03, 0, 0, 0),
            ("model.features.0", "Conv2d", 1, 1.31, 2.42, 0, 448),
            ("model.features.1", "ReLU", 1, 0.087, 0.12, 0, 0),
            ("model.features.2", "Conv2d", 1, 2.2, 4.1, 0, 4640),
            ("model.features.3", "MaxPool2d", 1, 0.4, 0.31, 0, 0),
            ("model.head", "Linear", 1, 0.21, 0.4, 0, 20_490),
        ],
        name="small CNN",
        special={"(loss)": 0.11, "(gradient accumulation)": 0.2, "(unattributed)": 0.45},
        phases={
            "data": 1.2,
            "host_to_device": 0.05,
            "forward": 4.4,
            "loss": 0.1,
            "backward": 8.01,
            "optimizer": 1.9,
            "other": 0.4,
        },
        notes=["The body returned no loss, so the loss phase is what lies between the forward and the backward pass."],
    )


@cache
def gpt(blocks: int = 12, *, recompute: bool = False, gpu: bool = False) -> Summary:
    """Return a transformer with the given number of blocks, each of which has twelve modules."""
    again = 0.5 if recompute else 0.0
    rows: list[Leaf] = [
        ("model", "GPT", 1, 0.2, 0.1, 0, 0),
        ("model.transformer", "ModuleDict", 1, 0, 0, 0, 0),
        ("model.transformer.wte", "Embedding", 1, 0.3, 1.9, 0, 38_597_376),
        ("model.transformer.h", "ModuleList", 1, 0, 0, 0, 0),
    ]
    for block in range(blocks):
        path, scale = f"model.transformer.h.{block}", 1 + 0.02 * ((5 * block) % 7)
        rows.append((path, "Block", 1, 0.05, 0.02, 0, 0))
        for part, kind, forward, parameters in (
            ("ln_1", "LayerNorm", 0.11, 1536),
            ("attn", "CausalSelfAttention", 1.4, 0),
            ("attn.c_attn", "Linear", 2.2, 1_771_776),
            ("attn.c_proj", "Linear", 0.8, 590_592),
            ("ln_2", "LayerNorm", 0.11, 1536),
            ("mlp", "MLP", 0.02, 0),
            ("mlp.c_fc", "Linear", 3.1, 2_362_368),
            ("mlp.gelu", "GELU", 0.9, 0),
            ("mlp.c_proj", "Linear", 2.9, 2_360_064),
        ):
            own = forward * scale
            rows.append((f"{path}.{part}", kind, 1, own, 2.1 * own, again * own, parameters))
    rows.append(("model.lm_head", "Linear", 1, 11, 25, 0, 0))
    return make_summary(
        rows,
        name="gpt",
        special={"(loss)": 4.2, "(gradient accumulation)": 2.2, "(autograd engine)": 1.1, "(unattributed)": 9.5},
        gpu=gpu,
        device="NVIDIA H100" if gpu else "CPU, 2 threads (no GPU)",
    )


@cache
def big(blocks: int = 190) -> Summary:
    """Return a model with about 2,000 modules."""
    return gpt(blocks)


@cache
def gan() -> Summary:
    """Return two models in one step."""
    parts = [("0", "ConvTranspose2d", 1.5), ("1", "BatchNorm2d", 0.2), ("2", "ReLU", 0.05)]
    rows: list[Leaf] = []
    for root, kind, calls in (("generator", "Generator", 1.0), ("discriminator", "Discriminator", 3.0)):
        rows.append((root, kind, calls, 0.1, 0.2, 0, 0))
        rows += [(f"{root}.{n}", k, calls, ms * calls, 1.8 * ms * calls, 0, 1000) for n, k, ms in parts]
    return make_summary(rows, name="gan", special={"(unattributed)": 0.2})


@cache
def hostile() -> Summary:
    """Return a summary with hostile text in every name that an attacker could choose."""
    rows: list[Leaf] = [("model", HOSTILE[0], 1, 0.1, 0.1, 0, 0)]
    rows += [
        (f"model.{n}" if n else "model.", HOSTILE[i - 1], 1, 1.0 + i / 10, 2.0, 0, 10) for i, n in enumerate(HOSTILE)
    ]
    made = make_summary(rows, name=HOSTILE[0], special={"(unattributed)": 1.0}, notes=HOSTILE, device=HOSTILE[2])
    phases = pd.concat([made.phases, _phases({HOSTILE[1]: 3.0})])
    return replace(made, phases=schema.conform(phases, "phases"))


def unknown_figures() -> Summary:
    """Return a summary that only has names. All figures are NA, there is one step, and there is no trace ratio."""
    made = small_cnn()
    layers, phases = made.layers.copy(), made.phases.copy()
    for frame in (layers, phases):
        for column in frame.columns.difference(["module", "depth"]):
            frame[column] = pd.Series(pd.NA, index=frame.index, dtype=frame[column].dtype)
    return replace(
        made,
        layers=layers,
        phases=phases,
        timing=StepTimes((12.3,)),
        slowdown=None,
        ops=made.ops.iloc[:0],
        layer_ops=made.layer_ops.iloc[:0],
        hot_path=(),
        notes=(),
    )


def empty() -> Summary:
    """Return a profile without any layer or op."""
    made = small_cnn()
    return replace(
        made,
        layers=made.layers.iloc[:0],
        ops=made.ops.iloc[:0],
        layer_ops=made.layer_ops.iloc[:0],
        hot_path=(),
        phases=made.phases.iloc[:0],
        timing=StepTimes(()),
        executed={},
        notes=(),
    )


def _with_ancestors(name: str, names: Mapping[str, Any]) -> Iterable[str]:
    yield name
    end = name.rfind(".")
    while end > 0:
        if name[:end] in names:
            yield name[:end]
        end = name.rfind(".", 0, end)


def _hot_path(names: Sequence[str], times: Mapping[str, float], known: Mapping[str, Any]) -> tuple[str, ...]:
    family = {n: list(_with_ancestors(n, known)) for n in names}
    path: list[str] = []
    candidates = [n for n in names if len(family[n]) == 1]
    while candidates:
        path.append(max(candidates, key=times.__getitem__))
        candidates = [n for n in names if len(family[n]) > 1 and family[n][1] == path[-1]]
    return tuple(path)


def _phases(times: Mapping[str, float]) -> pd.DataFrame:
    total = sum(times.values())
    frame = pd.DataFrame({"ms": list(times.values()), "share": [v / total for v in times.values()]}, index=list(times))
    return schema.conform(frame, "phases")


def _layer_ops(rows: Sequence[Leaf], gpu: bool) -> pd.DataFrame:
    records = []
    for name, kind, calls, forward, backward, recompute, _ in rows:
        op = {"Conv2d": "aten::convolution", "Linear": "aten::addmm"}.get(kind, f"aten::{kind.lower()}")
        for direction, ms, suffix in (
            ("forward", forward, ""),
            ("backward", backward, "_backward"),
            ("recompute", recompute, ""),
        ):
            if ms:
                records.append((name, op + suffix, direction, calls, 0.8 * ms))
                records.append((name, "aten::copy_", direction, 2 * calls, 0.2 * ms))
    frame = pd.DataFrame(records, columns=["layer", "op", "direction", "calls", "self_cpu_ms"])
    if gpu:
        frame["gpu_ms"] = 0.5 * frame["self_cpu_ms"]
    return schema.conform(frame, "layer_ops")


def _ops(layer_ops: pd.DataFrame) -> pd.DataFrame:
    sums = layer_ops.groupby("op")[["calls", "self_cpu_ms", "gpu_ms"]].sum(min_count=1)
    sums["total_cpu_ms"] = 1.25 * sums["self_cpu_ms"]
    return schema.conform(sums.sort_values("self_cpu_ms", ascending=False), "ops")
