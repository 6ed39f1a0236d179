"""Present the levers' effects as a document, and return the answer for *Try it*."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from perfnb import quantities as fmt
from perfnb.draw import escape
from perfnb.draw.document import Column, Document, Effect, Effects, Figure, Section, State, Table, Verdict
from perfnb.profile.timing import noise_sentences

if TYPE_CHECKING:
    from perfnb.remedies.try_levers import LeverTrials
    from perfnb.remedies.verdicts import LeverTrial

#: How *Try it* describes the result of checking values, and the effect of a lever that should not be kept.
_VALUES = {
    "exact": "the same, bit for bit",
    "within noise": "as close to float64 as without it",
    "reduced precision": "lower precision, as its dtype explains",
    "different": "different: check before you use it",
    "not checked": "not checked: random numbers are drawn in another order",
}
#: An undecided lever is mentioned if it may reduce a step's time to less than this share.
_MUCH = 0.9
_NOT_KEPT = {
    "less": "less memory on this machine, but do not keep it yet",
    "more": "no less memory",
    "faster": "faster on this machine, but do not keep it yet",
    "slower": "slower on this machine",
    "same": "no faster: the difference is too small to matter",
    "inconclusive": "no clear difference within the time limit",
}


def trials_document(trials: LeverTrials) -> Document:
    """Return a document that shows each lever's effect on the step, largest saving first."""
    figures = trials.figures
    state, sentence = _answer(trials)
    timed = f"{fmt.counted(figures.rounds, 'round')}, each with every lever once" if figures.rounds else "nothing timed"
    step = (
        Figure("step", figures.step_ms, "ms"),
        Figure("step with its batch", figures.fed_ms, "ms"),
        Figure("peak memory", figures.own_peak, "bytes"),
    )
    return Document(
        "levers",
        figures.name,
        verdict=Verdict(state, sentence, code=trials.code),
        figures=tuple(figure for figure in step if figure.value is not None),
        facts=(timed,),
        sections=tuple(_sections(trials)),
        notes=tuple(filter(None, (figures.caveat, *noise_sentences(figures.noise), _not_tried(trials)))),
    )


def _answer(trials: LeverTrials) -> tuple[State, str]:
    """Summarise the helpful levers in a sentence."""
    figures, kept = trials.figures, trials.figures.confirmed
    if kept is None:
        less = "takes less memory" if figures.goal == "memory" else "makes the step faster"
        if seen := [trial.lever for trial in figures.trials if trial.unconfirmed]:
            names = " and ".join(seen)
            if not figures.confirms:
                return "open", f"{names}: {less}, but not confirmed (confirm=False), and each tried separately"
            return "open", f"{names} could not be confirmed within this budget: in one measurement, it {less}"
        if all(trial.verdict == "not tried" for trial in figures.trials):
            reasons = {trial.why_not for trial in figures.trials}
            return "none", f"Nothing was tried: {reasons.pop()}" if len(reasons) == 1 else "Nothing was tried"
        if figures.need_s is not None and not figures.rounds:
            return "open", f"Nothing could be timed within the budget: about {figures.need_s:,} s would be enough"
        tried = figures.trials if figures.goal == "time" else []
        if faster := [trial.lever for trial in tried if trial.verdict == "faster"]:
            return "open", f"{' and '.join(faster)}: faster, but not confirmed as worth keeping; see the reason below"
        if undecided := [trial.lever for trial in tried if _is_open(trial)]:
            names, more = " and ".join(undecided), f"give it more time ({figures.budget_word})"
            return "open", f"No lever is proven to make the step faster, but {names} may: {more}"
        return "none", f"None of the levers that were tried {less} without changing its results"
    time = "not measured" if kept.ratio is None else fmt.with_interval(fmt.ratio(kept.ratio), kept.ratio, kept.ratio_ci)
    if figures.goal == "memory":
        peak, own = kept.peak_bytes or 0, figures.own_peak or 1
        less = f"{fmt.size(own)} → {fmt.size(peak)}, {fmt.share(1 - peak / own)} less"
        return "good", f"Keep {kept.lever}: peak memory {fmt.ratio(peak / own)} ({less}), time {time}"
    less = fmt.share(1 - (kept.ratio or 1.0))
    saved = f"{fmt.duration(kept.saves_ms)} saved ({less} less), confirmed on fresh pairs"
    return "good", f"Keep {kept.lever}: {saved}: {time}"


def _is_open(trial: LeverTrial) -> bool:
    """Return whether a lever may save a lot, but its interval is too wide to tell."""
    low = trial.ratio_ci[0] if trial.ratio_ci else 1.0
    return trial.verdict == "inconclusive" and not trial.why_not and (trial.ratio or 1.0) < 1 and low < _MUCH


