"""Find synchronisation, where the host waits for results and the GPU then waits for the host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.findings.facts import Facts, shared, typical
from perfnb.findings.finding import Finding, Row, rows, rule
from perfnb.findings.gpu_facts import READS, GpuFacts
from perfnb.findings.lines import lines_in_words, not_below_samples
from perfnb.findings.rules.optimizer import clips_gradients, gaps_after_backward
from perfnb.recording.nesting import NONE, Bools, Floats, forest_of, innermost
from perfnb.recording.text import TEXT, found

_LEAST_MS = 0.05
#: Nanoseconds that Python usually takes between a read and the next operator, and for each operator of the step if
#: no operator follows, because then the results of forward and backward are freed.
_USUAL_NS, FREEING_NS = 20_000, 1_000
_OF_TORCH = re.compile("aten::")
#: Minimum number of reads in one block that count as a loop.
_FEWEST_ROUNDS = 10
_PYTHON_NAME = {"aten::item": ".item()", "aten::_local_scalar_dense": ".item()", "aten::is_nonzero": "if tensor:"}


@rule(
    "synchronisation",
    "Bound by synchronisation",
    "reading results less often",
    idle_cause="synchronisation",
    worth=0.04,
)
def synchronisation(facts: Facts) -> Iterator[Finding]:
    """Find reads of results.

    On a GPU, they cost the resulting idle time; on the CPU, the time to read and to use the results.
    """
    return _on_gpu(facts, facts.gpu) if facts.gpu is not None else _on_cpu(facts)


def _reads(facts: Facts) -> pd.DataFrame:
    """Return the outermost operators that transfer results to the host."""
    ops = facts.ops
    is_read = found(ops["op"], READS.match)
    outermost: pd.DataFrame = ops[is_read & (innermost(forest_of(ops["around"].to_numpy()), is_read) == NONE)]
    return outermost


def _on_gpu(facts: Facts, gpu: GpuFacts) -> Iterator[Finding]:
    bound = gpu.held_ms("synchronisation")
    waited, calls = gpu.calls_ms["synchronisation"]
    reads = _reads(facts)
    what = _what(facts, reads) if len(reads) else fmt.counted(calls, "synchronising call")
    yield Finding(
        f"After {what}, the GPU was idle for {facts.of_step(bound)}, because the host had been waiting "
        f"({fmt.duration(waited)} per step in synchronising calls) and had not queued any work.",
        bound,
        f"Read results less often, or later: accumulate losses on the device{facts.for_torch(' (loss.detach())')} and "
        "read the sum every hundred steps.",
        "low" if gpu.is_unsure("synchronisation") else "medium",
        "This idle time started while the host was waiting. Without the wait, the host might still be too slow to keep "
        "the GPU busy.",
        "Which line of the program waited.",
        _op_rows(reads),
    )


@dataclass(frozen=True)
class Reads:
    """Reads of results on the CPU."""

    #: The outermost operators that copy results to the host.
    ops: pd.DataFrame
    #: For each block, in nanoseconds: the time in excess of the usual that Python takes after reads; and for loops of
    #: reads, the time of all Python code and of all operators from the block's first read to its last one.
    after_ns: Floats
    loop_python_ns: Floats
    loop_ops_ns: Floats

    @property
    def looped(self) -> Bools:
        """The blocks that contain loops with reads."""
        return self.loop_python_ns + self.loop_ops_ns > 0


@shared
def reads_of(facts: Facts) -> Reads:
    """Return the reads of a step on the CPU.

    Reads by the optimizer, the loader and gradient clipping are excluded. Reads inside another operator, such as
    ``aten::std``, are also excluded, because they belong to torch rather than to the user's code.
    """
    reads, nothing = _reads(facts), np.zeros(len(facts.cells_ns))
    claimed = clips_gradients(facts)[facts.lines[reads["block"].to_numpy()]]
    of_torch = np.append(found(facts.ops["op"], _OF_TORCH.match), False)[reads["around"].to_numpy()]
    reads = reads[~reads["phase"].isin(("optimizer", "data")) & ~claimed & ~of_torch]
    if reads.empty:
        return Reads(reads, nothing, nothing, nothing)
    after, last = _until_next(facts, reads)
    usual = np.where(last, _USUAL_NS + FREEING_NS * len(facts.ops) / facts.steps, _USUAL_NS)
    follows = np.maximum(typical(after, reads["step"].to_numpy(), reads["op"].cat.codes.to_numpy()) - usual, 0)
    line = facts.lines[reads["block"].to_numpy()]
    by_block = np.bincount(line, weights=follows, minlength=len(facts.left_ns))
    return Reads(reads, np.minimum(by_block, facts.left_ns), *_loops(facts, reads))


def _loops(facts: Facts, reads: pd.DataFrame) -> tuple[Floats, Floats]:
    """For each block, return the Python code and the operators in loops that read a result in each iteration.

    An iteration begins before its read, which means that the first iteration counts as much as the others. Longer
    operators count only if the next operator reads their result, or if they run after the backward pass, where nothing
    belongs to the model.
    """
    blocks, size = facts.attribution.host.blocks, len(facts.cells_ns)
    block = facts.lines[reads["block"].to_numpy()]
    count = np.bincount(block, minlength=size)
    first, last = np.full(size, np.iinfo(np.int64).max), np.zeros(size, dtype=np.int64)
    np.minimum.at(first, block, reads["start"].to_numpy())
    np.maximum.at(last, block, reads["end"].to_numpy())
    is_loop = (count >= _FEWEST_ROUNDS) & (facts.blocks_inside == 0)
    rounds = np.where(is_loop, last - first, 0) / np.maximum(count - 1, 1)
    begin = np.maximum(np.where(is_loop, first - rounds, last), blocks["start"].to_numpy())
    ops = facts.ops[facts.ops["outer"]]
    line = facts.lines[ops["block"].to_numpy()]
    start, whole = ops["start"].to_numpy(), ops["whole_ns"].to_numpy()
    inside = is_loop[line] & (start >= begin[line]) & (start <= last[line])
    is_read = np.isin(ops["place"].to_numpy(), reads["place"].to_numpy())
    before_read = np.append(is_read[1:] & (line[1:] == line[:-1]), False)
    counts = (whole < facts.tiny_ns) | is_read | before_read | gaps_after_backward(facts)[line]
    size_of = partial(np.bincount, minlength=size)
    lasted = (ops["end"].to_numpy() - start).astype(float)
    # Python code is counted in proportion, because individual stretches of it may have been interrupted.
    around = (blocks["end"] - blocks["start"]).to_numpy() - size_of(line, weights=lasted)
    within = np.where(is_loop, last - begin, 0) - size_of(line[inside], weights=lasted[inside])
    share = np.clip(within / np.maximum(around, 1.0), 0.0, 1.0)
    chosen = inside & counts
    whole = np.maximum(whole, facts.bare_op_ns)
    return share * facts.left_ns, size_of(line[chosen], weights=whole[chosen]).astype(float)


def _on_cpu(facts: Facts) -> Iterator[Finding]:
    reads = reads_of(facts)
    least_ns = facts.bare_op_ns * len(reads.ops)
    read_ms = max(facts.per_step(float(reads.ops["whole_ns"].sum())), least_ns / 1e6 / facts.steps)
    after_ms = facts.between_ops_ms(float(reads.after_ns.sum()))
    taken = read_ms + after_ms
    once = ~reads.looped
    bound = (
        facts.per_step(float(reads.ops["whole_ns"].to_numpy()[once[facts.lines[reads.ops["block"].to_numpy()]]].sum()))
        + facts.between_ops_ms(float(reads.after_ns[once].sum() + reads.loop_python_ns.sum()))
        + facts.per_step(float(reads.loop_ops_ns.sum()))
    )
    phases = [str(phase) for phase in reads.ops["phase"].unique()]
    bound = max(not_below_samples(facts, phases, bound), taken)
    if bound < _LEAST_MS:
        return
    looped = reads.looped.any() and bound > taken
    then = f", followed by {fmt.duration(after_ms)} of Python before the next op starts" if after_ms > 0 else ""
    named = lines_in_words(facts, phases, bound)
    yield Finding(
        f"{_what(facts, reads.ops)}: at least {fmt.duration(taken)} in the reads and the code after them, and up to "
        f"{facts.of_step(bound)} including the rest of the loops that contain them.{named}"
        if looped
        else f"{_what(facts, reads.ops)}: {fmt.duration(read_ms)} in the reads{then}, in total "
        f"{fmt.share(facts.share(bound))} of the step.{named}",
        bound,
        "Compute the result for the whole batch with tensors and read it once, for example as a mask instead of "
        "indices or as a sum instead of single numbers. Alternatively, do this only every hundred steps."
        if looped
        else "Most of the time is spent on using the results (printing, logging, plotting). Do this only every hundred "
        "steps."
        if taken - read_ms > read_ms
        else "Read results less often, or keep them in tensors: use a mask instead of indices, or a sum instead of "
        "single numbers.",
        "medium",
        "The loop is in the trace, but it is an assumption that the whole loop serves the values that it reads."
        if looped
        else "The read is in the trace, but it is an assumption that the Python code after it uses the result.",
        "" if named else "The Python code after the read.",
        rows("layer", facts.heaviest_layers(reads.ops)) + _op_rows(reads.ops),
    )


def _until_next(facts: Facts, reads: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the nanoseconds from each read to the next op or block on its thread, or to the end of its block.

    Also return whether the end of the block comes first.
    """
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
