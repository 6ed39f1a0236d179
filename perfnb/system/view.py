"""Present a machine check as a document: current disturbances, problems, and all other checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import palette
from perfnb.draw.document import (
    Axis,
    Budget,
    Card,
    Cards,
    Column,
    Document,
    Effect,
    Effects,
    Figure,
    Section,
    State,
    Strip,
    Table,
    Verdict,
)
from perfnb.profile.timing import noise_sentences
from perfnb.system.host import OTHERS

if TYPE_CHECKING:
    from perfnb.system.resolution import Resolution

#: The meaning of the checks' verdicts, problems first.
RESULTS = {"attention": "needs attention", "unknown": "not known", "info": "for information", "ok": "as expected"}
#: The smallest detectable difference is shown for tests of these durations, in seconds.
_SECONDS = (10, 60)


def system_document(checks: pd.DataFrame, resolution: Resolution | None = None) -> Document:
    """Return the document for the machine checks.

    If the resolution was measured, the differences that the machine can detect come first.

    Parameters
    ----------
    checks : DataFrame
        The table described in `perfnb.system.system.SystemCheck.checks`.
    resolution : Resolution, optional
    """
    rows = checks.to_dict("records")
    found = Document("system check", "the machine", verdict=_verdict(rows), sections=tuple(_sections(rows)))
    if resolution is None:
        return found
    first = resolution_document(resolution)
    verdict = replace(first.verdict, why=f"{found.verdict.sentence}.")
    if found.verdict.state == "bad" and verdict.state == "good":
        verdict = replace(verdict, state="open", next=verdict.next or found.verdict.next)
    return replace(first, kind=found.kind, verdict=verdict, sections=(*first.sections, *found.sections))


def _verdict(rows: Sequence[Any]) -> Verdict:
    problems = [row for row in rows if row["verdict"] == "attention"]
    unknown = sum(row["verdict"] == "unknown" for row in rows)
    need = f"{len(problems) or 'none'} of {len(rows)} checks need{'s' * (len(problems) <= 1)} attention"
    need += f", {unknown} could not be read" if unknown else ""
    busy = next((row for row in problems if row["check"] == OTHERS), None)
    if busy is not None:
        return Verdict("bad", f"The machine is busy: other processes use {busy['found']} CPU; {need}", next=busy["how"])
    names = [str(row["check"]) for row in problems]
    named = f": {fmt.named(names)}" if names else ""
    return Verdict("bad" if problems else "good", fmt.capital(need) + named)


def _sections(rows: Sequence[Any]) -> Iterator[Section]:
    cards = tuple(
        Card(row["check"], row["found"], evidence=f"Expected: {row['expected']}. {row['why']}", advice=row["how"])
        for row in rows
        if row["verdict"] == "attention"
    )
    if cards:
        yield Cards("May cost speed or make timings unsteady", cards)
    order = list(RESULTS)
    others = sorted((row for row in rows if row["verdict"] != "attention"), key=lambda row: order.index(row["verdict"]))
    results, details = [], []
    # Neighbours with the same result share a row, such as all GPU checks on a machine without a GPU.
    for (verdict, found), same in groupby(others, key=lambda row: (row["verdict"], row["found"])):
        group = list(same)
        results.append((", ".join(row["check"] for row in group), RESULTS[verdict]))
        expected = f" (expected: {group[0]['expected']})" if verdict == "info" and len(group) == 1 else ""
        details.append(f"{found}{expected}")
    columns = (Column("check"), Column("result"))
    title = "Other checks" if cards else "Checks"
    yield Table(title, columns, results, details=details, budget=Budget(40), noun="check")


def resolution_document(found: Resolution) -> Document:
    """Return a document about the differences between steps that the machine can detect, and what disturbs it."""
    state, sentence, advice = _answer(found)
    count = len(found.a_ms)
    disturbances = noise_sentences(found.noise)
    if switches := found.noise.get("involuntary_switches"):
        times = fmt.counted(switches, "time")
        disturbances.append(f"The system preempted the process {times} in {2 * found.turns * count:,} steps.")
    ratios = palette.line(0, "pairs"), found.pairs["ratio"].tolist()
    itself = Effect("the same step", found.ratio, found.ratio_ci, found.verdict)
    floor = "half of all single pairs differ by more"
    return Document(
        "resolution",
        "the machine",
        verdict=Verdict(state, sentence, next=advice),
        figures=(
            Figure("noise floor", found.noise_floor, "share", basis=floor),
            Figure("step", found.a.median_ms, "ms", found.a.ci_ms, "compared with itself"),
        ),
        facts=(fmt.counted(count, "pair"), *([str(found.outliers)] if found.outliers.count else [])),
        sections=(
            Effects("A step compared with itself", (itself,), found.comparison.equal_within, head="candidate"),
            Strip("Ratios of single pairs", Axis("ratio", "ratio"), (ratios,), ("same", 1.0)),
            Table(
                "Smallest difference that a test of this step detects in 9 of 10 runs",
                (Column("length of the test"), Column("difference", "share")),
                [(f"{seconds} s", found.detectable_in(seconds)) for seconds in _SECONDS],
            ),
        ),
        notes=tuple(disturbances),
    )


def _answer(found: Resolution) -> tuple[State, str, str]:
    """Return a sentence about the differences that can be detected, or why this is unknown, and a recommendation."""
    short, long = (found.detectable_in(seconds) for seconds in _SECONDS)
    if found.verdict in ("faster", "slower"):
        again = "If it happens again, do not trust comparisons on this machine."
        sentence = f"A step compared with itself looks {found.verdict}: a false positive, which happens in 1 of 20 runs"
        return "bad", sentence, again
    if short is None or long is None:
        return "open", "Too few pairs to tell which differences can be resolved", "Raise budget_s."
    least = f"{fmt.share(short)} can be resolved in {_SECONDS[0]} s, and of {fmt.share(long)} in {_SECONDS[1]} s"
    noisy = ", although the machine is too noisy at the moment for a verdict" if found.verdict == "inconclusive" else ""
    return ("open" if noisy else "good"), f"A difference of {least}{noisy}", ""
