"""All rules, what they found, and the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pandas as pd

from perfnb.attribution.attribution import Attribution
from perfnb.findings.attention import unfused_attention
from perfnb.findings.bound import compute, low_precision, memory_bandwidth
from perfnb.findings.code import shown
from perfnb.findings.collectives import exposed_communication
from perfnb.findings.copies import host_device_copies
from perfnb.findings.data import input_pipeline
from perfnb.findings.dispatch import dispatch
from perfnb.findings.doubt import too_few_steps
from perfnb.findings.elementwise import elementwise_chains
from perfnb.findings.facts import Facts, StepFigures, facts_of
from perfnb.findings.finding import Finding, finding_table
from perfnb.findings.host_code import host_code
from perfnb.findings.host_work import host_work, unexplained_idle
from perfnb.findings.memory import activation_memory, allocator, growth
from perfnb.findings.optimizer import optimizer_loop
from perfnb.findings.recompute import recomputation
from perfnb.findings.steadiness import garbage_collection, uneven_steps
from perfnb.findings.synchronisation import synchronisation
from perfnb.findings.threads import threads_and_cores
from perfnb.findings.verdict import Verdict, verdict_of
from perfnb.recording.recording import Recording

Rule = Callable[[Facts], list[Finding]]

_ONE_STEP = "The trace holds one step: whether others are like it, it does not tell."

RULES: tuple[Rule, ...] = (
    input_pipeline,
    host_device_copies,
    synchronisation,
    dispatch,
    host_work,
    unexplained_idle,
    memory_bandwidth,
    elementwise_chains,
    compute,
    low_precision,
    activation_memory,
    allocator,
    growth,
    unfused_attention,
    optimizer_loop,
    recomputation,
    host_code,
    threads_and_cores,
    exposed_communication,
    garbage_collection,
    uneven_steps,
)


@dataclass(frozen=True)
class Findings:
    """What was found.

    Attributes
    ----------
    table : DataFrame
        The frame ``findings``.
    verdict : Verdict
    step_ms : float or None
        Of which the bounds are shares.
    """

    table: pd.DataFrame
    verdict: Verdict
    step_ms: float | None


def find(recording: Recording, attribution: Attribution, figures: StepFigures) -> Findings:
    """Ask every rule. Code is shown only if all its names are known; no finding is surer than the steps allow."""
    facts = facts_of(recording, attribution, figures)
    variables = facts.variables
    found = [_no_surer(replace(one, code=shown(one.code, variables)), facts) for one in said_by_rules(facts)]
    table = finding_table(found, facts.step_ms)
    return Findings(table, verdict_of(facts, table), facts.step_ms)


def said_by_rules(facts: Facts) -> list[Finding]:
    """What the rules find, in their order."""
    return [one for rule in RULES for one in rule(facts)]


def _no_surer(found: Finding, facts: Facts) -> Finding:
    """The finding with no more confidence than the number of steps gives; what costs no time needs no number.

    Low where too few were timed. A trace from a file has no timed ones: there it is medium where it holds but one step.
    """
    if found.bound_ms is None or found.confidence == "low":
        return found
    if few := too_few_steps(facts):
        return replace(found, confidence="low", why=f"{few} {found.why}")
    if not facts.live and facts.attribution.steps == 1 and found.confidence == "high":
        return replace(found, confidence="medium", why=f"{found.why} {_ONE_STEP}")
    return found
