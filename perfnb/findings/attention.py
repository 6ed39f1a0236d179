"""Attention in separate operators: softmax(QKᵀ)V where one fused operator would do."""

from __future__ import annotations

import math
import re

import numpy as np
import pandas as pd

from perfnb.attribution.interval_sets import union
from perfnb.findings.facts import Facts
from perfnb.findings.finding import Finding, Row, many, part, time
from perfnb.findings.gpu import GpuFacts
from perfnb.recording.labels import found, of_labels
from perfnb.recording.nesting import NONE

_WORTH = 0.03
_SOFTMAX = re.compile(r"aten::_?(?:safe_)?softmax$")
_PRODUCT = re.compile(r"aten::(?:matmul|bmm|baddbmm|einsum)$")
_BATCHED = re.compile(r"aten::baddbmm$|aten::bmm$")
#: What may lie between the products and the softmax: scale, mask, dropout, a change of type or place.
_BETWEEN = re.compile(
    r"aten::(?:mul|div|add|sub|rsub|neg|where|masked_fill|tril|triu|native_dropout|dropout|feature_dropout|bernoulli|to|"
    r"_to_copy|copy|clone|contiguous|type_as|float|half|bfloat16|softmax|_softmax|nan_to_num|maximum|eq|ne|lt|gt|"
    r"le|ge|(?:logical|bitwise)_(?:not|and|or)|tanh|ones|zeros|full|arange|lift_fresh|detach|transpose|view|reshape|permute|expand|unsqueeze|squeeze|"
    r"select|slice|t|unflatten|flatten|_unsafe_view|as_strided|alias|expand_as|ones_like|empty|empty_like)_?$"
)
_FREE = re.compile(r"aten::(?:transpose|view|reshape|permute|expand|unsqueeze|squeeze|select|slice|t|detach|alias)$")
_COUNTED = ("aten::bmm", "aten::baddbmm")
#: Shares of the machine's arithmetic at which fused attention runs on a CPU: 0.47 to 0.85 of it forward and 0.35 to
#: 0.63 backward were seen, for heads of 16 and 64 and 128 to 1,024 positions. It writes no matrices of all pairs, so
#: that it can beat separate products.
_FUSED, _FUSED_BACKWARD = 0.7, 0.5
#: What the fused backward pass computes, in terms of the separate one's four products: one of forward's again.
_AGAIN = 5 / 4
#: How deep a product lies in the operator that was called.
_DEPTH = 4
#: How many operators away from the softmax a product is looked for.
_REACH = 12


def unfused_attention(facts: Facts) -> list[Finding]:
    """Softmax between two batched products, with nothing but scale, mask and dropout in between."""
    forward, count = _segments(facts)
    if count == 0:
        return []
    chosen = facts.ops.loc[forward]
    backward = facts.backward_of(_with_inside(facts, chosen))
    used = pd.concat([_that_works(chosen), backward])
    whole, products = _times(facts, used)
    remains = _remains(facts, products, _times(facts, backward)[1])
    if facts.share(whole) < _WORTH:
        return []
    between = whole - products
    bound = max(whole - remains, 0.0)
    top = facts.heaviest_layers(used)
    per_step = count / max(facts.attribution.steps, 1)
    return [
        Finding(
            "attention unfused",
            f"{many(per_step, 'attention')} a step run as separate products and a softmax, for {time(whole)}, "
            f"{part(facts.share(whole))} of the step: {time(products)} in the products and {time(between)} in what "
            f"lies between them, through matrices of all pairs of positions.",
            bound,
            _lever(facts, top),
            "",
            "medium",
            "Told from the order of operators. The products stay, and the fused operator's backward pass computes one "
            "of them again (Dao et al., FlashAttention, 2022)."
            if len(backward)
            else "Told from the order of operators; the products stay.",
            "Whether the weights of attention are needed themselves; which fused kernel this device has here.",
            (*(Row("layer", name) for name in top), Row("op", "aten::_softmax")),
        )
    ]


def attention_layers(facts: Facts) -> list[str]:
    """The layers whose attention is not fused, where that is worth a finding."""
    return _layers(facts.ops.loc[_segments(facts)[0]]) if unfused_attention(facts) else []


def attention_ops(facts: Facts) -> np.ndarray:
    """Which ops are those of attention that is not fused, backward too, where that is worth a finding."""
    inside = np.zeros(len(facts.ops), dtype=bool)
    if unfused_attention(facts):
        inside = _with_inside(facts, facts.ops.loc[_segments(facts)[0]])
        inside[facts.backward_of(inside).index.to_numpy()] = True
    return inside


def _that_works(chosen: pd.DataFrame) -> pd.DataFrame:
    return chosen[~found(chosen["op"], _FREE.match)]


def _layers(chosen: pd.DataFrame) -> list[str]:
    return [str(name) for name in chosen["layer"].unique() if name]


