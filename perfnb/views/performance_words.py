"""A report on a change in words: its reason, its rows, and what to know about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfnb.analysis import decision
from perfnb.analysis.performance_report import DIFFERENCE, PerformanceFigures
from perfnb.analysis.summary import device_words
from perfnb.views import escape
from perfnb.views import format as fmt
from perfnb.views.ab import ab_sentences, ratio_words

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
}
_FAR = 2.0


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
        pairs = "1 pair is" if comparison.pairs == 1 else f"{comparison.pairs:,} pairs are"
        return f"{pairs} too few to tell anything (6 are needed): raise budget_s."
    if cause == decision.CANNOT_TELL:
        return (
            f"These pairs cannot tell: the candidate takes {ratio}, neither a difference nor shown to be none; "
            "raise budget_s, or run on a quieter machine."
        )
    faster = f"The candidate is faster ({ratio}), but"
    if cause == decision.UNJUDGED:
        if about:
            limits = ", ".join(f"{escape.plain(name, 40)!r}: ..." for name in about)
            return f"{faster} nobody said which loss is accepted: give limits={{{limits}}}."
        return (
            f"{faster} whether its answer is right is unknown, for {escape.plain(figures.quality.said, 200)}: return "
            "the loss from both steps, or give quality."
        )
    if cause == decision.UNMEASURED:
        return f"{faster} not all limits could be checked: {'; '.join(_unchecked(figures, name) for name in about)}."
    return f"The candidate is faster ({ratio}), and its answer is {_right(figures)}."


def rows(figures: PerformanceFigures) -> list[tuple[str, str, str, str, str]]:
    """Of each metric: its name, both figures, the change, and the limit."""
    losses = {loss.name for loss in figures.quality.losses}
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
        if limit is not None and not (candidate is not None and candidate <= limit):
            most += " (over)" if candidate is not None or metric in losses else " (?)"
        over = candidate is not None and limit is not None and candidate > limit
        value = _exact(metric, row["unit"], candidate, row) if over else _figure(metric, row["unit"], candidate)
        cells = (_figure(metric, row["unit"], row["baseline"]), value)
        change = change_words(row["ratio"], row["ci_low"], row["ci_high"])
        found.append((label, *cells, change, most))
    return found


def change_words(ratio: Any, low: Any, high: Any) -> str:
    """A ratio as percent more or less: ``−10.0 % [−10.6, −9.4]``; as a factor where it is far from 1."""
    known = fmt.known(ratio)
    if known is None:
        return fmt.UNKNOWN
    bounds = [fmt.known(low), fmt.known(high)]
    near = 1 / _FAR <= known <= _FAR
    value = _percent(known) if near else fmt.significant(known)
    inside = [_percent(bound) if near else fmt.significant(bound) for bound in bounds if bound is not None]
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
            said.append(
                "If the candidate may differ by more, give limits={'difference': ...} or a function as quality."
            )
    if any(loss.limit is None and loss.largest is not None for loss in quality.losses):
        slack = fmt.share(decision.SLACK)
        said.append(f"Where no limit was given, the baseline's loss and {slack} of it is the most accepted.")
        if any(loss.limit is None and loss.name in figures.decision.about for loss in quality.losses):
            said.append(
                "Rounding alone can lead two trainings apart by more than that: give limits for what is accepted."
            )
    said += ab_sentences(replace(figures.ab, check=None))[1:]
    table = figures.table
    if table["ci_low"].isna()["p95_ms"]:
        said.append("The 95th percentile needs 59 pairs, and the interval of its ratio 86.")
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
            most = _number(losses[name].limit)
            said.append(f"{escape.plain(figures.quality.said, 300)}, at most {most} is accepted")
        elif fmt.known(losses[name].candidate) is None:
            said.append(f"{escape.plain(name, 40)} is {losses[name].candidate}")
        else:
            said.append(_against(figures, name))
    return "; ".join(said)


def _against(figures: PerformanceFigures, name: str) -> str:
    row = figures.table.loc[name]
    value, limit = (_exact(name, row["unit"], row[column], row) for column in ("candidate", "limit"))
    return f"{_LABELS.get(name, escape.plain(name, 40))} {value}, at most {limit} is accepted"


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
