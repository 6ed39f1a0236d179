"""Find separate ops that a single fused op could replace: attention, and chains of elementwise ops."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.attribution.interval_sets import union
from perfnb.findings.facts import Facts, shared
from perfnb.findings.finding import Finding, rows, rule
from perfnb.findings.gpu_facts import GpuFacts
from perfnb.findings.proposed_code import compiling
from perfnb.recording.nesting import NONE, Bools, Floats, Ints
from perfnb.recording.text import found, of_labels

#: Share of the step above which attention is worth reporting.
_WORTH = 0.03
_SOFTMAX = re.compile(r"aten::_?(?:safe_)?softmax$")
_PRODUCT = re.compile(r"aten::(?:matmul|bmm|baddbmm|einsum)$")
_BATCHED = re.compile(r"aten::baddbmm$|aten::bmm$")
#: Ops that may occur between the products and the softmax: scale, mask, dropout, and changes of dtype or device.
_BETWEEN = re.compile(
    r"aten::(?:mul|div|add|sub|rsub|neg|where|masked_fill|tril|triu|native_dropout|dropout|feature_dropout|bernoulli|to|"
    r"_to_copy|copy|clone|contiguous|type_as|float|half|bfloat16|softmax|_softmax|nan_to_num|maximum|eq|ne|lt|gt|"
    r"le|ge|(?:logical|bitwise)_(?:not|and|or)|tanh|ones|zeros|full|arange|lift_fresh|detach|transpose|view|reshape|permute|expand|unsqueeze|squeeze|"
    r"select|slice|t|unflatten|flatten|_unsafe_view|as_strided|alias|expand_as|ones_like|empty|empty_like)_?$"
)
_FREE = re.compile(r"aten::(?:transpose|view|reshape|permute|expand|unsqueeze|squeeze|select|slice|t|detach|alias)$")
_COUNTED = ("aten::bmm", "aten::baddbmm")
#: Share of peak arithmetic that fused attention reaches on a CPU: 0.47 to 0.85 forward and 0.35 to 0.63 backward were
#: measured for head sizes 16 and 64 and 128 to 1,024 positions. Fused attention writes no attention matrices and can
#: therefore be faster than separate products.
_FUSED, _FUSED_BACKWARD = 0.7, 0.5
#: Work of the fused backward pass relative to the four products of the unfused one: it recomputes a product of forward.
_AGAIN = 5 / 4
_AGAIN_WORDS = ", and a fused backward pass recomputes one of them (Dao et al., FlashAttention, 2022)"
#: The depth to which a product may be nested in the operator that was called.
_DEPTH = 4
#: The number of operators before and after the softmax among which a product is searched for.
_REACH = 12
_ELEMENTWISE = re.compile(
    r"(?:add|sub|rsub|mul|div|true_divide|neg|abs|exp|expm1|log|log1p|sqrt|rsqrt|square|pow|reciprocal|sin|cos|tanh|erf|"
    r"sigmoid|relu|relu6|gelu|silu|mish|elu|leaky_relu|hardtanh|hardswish|softplus|log_sigmoid|threshold|clamp|"
    r"clamp_min|clamp_max|where|maximum|minimum|masked_fill|addcmul|addcdiv|lerp|sign|floor|round|eq|ne|lt|gt|le|ge|"
    r"logical_(?:and|or|not)|to|_to_copy)(?:_backward)?_?$"
)
#: Ops that end a chain and are still fused with it.
_ENDS = re.compile(r"(?:sum|mean|amax|amin|max|min|norm|linalg_vector_norm)$")
#: Ops between two of them that move no data.
_MOVES_NOTHING = re.compile(r"(?:view|reshape|transpose|t|permute|expand|unsqueeze|squeeze|select|slice|detach|alias)$")
_NODE = re.compile(r"Backward\d+$")
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@rule("attention unfused", "Bound by unfused attention", "a fused kernel", remedy="attention")
def unfused_attention(facts: Facts) -> Iterator[Finding]:
    """Find a softmax between two batched matrix products, with only scale, mask and dropout in between."""
    forward, count = _segments(facts)
    if count == 0:
        return
    chosen = facts.ops.loc[forward]
    backward = facts.backward_of(_with_inside(facts, chosen))
    used = pd.concat([chosen[~found(chosen["op"], _FREE.match)], backward])
    whole, products = _times(facts, used)
    remains = _remains(facts, products, _times(facts, backward)[1])
    if facts.share(whole) < _WORTH:
        return
    top = facts.heaviest_layers(used)
    yield Finding(
        f"Attention runs as separate products and a softmax in {fmt.counted(count / facts.steps, 'place')} per step "
        f"and takes {facts.of_step(whole)}: {fmt.duration(products)} in the products and "
        f"{fmt.duration(whole - products)} between them, where the full attention matrices pass through memory.",
        max(whole - remains, 0.0),
        _advice(facts, top),
        "medium",
        "This is inferred from the order of operators. A fused kernel still computes the products"
        f"{_AGAIN_WORDS if len(backward) else ''}.",
        "Whether the attention weights themselves are needed, and which fused kernel this device supports.",
        rows("layer", top) + rows("op", ["aten::_softmax"]),
    )


@shared
def attention_layers(facts: Facts) -> list[str]:
    """Return the layers with unfused attention, if they are worth a finding."""
    chosen = facts.ops.loc[_segments(facts)[0]]
    return [str(name) for name in chosen["layer"].unique() if name] if unfused_attention(facts) else []


def attention_ops(facts: Facts) -> Bools:
    """Return the ops that belong to unfused attention, forward and backward, if they are worth a finding."""
    inside = np.zeros(len(facts.ops), dtype=bool)
    if unfused_attention(facts):
        inside = _with_inside(facts, facts.ops.loc[_segments(facts)[0]])
        inside[facts.backward_of(inside).index.to_numpy()] = True
    return inside


def _advice(facts: Facts, layers: list[str]) -> str:
    """Return the recommendation, which for torch's own layer is only an argument of its call."""
    own = [name for name in layers if facts.kinds.get(name) == "MultiheadAttention"]
    if own:
        return (
            "Use the fused operator, which keeps no full attention matrix in memory: nn.MultiheadAttention uses it if "
            f"the attention weights are not requested. Call {own[0]} with need_weights=False."
        )
    return (
        "Use torch.nn.functional.scaled_dot_product_attention, which keeps no full attention matrix in memory. For a "
        "causal mask use is_causal=True, and pass any other mask as attn_mask."
    )


