"""Derive a step's findings and its verdict: what limits the step, why, and what to try next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isclose

from perfnb import quantities as fmt
from perfnb.attribution.attribution import Attribution
from perfnb.findings.doubts import doubt_of, held_up, too_few_steps
from perfnb.findings.facts import Facts, StepFigures, facts_of
from perfnb.findings.finding import Conclusion, Finding, Findings, deciding, finding_table, found_by
from perfnb.findings.proposed_code import setting, shown
from perfnb.findings.rules import BY_NAME, RULES
from perfnb.findings.rules.bound import BINDS, work_under
from perfnb.recording.recording import Recording
from perfnb.roofline.levels import COMPUTE, MEMORY

#: Share of the step that a finding must be able to save to become the verdict.
_DECIDES = 0.1
#: Share of the step below which a GPU is mostly idle.
_MOSTLY_IDLE = 0.5
_PHASES = {
    "data": "waiting for data",
    "host_to_device": "copies to the device",
    "forward": "the forward pass",
    "loss": "the loss",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "communication": "waiting for collectives that are not hidden",
    "other": "code outside all phases: Python, or ops outside model, loss and optimizer",
}


def find(recording: Recording, attribution: Attribution, figures: StepFigures) -> Findings:
    """Apply every rule.

    Code is shown only if all of its names are known. No finding is more certain than the steps allow.
    """
    facts = facts_of(recording, attribution, figures)
    found = [_applied(finding, facts) for finding in found_by(RULES, facts, facts.step_ms)]
    table, verdict = finding_table(found, facts.step_ms), verdict_of(facts, found)
    return Findings(table, verdict, facts.step_ms, recording.meta.get("call"))


def _applied(finding: Finding, facts: Facts) -> Finding:
    """Adapt a finding's code, lever and confidence to this step."""
    code, remedy = "", ""  # both require torch
    if facts.uses_torch:
        code, remedy = shown(finding.code, facts.variables), facts.applicable(finding.remedy)
    # perfnb cannot copy a loader of a custom class, but the user can create it with workers.
    without_workers = finding.remedy == "loader_workers" and facts.loader.get("num_workers") == 0
    words = setting(facts.trainer, finding.remedy if without_workers else remedy)
    finding = replace(finding, code=code, remedy=remedy)
    if words:
        finding = replace(finding, advice=f"{finding.advice} The setting for that: {words}.")
    if finding.bound_ms is None:
        return finding
    doubt = "" if BY_NAME[finding.bottleneck].timed_only else doubt_of(facts)
    if doubt := doubt or too_few_steps(facts):
        return finding.at_most("low", doubt)
    if not facts.live and facts.attribution.steps == 1:
        return finding.at_most("medium", "The trace contains only one step, and others may differ.")
    return finding


def verdict_of(facts: Facts, found: Sequence[Finding]) -> Conclusion:
    """Return the verdict on a step, based on its sorted findings or, if there are none, on its use of time."""
    place, doubt = deciding(found, BY_NAME, facts.step_ms, _DECIDES), doubt_of(facts) or too_few_steps(facts)
    if place is not None and (found[place].urgency > 0 or BY_NAME[found[place].bottleneck].timed_only):
        verdict, doubt = _of_finding(facts, found, place), too_few_steps(facts)
    elif held_up(facts):
        again = "Profile again when nothing else is running; perfnb.time_step shows whether the step time is stable."
        verdict = Conclusion("No verdict: something held up the timed steps.", "", again)
    elif place is not None:
        verdict = _of_finding(facts, found, place)
    else:
        verdict = _without_finding(facts, bool(found))
    if verdict.finding is not None and doubt in found[verdict.finding].why:
        doubt = ""  # the report shows it with the finding
    return replace(verdict, why=" ".join(filter(None, (verdict.why, doubt))))


