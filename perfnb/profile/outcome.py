"""Record a profile's verdict and findings, with a date, when it is saved."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from perfnb.recording.outcome import Outcome, make_outcome

if TYPE_CHECKING:
    from perfnb.profile.summary import Summary


@cache
def origin() -> Mapping[str, Any]:
    """Return this process's host, commit, device and PyTorch version.

    The result is empty if the process does not use PyTorch. The values are determined only once, because git may take a
    second and profiles may be saved inside loops. The process continues to run the code that it was started with.
    """
    if "torch" not in sys.modules:
        return {}
    from perfnb.step.environment import provenance

    return {name: value for name, value in provenance().items() if name != "at"}


def outcome_of(summary: Summary, environment: Mapping[str, Any]) -> Outcome:
    """Create the outcome of a profile from the contents of its report."""
    found, timing, phases = summary.findings, summary.timing, summary.phases
    return make_outcome(
        summary.name,
        environment,
        verdict=None if found is None else found.verdict.verdict,
        findings=None if found is None else found.table,
        row=None if found is None else found.verdict.finding,
        step_ms=summary.traced_ms if timing.median_ms is None else timing.median_ms,
        interval_ms=timing.ci_ms,
        data_share=phases["share"].get("data"),
        peak_bytes=None if summary.memory is None else summary.memory.peak_bytes,
        batch_size=timing.batch_size,
    )
