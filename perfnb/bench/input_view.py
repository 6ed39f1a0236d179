"""Create the document that shows a step's times with and without its loader and its model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from perfnb import quantities as fmt
from perfnb.bench.input_figures import MATTERS
from perfnb.draw import palette
from perfnb.draw.document import Column, Document, State, Table, Value, Verdict
from perfnb.profile.timing import noise_sentences

if TYPE_CHECKING:
    from perfnb.bench.input_figures import InputBound

#: The label of each kind of run, and the phase whose colour it shares.
_WORDS = {
    "together": ("together", "other"),
    "loader": ("loader alone", "data"),
    "model": ("model alone", "forward"),
    "rest": ("neither (the rest)", "loss"),
    "iteration": ("only taking batches", "data"),
}
#: If the loader's workers restart only after this many batches, the restarts hardly matter.
_FEW_A_START = 20
#: The overlap above which loader and model count as fully overlapping, the value that the interval must reach, and the
#: overlap up to which they count as sequential.
_MOSTLY, _HALF, _HARDLY = 0.75, 0.5, 0.25
_VERDICTS: dict[str, tuple[State, str]] = {
    "input-bound": ("bad", "Input-bound"),
    "compute-bound": ("good", "Compute-bound"),
    "balanced": ("none", "Balanced, because the loader overlaps with a model that takes equally long"),
    "inconclusive": ("open", "Inconclusive"),
}


def input_bound_document(figures: InputBound) -> Document:
    """Return a document with the verdict and the step time in each kind of run."""
    rounds = fmt.counted(len(figures.rounds), "round")
    state, word = _VERDICTS[figures.verdict]
    saved, why, advice = _saved(figures), _overlap_words(figures), ""
    if figures.verdict == "balanced" and figures.saved_by_loader.low > 0 and figures.saved_share >= MATTERS:
        word, by_model = "Loader and model both limit the step", figures.saved_by_model.estimate
        saved += f"; a model that takes no time, {fmt.duration(by_model)}, {fmt.share(by_model / figures.together_ms)}"
    if figures.verdict == "inconclusive":
        why, advice = "The intervals are too wide for a verdict.", "Raise budget_s, or use a quieter machine."
        if len(figures.rounds) < 6:
            why = f"Only {rounds} ran, which is too few to separate signal from noise."
    elif figures.verdict == "compute-bound" and figures.mostly_rest:
        advice = "Almost all of the step is spent outside the loader and the model. Look at its other work."
    rows = []
    for kind, row in figures.times.iterrows():
        label, phase = _WORDS[str(kind)]
        time = Value(row["median_ms"], "ms", fmt.known_bounds((row["low_ms"], row["high_ms"])))
        rows.append((replace(palette.mark(phase), word=label), time, row["ran"]))
    medians = f"Time per step, median of {fmt.counted(len(figures.rounds), 'block')}"
    medians += " with 95 % interval" if figures.saved_by_loader.bounded else ""
    columns = (Column("run"), Column("per step", "ms", bar=True), Column("what runs", priority=1))
    return Document(
        "input test",
        verdict=Verdict(state, f"{word}: {saved}", why, advice),
        facts=(f"{rounds} with one block of {fmt.counted(figures.steps, 'step')} of each kind, in random order",),
        sections=(Table(medians, columns, rows, noun="run"),),
        notes=tuple(_notes(figures)),
    )


def _notes(figures: InputBound) -> Iterator[str]:
    yield f"The step ran {figures.executed:,} times. Models, optimizers and random state have been restored."
    if figures.batches_a_start is not None and figures.batches_a_start < _FEW_A_START:
        every = fmt.significant(figures.batches_a_start, trim=True)
        yield (
            f"The loader's workers restarted every {'batch' if every == '1' else f'{every} batches'}, which counts "
            "towards the loader's time. Pass persistent_workers=True to keep them alive."
        )
    without = sum(map(sum, (figures.rounds_ms["loader"], figures.rounds_ms["rest"]))) * figures.steps
    if figures.unforeseen_ms > 0.1 * without:
        yield (
            f"Batches kept arriving in new shapes, so the real model ran for {fmt.duration(figures.unforeseen_ms)} "
            "instead of being replaced. That time is subtracted, but the loader could prefetch during it."
        )
    yield from noise_sentences(figures.noise)


def _saved(figures: InputBound) -> str:
    """Describe what a perfect loader would save. If the interval contains 0, only an upper bound is given."""
    saved, whole = figures.saved_by_loader, f"of {fmt.duration(figures.together_ms)} per step"
    if not saved.bounded:
        seen = fmt.duration(saved.estimate) if saved.estimate > 0 else "nothing"
        return f"so far, a perfect loader would save an estimated {seen} {whole} (no interval yet)"
    if saved.low > 0:
        most = fmt.interval(saved.estimate, (saved.low, saved.high))
        return f"a perfect loader would save up to {most} {whole}, {fmt.share(figures.saved_share)}"
    if saved.high <= 0:
        return "a perfect loader would not save any measurable time"
    return f"a perfect loader would save at most {fmt.duration(saved.high)} {whole}, and possibly nothing"


def _overlap_words(figures: InputBound) -> str:
    """Describe how the loader and the model overlap, or return nothing if the interval is too wide to tell."""
    overlap, bounds = figures.overlap, figures.overlap_bounds
    if overlap is None or bounds is None:
        return ""
    if figures.hindered:
        return "Together, they take longer than in sequence, because they compete for resources such as CPU cores."
    if bounds[1] < _HALF and overlap <= _HARDLY:
        return "Loader and model run in sequence. More workers or a loader that prefetches may help."
    if bounds[0] > _HALF and overlap >= _MOSTLY:
        return "Loader and model overlap fully, so the step takes as long as the longer of the two."
    if bounds[0] > 0 and bounds[1] < 1:
        return f"Loader and model overlap partly ({fmt.share(overlap)} of the shorter one is hidden)."
    return ""
