"""From a step to its findings and the verdict: what bounds it, why, what to try next, and what makes that doubtful."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isclose

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.attribution.attribution import Attribution
from perfnb.attribution.interval_sets import union
from perfnb.findings.code import shown
from perfnb.findings.cures import taken
from perfnb.findings.facts import Facts, StepFigures, facts_of
from perfnb.findings.finding import Finding, finding_table
from perfnb.findings.rules import BY_NAME, found_by_rules
from perfnb.findings.rules.bound import BINDS, work_under
from perfnb.findings.rules.host import unnamed_share
from perfnb.recording.recording import Recording
from perfnb.roofline.levels import COMPUTE, MEMORY

#: Share of the step that a finding must be able to save to become the verdict.
_DECIDES = 0.1
#: How large a more certain finding must be, as a share of the largest one, to be preferred to it.
_RATHER = 1 / 3
#: Share of the step above which unexplained idle time outweighs every finding; and below which a GPU is mostly idle.
_OUTWEIGHS, _MOSTLY_IDLE = 0.5, 0.5
#: How many times longer timed steps may take than traced ones, or the reverse. Tracing only adds time, and what it adds
#: has been subtracted.
_APART = 1.5
#: From here on the timed steps say nothing about the step.
_HELD_UP = 2.5
#: Ratio of the longest to the shortest traced step above which they disagree.
_DISAGREE = 1.5
#: Batches that exist already: nothing makes them in the background.
_AT_HAND = ("list", "tuple", "range", "dict", "Tensor", "ndarray")
#: How many times less than explained traced steps wait if batches were prefetched, and the least share of a timed step
#: that is a wait.
_LESS, _WAITS = 2.0, 0.05
_PHASES = {
    "data": "waiting for data",
    "host_to_device": "copies to the device",
    "forward": "the forward pass",
    "loss": "the loss",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "communication": "waiting for collectives that nothing hides",
    "other": "code outside all phases: Python, or ops outside model, loss and optimizer",
}


@dataclass(frozen=True)
class Verdict:
    """What bounds the step, in three lines."""

    #: What bounds the step.
    verdict: str
    #: The evidence.
    why: str
    #: What to try.
    next: str
    #: Row of the frame ``findings`` that it rests on.
    finding: int | None = None


@dataclass(frozen=True)
class Findings:
    """All findings on a step."""

    #: The frame ``findings``.
    table: pd.DataFrame
    verdict: Verdict
    #: The step that the bounds are shares of.
    step_ms: float | None
    #: How the profile was asked for; see `perfnb.findings.code.trial_line`.
    call: object = None
    #: The share of the step that is the host's own work; see `perfnb.findings.rules.host.unnamed_share`.
    host_share: float = 0.0


def find(recording: Recording, attribution: Attribution, figures: StepFigures) -> Findings:
    """Ask every rule. Code is shown only if all its names are known; no finding is surer than the steps allow."""
    facts = facts_of(recording, attribution, figures)
    variables = facts.variables
    found = [
        _no_surer(replace(one, code=shown(one.code, variables), remedy=taken(facts, one.remedy)), facts)
        for one in found_by_rules(facts)
    ]
    if not facts.uses_torch:  # code and levers are torch's
        found = [replace(one, code="", remedy="") for one in found]
    table = finding_table(found, facts.step_ms)
    verdict = verdict_of(facts, table)
    return Findings(table, verdict, facts.step_ms, recording.meta.get("call"), unnamed_share(facts))


def _no_surer(found: Finding, facts: Facts) -> Finding:
    """The finding with no more confidence than the number of steps allows; without a bound in time any number does.

    Low with too few timed steps. A trace from a file has none: there it is at most medium with a single step.
    """
    if found.bound_ms is None or found.confidence == "low":
        return found
    if few := too_few_steps(facts):
        return replace(found, confidence="low", why=f"{few} {found.why}")
    if not BY_NAME[found.bottleneck].timed_only and (doubt := doubt_of(facts).strip()):
        return replace(found, confidence="low", why=f"{doubt} {found.why}")
    if not facts.live and facts.attribution.steps == 1 and found.confidence == "high":
        why = f"{found.why} The trace holds only one step, so others may differ."
        return replace(found, confidence="medium", why=why)
    return found


def verdict_of(facts: Facts, table: pd.DataFrame) -> Verdict:
    """The verdict on a step from its findings, or from where its time goes if there are none."""
    verdict, few = _verdict_of(facts, table), too_few_steps(facts)
    return replace(verdict, why=f"{verdict.why} {few}") if few else verdict


def _verdict_of(facts: Facts, table: pd.DataFrame) -> Verdict:
    memory = facts.figures.memory
    short = table.index[table["bottleneck"] == "activation memory"]
    if memory is not None and memory.incomplete and len(short):
        first = table.loc[short[0]]
        return Verdict(f"{BY_NAME['activation memory'].headline}.", first["evidence"], first["advice"], int(short[0]))
    doubt, chosen = doubt_of(facts), _chosen(table)
    timed = chosen is not None and BY_NAME[table["bottleneck"][chosen]].timed_only
    if held_up(facts) and not timed:
        return Verdict(
            "No verdict: something held up the timed steps.",
            doubt.strip(),
            "Profile again when nothing else is running; perfnb.time_step shows whether the step time holds.",
        )
    if chosen is not None:
        verdict = _of_finding(facts, table, chosen)
        return verdict if timed else replace(verdict, why=verdict.why + doubt)
    if facts.gpu is None and not facts.attribution.host.is_op.any():
        if facts.live:
            return Verdict(
                "No verdict: the step ran no operator of torch.",
                f"It takes {facts.step_words}, all of it outside torch." + doubt,
                "Check that the step calls what you meant to profile.",
            )
        return Verdict(
            "No verdict: the trace holds no operators.",
            f"All that is known of the step is how long it took: {facts.step_words} as traced.",
            "Record the operators as well: with torch.profiler, activities must include ProfilerActivity.CPU."
            if facts.uses_torch
            else "Record what ran in the step as well.",
        )
    what, why = _bound_by(facts)
    rest = "See the findings for smaller savings; to" if len(table) else "To"
    return Verdict(
        f"Nothing stands out. The step is bound by {what}.",
        why + doubt,
        f"{rest} go faster, do less: a smaller model, lower precision, or a faster machine."
        if facts.uses_torch
        else f"{rest} go faster, do less, or use a faster machine.",
    )


def _chosen(table: pd.DataFrame) -> int | None:
    """The finding to start with: the largest with a known cause, if it is large enough.

    A bound of low confidence is often far from what can be saved, so a surer one that is not much smaller is preferred.
    """
    share = table["bound_share"].fillna(0.0).astype(float)
    is_known = _explained(table)
    unknown = table.index[~is_known & (share >= _DECIDES)]
    known = table.index[is_known & (share >= _DECIDES)]
    if len(unknown) and (not len(known) or share[unknown[0]] > _OUTWEIGHS):
        return int(unknown[0])
    sure = [row for row in known if table["confidence"][row] != "low" and share[row] >= _RATHER * share[known[0]]]
    return int((sure or list(known))[0]) if len(known) else None


def _explained(table: pd.DataFrame) -> pd.Series:
    """Whether the cause of each finding is known."""
    return table["bottleneck"].map(lambda name: BY_NAME[name].explained).astype(bool)


def _of_finding(facts: Facts, table: pd.DataFrame, row: int) -> Verdict:
    found = table.iloc[row]
    rule, gpu = BY_NAME[str(found["bottleneck"])], facts.gpu
    share, bound, why = float(found["bound_share"]), float(found["bound_ms"]), str(found["evidence"])
    whole = bound / share
    of = facts.step_words if isclose(whole, facts.step_ms, rel_tol=1e-6) else f"a mean step of {fmt.duration(whole)}"
    saved = f"{fmt.duration(bound)} of {of} ({fmt.share(share)}, {found['confidence']} confidence)"
    idle = f"The GPU is idle for {fmt.share(share)} of the step ({fmt.duration(bound)} of {of})"
    headline, saving = rule.words(facts) if rule.words else (rule.headline, rule.saving)
    if not rule.explained:
        said = f"{idle}, and the trace does not show why."
    elif rule.idle_cause and gpu is not None and gpu.is_unsure(rule.idle_cause):
        held_by = headline.removeprefix("Bound by ")
        said = f"{idle} while the host is blocked by {held_by}, but nothing shows that the GPU waited for that."
    elif rule.ceiling and gpu is not None:
        said = f"{headline}: doing this work faster, or less of it, could save at most {saved}."
    else:
        said = f"{headline}: {saving} could save up to {saved}."
    others = table[~_explained(table) & (table.index != row)]
    if len(others):
        more = fmt.duration(others["bound_ms"].iloc[0])
        why += f" The GPU is idle for another {more}, and the trace does not show why."
    return Verdict(said, why, str(found["advice"]), row)


def _bound_by(facts: Facts) -> tuple[str, str]:
    """What takes most of a step that has no problem, and the figures."""
    gpu = facts.gpu
    if gpu is not None:
        share, busy = fmt.share(facts.share(gpu.busy_ms)), fmt.duration(gpu.busy_ms)
        works = f"The GPU is busy for {share} of the step ({busy} of {facts.step_words})"
        if gpu.busy_ms >= _MOSTLY_IDLE * facts.step_ms:
            return "work on the GPU", f"{works}."
        if 2 * gpu.idle_by["dependency"] > gpu.idle_ms:
            return "gaps between kernels that were launched in time", f"{works}."
        return "no single thing: the GPU is idle for most of it", f"{works}, and idle for no single reason."
    phase = max(_PHASES, key=facts.shown_share)
    if phase == "other" and facts.recording.modules.empty:
        in_ops_ms = _in_ops_ms(facts)
        if not facts.live:
            return "what the host does outside the phases marked in the trace", (
                f"It takes {fmt.share(facts.shown_share('other'))} of the step: {fmt.duration(in_ops_ms)} in ops, and "
                f"{fmt.duration(facts.shown_ms('other') - in_ops_ms)} between them, where the trace shows nothing"
                f"{_beside(facts)}. The trace holds no GPU work."
            )
        if 2 * in_ops_ms > facts.step_ms:
            return "torch's operators", (
                "The step calls no module, so it has no layers and hardly any phases; operators take "
                f"{fmt.share(facts.share(in_ops_ms))} of it."
            )
    heaviest = f"{_PHASES[phase].partition(':')[0]} takes {fmt.share(facts.shown_share(phase))} of the step"
    computes, moves = work_under(facts, COMPUTE, BINDS), work_under(facts, MEMORY, BINDS)
    work, kind, what, roof = (
        (computes, "compute", "arithmetic", "arithmetic")
        if computes.ms >= moves.ms
        else (moves, "memory", "memory traffic", "bandwidth")
    )
    if 2 * work.ms > facts.step_ms:
        layer = f", mostly in {work.layers[0]}" if work.layers else ""
        return what, (
            f"{fmt.capital(heaviest)}; {kind}-bound layers take {fmt.share(facts.share(work.ms))}{layer}, at "
            f"{fmt.share(work.efficiency)} of the machine's {roof}."
        )
    return _PHASES[phase], f"{fmt.capital(heaviest)}."


def _in_ops_ms(facts: Facts) -> float:
    """Time of the phase ``other`` that its thread spends in operators."""
    main = facts.attribution.host.blocks["main"].to_numpy()
    ops = facts.ops[(facts.ops["phase"] == "other") & facts.ops["outer"] & main[facts.ops["block"].to_numpy()]]
    in_ops = union(ops["start"].to_numpy(), ops["end"].to_numpy()).length
    return min(facts.per_step(in_ops), facts.phases_ms["other"])


def _beside(facts: Facts) -> str:
    """What threads other than the step's did meanwhile: programs other than torch often work there."""
    host, blocks = facts.attribution.host, facts.attribution.host.blocks
    own = blocks[blocks["main"]]
    beside = host.is_op & ~np.isin(host.thread, own["thread"].unique())
    beside &= (host.starts >= own["start"].min()) & (host.starts < own["end"].max())
    threads = [beside & (host.thread == thread) for thread in np.unique(host.thread[beside])]
    runs = [union(host.starts[each], host.ends[each]).length for each in threads]
    if not runs:
        return ""
    return f"; {fmt.duration(facts.per_step(sum(runs)))} in ops on {fmt.counted(len(runs), 'other thread')}"


