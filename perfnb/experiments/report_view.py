"""A report on a change as text, Markdown, static HTML and a page: the decision first, then figures and caveats."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from perfnb import quantities as fmt
from perfnb.bench import deciding
from perfnb.bench.ab_view import ab_picture, ab_sentences, too_few_words
from perfnb.bench.quality import DIFFERENCE, SLACK
from perfnb.diff.layers import ProfileDiff
from perfnb.diff.view import comparison_document
from perfnb.draw import escape, tables
from perfnb.draw.as_html import document_html
from perfnb.draw.frame import framed, header, static_page
from perfnb.experiments.decision import SIDES, of_two_ceilings
from perfnb.profile.summary import device_words

if TYPE_CHECKING:
    from perfnb.experiments.ab_test import ABTest

#: A sign next to each decision, so that colour is not needed.
SIGNS = {deciding.ACCEPT: "✓", deciding.REJECT: "✕", deciding.INCONCLUSIVE: "?"}

HEADS = ("", "baseline", "candidate", "change (95 % interval)", "limit")
_LABELS = {
    "median_ms": "median step",
    "p95_ms": "p95 step",
    "throughput_per_s": "throughput",
    "utilisation": "utilisation",
    "peak_memory_bytes": "peak memory",
    "flops": "FLOPs",
    "flops_per_s": "FLOP/s",
    DIFFERENCE: "difference",
}
#: How far apart, in log units, the ratio of the medians and that of the pairs may be without a note.
_APART = 0.01
#: Smallest width that fits the columns.
MIN_WIDTH = 80


def report_line(test: ABTest) -> str:
    """The decision and its reason in one line."""
    return f"{test.decision}: {reason(test)}"


def report_text(test: ABTest, width: int = 100) -> str:
    """The report as text."""
    width = max(MIN_WIDTH, width)
    lines = [f"perfnb · report · {headline(test)}", *escape.wrapped(reason(test), width)]
    lines += escape.wrapped(_change(test), width)
    cells = [HEADS, *rows(test)]
    wide = [max(map(escape.cells, column)) for column in zip(*cells, strict=True)]
    gap = "  " if sum(wide) + 2 * len(wide) - 2 <= width else " "
    lines.append("")
    for name, *values in cells:
        row = [escape.fit(name, wide[0]), *(escape.fit(*cell, ">") for cell in zip(values, wide[1:], strict=True))]
        lines.append(escape.shorten(gap.join(row).rstrip(), width))
    lines.append("")
    for note in filter(None, [*notes(test), place(test)]):
        lines += escape.wrapped(note, width)
    return "\n".join(lines)


def report_html(test: ABTest) -> str:
    """The report as static HTML: reason, table and a histogram of the pairs."""
    body = [[escape.html(cell) for cell in row] for row in rows(test)]
    sides = " vs ".join(escape.plain(side.name, 60) for side in (test.candidate, test.baseline))
    where = f"<br>{escape.html(place(test), 300)}" if place(test) else ""
    return framed(
        f"{header(sides, 'performance report', headline(test), reason(test), _change(test))}"
        f"{tables.table('Baseline and candidate', HEADS, body)}{ab_picture(test)}"
        f'<p class="pf-small">{escape.html_sentence(" ".join(notes(test)))}{where}</p>'
    )


def report_markdown(test: ABTest) -> str:
    """The report as Markdown."""
    lines = [f"**{headline(test)}**: {escape.markdown(reason(test), 2000)}", ""]
    lines += [escape.markdown(_change(test), 2000), ""]
    lines += [f"| {' | '.join(HEADS)} |", "| :--- | ---: | ---: | ---: | ---: |"]
    lines += [f"| {' | '.join(escape.markdown(cell) for cell in row)} |" for row in rows(test)]
    lines += ["", *(f"- {escape.markdown(note, 2000)}" for note in [*notes(test), place(test)] if note)]
    return "\n".join(lines) + "\n"


def report_page(test: ABTest, diff: ProfileDiff | None = None) -> str:
    """The report as one self-contained HTML page, with the layers' differences if known."""
    layers = "" if diff is None else document_html(comparison_document(diff))
    return static_page(f"{test.decision}: {test.change or 'report'}", f"{report_html(test)}{layers}")


def _change(test: ABTest) -> str:
    sides = test.baseline.name, test.candidate.name
    names = "" if sides == SIDES else f" ({' → '.join(escape.plain(side, 60) for side in sides)})"
    return f"Change: {escape.plain(test.change, 600) if test.change else 'not given'}{names}"


