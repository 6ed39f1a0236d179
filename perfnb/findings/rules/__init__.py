"""All rules. A new one is written in the module of its subject and listed here."""

from __future__ import annotations

from perfnb.findings.finding import Rule
from perfnb.findings.rules.bound import compute, low_precision, memory_bandwidth
from perfnb.findings.rules.communication import every_micro_step, exposed_on_host, small_buckets, unused_parameters
from perfnb.findings.rules.double import float64
from perfnb.findings.rules.fusion import elementwise_chains, unfused_attention
from perfnb.findings.rules.host import dispatch_overhead, host_code, host_work, launch_overhead, unexplained_idle
from perfnb.findings.rules.memory import activation_memory, allocator, growth, recomputation
from perfnb.findings.rules.optimizer import gradient_clipping, optimizer_loop
from perfnb.findings.rules.repeated import repeated_forward
from perfnb.findings.rules.synchronisation import synchronisation
from perfnb.findings.rules.timed import garbage_collection, input_pipeline, threads_and_cores, uneven_steps
from perfnb.findings.rules.transfers import exposed_communication, host_device_copies

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
    float64,
    activation_memory,
    allocator,
    growth,
    unfused_attention,
    optimizer_loop,
    gradient_clipping,
    repeated_forward,
    recomputation,
    host_code,
    threads_and_cores,
    exposed_communication,
    exposed_on_host,
    every_micro_step,
    small_buckets,
    unused_parameters,
    garbage_collection,
    uneven_steps,
)
#: Rules of one name differ only in how they search.
BY_NAME = {rule.name: rule for rule in RULES}