def held_up(facts: Facts) -> bool:
    """Whether timed steps took far longer than traced ones, which do the same and more: something held them up.

    If batches are made in the background, that may be what slowed the steps.
    """
    return facts.live and facts.gpu is None and facts.scale > _HELD_UP and not _works_ahead(facts)


def too_few_steps(facts: Facts) -> str:
    """Why no figure of the step is certain, in a sentence; empty if there are enough timed steps for an interval."""
    timing = facts.figures.timing
    if not facts.live or timing.ci_ms is not None:
        return ""
    steps = "1 timed step is" if timing.steps == 1 else f"{timing.steps} timed steps are"
    return f"Low confidence: {steps} too few for a 95 % interval."


def doubt_of(facts: Facts) -> str:
    """Why bounds may be far off, and what to do, in sentences; empty if nothing speaks against them."""
    if not facts.live or facts.gpu is not None:
        return ""
    reasons = [*filter(None, [facts.uneven]), *_disturbed(facts)]
    if not reasons:
        return ""
    said = f" Low confidence: {'; '.join(reasons)}. Bounds can be off by half or more."
    if (facts.busy or facts.scale > _APART) and (facts.environment.get("threads") or 1) > 1:
        said += " Threads wait for the one that got no core: try torch.set_num_threads(1)."
    return said


