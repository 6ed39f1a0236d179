"""Memory: activations that dominate the peak, an allocator under strain, steps that leave something behind."""

from __future__ import annotations

from perfnb.findings.facts import Facts
from perfnb.findings.finding import Finding, Row, many, part, size, time
from perfnb.findings.hardware import is_amd

_MIB = 2**20
#: Share of the peak from which on activations dominate, and bytes below which nobody need care.
_DOMINATES, _LEAST_BYTES = 0.5, 64 * _MIB
#: Share of what is reserved that lies idle between blocks, and bytes of it.
_FRAGMENTED, _LEAST_FRAGMENTS = 0.3, 256 * _MIB
_WORTH = 0.05
#: Least share of the peak that every step must leave behind, and bytes.
_GROWS, _LEAST_GROWTH = 0.002, _MIB // 4


def activation_memory(facts: Facts) -> list[Finding]:
    """Activations are most of the peak."""
    memory = facts.figures.memory
    if memory is None or memory.peak_bytes == 0:
        return []
    held = int(memory.by_category.get("activations", 0))
    if held < _LEAST_BYTES or held < _DOMINATES * memory.peak_bytes:
        return []
    ways = memory.fits[
        memory.fits["option"].isin(("checkpointing", "half the batch", "half precision for activations"))
    ]
    checkpointing = ways[ways["option"] == "checkpointing"]
    said = "; ".join(
        f"{option} would free about {size(int(frees))}"
        for option, frees in zip(ways["option"], ways["frees_bytes"], strict=True)
    )
    how = "".join(f" {detail}" for detail in checkpointing["detail"]) if len(checkpointing) else ""
    owners = memory.owners
    top = owners[owners["category"] == "activations"]
    named = [str(name) for name in top["layer"].dropna().head(3) if name]
    return [
        Finding(
            "activation memory",
            f"At the peak of {size(memory.peak_bytes)} activations take {size(held)}, "
            f"{part(held / memory.peak_bytes)} of it{': ' + said if said else ''}.",
            None,
            "Compute activations again in the backward pass instead of keeping them "
            "(torch.utils.checkpoint.checkpoint around each block), or use smaller batches and accumulate gradients; "
            f"it frees memory, not time.{how}",
            "",
            "medium" if len(checkpointing) else "high",
            "The bytes were counted; what a change frees is estimated."
            if len(checkpointing)
            else "The bytes were counted.",
            "Whether memory is short at all. Recomputation costs up to another forward pass.",
            (*(Row("layer", name) for name in named), Row("memory", f"{memory.peak_ms:.6g}")),
            bound_bytes=held,
        )
    ]


def allocator(facts: Facts) -> list[Finding]:
    """Calls that take memory from the device within steps, retries, fragmentation."""
    gpu, memory = facts.gpu, facts.figures.memory
    found = []
    if gpu is not None:
        in_calls, calls = gpu.calls_ms["allocator"]
        bound, unsure = gpu.held_ms("allocator"), gpu.is_unsure("allocator")
        if facts.share(bound) >= _WORTH:
            found.append(
                Finding(
                    "allocator",
                    f"The GPU was idle for {time(bound)} a step, {part(facts.share(bound))} of it, while the host took "
                    f"memory from the device or gave it back: {many(calls, 'call')} in the trace, {time(in_calls)} a "
                    "step. Each waits until all work is done.",
                    bound,
                    "A step in its stride takes memory from torch's cache: find what by-passes it (a library's "
                    "workspace, empty_cache(), sizes that change) or what fills it.",
                    "",
                    "low" if unsure else "high",
                    "The calls are in the trace, and the GPU idled while they ran"
                    + (", but the launch of what came next is not in it." if unsure else "."),
                    "Who called: look at the ops around them; a first step allocates more than later ones.",
                    tuple(Row("op", str(op)) for op in gpu.before["op"].head(2)),
                )
            )
    if memory is None:
        return found
    retries, fragmentation = memory.retries or 0, memory.fragmentation
    reserved = memory.reserved_peak_bytes or 0
    idle = int(reserved * fragmentation) if fragmentation is not None else 0
    if retries or (fragmentation is not None and fragmentation > _FRAGMENTED and idle > _LEAST_FRAGMENTS):
        tried = f"{many(retries, 'allocation')} had to be tried again after the cache was emptied; " if retries else ""
        found.append(
            Finding(
                "allocator",
                f"{tried}of {size(reserved)} reserved, {size(idle)} lay unused between blocks at the peak.",
                None,
                "Let segments grow instead of making new ones, and keep shapes the same from step to step.",
                "" if is_amd(facts.recording) else _EXPANDABLE,
                "high" if retries else "medium",
                "The allocator's own counts.",
                "Time that retries cost.",
                (Row("memory", f"{memory.peak_ms:.6g}"),),
                bound_bytes=idle,
            )
        )
    return found


_EXPANDABLE = 'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"  # before torch is imported'


def growth(facts: Facts) -> list[Finding]:
    """Both steps whose allocations were watched left something behind, and nothing freed it."""
    memory = facts.figures.memory
    if memory is None or memory.incomplete or not memory.kept_bytes:
        return []
    kept = memory.kept_bytes
    if kept < max(_LEAST_GROWTH, _GROWS * memory.peak_bytes):
        return []
    owner = f", most of it made by {memory.kept_by}" if memory.kept_by else ""
    return [
        Finding(
            "memory may grow",
            f"Both steps whose allocations were recorded left {size(kept)} each that nothing freed{owner}.",
            None,
            "Two steps do not prove a leak: let perfnb.find_leaks watch more of them. Something may keep tensors, such "
            "as a list of losses with their graphs (keep loss.detach() instead).",
            "",
            "low",
            "Two steps were watched; a cache or a history may still be filling up.",
            "Later steps.",
            (Row("memory", f"{memory.timeline['t_ms'].iloc[-1]:.6g}"),),
            bound_bytes=kept,
        )
    ]
