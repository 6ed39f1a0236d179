"""A whole run, and two runs side by side, as text and as static HTML."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import bars, escape, palette, tables
from perfnb.draw.frame import framed, header
from perfnb.loop.run_comparison import RunChanges
from perfnb.loop.run_summary import TYPICAL, RunFigures, strip

#: Narrowest text, and most rows of windows and of slow steps shown.
_NARROWEST, _MOST_WINDOWS, _MOST_SLOW = 60, 6, 5
#: Columns of the strip in the picture, and its size.
_COLUMNS, _WIDTH, _HEIGHT = 240, 960, 120
_WINDOWS_ARE = f"Profiled windows: typical at {TYPICAL[0]:g} to {TYPICAL[1]:g} × the run's median step"
_CAUTION = (
    "Each was run once: the intervals cover what varied within each run, not what differed on the machine between them."
)


def run_line(figures: RunFigures) -> str:
    """The run in a few words."""
    steps, verdict = fmt.counted(figures.steps, "step"), figures.findings.verdict.verdict
    if figures.median_ms is None:
        return f"{steps}, {verdict.lower()}"
    verdict = verdict[:1].lower() + verdict[1:]
    per = " per batch" if figures.by_batch else ""
    return f"{steps} of {fmt.interval(figures.median_ms, figures.ci_ms)}{per}, {verdict}"


def run_sentences(figures: RunFigures) -> list[str]:
    """The verdict's reasons, and what to do next."""
    steps, device = fmt.counted(figures.steps, "step"), "" if figures.device is None else " on the device's clock"
    said = f"{steps} in {fmt.duration(figures.duration_ms)}"
    if figures.median_ms is not None:
        basis = "median, 95 % interval" if figures.ci_ms else "median"
        per = "per batch" if figures.by_batch else "each"
        said += f": {fmt.interval(figures.median_ms, figures.ci_ms)} {per} ({basis}{device})"
    sentences = [f"{said}."]
    if figures.by_batch:
        sentences.append("Each step is one batch, because no optimizer step shows where a step ends.")
    if figures.batches > 1:
        sentences.append(f"Each step is one optimizer step on {figures.batches:,} batches.")
    if figures.warmup or figures.profiled:
        left = [
            f"the first {'step' if figures.warmup == 1 else f'{figures.warmup:,} steps'} (warm-up)"
            if figures.warmup
            else "",
            f"{figures.profiled:,} profiled {'step' if figures.profiled == 1 else 'steps'}" if figures.profiled else "",
        ]
        sentences.append(f"Left out of all figures but the phases: {' and '.join(filter(None, left))}.")
    sentences += figures.findings.table["evidence"].tolist()
    if figures.load is not None:
        load, cpus = figures.load
        sentences.append(
            f"The machine was busy: a mean load of {load:.1f} on {fmt.counted(cpus, 'CPU')}. Step times and slow steps "
            "may come from other programs."
        )
    if not figures.enough:
        sentences.append("30 steps after the warm-up are needed.")
    elif figures.findings.table.empty:
        sentences.append(f"{_nothing(figures)} What the steps themselves spend their time on, a profile shows.")
    return sentences


def _nothing(figures: RunFigures) -> str:
    """What was looked for and not found."""
    waits = f"waits for data take {fmt.share(figures.wait.estimate)} of the steps' time"
    parts = [waits if fmt.known(figures.phases["ms"]["data"]) is not None else "waits for data are not known"]
    parts.append("few steps are slow" if len(figures.slow) else "no step is slow")
    if figures.changes is not None:
        parts.append("the step time does not drift" if figures.changes.kind == "steady" else "its pace hardly changed")
    growth = figures.memory["resident"].growth
    known = growth is not None and growth.ci_low is not None
    parts.append("memory does not grow" if known else "there are too few readings of memory to tell whether it grows")
    return f"{fmt.capital(', '.join(parts[:-1]))}, and {parts[-1]}."


def run_text(figures: RunFigures, steps: pd.DataFrame, width: int = 100) -> str:
    """The run as text for a terminal or a log."""
    width = max(_NARROWEST, width)
    title = escape.shorten(f"perfnb · whole run · {escape.plain(_name(figures), width // 2)}", width)
    lines = [title, *escape.wrapped(f"{figures.findings.verdict.verdict}.", width)]
    for sentence in run_sentences(figures):
        lines += escape.wrapped(sentence, width)
    if action := figures.findings.verdict.next:
        lines += escape.bullets([f"Next: {action}"], width)
    parts = [lines, _phase_lines(figures, width), _strip_lines(figures, steps, width)]
    parts += [_memory_lines(figures, width), _window_lines(figures, width), _slow_lines(figures, width)]
    return "\n\n".join("\n".join(line.rstrip() for line in part) for part in parts if part)


