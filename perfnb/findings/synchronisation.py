"""Reads that make the host wait for a result, and what the host does with it before it goes on."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from perfnb.findings.facts import Facts, typical
from perfnb.findings.finding import Finding, Row, many, part, time
from perfnb.findings.idle import READS
from perfnb.recording.labels import of_labels
from perfnb.recording.text import TEXT

_WORTH, _LEAST_MS = 0.04, 0.05
#: Nanoseconds of Python between a read and the next operator that would be there without it, and for each operator of
#: the step where nothing follows: what forward and backward made is let go of then.
_USUAL_NS, _LET_GO_NS = 20_000, 1_000
_PYTHON_NAME = {"aten::item": ".item()", "aten::_local_scalar_dense": ".item()", "aten::is_nonzero": "if tensor:"}


def synchronisation(facts: Facts) -> list[Finding]:
    """Reads of results: on a GPU the time for which they left it idle, on the CPU what they and their use took."""
    return _on_gpu(facts) if facts.gpu is not None else _on_cpu(facts)


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


def _on_gpu(facts: Facts) -> list[Finding]:
    gpu = facts.gpu
    assert gpu is not None
    bound = gpu.held_ms("synchronisation")
    if facts.share(bound) < _WORTH:
        return []
    waited, calls = gpu.calls_ms["synchronisation"]
    reads = _reads(facts)
    count = len(reads) / max(facts.attribution.steps, 1)
    what = f"{many(count, 'read')} of results a step ({_words(reads)})" if len(reads) else many(calls, "waiting call")
    return [
        Finding(
            "synchronisation",
            f"After {what} the GPU stood idle for {time(bound)}, {part(facts.share(bound))} of the step: the host had "
            f"waited ({time(waited)} a step in calls that synchronise) and had nothing queued.",
            bound,
            "Read results less often, or later: add losses up on the device (loss.detach()) and read the sum every "
            "hundredth step.",
            "",
            "low" if gpu.is_unsure("synchronisation") else "medium",
            "Idle time that began while the host waited; without the wait the host might still be too slow to fill it.",
            "Which line of the program waited.",
            tuple(Row("op", str(name)) for name in reads["op"].astype(TEXT).unique()[:3]),
        )
    ]


def after_reads_ms(facts: Facts) -> float:
    """What Python does after reads on the CPU before the next operator begins, beyond what is usual."""
    reads = _of_the_step(facts)
    if reads.empty:
        return 0.0
    after, last = _until_next(facts, reads)
    usual = np.where(last, _USUAL_NS + _LET_GO_NS * len(facts.ops) / max(facts.attribution.steps, 1), _USUAL_NS)
    follows = np.maximum(typical(after, reads["step"].to_numpy(), reads["op"].cat.codes.to_numpy()) - usual, 0)
    line = facts.lines[reads["block"].to_numpy()]
    by_block = np.bincount(line, weights=follows, minlength=len(facts.left_ns))
    return facts.between_ops_ms(float(np.minimum(by_block, facts.left_ns).sum()))


def _of_the_step(facts: Facts) -> pd.DataFrame:
    reads = _reads(facts)
    return reads[~reads["phase"].isin(("optimizer", "data"))]  # theirs, not the step's


def _on_cpu(facts: Facts) -> list[Finding]:
    reads = _of_the_step(facts)
    read_ms = facts.per_step(float(reads["whole_ns"].sum()))
    taken = read_ms + after_reads_ms(facts)
    if taken < _LEAST_MS or facts.share(taken) < _WORTH:
        return []
    count = len(reads) / max(facts.attribution.steps, 1)
    layers = facts.heaviest_layers(reads)
    rows = [Row("layer", name) for name in layers]
    rows += [Row("op", str(name)) for name in reads["op"].astype(TEXT).unique()[:3]]
    printing = taken - read_ms > read_ms
    after_ms = taken - read_ms
    then = f", and after them Python for {time(after_ms)} before the next op begins" if after_ms > 0 else ""
    return [
        Finding(
            "synchronisation",
            f"{many(count, 'read')} of results a step ({_words(reads)}), for {time(read_ms)}{then}: "
            f"{part(facts.share(taken))} of the step.",
            taken,
            "What is done with each result (printing, logging, drawing) takes the time: do it every hundredth step."
            if printing
            else "Read results less often, or stay with tensors: a mask instead of places, a sum instead of numbers.",
            "",
            "medium",
            "The read was seen; that the Python after it belongs to it is supposed.",
            "What Python did after the read.",
            tuple(rows),
        )
    ]


def _until_next(facts: Facts, reads: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Nanoseconds from the end of each read until the next op or block begins on its thread, or its block ends; whether
    it is its block that ends."""
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


def _words(reads: pd.DataFrame) -> str:
    names = [str(name) for name in reads["op"].astype(TEXT).unique()]
    return ", ".join(dict.fromkeys(_PYTHON_NAME.get(name, re.sub(r"^aten::", "", name)) for name in names))
