"""What a step that nothing else holds back is bound by: the machine's arithmetic, or the bytes that it can move."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.attribution.device_work import SORTS
from perfnb.findings.attention import attention_layers
from perfnb.findings.compiling import compiling
from perfnb.findings.facts import Facts
from perfnb.findings.finding import Confidence, Finding, Row, part, time
from perfnb.findings.gpu import GpuFacts
from perfnb.findings.hardware import has_units
from perfnb.recording.nesting import Bools
from perfnb.roofline.levels import COMPUTE, MEMORY

_WORTH = 0.05
#: Share of the step from which on it is bound by arithmetic, or by memory.
_MOST, _MUCH = 0.4, 0.15
#: Share of the roof below which something else than the roof holds a layer back, from which on it bounds the layer, and
#: from which on the layer is near it.
_FAR, BINDS, _NEAR = 0.3, 0.5, 0.7
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
_SENDS, _FILLS = re.compile(r"nccl|rccl", re.IGNORECASE), re.compile(r"Memset|Memcpy")
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
    roofline = facts.figures.roofline
    if roofline is None:
        return Work(0.0, 0.0, 0.0, ())
    points = roofline.points
    # What has no formula, such as elementwise ops, is known by its bytes alone: it must move them fast.
    unknown = points["bound"].isna() & (bound == MEMORY)
    is_bound = (points["bound"] == bound).fillna(False) | unknown
    points = points[(points["kind"] == "layer") & is_bound & points["ms"].notna() & ~points["name"].isin(without)]
    if bound == COMPUTE:  # how far below a ceiling a part lies that was measured too low, nobody knows
        points = points[~points["dtype"].isin(list(roofline.refuted))]
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
    reaches = (ms > 0) & (needed >= least * ms)
    needed, arithmetic = needed[reaches].clip(upper=ms[reaches]), arithmetic[reaches].clip(upper=ms[reaches])
    ms = ms[reaches]
    heaviest = points["name"][ms.sort_values(ascending=False, kind="stable").index[:3]]
    if facts.gpu is not None and len(ms):
        # Their kernels may overlap: what they take together is less then, and so is what is needed of it.
        together = facts.layers_on_gpu_ms(set(points["name"][ms.index]))
        shorter = together / float(ms.sum())
        needed, arithmetic, ms = needed * shorter, arithmetic * shorter, ms * shorter
    return Work(float(ms.sum()), float(needed.sum()), float(arithmetic.sum()), tuple(map(str, heaviest)))


def compute(facts: Facts) -> list[Finding]:
    """Arithmetic near the roof, or the units for it badly used."""
    if facts.figures.roofline is None:
        return _products_of_trace(facts)
    # What holds back unfused attention is known already.
    work = work_under(facts, COMPUTE, _FAR, without=attention_layers(facts))
    bound = work.ms - work.least_ms
    if facts.share(work.ms) < _MOST or facts.share(bound) < _WORTH:
        return []
    near = work.efficiency >= _NEAR
    if not near and facts.busy and facts.gpu is None:
        return []  # other programs had the cores, and not when the roof was measured
    doubt = _doubt(facts)
    confidence: Confidence = "medium" if near and not doubt else "low"
    kinds = dict(zip(facts.recording.modules["name"], facts.recording.modules["module"], strict=True))
    layout = any(kinds.get(name) == "Conv2d" for name in work.layers)
    model = facts.variable(work.layers[0]) if work.layers else None
    return [
        Finding(
            "compute",
            f"Layers that do more arithmetic than memory limits take {time(work.ms)}, {part(facts.share(work.ms))} of "
            f"the step, and reach {part(work.efficiency)} of what large products reach on this machine.",
            bound,
            "It is near what the machine can do: only less arithmetic helps, by "
            + (f"lower precision ({_autocast(facts)}) or " if _pays(facts, "float32", "bfloat16") else "")
            + "a smaller model or a better algorithm."
            if near
            else "Larger products use the machine better: larger batches (perfnb.scaling_study tells whether a sample "
            "is cheaper in them), sizes that are multiples of 16"
            + (", channels last for convolutions." if layout else "."),
            f"{model} = {model}.to(memory_format=torch.channels_last)" if model and layout and not near else "",
            confidence,
            f"{doubt}The roof was measured with large square products; small or odd ones cannot reach it.",
            "Which part of a layer's time is arithmetic and which is waiting for memory.",
            tuple(Row("layer", name) for name in work.layers),
        )
    ]


def _autocast(facts: Facts, dtype: str = "bfloat16") -> str:
    """How products are computed in lower precision, in words."""
    scaled = ", with torch.amp.GradScaler for the gradients" if dtype == "float16" else ""
    return f'forward and loss under torch.autocast("{_device(facts)}", dtype=torch.{dtype}){scaled}'


def _pays(facts: Facts, now: str, lower: str) -> bool:
    """Whether lower precision was measured to be faster, and nothing in the step speaks against either rate."""
    roofline = facts.figures.roofline
    if roofline is None or now in roofline.refuted or lower in roofline.refuted:
        return False
    peaks = roofline.peaks
    full, less = peaks.get(now), peaks.get(lower)
    return bool(full and less and less >= _FASTER * full)


def _doubt(facts: Facts) -> str:
    """Why the ceilings may be too low, in a sentence; empty where nothing says so."""
    roofline = facts.figures.roofline
    if roofline is None or not roofline.ceilings_doubted:
        return ""
    return f"Low confidence: other programs used {part(roofline.others)} of the CPUs while the roof was measured. "


def _device(facts: Facts) -> str:
    return "cuda" if facts.gpu is not None else "cpu"


def memory_bandwidth(facts: Facts) -> list[Finding]:
    """Layers of low intensity that move bytes about as fast as the machine can.

    On the host such are products that read far more weights than samples; what else is elementwise there seldom waits
    for memory, and counts by its chains.
    """
    if facts.figures.roofline is None:
        return _moves_of_trace(facts)
    if facts.gpu is None:
        return _weights(facts)
    work = work_under(facts, MEMORY, _FAR, without=attention_layers(facts))
    bound = work.ms - work.arithmetic_ms
    if facts.share(bound) < _MUCH:
        return []
    note, code = compiling(facts, work.layers)
    return [
        Finding(
            "memory bandwidth",
            f"Layers that do little arithmetic for each byte take {time(work.ms)}, {part(facts.share(work.ms))} of the "
            f"step; the bytes that they must move take {time(work.least_ms)} at this machine's bandwidth.",
            bound,
            "Move fewer bytes: fuse such layers with their neighbours (torch.compile), use lower precision, avoid "
            f"copies and changes of layout.{note}",
            code,
            "medium",
            "Fused into their neighbours they would move almost nothing; seldom can all of them be.",
            "Caches: what stays in them moves faster than the bandwidth measured.",
            tuple(Row("layer", name) for name in work.layers),
        )
    ]


def _weights(facts: Facts) -> list[Finding]:
    work = work_under(facts, MEMORY, _FAR, only=_reading_weights(facts))
    bound = work.ms - work.arithmetic_ms
    if facts.share(bound) < _MUCH:
        return []
    trains = bool((facts.attribution.cells["direction"] == "backward").any())
    halves = _pays(facts, "float32", "bfloat16") and not trains  # weights that are trained lose what is added to them
    model = facts.variable(work.layers[0]) if work.layers else None
    return [
        Finding(
            "memory bandwidth",
            f"Layers that read their weights for few samples take {time(work.ms)}, {part(facts.share(work.ms))} of the "
            f"step; the bytes that they must move take {time(work.least_ms)} at this machine's bandwidth, their "
            f"arithmetic {time(work.arithmetic_ms)}.",
            bound,
            "Let more samples share a reading of the weights: a larger batch takes little longer, as "
            "perfnb.scaling_study can show. Weights of fewer bytes (lower precision, quantisation) shorten the step "
            "itself.",
            f"{model} = {model}.to(torch.bfloat16)  # and its inputs" if model and halves else "",
            "medium",
            "Bytes are those of the layers' tensors, most of them weights. The bound is for each sample of a batch so "
            "large that arithmetic is the limit.",
            "Caches: what stays in them moves faster than the bandwidth measured.",
            tuple(Row("layer", name) for name in work.layers),
        )
    ]


def _reading_weights(facts: Facts) -> list[str]:
    """Layers of whose traffic weights are most; backward they are read, and their gradient is written."""
    roofline, modules = facts.figures.roofline, facts.recording.modules
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
    roofline, work = facts.figures.roofline, work_under(facts, COMPUTE, _FAR)
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
    by_accident, doubt = now == "float64", _doubt(facts)
    model = facts.variable(work.layers[0]) if work.layers else None
    return [
        Finding(
            "low precision unused",
            f"Products in {now} take {time(work.ms)}, {part(facts.share(work.ms))} of the step. Large ones run "
            f"{roofline.peaks[lower] / roofline.peaks[now]:.2g} times as fast in {lower} here, as measured.",
            bound,
            "Compute in float32 unless the problem needs more: NumPy's arrays are float64 by default, and tensors made "
            "from them."
            if by_accident
            else f"Compute products in bfloat16, {_autocast(facts)}, and check that the result is still good.",
            f"{model} = {model}.float()  # and its inputs: x = x.float()" if model and by_accident else "",
            "low" if doubt else "medium",
            f"{doubt}Both rates were measured with large products; conversions and other operators cost a part of the "
            "gain.",
            "Whether the model keeps its quality: perfnb.report checks that.",
            tuple(Row("layer", name) for name in work.layers),
        )
    ]


def _kernels(gpu: GpuFacts) -> tuple[Bools, Bools]:
    """Which runs are kernels that multiply, and which are others that compute."""
    runs = gpu.runs
    computes = (runs.sort == SORTS.index("computation")) & ~runs.named(_SENDS) & ~runs.named(_FILLS)
    multiplies = runs.named(_PRODUCTS) & ~runs.named(_MOVES)
    return computes & multiplies, computes & ~multiplies


def _heaviest(gpu: GpuFacts, chosen: Bools) -> tuple[Row, ...]:
    """The kernels that run longest."""
    runs = gpu.runs
    ns = pd.Series((runs.end - runs.start)[chosen]).groupby(np.asarray(runs.names, dtype=object)[chosen]).sum()
    return tuple(Row("kernel", str(name)) for name in ns.sort_values(ascending=False, kind="stable").index[:3])


def _products_of_trace(facts: Facts) -> list[Finding]:
    gpu = facts.gpu
    if gpu is None:
        return []
    products, _ = _kernels(gpu)
    ms, single = gpu.ran_ms(products), gpu.ran_ms(products & gpu.runs.named(_FLOAT32))
    if facts.share(ms) < _MOST:
        return []
    how = _lower_precision(facts) if single >= _WORTH * ms else ""
    note, code = ("", "") if how else compiling(facts, facts.heaviest_layers(facts.ops), "max-autotune")
    return [
        Finding(
            "compute",
            f"Kernels that multiply matrices run for {time(ms)}, {part(facts.share(ms))} of the step; the GPU is busy "
            f"for {part(1 - gpu.idle_share)} of the step. "
            + (
                f"By their names {time(single)} of it is in float32, which lower precision would shorten."
                if how
                else "None of them is by its name in float32, where lower precision would help most."
                if single < _WORTH * ms
                else f"By their names {time(single)} of it is in float32; this GPU has no units for lower precision."
            ),
            ms,
            "The GPU works: less arithmetic helps, by "
            + (f"lower precision ({how}), " if how else "")
            + ("" if how else 'kernels tuned to these sizes (torch.compile with mode="max-autotune"), ')
            + f"another algorithm, or less to compute.{note}",
            code,
            "low",
            "Told from the kernels' names; a trace does not hold their arithmetic, so how near they are to the roof is "
            "not known. The bound is all of their time: no change removes it, a faster one removes a part.",
            "FLOPs and bytes: such kernels may wait for memory too, as products with few rows do. And the precision of "
            "kernels whose names do not tell it.",
            _heaviest(gpu, products),
        )
    ]


def _lower_precision(facts: Facts) -> str:
    """How this GPU multiplies in lower precision, in words; empty where it has no units for that."""
    if has_units(facts.recording, "bfloat16") is not False:
        known = has_units(facts.recording, "bfloat16") is True
        return _autocast(facts) + ("" if known else ", where the GPU has units for it")
    return _autocast(facts, "float16") if has_units(facts.recording, "float16") else ""


def _moves_of_trace(facts: Facts) -> list[Finding]:
    gpu = facts.gpu
    if gpu is None:
        return []
    _, others = _kernels(gpu)
    ms = gpu.ran_ms(others)
    if facts.share(ms) < _MUCH:
        return []
    note, code = compiling(facts, facts.heaviest_layers(facts.ops))
    return [
        Finding(
            "memory bandwidth",
            f"Kernels that multiply nothing (elementwise, norms, softmax, copies within the device) run for "
            f"{time(ms)}, {part(facts.share(ms))} of the step.",
            ms,
            f"Fuse them with their neighbours (torch.compile), use lower precision, avoid changes of layout.{note}",
            code,
            "low",
            "Told from the kernels' names: most such kernels wait for memory, but the trace does not hold their bytes.",
            "Bytes moved, and the GPU's bandwidth.",
            _heaviest(gpu, others),
        )
    ]


def _float32_of_trace(facts: Facts) -> list[Finding]:
    gpu = facts.gpu
    if gpu is None:
        return []
    single = _kernels(gpu)[0] & gpu.runs.named(_FLOAT32)
    ms, how = gpu.ran_ms(single), _lower_precision(facts)
    if facts.share(ms) < _MUCH or not how:
        return []
    tf32 = has_units(facts.recording, "TF32")
    return [
        Finding(
            "low precision unused",
            f"Kernels that multiply in float32 run for {time(ms)}, {part(facts.share(ms))} of the step.",
            ms,
            f"Let products use TF32 (torch.set_float32_matmul_precision), or lower precision: {how}."
            if tf32 is not False
            else f"Compute products in lower precision: {how}. This GPU has no units for TF32 and bfloat16.",
            'torch.set_float32_matmul_precision("high")' if tf32 else "",
            "low",
            "Told from the kernels' names; how much faster they become depends on the GPU.",
            "Whether the model keeps its quality." if tf32 is not None else "Which units this GPU has.",
            _heaviest(gpu, single),
        )
    ]
