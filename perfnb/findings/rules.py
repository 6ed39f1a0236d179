"""All rules. A new one is written in its own module and listed here."""

from __future__ import annotations

from perfnb.findings.attention import unfused_attention
from perfnb.findings.bound import compute, low_precision, memory_bandwidth
from perfnb.findings.collectives import exposed_communication
from perfnb.findings.copies import host_device_copies
from perfnb.findings.dispatch import dispatch_overhead, launch_overhead
from perfnb.findings.elementwise import elementwise_chains
from perfnb.findings.facts import Facts
from perfnb.findings.finding import Finding, Rule
from perfnb.findings.host import host_code, host_work, unexplained_idle
from perfnb.findings.input_pipeline import input_pipeline
from perfnb.findings.memory import activation_memory, allocator, growth, recomputation
from perfnb.findings.optimizer import optimizer_loop
from perfnb.findings.synchronisation import synchronisation
from perfnb.findings.timed_steps import garbage_collection, threads_and_cores, uneven_steps

RULES: tuple[Rule, ...] = (
    input_pipeline,
    host_device_copies,
    synchronisation,
    dispatch_overhead,
    launch_overhead,
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
#: Rules of one name differ only in how they search.
BY_NAME = {rule.name: rule for rule in RULES}


def found_by_rules(facts: Facts) -> list[Finding]:
    """What the rules find, in their order."""
    return [found for rule in RULES for found in rule(facts)]