def _lever(facts: Facts, layers: list[str]) -> str:
    """What to change: torch's own layer needs only be told that nobody wants its weights."""
    lever = (
        "Use torch.nn.functional.scaled_dot_product_attention, which holds no matrix of all pairs in memory; a mask "
        "that is not causal is its attn_mask."
    )
    kinds = dict(zip(facts.recording.modules["name"], facts.recording.modules["module"], strict=True))
    own = [name for name in layers if kinds.get(name) == "MultiheadAttention"]
    if own:
        return (
            "Use the fused operator, which holds no matrix of all pairs in memory: nn.MultiheadAttention does so where "
            f"its weights are not asked for. Call {facts.path_of(own[0])} with need_weights=False."
        )
    return lever


def _remains(facts: Facts, products: float, of_backward: float) -> float:
    """Milliseconds of a step that the fused operator takes: about as long as its products alone, or less."""
    known = _arithmetic_ms(facts)
    forward = known / 3 if of_backward else known
    return min(products - of_backward, forward / _FUSED) + min(
        _AGAIN * of_backward, (known - forward) / _FUSED_BACKWARD if of_backward else 0.0
    )


def _arithmetic_ms(facts: Facts) -> float:
    """How long the products' arithmetic takes at the machine's peak; endless where that is not known."""
    roofline = facts.figures.roofline
    # What other programs slow is not measured by a peak from quiet times.
    if roofline is None or facts.gpu is not None or facts.busy:
        return math.inf
    points = roofline.points[(roofline.points["kind"] == "op") & roofline.points["name"].isin(_COUNTED)]
    peak = points["dtype"].map(dict(roofline.peaks)).astype("Float64")
    seconds = (points["flops"] / peak).sum(min_count=1)
    known = points["flops"].notna() & peak.notna()
    return float(seconds) * 1e3 if known.any() else math.inf


def _kind(name: str) -> str:
    """Softmax, product, what may lie between them, or none of these."""
    return "s" if _SOFTMAX.match(name) else "p" if _PRODUCT.match(name) else "b" if _BETWEEN.match(name) else ""


def _segments(facts: Facts) -> tuple[np.ndarray, int]:
    """Rows of the operators from one product to the other, and the number of such places in all steps."""
    ops = facts.ops
    candidates = ops[ops["outer"] & ops["phase"].isin(("forward", "other"))]
    kinds: list[str] = of_labels(candidates["op"], _kind, "").tolist()
    softmaxes = np.flatnonzero([kind == "s" for kind in kinds])
    if len(softmaxes) == 0:
        return np.array([], dtype=np.int64), 0
    batched = of_labels(ops["op"], lambda name: _BATCHED.match(name) is not None)
    with_batched = set(np.flatnonzero(batched).tolist()) | set(ops["around"].to_numpy()[batched].tolist())
    # An einsum calls bmm one level further down.
    above = ops["around"].to_numpy()
    with_batched |= {int(above[row]) for row in with_batched if row >= 0 and above[row] >= 0}
    rows, steps, threads = candidates.index.to_numpy(), candidates["step"].to_numpy(), candidates["thread"].to_numpy()
    found: list[int] = []
    count = 0
    for at in softmaxes.tolist():
        ends = []
        for way in (-1, 1):
            place = at + way
            while 0 <= place < len(kinds) and abs(place - at) <= _REACH:
                if steps[place] != steps[at] or threads[place] != threads[at] or not kinds[place]:
                    break
                if kinds[place] == "p":
                    if int(rows[place]) in with_batched:
                        ends.append(place)
                    break
                place += way
        if len(ends) == 2:
            found += rows[ends[0] : ends[1] + 1].tolist()
            count += 1
    return np.unique(np.array(found, dtype=np.int64)), count


def _times(facts: Facts, used: pd.DataFrame) -> tuple[float, float]:
    """Milliseconds of a step in all these operators, and in the products inside them: on the GPU if there is one.

    A product of many matrices first makes copies of what does not lie in order: they count as what lies between.
    """
    ops = facts.ops
    products = ops[_with_inside(facts, used) & found(ops["op"], _BATCHED.match)]
    if facts.gpu is None:
        return tuple(facts.per_step(float(part["whole_ns"].sum())) for part in (used, products))  # type: ignore[return-value]
    return _on_gpu_ms(facts.gpu, used), _on_gpu_ms(facts.gpu, products)


def _with_inside(facts: Facts, used: pd.DataFrame) -> np.ndarray:
    """Which of all operators are these, or lie inside them."""
    around = facts.ops["around"].to_numpy()
    inside = np.zeros(len(around), dtype=bool)
    inside[used.index.to_numpy()] = True
    for _ in range(_DEPTH):
        inside |= (around >= 0) & inside[around]
    return inside


def _on_gpu_ms(gpu: GpuFacts, used: pd.DataFrame) -> float:
    """Time on the device of what operators launched, those inside them included."""
    within = union(used["start"].to_numpy(dtype=np.int64), used["end"].to_numpy(dtype=np.int64))
    called = gpu.runs.called
    return gpu.ran_ms((called != NONE) & (within.within(called, called + 1) > 0))
