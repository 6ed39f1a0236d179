"""Collect the contents of a report, from which all views of a profile are created."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from perfnb.findings.finding import Findings
from perfnb.gpu.summary import GpuSummary
from perfnb.memory.table import MemorySummary
from perfnb.profile.analysis import Analysis
from perfnb.profile.notes import failed_pass
from perfnb.recording.recording import Recording
from perfnb.recording.schema import PASSES
from perfnb.roofline.levels import RooflineLevels
from perfnb.stats.step_times import StepTimes

#: The step time including GPU work is reported separately if it is longer than the host's step time by this factor.
_LONGER = 1.01


@dataclass(frozen=True)
class Summary:
    """The contents of a report. Views only format and draw them, without computing anything.

    Attributes
    ----------
    name : str
        The title of the profile.
    timing : StepTimes
        The step times from the timed pass.
    executed : mapping of str to int
        The number of times the step ran in each pass.
    traced_ms : float or None
        The mean wall time of a traced step, which is the sum of the times in `phases` and `layers`, or ``None`` if no
        step was traced.
    slowdown : float or None
        The traced step time divided by the timed step time.
    device : str
        A description of the device that the step ran on.
    phases, layers, ops, layer_ops : DataFrame
        The tables described by `perfnb.recording.schema`. ``share`` is corrected for tracing overhead, but times are
        not.
    memory : MemorySummary or None
        The figures about memory, if it was recorded.
    roofline : RooflineLevels or None
        The layers relative to the machine's ceilings, if arithmetic was counted.
    gpu : GpuSummary or None
        The figures about the GPUs, if anything ran on a GPU.
    source : str or None
        The name of the loaded trace, or ``None`` for a profiled step.
    hot_path : tuple of str
        The layers from a root down to the heaviest leaf, which views expand initially.
    notes : tuple of str
        Caveats that readers need in order to understand the figures.
    findings : Findings or None
        The findings about what slows the step down, or ``None`` if no step was traced.
    analysis : Analysis or None
        The analysis from which the contents were collected.
    tokens_per_s : float or None
        The number of token ids per second in the timed steps' batches, based on the same step time as the number of
        samples per second. It is available only if the model has an embedding for the token ids.
    mfu : float or None
        The model FLOPs utilisation of the timed step, from 0 to 1. See `model_flops_utilisation`.
    failure : tuple of (str, str) or None
        The pass that ran out of memory, and the error.
    by_batch : bool
        Whether each step is one batch of a loop, because no optimizer step marks the end of a step.
    """

    name: str
    timing: StepTimes
    executed: Mapping[str, int]
    traced_ms: float | None
    slowdown: float | None
    device: str
    phases: pd.DataFrame
    layers: pd.DataFrame
    ops: pd.DataFrame
    layer_ops: pd.DataFrame
    hot_path: tuple[str, ...]
    notes: tuple[str, ...]
    memory: MemorySummary | None = None
    roofline: RooflineLevels | None = None
    source: str | None = None
    gpu: GpuSummary | None = None
    findings: Findings | None = None
    analysis: Analysis | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    failure: tuple[str, str] | None = None
    by_batch: bool = False

    @property
    def until_gpu_ms(self) -> float | None:
        """The duration of a traced step until its GPU work is done, if this is longer and findings refer to it."""
        found = None if self.findings is None or self.timing.steps else self.findings.step_ms
        return found if found is not None and self.traced_ms and found > _LONGER * self.traced_ms else None


def summarize(recording: Recording, analysis: Analysis | None = None) -> Summary:
    """Collect the contents of a report.

    If a step failed before any step was traced, they consist of the measurements up to that point. If the recording has
    already been analysed, pass its `analysis` to avoid computing the tables again.
    """
    analysis = Analysis(recording) if analysis is None else analysis
    phases = analysis.phases
    executed = recording.steps["pass"].value_counts()
    return Summary(
        name=str(recording.meta["name"]),
        timing=analysis.timing,
        executed={name: int(executed[name]) for name in PASSES if executed.get(name, 0)},
        traced_ms=float(phases["ms"].sum()) if len(phases) else None,
        slowdown=analysis.slowdown,
        device=device_words(recording.meta["environment"]),
        phases=phases,
        layers=analysis.layers,
        ops=analysis.ops,
        layer_ops=analysis.layer_ops,
        hot_path=hot_path(recording, analysis.layers) if len(analysis.layers) else (),
        notes=analysis.notes,
        memory=analysis.memory,
        roofline=analysis.roofline,
        source=str(recording.meta["trace"]["file"]) if recording.is_from_trace else None,
        gpu=analysis.gpu,
        findings=analysis.findings,
        tokens_per_s=_tokens_per_s(recording, analysis.timing),
        mfu=None if analysis.roofline is None else model_flops_utilisation(recording, analysis.roofline),
        failure=(failed_pass(recording), recording.meta["failure"]) if "failure" in recording.meta else None,
        by_batch=bool(recording.meta.get("loop", {}).get("by_batch", False)),
        analysis=analysis,
    )


def _tokens_per_s(recording: Recording, timing: StepTimes) -> float | None:
    tokens, rate = recording.meta.get("tokens"), timing.throughput_per_s
    if tokens is None or rate is None or not timing.samples:
        return None
    # Without an embedding, integers in a batch might not be token ids.
    embeds = any("embedding" in str(kind).lower() for kind in recording.modules["module"])
    return float(rate * tokens / timing.samples) if embeds else None


def model_flops_utilisation(recording: Recording, roofline: RooflineLevels) -> float | None:
    """Return the step's FLOPs as a share of the FLOPs that would be possible in the same time at the measured peak.

    The result is ``None`` if the peak is unknown, if the step exceeded the peak, or if part of the arithmetic was not
    counted, for example because it is in a compiled region.
    """
    unseen = bool(recording.modules["compiled"].any()) or not roofline.flops or roofline.dtype in roofline.refuted
    return None if unseen else roofline.utilisation


def hot_path(recording: Recording, layers: pd.DataFrame) -> tuple[str, ...]:
    """Return the layers from the heaviest model down to a leaf, following the largest share at each level."""
    modules = recording.modules
    share = layers["share"].iloc[: len(modules)].to_numpy(dtype=float, na_value=0.0)
    path: list[str] = []
    inside = -1
    while True:
        children = (modules["parent"] == inside).to_numpy().nonzero()[0]
        if len(children) == 0:
            return tuple(path)
        inside = int(children[share[children].argmax()])
        path.append(str(modules["name"].iloc[inside]))


def device_words(environment: Mapping[str, Any]) -> str:
    """Describe the device that ran the steps, given the recording's environment."""
    if environment.get("gpus"):
        count = Counter(environment["gpus"])
        return ", ".join(name if times == 1 else f"{times} × {name}" for name, times in count.items())
    if "processor" not in environment:
        return "CPU"
    if (threads := environment.get("threads")) is None:
        return f"CPU ({environment['processor']})"
    return f"CPU ({environment['processor']}), {threads} thread{'' if threads == 1 else 's'}"
