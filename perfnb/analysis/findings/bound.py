"""What a step that nothing else holds back is bound by: the machine's arithmetic, or the bytes that it can move."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass

import pandas as pd

from perfnb.analysis.device_work import COLLECTIVE
from perfnb.analysis.findings.attention import attention_layers
from perfnb.analysis.findings.facts import Facts
from perfnb.analysis.findings.finding import Confidence, Finding, Row, part, time
from perfnb.analysis.labels import found
from perfnb.analysis.roofline import COMPUTE, MEMORY

_WORTH = 0.05
#: Share of the step from which on it is bound by arithmetic, or by memory.
_MOST, _MUCH = 0.4, 0.15
#: Share of the roof below which something else than the roof holds a layer back; from which on it is near it.
FAR, _NEAR = 0.1, 0.7
_FAR_MEMORY = 0.3
#: Share of a layer's traffic from which on it is its weights that it waits for.
_WEIGHTS = 0.5
#: What products could be computed in instead.
_LOWER = {"float32": ("float32", "bfloat16"), "float64": ("float64", "float32")}
#: How many times as fast lower precision must be to be worth a word.
_FASTER = 1.2
#: Kernels that multiply matrices, and those that do so in float32 without the units for lower precision.
_PRODUCTS = re.compile(
    r"gemm|gemv|cutlass|Cijk_|conv|xmma|wgrad|dgrad|matmul|attn|attention|flash|fmha|winograd|_mm_|cudnn", re.IGNORECASE
)
_MOVES = re.compile(r"batched_transpose|nchwToNhwc|nhwcToNchw", re.IGNORECASE)
_FLOAT32 = re.compile(r"sgemm|s(?:cudnn|gemv)|f32f32_f32f32_f32|ffma|_S_B_|_SB_|scudnn|fprop_.*fp32", re.IGNORECASE)


@dataclass(frozen=True)
class Work:
    """Layers on one side of the ridge.

    Attributes
    ----------
    ms : float
        What they take of a timed step.
    least_ms : float
        What the roof allows.
    arithmetic_ms : float
        What their arithmetic needs where memory is no limit.
    layers : tuple of str
        The heaviest first.
    """

    ms: float
    least_ms: float
    arithmetic_ms: float
    layers: tuple[str, ...]

    @property
    def efficiency(self) -> float:
        """How much of the roof they reach."""
        return self.least_ms / self.ms if self.ms > 0 else 0.0


def work_under(
    facts: Facts, bound: str, least: float, without: Collection[str] = (), only: Collection[str] | None = None
) -> Work:
    """The layers under one part of the roof that reach at least a share of it; some may be left out, or all others."""
    roofline = facts.summary.roofline
    if roofline is None:
        return Work(0.0, 0.0, 0.0, ())
    points = roofline.points
    # What has no formula, such as elementwise ops, is known by its bytes alone: it must move them fast.
    unknown = points["bound"].isna() & (bound == MEMORY)
    is_bound = (points["bound"] == bound).fillna(False) | unknown
    points = points[(points["kind"] == "layer") & is_bound & points["ms"].notna() & ~points["name"].isin(without)]
    if only is not None:
        points = points[points["name"].isin(only)]
    # Of a step on the host the typical times: their sum is never more than the step.
    ms = points["ms"] if facts.gpu is not None else points["name"].map(facts.layers_ms)
    ms = ms.astype("Float64").fillna(0.0).astype(float)
    peak = points["dtype"].map(dict(roofline.peaks)).astype("Float64")
    arithmetic = (points["flops"] / peak).fillna(0.0).astype(float) * 1e3
    moved = points["bytes"].astype(float) / (roofline.bandwidth or math.inf) * 1e3
    needed = moved if bound == MEMORY else arithmetic
    # What was counted in one step may not have run in another.
    reaches = (ms > 0) & (needed >= unknown[points.index].map({True: max(least, _FAR_MEMORY), False: least}) * ms)
    needed, arithmetic = needed[reaches].clip(upper=ms[reaches]), arithmetic[reaches].clip(upper=ms[reaches])
    ms = ms[reaches]
    heaviest = points["name"][ms.sort_values(ascending=False, kind="stable").index[:3]]
    return Work(float(ms.sum()), float(needed.sum()), float(arithmetic.sum()), tuple(map(str, heaviest)))


def compute(facts: Facts) -> list[Finding]:
    """Arithmetic near the roof, or the units for it badly used."""
    if facts.summary.roofline is None:
        return _products_of_trace(facts)
    # What holds back unfused attention is known already.
    work = work_under(facts, COMPUTE, FAR, without=attention_layers(facts))
    bound = work.ms - work.least_ms
    if facts.share(work.ms) < _MOST or facts.share(bound) < _WORTH:
        return []
    near = work.efficiency >= _NEAR
    if not near and facts.busy and facts.gpu is None:
        return []  # other programs had the cores, and not when the roof was measured
    confidence: Confidence = "medium" if near else "low"
    layout = any(name == "Conv2d" for name in facts.recording.modules["module"])
    return [
        Finding(
            "compute",
            f"Layers that do more arithmetic than memory limits take {time(work.ms)}, {part(facts.share(work.ms))} of "
            f"the step, and reach {part(work.efficiency)} of what large products reach on this machine.",
            bound,
            "It is near what the machine can do: only less arithmetic helps, a better algorithm or lower precision."
            if near
            else "Larger products use the machine better: larger batches, sizes that are multiples of 16"
            + (", channels last for convolutions." if layout else "."),
            _less_arithmetic(facts)
            if near
            else f"{facts.model} = {facts.model}.to(memory_format=torch.channels_last)"
            if layout
            else "perfnb.scaling_study(make_step, [64, 128, 256, 512])  # is a sample cheaper in a larger batch?",
            confidence,
            "The roof was measured with large square products; small or odd ones cannot reach it.",
            "Which part of a layer's time is arithmetic and which is waiting for memory.",
            tuple(Row("layer", name) for name in work.layers),
        )
    ]


def _less_arithmetic(facts: Facts) -> str:
    if _pays(facts, "float32", "bfloat16"):
        return f'with torch.autocast("{_device(facts)}", dtype=torch.bfloat16): ...'
    return f'perfnb.compare_architectures({{"now": {facts.model}, "smaller": smaller}}, batch)'


def _pays(facts: Facts, now: str, lower: str) -> bool:
    """Whether lower precision was measured to be faster."""
    peaks = facts.summary.roofline.peaks if facts.summary.roofline is not None else {}
    full, less = peaks.get(now), peaks.get(lower)
    return bool(full and less and less >= _FASTER * full)


def _device(facts: Facts) -> str:
    return "cuda" if facts.gpu is not None else "cpu"


def memory_bandwidth(facts: Facts) -> list[Finding]:
    """Layers of low intensity that move bytes about as fast as the machine can.

    On the host such are products that read far more weights than samples; what else is elementwise there seldom waits
    for memory, and counts by its chains.
    """
    if facts.summary.roofline is None:
        return _moves_of_trace(facts)
    if facts.gpu is None:
        return _weights(facts)
    work = work_under(facts, MEMORY, _FAR_MEMORY, without=attention_layers(facts))
    bound = work.ms - work.arithmetic_ms
    if facts.share(bound) < _MUCH:
        return []
    return [
        Finding(
            "memory bandwidth",
            f"Layers that do little arithmetic for each byte take {time(work.ms)}, {part(facts.share(work.ms))} of the "
            f"step; the bytes that they must move take {time(work.least_ms)} at this machine's bandwidth.",
            bound,
            "Move fewer bytes: fuse such layers with their neighbours, use lower precision, avoid copies and changes "
            "of layout.",
            f"{facts.model} = torch.compile({facts.model})",
            "medium",
            "Fused into their neighbours they would move almost nothing; seldom can all of them be.",
            "Caches: what stays in them moves faster than the bandwidth measured.",
            tuple(Row("layer", name) for name in work.layers),
        )
    ]


def _weights(facts: Facts) -> list[Finding]:
    work = work_under(facts, MEMORY, _FAR_MEMORY, only=_reading_weights(facts))
    bound = work.ms - work.arithmetic_ms
    if facts.share(bound) < _MUCH:
        return []
    halves = _pays(facts, "float32", "bfloat16")
    return [
        Finding(
            "memory bandwidth",
            f"Layers that read their weights for few samples take {time(work.ms)}, {part(facts.share(work.ms))} of the "
            f"step; the bytes that they must move take {time(work.least_ms)} at this machine's bandwidth, their "
            f"arithmetic {time(work.arithmetic_ms)}.",
            bound,
            "Let more samples share a reading of the weights: a larger batch takes little longer. Weights of fewer "
            "bytes (lower precision, quantisation) shorten the step itself.",
            f"{facts.model} = {facts.model}.to(torch.bfloat16)  # and its inputs"
            if halves
            else "perfnb.scaling_study(make_step, [1, 4, 16, 64])  # is a sample cheaper in a larger batch?",
            "medium",
            "Bytes are those of the layers' tensors, most of them weights. The bound is for each sample of a batch so "
            "large that arithmetic is the limit.",
            "Caches: what stays in them moves faster than the bandwidth measured.",
            tuple(Row("layer", name) for name in work.layers),
        )
    ]


def _reading_weights(facts: Facts) -> list[str]:
    """Layers of whose traffic weights are most; backward they are read, and their gradient is written."""
    roofline, modules = facts.summary.roofline, facts.recording.modules
    assert roofline is not None
    points = roofline.points[roofline.points["kind"] == "layer"]
    inside = modules.groupby("parent")["parameter_bytes"].sum().reindex(modules.index, fill_value=0)
    own = pd.Series((modules["parameter_bytes"] - inside).to_numpy(), index=modules["name"].to_numpy())
    own = own[~own.index.duplicated()]
    times = 3 if (facts.attribution.cells["direction"] == "backward").any() else 1
    weights = times * points["name"].map(own).astype("Float64")
    return [str(name) for name in points["name"][(weights > _WEIGHTS * points["bytes"]).fillna(False)]]


def low_precision(facts: Facts) -> list[Finding]:
    """Products in float32 or float64 where the hardware multiplies lower precision faster."""
    roofline, work = facts.summary.roofline, work_under(facts, COMPUTE, FAR)
    if roofline is None:
        return _float32_of_trace(facts)
    types = roofline.points.loc[(roofline.points["bound"] == COMPUTE).fillna(False).to_numpy(dtype=bool), "dtype"]
    known = set(types)
    if len(known) != 1 or (pair := _LOWER.get(known.pop())) is None or not _pays(facts, *pair):
        return []
    now, lower = pair
    bound = work.least_ms * (1 - roofline.peaks[now] / roofline.peaks[lower])
    if facts.share(bound) < _WORTH:
        return []
    by_accident = now == "float64"
    return [
        Finding(
            "low precision unused",
            f"Products in {now} take {time(work.ms)}, {part(facts.share(work.ms))} of the step. Large ones run "
            f"{roofline.peaks[lower] / roofline.peaks[now]:.2g} times as fast in {lower} here, as measured.",
            bound,
            "Compute in float32 unless the problem needs more: NumPy's arrays are float64 by default, and tensors made "
            "from them."
            if by_accident
            else "Compute products in bfloat16 under autocast, and check that the result is still good.",
            f"{facts.model} = {facts.model}.float()  # and its inputs: x = x.float()"
            if by_accident
            else f'with torch.autocast("{_device(facts)}", dtype=torch.bfloat16): ...',
            "medium",
            "Both rates were measured with large products; conversions and other operators cost a part of the gain.",
            "Whether the model keeps its quality: perfnb.report checks that.",
            tuple(Row("layer", name) for name in work.layers),
        )
    ]


def _kernels(facts: Facts) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Kernels that multiply, and the others that compute."""
    assert facts.gpu is not None
    work = facts.gpu.work
    multiplies = found(work["name"], _PRODUCTS.search) & ~found(work["name"], _MOVES.search)
    sends = found(work["name"], COLLECTIVE.search)
    return work[multiplies & ~sends], work[~multiplies & ~sends]


