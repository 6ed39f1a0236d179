"""Describe two steps that were timed in pairs, and draw the pairs for a document."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from perfnb import quantities as fmt
from perfnb.draw.document import Axis, State, Strip
from perfnb.draw.palette import BLUE, Mark
from perfnb.profile.timing import noise_sentences
from perfnb.stats.intervals import FEWEST_PAIRS
from perfnb.stats.planning import MOST_NEEDED

if TYPE_CHECKING:
    from perfnb.bench.paired_times import PairedTimes

#: The confidence in a result that is based on pairs.
STATES: dict[str, State] = {"faster": "good", "slower": "bad", "same": "none", "inconclusive": "open"}
_WHO = {
    "worker processes": "Worker processes prefetch batches for one step while the other runs",
    "processes": "Other processes may work for one step while the other runs",
    "threads": "Threads may work for one step while the other runs",
    "something": "A step is slower back to back than interleaved, as if something worked for it while the other runs",
}
#: The largest detectable difference that is reported as a number.
_MOST = 9.0


def effect_words(times: PairedTimes) -> str:
    """Describe the effect on the step time: ``0.900 × [0.895, 0.905], 10 % less time``."""
    ratio = times.ratio
    effect = fmt.with_interval(fmt.ratio(ratio), ratio, times.ratio_ci)
    if times.verdict not in ("faster", "slower"):
        return effect
    return f"{effect}, {fmt.share(abs(ratio - 1))} {'less' if ratio < 1 else 'more'} time"


def pairs_answer(times: PairedTimes) -> tuple[State, str, str]:
    """Return the answer about the candidate's step time: a state, a sentence, and a recommendation."""
    state, within = STATES[times.verdict], fmt.share(times.comparison.equal_within)
    if times.ratio_ci is None:
        return (state, *_too_few(times))
    if times.verdict == "same":
        return state, f"baseline and candidate take the same time within {within}: {effect_words(times)}", ""
    if times.verdict == "inconclusive":
        sentence = f"neither a difference nor equality within {within} was shown: {effect_words(times)}"
        return state, sentence, "Raise budget_s, or use a quieter machine."
    return state, f"the candidate is {times.verdict}: {effect_words(times)}", ""


def _too_few(times: PairedTimes) -> tuple[str, str]:
    blocks, take = times.blocks, ""
    few = f"{len(times.a_ms)} of the {FEWEST_PAIRS} that an interval requires"
    if blocks is not None and blocks.round_s is not None:
        take = f": {FEWEST_PAIRS} pairs take about {fmt.duration(FEWEST_PAIRS * blocks.round_s * 1e3)}"
    if blocks is not None and not blocks.lead:
        few = "a fair comparison needs blocks, and there was no time for any"
    return f"too few pairs for a verdict: {few}", f"Raise budget_s{take}."


def pairs_words(times: PairedTimes) -> str:
    """Describe the number of pairs, and the smallest difference that they can detect."""
    pairs = f"{fmt.counted(len(times.a_ms), 'pair')}{'' if times.blocks is None else ' of blocks'} in random order"
    least = times.smallest_detectable
    if times.ratio_ci is None or not math.isfinite(least):
        return pairs
    if least <= _MOST:
        return f"{pairs}, which detect a difference of {fmt.share(least)} in 9 of 10 runs"
    return f"{pairs}, which vary too much to detect even a factor of {1 + _MOST:.0f}"


def pairs_strip(times: PairedTimes) -> Strip:
    """Return a strip with one dot per pair."""
    mark = Mark("pair" if times.blocks is None else "pair of blocks", BLUE, "█", "solid")
    axis = Axis(f"time of {times.b_name} divided by that of {times.a_name}", "ratio")
    return Strip("Every pair", axis, ((mark, times.pairs["ratio"].tolist()),), ("the same", 1.0), "pairs")


def pairs_notes(times: PairedTimes) -> Iterator[str]:
    """Yield notes on how the pairs were measured, and on possible disturbances."""
    blocks = times.blocks
    if blocks is not None:
        yield f"{_WHO[blocks.who]}."
        if blocks.lead:
            lead, turns = (fmt.counted(count, "turn") for count in (blocks.lead, blocks.turns))
            pair = f"Each pair is therefore two blocks of {turns} back to back"
            yield f"{pair}, each after {lead} that only use up prefetched batches."
    if blocks is None and times.needed > len(times.a_ms) and times.verdict == "inconclusive":
        needed = f"more than {MOST_NEEDED:,}" if times.needed >= MOST_NEEDED else f"{times.needed:,}"
        yield f"The pilot suggests {needed} pairs, which is more than the budget allows."
    if times.comparison.correlation:
        yield "Successive pairs are autocorrelated, so the interval is wider."
    if times.steady is False:
        yield "The steps had not reached a steady state when the warm-up ended."
    yield from noise_sentences(times.noise)
