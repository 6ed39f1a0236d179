"""A step with and without its loader and its model: the verdict in a sentence, and the times side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfnb.views import escape, palette, tables
from perfnb.views import format as fmt
from perfnb.views.assets import static_style
from perfnb.views.timing import noise_facts

if TYPE_CHECKING:
    from perfnb.analysis.input_bound import InputBound

#: What each kind is called, and the phase whose mark it has.
_WORDS = {
    "together": ("together", "other"),
    "loader": ("loader alone", "data"),
    "model": ("model alone", "forward"),
    "rest": ("neither (the rest)", "loss"),
    "iteration": ("only taking batches", "data"),
}
_BAR_CELLS, _BAR_PIXELS = 24, 260
#: Overlap above which loader and model run side by side, and below which one after the other.
_MOSTLY, _HARDLY = 0.75, 0.25


def input_bound_line(figures: InputBound) -> str:
    """``input-bound: a perfect loader would save up to 30.1 ms [29.8, 30.5] of 35.2 ms``."""
    return f"{figures.verdict}: a perfect loader would save {_saved(figures)}"


def input_bound_sentences(figures: InputBound) -> list[str]:
    """What was found, and what to know about it."""
    share = figures.saved_by_loader.estimate / figures.together_ms
    saved = f"A perfect loader would save {_saved(figures)} a step" + (f", {fmt.share(share)}." if share > 0 else ".")
    sentences = [_VERDICTS[figures.verdict], saved]
    if figures.verdict == "compute-bound" and figures.mostly_rest:
        sentences.append("Nearly all of the step is neither the loader nor the model: look at what else it does.")
    if figures.verdict != "inconclusive" and (overlap := figures.overlap) is not None:
        sentences.append(_overlap_words(overlap, figures.hindered))
    if figures.verdict == "inconclusive":
        few = figures.rounds < 6
        sentences.append(
            f"There were only {figures.rounds} rounds, too few for an interval: raise budget_s."
            if few
            else "The intervals are too wide to tell: raise budget_s, or quieten the machine."
        )
    count = f"{figures.rounds} rounds of a block of {figures.steps} steps of each kind, in random order"
    sentences.append(f"{count}; the step ran {figures.executed:,} times, and what it changed was put back.")
    without = sum(map(sum, (figures.rounds_ms["loader"], figures.rounds_ms["rest"]))) * figures.steps
    if figures.unforeseen_ms > 0.1 * without:
        sentences.append(
            f"Batches of new shapes kept coming: for {fmt.duration(figures.unforeseen_ms)} the true model ran where it "
            "should have been replaced. That was taken off, but a loader went on meanwhile."
        )
    whole = sum(map(sum, figures.rounds_ms.values())) * figures.steps
    return [*sentences, *(f"{fact[0].upper()}{fact[1:]}." for fact in noise_facts(figures.noise, whole))]


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
        rows.append([escape.html(word), escape.html(row["ran"]), bar, escape.html(_time(row))])
    caption = f"Milliseconds a step, median of {figures.rounds} blocks with 95 % interval"
    return (
        f'<div class="perfnb-static"><style>{static_style()}</style>'
        f'<p class="pf-head"><strong class="pf-step">{escape.html_sentence(first)}</strong><br>'
        f"{escape.html_sentence(' '.join(rest))}</p>"
        f"{tables.table(caption, ['run', 'what runs', '', 'a step'], rows, texts=3)}</div>"
    )


_VERDICTS = {
    "input-bound": "Input-bound: the step waits for its data.",
    "compute-bound": "Compute-bound: the loader is not what holds the step back.",
    "balanced": "Balanced: loader and model hold the step back alike.",
    "inconclusive": "Inconclusive.",
}


def _saved(figures: InputBound) -> str:
    saved = figures.saved_by_loader
    bounds = (max(0.0, saved.low), max(0.0, saved.high)) if saved.bounded else None
    if saved.estimate <= 0:
        return "nothing that was seen" + ("" if bounds is None else f" (at most {fmt.duration(bounds[1])})")
    return f"up to {fmt.interval(saved.estimate, bounds)} of {fmt.duration(figures.together_ms)}"


def _overlap_words(overlap: float, hindered: bool) -> str:
    if hindered:
        return "Together they take longer than one after the other: they compete, perhaps workers and model for cores."
    if overlap <= _HARDLY:
        return "Loader and model run one after the other: workers, or a loader that prefetches, would let them overlap."
    if overlap < _MOSTLY:
        return f"Loader and model overlap in part ({fmt.share(overlap)} of the shorter one is hidden)."
    return "Loader and model run side by side: the step takes as long as the longer of the two."


def _time(row: object) -> str:
    low, high = row["low_ms"], row["high_ms"]  # type: ignore[index]
    known = fmt.known(low) is not None and fmt.known(high) is not None
    return fmt.interval(row["median_ms"], (low, high) if known else None)  # type: ignore[index]
