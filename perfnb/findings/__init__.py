"""What holds a step back: one pure function a rule, and the verdict that they come to."""

from perfnb.findings.facts import StepFigures
from perfnb.findings.finding import Finding, finding_table
from perfnb.findings.rules import Findings, find

__all__ = ["Finding", "Findings", "StepFigures", "find", "finding_table"]
