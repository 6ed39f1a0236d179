"""What holds a step back: one pure function a rule, and the verdict that they come to."""

from perfnb.analysis.findings.finding import Finding, finding_table
from perfnb.analysis.findings.rules import Findings, find

__all__ = ["Finding", "Findings", "find", "finding_table"]