def _products_of_trace(facts: Facts) -> list[Finding]:
    if facts.gpu is None or not len(facts.gpu.work):
        return []
    products, _ = _kernels(facts)
    ms = min(float(products["ms"].sum()), facts.gpu.busy_ms)
    if facts.share(ms) < _MOST:
        return []
    single = min(_float32_ms(products), ms)
    can = single >= _WORTH * ms
    return [
        Finding(
            "compute",
            f"Kernels that multiply matrices run for {time(ms)}, {part(facts.share(ms))} of the step; the GPU is busy "
            f"for {part(1 - facts.gpu.idle_share)} of the step. "
            + (
                f"By their names {time(single)} of it is in float32, which lower precision would shorten."
                if can
                else "None of them is by its name in float32, where lower precision would help most."
            ),
            ms,
            "The GPU works: less arithmetic helps, by "
            + ("lower precision, " if can else "")
            + "another algorithm, or less to compute.",
            'with torch.autocast("cuda", dtype=torch.bfloat16): ...'
            if can
            else f'{facts.model} = torch.compile({facts.model}, mode="max-autotune")',
            "low",
            "Told from the kernels' names; a trace does not hold their arithmetic, so how near they are to the roof is "
            "not known. The bound is all of their time: no change removes it, a faster one removes a part.",
            "FLOPs and bytes: such kernels may wait for memory too, as products with few rows do. And the precision of "
            "kernels whose names do not tell it.",
            tuple(Row("kernel", str(name)) for name in products["name"].head(3)),
        )
    ]


