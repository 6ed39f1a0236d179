"""Create a journal's document, with the last decision or change, the trends and the entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw.document import Axis, Cell, Column, Document, Line, Series, State, Table, Value, Verdict
from perfnb.draw.palette import BLUE, GREY, Mark
from perfnb.experiments.journal_trend import FEWEST, FIGURES

#: The maximum number of entries in a chart, of charts (one per step name), and of sentences of one kind. If there are
#: more, the last ones are shown.
_MOST_ENTRIES, _MOST_CHARTS, _MOST_SENTENCES = 60, 4, 4
_MOST_POINTS = 2000
_KINDS = {"report": "A/B test"}
#: How increases and decreases of the figures are described.
_WORDS = {"step_ms": ("Slower", "Faster"), "peak_bytes": ("More memory", "Less memory")}
_DECISIONS: dict[str, tuple[State, str]] = {
    "accept": ("good", "was accepted"),
    "reject": ("bad", "was rejected"),
    "inconclusive": ("open", "was inconclusive"),
}
_CAUTION = (
    "Entries were measured in separate sessions, not in pairs. Changes on the machine in between affect their ratios, "
    "but not the intervals. perfnb.ab_test compares steps in pairs."
)
_NAMELESS = "Entries without a name are compared as if they measured the same step. If not, pass name= to journal.add."


def journal_document(
    table: pd.DataFrame,
    history: pd.DataFrame,
    series: pd.DataFrame,
    changes: pd.DataFrame,
    damaged: Mapping[str, str],
    where: str,
    limits: Sequence[str] = (),
) -> Document:
    """Return a document that shows any regressions or the last decision, and the history.

    Parameters
    ----------
    table, history : DataFrame
        All entries, and the added entries; see `Journal`.
    series, changes : DataFrame
        See `Trend`.
    damaged : mapping of str to str
        The entries that cannot be read, and the reason for each.
    where : str
        The folder.
    limits : sequence of str
        Sentences about omitted entries.
    """
    decided = history["at"].where(history["decision"].notna()).max()
    latest = changes[changes["latest"]]
    news = latest[(latest["verdict"] == "slower") & ~(latest["at"] < decided)]
    if not len(news) and not len(history):
        news = latest
    others = series[series["series"].isin(changes["series"]) | ~series.index.isin(history.index)]
    kinds = table.loc[table["damaged"].isna(), "kind"].value_counts(sort=False)
    counts = [fmt.counted(number, _KINDS.get(str(kind), str(kind).replace("_", " "))) for kind, number in kinds.items()]
    return Document(
        "journal",
        where,
        verdict=_changed(news.iloc[-1], FIGURES[0]) if len(news) else _verdict(history, table, series),
        facts=(fmt.counted(int(kinds.sum()), "entry"), *(counts if len(counts) > 1 or not len(history) else ())),
        sections=(
            *_charts(others, changes, FIGURES[0]),
            *_changes(changes, FIGURES[0]),
            *trends(history, 2),
            *_entries(table, history),
        ),
        notes=(*_notes(history, changes, damaged), *limits),
    )


def trend_document(series: pd.DataFrame, changes: pd.DataFrame, figure: str, where: str) -> Document:
    """Return a document that shows how a figure has developed and where it has changed."""
    latest = changes[changes["latest"]]
    worse = latest[latest["ratio"] > 1]
    news = worse if len(worse) else latest
    return Document(
        "trend",
        where,
        verdict=_changed(news.iloc[-1], figure) if len(news) else _steady(series),
        facts=(fmt.counted(len(series), "entry"), f"{series['series'].nunique():,} series"),
        sections=(*_charts(series, changes, figure), *_changes(changes, figure)),
        notes=(_CAUTION,) if len(changes) else (),
    )


def _changed(row: Any, figure: str) -> Verdict:
    """Describe a change: when it occurred, how large it is, and what else changed."""
    worse = row["ratio"] > 1
    of = f" of {row['name']}" if row["name"] else ""
    long = f"{'more' if worse else 'less'} {'time' if figure == FIGURES[0] else 'memory'}"
    percent = fmt.share(abs(row["ratio"] - 1))
    sentence = (
        f"{_WORDS[figure][int(not worse)]} since entry {row['number']}{of} ({row['at']:%Y-%m-%d}): {percent} {long}, "
    )
    also = row["also_changed"]
    why = "No other recorded fact changed at that point." if pd.isna(also) else f"Also changed there: {also}."
    return Verdict("bad" if worse else "good", f"{sentence}{_ratio(row)}", why)


def _steady(series: pd.DataFrame) -> Verdict:
    sizes = series["series"].value_counts()
    long = int((sizes >= FEWEST).sum())
    if not long:
        most = fmt.counted(int(sizes.max()) if len(sizes) else 0, "entry")
        return Verdict("none", f"No trend yet: a series needs {FEWEST} entries, and the longest series has {most}")
    return Verdict("none", f"No change found in {long:,} series with at least {FEWEST} entries")


def _charts(series: pd.DataFrame, changes: pd.DataFrame, figure: str) -> Iterator[Series]:
    """Yield charts of the figure for the longest series, starting with the series that changed most recently."""
    sizes = series["series"].value_counts()
    changed = changes.sort_values("at", ascending=False)["series"].drop_duplicates()
    wanted = [*changed[changed.isin(sizes.index)], *sizes[sizes >= FEWEST].index]
    unit, axis = ("ms", "step time") if figure == FIGURES[0] else ("bytes", "peak memory")
    for number in list(dict.fromkeys(wanted))[:_MOST_CHARTS]:
        rows = series[series["series"] == number].iloc[-_MOST_POINTS:]
        name = rows["name"].iloc[0]
        bounds = ("step_low_ms", "step_high_ms") if figure == FIGURES[0] else None
        lines = (
            _line(Mark(axis, BLUE, "█", "solid"), rows, figure, bounds),
            _line(Mark("level", GREY, "░", "dots"), rows, "level"),
        )
        title = f"{fmt.capital(axis)} by entry{f': {name}' if name else ''}"
        numbers = [int(one) for one in rows["number"]]
        yield Series(title, Axis("entry", "count"), Axis(axis, unit), numbers, lines)


def _changes(changes: pd.DataFrame, figure: str) -> Iterator[Table]:
    """Yield the changes, most recent first."""
    if not len(changes):
        return
    unit = "ms" if figure == FIGURES[0] else "bytes"
    columns = (
        Column("entry", help="the first entry after the change"),
        Column("name"),
        Column("since", priority=2, help="UTC"),
        Column("before", unit, priority=1),
        Column("after", unit, priority=1),
        Column("ratio", "ratio"),
        Column("what"),
    )
    rows, details = [], []
    for _, row in changes.iloc[::-1].iterrows():
        ratio = Value(row["ratio"], "ratio", fmt.known_bounds((row["ratio_ci_low"], row["ratio_ci_high"])))
        when, what = f"{row['at']:%Y-%m-%d}", _WORDS[figure][int(row["ratio"] < 1)].lower()
        rows.append((str(row["number"]), row["name"], when, row["before"], row["after"], ratio, what))
        details.append("" if pd.isna(row["also_changed"]) else f"also changed: {row['also_changed']}")
    yield Table("What changed", columns, rows, details=details, noun="change", key="changes")


def _verdict(history: pd.DataFrame, table: pd.DataFrame, series: pd.DataFrame) -> Verdict:
    if not len(table):
        return Verdict(
            "none", "Nothing added yet", next="Add what you measure.", code="journal.add(test, change='...')"
        )
    if not len(history):
        return _steady(series)
    decided, accepted = history[history["decision"].notna()], history[history["accepted"]]
    last_ones = accepted.groupby("name", sort=False).tail(1)
    kept = [
        f"Last accepted: {_entry(row)}, {fmt.interval(row['median_ms'], (row['ci_low_ms'], row['ci_high_ms']))}."
        for _, row in last_ones.iterrows()
    ]
    # A slower entry no longer matters once a later entry for the same step has been accepted.
    since = history["number"].where(history["accepted"]).groupby(history["name"]).transform("max").fillna(0)
    slower = history[history["regression"] & (history["number"] >= since)]
    if len(decided):
        row = decided.iloc[-1]
        other: tuple[State, str] = "none", f"has the decision {row['decision']}"
        state, word = _DECISIONS.get(row["decision"], other)
        ratio = _ratio(row, "candidate_ratio", "candidate_ci_low", "candidate_ci_high")
        last = f"Last decision: {_entry(row)} {word}: the candidate takes {ratio} the baseline's time"
        if not len(slower) or slower.iloc[-1]["number"] < row["number"]:
            return Verdict(state, last, " ".join(kept))
        kept.insert(0, f"{last}.")
    if len(slower):
        return Verdict("bad", _slower(slower.iloc[-1], history), " ".join(kept))
    if kept:
        return Verdict("good", kept[-1].removesuffix("."), " ".join(kept[:-1]))
    return Verdict("none", f"Nothing accepted yet: entries are compared with {_side(history.iloc[0])}")


def _entry(row: Any) -> str:
    name = f" of {row['name']}" if row["name"] else ""
    return f"entry {row['number']}{name}{_about(row)}"


def _about(row: Any) -> str:
    return f" ({row['change'][:60]})" if row["change"] else ""


def _ratio(row: Any, ratio: str = "ratio", low: str = "ratio_ci_low", high: str = "ratio_ci_high") -> str:
    return fmt.with_interval(fmt.ratio(row[ratio]), row[ratio], (row[low], row[high]))


def _slower(row: Any, history: pd.DataFrame) -> str:
    side = "the baseline of " if row["kind"] == "report" else ""
    percent = fmt.share(row["ratio"] - 1)
    slower = f"Regression: {side}{_entry(row)} takes {percent} more time than {_reference(row, history)}: {_ratio(row)}"
    if pd.notna(row["also_changed"]):
        slower += f"; the environment also changed ({row['also_changed']})"
    return slower + (f"; disturbed: {row['disturbed']}" if pd.notna(row["disturbed"]) else "")


def _reference(row: Any, history: pd.DataFrame) -> str:
    """Describe what an entry is compared with: the last accepted entry, the first entry, or a test's baseline."""
    reference = history.loc[row["against"]]
    if reference["accepted"]:
        return f"entry {reference['number']}, the last accepted before it"
    return f"{_side(reference)}, the first"


