"""One lever tried from the report: what *Try it* does, and its answer for the browser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape
from perfnb.remedies.try_levers import run_trials

if TYPE_CHECKING:
    from perfnb.draw.progress import Line
    from perfnb.remedies.try_levers import LeverTrials

#: Seconds for all trials together, one compilation not counted: somebody is waiting.
BUDGET_S = 30.0
_VALUES = {
    "exact": "the same, bit by bit",
    "within noise": "as close to float64 as without it",
    "reduced precision": "lower precision, as its dtype explains",
    "different": "different: check before you use it",
    "not checked": "not checked: random numbers are drawn in another order",
}


_SAID = {
    "less": "less memory on this machine, but do not keep it as it is",
    "more": "no less memory",
    "faster": "faster on this machine, but do not keep it as it is",
    "slower": "slower on this machine",
    "same": "no faster: the difference is too small to matter",
    "inconclusive": "no clear difference in the time it was given",
}


def try_one(parts: Mapping[str, Any], lever: str, line: Line) -> dict[str, Any]:
    """Try a lever on a step.

    Parameters
    ----------
    parts : mapping of str to object
        ``step``, ``batches``, ``namespace`` and ``models``, as `run_trials` takes them.
    lever : str
    line : Line
        Shows progress.

    Raises
    ------
    Exception
        Whatever the step raises without the lever, after everything has been put back.
    """
    from perfnb.remedies.levers import by_name

    __tracebackhide__ = True
    # A single lever, chosen before measuring, flatters nobody: there is nothing to confirm.
    goal = "memory" if by_name()[lever].for_memory else "time"
    found = run_trials(**parts, wanted=[lever], goal=goal, budget_s=BUDGET_S, confirm=False, quiet=True, line=line)
    return answer_of(found, lever)


def answer_of(trials: LeverTrials, lever: str) -> dict[str, Any]:
    """What trying a lever showed, ready for JSON.

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
    verdict = str((row["memory"] if trials._goal == "memory" else None) or row["verdict"])
    keep = verdict in ("faster", "less") and not why
    error = fmt.known(row["error"])
    values = _VALUES.get(row["values"], row["values"]) + (f" (error {error:.1g})" if error else "")
    facts = [("Step time", fmt.change(ratio, bounds)), ("Results", values)]
    if row["memory"] is not None:
        before = row["peak_bytes"] - row["peak_change_bytes"]
        words = f"{fmt.size(before)} → {fmt.size(row['peak_bytes'])} ({fmt.change(row['peak_bytes'] / before)})"
        facts.insert(0 if trials._goal == "memory" else 1, ("Peak memory", words))
    if setup is not None and setup >= 0.1:
        paid = "" if pays is None else f", pays after {pays:,.0f} steps"
        facts.append(("Set-up", fmt.duration(1e3 * setup) + paid))
    if why:
        facts.append(("Caveat", why))
    return {
        "said": _said(lever, verdict, keep),
        "saves": fmt.duration(row["saves_ms"]) if row["verdict"] == "faster" else None,
        "clear": row["verdict"] != "inconclusive",
        "share": None if ratio is None else fmt.short(1 - ratio),
        "shares": None if bounds is None else [fmt.short(1 - bounds[1]), fmt.short(1 - bounds[0])],
        "facts": facts,
        "code": escape.plain(row["code"], 600) if keep else "",
        "keep": keep,
    }


def _said(lever: str, verdict: str, keep: bool) -> str:
    found = "less memory" if verdict == "less" else verdict
    words = f"{found}, and its results pass the check" if keep else _SAID.get(verdict, verdict)
    return f"With {lever}: {words}."
