"""The ladder of levers: text, static HTML and a page."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, tables
from perfnb.draw import ladder as drawn
from perfnb.draw.frame import framed, header, static_page
from perfnb.profile.timing import noise_facts

if TYPE_CHECKING:
    from perfnb.remedies.try_levers import LeverTrials

#: Most levers that were not tried and are named.
_NAMED = 3
#: How *Try it* says what the check of values found, and what a lever that is not to be kept did.
_VALUES = {
    "exact": "the same, bit by bit",
    "within noise": "as close to float64 as without it",
    "reduced precision": "lower precision, as its dtype explains",
    "different": "different: check before you use it",
    "not checked": "not checked: random numbers are drawn in another order",
}
_NOT_KEPT = {
    "less": "less memory on this machine, but do not keep it as it is",
    "more": "no less memory",
    "faster": "faster on this machine, but do not keep it as it is",
    "slower": "slower on this machine",
    "same": "no faster: the difference is too small to matter",
    "inconclusive": "no clear difference in the time it was given",
}
_HEADS = ("lever", "time", "values", "saves", "memory", "set-up", "pays after", "notes")


def trials_line(trials: LeverTrials) -> str:
    """One line: what helps."""
    return f"{escape.plain(trials.figures.name, 40)}: {_summary(trials)}"


def trials_text(trials: LeverTrials) -> str:
    """The ladder as text."""
    rows = _rows(trials)
    parts = [
        f"Levers for {escape.plain(trials.figures.name, 40)} ({_about(trials)})",
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
    return framed(f"{header(trials.figures.name, 'Levers', '', _about(trials))}{said}{code}{table}", narrow=True)


def _unbroken(time: str) -> str:
    """A verdict and its change, which is broken nowhere but between the two."""
    verdict, _, change = time.partition(" ")
    return f'{verdict} <span style="white-space:nowrap">{change}</span>'


def trials_page(trials: LeverTrials) -> str:
    """A page of its own."""
    return static_page(f"Levers for {trials.figures.name}", trials_html(trials))


def _about(trials: LeverTrials) -> str:
    peak = "" if trials.figures.own_peak is None else f", peak {fmt.size(trials.figures.own_peak)}"
    caveat = f"; {escape.plain(trials.figures.caveat, 200)}" if trials.figures.caveat else ""
    fed = "" if trials.figures.fed_ms is None else f" ({fmt.duration(trials.figures.fed_ms)} with its batch)"
    fed = " with its batch" if trials.figures.fed_ms == trials.figures.step_ms else fed
    rounds = f"{fmt.counted(trials.figures.rounds, 'round')}, every lever once in each"
    facts = [rounds if trials.figures.rounds else "nothing timed", *noise_facts(trials.figures.noise)]
    return f"step {fmt.duration(trials.figures.step_ms)}{fed}{peak}, {'; '.join(facts)}{caveat}"


def _summary(trials: LeverTrials) -> str:
    found = trials.figures.confirmed
    if found is None:
        less = "takes less memory" if trials.figures.goal == "memory" else "makes the step faster"
        if open_ := [one.lever for one in trials.figures.trials if one.unconfirmed]:
            if not trials.figures.confirms:
                return f"{' and '.join(open_)}: {less}, not confirmed (confirm=False), and each tried by itself"
            why = "in this budget"
            return f"{' and '.join(open_)} could not be confirmed {why}: seen once that it {less}"
        if all(one.verdict == "not tried" for one in trials.figures.trials):
            return "nothing was tried"
        if trials.figures.need_s is not None and not trials.figures.rounds:
            return f"nothing could be timed within the budget: about {trials.figures.need_s:,} s would do"
        return f"nothing that was tried {less} and keeps its results"
    said = "not measured" if found.ratio is None else drawn.ratio_words(found.ratio, found.ratio_ci)
    if trials.figures.goal == "memory":
        peak, own = found.peak_bytes or 0, trials.figures.own_peak or 1
        return f"keep {found.lever}: peak {fmt.size(peak)} ({drawn.percent(peak / own)}), time {said}"
    saved = fmt.duration(found.saves_ms)
    if found.saves_ms is not None and found.ratio is not None and found.ratio < 1:
        before = found.saves_ms / (1 - found.ratio)
        saved += f" ({fmt.duration(before)} → {fmt.duration(before - found.saves_ms)})"
    return f"keep {found.lever}: {saved} saved, confirmed on fresh pairs: {said}"


def _ladder(trials: LeverTrials) -> pd.DataFrame:
    """The levers that were tried, those that save most first."""
    by = "peak_bytes" if trials.figures.goal == "memory" else "ratio"
    table = trials.table[trials.table["verdict"] != "not tried"]
    return table.sort_values(by, kind="stable", na_position="last")


def _not_tried(trials: LeverTrials) -> str:
    """The levers that were not tried, in a line, with the reason if it is the same for all; empty if there are none."""
    left = [one for one in trials.figures.trials if one.verdict == "not tried"]
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


def trial_answer(trials: LeverTrials, lever: str) -> dict[str, Any]:
    """What trying a lever showed, ready for JSON: the answer of *Try it*.

    ``said`` in a sentence; what it saves as words and as ``share`` of the step, with its interval in ``shares``;
    ``facts`` as pairs of words; ``code`` that keeps it, empty unless it is worth keeping (``keep``). Or an ``error``.
    """
    row: dict[Any, Any] = trials.table.loc[lever].to_dict()
    why = escape.plain(row["why_not"], 300)
    if row["verdict"] == "not tried":
        return {"error": f"It could not be tried: {why}"}
    bounds = None if pd.isna(row["ratio_low"]) else (float(row["ratio_low"]), float(row["ratio_high"]))
    ratio, setup, pays = fmt.known(row["ratio"]), fmt.known(row["setup_s"]), fmt.known(row["pays_after_steps"])
    if ratio is None and row["memory"] is None:
        return {"error": f"It could not be measured: {why}"}
    by_memory = trials.figures.goal == "memory"
    verdict = str((row["memory"] if by_memory else None) or row["verdict"])
    keep = verdict in ("faster", "less") and not why
    helped = f"{'less memory' if verdict == 'less' else verdict}, and its results pass the check"
    error = fmt.known(row["error"])
    facts = [
        ("Step time", fmt.change(ratio, bounds)),
        ("Results", _VALUES.get(row["values"], row["values"]) + (f" (error {error:.1g})" if error else "")),
    ]
    if row["memory"] is not None:
        before = row["peak_bytes"] - row["peak_change_bytes"]
        words = f"{fmt.size(before)} → {fmt.size(row['peak_bytes'])} ({fmt.change(row['peak_bytes'] / before)})"
        facts.insert(0 if by_memory else 1, ("Peak memory", words))
    if setup is not None and setup >= 0.1:
        paid = "" if pays is None else f", pays after {pays:,.0f} steps"
        facts.append(("Set-up", fmt.duration(1e3 * setup) + paid))
    if why:
        facts.append(("Caveat", why))
    return {
        "said": f"With {lever}: {helped if keep else _NOT_KEPT.get(verdict, verdict)}.",
        "saves": fmt.duration(row["saves_ms"]) if row["verdict"] == "faster" else None,
        "clear": row["verdict"] != "inconclusive",
        "share": None if ratio is None else fmt.short(1 - ratio),
        "shares": None if bounds is None else [fmt.short(1 - bounds[1]), fmt.short(1 - bounds[0])],
        "facts": facts,
        "code": escape.plain(row["code"], 600) if keep else "",
        "keep": keep,
    }
