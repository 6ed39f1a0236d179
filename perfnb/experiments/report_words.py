"""A report on a change in words: its reason, its rows, and what to know about it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from perfnb import quantities as fmt
from perfnb.bench.ab_view import ab_sentences, ratio_words, too_few_words
from perfnb.draw import escape
from perfnb.experiments import decision
from perfnb.experiments.report_table import DIFFERENCE, PerformanceFigures, of_two_ceilings
from perfnb.profile.summary import device_words

#: A sign beside each decision, so that colour is not needed.
SIGNS = {decision.ACCEPT: "✓", decision.REJECT: "✕", decision.INCONCLUSIVE: "?"}

HEADS = ("", "baseline", "candidate", "change (95 % interval)", "at most")
_LABELS = {
    "median_ms": "step, median",
    "p95_ms": "step, 95th pct.",
    "throughput_per_s": "throughput",
    "utilisation": "utilisation",
    "peak_memory_bytes": "peak memory",
    "flops": "arithmetic",
    "flops_per_s": "arithmetic rate",
}
_FAR = 2.0
#: How far, on the log scale, the ratio of the medians may be from that of the pairs before the reader is told.
_APART = 0.01


def headline(figures: PerformanceFigures) -> str:
    """``✓ accept``."""
    word = figures.decision.decision
    return f"{SIGNS[word]} {word}"


def reason(figures: PerformanceFigures) -> str:
    """Why it was decided so, in one sentence."""
    cause, about = figures.decision.cause, figures.decision.about
    comparison = figures.ab.comparison
    ratio = f"{ratio_words(comparison.ratio, comparison.ratio_ci)} of the baseline's time"
    if cause == decision.WORSE:
        return f"The answer is worse than accepted, which no gain makes up for: {_worse(figures)}."
    if cause == decision.OVER:
        return f"The candidate exceeds what is accepted: {'; '.join(_against(figures, name) for name in about)}."
    if cause == decision.SLOWER:
        return f"The candidate is slower: it takes {ratio}."
    if cause == decision.NO_GAIN:
        return f"No gain: the two take the same time within {fmt.share(comparison.equal_within)} (ratio {ratio})."
    if cause == decision.CANNOT_TELL and comparison.ratio_ci is None:
        return too_few_words(figures.ab)
    if cause == decision.CANNOT_TELL:
        return (
            f"These pairs cannot tell: the candidate takes {ratio}, neither a difference nor shown to be none; "
            "raise budget_s, or run on a quieter machine."
        )
    faster = f"The candidate is faster ({ratio}), but"
    if cause == decision.UNJUDGED:
        if about:
            return f"{faster} {_unlimited(figures)}."
        return (
            f"{faster} whether its answer is right is unknown, for {escape.plain(figures.quality.said, 200)}: return "
            "the loss from both steps, or give quality."
        )
    if cause == decision.UNMEASURED:
        return f"{faster} not all limits could be checked: {'; '.join(_unchecked(figures, name) for name in about)}."
    if cause == decision.UNSURE:
        return f"{faster} {'; '.join(_near(figures, name) for name in about)}: raise budget_s."
    return f"The candidate is faster ({ratio}), and its answer is {_right(figures)}."


def rows(figures: PerformanceFigures) -> list[tuple[str, str, str, str, str]]:
    """Of each metric: its name, both figures, the change, and the limit."""
    losses = {loss.name: loss for loss in figures.quality.losses}
    resources = {resource.name: resource for resource in figures.resources}
    found: list[tuple[str, str, str, str, str]] = []
    for name, row in figures.table.iterrows():
        metric = str(name)
        if metric in losses:
            label = "difference" if metric == DIFFERENCE else f"loss: {escape.plain(metric, 30)}"
        else:
            label = _LABELS[metric]
        limit = fmt.known(row["limit"])
        most = "" if limit is None else _figure(metric, row["unit"], limit)
        candidate = fmt.known(row["candidate"])
        limited: Any = losses.get(metric) or resources.get(metric)
        over = limit is not None and limited.exceeded
        if over:
            most += " (over)"
        elif metric in resources and (candidate is None or resources[metric].unsure):
            most += " (?)"
        value = _exact(metric, row["unit"], candidate, row) if over else _figure(metric, row["unit"], candidate)
        cells = (_figure(metric, row["unit"], row["baseline"]), value)
        change = change_words(row["ratio"], row["ci_low"], row["ci_high"])
        found.append((label, *cells, change, most))
    return found


def change_words(ratio: Any, low: Any, high: Any) -> str:
    """A ratio as percent more or less: ``−10.0 % [−10.6, −9.4]``; as a factor where it, or a bound, is far from 1."""
    known = fmt.known(ratio)
    if known is None:
        return fmt.UNKNOWN
    bounds = [bound for bound in (fmt.known(low), fmt.known(high)) if bound is not None]
    near = 1 / _FAR <= known <= _FAR and all(_FAR**-2 <= bound <= _FAR**2 for bound in bounds)
    value = _percent(known) if near else fmt.significant(known)
    inside = [_percent(bound) if near else fmt.significant(bound) for bound in bounds]
    return f"{value} {'%' if near else '×'}" + (f" [{', '.join(inside)}]" if len(inside) == 2 else "")


def notes(figures: PerformanceFigures) -> list[str]:
    """What to know about the figures."""
    said = []
    quality = figures.quality
    if quality.judged_by == "results" and quality.losses:
        limit = quality.losses[0].limit
        basis = f", which is what rounding in {quality.dtype} explains" if quality.dtype else ""
        said.append(
            "What the two steps returned after the warm-up was compared: accepted is a difference of "
            f"{_number(limit)} of the largest value{basis}."
        )
        if figures.decision.cause == decision.WORSE:
            said.append("Two training steps need a model each, of equal weights.")
        if figures.decision.cause == decision.WORSE and math.isfinite(quality.losses[0].candidate):
            said.append(
                "If the candidate may differ by more, give limits={'difference': ...} or a function as quality."
            )
    if not quality.losses and figures.decision.cause != decision.UNJUDGED:
        said.append(f"Whether the answer is right is unknown: {escape.plain(quality.said, 200)}.")
    if any(loss.limit is None and loss.largest is not None for loss in quality.losses):
        slack = fmt.share(decision.SLACK)
        said.append(f"Where no limit was given, the baseline's loss and {slack} of it is the most accepted.")
        if any(loss.limit is None and loss.name in figures.decision.about for loss in quality.losses):
            said.append(
                "Rounding alone can lead two trainings apart by more than that: give limits for what is accepted."
            )
    said += ab_sentences(replace(figures.ab, check=None))[1:]
    table = figures.table
    apart = figures.candidate.median_ms / figures.baseline.median_ms / figures.ab.comparison.ratio
    if abs(math.log(apart)) > _APART:
        said.append("The change is that of the pairs; where times vary much, the ratio of the two medians is another.")
    if table["ci_low"].isna()["p95_ms"]:
        needs = (
            "59 pairs, and the interval of its ratio 86" if figures.ab.blocks is None else "single turns, not blocks"
        )
        said.append(f"The 95th percentile needs {needs}.")
    if table["candidate"].notna()["utilisation"]:
        said.append("Utilisation is the step's arithmetic by what this machine could have done meanwhile.")
    if of_two_ceilings(figures.baseline, figures.candidate):
        said.append(
            f"The baseline's utilisation is of the ceiling in {figures.baseline.ceiling}, the candidate's of that in "
            f"{figures.candidate.ceiling}: the two do not compare, but FLOP/s do."
        )
    if table["candidate"].isna()["peak_memory_bytes"] and not figures.options.get("profile", True):
        said.append("Memory and utilisation were not measured (profile=False).")
    return said


def place(figures: PerformanceFigures) -> str:
    """Where it was measured: ``CPU (...), torch 2.13, on host, commit 1234abcd``; empty if unknown."""
    environment = figures.environment
    if "torch" not in environment:
        return ""
    parts = [device_words(environment), f"torch {environment['torch']}"]
    if environment.get("host"):
        parts.append(f"on {environment['host']}")
    if environment.get("commit"):
        changed = " with changes" if environment.get("uncommitted") else ""
        parts.append(f"commit {str(environment['commit'])[:10]}{changed}")
    return escape.plain(", ".join(parts), 300)


def _worse(figures: PerformanceFigures) -> str:
    losses = {loss.name: loss for loss in figures.quality.losses}
    said = []
    for name in figures.decision.about:
        if name == DIFFERENCE and figures.quality.judged_by == "results":
            # Of a result of another form there is no more or less.
            finite = math.isfinite(losses[name].candidate)
            most = f", at most {_number(losses[name].limit)} is accepted" if finite else ""
            said.append(f"{escape.plain(figures.quality.said, 300)}{most}")
        elif fmt.known(losses[name].candidate) is None:
            said.append(f"{escape.plain(name, 40)} is {losses[name].candidate}")
        else:
            said.append(_against(figures, name))
    return "; ".join(said)


def _against(figures: PerformanceFigures, name: str) -> str:
    row = figures.table.loc[name]
    value, limit = (_exact(name, row["unit"], row[column], row) for column in ("candidate", "limit"))
    return f"{_LABELS.get(name, escape.plain(name, 40))} {value}, at most {limit} is accepted"


def _unlimited(figures: PerformanceFigures) -> str:
    """Which losses nobody can judge, and what to do about it."""
    about = figures.decision.about
    limits = ", ".join(f"{escape.plain(name, 40)!r}: ..." for name in about)
    odd = [loss for loss in figures.quality.losses if loss.name in about and loss.baseline is not None]
    why = (
        f"{escape.plain(odd[0].name, 40)} of the baseline is {odd[0].baseline}"
        if odd
        else ("nobody said which loss is accepted")
    )
    named = {*figures.table.index, *about}
    other = "".join(
        f"; limits names {escape.plain(name, 40)!r}, which quality does not give"
        for name in figures.limits
        if name not in named
    )
    return f"{why}: give limits={{{limits}}}{other}"


def _near(figures: PerformanceFigures, name: str) -> str:
    resource = next(one for one in figures.resources if one.name == name)
    value = fmt.interval(resource.value, resource.bounds)
    return f"{_LABELS[name]} {value} may or may not be over {fmt.duration(resource.limit)}"


def _unchecked(figures: PerformanceFigures, name: str) -> str:
    if name in figures.table.index:
        return f"{_LABELS[name]} could not be measured"
    named = ", ".join(escape.plain(loss.name, 40) for loss in figures.quality.losses)
    return f"quality gave no loss {escape.plain(name, 40)!r}, only {named}"


def _right(figures: PerformanceFigures) -> str:
    if figures.quality.judged_by == "results":
        return "the same"
    names = [escape.plain(loss.name, 40) for loss in figures.quality.losses]
    return f"as good as accepted ({', '.join(names)})"


def _figure(metric: str, unit: Any, value: Any) -> str:
    if metric in ("median_ms", "p95_ms"):
        return fmt.duration(value)
    if metric == "throughput_per_s":
        return fmt.rate(value, str(unit).removesuffix("/s"))
    if metric == "flops_per_s":
        return f"{fmt.flops(value)}/s" if fmt.known(value) is not None else fmt.UNKNOWN
    formats = {"utilisation": fmt.share, "peak_memory_bytes": fmt.size, "flops": fmt.flops}
    return formats[metric](value) if metric in formats else _number(value)


def _number(value: Any) -> str:
    known = fmt.known(value)
    small = known is not None and 0 < abs(known) < 1e-4
    return f"{known:.1e}" if small else fmt.significant(known, trim=True)


def _exact(metric: str, unit: Any, value: Any, row: Any) -> str:
    """A figure, with more digits where three would make it look like its limit."""
    words = _figure(metric, unit, value)
    same = _figure(metric, unit, row["candidate"]) == _figure(metric, unit, row["limit"])
    return f"{float(value):.9g}{f' {unit}' if unit else ''}" if same else words


def _percent(ratio: float) -> str:
    percent = round(100 * (ratio - 1), 1)
    return f"{percent:+.1f}".replace("-", "−") if percent else "0.0"
