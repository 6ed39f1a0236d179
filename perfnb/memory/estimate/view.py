"""Create a document about the estimated memory of a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from perfnb import quantities as fmt
from perfnb.draw import palette
from perfnb.draw.document import Bar, Bars, Column, Document, Figure, Part, Section, Table, Verdict
from perfnb.memory.tab import options_table

if TYPE_CHECKING:
    from perfnb.memory.estimate.estimate import MemoryEstimate

_AVAILABLE = replace(palette.mark("loss"), word="available")


def estimate_document(estimate: MemoryEstimate, capacity: int | None, largest: int | None) -> Document:
    """Return a document that shows whether a step fits, how much memory it needs, and which changes would need less.

    Parameters
    ----------
    estimate : MemoryEstimate
        The estimated memory of the step.
    capacity : int or None
        The memory on this machine's device that is available to the process, or ``None`` if it is unknown.
    largest : int or None
        The largest batch that fits into that memory, or ``None`` if it is unknown or does not depend on the batch.
    """
    at = f"in {palette.mark(estimate.peak_phase).word}" + (f", by {estimate.peak_op}" if estimate.peak_op else "")
    figures = [Figure("peak", estimate.peak_bytes, "bytes", basis=at)]
    if capacity is not None:
        figures.append(Figure("available", capacity, "bytes", basis=f"memory of {_device(estimate)}"))
    return Document(
        "memory estimate",
        estimate.model,
        estimate.device,
        verdict=_verdict(estimate, capacity, largest),
        figures=tuple(figures),
        facts=(step_words(estimate),),
        sections=tuple(_sections(estimate, capacity)),
        notes=() if estimate.caveat is None else (estimate.caveat,),
    )


def step_words(estimate: MemoryEstimate) -> str:
    """Describe the kind of step in words, such as ``training with a batch of 32 and AdamW``."""
    size = "" if estimate.batch_size is None else f" with a batch of {estimate.batch_size:,}"
    if not estimate.training:
        return f"inference{size}"
    return f"training{size}" + (f" and {estimate.optimizer}" if estimate.optimizer else "")


def _device(estimate: MemoryEstimate) -> str:
    return f"this machine's {estimate.device.partition(':')[0].replace('cpu', 'CPU').replace('cuda', 'GPU')}"


def _verdict(estimate: MemoryEstimate, capacity: int | None, largest: int | None) -> Verdict:
    needs = f"the step needs {fmt.size(estimate.peak_bytes)} at its peak"
    if capacity is None:
        advice = "Find the largest batch that fits into your device's memory."
        code = "estimate.largest_batch(24 * 2**30)"
        return Verdict("none", f"{fmt.capital(needs)}; the memory of {_device(estimate)} is unknown", "", advice, code)
    fits = estimate.peak_bytes <= capacity
    whole = f"the {fmt.size(capacity)} of {_device(estimate)}"
    sentence = f"Fits: {needs}, {fmt.share(estimate.peak_bytes / (capacity or 1))} of {whole}"
    if not fits:
        sentence = f"Does not fit: {needs}, {fmt.size(estimate.peak_bytes - capacity)} more than {whole}"
    advice = code = ""
    if largest is None and estimate.batch_size is not None:
        advice, code = "Find the largest batch that fits.", "estimate.largest_batch()"
    if largest is not None:
        most = f"the largest batch that fits has {fmt.counted(largest, 'sample')}"
        sentence += f"; {most if largest else 'not even one sample fits'}"
    return Verdict("good" if fits else "bad", sentence, "", advice, code)


def _sections(estimate: MemoryEstimate, capacity: int | None) -> Iterator[Section]:
    peak = estimate.peak_bytes
    parts = tuple(Part(palette.category(name), size) for name, size in estimate.by_category.items())
    if capacity is None:
        yield Bars("Alive at the peak", "bytes", (Bar("", parts, peak),))
    else:
        needed, available = Bar("needed", parts, peak), Bar("available", (Part(_AVAILABLE, capacity),))
        yield Bars("Alive at the peak, and available", "bytes", (needed, available))
    columns = (
        Column("category"),
        Column("at the peak", "bytes", bar=True),
        Column("share", "share"),
        Column("at most", "bytes", priority=1, help="The maximum, which may occur at another time"),
    )
    rows = []
    for name, held in estimate.by_category.items():
        most = getattr(estimate, name, held)  # the maximum of "other" is not requested
        if held or most:
            rows.append((palette.category(name), held, held / (peak or 1), most))
    yield Table("Memory by category", columns, rows, noun="category")
    title = "What would make it fit?" if capacity is not None and capacity < peak else "What would take less memory?"
    yield options_table(estimate.options, peak, title)
