"""Describe the report as a document: the verdict, the step's time and phases, and a tab for each part with content."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from perfnb import quantities as fmt
from perfnb.draw import palette
from perfnb.draw.document import Bar, Bars, Document, Figure, Part, Verdict
from perfnb.findings.tab import document_verdict
from perfnb.profile.registry import TABS
from perfnb.profile.timing import noise_facts
from perfnb.recording.layer_tree import split_layers

if TYPE_CHECKING:
    import pandas as pd

    from perfnb.draw.tab import Tab
    from perfnb.profile.analysis import Analysis
    from perfnb.profile.summary import Summary
    from perfnb.timeline.timeline import Timeline

_INFERENCE = "This is inference: there was no backward pass. perfnb.latency shows how long requests take under load."
_NO_RATE = " If you pass batches (for batch in loader), the report also shows samples/s."
#: The maximum number of timed steps that the headline draws as dots.
_MOST_DOTS = 500


@dataclass(frozen=True)
class Report:
    """The content that the tabs describe.

    Attributes
    ----------
    summary : Summary
        The facts of the report.
    timeline : Timeline or None
        The times of all events, or ``None`` if no step was traced.
    timeline_facts : mapping or None
        A description of the packed timeline for the browser. See `perfnb.timeline.data.timeline_bytes`.
    """

    summary: Summary
    timeline: Timeline | None = None
    timeline_facts: Mapping[str, Any] | None = None

    def part(self, key: str, compute: Callable[[Analysis], Any]) -> Any:
        """Return a tab's own results from the analysis, which are computed once, or ``None`` without an analysis."""
        return None if self.summary.analysis is None else self.summary.analysis.part(key, compute)

    @functools.cached_property
    def layer_places(self) -> dict[str, int]:
        """The row number of each layer in the table of layers."""
        names = [str(name) for part in split_layers(self.summary.layers) for name in part.index]
        return {name: place for place, name in reversed(list(enumerate(names)))}

    @functools.cached_property
    def layer_ops(self) -> pd.DataFrame:
        """The ops in each layer of the table of layers, with names as Python strings, which are fast to list."""
        used = self.summary.layer_ops
        names = {name: used[name].astype(object).map(str).astype(object) for name in ("layer", "op", "direction")}
        named = used.assign(**names)
        return named[named["layer"].isin(self.layer_places)]


def report_document(
    summary: Summary, timeline: Timeline | None = None, timeline_facts: Mapping[str, Any] | None = None
) -> Document:
    """Describe a profile as a document. `Report` describes the arguments."""
    report = Report(summary, timeline, timeline_facts)
    tabs: Iterator[Tab] = map(resolve_name, TABS)
    shown = [(tab, tab.shows(report)) for tab in tabs]
    from_trace = f"read from {summary.source}, which has no timed steps"
    return Document(
        "profile",
        summary.name,
        summary.device,
        _verdict(summary),
        tuple(_figures(summary)),
        (fmt.executions(summary.executed) if summary.source is None else from_trace,),
        tuple(_phases(summary)),
        tuple(_notes(summary)),
        tuple(tab.document(part) for tab, part in shown if part is not None),
    )


def _verdict(summary: Summary) -> Verdict:
    if summary.failure is not None:
        failed, error = summary.failure
        sentence = f"Out of memory in the {failed} pass, so this profile is incomplete"
        return Verdict("bad", sentence, error, selects="" if summary.memory is None else "memory")
    return Verdict("none", "") if summary.findings is None else document_verdict(summary.findings)


def _figures(summary: Summary) -> Iterator[Figure]:
    """Yield the key figures, starting with the step time.

    A loaded trace has no timed steps, so its figures are the traced step and the GPUs' work.
    """
    timing = summary.timing
    traced = Figure("traced step", summary.traced_ms, "ms", basis=_traced_basis(summary))
    if summary.source is not None:
        yield traced
        if summary.gpu is not None:
            yield Figure("GPU busy", summary.gpu.busy, "share")
        return
    if summary.failure is not None and timing.median_ms is None:
        return
    label = ("inference step" if _is_inference(summary) else "step") + (" per batch" if summary.by_batch else "")
    yield Figure(label, timing.median_ms, "ms", timing.ci_ms, timing.basis, timing.samples_ms[:_MOST_DOTS])
    if timing.throughput_per_s is not None:
        size = "batch size varies" if timing.batch_size is None else f"batch of {timing.batch_size:,}"
        yield Figure("throughput", timing.throughput_per_s, "samples/s", basis=size)
    if summary.tokens_per_s is not None:
        yield Figure("tokens", summary.tokens_per_s, "tokens/s", basis="token ids of the input")
    if summary.mfu is not None:
        # The peak in a data sheet would be higher.
        basis = "of the measured peak" if summary.roofline is None else f"of the measured {summary.roofline.dtype} peak"
        yield Figure("MFU", summary.mfu, "share", basis=basis)
    if summary.gpu is not None:
        yield Figure("GPU busy", summary.gpu.busy, "share", basis="of the traced steps")
    if summary.failure is None or summary.traced_ms is not None:
        yield traced


def _traced_basis(summary: Summary) -> str:
    if summary.traced_ms is None:
        return "no trace" if summary.source is None else "no events"
    if summary.until_gpu_ms is not None:
        until = fmt.duration(summary.until_gpu_ms)
        return f"GPU work continues after it: findings use {until}, until the GPU is done"
    if summary.source is not None:
        count = summary.executed.get("traced", 0)
        return "" if count == 1 else f"mean of {count:,}"
    return "" if summary.slowdown is None else f"{fmt.ratio(summary.slowdown)} the timed step"


def _phases(summary: Summary) -> Iterator[Bars]:
    """Yield the phases of the timed step, which are derived from their shares of the traced steps."""
    shares = {str(name): fmt.known(share) or 0.0 for name, share in summary.phases["share"].items()}
    positive = {name: share for name, share in shares.items() if share > 0}
    step = fmt.known(summary.timing.median_ms)
    total = step if step is not None else fmt.known(summary.traced_ms)
    if total is None or not positive:
        return
    title = "Phases of a traced step" if step is None else "Phases of the step, by their shares of the traced steps"
    whole = sum(positive.values())
    parts = tuple(Part(palette.mark(name), total * share / whole) for name, share in positive.items())
    yield Bars(title, "ms", (Bar("", parts, total),), key="phases")


def _notes(summary: Summary) -> Iterator[str]:
    yield from summary.notes
    if facts := noise_facts(summary.timing.noise):
        yield f"During the timed steps: {'; '.join(facts)}."
    if _is_inference(summary):
        yield _INFERENCE + ("" if summary.timing.throughput_per_s is not None else _NO_RATE)


def _is_inference(summary: Summary) -> bool:
    """Check whether a step that was run in this process is inference.

    An inference step has a forward pass, but neither a backward pass nor an optimizer step.
    """
    times = {str(name): fmt.known(row["ms"]) or 0.0 for name, row in summary.phases.iterrows()}
    trained = times.get("backward", 0.0) > 0 or times.get("optimizer", 0.0) > 0
    return summary.source is None and times.get("forward", 0.0) > 0 and not trained