def _remains(facts: Facts, products: float, of_backward: float) -> float:
    """Return the milliseconds per step that the fused operator takes: about the time of its products at most."""
    known = _arithmetic_ms(facts)
    forward = known / 3 if of_backward else known
    return min(products - of_backward, forward / _FUSED) + min(
        _AGAIN * of_backward, (known - forward) / _FUSED_BACKWARD if of_backward else 0.0
    )


def _arithmetic_ms(facts: Facts) -> float:
    """Return the time that the products' arithmetic takes at the peak rate; infinite if it is unknown."""
    roofline = facts.figures.roofline
    # On a busy machine, a peak that was measured in quiet times cannot be reached.
    if roofline is None or facts.gpu is not None or facts.busy:
        return math.inf
    points = roofline.points[(roofline.points["kind"] == "op") & roofline.points["name"].isin(_COUNTED)]
    peak = points["dtype"].map(dict(roofline.peaks)).astype("Float64")
    seconds = (points["flops"] / peak).sum(min_count=1)
    known = points["flops"].notna() & peak.notna()
    return float(seconds) * 1e3 if known.any() else math.inf


def _kind(name: str) -> str:
    """Return the kind of an op: softmax, product, an op that may occur between them, or none of these."""
    return "s" if _SOFTMAX.match(name) else "p" if _PRODUCT.match(name) else "b" if _BETWEEN.match(name) else ""