def _side(row: Any) -> str:
    """Describe what later entries are compared with. If an A/B test was not accepted, this is its baseline."""
    is_baseline = row["kind"] == "report" and not row["accepted"]
    return f"{'the baseline of ' if is_baseline else ''}entry {row['number']}"


def trends(history: pd.DataFrame, fewest: int) -> Iterator[Series]:
    """Yield one chart of step times per step that has enough entries. For A/B tests, both sides are drawn."""
    recent = history.iloc[-_MOST_ENTRIES:]
    for name in recent["name"].drop_duplicates(keep="last").iloc[-_MOST_CHARTS:]:
        rows = recent[recent["name"] == name]
        if rows["median_ms"].count() < fewest:
            continue
        tested = (rows["kind"] == "report").any()
        step = Mark("step, or candidate of an A/B test" if tested else "step", BLUE, "█", "solid")
        lines = [_line(step, rows, "median_ms", ("ci_low_ms", "ci_high_ms"))]
        if tested:
            baseline = Mark("baseline of an A/B test", GREY, "░", "dots")
            lines.append(_line(baseline, rows, "baseline_ms", ("baseline_ci_low_ms", "baseline_ci_high_ms")))
        accepted = rows.loc[rows["accepted"], "median_ms"].dropna()
        levels = {"last accepted": float(accepted.iloc[-1])} if len(accepted) else {}
        numbers = [int(number) for number in rows["number"]]
        title = f"Step time by entry{f': {name}' if name else ''}"
        yield Series(title, Axis("entry", "count"), Axis("step time", "ms"), numbers, tuple(lines), levels)


