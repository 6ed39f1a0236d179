"""What holds a step back: one pure function a rule, and the verdict that they come to."""

from perfnb.findings.finding import Finding, finding_table
from perfnb.findings.rules import Findings, find

__all__ = ["Finding", "Findings", "find", "finding_table"]