def _name(figures: RunFigures) -> str:
    return figures.name if figures.rank is None else f"{figures.name}, rank {figures.rank} of {figures.ranks}"


def _marks(figures: RunFigures) -> list[tuple[palette.Mark, str, str]]:
    """Each phase of the run: its mark, time and share."""
    return [
        (palette.RUN[str(phase)], fmt.duration(row["ms"]), fmt.share(row["share"]))
        for phase, row in figures.phases.iterrows()
    ]


def _phase_lines(figures: RunFigures, width: int) -> list[str]:
    shares = figures.phases["share"].fillna(0.0).astype(float).tolist()
    if not sum(shares) > 0:
        return []
    marks = [palette.RUN[str(phase)] for phase in figures.phases.index]
    return ["Where the run's time went", bars.stacked(marks, shares, width), *bars.legend(_marks(figures), width)]


def _strip_lines(figures: RunFigures, steps: pd.DataFrame, width: int) -> list[str]:
    columns = strip(steps, width, figures.slow["step"])
    if len(columns) < 2:
        return []
    heights = columns["wall_ms"].fillna(0.0).astype(float)
    top = float(heights.max())
    below = "".join(_sign(row) for row in columns.itertuples())
    last = f"{int(columns['last'].max()):,}"
    return [
        f"Time per step over the run, up to {fmt.duration(top)} (^ profiled, ! slow step)",
        bars.heights(heights, top),
        below,
        f"0{last:>{len(columns) - 1}}",
    ]


def _sign(row: object) -> str:
    if getattr(row, "profiled"):  # noqa: B009 a row of a frame has no such attribute for type checkers
        return "^"
    return "!" if getattr(row, "slow") else " "  # noqa: B009


def _memory_rows(figures: RunFigures) -> Iterator[tuple[str, str, str]]:
    """Each kind of memory: its name, peak and growth."""
    for kind, words in (("resident", "process (resident)"), ("allocated", "allocated on the device")):
        peak, slope = figures.memory[kind].peak_bytes, figures.memory[kind].growth
        if peak is not None:
            grows = fmt.UNKNOWN if slope is None else fmt.growth(slope.bytes_per_step, (slope.ci_low, slope.ci_high))
            yield words, fmt.size(peak), grows


def _memory_lines(figures: RunFigures, width: int) -> list[str]:
    rows = [f"{words:<24} {peak:>10}  {grows}" for words, peak, grows in _memory_rows(figures)]
    return [f"{'Memory':<24} {'peak':>10}  growth with its 95 % interval", *rows] if rows else []


def _window_words(figures: RunFigures) -> Iterator[str]:
    for row in figures.windows.head(_MOST_WINDOWS).itertuples():
        steps = fmt.counted(int(row.steps), "step")  # type: ignore[arg-type]
        if pd.isna(row.typical):  # type: ignore[arg-type]
            yield f"Step {row.step:,} ({steps}): whether it was typical is not known."
            continue
        word = "typical" if row.typical else "not typical"
        yield (
            f"Step {row.step:,} ({steps}): {word} of the run. Its {row.judged_by} took {fmt.duration(row.ms)}, "
            f"{fmt.ratio(row.ratio)} the run's median."
        )
    rest = figures.windows.iloc[_MOST_WINDOWS:]
    if len(rest):
        odd = int((~rest["typical"].fillna(True)).sum())
        yield f"{len(rest):,} more windows, {odd:,} of them not typical."


def _window_lines(figures: RunFigures, width: int) -> list[str]:
    lines = escape.bullets(_window_words(figures), width)
    return [_WINDOWS_ARE, *lines] if lines else []


def _slow_rows(figures: RunFigures) -> list[tuple[str, str, str, str]]:
    return [
        (f"{int(row.step):,}", fmt.clock(row.start_s), fmt.duration(row.wall_ms), fmt.duration(row.data_ms))  # type: ignore[arg-type]
        for row in figures.slow.head(_MOST_SLOW).itertuples()
    ]


def _slow_lines(figures: RunFigures, width: int) -> list[str]:
    rows = [f"{step:>12} {at:>9} {took:>12} {waited:>18}" for step, at, took, waited in _slow_rows(figures)]
    if not rows:
        return []
    title = escape.wrapped(_slow_title(figures), width)
    return [*title, f"{'step':>12} {'at':>9} {'took':>12} {'waiting for data':>18}", *rows]


