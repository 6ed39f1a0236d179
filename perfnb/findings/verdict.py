"""The verdict: in three lines what bounds the step, why, and what to try next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isclose

import pandas as pd

from perfnb.attribution.interval_sets import union
from perfnb.findings.bound import BINDS, work_under
from perfnb.findings.doubt import doubt_of, held_up, too_few_steps
from perfnb.findings.facts import Facts
from perfnb.findings.finding import part, time
from perfnb.findings.host_work import UNEXPLAINED
from perfnb.roofline.levels import COMPUTE, MEMORY

#: Share of the step that a finding must be able to save to be the verdict.
_DECIDES = 0.1

#: How great a surer finding must be, as a share of the greatest one, to come before it in the verdict.
_RATHER = 1 / 3

_WORDS = {
    "input pipeline": "waiting for data",
    "host-device copies": "copies between host and device",
    "synchronisation": "reading results",
    "dispatch overhead": "the overhead of many small ops",
    "launch overhead": "launching kernels: the GPU waits for the host",
    "host work": "other work of the host, which the GPU waits for",
    "memory bandwidth": "moving bytes",
    "compute": "arithmetic",
    "low precision unused": "arithmetic in high precision",
    "allocator": "allocating memory",
    "attention unfused": "attention in separate ops",
    "optimizer": "the optimizer's loop over parameters",
    "recomputation": "recomputation",
    "host code": "code between torch's ops",
    "threads and cores": "threads that do not fit the cores",
    "collectives": "communication between GPUs",
    "garbage collection": "Python's garbage collector",
    "uneven steps": "a few slow steps",
}
#: Work that no change removes as a whole: where all of its time on a GPU is the bound, that is but a ceiling.
_CEILINGS = ("compute", "memory bandwidth", "low precision unused")
#: What holds the host up, by the word that the GPU's idle time is laid to it under.
_HELD = {"host-device copies": "copies", "synchronisation": "synchronisation", "allocator": "allocator"}
#: What is seen in the timed steps alone, so that traced ones without it do not speak against it.
_OF_TIMED_STEPS = ("input pipeline", "garbage collection", "uneven steps", "threads and cores")
#: Share of the step from which on idle time without a reason outweighs every finding; and below which a GPU is idle.
_OUTWEIGHS, _MOSTLY_IDLE = 0.5, 0.5
#: What saves where nothing can be removed.
_REMOVING = {
    "compute": "computing as fast as large products do",
    "low precision unused": "lower precision",
    "memory bandwidth": "fusing what moves them",
    "attention unfused": "one fused op",
    "optimizer": "an update of all at once",
    "threads and cores": "the right number",
}
_PHASES = {
    "data": "waiting for data",
    "host_to_device": "copies to the device",
    "forward": "the forward pass",
    "loss": "the loss",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "other": "code in none of the phases: Python, or ops outside of model, loss and optimizer",
}


@dataclass(frozen=True)
class Verdict:
    """Three sentences.

    Attributes
    ----------
    verdict : str
        What bounds the step.
    why : str
        The evidence.
    next : str
        What to try.
    finding : int or None
        Row of the frame ``findings`` that it rests on.
    """

    verdict: str
    why: str
    next: str
    finding: int | None = None


def verdict_of(facts: Facts, table: pd.DataFrame) -> Verdict:
    """The verdict on a step from its findings, or from what it does where nothing was found."""
    verdict, few = _verdict_of(facts, table), too_few_steps(facts)
    return replace(verdict, why=f"{verdict.why} {few}") if few else verdict


def _verdict_of(facts: Facts, table: pd.DataFrame) -> Verdict:
    memory = facts.figures.memory
    short = table.index[table["bottleneck"] == "activation memory"]
    if memory is not None and memory.incomplete and len(short):
        first = table.loc[short[0]]
        return Verdict("Memory ran out: activations take most of it.", first["evidence"], first["lever"], int(short[0]))
    doubt = doubt_of(facts)
    chosen = _chosen(table)
    if held_up(facts) and (chosen is None or table["bottleneck"][chosen] not in _OF_TIMED_STEPS):
        return Verdict(
            "No verdict: something held up the timed steps.",
            doubt.strip(),
            "Profile again when nothing else runs; perfnb.time_step tells whether the step time stays.",
        )
    if chosen is not None:
        verdict = _of_finding(facts, table, chosen)
        timed = table["bottleneck"][chosen] in _OF_TIMED_STEPS
        return verdict if timed else replace(verdict, why=verdict.why + doubt)
    what, why = _bound_by(facts)
    why += doubt
    rest = "See the findings for smaller savings; to" if len(table) else "To"
    return Verdict(
        f"Nothing stands out. The step is bound by {what}.",
        why,
        f"{rest} go faster, do less: a smaller model, lower precision, or a faster machine.",
    )


def _chosen(table: pd.DataFrame) -> int | None:
    """The finding to begin with: the greatest whose cause is known, if it is great enough.

    A bound of low confidence is often far from what can be saved; a surer one that is not much less comes before it.
    """
    share = table["bound_share"].fillna(0.0).astype(float)
    is_unknown = table["bottleneck"] == UNEXPLAINED
    unknown = table.index[is_unknown & (share >= _DECIDES)]
    known = table.index[~is_unknown & (share >= _DECIDES)]
    if len(unknown) and (not len(known) or share[unknown[0]] > _OUTWEIGHS):
        return int(unknown[0])
    sure = [row for row in known if table["confidence"][row] != "low" and share[row] >= _RATHER * share[known[0]]]
    return int((sure or list(known))[0]) if len(known) else None


def _of_finding(facts: Facts, table: pd.DataFrame, row: int) -> Verdict:
    found = table.iloc[row]
    share, why, name = float(found["bound_share"]), str(found["evidence"]), str(found["bottleneck"])
    bound = float(found["bound_ms"])
    whole = bound / share
    of = facts.step_words if isclose(whole, facts.step_ms, rel_tol=1e-6) else f"a mean step of {time(whole)}"
    ms = f"{time(bound)} of {of}"
    saved = f"{ms} ({part(share)}; confidence {found['confidence']})"
    what = _WORDS.get(name, name)
    if name == UNEXPLAINED:
        said = f"The GPU is idle for {part(share)} of the step ({ms}), and the trace does not show why."
    elif name in _HELD and facts.gpu is not None and facts.gpu.is_unsure(_HELD[name]):
        said = (
            f"The GPU is idle for {part(share)} of the step ({ms}) while the host is held by {what}, and nothing shows "
            "that it waited for that."
        )
    elif name in _CEILINGS and facts.gpu is not None:
        said = f"Bound by {what}. The most that doing it faster or less could save is {saved}."
    else:
        said = f"Bound by {what}: {_REMOVING.get(name, 'removing it')} would save at most {saved}."
    others = table[(table["bottleneck"] == UNEXPLAINED) & (table.index != row)]
    if len(others):
        why += f" For {time(others['bound_ms'].iloc[0])} more the GPU is idle, and the trace does not show why."
    return Verdict(said, why, str(found["lever"]), row)


def _bound_by(facts: Facts) -> tuple[str, str]:
    """What takes most of a step with which nothing is wrong, and the figures."""
    gpu = facts.gpu
    if gpu is not None:
        works = f"The GPU is busy for {part(facts.share(gpu.busy_ms))} of the step ({time(gpu.busy_ms)} of "
        works += f"{facts.step_words})"
        if gpu.busy_ms >= _MOSTLY_IDLE * facts.step_ms:
            return "work on the GPU", f"{works}."
        if 2 * gpu.idle_by["dependency"] > gpu.idle_ms:
            return "gaps between kernels that were launched in time", f"{works}."
        return "no one thing: the GPU is idle for most of it", f"{works}, and it is idle for no single reason."
    computes, moves = work_under(facts, COMPUTE, BINDS), work_under(facts, MEMORY, BINDS)
    phase = max(_PHASES, key=facts.shown_share)
    if phase == "other" and not facts.live and facts.recording.modules.empty:
        return _unmarked(facts)
    if phase == "other" and facts.live and facts.recording.modules.empty and 2 * _in_ops_ms(facts) > facts.step_ms:
        return "torch's operators", (
            f"No module is called in the step, so it has no layers and hardly a phase; operators take "
            f"{part(facts.share(_in_ops_ms(facts)))} of it."
        )
    heaviest = f"{_PHASES[phase].partition(':')[0]} takes {part(facts.shown_share(phase))} of the step"
    work, word, roof = (
        (computes, "arithmetic", "arithmetic") if computes.ms >= moves.ms else (moves, "memory traffic", "bandwidth")
    )
    if 2 * work.ms > facts.step_ms:
        layer = f", most of it in {work.layers[0]}" if work.layers else ""
        return word, (
            f"{heaviest[0].upper()}{heaviest[1:]}; layers bound by {word} take {part(facts.share(work.ms))}{layer}, at "
            f"{part(work.efficiency)} of the machine's {roof}."
        )
    return _PHASES[phase], f"{heaviest[0].upper()}{heaviest[1:]}."


def _unmarked(facts: Facts) -> tuple[str, str]:
    """Of a trace without layers: what it marks as no phase."""
    rest, in_ops_ms = facts.shown_ms("other"), _in_ops_ms(facts)
    return "what the host does outside the phases that the trace marks", (
        f"It takes {part(facts.shown_share('other'))} of the step: {time(in_ops_ms)} in ops, and "
        f"{time(rest - in_ops_ms)} between them, where the trace shows nothing. It holds no work of a GPU."
    )


def _in_ops_ms(facts: Facts) -> float:
    """Time of the phase ``other`` that its thread spends in operators."""
    main = facts.attribution.host.blocks["main"].to_numpy()
    ops = facts.ops[(facts.ops["phase"] == "other") & facts.ops["outer"] & main[facts.ops["block"].to_numpy()]]
    in_ops = union(ops["start"].to_numpy(), ops["end"].to_numpy()).length
    return min(facts.per_step(in_ops), facts.phases_ms["other"])
