"""Find memory problems.

The rules look for activations that dominate the peak or are recomputed, for an allocator under pressure, and for memory
that steps never free.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfnb import quantities as fmt
from perfnb.findings.facts import Facts
from perfnb.findings.finding import Finding, rows, rule
from perfnb.findings.proposed_code import EXPANDABLE, is_amd

_MIB = 2**20
#: Activations dominate if they exceed this share of the peak; below this number of bytes, they do not matter.
_DOMINATES, _LEAST_BYTES = 0.5, 64 * _MIB
#: Unused memory between blocks is worth reporting above this share of reserved memory and this number of bytes.
_FRAGMENTED, _LEAST_FRAGMENTS = 0.3, 256 * _MIB
#: Memory is growing if every step leaves behind at least this share of the peak and this number of bytes.
_GROWS, _LEAST_GROWTH = 0.002, _MIB // 4
_ROUGHLY = "half precision for activations"  # autocast keeps some in float32
_WAYS = ("checkpointing", "half the batch", _ROUGHLY)


@rule("activation memory", "Out of memory: activations take most of it")
def activation_memory(facts: Facts) -> Iterator[Finding]:
    """Find activations that take up most of the peak."""
    memory = facts.figures.memory
    if memory is None or memory.peak_bytes == 0:
        return
    held = int(memory.by_category.get("activations", 0))
    if held < _LEAST_BYTES or held < _DOMINATES * memory.peak_bytes:
        return
    ways = memory.fits[memory.fits["option"].isin(_WAYS)]
    checkpointing = ways[ways["option"] == "checkpointing"]
    said = "; ".join(
        f"{option} would free {'at most' if option == _ROUGHLY else 'about'} {fmt.size(int(frees))}"
        for option, frees in zip(ways["option"], ways["frees_bytes"], strict=True)
    )
    layers = memory.owners.loc[memory.owners["category"] == "activations", "layer"].dropna().head(3)
    of_what = "the peak of {}" if memory.incomplete is None else "the {} that were alive when memory ran out"
    yield Finding(
        f"Activations take up {fmt.size(held)} of {of_what.format(fmt.size(memory.peak_bytes))} "
        f"({fmt.share(held / memory.peak_bytes)}){': ' + said if said else ''}.",
        None,
        "Recompute activations in the backward pass instead of keeping them (torch.utils.checkpoint.checkpoint around "
        "each block), or use smaller batches and accumulate gradients. This saves memory, but no time."
        + "".join(f" {way.detail}" for way in checkpointing.itertuples()),
        "medium" if len(checkpointing) else "high",
        "The bytes were counted" + ("; the savings are estimates." if len(checkpointing) else "."),
        "Whether memory is short at all. Recomputation costs up to one additional forward pass.",
        rows("layer", filter(None, layers)) + rows("memory", [f"{memory.peak_ms:.6g}"]),
        remedy="checkpointing" if facts.trains else "",
        bound_bytes=held,
        urgency=1 if memory.incomplete else 0,  # the step ran out of memory
    )


@rule("recomputation", "Bound by recomputation", "checkpointing less", worth=0.05)
def recomputation(facts: Facts) -> Iterator[Finding]:
    """Find forward work that checkpointing repeats in the backward pass."""
    if facts.gpu is not None:
        return
    again = (facts.attribution.cells["direction"] == "recompute").to_numpy()
    bound = facts.per_step(float(facts.cells_ns[again].sum()))
    yield Finding(
        f"The backward pass spends {facts.of_step(bound)} on recomputing forward work.",
        bound,
        "Checkpoint fewer blocks: only those that use the most memory for their computing time, or none if there is "
        f"enough memory{facts.for_torch('. Call the others without torch.utils.checkpoint.checkpoint')}.",
        "high",
        "The trace shows calls to layers inside the backward pass.",
        "Whether there is enough memory without checkpointing: perfnb.estimate_memory predicts this without running "
        "anything.",
        rows("layer", facts.heaviest_layers(facts.ops[facts.ops["direction"] == "recompute"])),
    )


@rule("allocator", "Bound by memory allocation", "avoiding it", idle_cause="allocator", worth=0.05)
def allocator(facts: Facts) -> Iterator[Finding]:
    """Find calls in the step that allocate device memory, allocator retries, and fragmentation."""
    gpu, memory = facts.gpu, facts.figures.memory
    if gpu is not None:
        bound = gpu.held_ms("allocator")
        in_calls, calls = gpu.calls_ms["allocator"]
        unsure = gpu.is_unsure("allocator")
        yield Finding(
            f"The GPU was idle for {facts.of_step(bound)} while the host allocated or freed device memory: "
            f"{fmt.counted(calls, 'call')} in the trace, {fmt.duration(in_calls)} per step. Each call waits until "
            "all earlier work is done.",
            bound,
            "In steady state, a step gets its memory from torch's cache. Find out what bypasses the cache (a library's "
            "workspace, empty_cache(), changing sizes) or fills it."
            if facts.uses_torch
            else "Reuse buffers across steps, or allocate them from a pool.",
            "low" if unsure else "high",
            "The calls are in the trace, and the GPU was idle while they ran"
            + (", but the trace does not contain the launch of the next work." if unsure else "."),
            "What made the calls: look at the ops around them. The first step allocates more than later ones.",
            rows("op", gpu.late_ops[:2]),
        )
    if memory is None:
        return
    retries, fragmentation = memory.retries or 0, memory.fragmentation
    reserved = memory.reserved_peak_bytes or 0
    idle = int(reserved * fragmentation) if fragmentation is not None else 0
    if retries or (fragmentation is not None and fragmentation > _FRAGMENTED and idle > _LEAST_FRAGMENTS):
        again = "was" if retries == 1 else "were"
        tried = f"{fmt.counted(retries, 'allocation')} {again} retried after emptying the cache; " if retries else ""
        yield Finding(
            f"{tried}{fmt.size(idle)} of {fmt.size(reserved)} of reserved memory was unused, in gaps between blocks, "
            "at the peak.",
            None,
            "Let segments grow instead of adding new ones, and keep shapes the same in all steps.",
            "high" if retries else "medium",
            "The allocator itself counted these.",
            "How much time the retries cost.",
            rows("memory", [f"{memory.peak_ms:.6g}"]),
            code="" if is_amd(facts.recording) else EXPANDABLE,
            bound_bytes=idle,
        )


@rule("memory may grow", "Memory may grow")
def growth(facts: Facts) -> Iterator[Finding]:
    """Find memory that was allocated in every recorded step and never freed."""
    memory = facts.figures.memory
    if memory is None or memory.incomplete or not memory.kept_bytes:
        return
    kept = memory.kept_bytes
    if kept < max(_LEAST_GROWTH, _GROWS * memory.peak_bytes):
        return
    owner = f", most of it allocated by {memory.kept_by}" if memory.kept_by else ""
    yield Finding(
        f"Each of the two steps whose allocations were recorded left behind {fmt.size(kept)} that was never "
        f"freed{owner}.",
        None,
        "Two steps do not prove a leak: use perfnb.find_leaks to watch more of them. Something may be keeping tensors "
        "alive, such as a list of losses with their graphs (store loss.detach() instead).",
        "low",
        "Only two steps were watched; a cache or a history may still be filling up.",
        "Later steps.",
        rows("memory", [f"{memory.timeline['t_ms'].iloc[-1]:.6g}"]),
        bound_bytes=kept,
    )