def _of_finding(facts: Facts, found: Sequence[Finding], place: int) -> Conclusion:
    finding = found[place]
    rule, gpu, bound = BY_NAME[finding.bottleneck], facts.gpu, finding.bound_ms
    headline, saving = rule.words_for(facts)
    if bound is None:
        return Conclusion(f"{headline}.", finding.evidence, finding.advice, place)
    share, whole = fmt.share(finding.share(facts.step_ms)), finding.of_ms or facts.step_ms
    of = facts.step_words if isclose(whole, facts.step_ms, rel_tol=1e-6) else f"a mean step of {fmt.duration(whole)}"
    saved = f"{fmt.duration(bound)} of {of} ({share})"
    if not rule.explained:
        idle = f"The GPU is idle for {share} of the step ({fmt.duration(bound)} of {of})"
        verdict = f"{idle}, and the trace does not show why."
    elif rule.idle_cause and gpu is not None and gpu.is_unsure(rule.idle_cause):
        idle_ms = min(bound, gpu.held_ms(rule.idle_cause))  # without copies, during which the GPU is busy
        verdict = (
            f"The GPU is idle for {fmt.share(idle_ms / whole)} of the step ({fmt.duration(idle_ms)} of {of}) while the "
            f"host is blocked by {headline.removeprefix('Bound by ')}, but nothing shows that the GPU waited for that."
        )
    elif rule.ceiling and gpu is not None:
        verdict = f"{headline}: doing this work faster, or less of it, could save at most {saved}."
    else:
        verdict = f"{headline}: {saving} could save up to {saved}."
    why = finding.evidence
    for other in found:
        if other is not finding and not BY_NAME[other.bottleneck].explained:
            why += f" The GPU is idle for another {fmt.duration(other.bound_ms)}, and the trace does not show why."
    return Conclusion(verdict, why, finding.advice, place)


def _without_finding(facts: Facts, smaller: bool) -> Conclusion:
    """Return the verdict on a step without a decisive finding; `smaller` means that there are smaller findings."""
    if facts.gpu is None and not facts.attribution.host.is_op.any():
        if facts.live:
            return Conclusion(
                "No verdict: the step did not run any torch operator.",
                f"It takes {facts.step_words}, all of it outside torch.",
                "Check that the step calls what you meant to profile.",
            )
        return Conclusion(
            "No verdict: the trace contains no operators.",
            f"Only the duration of the step is known: {facts.step_words} as traced.",
            "Record the operators as well: with torch.profiler, activities must include ProfilerActivity.CPU."
            if facts.uses_torch
            else "Record what ran in the step as well.",
        )
    what, why = _bound_by(facts)
    less = "use a smaller model, lower precision, or" if facts.uses_torch else "do less work, or use"
    return Conclusion(
        f"Nothing stands out. The step is bound by {what}.",
        why,
        f"{'See the findings for smaller savings; to' if smaller else 'To'} go faster, {less} a faster machine.",
    )


def _bound_by(facts: Facts) -> tuple[str, str]:
    """Describe where a step without problems spends most of its time, and return the figures for it."""
    gpu = facts.gpu
    if gpu is not None:
        share, busy = fmt.share(facts.share(gpu.busy_ms)), fmt.duration(gpu.busy_ms)
        works = f"The GPU is busy for {share} of the step ({busy} of {facts.step_words})"
        if gpu.busy_ms >= _MOSTLY_IDLE * facts.step_ms:
            return "work on the GPU", f"{works}."
        if 2 * gpu.idle_by["dependency"] > gpu.idle_ms:
            return "gaps between kernels that were launched in time", f"{works}."
        return "no single thing: the GPU is idle for most of it", f"{works}, and its idle time has no single cause."
    phase = max(_PHASES, key=facts.shown_share)
    share = fmt.share(facts.shown_share(phase))
    if phase == "other" and not facts.live and facts.recording.modules.empty:
        what = "the host's work outside the phases marked in the trace"
        return what, f"It takes {share} of the step. The trace contains no GPU work."
    heaviest = f"{fmt.capital(_PHASES[phase].partition(':')[0])} takes {share} of the step"
    computes, moves = work_under(facts, COMPUTE, BINDS), work_under(facts, MEMORY, BINDS)
    work, kind, what, roof = (
        (computes, "compute", "arithmetic", "arithmetic")
        if computes.ms >= moves.ms
        else (moves, "memory", "memory traffic", "bandwidth")
    )
    if 2 * work.ms > facts.step_ms:
        layer = f", mostly in {work.layers[0]}" if work.layers else ""
        return what, (
            f"{heaviest}; {kind}-bound layers take {fmt.share(facts.share(work.ms))}{layer}, at "
            f"{fmt.share(work.efficiency)} of the machine's {roof}."
        )
    return _PHASES[phase], f"{heaviest}."
