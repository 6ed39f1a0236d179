"""Show the report's flame graph."""

from __future__ import annotations

from perfnb.draw.tab import Tab
from perfnb.flame.view import stacks_document

TAB = Tab("flame", lambda report: report.part("flame", lambda analysis: analysis.stacks), stacks_document)
