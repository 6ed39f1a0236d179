"""Show the report's machine tab, which contains the telemetry that was recorded while the steps ran."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from perfnb.draw.tab import Tab
from perfnb.watching.steps import steps_watched
from perfnb.watching.summary import MachineSummary, machine_summary
from perfnb.watching.view import watch_document

if TYPE_CHECKING:
    from perfnb.profile.analysis import Analysis


def _machine(analysis: Analysis) -> MachineSummary | None:
    recording = analysis.recording
    if recording.watch is None:
        return None
    seen = machine_summary(recording.watch, recording.meta["watch"])
    return replace(seen, steps=steps_watched(recording, analysis.attribution))


TAB = Tab("machine", lambda report: report.part("machine", _machine), lambda seen: watch_document(seen, "machine"))