def headline(test: ABTest) -> str:
    """``✓ accept``."""
    word = test.decision
    return f"{SIGNS[word]} {word}"


def reason(test: ABTest) -> str:
    """The reason for the decision."""
    cause, about = test.outcome.cause, test.outcome.about
    ratio = f"{fmt.relative(test.ratio, test.ratio_ci)} × the baseline's time"
    if cause == deciding.WORSE:
        return f"The results are not good enough, whatever the speed: {_worse(test)}."
    if cause == deciding.OVER:
        return f"The candidate exceeds a limit: {'; '.join(_against(test, name) for name in about)}."
    if cause == deciding.SLOWER:
        return f"The candidate is slower: it takes {ratio}."
    if cause == deciding.NO_GAIN:
        return f"No gain: both take the same time within {fmt.share(test.comparison.equal_within)} ({ratio})."
    if cause == deciding.CANNOT_TELL and test.ratio_ci is None:
        return too_few_words(test)
    if cause == deciding.CANNOT_TELL:
        return (
            f"No clear result: the candidate takes {ratio}, which shows neither a difference nor equality. "
            "Raise budget_s, or use a quieter machine."
        )
    faster = f"The candidate is faster ({ratio}), but"
    if cause == deciding.UNJUDGED:
        if about:
            return f"{faster} {_unlimited(test)}."
        how = "Pass check or quality." if test.check is None else "Return the loss from both steps, or pass quality."
        return f"{faster} its results could not be checked: {escape.plain(test.quality.said, 200)}. {how}"
    if cause == deciding.UNMEASURED:
        return f"{faster} not all limits could be checked: {'; '.join(_unchecked(test, name) for name in about)}."
    if cause == deciding.UNSURE:
        near = [
            f"{_LABELS[each.name]} {fmt.interval(each.value, each.bounds)} may exceed the limit of "
            f"{fmt.duration(each.limit)}"
            for each in test.resources
            if each.name in about
        ]
        return f"{faster} {' and '.join(near)}: raise budget_s."
    return f"The candidate is faster ({ratio}), and its {_right(test)}."


def rows(test: ABTest) -> list[tuple[str, str, str, str, str]]:
    """A row per metric: its label, both figures, the change, and the limit."""
    losses = {loss.name: loss for loss in test.quality.losses}
    resources = {resource.name: resource for resource in test.resources}
    found: list[tuple[str, str, str, str, str]] = []
    for name, row in test.table.iterrows():
        metric, unit, value = str(name), row["unit"], _figure(str(name), row["unit"], row["candidate"])
        label = _LABELS.get(metric, f"loss: {escape.plain(metric, 30)}")
        limited: Any = losses.get(metric) or resources.get(metric)
        limit = "" if fmt.known(row["limit"]) is None else _figure(metric, unit, row["limit"])
        if limit and limited.exceeded:
            value, limit = _exact(metric, row["candidate"], row), f"{limit} (over)"
        elif (resource := resources.get(metric)) and (resource.value is None or resource.unsure):
            limit += " (?)"
        change = fmt.change(row["ratio"], (row["ci_low"], row["ci_high"]))
        found.append((label, _figure(metric, unit, row["baseline"]), value, change, limit))
    return found