def _slow_title(figures: RunFigures) -> str:
    found = len(figures.slow)
    rest = f"; the slowest {_MOST_SLOW} of {found:,}" if found > _MOST_SLOW else ""
    return f"Slow steps: far slower than those around them{rest}"


def run_html(figures: RunFigures, steps: pd.DataFrame) -> str:
    """The run as static HTML with a picture of all steps."""
    verdict = figures.findings.verdict
    facts = [*run_sentences(figures), *([f"Next: {verdict.next}"] if verdict.next else [])]
    body = header(escape.plain(_name(figures)), "whole run", verdict.verdict, *facts)
    shares = figures.phases["share"].fillna(0.0).astype(float).tolist()
    if sum(shares) > 0:
        marks = [palette.RUN[str(phase)] for phase in figures.phases.index]
        body += tables.full_bar(list(zip(marks, shares, strict=True)), sum(shares))
        rows = [(tables.keyed(mark), escape.html(ms), escape.html(share)) for mark, ms, share in _marks(figures)]
        body += tables.table("Where the run's time went", ["phase", "time", "share"], rows)
    body += _strip_svg(figures, steps)
    memory = [tuple(map(escape.html, row)) for row in _memory_rows(figures)]
    if memory:
        heads = ["memory", "peak", "growth"]
        body += tables.table("Memory, growth with its 95 % interval", heads, memory)
    windows = "".join(f"<li>{escape.html_sentence(words)}</li>" for words in _window_words(figures))
    body += f'<p class="pf-small">{escape.html_sentence(_WINDOWS_ARE)}</p><ul>{windows}</ul>' if windows else ""
    slow = [tuple(map(escape.html, row)) for row in _slow_rows(figures)]
    if slow:
        body += tables.table(_slow_title(figures), ["step", "at", "took", "waiting for data"], slow)
    return framed(body, narrow=True)


def _strip_svg(figures: RunFigures, steps: pd.DataFrame) -> str:
    """All steps as one strip: the median of each column, its wait below, slow steps and profiled windows marked."""
    columns = strip(steps, _COLUMNS, figures.slow["step"])
    if len(columns) < 2:
        return ""
    each, top = _WIDTH / len(columns), float(columns["wall_ms"].max()) or 1.0
    paths = {"data": "", "step": "", "profiled": "", "slow": ""}
    for place, row in enumerate(columns.itertuples()):
        x, wall, data = place * each, fmt.known(row.wall_ms) or 0.0, fmt.known(row.data_ms) or 0.0
        if row.profiled:
            paths["profiled"] += _box(x, 0, max(each, 2.0), _HEIGHT)
            continue
        waited, whole = (_HEIGHT * min(1.0, ms / top) for ms in (data, wall))
        paths["data"] += _box(x, _HEIGHT - waited, each, waited)
        paths["step"] += _box(x, _HEIGHT - whole, each, whole - waited)
        if row.slow:
            paths["slow"] += f"M{x + each / 2:.1f} -1l3 -6h-6z"
    looks = {
        "data": f'fill="{palette.RUN["data"].colour}"',
        "step": f'fill="{palette.RUN["step"].colour}"',
        "profiled": f'fill="{palette.RUN["profiled"].colour}"',
        "slow": f'fill="{palette.WORSE}"',
    }
    drawn = "".join(f'<path d="{path}" {looks[kind]}/>' for kind, path in paths.items() if path)
    first, last = (f"{int(columns[end].iloc[place]):,}" for end, place in (("first", 0), ("last", -1)))
    said = escape.html_sentence(
        f"Time per step from step {first} to step {last}, up to {fmt.duration(top)}: waiting for data below, the rest "
        "of the step above it, profiled windows as bands, ▼ a slow step."
    )
    box = f"0 -8 {_WIDTH} {_HEIGHT + 8}"
    look = f'style="width:100%;max-width:{_WIDTH}px;height:{_HEIGHT + 8}px" preserveAspectRatio="none"'
    picture = f'<svg role="img" aria-label="{said}" viewBox="{box}" {look}>{drawn}</svg>'
    return f'{picture}<p class="pf-small">{said}</p>'


def _box(x: float, y: float, width: float, height: float) -> str:
    return f"M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z" if height > 0.05 else ""


