"""Synchronisation: the host waits for results, and the GPU then waits for the host."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.findings.facts import Facts, typical
from perfnb.findings.finding import Finding, Row, rows, rule
from perfnb.findings.gpu_facts import READS, GpuFacts
from perfnb.recording.text import TEXT, of_labels

_WORTH, _LEAST_MS = 0.04, 0.05
#: Nanoseconds of Python usual between a read and the next operator, and for each operator of the step if nothing
#: follows: then the results of forward and backward are freed.
_USUAL_NS, _LET_GO_NS = 20_000, 1_000
_PYTHON_NAME = {"aten::item": ".item()", "aten::_local_scalar_dense": ".item()", "aten::is_nonzero": "if tensor:"}


@rule("synchronisation", "Bound by synchronisation", "reading results less often", idle_cause="synchronisation")
def synchronisation(facts: Facts) -> Iterator[Finding]:
    """Reads of results: on a GPU the time it was idle for them, on the CPU what reads and their use took."""
    return _on_gpu(facts, facts.gpu) if facts.gpu is not None else _on_cpu(facts)


def _reads(facts: Facts) -> pd.DataFrame:
    """The outermost operators that bring results to the host."""
    ops = facts.ops
    is_read = of_labels(ops["op"], lambda name: READS.match(name) is not None)
    around = ops["around"].to_numpy()
    inner, above = np.zeros(len(ops), dtype=bool), around
    while (above >= 0).any():
        inner |= (above >= 0) & is_read[above]
        above = np.where(above >= 0, around[above], -1)
    result: pd.DataFrame = ops[is_read & ~inner]
    return result


def _on_gpu(facts: Facts, gpu: GpuFacts) -> Iterator[Finding]:
    bound = gpu.held_ms("synchronisation")
    if facts.share(bound) < _WORTH:
        return
    waited, calls = gpu.calls_ms["synchronisation"]
    reads = _reads(facts)
    what = _what(facts, reads) if len(reads) else fmt.counted(calls, "synchronising call")
    yield Finding(
        "synchronisation",
        f"After {what} the GPU was idle for {facts.of_step(bound)}: the host had waited "
        f"({fmt.duration(waited)} per step in synchronising calls) and had queued nothing.",
        bound,
        f"Read results less often, or later: accumulate losses on the device{facts.for_torch(' (loss.detach())')} and "
        "read the sum every hundred steps.",
        "",
        "low" if gpu.is_unsure("synchronisation") else "medium",
        "This idle time started while the host waited; without the wait the host might still be too slow to fill it.",
        "Which line of the program waited.",
        _op_rows(reads),
    )


def after_reads_ms(facts: Facts) -> float:
    """What Python does between a read on the CPU and the next operator, beyond the usual."""
    reads = _of_the_step(facts)
    if reads.empty:
        return 0.0
    after, last = _until_next(facts, reads)
    usual = np.where(last, _USUAL_NS + _LET_GO_NS * len(facts.ops) / facts.steps, _USUAL_NS)
    follows = np.maximum(typical(after, reads["step"].to_numpy(), reads["op"].cat.codes.to_numpy()) - usual, 0)
    line = facts.lines[reads["block"].to_numpy()]
    by_block = np.bincount(line, weights=follows, minlength=len(facts.left_ns))
    return facts.between_ops_ms(float(np.minimum(by_block, facts.left_ns).sum()))


def _of_the_step(facts: Facts) -> pd.DataFrame:
    reads = _reads(facts)
    return reads[~reads["phase"].isin(("optimizer", "data"))]  # theirs, not the step's


def _on_cpu(facts: Facts) -> Iterator[Finding]:
    reads = _of_the_step(facts)
    read_ms, after_ms = facts.per_step(float(reads["whole_ns"].sum())), after_reads_ms(facts)
    taken = read_ms + after_ms
    if taken < _LEAST_MS or facts.share(taken) < _WORTH:
        return
    share = fmt.share(facts.share(taken))
    then = f", then {fmt.duration(after_ms)} of Python before the next op starts" if after_ms > 0 else ""
    yield Finding(
        "synchronisation",
        f"{_what(facts, reads)}: {fmt.duration(read_ms)} in the reads{then}; {share} of the step.",
        taken,
        "The time goes into using the results (printing, logging, plotting): do it every hundred steps."
        if taken - read_ms > read_ms
        else "Read results less often, or stay with tensors: a mask instead of indices, a sum instead of numbers.",
        "",
        "medium",
        "The read was seen; that the Python code after it belongs to it is an assumption.",
        "What Python did after the read.",
        rows("layer", facts.heaviest_layers(reads)) + _op_rows(reads),
    )


def _until_next(facts: Facts, reads: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Nanoseconds from each read to the next op or block on its thread, or to the end of its block; and which it is."""
    blocks = facts.attribution.host.blocks
    ops = facts.ops
    starts = pd.concat([ops[["thread", "start"]], blocks[["thread", "start"]]])
    result, last = np.zeros(len(reads)), np.zeros(len(reads), dtype=bool)
    block_end = blocks["end"].to_numpy()[reads["block"].to_numpy()]
    for thread in reads["thread"].unique():
        of_thread = np.sort(starts.loc[starts["thread"] == thread, "start"].to_numpy())
        mine = (reads["thread"] == thread).to_numpy()
        end = reads["end"].to_numpy()[mine]
        place = np.searchsorted(of_thread, end, side="left")
        following = np.append(of_thread, np.iinfo(np.int64).max)[place]
        result[mine] = np.maximum(np.minimum(following, block_end[mine]) - end, 0)
        last[mine] = block_end[mine] <= following
    return result, last


def _what(facts: Facts, reads: pd.DataFrame) -> str:
    names = [str(name) for name in reads["op"].astype(TEXT).unique()]
    words = ", ".join(dict.fromkeys(_PYTHON_NAME.get(name, re.sub(r"^aten::", "", name)) for name in names))
    return f"{fmt.counted(len(reads) / facts.steps, 'read')} of results per step ({words})"


def _op_rows(reads: pd.DataFrame) -> tuple[Row, ...]:
    return rows("op", reads["op"].astype(TEXT).unique()[:3])