def _sections(trials: LeverTrials) -> Iterator[Section]:
    by = "peak_bytes" if trials.figures.goal == "memory" else "ratio"
    tried = [trial for trial in trials.figures.trials if trial.verdict != "not tried"]
    tried.sort(key=lambda trial: math.inf if (value := getattr(trial, by)) is None else value)
    if not tried:
        return
    yield Effects("Time of a step with each lever, against the baseline", tuple(map(_effect, tried)), head="lever")
    columns = (
        Column("lever"),
        Column("values"),
        Column("error", "number", priority=3, help="largest distance from float64, relative"),
        Column("saves", "ms"),
        Column("peak memory", "bytes", priority=1),
        Column("change", "ratio", priority=2, help="of the peak, against the baseline"),
        Column("set-up", "ms", priority=1),
        Column("pays after", "count", priority=2, help="steps"),
    )
    rows = []
    for trial in tried:
        peak, own, setup_s = trial.peak_bytes, trials.figures.own_peak, trial.setup_s
        saves_ms = trial.saves_ms if trial.verdict == "faster" else None
        change = peak / own if peak is not None and own else None
        setup_ms = None if setup_s is None else 1e3 * setup_s
        checked = trial.values.verdict, fmt.known(trial.values.error)
        rows.append((trial.lever, *checked, saves_ms, peak, change, setup_ms, trial.pays_after_steps))
    yield Table("What each lever changes", columns, rows, noun="lever")


def _effect(trial: LeverTrial) -> Effect:
    reservations = "; ".join(filter(None, (trial.why_not, *trial.notes)))
    return Effect(trial.lever, trial.ratio, trial.ratio_ci, trial.verdict, reservations)


def _not_tried(trials: LeverTrials) -> str:
    """Return a line with the levers that were not tried, and their common reason; empty if there are none."""
    left = [trial for trial in trials.figures.trials if trial.verdict == "not tried"]
    names = fmt.named([trial.lever for trial in left])
    reasons = {trial.why_not for trial in left}
    said = f"{names} ({reasons.pop()})" if len(reasons) == 1 else f"{names}; see .table"
    return f"Not tried: {said}." if left else ""


def trial_answer(trials: LeverTrials, lever: str) -> dict[str, Any]:
    """Return the result of trying a lever, ready for JSON, as the answer for *Try it*.

    The result contains a sentence in ``said``; the ``effect`` on the step time, as in documents; ``facts`` as pairs of
    words; and the ``code`` that makes the lever permanent, which is empty unless the lever is worth keeping (``keep``).
    If the trial failed, the result contains an ``error`` instead.
    """
    figures = trials.figures
    trial = next(trial for trial in figures.trials if trial.lever == lever)
    why, ratio = escape.plain(trial.why_not, 300), trial.ratio
    if ratio is None and not trial.memory:
        return {"error": f"It could not be {'tried' if trial.verdict == 'not tried' else 'measured'}: {why}"}
    verdict = (trial.memory if figures.goal == "memory" else "") or trial.verdict
    keep = verdict in ("faster", "less") and not why
    helped = f"{'less memory' if verdict == 'less' else verdict}, and its results pass the check"
    said = f"With {lever}: {helped if keep else _NOT_KEPT.get(verdict, verdict)}."
    error = f" (error {error:.1g})" if (error := fmt.known(trial.values.error)) else ""
    facts = [("Results", _VALUES.get(trial.values.verdict, trial.values.verdict) + error)]
    if trial.memory and trial.peak_bytes and figures.own_peak:
        change = fmt.change(trial.peak_bytes / figures.own_peak)
        facts.insert(0, ("Peak memory", f"{fmt.size(figures.own_peak)} → {fmt.size(trial.peak_bytes)} ({change})"))
    if trial.setup_s is not None and trial.setup_s >= 0.1:
        pays = trial.pays_after_steps
        facts.append(("Set-up", fmt.duration(1e3 * trial.setup_s) + (f", pays after {pays:,} steps" if pays else "")))
    if why:
        facts.append(("Caveat", why))
    effect = fmt.with_interval(fmt.ratio(ratio), ratio, trial.ratio_ci)
    saves = f"saves {fmt.duration(trial.saves_ms)}" if trial.verdict == "faster" else trial.verdict
    return {
        "said": said,
        "effect": {"label": lever, "ratio": ratio, "interval": trial.ratio_ci, "words": effect, "verdict": saves},
        "facts": facts,
        "code": escape.plain("\n".join(trial.code), 600) if keep else "",
        "keep": keep,
    }
