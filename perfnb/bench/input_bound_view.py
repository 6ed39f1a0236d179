"""A step with and without its loader and its model: the verdict in a sentence, and the times side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfnb import quantities as fmt
from perfnb.draw import escape, palette, tables
from perfnb.draw.frame import framed, header
from perfnb.profile.noise import noise_facts

if TYPE_CHECKING:
    from perfnb.bench.input_bound_table import InputBound

#: What each kind is called, and the phase whose mark it has.
_WORDS = {
    "together": ("together", "other"),
    "loader": ("loader alone", "data"),
    "model": ("model alone", "forward"),
    "rest": ("neither (the rest)", "loss"),
    "iteration": ("only taking batches", "data"),
}
#: With more batches between two starts of a loader's workers the starts matter little.
_FEW_A_START = 20
_PUT_BACK = "Models, optimizers and random numbers are as they were."
_BAR_CELLS, _BAR_PIXELS = 24, 200
#: Overlap above which loader and model run side by side, where its interval ends, and below which one after the other.
_MOSTLY, _HALF, _HARDLY = 0.75, 0.5, 0.25


def input_bound_line(figures: InputBound) -> str:
    """``input-bound: a perfect loader would save up to 30.1 ms [29.8, 30.5] of 35.2 ms a step, 86 %``."""
    return f"{figures.verdict}: {_saved(figures)}"


def input_bound_sentences(figures: InputBound) -> list[str]:
    """What was found, and what to know about it."""
    sentences = [_VERDICTS[figures.verdict], f"{fmt.capital(_saved(figures))}."]
    if figures.verdict == "compute-bound" and figures.mostly_rest:
        sentences.append("Nearly all of the step is neither the loader nor the model: look at what else it does.")
    if figures.verdict != "inconclusive" and (words := _overlap_words(figures)) is not None:
        sentences.append(words)
    if figures.verdict == "inconclusive":
        few = figures.rounds < 6
        sentences.append(
            f"There {'was' if figures.rounds == 1 else 'were'} only {_counted(figures.rounds, 'round')}, too few to "
            "tell anything from noise: raise budget_s."
            if few
            else "The intervals are too wide to tell: raise budget_s, or quieten the machine."
        )
    count = f"{_counted(figures.rounds, 'round')} of a block of {_counted(figures.steps, 'step')} of each kind"
    sentences.append(f"{count}, in random order; the step ran {figures.executed:,} times. {_PUT_BACK}")
    if figures.batches_a_start is not None and figures.batches_a_start < _FEW_A_START:
        sentences.append(
            f"The loader's workers were started anew every {_every(figures.batches_a_start)}, which is part of the "
            "loader's time: persistent_workers=True keeps them."
        )
    without = sum(map(sum, (figures.rounds_ms["loader"], figures.rounds_ms["rest"]))) * figures.steps
    if figures.unforeseen_ms > 0.1 * without:
        sentences.append(
            f"Batches of new shapes kept coming: for {fmt.duration(figures.unforeseen_ms)} the true model ran where it "
            "should have been replaced. That was taken off, but a loader went on meanwhile."
        )
    whole = sum(map(sum, figures.rounds_ms.values())) * figures.steps
    return [*sentences, *(f"{fmt.capital(fact)}." for fact in noise_facts(figures.noise, whole))]


def input_bound_text(figures: InputBound, width: int = 100) -> str:
    """The test as text."""
    lines = [line for sentence in input_bound_sentences(figures) for line in escape.wrapped(sentence, width)]
    longest = max(1e-12, float(figures.times["median_ms"].max()))
    for kind, row in figures.times.iterrows():
        word, mark = _WORDS[str(kind)]
        cells = max(1, round(_BAR_CELLS * row["median_ms"] / longest))
        bar = palette.mark(mark).glyph.replace("·", "━") * cells
        lines.append(f"{word:<20} {_time(row):>26}  {bar}")
    return "\n".join(lines)


def input_bound_html(figures: InputBound) -> str:
    """The test as sentences and a table with bars."""
    first, *rest = input_bound_sentences(figures)
    longest = max(1e-12, float(figures.times["median_ms"].max()))
    rows = []
    for kind, row in figures.times.iterrows():
        word, mark = _WORDS[str(kind)]
        pixels = max(1, round(_BAR_PIXELS * row["median_ms"] / longest))
        look = palette.mark(mark)
        style = f"display:inline-block;height:11px;width:{pixels}px;background-color:{look.colour}"
        bar = f'<i class="pf-key pf-{look.pattern}" style="{style}"></i>'
        rows.append([escape.html(word), escape.html(_time(row)), bar, escape.html(row["ran"])])
    medians = f"Time a step, median of {_counted(figures.rounds, 'block')}"
    caption = medians + (" with 95 % interval" if figures.saved_by_loader.bounded else "")
    words = header("A step, its loader and its model", "input test", first, " ".join(rest))
    return framed(f"{words}{tables.table(caption, ['run', 'a step', '', 'what runs'], rows, texts=4)}", narrow=True)


_VERDICTS = {
    "input-bound": "Input-bound: the step waits for its data.",
    "compute-bound": "Compute-bound: the loader is not what holds the step back.",
    "balanced": "Balanced: loader and model hold the step back alike.",
    "inconclusive": "Inconclusive.",
}


def _saved(figures: InputBound) -> str:
    """What a perfect loader would save; a bound and no estimate where the interval holds 0."""
    saved, whole = figures.saved_by_loader, f"of {fmt.duration(figures.together_ms)} a step"
    if not saved.bounded:
        seen = fmt.duration(saved.estimate) if saved.estimate > 0 else "nothing"
        return f"so far a perfect loader would seem to save {seen} {whole}, without an interval"
    if saved.low > 0:
        most = fmt.interval(saved.estimate, (saved.low, saved.high))
        return f"a perfect loader would save up to {most} {whole}, {fmt.share(saved.estimate / figures.together_ms)}"
    if saved.high <= 0:
        return "a perfect loader would save nothing that could be seen"
    return f"a perfect loader would save between nothing and {fmt.duration(saved.high)} {whole}"


def _counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _overlap_words(figures: InputBound) -> str | None:
    """How loader and model share the time; nothing where the interval leaves it open."""
    overlap, bounds = figures.overlap, figures.overlap_bounds
    if overlap is None or bounds is None:
        return None
    if figures.hindered:
        return "Together they take longer than one after the other: they compete, perhaps workers and model for cores."
    if bounds[1] < _HALF and overlap <= _HARDLY:
        return "Loader and model run one after the other: more workers, or a loader that prefetches, may help."
    if bounds[0] > _HALF and overlap >= _MOSTLY:
        return "Loader and model run side by side: the step takes as long as the longer of the two."
    if bounds[0] > 0 and bounds[1] < 1:
        return f"Loader and model overlap in part ({fmt.share(overlap)} of the shorter one is hidden)."
    return None


def _every(count: float) -> str:
    words = fmt.significant(count, trim=True)
    return "batch" if words == "1" else f"{words} batches"


def _time(row: object) -> str:
    low, high = row["low_ms"], row["high_ms"]  # type: ignore[index]
    known = fmt.known(low) is not None and fmt.known(high) is not None
    return fmt.interval(row["median_ms"], (low, high) if known else None)  # type: ignore[index]
