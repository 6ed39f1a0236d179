"""Made-up memory with known figures, for the tests of the views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from perfnb.draw.palette import CATEGORIES
from perfnb.memory.table import MemorySummary
from tests.summaries import HOSTILE

MIB = 1024**2
#: An error if matplotlib reads it as a formula.
BROKEN_FORMULA = r"$\frac{1}{0$"

_PHASES = (("data", 0.04), ("host_to_device", 0.02), ("forward", 0.34), ("loss", 0.02), ("backward", 0.48))
_OPS = {"Linear": "aten::addmm", "GELU": "aten::gelu", "LayerNorm": "aten::native_layer_norm"}


def transformer(
    blocks: int = 6, step_ms: float = 412.0, *, instants: int = 1500, gpu: bool = False, scale: float = 1.0
) -> MemorySummary:
    """Return a step of a transformer with Adam: activations grow in forward and go in backward."""
    phases = _phases(step_ms)
    rows = _allocations(blocks, {name: (start, end) for name, start, end in phases}, step_ms, scale)
    made = summarise(rows, phases, step_ms, instants, "cpu")
    if gpu:
        return on_gpu(made)
    resident = made.timeline["total"].cummax() + 180 * MIB
    timeline = made.timeline.assign(process=resident.astype("Int64"))
    return replace(made, timeline=timeline, process_peak_bytes=int(resident.max()))


def many(count: int = 100_000, life_ms: float = 60.0) -> MemorySummary:
    """Return a step with `count` allocations of odd sizes and life times, thinned as a summary's are."""
    rng = np.random.default_rng(0)
    step = 5000.0
    start = np.sort(rng.uniform(0, step, count))
    parts = ("attn.qkv", "mlp.up", "mlp.down")
    frame = pd.DataFrame(
        {
            "bytes": (2 ** rng.uniform(8, 26, count)).astype("int64"),
            "category": rng.choice(list(CATEGORIES), count),
            "layer": [f"model.transformer.blocks.{i % 96}.{parts[i % 3]}" for i in range(count)],
            "phase": rng.choice(["forward", "backward", "optimizer"], count),
            "op": rng.choice([f"aten::op_{i}" for i in range(120)], count),
            "name": pd.NA,
            "start_ms": start,
            "end_ms": np.minimum(step, start + rng.exponential(life_ms, count)),
        }
    )  # fmt: skip
    phases = [("forward", 0.0, 1800.0), ("backward", 1800.0, 4600.0), ("optimizer", 4600.0, step)]
    return summarise(frame, phases, step, 1500, "cpu")


def out_of_memory() -> MemorySummary:
    """Return a step that failed in its forward pass, on a GPU."""
    whole, end = 412.0, 133.4
    spans = {name: (start, stop) for name, start, stop in _phases(whole)}
    rows = _allocations(6, spans, whole, 1.0)
    rows = rows[rows["start_ms"] < end].assign(end_ms=rows["end_ms"].clip(upper=end))
    phases = [(name, start, min(stop, end)) for name, (start, stop) in spans.items() if start < end]
    made = on_gpu(summarise(rows, phases, end, 1500, "cuda:0"))
    words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.11 GiB in all."
    return replace(made, incomplete=words, ooms=1)


def on_gpu(made: MemorySummary) -> MemorySummary:
    """Return the same, with what only a GPU's allocator tells."""
    reserved = (made.timeline["total"].cummax() / (64 * MIB)).apply(np.ceil) * 64 * MIB + 64 * MIB
    return replace(
        made,
        device="cuda:0",
        timeline=made.timeline.assign(reserved=reserved.astype("Int64")),
        reserved_peak_bytes=int(reserved.max()),
        fragmentation=1 - made.peak_bytes / int(reserved.max()),
        retries=1,
        ooms=0,
        largest_free_bytes=48 * MIB,
    )


