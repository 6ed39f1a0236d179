"""Try levers on a loop's own steps: which levers are allowed, the order of the blocks of steps, and the verdicts.

All functions here are pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np

from perfnb import quantities as fmt
from perfnb.arguments import shown
from perfnb.bench.design import BLOCK_MS, LONGEST_BLOCK, SEED
from perfnb.remedies.verdicts import HOPELESS, LeverTrial, as_its_interval, fewest_rounds
from perfnb.stats.comparisons import compare_with_first
from perfnb.stats.planning import STURDY_PAIRS

#: The levers that can be switched between two steps, do not lower precision, and do not have to call a step again.
IN_LOOPS = (
    *("threads", "compile", "channels_last", "fused_optimizer", "foreach_optimizer", "gc_freeze", "cudnn_benchmark"),
    "loader_workers",
)
UNCHECKED_HERE = "values unchecked here: check with try_levers"
#: The number of steps after a switch that do not count, and the minimum number of steps in a block that do.
LEAD, _COUNTED = 2, 3
#: The number of pairs of blocks for each lever, and the number of pairs after which a lever may be given up as
#: hopeless.
PAIRS, _SURE = STURDY_PAIRS, 2


def levers_for_loops(wanted: Any) -> list[str] | None:
    """Return the levers to try on a loop's own steps; the list is empty if the profile should choose them.

    The result is ``None`` if no levers are requested.

    Raises
    ------
    ValueError
        If a lever is not allowed in loops.
    """
    if wanted is False:
        return None
    if wanted is True or (isinstance(wanted, str) and wanted == "auto"):
        return []
    names = [wanted] if isinstance(wanted, str) else list(wanted) if isinstance(wanted, Iterable) else []
    if names and all(name in IN_LOOPS for name in names):
        return list(dict.fromkeys(names))
    raise ValueError(
        f"a running loop allows only these levers: {', '.join(IN_LOOPS)}; not {shown(wanted)}. Other levers lower "
        "precision or require a step that can be called again: use perfnb.try_levers for these."
    )


@dataclass
class BlockTrial(LeverTrial):
    """A trial of a lever in pairs of neighbouring blocks, one with the lever on and one with it off.

    Attributes
    ----------
    off_ms, on_ms : list of float
        The mean step times in the two blocks of each complete pair.
    lead, counted : int
        The number of steps in a block that do not count, and the number that count.
    """

    lead: int = LEAD
    counted: int = _COUNTED
    family: str = ""
    off_ms: list[float] = field(default_factory=list)
    on_ms: list[float] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """The total number of steps in all of the lever's blocks."""
        return 2 * PAIRS * (self.lead + self.counted)

    @property
    def hopeless(self) -> bool:
        """Whether the step is so slow with the lever on that trying more blocks is not worthwhile."""
        return len(self.on_ms) >= _SURE and min(self.on_ms) > HOPELESS * min(self.off_ms)

    def add(self, took_ms: Mapping[bool, float]) -> None:
        """Add a complete pair of blocks."""
        self.off_ms.append(took_ms[False])
        self.on_ms.append(took_ms[True])

    def orders(self, seed: int = SEED) -> Iterator[tuple[bool, bool]]:
        """For each remaining pair, return whether the lever is on in the first and in the second block."""
        random = Random(f"{self.lever} {seed}")
        while len(self.on_ms) < PAIRS and not self.hopeless:
            on_first = random.random() < 0.5
            yield on_first, not on_first


def counted_steps(step_ms: float, lead: int = LEAD) -> int:
    """Return the number of counted steps in a block, given the step time and the number of uncounted steps."""
    return max(_COUNTED, lead, min(LONGEST_BLOCK, math.ceil(BLOCK_MS / max(step_ms, 1e-6))))


def judged(trials: Sequence[BlockTrial]) -> list[BlockTrial]:
    """Return the trials with the verdicts from their pairs of blocks so far.

    Levers to keep are faster and have no `why_not`. A lever gets no verdict if it has too few pairs, given the number
    of levers.
    """
    trials = [replace(one) for one in trials]
    possible = [one for one in trials if not one.why_not]
    fewest = fewest_rounds(len(possible))
    enough = [one for one in possible if len(one.on_ms) >= fewest]
    times = [np.array([one.off_ms, one.on_ms]) for one in enough]
    for one, (off_ms, on_ms), comparison in zip(enough, times, compare_with_first(*times), strict=True):
        one.timed(comparison, off_ms, on_ms)
        one.verdict = as_its_interval(comparison.verdict, comparison.ratio_ci)
    for one in possible:
        better = [other.lever for other in enough if one.family == other.family != "" and _before(other, one)]
        if one.hopeless:
            one.why_not = f"too slow to keep trying: it takes more than {HOPELESS:.0f} times as long"
        elif len(one.on_ms) < fewest:
            one.why_not = f"too few pairs of blocks before the loop ended: {len(one.on_ms)}, but {fewest} are needed"
        elif one.verdict == "faster" and better:
            one.why_not = f"only one lever of this kind can be on, and {better[0]} is faster"
    return trials


def _before(one: BlockTrial, other: BlockTrial) -> bool:
    return one.verdict == "faster" and one is not other and (one.ratio or 1.0) < (other.ratio or 1.0)


def answer(trials: Sequence[BlockTrial]) -> str:
    """Summarise the trials from `judged` in one line."""
    parts = []
    for one in trials:
        if one.helps("time") and one.ratio is not None and one.ratio_ci is not None:
            less, ends = 1 - one.ratio, (1 - one.ratio_ci[1], 1 - one.ratio_ci[0])
            parts.append(f"{one.lever} is faster by {fmt.with_interval(fmt.share(less), less, ends)}")
    if not any(one.on_ms for one in trials):
        reasons = [one.why_not for one in trials]
        return f"no levers were tried: {reasons[0] if reasons else 'none applies to this loop'}"
    if not parts:
        return "none of the levers was proven to make the loop faster"
    return f"{', '.join(parts)}; {UNCHECKED_HERE}"
