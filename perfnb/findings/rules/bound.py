"""Find compute-bound and memory-bound steps.

Such steps are close to the machine's peak arithmetic or memory bandwidth, or far below it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.attribution.device_work import SORTS
from perfnb.findings.facts import Facts
from perfnb.findings.finding import Finding, Row, rows, rule
from perfnb.findings.gpu_facts import GpuFacts
from perfnb.findings.proposed_code import compiling, has_units, lever_line
from perfnb.findings.rules.fusion import attention_layers
from perfnb.recording.nesting import Bools
from perfnb.roofline.levels import COMPUTE, MEMORY, RooflineLevels

#: Shares of the step above which it is considered compute-bound and memory-bound.
_MOST, _MUCH = 0.4, 0.15
#: Share of the matrix kernels' time above which kernels in float32 count.
_SOME = 0.05
#: Shares of the roof below which something else slows a layer down, above which the roof bounds the layer, and above
#: which the layer is near the roof.
_FAR, BINDS, _NEAR = 0.3, 0.5, 0.7
#: If weights account for more than this share of a layer's traffic, the layer waits for its weights.
_WEIGHTS = 0.5
#: Minimum speedup from lower precision worth reporting.
_FASTER = 1.2
#: Kernels that multiply matrices, and those that do so in float32 without the units for lower precision.
_PRODUCTS = re.compile(
    r"gemm|gemv|cutlass|Cijk_|conv|xmma|wgrad|dgrad|matmul|attn|attention|flash|fmha|winograd|_mm_|cudnn", re.IGNORECASE
)
_TUNED = ' (torch.compile with mode="max-autotune")'
_CACHES = "Caches: data that stays in them moves faster than the measured bandwidth."
#: Kernels from the same libraries that do not multiply matrices, but move data or normalise batches.
_NO_PRODUCTS = re.compile(r"batched_transpose|nchwToNhwc|nhwcToNchw|\bbn_(?:bw|fw)_", re.IGNORECASE)
_SENDS, _FILLS = re.compile(r"nccl|rccl", re.IGNORECASE), re.compile(r"Memset|Memcpy")
_FLOAT32 = re.compile(
    r"sgemm|s(?:cudnn|gemv)|f32f32_f32f32_f32|ffma|_S_B_|_SB_|scudnn|fprop_.*fp32|gem[mv]\w*<(?:int, )*float\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class RoofWork:
    """Layers on one side of the ridge."""

    #: The layers' time in a timed step.
    ms: float
    #: The least time that the roof allows.
    least_ms: float
    #: The time that their arithmetic alone needs.
    arithmetic_ms: float
    #: The layers, heaviest first.
    layers: tuple[str, ...]

    @property
    def efficiency(self) -> float:
        """The share of the roof that the layers reach."""
        return self.least_ms / self.ms if self.ms > 0 else 0.0


def work_under(facts: Facts, bound: str, least: float, without: Collection[str] = ()) -> RoofWork:
    """Return the layers under one part of the roof that reach at least a given share of it.

    The layers in `without` are excluded.
    """
    roofline = facts.figures.roofline
    if roofline is None:
        return RoofWork(0.0, 0.0, 0.0, ())
    points = roofline.points
    # Ops without a formula, such as elementwise ones, are judged only by how fast they move their bytes.
    unknown = points["bound"].isna() & (bound == MEMORY)
    is_bound = (points["bound"] == bound).fillna(False) | unknown
    points = points[(points["kind"] == "layer") & is_bound & points["ms"].notna() & ~points["name"].isin(without)]
    if bound == COMPUTE:  # if a ceiling was measured too low, the distance from it is unknown
        points = points[~points["dtype"].isin(list(roofline.refuted))]
    # For a step on the host, use typical times, whose sum never exceeds the step.
    ms = points["ms"] if facts.gpu is not None else points["name"].map(facts.layers_ms)
    ms = ms.astype("Float64").fillna(0.0).astype(float)
    peak = points["dtype"].map(dict(roofline.peaks)).astype("Float64")
    arithmetic = (points["flops"] / peak).fillna(0.0).astype(float) * 1e3
    moved = points["bytes"].astype(float) / (roofline.bandwidth or math.inf) * 1e3
    needed = moved if bound == MEMORY else arithmetic
    # Work that was counted in one step may not have run in others.
    reaches = (ms > 0) & (needed >= least * ms)
    ms, needed, arithmetic = (each[reaches].clip(upper=ms[reaches]) for each in (ms, needed, arithmetic))
    heaviest = points["name"][ms.sort_values(ascending=False, kind="stable").index[:3]]
    if facts.gpu is not None and len(ms):
        # If kernels overlap, the layers together take and need less time.
        together = facts.layers_on_gpu_ms(set(points["name"][ms.index]))
        shorter = together / float(ms.sum())
        needed, arithmetic, ms = needed * shorter, arithmetic * shorter, ms * shorter
    return RoofWork(float(ms.sum()), float(needed.sum()), float(arithmetic.sum()), tuple(map(str, heaviest)))


@rule("compute", "Compute-bound", "computing as fast as large products do", ceiling=True, worth=0.05)
def compute(facts: Facts) -> Iterator[Finding]:
    """Find arithmetic that is near the roof, or far below what the arithmetic units can do."""
    roofline = facts.figures.roofline
    if roofline is None:
        yield from _products_of_trace(facts, facts.gpu) if facts.gpu is not None else ()
        return
    # Unfused attention is reported separately.
    work = work_under(facts, COMPUTE, _FAR, without=attention_layers(facts))
    near = work.efficiency >= _NEAR
    if facts.share(work.ms) < _MOST:
        return
    if not near and facts.busy and facts.gpu is None:
        return  # the CPU was busy with other work during the step, but not while the roof was measured
    doubt = _doubt(roofline)
    layout = any(facts.kinds.get(name) == "Conv2d" for name in work.layers)
    model = facts.variable(work.layers[0])
    yield Finding(
        f"Compute-bound layers take {facts.of_step(work.ms)} and reach {fmt.share(work.efficiency)} of the rate of "
        "large matrix products on this machine.",
        work.ms - work.least_ms,
        "The step is close to the machine's limit, so it needs less arithmetic to become faster: "
        + (f"lower precision ({_autocast(facts)}), " if _pays(roofline) else "")
        + "a smaller model or a better algorithm."
        if near
        else "Larger products use the machine better. Try larger batches (perfnb.scaling_study shows whether they make "
        "a sample cheaper) and sizes that are multiples of 16"
        + (", and channels last for convolutions." if layout else "."),
        "medium" if near and not doubt else "low",
        f"{doubt}The roof was measured with large square products. Small or odd-sized products cannot reach it.",
        "How much of a layer's time is arithmetic and how much is waiting for memory.",
        rows("layer", work.layers),
        code=lever_line("channels_last", model) if model and layout and not near else "",
        remedy="channels_last" if layout and not near else "",
    )


def _autocast(facts: Facts, dtype: str = "bfloat16") -> str:
    """Describe how to compute products in lower precision."""
    if not facts.uses_torch:
        return dtype
    scaled = ", with torch.amp.GradScaler for the gradients" if dtype == "float16" else ""
    device = "cuda" if facts.gpu is not None else "cpu"
    return f'forward and loss under torch.autocast("{device}", dtype=torch.{dtype}){scaled}'


def _pays(roofline: RooflineLevels) -> bool:
    """Return whether bfloat16 was measured to be faster and nothing in the step contradicts this."""
    if roofline.refuted.keys() & {"float32", "bfloat16"}:
        return False
    full, less = roofline.peaks.get("float32"), roofline.peaks.get("bfloat16")
    return bool(full and less and less >= _FASTER * full)


def _doubt(roofline: RooflineLevels) -> str:
    """Return a sentence that explains why the ceilings may be too low, or an empty text if nothing suggests this."""
    if not roofline.ceilings_doubted:
        return ""
    return f"Low confidence: other programs used {fmt.share(roofline.others)} of the CPUs while the roof was measured. "


@rule("memory bandwidth", "Memory-bound", "moving fewer bytes", ceiling=True, worth=_MUCH)
def memory_bandwidth(facts: Facts) -> Iterator[Finding]:
    """Find layers with low arithmetic intensity that move bytes about as fast as the machine can.

    On the host, these are matrix products that read far more weights than samples. Elementwise work on the host rarely
    waits for memory and is judged by its chains instead.
    """
    if facts.figures.roofline is None:
        yield from _moves_of_trace(facts, facts.gpu) if facts.gpu is not None else ()
        return
    if facts.gpu is None:
        yield from _weights(facts, facts.figures.roofline)
        return
    work = work_under(facts, MEMORY, _FAR, without=attention_layers(facts))
    note, code = compiling(facts, work.layers)
    yield Finding(
        f"Memory-bound layers take {facts.of_step(work.ms)}. Moving their data takes {fmt.duration(work.least_ms)} at "
        "this machine's bandwidth.",
        work.ms - work.arithmetic_ms,
        "Move fewer bytes: fuse such layers with their neighbours (torch.compile), use lower precision, and avoid "
        f"copies and layout changes.{note}",
        "medium",
        "Fused into their neighbours, these layers would move almost no data, but it is rarely possible to fuse all of "
        "them.",
        _CACHES,
        rows("layer", work.layers),
        code=code,
        remedy="compile",
    )


def _weights(facts: Facts, roofline: RooflineLevels) -> Iterator[Finding]:
    # Backward also reads the weights, and writes their gradient.
    others = _not_reading_weights(facts.recording.modules, roofline, times=3 if facts.trains else 1)
    work = work_under(facts, MEMORY, _FAR, without=others)
    if not work.layers:
        return
    halves = _pays(roofline) and not facts.trains  # in bfloat16, small weight updates are lost
    model = facts.variable(work.layers[0])
    yield Finding(
        f"Layers that read their weights for only a few samples take {facts.of_step(work.ms)}. Moving their data takes "
        f"{fmt.duration(work.least_ms)} at this machine's bandwidth, and their arithmetic takes "
        f"{fmt.duration(work.arithmetic_ms)}.",
        work.ms - work.arithmetic_ms,
        "Let more samples share each read of the weights: a larger batch takes only a little longer, which you can "
        "check with perfnb.scaling_study. Smaller weights (lower precision, quantisation) shorten the step itself.",
        "medium",
        "The bytes are those of the layers' tensors, most of which are weights. The bound applies per sample, for a "
        "batch large enough to be compute-bound.",
        _CACHES,
        rows("layer", work.layers),
        code=f"{model} = {model}.to(torch.bfloat16)  # and its inputs" if model and halves else "",
    )


def _not_reading_weights(modules: pd.DataFrame, roofline: RooflineLevels, times: int) -> pd.Series:
    """Return the layers whose traffic does not consist mostly of weights, if weights are read this many times."""
    points = roofline.points[roofline.points["kind"] == "layer"]
    inside = modules.groupby("parent")["parameter_bytes"].sum().reindex(modules.index, fill_value=0)
    own = pd.Series((modules["parameter_bytes"] - inside).to_numpy(), index=modules["name"].to_numpy())
    weights = times * points["name"].map(own[~own.index.duplicated()]).astype("Float64")
    return points["name"][~(weights > _WEIGHTS * points["bytes"]).fillna(False)]


@rule("low precision unused", "Compute-bound in float32", "lower precision", ceiling=True, worth=0.05)
def low_precision(facts: Facts) -> Iterator[Finding]:
    """Find matrix products in float32 on hardware that computes them faster in lower precision."""
    roofline = facts.figures.roofline
    if roofline is None:
        yield from _float32_of_trace(facts, facts.gpu) if facts.gpu is not None else ()
        return
    points = roofline.points
    products = points.loc[(points["bound"] == COMPUTE).fillna(False).to_numpy(dtype=bool), "dtype"]
    if set(products) != {"float32"} or not _pays(roofline):  # float64 has its own rule
        return
    work, faster = work_under(facts, COMPUTE, _FAR), roofline.peaks["bfloat16"] / roofline.peaks["float32"]
    yield Finding(
        f"Matrix products in float32 take {facts.of_step(work.ms)}. On this machine, large products were measured to "
        f"run {faster:.2g} times as fast in bfloat16.",
        work.least_ms * (1 - 1 / faster),
        f"Compute products in bfloat16 ({_autocast(facts)}), and check that the results are still good.",
        "low",  # a measured MLP saved a third of such a bound
        f"{_doubt(roofline)}Both rates were measured with large products. Smaller products gain less, and conversions "
        "cost time.",
        "Whether the model's quality suffers: perfnb.ab_test can check this.",
        rows("layer", work.layers),
        remedy="autocast",
    )


def _kernels(gpu: GpuFacts) -> tuple[Bools, Bools]:
    """Return two masks of the runs: one for matrix kernels and one for other compute kernels."""
    runs = gpu.runs
    computes = (runs.sort == SORTS.index("computation")) & ~runs.named(_SENDS) & ~runs.named(_FILLS)
    multiplies = runs.named(_PRODUCTS) & ~runs.named(_NO_PRODUCTS)
    return computes & multiplies, computes & ~multiplies


def _heaviest(gpu: GpuFacts, chosen: Bools) -> tuple[Row, ...]:
    """Return the kernels with the most time."""
    runs = gpu.runs
    ns = pd.Series((runs.end - runs.start)[chosen]).groupby(np.asarray(runs.names, dtype=object)[chosen]).sum()
    return rows("kernel", ns.sort_values(ascending=False, kind="stable").index[:3])


def _products_of_trace(facts: Facts, gpu: GpuFacts) -> Iterator[Finding]:
    products, _ = _kernels(gpu)
    ms, single = gpu.ran_ms(products), gpu.ran_ms(products & gpu.runs.named(_FLOAT32))
    if facts.share(ms) < _MOST:
        return
    how = _lower_precision(facts) if single >= _SOME * ms else ""
    note, code = ("", "") if how else compiling(facts, facts.heaviest_layers(facts.ops), "compile_max_autotune")
    part = "none of them is" if single < _SOME * ms else f"{fmt.duration(single)} of that is"
    yield Finding(
        f"Matrix kernels run for {facts.of_step(ms)}; the GPU is busy for {fmt.share(1 - gpu.idle_share)} of the "
        f"step. Judging by the kernels' names, {part} in float32.",
        ms,
        "The GPU is busy, so it needs less or faster arithmetic: "
        + (f"lower precision ({how}), " if how else f"kernels tuned to these sizes{facts.for_torch(_TUNED)}, ")
        + f"another algorithm, or less computation.{note}",
        "low",
        "This is inferred from kernel names. A trace does not count arithmetic, so it is unknown how close the kernels "
        "are to the roof. The bound is their total time, but a change can remove only part of it.",
        "FLOPs and bytes: such kernels may also wait for memory, for example in products with few rows. In addition, "
        "the precision of kernels whose names do not indicate it.",
        _heaviest(gpu, products),
        code=code,
        remedy="autocast" if how else "compile_max_autotune" if code else "",
    )


def _lower_precision(facts: Facts) -> str:
    """Describe how to compute matrix products in lower precision on this GPU; empty if it has no units for this."""
    if (has_them := has_units(facts.recording, "bfloat16")) is not False:
        return _autocast(facts) + ("" if has_them else " if the GPU has units for it")
    return _autocast(facts, "float16") if has_units(facts.recording, "float16") else ""


def _moves_of_trace(facts: Facts, gpu: GpuFacts) -> Iterator[Finding]:
    _, others = _kernels(gpu)
    ms = gpu.ran_ms(others)
    note, code = compiling(facts, facts.heaviest_layers(facts.ops))
    yield Finding(
        "Kernels that do not multiply matrices (elementwise, norms, softmax, copies within the device) run for "
        f"{facts.of_step(ms)}.",
        ms,
        f"Fuse them with their neighbours{facts.for_torch(' (torch.compile)')}, use lower precision, and avoid "
        f"layout changes.{note}",
        "low",
        "This is inferred from kernel names. Most such kernels are memory-bound, but the trace does not record the "
        "bytes that they move.",
        "The bytes moved, and the GPU's bandwidth.",
        _heaviest(gpu, others),
        code=code,
        remedy="compile",
    )


def _float32_of_trace(facts: Facts, gpu: GpuFacts) -> Iterator[Finding]:
    single = _kernels(gpu)[0] & gpu.runs.named(_FLOAT32)
    ms, how = gpu.ran_ms(single), _lower_precision(facts)
    if facts.share(ms) < _MUCH or not how:
        return
    tf32 = has_units(facts.recording, "TF32")
    yield Finding(
        f"Matrix kernels in float32 run for {facts.of_step(ms)}.",
        ms,
        f"Let products use TF32{facts.for_torch(' (torch.set_float32_matmul_precision)')}, or lower precision: {how}."
        if tf32 is not False
        else f"Compute products in lower precision: {how}. This GPU has no units for TF32 and bfloat16.",
        "low",
        "This is inferred from kernel names. The speedup depends on the GPU.",
        "Whether the model's quality suffers." if tf32 is not None else "Which units this GPU has.",
        _heaviest(gpu, single),
        code=lever_line("float32_precision", "high") if tf32 else "",
        remedy="float32_precision" if tf32 else "autocast",
    )
