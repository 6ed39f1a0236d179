"""A journal as a document: the last decision, what has changed since, the trend and the entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw.document import Axis, Cell, Column, Document, Line, Series, State, Table, Value, Verdict
from perfnb.draw.palette import BLUE, GREY, Mark

#: Most entries in the charts, charts, one per step name, and sentences of one kind; the last ones are shown.
_MOST_ENTRIES, _MOST_CHARTS, _MOST_SENTENCES = 60, 4, 4
_KINDS = {"report": "A/B test"}
_DECISIONS: dict[str, tuple[State, str]] = {
    "accept": ("good", "was accepted"),
    "reject": ("bad", "was rejected"),
    "inconclusive": ("open", "was inconclusive"),
}
_CAUTION = (
    "Entries were measured in separate sessions, not in pairs: changes of the machine in between affect their ratios, "
    "but not the intervals. perfnb.ab_test compares in pairs."
)
_NAMELESS = (
    "Entries added without name= are compared as if all were of one step: pass name= to journal.add if they are not."
)


def journal_document(history: pd.DataFrame, damaged: Mapping[str, str], where: str) -> Document:
    """What was decided last, or what has become slower since."""
    return Document(
        "journal",
        where,
        verdict=_verdict(history),
        facts=(fmt.counted(len(history), "entry"),),
        sections=(*trends(history, 2), _entries(history)) if len(history) else (),
        notes=tuple(_notes(history, damaged)),
    )


def _verdict(history: pd.DataFrame) -> Verdict:
    if not len(history):
        return Verdict(
            "none", "Nothing added yet", next="Add what you measure.", code="journal.add(test, change='...')"
        )
    decided, accepted = history[history["decision"].notna()], history[history["accepted"]]
    last_ones = accepted.groupby("name", sort=False).tail(1)
    kept = [
        f"Last accepted: {_entry(row)}, {fmt.interval(row['median_ms'], (row['ci_low_ms'], row['ci_high_ms']))}."
        for _, row in last_ones.iterrows()
    ]
    # What was slower before the last acceptance of its step is old news.
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
    """What an entry is compared with: the last accepted, or else the first, of an A/B test its baseline."""
    reference = history.loc[row["against"]]
    if reference["accepted"]:
        return f"entry {reference['number']}, the last accepted before it"
    return f"{_side(reference)}, the first"


def _side(row: Any) -> str:
    """What later entries are compared with: of an A/B test that was not accepted, its baseline."""
    is_baseline = row["kind"] == "report" and not row["accepted"]
    return f"{'the baseline of ' if is_baseline else ''}entry {row['number']}"


def trends(history: pd.DataFrame, fewest: int) -> Iterator[Series]:
    """Step time by entry, a chart per step with enough entries; of an A/B test, both sides."""
    recent = history.iloc[-_MOST_ENTRIES:]
    for name in recent["name"].drop_duplicates(keep="last").iloc[-_MOST_CHARTS:]:
        rows = recent[recent["name"] == name]
        if rows["median_ms"].count() < fewest:
            continue
        tested = (rows["kind"] == "report").any()
        step = Mark("step, or candidate of an A/B test" if tested else "step", BLUE, "█", "solid")
        lines = [_line(step, rows, "median_ms", "ci")]
        if tested:
            baseline = Mark("baseline of an A/B test", GREY, "░", "dots")
            lines.append(_line(baseline, rows, "baseline_ms", "baseline_ci"))
        accepted = rows.loc[rows["accepted"], "median_ms"].dropna()
        levels = {"last accepted": float(accepted.iloc[-1])} if len(accepted) else {}
        numbers = [int(number) for number in rows["number"]]
        title = f"Step time by entry{f': {name}' if name else ''}"
        yield Series(title, Axis("entry", "count"), Axis("step time", "ms"), numbers, tuple(lines), levels)


def _line(mark: Mark, rows: pd.DataFrame, column: str, bounds: str) -> Line:
    columns = (column, f"{bounds}_low_ms", f"{bounds}_high_ms")
    return Line(mark, *(list(map(fmt.known, rows[name])) for name in columns))


def _entries(history: pd.DataFrame) -> Table:
    """The entries, the last one first."""
    rows = [row for _, row in history.iloc[::-1].iterrows()]
    columns = (
        Column("entry"),
        Column("change", live=True),
        Column("step", "ms", help="of an A/B test, its candidate"),
        Column("ratio", "ratio"),
        Column("against", priority=1, help="what the ratio compares with: an A/B test in pairs, others not"),
        Column("result"),
        Column("name", priority=2),
        Column("what", priority=3),
        Column("added", priority=4, help="UTC"),
    )
    details = [_detail(row, history) for row in rows]
    return Table("Entries", columns, [_cells(row, history) for row in rows], details=details, noun="entry")


def _cells(row: Any, history: pd.DataFrame) -> tuple[Cell, ...]:
    is_test, compared = row["kind"] == "report", fmt.known(row["ratio"]) is not None
    step = Value(fmt.known(row["median_ms"]), "ms", fmt.known_bounds((row["ci_low_ms"], row["ci_high_ms"])))
    ratio: Cell = "" if not compared else Value(row["ratio"], "ratio", (row["ratio_ci_low"], row["ratio_ci_high"]))
    against = _side(history.loc[row["against"]]) if compared else ""
    if is_test:
        bounds = row["candidate_ci_low"], row["candidate_ci_high"]
        ratio, against = Value(row["candidate_ratio"], "ratio", bounds), "its baseline"
    kind, added = _KINDS.get(row["kind"], row["kind"]), f"{row['at']:%Y-%m-%d}"
    return str(row["number"]), row["change"], step, ratio, against, _result(row), row["name"], kind, added


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


def _notes(history: pd.DataFrame, damaged: Mapping[str, str]) -> Iterator[str]:
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
            f"Entry {row['number']} is the first on its machine and batch size, so it is not compared with entry "
            f"{numbers[row['against']]} ({row['not_compared']})."
        )
    if history["ratio"].notna().any():
        yield _CAUTION
    if (history["ratio"].notna() & (history["name"] == "")).any():
        yield _NAMELESS
    for name, why in list(damaged.items())[:_MOST_SENTENCES]:
        yield f"Entry {name} is damaged and ignored: {why}."
    if (more := len(damaged) - _MOST_SENTENCES) > 0:
        yield f"{fmt.counted(more, 'more entry')} {'is' if more == 1 else 'are'} damaged and ignored."
