"""The ladder of levers: text, static HTML and a page."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, tables
from perfnb.draw import ladder as drawn
from perfnb.draw.frame import framed, header, static_page

if TYPE_CHECKING:
    from perfnb.remedies.try_levers import LeverTrials

#: Most levers that were not tried and are named.
_NAMED = 3
_HEADS = ("lever", "time", "values", "saves", "memory", "set-up", "pays after", "notes")


def trials_line(trials: LeverTrials) -> str:
    """One line: what helps."""
    return f"{escape.plain(trials._name, 40)}: {_summary(trials)}"


def trials_text(trials: LeverTrials) -> str:
    """The ladder as text."""
    rows = _rows(trials)
    parts = [
        f"Levers for {escape.plain(trials._name, 40)} ({_about(trials)})",
        "",
        *([*drawn.text_table([_HEADS, *rows]), ""] if rows else []),
    ]
    parts += textwrap.wrap(f"{fmt.capital(_summary(trials))}.", 100)
    if said := _not_tried(trials):
        parts += textwrap.wrap(said, 100)
    if trials.code:
        parts += ["", *trials.code.splitlines()]
    return "\n".join(parts)


def trials_html(trials: LeverTrials) -> str:
    """The ladder as static HTML."""
    ladder = _ladder(trials)
    longest = drawn.longest(ladder)
    rows, notes = [], []
    for name, row in ladder.iterrows():
        _, time, *cells, said = map(escape.html, _row(str(name), row))
        bar = drawn.bar(row, longest)
        rows.append([escape.html(name), f"{bar}<br>{_unbroken(time)}" if bar else time, *cells])
        notes += [f"<strong>{escape.html(name)}</strong>: {said}"] if said else []
    heads = [_HEADS[0], "time (faster | slower)", *_HEADS[2:-1]]
    table = tables.table("Levers, each against the step as it is", heads, rows, texts=3) if rows else ""
    if notes:
        table += f"<p>{'<br>'.join(notes)}</p>"
    if left := _not_tried(trials):
        table += f"<p>{escape.html(left, 4000)}</p>"
    lines = "\n".join(escape.html(line, 300) for line in trials.code.splitlines())
    code = f"<pre>{lines}</pre>" if lines else ""
    said = f"<p>{escape.html(fmt.capital(_summary(trials)), 2000)}.</p>"
    return framed(f"{header(trials._name, 'Levers', '', _about(trials))}{said}{code}{table}", narrow=True)


def _unbroken(time: str) -> str:
    """A verdict and its change, which is broken nowhere but between the two."""
    verdict, _, change = time.partition(" ")
    return f'{verdict} <span style="white-space:nowrap">{change}</span>'


def trials_page(trials: LeverTrials) -> str:
    """A page of its own."""
    return static_page(f"Levers for {trials._name}", trials_html(trials))


def _about(trials: LeverTrials) -> str:
    peak = "" if trials._own_peak is None else f", peak {fmt.size(trials._own_peak)}"
    said = f"; {escape.plain(trials._said, 200)}" if trials._said else ""
    fed = "" if trials._fed_ms is None else f" ({fmt.duration(trials._fed_ms)} with its batch)"
    fed = " with its batch" if trials._fed_ms == trials._step_ms else fed
    rounds = f"{fmt.counted(trials._rounds, 'round')}, every lever once in each" if trials._rounds else "nothing timed"
    busy = ""
    if trials._load is not None and trials._load[0] > trials._load[1]:
        load, cpus = trials._load
        busy = f"; the machine was busy: a load of {load:.1f} on {fmt.counted(cpus, 'CPU')}, so times vary more"
    return f"step {fmt.duration(trials._step_ms)}{fed}{peak}, {rounds}{busy}{said}"


def _summary(trials: LeverTrials) -> str:
    found = trials._confirmed
    if found is None:
        less = "takes less memory" if trials._goal == "memory" else "makes the step faster"
        if open_ := [one.lever for one in trials._trials if one.unconfirmed]:
            if not trials._confirms:
                return f"{' and '.join(open_)}: {less}, not confirmed (confirm=False), and each tried by itself"
            why = "in this budget"
            return f"{' and '.join(open_)} could not be confirmed {why}: seen once that it {less}"
        if all(one.verdict == "not tried" for one in trials._trials):
            return "nothing was tried"
        if trials._need_s is not None and not trials._rounds:
            return f"nothing could be timed within the budget: about {trials._need_s:,} s would do"
        return f"nothing that was tried {less} and keeps its results"
    together = " and ".join(found.levers)
    said = "not measured" if found.ratio is None else drawn.ratio_words(found.ratio, found.ratio_ci)
    if trials._goal == "memory":
        peak, own = found.peak_bytes or 0, trials._own_peak or 1
        return f"keep {together}: peak {fmt.size(peak)} ({drawn.percent(peak / own)}), time {said}"
    saved = fmt.duration(found.saves_ms)
    if found.saves_ms is not None and found.ratio is not None and found.ratio < 1:
        before = found.saves_ms / (1 - found.ratio)
        saved += f" ({fmt.duration(before)} → {fmt.duration(before - found.saves_ms)})"
    return f"keep {together}: {saved} saved, confirmed on fresh pairs: {said}"


def _ladder(trials: LeverTrials) -> pd.DataFrame:
    """The levers that were tried, those that save most first."""
    by = "peak_bytes" if trials._goal == "memory" else "ratio"
    table = trials.table[trials.table["verdict"] != "not tried"]
    return table.sort_values(by, kind="stable", na_position="last")


def _not_tried(trials: LeverTrials) -> str:
    """The levers that were not tried, in a line, with the reason if it is the same for all; empty if there are none."""
    left = [one for one in trials._trials if one.verdict == "not tried"]
    names = ", ".join(one.lever for one in left[:_NAMED])
    names += f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    whys = {escape.plain(one.why_not, 300) for one in left}
    said = f"{names} ({whys.pop()})" if len(whys) == 1 else f"{names}; .table says why"
    return f"Not tried: {said}." if left else ""


def _rows(trials: LeverTrials) -> list[tuple[str, ...]]:
    return [_row(str(name), row) for name, row in _ladder(trials).iterrows()]


def _row(name: str, row: Any) -> tuple[str, ...]:
    notes = escape.plain("; ".join(filter(None, (row["why_not"], row["notes"]))), 300)
    if pd.isna(row["ratio"]):
        tried = row["verdict"] != "not tried"
        values, memory = (row["values"], _memory(row)) if tried else ("", "")
        return name, row["verdict"], values, "", memory, "", "", notes
    setup, pays = row["setup_s"], row["pays_after_steps"]
    return (
        name,
        drawn.row_words(row),
        f"{row['values']} ({float(row['error']):.1g})"
        if not pd.isna(row["error"]) and row["error"] > 0
        else row["values"],
        fmt.duration(float(row["saves_ms"])) if row["verdict"] == "faster" else "",
        _memory(row),
        "" if pd.isna(setup) else fmt.duration(float(setup) * 1e3),
        "" if pd.isna(pays) else f"{int(pays):,} steps",
        notes,
    )


def _memory(row: Any) -> str:
    """The change of the peak, such as ``-12 %``; "n/a" if it was not measured."""
    peak, change = row["peak_bytes"], row["peak_change_bytes"]
    return fmt.UNKNOWN if pd.isna(change) or peak == change else drawn.percent(peak / (peak - change))