def _line(mark: Mark, rows: pd.DataFrame, column: str, bounds: tuple[str, str] | None = None) -> Line:
    low, high = (None, None) if bounds is None else (_known(rows[name]) for name in bounds)
    return Line(mark, _known(rows[column]), low, high)


def _known(values: pd.Series) -> list[float | None]:
    return [fmt.known(value) for value in values]


def _entries(table: pd.DataFrame, history: pd.DataFrame) -> Iterator[Table]:
    """Yield the table of entries, with the most recent entry first."""
    if not len(table):
        return
    columns = (
        Column("entry"),
        Column("change", live=True),
        Column("step", "ms", help="step time; for an A/B test, the candidate's"),
        Column("ratio", "ratio"),
        Column("against", priority=1, help="the reference for the ratio; only A/B tests compare in pairs"),
        Column("result"),
        Column("name", priority=2),
        Column("what", priority=3),
        Column("data", "share", priority=5, help="share of the step spent waiting for data"),
        Column("peak", "bytes", priority=5, help="peak memory"),
        Column("when", priority=4, help="UTC"),
    )
    cells, details = [], []
    for path, row in ((str(path), row) for path, row in table.iloc[::-1].iterrows()):
        added = history.loc[path] if path in history.index else None
        cells.append(_cells(row, added, history))
        details.append(_found(row) if added is None else _detail(added, history))
    yield Table(
        "Entries", columns, cells, details=details, noun="entry", names=[str(path) for path in table.index[::-1]]
    )