def notes(test: ABTest) -> list[str]:
    """Caveats and explanations of the figures."""
    said = []
    quality = test.quality
    if quality.judged_by == "results" and quality.losses:
        limit = quality.losses[0].limit
        basis = f", which rounding in {quality.dtype} can explain" if quality.dtype else ""
        said.append(
            "The results of both steps after the warm-up were compared; the accepted difference is "
            f"{_number(limit)} times the largest value{basis}."
        )
        if test.outcome.cause == deciding.WORSE:
            said.append("Two training steps need a model each, with equal weights.")
        if test.outcome.cause == deciding.WORSE and math.isfinite(quality.losses[0].candidate):
            said.append("To accept a larger difference, pass limits={'difference': ...} or a quality function.")
    if not quality.losses and test.outcome.cause != deciding.UNJUDGED:
        said.append(f"The results could not be checked: {escape.plain(quality.said, 200)}.")
    if any(loss.limit is None and loss.largest is not None for loss in quality.losses):
        slack = fmt.share(SLACK)
        said.append(f"A loss without a limit may exceed the baseline's by {slack}.")
        if any(loss.limit is None and loss.name in test.outcome.about for loss in quality.losses):
            said.append("Rounding alone can make two training runs diverge by more than that: pass limits.")
    said += ab_sentences(test)[1:]
    table = test.table
    apart = test.candidate.median_ms / test.baseline.median_ms / test.ratio
    if abs(math.log(apart)) > _APART:
        said.append(
            "The change is computed from the pairs; with times this variable, the ratio of the medians differs."
        )
    if table["ci_low"].isna()["p95_ms"]:
        pairs = "59 pairs, and the interval of its ratio 86"
        said.append(f"A p95 needs {pairs if test.blocks is None else 'single turns, not blocks'}.")
    if table["candidate"].notna()["utilisation"]:
        said.append("Utilisation is the step's FLOPs divided by what this machine could have computed in that time.")
    if of_two_ceilings(test.baseline, test.candidate):
        said.append(
            f"The baseline's utilisation is relative to the {test.baseline.ceiling} ceiling, the candidate's to the "
            f"{test.candidate.ceiling} ceiling: compare FLOP/s instead."
        )
    if table["candidate"].isna()["peak_memory_bytes"] and not test.profiles:
        said.append("Memory and utilisation were not measured; profile=True measures them.")
    return said


def place(test: ABTest) -> str:
    """Where it was measured: ``CPU (...), torch 2.13, on host, commit 1234abcd``; empty if unknown."""
    environment = test.environment
    if "torch" not in environment:
        return ""
    parts = [device_words(environment), f"torch {environment['torch']}"]
    if environment.get("host"):
        parts.append(f"on {environment['host']}")
    if environment.get("commit"):
        changed = " with uncommitted changes" if environment.get("uncommitted") else ""
        parts.append(f"commit {str(environment['commit'])[:10]}{changed}")
    return escape.plain(", ".join(parts), 300)


def _worse(test: ABTest) -> str:
    losses = {loss.name: loss for loss in test.quality.losses}
    said = []
    for name in test.outcome.about:
        if name == DIFFERENCE and test.check is not None:
            # A different structure is neither more nor less.
            finite = math.isfinite(losses[name].candidate)
            most = f" (limit {_number(losses[name].limit)})" if finite else ""
            said.append(f"{escape.plain(test.quality.said, 300)}{most}")
        elif fmt.known(losses[name].candidate) is None:
            said.append(f"{escape.plain(name, 40)} is {losses[name].candidate}")
        else:
            said.append(_against(test, name))
    return "; ".join(said)


def _against(test: ABTest, name: str) -> str:
    row = test.table.loc[name]
    value, limit = (_exact(name, row[column], row) for column in ("candidate", "limit"))
    return f"{_LABELS.get(name, escape.plain(name, 40))} {value} (limit {limit})"


def _unlimited(test: ABTest) -> str:
    """Why losses cannot be judged, and what to do."""
    about = test.outcome.about
    limits = ", ".join(f"{escape.plain(name, 40)!r}: ..." for name in about)
    odd = [loss for loss in test.quality.losses if loss.name in about and loss.baseline is not None]
    why = f"{escape.plain(odd[0].name, 40)} of the baseline is {odd[0].baseline}" if odd else ""
    others = [name for name in test.limits if name not in {*test.table.index, *about}]
    other = "".join(f"; limits names {escape.plain(name, 40)!r}, which quality does not return" for name in others)
    return f"{why or 'no limit on quality loss was given'}: pass limits={{{limits}}}{other}"


def _unchecked(test: ABTest, name: str) -> str:
    if name in test.table.index:
        return f"{_LABELS[name]} could not be measured"
    named = ", ".join(escape.plain(loss.name, 40) for loss in test.quality.losses)
    return f"quality returned no loss {escape.plain(name, 40)!r}, only {named}"


def _right(test: ABTest) -> str:
    if test.check is not None:
        return "results agree"
    names = [escape.plain(loss.name, 40) for loss in test.quality.losses]
    return f"losses are within the limits ({', '.join(names)})"


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


def _exact(metric: str, value: Any, row: Any) -> str:
    """A figure, with more digits if it would otherwise look equal to its limit."""
    unit = row["unit"]
    words, candidate, limit = (_figure(metric, unit, each) for each in (value, row["candidate"], row["limit"]))
    return f"{float(value):.9g}{f' {unit}' if unit else ''}" if candidate == limit else words