@shared
def _segments(facts: Facts) -> tuple[Ints, int]:
    """Return the rows of the operators from one product to the other, and the number of attentions in all steps."""
    ops = facts.ops
    candidates = ops[ops["outer"] & ops["phase"].isin(("forward", "other"))]
    kinds: list[str] = of_labels(candidates["op"], _kind, "").tolist()
    softmaxes = np.flatnonzero([kind == "s" for kind in kinds])
    if len(softmaxes) == 0:
        return np.array([], dtype=np.int64), 0
    batched, around = found(ops["op"], _BATCHED.match), ops["around"].to_numpy()
    for _ in range(2):  # a matmul calls bmm; an einsum calls it one level further down
        batched[around[batched & (around != NONE)]] = True
    rows, steps, threads = candidates.index.to_numpy(), candidates["step"].to_numpy(), candidates["thread"].to_numpy()
    chosen: list[int] = []
    count = 0
    for at in softmaxes.tolist():
        ends = []
        for way in (-1, 1):
            place = at + way
            while 0 <= place < len(kinds) and abs(place - at) <= _REACH:
                if steps[place] != steps[at] or threads[place] != threads[at] or not kinds[place]:
                    break
                if kinds[place] == "p":
                    ends += [place] if batched[rows[place]] else []
                    break
                place += way
        if len(ends) == 2:
            chosen += rows[ends[0] : ends[1] + 1].tolist()
            count += 1
    return np.unique(np.array(chosen, dtype=np.int64)), count


def _times(facts: Facts, used: pd.DataFrame) -> tuple[float, float]:
    """Return the milliseconds per step in all these operators, and in the products inside them.

    If there is a GPU, these are its times. Copies that a batched product makes of non-contiguous inputs do not count as
    part of the product.
    """
    ops = facts.ops
    products = ops[_with_inside(facts, used) & found(ops["op"], _BATCHED.match)]
    if facts.gpu is None:
        return tuple(facts.per_step(float(part["whole_ns"].sum())) for part in (used, products))  # type: ignore[return-value]
    return _on_gpu_ms(facts.gpu, used), _on_gpu_ms(facts.gpu, products)


def _with_inside(facts: Facts, used: pd.DataFrame) -> Bools:
    """Return a mask of these operators and all operators nested in them."""
    around = facts.ops["around"].to_numpy()
    inside = np.zeros(len(around), dtype=bool)
    inside[used.index.to_numpy()] = True
    for _ in range(_DEPTH):
        inside |= (around >= 0) & inside[around]
    return inside


def _on_gpu_ms(gpu: GpuFacts, used: pd.DataFrame) -> float:
    """Return the device time of the work launched by operators and by the operators nested in them."""
    within = union(used["start"].to_numpy(dtype=np.int64), used["end"].to_numpy(dtype=np.int64))
    called = gpu.runs.called
    return gpu.ran_ms((called != NONE) & (within.within(called, called + 1) > 0))


@dataclass(frozen=True)
class Chains:
    """Chains of elementwise ops in the traced steps."""

    #: Which of `Facts.ops` belong to a chain.
    members: Bools
    #: Time of all ops, and of the longest op of each chain, which one fused loop would still take.
    whole_ns: float
    one_pass_ns: float
    #: Number of chains.
    count: int
    #: For each block, the time between two ops of a chain, when memory is freed. It is at most as long as the first op
    #: and never exceeds the block's time outside ops.
    gaps_ns: Floats


