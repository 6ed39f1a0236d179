"""An A/B test: the verdict in a sentence, and a histogram of the ratio with the band of equivalence."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from perfnb import quantities as fmt
from perfnb.draw import escape, palette, tables
from perfnb.draw.frame import framed, header
from perfnb.draw.picture import LINE, QUIET, picture_html
from perfnb.profile.timing import noise_sentences
from perfnb.stats.intervals import FEWEST_PAIRS
from perfnb.stats.planning import MOST_NEEDED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from perfnb.bench.paired_times import PairedTimes

_INCHES = (6.4, 2.1)
_COLOURS = {
    "faster": palette.BETTER,
    "slower": palette.WORSE,
    "same": palette.AS_BEFORE,
    "inconclusive": palette.UNDECIDED,
}
_WHO = {
    "worker processes": "Worker processes prefetch batches for one step while the other runs",
    "processes": "Other processes may work for one step while the other runs",
    "threads": "Threads may work for one step while the other runs",
    "something": "A step is slower back to back than interleaved, as if something worked for it while the other runs",
}
#: Ratios beyond this many interquartile ranges are drawn at the edge.
_SHOWN = 6


def ab_line(times: PairedTimes) -> str:
    """The verdict in a few words."""
    return f"{verdict_words(times)}: {fmt.relative(times.ratio, times.ratio_ci)}"


def ab_sentences(times: PairedTimes, check: str | None = None) -> list[str]:
    """The result, what the experiment could detect, and caveats; `check` says how the results differ, or is empty."""
    comparison = times.comparison
    sentences = [f"{ab_line(times)} × the time of {escape.plain(times.a_name, 40)}."]
    if check:
        sentences.insert(0, f"Check: {escape.plain(check, 400)}.")
    elif check is not None:
        sentences.append("The results agree.")
    sentences += _pairs_words(times)
    if times.blocks is None and times.needed > len(times.a_ms) and times.verdict == "inconclusive":
        needed = f"more than {MOST_NEEDED:,}" if times.needed >= MOST_NEEDED else f"{times.needed:,}"
        sentences.append(f"The pilot suggests {needed} pairs, more than the budget allows: raise budget_s.")
    if comparison.correlation:
        sentences.append("Successive pairs are autocorrelated, so the interval is wider.")
    if times.steady is False:
        sentences.append("The steps had not reached a steady state when the warm-up ended.")
    return [*sentences, *noise_sentences(times.noise)]


def too_few_words(times: PairedTimes) -> str:
    """Why there are too few pairs for a verdict, and what to do."""
    pairs, blocks = len(times.a_ms), times.blocks
    few = fmt.counted(pairs, "pair") + ("" if blocks is None else " of blocks")
    take = ""
    if blocks is not None and blocks.round_s is not None:
        take = f"about {fmt.duration(FEWEST_PAIRS * blocks.round_s * 1e3)}"
    if blocks is not None and not blocks.lead:
        needed = f" (6 pairs take {take})" if take else ""
        why = "A fair comparison then needs blocks, and there was no time for any"
        return f"{_WHO[blocks.who]}. {why}{needed}: raise budget_s."
    needed = f"6 are needed, {take}" if take else "6 are needed"
    return f"{few} {'is' if pairs == 1 else 'are'} too few for a verdict ({needed}): raise budget_s."


def _pairs_words(times: PairedTimes) -> list[str]:
    """How many pairs there are, of what, and what they can detect."""
    comparison, blocks = times.comparison, times.blocks
    if blocks is not None and not blocks.lead:
        return [too_few_words(times)]
    said = []
    pairs = fmt.counted(comparison.pairs, "pair")
    if blocks is not None:
        lead, turns = (fmt.counted(count, "turn") for count in (blocks.lead, blocks.turns))
        said.append(
            f"{_WHO[blocks.who]}. So each pair consists of two blocks of {turns} back to back, each after {lead} that "
            "only use up prefetched batches."
        )
        pairs += " of blocks"
    if blocks is not None and comparison.ratio_ci is None:
        return [*said, too_few_words(times)]
    if math.isfinite(comparison.smallest_detectable):
        found = _apart(comparison.smallest_detectable)
        return [*said, f"{pairs} in random order; these detect a difference of {found} in 9 of 10 runs."]
    return [*said, f"{pairs} in random order, too few to detect anything."]


def _apart(difference: float) -> str:
    """A relative difference; as a factor from 2 on."""
    return fmt.share(difference) if difference < 1 else f"a factor of {fmt.significant(1 + difference, trim=True)}"


def verdict_words(times: PairedTimes) -> str:
    """``b is faster than a`` and so on."""
    a, b = (escape.plain(name, 40) for name in (times.a_name, times.b_name))
    band = fmt.share(times.comparison.equal_within)
    words = {
        "faster": f"{b} is faster than {a}",
        "slower": f"{b} is slower than {a}",
        "same": f"{b} and {a} take the same time within {band}",
        "inconclusive": f"inconclusive: neither a difference between {b} and {a} nor equality within {band} was shown",
    }
    return words[times.verdict]


def ab_text(times: PairedTimes, width: int = 100, check: str | None = None) -> str:
    """The experiment as text."""
    lines = [line for sentence in ab_sentences(times, check) for line in escape.wrapped(sentence, width)]
    rows = _rows(times)
    words = max(escape.cells(row[0]) for row in rows)
    return "\n".join([*lines, *(f"{escape.fit(name, words)}  {step:>30}  {least:>8}" for name, step, least in rows)])


def ab_html(times: PairedTimes, check: str | None = None) -> str:
    """The experiment as sentences, a picture of the ratios, and a table."""
    return framed(ab_body(times, check))


def ab_body(times: PairedTimes, check: str | None = None) -> str:
    """The experiment as HTML inside another view."""
    first, *rest = ab_sentences(times, check)
    sides = " vs ".join(escape.plain(name, 40) for name in (times.b_name, times.a_name))
    words = header(sides, "A/B test", first, " ".join(rest)) + ab_picture(times)
    rows = [[tables.name(name), escape.html(step), escape.html(least)] for name, step, least in _rows(times)[1:]]
    return words + tables.table("Step times in the experiment", ["step", "median", "fastest"], rows)


def ab_picture(times: PairedTimes) -> str:
    """A histogram of the ratios; empty for one pair."""
    if len(times.a_ms) < 2:
        return ""
    alt = f"Histogram of the ratios of paired times, with the band of equivalence; {ab_line(times)}"
    return f"<p>{picture_html(functools.partial(_draw, times=times), _INCHES, alt)}</p>"


def _rows(times: PairedTimes) -> list[tuple[str, str, str]]:
    rows = [("step", "median", "fastest")]
    for name, timing in ((times.a_name, times.a), (times.b_name, times.b)):
        median = fmt.interval(timing.median_ms, timing.ci_ms) if timing.steps else fmt.UNKNOWN
        rows.append((escape.plain(name, 40), median, fmt.duration(min(timing.samples_ms, default=None))))
    return rows


def _draw(figure: Figure, times: PairedTimes) -> None:
    comparison = times.comparison
    axes, strip = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    percent = 100 * (times.pairs["ratio"].to_numpy() - 1)
    low, middle, high = np.percentile(percent, [25, 50, 75])
    reach = max(_SHOWN * (high - low) / 2, 150 * comparison.equal_within, 0.1)
    least, most = min(middle - reach, -150 * comparison.equal_within), middle + reach
    edges = (max(least, -100.0), max(most, 150 * comparison.equal_within))  # no step takes less than 0 ms
    band = (100 * (1 / (1 + comparison.equal_within) - 1), 100 * comparison.equal_within)
    colour = _COLOURS[times.verdict]
    for part in (axes, strip):
        part.axvspan(*band, color=LINE, alpha=0.6, linewidth=0)
        part.axvline(0, color=QUIET, linewidth=0.8, linestyle=(0, (4, 3)))
        part.spines[["top", "right"]].set_visible(False)
    bins = min(40, max(10, len(percent) // 4))
    axes.hist(np.clip(percent, *edges), bins=bins, range=edges, color=palette.mark("host_to_device").colour)
    for place, beyond in enumerate(((percent < edges[0]).sum(), (percent > edges[1]).sum())):
        if beyond:  # these are in the outermost bar
            words = f"{beyond:,} beyond →" if place else f"← {beyond:,} beyond"
            where: Any = {"transform": axes.transAxes, "ha": ("left", "right")[place], "va": "top"}
            axes.text(place, 0.84, words, color=QUIET, **where)
    axes.set_ylabel("pairs")
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.margins(y=0.25)  # room for the words above the bars
    axes.text(band[1], 1.0, " the same", transform=axes.get_xaxis_transform(), va="top", color=QUIET)
    if comparison.ratio_ci is not None:
        strip.plot([100 * (bound - 1) for bound in comparison.ratio_ci], [0, 0], color=colour, linewidth=5, alpha=0.5)
    strip.plot(100 * (comparison.ratio - 1), 0, marker="D", color=colour, markersize=6)
    strip.set_yticks([])
    strip.set_ylabel("95 %", rotation=0, ha="right", va="center")
    strip.set_xlim(*edges)
    first, second = (escape.chart(name, 30) for name in (times.a_name, times.b_name))
    strip.set_xlabel(f"time of {second} relative to {first}, %")