def _float32_ms(products: pd.DataFrame) -> float:
    """Time of those kernels whose names tell that they multiply in float32 without units for lower precision."""
    return float(products.loc[found(products["name"], _FLOAT32.search), "ms"].sum())


def _moves_of_trace(facts: Facts) -> list[Finding]:
    if facts.gpu is None or not len(facts.gpu.work):
        return []
    _, others = _kernels(facts)
    ms = min(float(others["ms"].sum()), facts.gpu.computation_ms)
    if facts.share(ms) < _MUCH:
        return []
    return [
        Finding(
            "memory bandwidth",
            f"Kernels that multiply nothing (elementwise, norms, softmax, copies within the device) run for "
            f"{time(ms)}, {part(facts.share(ms))} of the step.",
            ms,
            "Fuse them with their neighbours, use lower precision, avoid changes of layout.",
            f"{facts.model} = torch.compile({facts.model})",
            "low",
            "Told from the kernels' names: most such kernels wait for memory, but the trace does not hold their bytes.",
            "Bytes moved, and the GPU's bandwidth.",
            tuple(Row("kernel", str(name)) for name in others["name"].head(3)),
        )
    ]


def _float32_of_trace(facts: Facts) -> list[Finding]:
    if facts.gpu is None or not len(facts.gpu.work):
        return []
    products, _ = _kernels(facts)
    single = products[found(products["name"], _FLOAT32.search)]
    ms = _float32_ms(products)
    if facts.share(ms) < _MUCH:
        return []
    return [
        Finding(
            "low precision unused",
            f"Kernels that multiply in float32 run for {time(ms)}, {part(facts.share(ms))} of the step.",
            ms,
            "Let products use TF32, or bfloat16 under autocast, where the GPU has units for them.",
            'torch.set_float32_matmul_precision("high")',
            "low",
            "Told from the kernels' names; how much faster they become depends on the GPU.",
            "Which units this GPU has.",
            tuple(Row("kernel", str(name)) for name in single["name"].head(3)),
        )
    ]