@rule("memory bandwidth", "Memory-bound", "moving fewer bytes", ceiling=True, remedy="compile", worth=0.1)
def elementwise_chains(facts: Facts) -> Iterator[Finding]:
    """Find tensors that elementwise ops on the host repeatedly read and write.

    This is another reason why a step can be memory-bound.
    """
    if facts.gpu is not None:
        return
    chains = chains_of(facts)
    used, whole = facts.ops[chains.members], facts.per_step(chains.whole_ns)
    by_op, layers = facts.heaviest_ops(used), facts.heaviest_layers(used)
    note, code = compiling(facts, layers) if layers else ("", "")
    what = "the model that computes it" if layers else "the function that computes it (it is not part of a layer)"
    yield Finding(
        f"{fmt.counted(len(used) / facts.steps, 'elementwise op')} per step ({', '.join(map(str, by_op))}) run back to "
        f"back in {fmt.counted(chains.count / facts.steps, 'chain')} and take {facts.of_step(whole)}: each reads its "
        "whole tensor from memory and writes another, with little arithmetic per byte.",
        facts.per_step(chains.whole_ns - chains.one_pass_ns),
        f"Fuse each chain into one pass over the data: compile {what} with torch.compile. Alternatively, "
        f"write into existing tensors (out=, in-place), which at least avoids allocating new memory.{note}",
        "medium",
        "A fused chain still needs one pass, which takes as long as its longest op.",
        "Whether each op needs the result of the previous one, and whether the tensors fit into a cache.",
        rows("layer", layers) + rows("op", by_op),
        code=code,
    )


@shared
def chains_of(facts: Facts) -> Chains:
    """Return the chains of two or more longer elementwise ops that run back to back on one thread.

    Ops that belong to attention are excluded.
    """
    ops = facts.ops
    gaps = np.zeros(len(facts.attribution.cells))
    fused, ends, free = (_is(pattern, ops["op"]) for pattern in (_ELEMENTWISE, _ENDS, _MOVES_NOTHING))
    phases = ["forward", "loss", "backward"]
    if not (ops["direction"] == "backward").any():
        phases.append("other")  # in a training step, this may be a manual update, tensor by tensor
    own = (ops["outer"] & ops["phase"].isin(phases)).to_numpy()
    whole = ops["whole_ns"].to_numpy(dtype=float)
    long = (fused | ends) & (whole >= facts.tiny_ns) & ~attention_ops(facts)
    rows = np.flatnonzero(own & (long | ~free))
    start, end, block = (ops[name].to_numpy() for name in ("start", "end", "block"))
    step, thread = ops["step"].to_numpy(), ops["thread"].to_numpy()
    rows = rows[np.lexsort((start[rows], thread[rows], step[rows]))]
    if len(rows) < 2:
        return Chains(np.zeros(len(ops), dtype=bool), 0.0, 0.0, 0, gaps)
    first, second = rows[:-1], rows[1:]
    joined = long[first] & long[second] & ~ends[first]
    joined &= (step[first] == step[second]) & (thread[first] == thread[second])
    between = np.maximum(start[second] - end[first], 0).astype(float)
    # A gap longer than the op before it is other code, not memory being freed.
    joined &= between <= whole[first]
    number = np.concatenate([[0], np.cumsum(~joined)])
    in_chain = np.concatenate([[False], joined]) | np.concatenate([joined, [False]])
    chosen, number = rows[in_chain], number[in_chain]
    members = np.zeros(len(ops), dtype=bool)
    members[chosen] = True
    # Between two nodes of the backward pass, the time belongs to the engine's run around both.
    here, there, above = block[first], block[second], np.append(facts.attribution.host.forest.parent, NONE)
    around = np.where(here == there, here, np.where(above[here] == above[there], above[here], NONE))
    inside = joined & (around != NONE)
    np.add.at(gaps, facts.lines[around[inside]], between[inside])
    gaps = np.minimum(gaps, facts.left_ns)
    longest = pd.Series(whole[chosen]).groupby(number).max()
    total = float(whole[chosen].sum() + gaps.sum())
    return Chains(members, total, float(longest.sum()), len(longest), gaps)


def _is(pattern: re.Pattern[str], ops: pd.Series) -> Bools:
    return found(ops, lambda name: pattern.match(_plain(name)))


def _plain(name: str) -> str:
    """Return an op's name in Python; for a backward node, the name of its op."""
    if _NODE.search(name):
        return _CAPITAL.sub("_", _NODE.sub("", name)).lower()
    return name.removeprefix("aten::")