def _disturbed(facts: Facts) -> list[str]:
    """What says that timed and traced steps were not the same, or not alone on the machine."""
    if not facts.live or facts.gpu is not None:
        return []
    reasons = []
    # The test leaves out waits and the cost of tracing; the sentence gives the ratio that the report shows.
    ratio = facts.figures.slowdown or 0.0
    if facts.scale > _APART and not _works_ahead(facts):
        reasons.append(
            f"timed steps took {fmt.significant(1 / ratio, trim=True)} times as long as traced ones, which do more"
            if 0 < ratio < 1
            else "timed steps took longer than traced ones minus tracing overhead"
        )
    elif 0 < facts.scale < 1 / _APART and not facts.meta.get("stacks"):
        reasons.append(
            f"traced steps took {fmt.significant(ratio, trim=True)} times as long as timed ones, more than tracing adds"
            if ratio > 1
            else "traced steps took longer than timed ones by more than tracing adds"
        )
    traced = traced_ms(facts.recording)
    if disagree(traced):
        reasons.append(f"the traced steps disagree ({fmt.durations(traced)})")
    if facts.busy:
        reasons.append("the CPU was busy with other work")
    return reasons


def _works_ahead(facts: Facts) -> bool:
    """Whether batches are made in the background, by workers or a thread.

    They compete with the timed steps for cores, while the traced ones find prefetched batches. Nothing says what other
    kinds of iterables do; they are recognised by traced steps that waited far less than the other work explains.
    """
    kind, workers = facts.loader.get("class"), facts.loader.get("num_workers")
    if isinstance(workers, int) and (workers > 0 or kind == "DataLoader"):
        return workers > 0
    if kind in _AT_HAND:
        return False
    waited = float(facts.waits_ms.mean())
    in_traced = float(facts.cells_ns[(facts.attribution.cells["phase"] == "data").to_numpy()].sum())
    explained = _LESS * facts.per_step(in_traced)
    return waited > explained and facts.share(waited) >= _WAITS


def disagree(traced: pd.Series) -> bool:
    """Whether the longest traced step took so much longer than the shortest that their mean says little."""
    return bool(traced.max() > _DISAGREE * traced.min())


def traced_ms(recording: Recording) -> pd.Series:
    """Wall time of each traced step."""
    steps: pd.DataFrame = recording.steps
    return steps.loc[steps["pass"] == "traced", "wall_ms"]
