"""Create an A/B test's document, with the verdict or decision, the effects, the pairs, and both sides' figures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.bench import acceptance
from perfnb.bench.pairs_view import effect_words, pairs_answer, pairs_notes, pairs_strip, pairs_words
from perfnb.bench.quality import DIFFERENCE, SLACK
from perfnb.draw.document import (
    Cell,
    Column,
    Document,
    Effect,
    Effects,
    Interval,
    State,
    Table,
    Unit,
    Value,
    Verdict,
    words,
)
from perfnb.experiments.compared_figures import SIDES, of_two_ceilings
from perfnb.profile.summary import device_words

if TYPE_CHECKING:
    from perfnb.experiments.ab_test import ABTest

_STATES: dict[str, State] = {acceptance.ACCEPT: "good", acceptance.REJECT: "bad", acceptance.INCONCLUSIVE: "open"}
#: The label of each metric and its display unit. Losses have neither.
_METRICS: dict[str, tuple[str, Unit]] = {
    "median_ms": ("median step", "ms"),
    "p95_ms": ("p95 step", "ms"),
    "throughput_per_s": ("throughput", "samples/s"),
    "flops_per_s": ("FLOP/s", "flops/s"),
    "utilisation": ("utilisation", "share"),
    "peak_memory_bytes": ("peak memory", "bytes"),
    "flops": ("FLOPs", "flops"),
}
#: The metrics that should be small, like losses. The others follow from the step time.
_COSTS = ("median_ms", "p95_ms", "peak_memory_bytes", "flops")
_TIMED = ("median_ms", "p95_ms", "throughput_per_s", "flops_per_s", "utilisation")
#: The largest difference, in log units, between the ratio of the medians and the ratio from the pairs that is not
#: mentioned.
_APART = 0.01


def ab_document(test: ABTest, tabs: tuple[Document, ...] = ()) -> Document:
    """Return a document that starts with the answer. With fewer than 6 pairs, it does not show an effect on time."""
    state, sentence, advice = pairs_answer(test)
    if test.judged:
        sentence, advice = reason(test)
        state, sentence = _STATES[test.decision], f"{fmt.capital(test.decision)}: {sentence}"
    names = (test.a_name, test.b_name)
    sides = tuple(f"{side}: {name}" for side, name in zip(SIDES, names, strict=True) if names != SIDES)
    strip, (effects, table) = pairs_strip(test), _figures(test)
    few = test.ratio_ci is None and not test.judged
    return Document(
        "A/B test",
        test.change or f"{test.b_name} against {test.a_name}",
        device_words(test.environment) if test.environment else "",
        Verdict(state, fmt.capital(sentence), next=advice),
        facts=(*sides, pairs_words(test)),
        sections=(strip,) if few else (effects, strip, table),
        notes=tuple(_notes(test)),
        tabs=tabs,
    )


def reason(test: ABTest) -> tuple[str, str]:
    """Return the reason for the decision, without a capital letter or a full stop, and a recommendation."""
    cause, about = test.outcome.cause, test.outcome.about
    if cause in (acceptance.CANNOT_TELL, acceptance.SLOWER, acceptance.NO_GAIN):
        return pairs_answer(test)[1:]
    if cause == acceptance.WORSE:
        return f"the results are not good enough, regardless of speed: {_worse(test)}", ""
    if cause == acceptance.OVER:
        return f"the candidate exceeds a limit: {'; '.join(_against(test, name) for name in about)}", ""
    faster = f"the candidate is faster ({effect_words(test)})"
    if cause == acceptance.UNJUDGED and about:
        limits = ", ".join(f"{name!r}: ..." for name in about)
        return f"{faster}, but {_unlimited(test)}", f"Pass limits={{{limits}}}."
    if cause == acceptance.UNJUDGED:
        how = "Pass check or quality." if test.check is None else "Return the loss from both steps, or pass quality."
        return f"{faster}, but its results could not be checked: {test.quality.said}", how
    if cause == acceptance.UNMEASURED:
        unchecked = "; ".join(_unchecked(test, name) for name in about)
        return f"{faster}, but not all limits could be checked: {unchecked}", ""
    if cause == acceptance.UNSURE:
        near = [
            f"{_METRICS[each.name][0]} {fmt.interval(each.value, each.bounds)} may exceed the limit of "
            f"{fmt.duration(each.limit)}"
            for each in test.resources
            if each.name in about
        ]
        return f"{faster}, but {' and '.join(near)}", "Raise budget_s."
    if test.check is not None:
        return f"{faster}, and its results agree", ""
    losses = ", ".join(loss.name for loss in test.quality.losses)
    return f"{faster}, and its losses are within the limits ({losses})", ""


def _figures(test: ABTest) -> tuple[Effects, Table]:
    """Return the effects on the metrics that should be small, and a table of all metrics."""
    limited: dict[str, Any] = {loss.name: loss for loss in test.quality.losses}
    limited |= {resource.name: resource for resource in test.resources}
    effects, rows, details = list[Effect](), list[tuple[Cell, ...]](), list[str]()
    for name, row in test.table.iterrows():
        metric, limit = str(name), fmt.known(row["limit"])
        label, unit = _label(metric), _unit(metric, row)
        if row[list(SIDES)].isna().all() and limit is None:
            continue
        # If there are too few pairs, times do not have a ratio.
        ratio = None if test.ratio_ci is None and metric in _TIMED else fmt.known(row["ratio"])
        bounds, is_step = fmt.known_bounds((row["ci_low"], row["ci_high"])), metric == "median_ms"
        if ratio is not None and ratio > 0 and (metric not in _METRICS or metric in _COSTS):
            words = [test.verdict] if is_step else []
            if (thing := limited.get(metric)) is not None:
                words.append(f"{'over' if thing.exceeded else 'near' if thing.unsure else 'within'} its limit")
            effects.append(Effect("step time" if is_step else label, ratio, bounds, ", ".join(words)))
        sides: list[Cell] = [Value(fmt.known(row[side]), unit) for side in SIDES]
        if is_step:
            sides = [Value(one.timing.median_ms, "ms", one.timing.ci_ms) for one in (test.baseline, test.candidate)]
        elif metric not in _METRICS:  # a loss that is not finite is displayed unchanged
            losses = [row[side] for side in SIDES]
            sides = ["" if pd.isna(loss) else Value(loss) if math.isfinite(loss) else str(loss) for loss in losses]
        rows.append((label, *sides, _value(ratio, "ratio", bounds), _value(limit, unit)))
        details.append(_apart(test) if is_step and ratio is not None else "")
    columns = (
        Column("figure"),
        *(Column(side, "number") for side in SIDES),
        Column("ratio", "number", help="candidate divided by baseline; for times, the ratio from the pairs"),
        Column("limit", "number", priority=1),
    )
    same_within = test.comparison.equal_within
    return (
        Effects("Candidate against baseline", tuple(effects), same_within, "figure"),
        Table("Baseline and candidate", columns, rows, details=details, noun="figure", key="figures"),
    )


def _value(number: float | None, unit: Unit, bounds: Interval | None = None) -> Cell:
    return "" if number is None else Value(number, unit, bounds)


def _label(metric: str) -> str:
    if metric in _METRICS:
        return _METRICS[metric][0]
    return "difference" if metric == DIFFERENCE else f"loss: {metric}"


def _unit(metric: str, row: Any) -> Unit:
    return str(row["unit"]) if metric == "throughput_per_s" else _METRICS.get(metric, ("", "number"))[1]


def _apart(test: ABTest) -> str:
    """Return a remark if the ratio of the medians differs from the ratio that the pairs show."""
    medians = test.candidate.median_ms / test.baseline.median_ms
    if abs(math.log(medians / test.ratio)) <= _APART:
        return ""
    return f"The ratio is from the pairs. Times vary so much that the medians alone would give {fmt.ratio(medians)}."


def _notes(test: ABTest) -> Iterator[str]:
    quality, cause = test.quality, test.outcome.cause
    if quality.judged_by == "results" and quality.losses:
        limit = fmt.significant(quality.losses[0].limit, trim=True)
        basis = f", which rounding in {quality.dtype} can explain" if quality.dtype else ""
        yield (
            "The results of both steps after the warm-up were compared. The accepted difference is "
            f"{limit} times the largest value{basis}."
        )
        if cause == acceptance.WORSE:
            yield "Two training steps need separate models with equal weights."
            yield "To accept a larger difference, pass limits={'difference': ...} or a quality function."
    if test.check == "" and cause != acceptance.GAIN:
        yield "The results agree."
    if test.judged and not quality.losses and cause != acceptance.UNJUDGED:
        yield f"The results could not be checked: {quality.said}."
    if free := [loss for loss in quality.losses if loss.limit is None and loss.largest is not None]:
        yield f"A loss without a limit may exceed the baseline's by {fmt.share(SLACK)}."
        if any(loss.name in test.outcome.about for loss in free):
            yield "Rounding alone can make two training runs diverge by more than that. To allow for this, pass limits."
    yield from pairs_notes(test)
    if of_two_ceilings(test.baseline, test.candidate):
        yield (
            f"Utilisation is relative to the {test.baseline.ceiling} ceiling for the baseline, and to the "
            f"{test.candidate.ceiling} ceiling for the candidate. Compare FLOP/s instead."
        )
    if "torch" in test.environment:
        commit = str(test.environment.get("commit") or "")[:10]
        changed = " with uncommitted changes" if test.environment.get("uncommitted") else ""
        host = f" on {test.environment['host']}" if test.environment.get("host") else ""
        yield f"Measured with torch {test.environment['torch']}{host}{f', commit {commit}{changed}' if commit else ''}."


def _worse(test: ABTest) -> str:
    worse = []
    for loss in (loss for loss in test.quality.losses if loss.name in test.outcome.about):
        if loss.name == DIFFERENCE and test.check is not None:
            # A different structure cannot be expressed as a ratio.
            most = f" (limit {fmt.significant(loss.limit, trim=True)})" if math.isfinite(loss.candidate) else ""
            worse.append(f"{test.quality.said}{most}")
        else:
            known = fmt.known(loss.candidate) is not None
            worse.append(_against(test, loss.name) if known else f"{loss.name} is {loss.candidate}")
    return "; ".join(worse)


def _against(test: ABTest, name: str) -> str:
    row = test.table.loc[name]
    value, limit = (_exact(name, row[column], row) for column in ("candidate", "limit"))
    return f"{_label(name).removeprefix('loss: ')} {value} (limit {limit})"


def _unlimited(test: ABTest) -> str:
    """Explain why losses cannot be judged."""
    about = test.outcome.about
    odd = [loss for loss in test.quality.losses if loss.name in about and loss.baseline is not None]
    why = f"{odd[0].name} of the baseline is {odd[0].baseline}" if odd else "no limit on quality loss was given"
    others = [name for name in test.limits if name not in {*test.table.index, *about}]
    return why + "".join(f"; limits names {name!r}, which quality does not return" for name in others)


def _unchecked(test: ABTest, name: str) -> str:
    if name in test.table.index:
        return f"{_METRICS[name][0]} could not be measured"
    return f"quality returned no loss {name!r}, only {', '.join(loss.name for loss in test.quality.losses)}"


def _exact(metric: str, value: Any, row: Any) -> str:
    """Format a value, with additional digits if it would otherwise appear to be equal to its limit."""
    unit = _unit(metric, row)
    if words(row["candidate"], unit) == words(row["limit"], unit):
        return f"{float(value):.9g} {'' if unit == 'number' else unit}".strip()
    return fmt.significant(value, trim=True) if unit == "number" else words(value, unit)
