"""A journal as text and as static HTML: what is in effect, what became slower, and the run chart."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb.views import escape, tables
from perfnb.views import format as fmt
from perfnb.views.ab import ratio_words
from perfnb.views.assets import static_style
from perfnb.views.journal_picture import MOST_ENTRIES, draw_journal, inches
from perfnb.views.performance_words import SIGNS
from perfnb.views.picture import figure_of, picture_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Entries that the table lists, and sentences of one sort; the last ones.
MOST_ROWS, MOST_SENTENCES = 20, 4
#: Least width in which the columns have room.
MIN_WIDTH = 80

HEADS = ("", "added (UTC)", "what", "change", "step", "by the last accepted", "decision")
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
    rows = [HEADS, *_rows(history, intervals=False)]
    wide = [max(escape.cells(row[column]) for row in rows) for column in range(len(HEADS))]
    wide[3] = max(8, min(wide[3], width - sum(wide) + wide[3] - 2 * (len(wide) - 1)))
    wide[5] = max(8, min(wide[5], width - sum(wide) + wide[5] - 2 * (len(wide) - 1)))
    lines.append("")
    for row in rows:
        cells = (
            escape.fit(cell, size, ">" if column == 0 else "<")
            for column, (cell, size) in enumerate(zip(row, wide, strict=True))
        )
        lines.append(escape.shorten("  ".join(cells).rstrip(), width))
    return "\n".join([*lines, *_left_out(history)])


def journal_html(history: pd.DataFrame, damaged: Mapping[str, str], where: str) -> str:
    """The journal as sentences, a run chart and a table, without scripts."""
    said = "<br>".join(escape.html_sentence(sentence) for sentence in journal_sentences(history, damaged))
    head = f'<p class="pf-head"><strong>{escape.html(journal_line(history, where))}</strong><br>{said}</p>'
    body = ""
    if len(history):
        alt = f"Step time of each entry with its interval, and of the last accepted before it; {len(history):,} entries"
        picture = picture_html(functools.partial(draw_journal, history=history), inches(history), alt)
        rows = [[escape.html(cell, 60) for cell in row] for row in _rows(history, intervals=True)]
        caption = " ".join(["Entries", *_left_out(history)])
        body = f"<p>{picture}</p>{tables.table(caption, HEADS, rows, texts=len(HEADS))}"
    return f'<div class="perfnb-static"><style>{static_style()}</style>{head}{body}</div>'


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
        said.append(f"Nothing was accepted yet; entry {rows['number'].iloc[0]} is what the others are compared with.")
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
            f"Regression: {what} {row['number']}{_about(row)} takes {_ratio(row)} of the time of the last accepted "
            f"before it, entry {numbers[row['against']]}{doubt}{noise}."
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
        other = escape.plain(last["also_changed"], 300)
        count = "" if len(elsewhere) == 1 else f" ({len(elsewhere):,} entries in all)"
        said.append(f"Entry {last['number']} is of another machine{count} and is not compared: {other}.")
    return said


def _rows(history: pd.DataFrame, *, intervals: bool) -> list[tuple[str, ...]]:
    """Of the last entries, the latest first."""
    several = history["name"].nunique() > 1
    found: list[tuple[str, ...]] = []
    for _, row in history.iloc[: -MOST_ROWS - 1 : -1].iterrows():
        what = f"{row['kind']} {escape.plain(row['name'], 20)}".strip() if several else row["kind"]
        decision = f"{SIGNS.get(row['decision'], '')} {row['decision']}".strip() if _known(row["decision"]) else ""
        if decision and intervals:
            decision += f" {_bounded(row, 'candidate_ratio', 'candidate_ci')}"
        if not decision and row["accepted"]:
            decision = "accepted"
        added = f"{row['at']:%Y-%m-%d %H:%M}" if intervals else f"{row['at']:%Y-%m-%d}"
        change = escape.plain(row["change"] or row["hypothesis"], 60)
        found.append((str(row["number"]), added, what, change, _time(row), _verdict(row, intervals), decision))
    return found


def _verdict(row: Any, intervals: bool) -> str:
    if not _known(row["against"]):
        return "the first"
    if not row["comparable"]:
        return "another machine"
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
