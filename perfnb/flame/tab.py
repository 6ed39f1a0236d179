"""The report's flame graph."""

from __future__ import annotations

from perfnb.draw.tab import Tab
from perfnb.flame.step_stacks import step_stacks
from perfnb.flame.view import stacks_document

TAB = Tab(
    "flame", lambda report: report.part("flame", lambda analysis: step_stacks(analysis.recording)), stacks_document
)
