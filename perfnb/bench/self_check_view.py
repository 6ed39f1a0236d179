"""How small a difference this machine can detect, in words and as a small table."""

from __future__ import annotations

from typing import Any

from perfnb import quantities as fmt
from perfnb.bench.ab_view import ab_body
from perfnb.draw import escape, tables
from perfnb.draw.frame import framed, header
from perfnb.profile.noise import noise_facts

#: Lengths of a test for which the smallest detectable difference is shown.
SECONDS = (10, 60)


_FALSE_ALARM = "a false positive, as happens in 1 of 20 runs; if it happens again, do not trust comparisons here"
_MEANING = {
    "same": "as expected",
    "inconclusive": "because the machine is too noisy at the moment",
    "faster": _FALSE_ALARM,
    "slower": _FALSE_ALARM,
}


def selfcheck_sentences(check: Any) -> list[str]:
    """The results, most important first."""
    test = check.test
    timing, count = test.a, len(test.pairs)
    sentences = [
        f"A step compared with itself: {test.verdict}, {_MEANING[test.verdict]}.",
        f"The ratio is {fmt.relative(test.ratio, test.ratio_ci)} over {fmt.counted(count, 'pair')} of steps that take "
        f"{fmt.duration(timing.median_ms)}.",
        f"Noise floor: half of all single pairs differ by more than {fmt.share(check.noise_floor)}.",
    ]
    if check.outliers.count:
        sentences.append(f"{check.outliers}.")
    noise = noise_facts(timing.noise, 2 * test.turns * sum(timing.samples_ms))
    switches = timing.noise.get("involuntary_switches")
    if switches:
        noise.append(f"the system preempted the process {switches:,} times in {2 * test.turns * count:,} steps")
    told = [f"{fmt.capital(fact)}." for fact in noise]
    return [*sentences, *(told or ["No disturbance was detected."])]


def _rows(check: Any) -> list[tuple[str, str]]:
    return [(f"{seconds} s", fmt.share(check.detectable_in(seconds))) for seconds in SECONDS]


def selfcheck_text(check: Any, width: int = 100) -> str:
    """The check as text."""
    lines = [line for sentence in selfcheck_sentences(check) for line in escape.wrapped(sentence, width)]
    found = ", ".join(f"{least} in {seconds}" for seconds, least in _rows(check))
    return "\n".join([*lines, f"Smallest difference that a test of this step detects in 9 of 10 runs: {found}."])


def selfcheck_html(check: Any) -> str:
    """The check as sentences, a table, and the experiment behind it."""
    first, more, *rest = selfcheck_sentences(check)
    words = header("The machine", "self-check", first, more, " ".join(rest))
    rows = [(escape.html(seconds), escape.html(least)) for seconds, least in _rows(check)]
    caption = "Smallest difference that a test of this step detects in 9 of 10 runs"
    details = f"<details><summary>The experiment</summary>{ab_body(check.test._figures)}</details>"
    return framed(f"{words}{tables.table(caption, ['length of the test', 'difference'], rows)}{details}")
