"""A journal as text, static HTML and a page: the last accepted entry, regressions, and the run chart."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, palette, tables
from perfnb.draw.frame import framed, header, static_page
from perfnb.draw.picture import INK, LINE, QUIET, bare, figure_of, halo, picture_html
from perfnb.experiments.report_view import SIGNS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Most entries in the table, and sentences of one kind; the last ones are shown.
MOST_ROWS, MOST_SENTENCES = 20, 4
#: Smallest width that fits the columns.
MIN_WIDTH = 80

HEADS = ("", "added (UTC)", "what", "step", "vs last accepted", "decision")
_CAUTION = (
    "Entries were measured in separate sessions, not in pairs: changes of the machine in between affect the ratio, but "
    "not its interval. perfnb.ab_test compares in pairs."
)
#: Most entries in the chart (the last ones), and panels, one per step name.
MOST_ENTRIES, MOST_PANELS = 60, 4
_DASHES, _SLOWER = (0, (3, 2)), palette.WORSE
#: Marker, colour and word of each kind of entry.
MARKS = {
    "accept": ("^", palette.BETTER, "report, accepted"),
    "reject": ("X", palette.WORSE, "report, rejected"),
    "inconclusive": ("D", palette.UNDECIDED, "report, inconclusive"),
    "measured": ("o", palette.AS_BEFORE, "profile or timing"),
    "elsewhere": ("s", palette.UNDECIDED, "not compared"),
    "baseline": ("_", palette.AS_BEFORE, "baseline of a report"),
}


def journal_line(history: pd.DataFrame, where: str) -> str:
    """Number of entries, and where they are."""
    return f"{fmt.counted(len(history), 'entry')} in {escape.plain(where, 80)}"


def journal_sentences(history: pd.DataFrame, damaged: Mapping[str, str]) -> list[str]:
    """The last accepted entry, regressions, entries with several changes, and damaged entries."""
    said = []
    for name, rows in history.groupby("name", sort=False):
        about = f"{escape.plain(name, 40)}: " if name else ""
        said += [f"{about}{sentence}" for sentence in _of_step(rows)]
    if history["ratio"].notna().any():
        said.append(_CAUTION)
    for name, why in list(damaged.items())[:MOST_SENTENCES]:
        said.append(f"Entry {escape.plain(name, 60)} is damaged and ignored: {escape.plain(why, 200)}.")
    if (more := len(damaged) - MOST_SENTENCES) > 0:
        said.append(f"{fmt.counted(more, 'more entry')} {'is' if more == 1 else 'are'} damaged and ignored.")
    return said


def journal_text(history: pd.DataFrame, damaged: Mapping[str, str], where: str, width: int = 100) -> str:
    """The journal as text."""
    width = max(MIN_WIDTH, width)
    lines = [escape.shorten(f"perfnb · journal · {journal_line(history, where)}", width)]
    for sentence in journal_sentences(history, damaged):
        lines += escape.wrapped(sentence, width)
    if not len(history):
        return "\n".join([*lines, "Nothing added yet: journal.add(test, hypothesis=..., change=...)."])
    several = history["name"].nunique() > 1
    listed = [row for _, row in history.iloc[: -MOST_ROWS - 1 : -1].iterrows()]
    rows = [HEADS, *(_row(row, intervals=False) for row in listed)]
    words = ["", *(_words(row, several) for row in listed)]
    wide = [max(map(escape.cells, column)) for column in zip(*rows, strict=True)]
    margin = " " * (wide[0] + 2)
    lines.append("")
    for (number, *cells), below in zip(rows, words, strict=True):
        fitted = [escape.fit(number, wide[0], ">"), *map(escape.fit, cells, wide[1:])]
        lines.append(escape.shorten("  ".join(fitted).rstrip(), width))
        lines += [margin + line for line in escape.wrapped(below, width - len(margin)) if line]
    return "\n".join([*lines, *_left_out(history)])


def journal_html(history: pd.DataFrame, damaged: Mapping[str, str], where: str) -> str:
    """The journal as static HTML: sentences, a run chart and a table."""
    head = header(journal_line(history, where), "journal", "", *journal_sentences(history, damaged))
    body = ""
    if len(history):
        alt = f"Step time of each entry with its interval, next to the last accepted one; {len(history):,} entries"
        picture = picture_html(functools.partial(draw_journal, history=history), inches(history), alt)
        several = history["name"].nunique() > 1
        rows = [_html_row(row, several) for _, row in history.iloc[: -MOST_ROWS - 1 : -1].iterrows()]
        heads = [*HEADS[:3], "change, <em>hypothesis</em>", *HEADS[3:]]
        caption = " ".join(["Entries", *_left_out(history)])
        body = f"<p>{picture}</p>{tables.table(caption, heads, rows, texts=4, last_texts=2)}"
    return framed(head + body, narrow=True)


def journal_page(history: pd.DataFrame, damaged: Mapping[str, str], where: str) -> str:
    """The journal as one self-contained HTML page."""
    return static_page(f"journal {where}", journal_html(history, damaged, where))


def journal_figure(history: pd.DataFrame) -> Figure:
    """The run chart."""
    return figure_of(functools.partial(draw_journal, history=history), inches(history))


def _of_step(rows: pd.DataFrame) -> list[str]:
    said = []
    accepted = rows[rows["accepted"]]
    if len(accepted):
        last = accepted.iloc[-1]
        said.append(f"Last accepted: entry {last['number']}{_about(last)}, {_time(last)}.")
    else:
        said.append(f"Nothing accepted yet; the others are compared with {_timed(rows.iloc[0])}.")
    numbers = rows["number"].to_dict()
    # Regressions before the last acceptance are old news.
    slower = rows[rows["regression"]]
    since = slower[slower["number"] >= (accepted["number"].iloc[-1] if len(accepted) else 0)]
    for _, row in since.iloc[-MOST_SENTENCES:].iterrows():
        regression = f"Regression: {_timed(row)}{_about(row)} takes {_ratio(row)} × the time of "
        regression += _standing(rows.loc[row["against"]])
        if _known(row["also_changed"]):
            regression += f", but the environment also changed ({escape.plain(row['also_changed'], 200)})"
        if _known(row["disturbed"]):
            regression += f" (noise: {escape.plain(row['disturbed'], 200)})"
        said.append(f"{regression}.")
    if earlier := len(slower) - min(len(since), MOST_SENTENCES):
        entries = f"{fmt.counted(earlier, 'earlier entry')} {'was' if earlier == 1 else 'were'}"
        said.append(f"{entries} slower than what was last accepted at the time.")
    for _, row in rows[rows["two_changes"] & rows["comparable"]].iloc[-MOST_SENTENCES:].iterrows():
        named = f"besides the named change{_about(row)}, " if row["change"] else ""
        stands = "; its own pairs remain valid" if row["kind"] == "report" else "; which one mattered is unknown"
        said.append(
            f"More than one change at entry {row['number']}: {named}{escape.plain(row['also_changed'], 300)} since "
            f"entry {numbers[row['against']]}{stands}."
        )
    elsewhere = rows[~rows["comparable"] & rows["against"].notna()]
    if len(elsewhere):
        last = elsewhere.iloc[-1]
        other = escape.plain(last["not_compared"], 300)
        count = "" if len(elsewhere) == 1 else f"; so are {len(elsewhere) - 1:,} entries before it"
        said.append(
            f"Entry {last['number']} is the first on its machine and batch size, so it is not compared with entry "
            f"{numbers[last['against']]} ({other}){count}."
        )
    return said


def _standing(reference: Any) -> str:
    """What an entry is compared with: the last accepted, or else the first, of a report its baseline."""
    if reference["accepted"]:
        return f"entry {reference['number']}, the last accepted before it"
    return _timed(reference) + ("" if reference["kind"] == "report" else ", the first")


def _timed(row: Any) -> str:
    """The entry, of a report its baseline."""
    return f"{'the baseline of ' if row['kind'] == 'report' else ''}entry {row['number']}"


def _row(row: Any, *, intervals: bool) -> tuple[str, ...]:
    decision = f"{SIGNS.get(row['decision'], '')} {row['decision']}".strip() if _known(row["decision"]) else ""
    if decision and intervals:
        bounds = row["candidate_ci_low"], row["candidate_ci_high"]
        decision += f" {fmt.relative(row['candidate_ratio'], bounds)}"
    if not decision and row["accepted"]:
        decision = "accepted"
    added = f"{row['at']:%Y-%m-%d %H:%M}" if intervals else f"{row['at']:%Y-%m-%d}"
    return str(row["number"]), added, row["kind"], _time(row), _verdict(row, intervals), decision


def _words(row: Any, several: bool) -> str:
    """Step, change and hypothesis in one line."""
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
    unbroken = (cell.replace(", ", ",&nbsp;") for cell in rest)  # keep an interval on one line
    return [number, added, f"{kind}{name}", f"<bdi>{words}</bdi>", *unbroken]


def _verdict(row: Any, intervals: bool) -> str:
    if not _known(row["against"]):
        return "first"
    if not row["comparable"]:
        return "not compared"
    if fmt.known(row["ratio"]) is None:
        return fmt.UNKNOWN
    ratio = _ratio(row) if intervals else fmt.relative(row["ratio"])
    baseline = "baseline " if row["kind"] == "report" else ""
    return f"{baseline}{ratio} {'regression' if row['regression'] else row['verdict']}"


def _left_out(history: pd.DataFrame) -> list[str]:
    older = len(history) - MOST_ROWS
    chart = f"; the chart shows the last {MOST_ENTRIES}" if len(history) > MOST_ENTRIES else ""
    return [f"({older:,} earlier entries not listed{chart})"] if older > 0 else []


def _about(row: Any) -> str:
    return f" ({escape.plain(row['change'], 60)})" if row["change"] else ""


def _time(row: Any) -> str:
    return fmt.interval(row["median_ms"], (row["ci_low_ms"], row["ci_high_ms"]))


def _ratio(row: Any) -> str:
    return fmt.relative(row["ratio"], (row["ratio_ci_low"], row["ratio_ci_high"]))


def _known(value: Any) -> bool:
    return not pd.isna(value)


def inches(history: pd.DataFrame) -> tuple[float, float]:
    """Width and height of the chart."""
    return 7.4, 0.5 + 2.3 * len(_names(history))


def draw_journal(figure: Figure, history: pd.DataFrame) -> None:
    """Draw the run chart; entries without a time are left out."""
    names = _names(history)
    panels = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    shown = history.iloc[-MOST_ENTRIES:]
    for axes, name in zip(panels, names, strict=True):
        _panel(axes, shown[shown["name"] == name], name)
    panels[-1].set_xlabel("entry")
    panels[-1].set_xlim(float(shown["number"].min()) - 0.6, float(shown["number"].max()) + 0.6)
    _legend(figure, shown)


def _names(history: pd.DataFrame) -> list[str]:
    """Names of the steps with the latest entries."""
    return list(history["name"].iloc[-MOST_ENTRIES:].drop_duplicates(keep="last").iloc[-MOST_PANELS:])


def _panel(axes: Axes, rows: pd.DataFrame, name: str) -> None:
    from matplotlib.ticker import MaxNLocator

    bare(axes)
    axes.grid(axis="y", color=LINE, linewidth=0.5)
    axes.set_ylabel(f"{escape.chart(name, 24) if name else 'step'}, ms")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    last: tuple[float, float] | None = None
    for kind, row in zip(_kinds(rows), rows.to_dict("records"), strict=True):
        number, of_report = float(row["number"]), row["kind"] == "report"
        # For a report, its baseline is compared with what was last accepted.
        column, bounds = ("baseline_ms", "baseline_ci") if of_report else ("median_ms", "ci")
        place = number - 0.16 * of_report
        if of_report:
            _point(axes, place, row, column, bounds, "baseline")
        _point(axes, number + 0.1 * of_report, row, "median_ms", "ci", kind)
        if row["regression"]:
            axes.plot(place, row[column], "o", color=_SLOWER, markersize=11, markerfacecolor="none")
            last = (place, row[f"{bounds}_high_ms"])
        if not pd.isna(row["ratio"]):
            level = row[column] / row["ratio"]
            axes.hlines(level, number - 0.5, number + 0.5, color=INK, linewidth=1, linestyle=_DASHES)
    if last is not None:  # one label explains the rings
        how: Any = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center"}
        halo(axes.annotate("regression", last, color=_SLOWER, **how))
    if rows["median_ms"].isna().all():
        axes.text(0.5, 0.5, "no times", transform=axes.transAxes, ha="center", color=QUIET)
    axes.margins(x=0.05, y=0.22)
    axes.set_ylim(bottom=0)  # start at 0, so that twice as high is twice as long


def _kinds(rows: pd.DataFrame) -> list[str]:
    """Marker of each entry."""
    decided = (rows["kind"] == "report") & rows["decision"].isin(list(MARKS))
    elsewhere = ~rows["comparable"] & rows["against"].notna()
    return list(np.where(decided, rows["decision"], np.where(elsewhere, "elsewhere", "measured")))


def _point(axes: Axes, at: float, row: dict[Any, Any], column: str, bounds: str, kind: str) -> None:
    if pd.isna(row[column]):
        return
    marker, colour, _ = MARKS[kind]
    low, high = row[f"{bounds}_low_ms"], row[f"{bounds}_high_ms"]
    if not pd.isna(low):
        axes.vlines(at, low, high, color=colour, linewidth=1.2)
    size = 8 if kind == "baseline" else 5.5
    axes.plot(at, row[column], marker=marker, color=colour, markersize=size, linestyle="none")


def _legend(figure: Figure, shown: pd.DataFrame) -> None:
    from matplotlib.lines import Line2D

    kinds = dict.fromkeys(_kinds(shown))
    if (shown["kind"] == "report").any():
        kinds["baseline"] = None
    keys: list[Any] = [
        Line2D([], [], marker=marker, color=colour, linestyle="none", label=word)
        for marker, colour, word in map(MARKS.__getitem__, kinds)
    ]
    if shown["ratio"].notna().any():
        keys.append(Line2D([], [], color=INK, linewidth=1, linestyle=_DASHES, label="last accepted"))
    figure.legend(handles=keys, loc="outside upper left", ncols=3, frameon=False, fontsize=7.5, handletextpad=0.4)
