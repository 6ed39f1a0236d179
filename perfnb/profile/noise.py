"""Disturbances while steps were timed, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from perfnb import quantities as fmt
from perfnb.draw import escape

if TYPE_CHECKING:
    from perfnb.profile.summary import Summary

#: Garbage collection is reported above this share of the step time.
_TELL_GC = 0.005


def noise_facts(noise: Mapping[str, Any], whole_ms: float) -> list[str]:
    """Describe what disturbed the steps; empty if nothing is known to have."""
    facts = []
    paused = sum(ms for _, ms in noise.get("gc_pauses", ()))
    if paused > _TELL_GC * whole_ms > 0:
        facts.append(f"garbage collection took {fmt.share(paused / whole_ms)}")
    load, cpus = noise.get("load_before"), noise.get("cpus")
    if load is not None and cpus and load > 0.5 * cpus:
        facts.append(f"the machine was already busy (load {load:.1f} on {cpus} CPUs)")
    before, after = noise.get("cpu_mhz_before"), noise.get("cpu_mhz_after")
    if before and after and abs(after / before - 1) > 0.1:
        facts.append(f"the CPU clock changed from {before:,} to {after:,} MHz")
    if noise.get("throttled_periods"):
        facts.append(f"the CPU limit paused the process for {fmt.duration(noise['throttled_ms'])}")
    if noise.get("gpu_throttle_reasons"):
        facts.append(f"the GPU was throttled: {escape.plain(', '.join(noise['gpu_throttle_reasons']), 200)}")
    return facts


def notes_of(summary: Summary) -> list[str]:
    """Return the notes of a report, including disturbances of the timed steps."""
    facts = noise_facts(summary.timing.noise, sum(summary.timing.samples_ms))
    return [*summary.notes, *([f"During the timed steps: {'; '.join(facts)}."] if facts else [])]
