"""Chains of elementwise ops: each op reads and writes its whole tensor; one fused loop would do so once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pandas as pd

from perfnb import quantities as fmt
from perfnb.findings.code import compiling
from perfnb.findings.facts import Facts
from perfnb.findings.finding import Finding, rows
from perfnb.findings.rules.attention import attention_ops
from perfnb.findings.rules.bound import memory_bandwidth
from perfnb.recording.labels import of_labels
from perfnb.recording.nesting import NONE

_WORTH = 0.1
_ELEMENTWISE = re.compile(
    r"(?:add|sub|rsub|mul|div|true_divide|neg|abs|exp|expm1|log|log1p|sqrt|rsqrt|square|pow|reciprocal|sin|cos|tanh|erf|"
    r"sigmoid|relu|relu6|gelu|silu|mish|elu|leaky_relu|hardtanh|hardswish|softplus|log_sigmoid|threshold|clamp|"
    r"clamp_min|clamp_max|where|maximum|minimum|masked_fill|addcmul|addcdiv|lerp|sign|floor|round|eq|ne|lt|gt|le|ge|"
    r"logical_(?:and|or|not)|to|_to_copy)(?:_backward)?_?$"
)
#: What ends a chain and is still fused with it.
_ENDS = re.compile(r"(?:sum|mean|amax|amin|max|min|norm|linalg_vector_norm)$")
#: What moves no data between two of them.
_FREE = re.compile(r"(?:view|reshape|transpose|t|permute|expand|unsqueeze|squeeze|select|slice|detach|alias)$")
_NODE = re.compile(r"Backward\d+$")
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True)
class Chains:
    """Chains of elementwise ops in the traced steps."""

    #: Which of `Facts.ops` belong to a chain.
    members: npt.NDArray[np.bool_]
    #: Time of all ops, and of the longest op of each chain: what one fused loop would still take.
    whole_ns: float
    one_pass_ns: float
    #: Number of chains.
    count: int
    #: By block: time between two ops of a chain, in which memory is freed; at most as long as the first op took and no
    #: more than the block's ops leave.
    gaps_ns: npt.NDArray[np.float64]


def _chains(facts: Facts) -> Iterator[Finding]:
    if facts.gpu is not None:
        return
    chains = chains_of(facts)
    whole, bound = facts.per_step(chains.whole_ns), facts.per_step(chains.whole_ns - chains.one_pass_ns)
    if facts.share(bound) < _WORTH:
        return
    used = facts.ops[chains.members]
    by_op = used.groupby("op", observed=True)["whole_ns"].sum().nlargest(3).index
    layers = facts.heaviest_layers(used)
    note, code = compiling(facts, layers) if layers else ("", "")
    what = "the model that computes it" if layers else "the function that computes it (it is in no layer)"
    yield Finding(
        "memory bandwidth",
        f"{fmt.counted(len(used) / facts.steps, 'elementwise op')} per step ({', '.join(map(str, by_op))}) run back to "
        f"back in {fmt.counted(chains.count / facts.steps, 'chain')} and take {facts.of_step(whole)}: each reads its "
        "whole tensor from memory and writes another, with little arithmetic per byte.",
        bound,
        f"Fuse each chain into one pass over the data: compile {what} with torch.compile. Or write into existing "
        f"tensors (out=, in-place), which at least avoids new memory.{note}",
        code,
        "medium",
        "One pass remains: the longest op of each chain.",
        "Whether each op needs the result of the previous one, and whether the tensors fit into a cache.",
        rows("layer", layers) + rows("op", by_op),
    )


#: Tensors that elementwise ops on the host read and write again and again: another way to be memory-bound.
elementwise_chains = replace(memory_bandwidth, search=_chains)


def chains_of(facts: Facts) -> Chains:
    """Two or more longer elementwise ops back to back on one thread, except those of attention."""
    ops = facts.ops
    gaps = np.zeros(len(facts.attribution.cells))
    fused, ends, free = (of_labels(ops["op"], partial(_is, pattern)) for pattern in (_ELEMENTWISE, _ENDS, _FREE))
    phases = ["forward", "loss", "backward"]
    if not (ops["direction"] == "backward").any():
        phases.append("other")  # otherwise it may be an update by hand, tensor after tensor
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
    # A gap longer than the op before it is somebody's code, not memory being freed.
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


def _is(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.match(_plain(name)) is not None


def _plain(name: str) -> str:
    """An op's name in Python; for a backward node, that of its op."""
    if _NODE.search(name):
        return _CAPITAL.sub("_", _NODE.sub("", name)).lower()
    return name.removeprefix("aten::")
