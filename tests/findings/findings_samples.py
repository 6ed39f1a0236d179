"""Made-up findings with known figures, for the tests of the views."""

from __future__ import annotations

from dataclasses import replace

from perfnb.findings.finding import Conclusion, Finding, Findings, Row, finding_table
from perfnb.profile.summary import Summary
from tests import summaries

STEP_MS = 12.3


def three() -> Findings:
    """Return two that cost time and one that costs memory, of `summaries.small_cnn`."""
    found = [
        Finding(
            "The step waits 6.15 ms for its batch.",
            6.15,
            "Use 2 workers.",
            "high",
            "It was timed.",
            "Which part is slow.",
            (Row("phase", "data"),),
            code="loader = DataLoader(dataset, num_workers=2)",
            bottleneck="input pipeline",
        ),
        Finding(
            "Layers wait for memory.",
            1.23,
            "Fuse them.",
            "low",
            "Guessed.",
            "Caches.",
            (Row("layer", "model.features.1"), Row("op", "aten::relu"), Row("layer", "no such layer")),
            code="model = torch.compile(model)",
            bottleneck="memory bandwidth",
        ),
        Finding(
            "Activations take most.",
            None,
            "Checkpoint.",
            "medium",
            "Counted.",
            "Whether it is short.",
            (Row("memory", "1.5"),),
            code="x = checkpoint(block, x)",
            bound_bytes=3 * 2**20,
            bottleneck="activation memory",
        ),
    ]
    verdict = Conclusion("Bound by waiting for data.", "The step waits.", "Use 2 workers.", 0)
    return Findings(finding_table(found, STEP_MS), verdict, STEP_MS)


def with_findings(findings: Findings | None = None) -> Summary:
    return replace(summaries.small_cnn(), findings=findings or three())


def none() -> Findings:
    verdict = Conclusion("Nothing stands out. The step is bound by arithmetic.", "Forward takes 60 %.", "Do less.")
    return Findings(finding_table([], STEP_MS), verdict, STEP_MS)


def at_instant(ms: str) -> Findings:
    """Return one that speaks of an instant of memory."""
    found = Finding("It grows.", None, "Less.", "low", "Why.", "Blind.", (Row("memory", ms),), bottleneck="memory")
    return Findings(finding_table([found], STEP_MS), Conclusion("Grows.", "It does.", "Less.", 0), STEP_MS)


def growing() -> Findings:
    """Return one of memory that a step adds, with advice in words alone."""
    found = Finding(
        "It grows.", None, "Keep less.", "low", "Why.", "Blind.", bound_bytes=5 * 2**19, bottleneck="memory may grow"
    )
    return Findings(finding_table([found], STEP_MS), Conclusion("Grows.", "It does.", "Less.", 0), STEP_MS)


def hostile(name: str) -> Findings:
    """Return one where every text that may hold a stranger's name is one."""
    rows = (Row("layer", name), Row("op", name))
    found = Finding(name, 1.0, name, "low", name, name, rows, code=name, bottleneck=name)
    return Findings(finding_table([found], STEP_MS), Conclusion(name, name, name, 0), STEP_MS)


def with_remedy(call: object = None) -> Findings:
    """Return one that a lever may cure, in a profile that was asked for by `call`."""
    found = Finding(
        "269 ops are short.",
        4.0,
        "Fuse them.",
        "medium",
        "Why.",
        "Blind.",
        remedy="compile",
        bottleneck="dispatch overhead",
    )
    verdict = Conclusion("Bound by dispatch overhead.", "Ops are short.", "Fuse them.", 0)
    return Findings(finding_table([found], STEP_MS), verdict, STEP_MS, call)