def changes_line(changes: RunChanges) -> str:
    """The comparison in a few words."""
    return f"{changes.verdict}: {fmt.relative(changes.ratio, changes.ratio_ci)}"


def changes_sentences(changes: RunChanges) -> list[str]:
    """What changed, most important first."""
    if changes.ratio is None:
        return ["Inconclusive: one of the runs has no steps to compare."]
    a, b = (escape.plain(_name(figures), 40) for figures in (changes.a, changes.b))
    a, b = (a, b) if a != b else ("the first run", "the second run")
    band = fmt.share(changes.equal_within)
    words = {
        "faster": f"The steps of {b} are faster than those of {a}",
        "slower": f"The steps of {b} are slower than those of {a}",
        "same": f"The steps of both take the same time within {band}",
        "inconclusive": f"Inconclusive: neither a difference nor equality within {band} was shown",
    }
    first = f"{words[changes.verdict]}: {fmt.relative(changes.ratio, changes.ratio_ci)} × the time"
    said = [f"{first} (median step{'' if changes.ratio_ci else '; too few steps for an interval'})."]
    parts = changes.step.loc[["waiting for data", "working", "between steps"]]
    clear = parts[(parts["low_ms"] > 0) | (parts["high_ms"] < 0)]
    if len(clear):
        sizes = clear["change_ms"].abs().astype(float)
        told = [f"{what} {_signed(clear.loc[what])}" for what in sizes.sort_values(ascending=False).index]
        said.append(f"On average per step: {', '.join(told)}.")
    for what in changes.memory.index:
        row = changes.memory.loc[what]
        if str(what).startswith("growth") and (fmt.known(row["low_bytes"]) or 0.0) > 0:
            grows = fmt.growth(float(row["change_bytes"]), (float(row["low_bytes"]), float(row["high_bytes"])))
            said.append(f"Memory ({str(what).removeprefix('growth of ')}) grows faster, by {grows}.")
    return [*said, _CAUTION]


def _signed(row: pd.Series) -> str:
    """A change in milliseconds with its interval: ``+1.20 ms [1.10, 1.30]``."""
    ms = float(row["change_ms"])
    return ("+" if ms > 0 else "") + fmt.interval(ms, (row["low_ms"], row["high_ms"])).replace("-", fmt.MINUS)


def _change_rows(changes: RunChanges) -> Iterator[tuple[str, str, str, str]]:
    for what, row in changes.step.iterrows():
        words = {"step": "step (median)", "mean step": "step (mean)"}.get(str(what), str(what))
        yield words, fmt.duration(row["a_ms"]), fmt.duration(row["b_ms"]), _signed(row)
    for what, row in changes.memory.iterrows():
        if str(what).startswith("growth"):
            words = f"{what} memory per step"
            bounds = fmt.known_bounds((row["low_bytes"], row["high_bytes"])) or (None, None)
            change = fmt.known(row["change_bytes"])
            said = fmt.UNKNOWN if change is None else fmt.growth(change, bounds).replace(" per step", "")
        else:
            words, said = f"{what} memory, peak", fmt.size(row["change_bytes"]).replace("-", fmt.MINUS)
        said = f"+{said}" if (fmt.known(row["change_bytes"]) or 0) > 0 else said
        yield words, fmt.size(row["a_bytes"]), fmt.size(row["b_bytes"]), said


def changes_text(changes: RunChanges, width: int = 100) -> str:
    """The comparison as text."""
    width = max(_NARROWEST, width)
    names = [escape.plain(_name(figures), 30) for figures in (changes.a, changes.b)]
    title = escape.shorten(f"perfnb · two runs · {names[0]} (a) and {names[1]} (b)", width)
    lines = [title]
    for sentence in changes_sentences(changes):
        lines += escape.wrapped(sentence, width)
    lines += ["", f"{'per step':<36} {'a':>12} {'b':>12}  change with its 95 % interval"]
    lines += [f"{what:<36} {a:>12} {b:>12}  {change}" for what, a, b, change in _change_rows(changes)]
    return "\n".join(line.rstrip() for line in lines)


def changes_html(changes: RunChanges) -> str:
    """The comparison as static HTML."""
    first, *rest = changes_sentences(changes)
    names = " and ".join(escape.plain(_name(figures), 40) for figures in (changes.a, changes.b))
    rows = [tuple(map(escape.html, row)) for row in _change_rows(changes)]
    words = header(names, "two runs", first, " ".join(rest))
    heads = ["per step", "a", "b", "change"]
    return framed(words + tables.table("Change with its 95 % interval", heads, rows), narrow=True)
