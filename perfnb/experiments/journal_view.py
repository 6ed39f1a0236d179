"""Create a journal's document, with the last decision or change, the trends and the entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw.document import Axis, Cell, Column, Document, Line, Series, State, Table, Value, Verdict, cells_of
from perfnb.draw.palette import BLUE, GREY, Mark
from perfnb.experiments.journal_trend import FEWEST, FIGURES

#: The maximum number of entries in a chart, and of charts. If there are more, the latest ones are shown.
_MOST_POINTS, _MOST_CHARTS = 2000, 4
#: The label and unit of each figure.
_AXES = {"step_ms": ("step time", "ms"), "peak_bytes": ("peak memory", "bytes")}
_KINDS = {"report": "A/B test"}
_DECISIONS: dict[str, tuple[State, str]] = {
    "accept": ("good", "was accepted"),
    "reject": ("bad", "was rejected"),
    "inconclusive": ("open", "was inconclusive"),
}
#: The columns of a ratio and its interval.
_RATIO = ("ratio", "ratio_ci_low", "ratio_ci_high")
_OF_TEST = ("candidate_ratio", "candidate_ci_low", "candidate_ci_high")
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

    The first four frames are those of `Journal` and `Trend`. `damaged` contains the reason why each of these entries
    cannot be read, `where` is the folder, and `limits` are sentences about omitted entries.
    """
    decided = history["at"].where(history["decision"].notna()).max()
    latest = changes[changes["latest"]]
    news = latest[(latest["verdict"] == "slower") & ~(latest["at"] < decided)]
    if not len(news) and not len(history):
        news = latest
    others = series[series["series"].isin(changes["series"]) | ~series.index.isin(history.index)]
    kinds = table.loc[table["damaged"].isna(), "kind"].value_counts(sort=False)
    return Document(
        "journal",
        where,
        verdict=_changed(news.iloc[-1], FIGURES[0]) if len(news) else _verdict(history, table, series),
        facts=(
            fmt.counted(int(kinds.sum()), "entry"),
            *(fmt.counted(number, _kind(str(kind))) for kind, number in kinds.items()),
        ),
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
    change = f"{fmt.share(abs(row['ratio'] - 1))} {'more' if worse else 'less'} {_AXES[figure][0]}"
    of = f" of {row['name']}" if row["name"] else ""
    sentence = f"{change} since entry {row['number']}{of} ({row['at']:%Y-%m-%d}): {_ratio(row)}"
    also = row["also_changed"]
    why = "No other recorded fact changed at that point." if pd.isna(also) else f"Also changed there: {also}."
    return Verdict("bad" if worse else "good", sentence, why)


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
    axis = _AXES[figure][0]
    bounds = ("step_low_ms", "step_high_ms") if figure == FIGURES[0] else ()
    lines = {Mark(axis, BLUE, "█", "solid"): (figure, *bounds), Mark("level", GREY, "░", "dots"): ("level",)}
    for number in list(dict.fromkeys(wanted))[:_MOST_CHARTS]:
        yield _chart(series[series["series"] == number].iloc[-_MOST_POINTS:], figure, lines)


def _chart(
    rows: pd.DataFrame,
    figure: str,
    lines: Mapping[Mark, Sequence[str]],
    levels: Mapping[str, float] = MappingProxyType({}),
) -> Series:
    """Return a chart of entries, with the columns of each line and its interval."""
    name, (axis, unit) = rows["name"].iloc[0], _AXES[figure]
    title = f"{fmt.capital(axis)} by entry{f': {name}' if name else ''}"
    drawn = (Line(mark, *(cells_of(rows[column]) for column in columns)) for mark, columns in lines.items())
    at = [int(number) for number in rows["number"]]
    return Series(title, Axis("entry", "count"), Axis(axis, unit), at, tuple(drawn), levels)


def _changes(changes: pd.DataFrame, figure: str) -> Iterator[Table]:
    """Yield the changes, most recent first."""
    if not len(changes):
        return
    unit, rows = _AXES[figure][1], changes.iloc[::-1]
    columns = {
        "number": Column("entry", help="the first entry after the change"),
        "name": Column("name"),
        "at": Column("since", priority=2, help="UTC"),
        "before": Column("before", unit, priority=1),
        "after": Column("after", unit, priority=1),
        _RATIO: Column("ratio", "ratio"),
    }
    details = ["" if pd.isna(others) else f"also changed: {others}" for others in rows["also_changed"]]
    rows = rows.assign(number=rows["number"].map(str), at=rows["at"].dt.strftime("%Y-%m-%d"))
    yield Table.of("What changed", rows, columns, details=details, noun="change", key="changes")


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
        decision = str(row["decision"])
        state, word = _DECISIONS.get(decision, ("none", f"has the decision {decision}"))
        last = f"Last decision: {_entry(row)} {word}: the candidate takes {_ratio(row, _OF_TEST)} the baseline's time"
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
    change = f" ({row['change'][:60]})" if row["change"] else ""
    return f"entry {row['number']}{name}{change}"


def _ratio(row: Any, columns: tuple[str, str, str] = _RATIO) -> str:
    ratio, *bounds = row[list(columns)]
    return fmt.with_interval(fmt.ratio(ratio), ratio, tuple(bounds))


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
    return f"{_side(reference)}, the {'last accepted before it' if reference['accepted'] else 'first'}"


def _side(row: Any) -> str:
    """Describe what later entries are compared with. If an A/B test was not accepted, this is its baseline."""
    is_baseline = row["kind"] == "report" and not row["accepted"]
    return f"{'the baseline of ' if is_baseline else ''}entry {row['number']}"


def trends(history: pd.DataFrame, fewest: int) -> Iterator[Series]:
    """Yield one chart of step times per step that has enough entries. For A/B tests, both sides are drawn."""
    recent = history.iloc[-_MOST_POINTS:]
    for name in recent["name"].drop_duplicates(keep="last").iloc[-_MOST_CHARTS:]:
        rows = recent[recent["name"] == name]
        if rows["median_ms"].count() < fewest:
            continue
        tested = (rows["kind"] == "report").any()
        step = Mark("step, or candidate of an A/B test" if tested else "step", BLUE, "█", "solid")
        lines: dict[Mark, Sequence[str]] = {step: ("median_ms", "ci_low_ms", "ci_high_ms")}
        if tested:
            baseline = Mark("baseline of an A/B test", GREY, "░", "dots")
            lines[baseline] = ("baseline_ms", "baseline_ci_low_ms", "baseline_ci_high_ms")
        accepted = rows.loc[rows["accepted"], "median_ms"].dropna()
        levels = {"last accepted": float(accepted.iloc[-1])} if len(accepted) else {}
        yield _chart(rows, FIGURES[0], lines, levels)


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
    for path, entry in table.iloc[::-1].iterrows():
        words = {key: "" if pd.isna(entry[key]) else entry[key] for key in ("name", "change", "damaged", "decision")}
        ratio: Cell = ""
        name, against, result = words["name"], "", "damaged" if words["damaged"] else words["decision"]
        if path in history.index:  # added by a person
            row = history.loc[str(path)]
            name, result, detail = row["name"], _result(row), _detail(row, history)
            if row["kind"] == "report":
                ratio, against = _value(row, _OF_TEST, "ratio"), "its baseline"
            elif fmt.known(row["ratio"]) is not None:
                ratio, against = _value(row, _RATIO, "ratio"), _side(history.loc[str(row["against"])])
        else:
            verdict = "" if pd.isna(entry["verdict"]) else entry["verdict"].partition(":")[0]
            detail = " · ".join(filter(None, (str(path), words["damaged"], verdict)))
        number, when = "n/a" if words["damaged"] else str(entry["number"]), f"{entry['at']:%Y-%m-%d}"
        step = _value(entry, ("step_ms", "step_low_ms", "step_high_ms"), "ms")
        figures = fmt.known(entry["data_share"]), fmt.known(entry["peak_bytes"])
        cells.append(
            (number, words["change"], step, ratio, against, result, name, _kind(entry["kind"]), *figures, when)
        )
        details.append(detail)
    yield Table(
        "Entries", columns, cells, details=details, noun="entry", names=[str(path) for path in table.index[::-1]]
    )


def _value(row: Any, columns: tuple[str, str, str], unit: str) -> Value:
    number, low, high = (fmt.known(row[column]) for column in columns)
    return Value(number, unit, fmt.known_bounds((low, high)))


def _kind(kind: str) -> str:
    return _KINDS.get(kind, kind.replace("_", " "))


def _result(row: Any) -> str:
    if pd.notna(row["decision"]):
        return str(row["decision"])
    if row["accepted"]:
        return "accepted"
    if pd.isna(row["against"]):
        return "first"
    if pd.notna(row["not_compared"]):
        return "not compared"
    return "regression" if row["regression"] else row["verdict"] if pd.notna(row["verdict"]) else ""


def _detail(row: Any, history: pd.DataFrame) -> str:
    parts = [row["change"], f"expected: {row['hypothesis']}" * bool(row["hypothesis"])]
    if pd.notna(row["not_compared"]):
        parts.append(f"not compared with {_side(history.loc[row['against']])}: {row['not_compared']}")
    elif pd.notna(row["also_changed"]):
        parts.append(f"also changed: {row['also_changed']}")
    if row["kind"] == "report" and fmt.known(row["ratio"]) is not None:
        slower = " (regression)" if row["regression"] else ""
        parts.append(f"its baseline takes {_ratio(row)} the time of {_reference(row, history)}{slower}")
    return " · ".join(filter(None, parts))


def _notes(history: pd.DataFrame, changes: pd.DataFrame, damaged: Mapping[str, str]) -> Iterator[str]:
    if history["ratio"].notna().any() or len(changes):
        yield _CAUTION
    if (history["ratio"].notna() & (history["name"] == "")).any():
        yield _NAMELESS
    if damaged:
        yield f"Damaged and ignored: {fmt.named(list(damaged))}. The journal's attribute damaged contains the reasons."
