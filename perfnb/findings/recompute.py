"""Recomputation: forward work that checkpointing does again in the backward pass, to save memory."""

from __future__ import annotations

from perfnb.findings.facts import Facts
from perfnb.findings.finding import Finding, Row, part, time

_WORTH = 0.05


def recomputation(facts: Facts) -> list[Finding]:
    """What the backward pass computes again is the price of checkpointing, known to the millisecond."""
    if facts.gpu is not None:
        return []
    again = (facts.attribution.cells["direction"] == "recompute").to_numpy()
    bound = facts.per_step(float(facts.cells_ns[again].sum()))
    if facts.share(bound) < _WORTH:
        return []
    names = facts.owners[again]
    layers = [name for name in dict.fromkeys(names.tolist()) if name and not name.startswith("(")]
    heaviest = [str(name) for name in facts.layers_ms.reindex(layers).sort_values(ascending=False).index[:3]]
    return [
        Finding(
            "recomputation",
            f"The backward pass computes forward work again for {time(bound)}, {part(facts.share(bound))} of the step.",
            bound,
            "Checkpoint fewer blocks, those with most memory for their time, or none where memory is enough: call them "
            "without torch.utils.checkpoint.checkpoint.",
            "",
            "high",
            "Calls of layers within the backward pass were traced.",
            "Whether memory is enough without it: perfnb.estimate_memory tells before anything runs.",
            tuple(Row("layer", name) for name in heaviest),
        )
    ]
