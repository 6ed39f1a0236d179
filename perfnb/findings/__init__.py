"""What holds a step back: one rule per bottleneck, and the verdict."""

from perfnb.findings.facts import StepFigures
from perfnb.findings.finding import Finding, finding_table
from perfnb.findings.verdict import Findings, find

__all__ = ["Finding", "Findings", "StepFigures", "find", "finding_table"]