def hostile() -> MemorySummary:
    """Return every name that a stranger could choose, chosen."""
    made = transformer(2, instants=80)
    names = [HOSTILE[i % len(HOSTILE)] for i in range(len(made.largest))]
    largest = made.largest.assign(layer=names, op=names, name=names)
    owners = made.owners.assign(layer=[HOSTILE[i % len(HOSTILE)] for i in range(len(made.owners))])
    fits = made.fits.assign(option=list(HOSTILE[: len(made.fits)]), detail=list(HOSTILE[1 : len(made.fits) + 1]))
    strange = pd.DataFrame({"phase": [HOSTILE[1]], "start_ms": [0.0], "end_ms": [40.0]})
    phases = pd.concat([strange, made.phases.iloc[2:].replace({"phase": {"forward": BROKEN_FORMULA}})])
    return replace(
        made, device=HOSTILE[2], largest=largest, owners=owners, fits=fits, phases=phases, incomplete=HOSTILE[0]
    )


def unknown() -> MemorySummary:
    """Return one instant, nothing else known."""
    made = transformer(1)
    return replace(
        made,
        timeline=made.timeline.head(1).assign(process=pd.array([pd.NA], dtype="Int64")),
        phases=made.phases.iloc[:0],
        owners=made.owners.iloc[:0],
        largest=made.largest.iloc[:0],
        fits=made.fits.assign(frees_bytes=pd.array([pd.NA] * len(made.fits), dtype="Int64")),
        process_peak_bytes=None,
    )


def empty() -> MemorySummary:
    """Return a step without allocations."""
    made = unknown()
    return replace(made, timeline=made.timeline.iloc[:0], peak_bytes=0, by_category={}, fits=made.fits.iloc[:0])


def summarise(
    rows: pd.DataFrame, phases: list[tuple[str, float, float]], step_ms: float, instants: int, device: str
) -> MemorySummary:
    """Thin a frame of allocations as the analysis does."""
    times = np.unique(np.concatenate([rows["start_ms"], rows["end_ms"][rows["end_ms"] < step_ms]]))
    alive: dict[str, Any] = {}
    for name in CATEGORIES:
        part = rows[rows["category"] == name]
        ends = part[part["end_ms"] < step_ms]
        when = np.concatenate([part["start_ms"], ends["end_ms"]])
        change = np.concatenate([part["bytes"], -ends["bytes"]]).astype("int64")
        order = np.argsort(when, kind="stable")
        sums = np.concatenate([[0], np.cumsum(change[order])])
        alive[name] = sums[np.searchsorted(when[order], times, side="right")]
    total = np.sum(list(alive.values()), axis=0)
    keep = np.unique(
        np.append(np.linspace(0, len(times) - 1, min(instants - 1, len(times))).astype(int), total.argmax())
    )
    timeline = pd.DataFrame(
        {"t_ms": times[keep], **{name: pd.array(alive[name][keep], dtype="Int64") for name in CATEGORIES}}
    )
    timeline["total"] = pd.array(total[keep], dtype="Int64")
    for name in ("reserved", "process"):
        timeline[name] = pd.array([pd.NA] * len(timeline), dtype="Int64")
    at = int(total.argmax())
    peak_ms, peak = float(times[at]), int(total[at])
    starts, ends = rows["start_ms"].to_numpy(), rows["end_ms"].to_numpy()
    wanted: set[int] = set()
    for t in timeline["t_ms"]:
        living = np.flatnonzero((starts <= t) & ((t < ends) | (ends >= step_ms)))
        wanted.update(living[np.argsort(rows["bytes"].to_numpy()[living])[::-1][:8]])
    living = (starts <= peak_ms) & ((peak_ms < ends) | (ends >= step_ms))
    groups = rows[living].groupby(["category", "layer"], dropna=False)["bytes"].agg(["sum", "count"]).reset_index()
    owners = groups.rename(columns={"sum": "bytes"}).sort_values("bytes", ascending=False, ignore_index=True)
    by_category = {name: int(alive[name][at]) for name in CATEGORIES}
    return MemorySummary(
        device=device,
        timeline=timeline,
        phases=pd.DataFrame(phases, columns=["phase", "start_ms", "end_ms"]),
        step_ms=step_ms,
        peak_ms=peak_ms,
        peak_bytes=peak,
        by_category=by_category,
        owners=owners.assign(share=owners["bytes"] / peak),
        largest=rows.iloc[sorted(wanted)].reset_index(drop=True),
        fits=_fits(by_category),
    )


