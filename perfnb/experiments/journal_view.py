"""A journal as text and as static HTML: what is in effect, what became slower, and the run chart."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.bench.ab_view import ratio_words
from perfnb.draw import escape, tables
from perfnb.draw.frame import framed, header
from perfnb.draw.picture import figure_of, picture_html
from perfnb.experiments.journal_picture import MOST_ENTRIES, draw_journal, inches
from perfnb.experiments.report_words import SIGNS
from perfnb.profile.page import static_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Entries that the table lists, and sentences of one sort; the last ones.
MOST_ROWS, MOST_SENTENCES = 20, 4
#: Least width in which the columns have room.
MIN_WIDTH = 80

HEADS = ("", "added (UTC)", "what", "step", "by the last accepted", "decision")
_CAUTION = (
    "Entries were measured in sessions of their own, not in pairs: what changed on the machine between them is in "
    "their ratio and not in its interval. perfnb.report and perfnb.ab_test compare in pairs."
)


def journal_line(history: pd.DataFrame, where: str) -> str:
    """How many entries there are, and where."""
    entries = "1 entry" if len(history) == 1 else f"{len(history):,} entries"
    return f"{entries} in {escape.plain(where, 80)}"


def journal_sentences(history: pd.DataFrame, damaged: Mapping[str, str]) -> list[str]:
    """What is in effect, what became slower, where more than one thing was changed, and what cannot be read."""
    said = []
    for name, rows in history.groupby("name", sort=False):
        about = f"{escape.plain(name, 40)}: " if name else ""
        said += [f"{about}{sentence}" for sentence in _of_step(rows)]
    if history["ratio"].notna().any():
        said.append(_CAUTION)
    for name, why in list(damaged.items())[:MOST_SENTENCES]:
        said.append(f"Entry {escape.plain(name, 60)} is damaged and left out: {escape.plain(why, 200)}.")
    if len(damaged) > MOST_SENTENCES:
        said.append(f"{len(damaged) - MOST_SENTENCES:,} more entries are damaged and left out.")
    return said


def journal_text(history: pd.DataFrame, damaged: Mapping[str, str], where: str, width: int = 100) -> str:
    """The journal as text."""
    width = max(MIN_WIDTH, width)
    lines = [escape.shorten(f"perfnb · journal · {journal_line(history, where)}", width)]
    for sentence in journal_sentences(history, damaged):
        lines += escape.wrapped(sentence, width)
    if not len(history):
        return "\n".join([*lines, "Nothing was added yet: journal.add(report, hypothesis=..., change=...)."])
    several = history["name"].nunique() > 1
    listed = [row for _, row in history.iloc[: -MOST_ROWS - 1 : -1].iterrows()]
    rows = [HEADS, *(_row(row, intervals=False) for row in listed)]
    words = ["", *(_words(row, several) for row in listed)]
    wide = [max(escape.cells(row[column]) for row in rows) for column in range(len(HEADS))]
    lines.append("")
    for row, below in zip(rows, words, strict=True):
        cells = (
            escape.fit(cell, size, ">" if column == 0 else "<")
            for column, (cell, size) in enumerate(zip(row, wide, strict=True))
        )
        lines.append(escape.shorten("  ".join(cells).rstrip(), width))
        margin = " " * (wide[0] + 2)
        lines += [margin + line for line in escape.wrapped(below, width - len(margin)) if line]
    return "\n".join([*lines, *_left_out(history)])


def journal_html(history: pd.DataFrame, damaged: Mapping[str, str], where: str) -> str:
    """The journal as sentences, a run chart and a table, without scripts."""
    head = header(journal_line(history, where), "journal", "", *journal_sentences(history, damaged))
    body = ""
    if len(history):
        alt = f"Step time of each entry with its interval, and of the last accepted before it; {len(history):,} entries"
        picture = picture_html(functools.partial(draw_journal, history=history), inches(history), alt)
        several = history["name"].nunique() > 1
        rows = [_html_row(row, several) for _, row in history.iloc[: -MOST_ROWS - 1 : -1].iterrows()]
        heads = [*HEADS[:3], "change, and <em>what was expected</em>", *HEADS[3:]]
        caption = " ".join(["Entries", *_left_out(history)])
        body = f"<p>{picture}</p>{tables.table(caption, heads, rows, texts=4, last_texts=2)}"
    return framed(head + body, narrow=True)


def journal_page(history: pd.DataFrame, damaged: Mapping[str, str], where: str) -> str:
    """The journal as one self-contained HTML document."""
    return static_page(f"journal {where}", journal_html(history, damaged, where))


def journal_figure(history: pd.DataFrame) -> Figure:
    """The run chart."""
    return figure_of(functools.partial(draw_journal, history=history), inches(history))


def _of_step(rows: pd.DataFrame) -> list[str]:
    said = []
    accepted = rows[rows["accepted"]]
    if len(accepted):
        last = accepted.iloc[-1]
        said.append(f"The last accepted is entry {last['number']}{_about(last)}: {_time(last)}.")
    else:
        first = rows.iloc[0]
        what = "the baseline of entry" if first["kind"] == "report" else "entry"
        said.append(f"Nothing was accepted yet; {what} {first['number']} is what the others are compared with.")
    numbers = rows["number"].to_dict()
    # What was slower before the last acceptance is no news.
    slower = rows[rows["regression"]]
    since = slower[slower["number"] >= (accepted["number"].iloc[-1] if len(accepted) else 0)]
    for _, row in since.iloc[-MOST_SENTENCES:].iterrows():
        what = "the baseline of entry" if row["kind"] == "report" else "entry"
        doubt = (
            f", but the environment differs as well ({escape.plain(row['also_changed'], 200)})"
            if _known(row["also_changed"])
            else ""
        )
        noise = f" (seen meanwhile: {escape.plain(row['disturbed'], 200)})" if _known(row["disturbed"]) else ""
        said.append(
            f"Regression: {what} {row['number']}{_about(row)} takes {_ratio(row)} of the time of "
            f"{_standing(rows.loc[row['against']])}{doubt}{noise}."
        )
    if earlier := len(slower) - min(len(since), MOST_SENTENCES):
        entries = "1 earlier entry was" if earlier == 1 else f"{earlier:,} earlier entries were"
        said.append(f"{entries} slower than the last accepted before.")
    for _, row in rows[rows["two_changes"] & rows["comparable"]].iloc[-MOST_SENTENCES:].iterrows():
        named = f"beside the change that was named{_about(row)}, " if row["change"] else ""
        stands = "; its own pairs stand" if row["kind"] == "report" else ": which of them did it cannot be told"
        said.append(
            f"More than one change at entry {row['number']}: {named}{escape.plain(row['also_changed'], 300)} since "
            f"entry {numbers[row['against']]}{stands}."
        )
    elsewhere = rows[~rows["comparable"] & rows["against"].notna()]
    if len(elsewhere):
        last = elsewhere.iloc[-1]
        other = escape.plain(last["not_compared"], 300)
        count = "" if len(elsewhere) == 1 else f"; so it was with {len(elsewhere) - 1:,} before it"
        said.append(
            f"Entry {last['number']} is the first of its machine and batch size, and not compared with entry "
            f"{numbers[last['against']]}: {other}{count}."
        )
    return said


def _standing(reference: Any) -> str:
    """What an entry is compared with: the first of all need not have been accepted, and of a report is its baseline."""
    number = reference["number"]
    if reference["accepted"]:
        return f"the last accepted before it, entry {number}"
    return f"the baseline of entry {number}" if reference["kind"] == "report" else f"the first, entry {number}"


def _row(row: Any, *, intervals: bool) -> tuple[str, ...]:
    decision = f"{SIGNS.get(row['decision'], '')} {row['decision']}".strip() if _known(row["decision"]) else ""
    if decision and intervals:
        decision += f" {_bounded(row, 'candidate_ratio', 'candidate_ci')}"
    if not decision and row["accepted"]:
        decision = "accepted"
    added = f"{row['at']:%Y-%m-%d %H:%M}" if intervals else f"{row['at']:%Y-%m-%d}"
    return str(row["number"]), added, row["kind"], _time(row), _verdict(row, intervals), decision


def _words(row: Any, several: bool) -> str:
    """Which step, what was changed, and what was expected, in a line."""
    about = f"{escape.plain(row['name'], 30)}: " if several and row["name"] else ""
    expected = f"expected: {escape.plain(row['hypothesis'])}" if row["hypothesis"] else ""
    return about + "; ".join(part for part in (escape.plain(row["change"]), expected) if part)


def _html_row(row: Any, several: bool) -> list[str]:
    number, added, kind, *rest = (escape.html(cell) for cell in _row(row, intervals=True))
    name = f" {tables.name(row['name'], 30)}" if several and row["name"] else ""
    expected = f"<em>{escape.html(row['hypothesis'], 120)}</em>" if row["hypothesis"] else ""
    words = "<br>".join(part for part in (escape.html(row["change"], 120), expected) if part)
    day, _, moment = added.partition(" ")
    added = f'<span style="white-space:nowrap">{day}</span> {moment}'
    unbroken = (cell.replace(", ", ",&nbsp;") for cell in rest)  # an interval stays in one line
    return [number, added, f"{kind}{name}", f"<bdi>{words}</bdi>", *unbroken]


def _verdict(row: Any, intervals: bool) -> str:
    if not _known(row["against"]):
        return "the first"
    if not row["comparable"]:
        return "not compared"
    if fmt.known(row["ratio"]) is None:
        return fmt.UNKNOWN
    ratio = _ratio(row) if intervals else ratio_words(float(row["ratio"]), None)
    baseline = "baseline " if row["kind"] == "report" else ""
    return f"{baseline}{ratio} {'regression' if row['regression'] else row['verdict']}"


def _left_out(history: pd.DataFrame) -> list[str]:
    older = len(history) - MOST_ROWS
    chart = f"; the chart shows the last {MOST_ENTRIES}" if len(history) > MOST_ENTRIES else ""
    return [f"({older:,} earlier ones are not listed{chart})"] if older > 0 else []


def _about(row: Any) -> str:
    return f" ({escape.plain(row['change'], 60)})" if row["change"] else ""


def _time(row: Any) -> str:
    low, high = fmt.known(row["ci_low_ms"]), fmt.known(row["ci_high_ms"])
    return fmt.interval(row["median_ms"], None if low is None or high is None else (low, high))


def _ratio(row: Any) -> str:
    return _bounded(row, "ratio", "ratio_ci")


def _bounded(row: Any, column: str, bounds: str) -> str:
    value, low, high = (fmt.known(row[name]) for name in (column, f"{bounds}_low", f"{bounds}_high"))
    if value is None:
        return fmt.UNKNOWN
    return ratio_words(value, None if low is None or high is None else (low, high))


def _known(value: Any) -> bool:
    return not pd.isna(value)