def _cells(entry: Any, row: Any, history: pd.DataFrame) -> tuple[Cell, ...]:
    """Return the cells for an entry. If it was added by a person, `row` is its row in `history`."""
    damaged = pd.notna(entry["damaged"])
    step = Value(fmt.known(entry["step_ms"]), "ms", fmt.known_bounds((entry["step_low_ms"], entry["step_high_ms"])))
    ratio: Cell = ""
    against, change, result = "", "", "damaged" if damaged else ""
    name = "" if pd.isna(entry["name"]) else entry["name"]
    if row is not None:
        step = Value(fmt.known(row["median_ms"]), "ms", fmt.known_bounds((row["ci_low_ms"], row["ci_high_ms"])))
        ratio, against = _compared(row, history)
        change, result, name = row["change"], _result(row), row["name"]
    elif pd.notna(entry["decision"]):
        result = entry["decision"]
    number = "n/a" if damaged else str(entry["number"])
    kind, when = _KINDS.get(entry["kind"], entry["kind"].replace("_", " ")), f"{entry['at']:%Y-%m-%d}"
    data, peak = fmt.known(entry["data_share"]), fmt.known(entry["peak_bytes"])
    return number, change, step, ratio, against, result, name, kind, data, peak, when


def _compared(row: Any, history: pd.DataFrame) -> tuple[Cell, str]:
    """Return an added entry's ratio and its reference."""
    if row["kind"] == "report":
        bounds = row["candidate_ci_low"], row["candidate_ci_high"]
        return Value(row["candidate_ratio"], "ratio", bounds), "its baseline"
    if fmt.known(row["ratio"]) is None:
        return "", ""
    return Value(row["ratio"], "ratio", (row["ratio_ci_low"], row["ratio_ci_high"])), _side(history.loc[row["against"]])


def _found(entry: Any) -> str:
    """Describe an entry's location and its outcome when it was saved, or the reason why it cannot be read."""
    verdict = None if pd.isna(entry["verdict"]) else entry["verdict"].partition(":")[0]
    return " · ".join(part for part in (entry.name, entry["damaged"], verdict) if pd.notna(part))


def _result(row: Any) -> str:
    if pd.notna(row["decision"]):
        return str(row["decision"])
    if row["accepted"]:
        return "accepted"
    if pd.isna(row["against"]):
        return "first"
    if not row["comparable"]:
        return "not compared"
    return "regression" if row["regression"] else row["verdict"] if pd.notna(row["verdict"]) else ""


def _detail(row: Any, history: pd.DataFrame) -> str:
    parts = [row["change"]] if row["change"] else []
    parts += [f"expected: {row['hypothesis']}"] if row["hypothesis"] else []
    if row["kind"] == "report" and fmt.known(row["ratio"]) is not None:
        slower = " (regression)" if row["regression"] else ""
        parts.append(f"its baseline takes {_ratio(row)} the time of {_reference(row, history)}{slower}")
    return " · ".join(parts)


def _notes(history: pd.DataFrame, changes: pd.DataFrame, damaged: Mapping[str, str]) -> Iterator[str]:
    numbers = history["number"].to_dict()
    for _, row in history[history["two_changes"] & history["comparable"]].iloc[-_MOST_SENTENCES:].iterrows():
        named = f"besides the named change{_about(row)}, " if row["change"] else ""
        stands = "its own pairs remain valid" if row["kind"] == "report" else "which one mattered is unknown"
        yield (
            f"More than one change at entry {row['number']}: {named}{row['also_changed']} since entry "
            f"{numbers[row['against']]}; {stands}."
        )
    elsewhere = history[~history["comparable"] & history["against"].notna()]
    for _, row in elsewhere.iloc[-1:].iterrows():
        yield (
            f"Entry {row['number']} is the first for its machine and batch size, so it is not compared with entry "
            f"{numbers[row['against']]} ({row['not_compared']})."
        )
    if history["ratio"].notna().any() or len(changes):
        yield _CAUTION
    if (history["ratio"].notna() & (history["name"] == "")).any():
        yield _NAMELESS
    for name, why in list(damaged.items())[:_MOST_SENTENCES]:
        yield f"Entry {name} is damaged and ignored: {why.removesuffix('.')}."
    if (more := len(damaged) - _MOST_SENTENCES) > 0:
        yield f"{fmt.counted(more, 'more entry')} {'is' if more == 1 else 'are'} damaged and ignored."
