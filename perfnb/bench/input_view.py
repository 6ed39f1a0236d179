"""A step with and without its loader and its model: the verdict in a sentence, then the times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from perfnb import quantities as fmt
from perfnb.draw import escape, palette, tables
from perfnb.draw.frame import framed, header
from perfnb.profile.timing import noise_sentences

if TYPE_CHECKING:
    from perfnb.bench.input_figures import InputBound

#: Label of each kind, and the phase whose colour it has.
_WORDS = {
    "together": ("together", "other"),
    "loader": ("loader alone", "data"),
    "model": ("model alone", "forward"),
    "rest": ("neither (the rest)", "loss"),
    "iteration": ("only taking batches", "data"),
}
#: From this many batches per start of the loader's workers on, the starts hardly matter.
_FEW_A_START = 20
_BAR_CELLS, _BAR_PIXELS = 24, 200
#: Overlap from which loader and model overlap fully, where its interval must end, and up to which they do not.
_MOSTLY, _HALF, _HARDLY = 0.75, 0.5, 0.25
_VERDICTS = {
    "input-bound": "Input-bound: the step waits for its data.",
    "compute-bound": "Compute-bound: the loader is not the bottleneck.",
    "balanced": "Balanced: loader and model limit the step equally.",
    "inconclusive": "Inconclusive.",
}


def input_bound_line(figures: InputBound) -> str:
    """``input-bound: a perfect loader would save up to 30.1 ms [29.8, 30.5] of 35.2 ms per step, 86 %``."""
    return f"{figures.verdict}: {_saved(figures)}"


def input_bound_sentences(figures: InputBound) -> list[str]:
    """The result and its caveats."""
    rounds = fmt.counted(len(figures.rounds), "round")
    sentences = [_VERDICTS[figures.verdict], f"{fmt.capital(_saved(figures))}."]
    if figures.verdict == "compute-bound" and figures.mostly_rest:
        sentences.append("Nearly all of the step is neither loader nor model: look at what else it does.")
    if figures.verdict == "inconclusive":
        few = f"Only {rounds} ran, too few to separate signal from noise: raise budget_s."
        wide = "The intervals are too wide for a verdict: raise budget_s, or use a quieter machine."
        sentences.append(few if len(figures.rounds) < 6 else wide)
    elif (words := _overlap_words(figures)) is not None:
        sentences.append(words)
    blocks = f"one block of {fmt.counted(figures.steps, 'step')} of each kind"
    sentences.append(
        f"{rounds} with {blocks}, in random order; the step ran "
        f"{figures.executed:,} times. Models, optimizers and random state have been restored."
    )
    if figures.batches_a_start is not None and figures.batches_a_start < _FEW_A_START:
        every = fmt.significant(figures.batches_a_start, trim=True)
        sentences.append(
            f"The loader's workers restarted every {'batch' if every == '1' else f'{every} batches'}, which counts "
            "towards the loader's time: persistent_workers=True keeps them alive."
        )
    without = sum(map(sum, (figures.rounds_ms["loader"], figures.rounds_ms["rest"]))) * figures.steps
    if figures.unforeseen_ms > 0.1 * without:
        sentences.append(
            f"Batches kept arriving in new shapes, so the real model ran for {fmt.duration(figures.unforeseen_ms)} "
            "instead of being replaced. That time is subtracted, but the loader could prefetch during it."
        )
    return [*sentences, *noise_sentences(figures.noise)]


def input_bound_text(figures: InputBound, width: int = 100) -> str:
    """The test as text."""
    lines = [line for sentence in input_bound_sentences(figures) for line in escape.wrapped(sentence, width)]
    for word, took, mark, size, _ in _rows(figures):
        bar = mark.glyph.replace("·", "━") * max(1, round(_BAR_CELLS * size))
        lines.append(f"{word:<20} {took:>26}  {bar}")
    return "\n".join(lines)


def input_bound_html(figures: InputBound) -> str:
    """The test as sentences and a table with bars."""
    first, *rest = input_bound_sentences(figures)
    rows = []
    for word, took, mark, size, ran in _rows(figures):
        pixels = max(1, round(_BAR_PIXELS * size))
        style = f"display:inline-block;height:11px;width:{pixels}px;background-color:{mark.colour}"
        bar = f'<i class="pf-key pf-{mark.pattern}" style="{style}"></i>'
        rows.append([escape.html(word), escape.html(took), bar, escape.html(ran)])
    medians = f"Time per step, median of {fmt.counted(len(figures.rounds), 'block')}"
    caption = medians + (" with 95 % interval" if figures.saved_by_loader.bounded else "")
    words = header("A step, its loader and its model", "input test", first, " ".join(rest))
    return framed(f"{words}{tables.table(caption, ['run', 'per step', '', 'what runs'], rows, texts=4)}", narrow=True)


def _rows(figures: InputBound) -> Iterator[tuple[str, str, palette.Mark, float, str]]:
    """Of each kind its label, time, look, share of the longest time, and what ran."""
    times = figures.times
    longest = max(1e-12, float(times["median_ms"].max()))
    for kind, row in times.iterrows():
        word, phase = _WORDS[str(kind)]
        took = fmt.interval(row["median_ms"], (row["low_ms"], row["high_ms"]))
        yield word, took, palette.mark(phase), row["median_ms"] / longest, row["ran"]


def _saved(figures: InputBound) -> str:
    """What a perfect loader would save; only a bound if the interval contains 0."""
    saved, whole = figures.saved_by_loader, f"of {fmt.duration(figures.together_ms)} per step"
    if not saved.bounded:
        seen = fmt.duration(saved.estimate) if saved.estimate > 0 else "nothing"
        return f"so far it looks as if a perfect loader would save {seen} {whole} (no interval yet)"
    if saved.low > 0:
        most = fmt.interval(saved.estimate, (saved.low, saved.high))
        return f"a perfect loader would save up to {most} {whole}, {fmt.share(figures.saved_share)}"
    if saved.high <= 0:
        return "a perfect loader would save nothing measurable"
    return f"a perfect loader would save between nothing and {fmt.duration(saved.high)} {whole}"


def _overlap_words(figures: InputBound) -> str | None:
    """How loader and model share the time; ``None`` if the interval leaves it open."""
    overlap, bounds = figures.overlap, figures.overlap_bounds
    if overlap is None or bounds is None:
        return None
    if figures.hindered:
        return "Together they take longer than in sequence: they compete for something, perhaps CPU cores."
    if bounds[1] < _HALF and overlap <= _HARDLY:
        return "Loader and model run in sequence: more workers, or a loader that prefetches, may help."
    if bounds[0] > _HALF and overlap >= _MOSTLY:
        return "Loader and model overlap fully: the step takes as long as the longer of the two."
    if bounds[0] > 0 and bounds[1] < 1:
        return f"Loader and model overlap partly ({fmt.share(overlap)} of the shorter one is hidden)."
    return None