def _phases(step_ms: float) -> list[tuple[str, float, float]]:
    edges, phases = 0.0, []
    for name, part in (*_PHASES, ("optimizer", 1 - sum(part for _, part in _PHASES))):
        phases.append((name, edges, edges + part * step_ms))
        edges += part * step_ms
    return phases


def _allocations(blocks: int, spans: Mapping[str, tuple[float, float]], step_ms: float, scale: float) -> pd.DataFrame:
    rows: list[tuple[Any, ...]] = []

    def add(
        mib: float, kind: str, start: float, end: float, layer: Any = pd.NA, phase: Any = pd.NA, op: Any = pd.NA,
        name: Any = pd.NA,
    ) -> None:  # fmt: skip
        rows.append((int(mib * scale * MIB) + 4 * len(rows), kind, layer, phase, op, name, start, end))

    parts = [("ln_1", "LayerNorm", 0.01, 6.0), ("attn.qkv", "Linear", 6.75, 18.0), ("attn.proj", "Linear", 2.25, 6.0)]
    parts += [("ln_2", "LayerNorm", 0.01, 6.0), ("mlp.up", "Linear", 9.0, 24.0), ("mlp.gelu", "GELU", 0, 24.0)]
    parts += [("mlp.down", "Linear", 9.0, 6.0)]
    layers = [("model.embed", "Embedding", 30.0, 6.0)]
    layers += [(f"model.blocks.{b}.{part}", kind, w, a) for b in range(blocks) for part, kind, w, a in parts]
    layers.append(("model.head", "Linear", 0.0, 64.0))
    forward, backward, optimizer = spans["forward"], spans["backward"], spans["optimizer"]
    at = np.linspace(*forward, len(layers) + 1)
    back = np.linspace(*backward, len(layers) + 1)[::-1]
    update = np.linspace(*optimizer, len(layers) + 1)
    add(1.5, "inputs", 0.6 * spans["data"][1], step_ms, phase="data", op="aten::stack")
    add(3, "other", 0, step_ms)
    for i, (layer, kind, weight, activation) in enumerate(layers):
        op, lasts, returns = _OPS.get(kind, "aten::embedding"), at[i + 1] - at[i], back[i] - back[i + 1]
        if weight:
            add(weight, "parameters", 0, step_ms, layer, name=f"{layer}.weight")
            for state in ("exp_avg", "exp_avg_sq"):
                add(weight, "optimizer_state", 0, step_ms, layer, name=f"{layer}.weight {state}")
            made, updated = back[i] - 0.3 * returns, update[i] + 0.8 * (update[i + 1] - update[i])
            add(weight, "gradients", made, step_ms, layer, "backward", f"{op}_backward", f"{layer}.weight")
            add(weight, "temporaries", update[i], updated, layer, "optimizer", "aten::sqrt")
        add(activation, "activations", at[i], back[i + 1] + 0.9 * returns, layer, "forward", op)
        add(0.7 * activation, "temporaries", at[i] + 0.1, at[i] + 0.4 * lasts, layer, "forward", "aten::empty")
        add(1.2 * activation, "temporaries", back[i + 1], back[i], layer, "backward", f"{op}_backward")
    columns = ["bytes", "category", "layer", "phase", "op", "name", "start_ms", "end_ms"]
    return pd.DataFrame(rows, columns=columns).sort_values("start_ms", ignore_index=True)  # fmt: skip


def _fits(peak: Mapping[str, int]) -> pd.DataFrame:
    half = sum(peak[name] for name in ("parameters", "gradients", "activations")) // 2
    shrinks = (peak["activations"] + peak["inputs"]) // 2
    rows = [
        ("half precision", half, "estimated", "Parameters, gradients and activations in 2 bytes instead of 4."),
        ("checkpointing", int(0.8 * peak["activations"]), "estimated",
         "Keeps every block's input and makes the rest again in backward."),
        ("half the batch", shrinks, "estimated", "Activations and inputs grow with the batch."),
        ("optimizer without state", peak["optimizer_state"], "computed",
         "SGD without momentum keeps none of Adam's two moments."),
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["option", "frees_bytes", "basis", "detail"])
    return frame.astype({"frees_bytes": "Int64"})
