"""`find_leaks`: does memory grow from step to step, and what leaks it? As a sentence, as text and as static HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.draw import escape, palette, tables
from perfnb.draw.frame import framed, header
from perfnb.draw.progress import Progress
from perfnb.draw.shown import Shown
from perfnb.memory.allocations import allocations_by_step, watched_memory
from perfnb.memory.leaks.judge import PROCESS_FLOOR_BYTES, LeakReport, leak_report, process_grows
from perfnb.stats.slope import FEWEST_STEPS, Slope

if TYPE_CHECKING:
    from torch import nn

#: Warm-up steps before watching starts: caches fill, optimizers create their state.
WARMUP = 10
#: Greatest number of owners listed.
MOST_OWNERS = 12
#: Least width that fits the columns.
MIN_WIDTH = 80

_LEVELS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 60
_PICTURE = "display:flex;align-items:flex-end;gap:1px;width:240px;height:32px"
_TITLE = "Leaked per step"


class Leaks(Shown):
    """What many steps leak. Shows itself in a notebook; its tables are pandas frames."""

    def __init__(self, report: LeakReport, name: str = "step") -> None:
        self._report, self._name = report, name

    @property
    def verdict(self) -> str:
        """``leak``, ``no leak seen`` or ``inconclusive``."""
        return self._report.verdict

    @property
    def sentence(self) -> str:
        """The verdict in words, with its reason."""
        return leak_sentence(self._report)

    @property
    def allocator(self) -> Slope | None:
        """Growth per step of the memory handed out by torch's allocators; ``None`` if unknown."""
        return self._report.allocator

    @property
    def process(self) -> Slope | None:
        """Growth per step of the process's resident memory, in the last round that read it; ``None`` if unknown."""
        return self._report.process

    @property
    def survivors(self) -> pd.DataFrame:
        """Layer, phase and op of allocations that outlive their step, most bytes first."""
        return self._report.survivors.copy()

    @property
    def steps(self) -> pd.DataFrame:
        """Memory after each watched step."""
        return self._report.per_step.copy()

    def _text(self) -> str:
        return leaks_text(self._report, self._name)

    def _line(self) -> str:
        slope = self.process if self._report.reason in ("outside", "shapes") else self.allocator or self.process
        return self.verdict if slope is None else f"{self.verdict}, {slope_words(slope)}"

    def _html(self) -> str:
        return leaks_html(self._report, self._name)


def find_leaks(
    step: Callable[..., Any],
    batches: Iterable[Any] | None = None,
    *,
    steps: int = 40,
    warmup: int | None = None,
    model: nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module] | None = None,
    name: str | None = None,
) -> Leaks:
    """Run a step many times and find out whether memory grows, and what leaks it.

    After warm-up, the step runs `steps` times with only the process's memory read, then `steps` times with every
    allocation recorded (fewer, but at least 15, if the process grows by more than 256 MiB meanwhile). If the process
    grew in the first round, its memory is read again in as many steps: only growth that continues is a leak.

    A leak is reported only if the 95 % interval of the growth excludes 0. Growth of the process alone while batches
    arrive in new shapes is not reported as one.

    Parameters
    ----------
    step : callable
        One step: ``step()``, or ``step(batch)`` with `batches`.
    batches : iterable, optional
        Batches for the steps; restarted when they run out.
    steps : int
        Steps to watch: at least 15, and 40 or more to see a leak if memory varies between steps.
    warmup : int, optional
        Steps to run before watching, 10 by default.
    model : Module, list of Module, or dict of name to Module, optional
        The models to break down into layers; by default every module that the step calls.
    name : str, optional
        Title.

    Returns
    -------
    Leaks

    Raises
    ------
    TypeError
        If `step` is not callable, `batches` is a single batch, or one does not fit the other.
    CaptureError
        Inside another profiler, if `batches` run out, or if the step runs a profiler itself.
    Exception
        Whatever `step` or `batches` raise, after everything that perfnb installed has been removed.
    """
    from perfnb.step.capture import watch_steps
    from perfnb.step.checks import require_name, require_steps
    from perfnb.step.namespace import chosen_models, namespace_of
    from perfnb.step.to_recording import recording_of

    __tracebackhide__ = True
    require_steps({"step": step}, batches, "find_leaks(step, loader)")
    require_name(name)
    models, names = chosen_models(model)
    title = name or str(getattr(step, "__name__", "step"))
    with Progress() as progress:
        before = WARMUP if warmup is None else warmup
        capture, process_bytes, recorded, later = watch_steps(
            step,
            batches,
            steps=steps,
            warmup=before,
            grows=process_grows,
            models=models,
            namespace={**names, **namespace_of(step), **names},  # a name given with a model comes first
            progress=progress,
        )
        watched = watched_memory(recording_of(capture, title))
        allocations = None if watched is None else allocations_by_step(watched)
        report = leak_report(allocations, process_bytes, steps=recorded, later_bytes=later)
        return Leaks(replace(report, after=before + steps + recorded + len(later)), title)


def leaks_text(report: LeakReport, name: str = "step", width: int = 100) -> str:
    """The report as text for a terminal, a log, or a notebook without HTML."""
    width = max(MIN_WIDTH, width)
    title = escape.shorten(f"perfnb · leaks · {escape.plain(name, width // 2)}", width)
    parts = [
        [title, *escape.wrapped(leak_sentence(report), width)],
        _growth_lines(report, width),
        _survivor_lines(report.survivors, width),
    ]
    return "\n\n".join("\n".join(line.rstrip() for line in part) for part in parts if part)


def leaks_html(report: LeakReport, name: str = "step") -> str:
    """The report as tables and bars without scripts."""
    verdict = fmt.capital(report.verdict)
    sentence = leak_sentence(report).removeprefix(f"{verdict}. ")
    words = header(escape.plain(name), "leaks", verdict, sentence)
    return framed(f"{words}{_growth_table(report)}{_survivor_table(report.survivors)}", narrow=True)


def leak_sentence(report: LeakReport) -> str:
    """The verdict in words, and what to do if it is uncertain."""
    torch = None if report.allocator is None else slope_words(report.allocator)
    process = None if report.process is None else slope_words(report.process)
    if report.reason in ("kept", "growing"):
        owner = _owner_words(report.survivors.iloc[0])
        how = f"Each step leaves memory behind, most of it {owner}."
        if report.reason == "growing":
            how = f"Each step replaces an allocation with a larger one, {owner}: perhaps a tensor that is appended to."
        if report.beyond_bytes is not None:
            how += f" The process grows by another {fmt.size(report.beyond_bytes)} per step outside torch's tensors."
        ran = f" in a run of {report.after:,} steps" if report.after else ""
        return f"Memory grows by {torch}{ran}: a leak. {how}"
    if report.reason == "outside":
        what = "but torch's allocator does not" if torch else "and torch's allocator was not watched"
        return (
            f"The process grows by {process}, {what}: a leak outside torch's tensors, such as NumPy arrays, Python "
            "objects or library caches."
        )
    if report.reason == "settled" and report.early is not None:
        return (
            f"No leak seen. The process grew by {slope_words(report.early)} in the first {len(report.per_step):,} "
            f"steps that were watched and no longer does: {process}. A cache that fills behaves like this."
        )
    if report.reason == "shapes":
        return (
            f"The process grows by {process} but torch's allocator does not, while batches kept arriving in new "
            "shapes. Libraries such as oneDNN cache what they prepare for each shape: watch steps of one shape to rule "
            "out a leak."
        )
    if report.reason == "garbage" and report.allocator is not None and report.allocator.grows:
        return (
            f"No leak seen. Memory grows by {torch} while the steps run, but Python's garbage collector frees it: the "
            "tensors are in reference cycles."
        )
    if report.reason == "unexplained":
        return f"Memory grows by {torch}, but nothing from the early steps is still alive: watch more steps."
    if report.reason == "unseen":
        return (
            f"Each step leaves allocations behind, {torch}, but the process does not certainly grow as much: "
            f"{process}. A cache may have filled, or older allocations may be freed, as in a fixed-length buffer or a "
            "list that is cleared now and then. Watch more steps, or warm up longer."
        )
    if report.reason == "hidden":
        kept = fmt.size(report.survivors["bytes_per_step"].sum())
        return (
            f"Each step leaves {kept} behind, but memory varies so much from step to step that growth is uncertain: "
            f"{torch}. Watch more steps, or batches of one shape."
        )
    if report.reason == "few":
        return f"Too few steps: a confidence interval needs at least {FEWEST_STEPS}."
    if report.reason == "unknown":
        return "Neither torch's allocator nor the process could be watched."
    changes = [f"{what} {by}" for what, by in (("torch's memory", torch), ("process", process)) if by]
    small = report.process is not None and report.process.grows
    note = f" Process growth below {fmt.size(PROCESS_FLOOR_BYTES)} per step is bookkeeping." if small else ""
    if report.reason == "garbage":
        waited = fmt.size(report.garbage_bytes * len(report.per_step))
        note += f" After the last step, {waited} in reference cycles waited for Python's garbage collector."
    return f"No leak seen. Measured growth: {', '.join(changes)}.{note}"


def slope_words(slope: Slope) -> str:
    """A slope with its interval: ``1.00 MiB per step [0.990, 1.01]``."""
    return fmt.growth(slope.bytes_per_step, (slope.ci_low, slope.ci_high))


def _owner_words(row: Any) -> str:
    """``allocated in encoder (forward) by aten::add``."""
    layer = "outside any layer" if pd.isna(row["layer"]) else f"in {escape.plain(row['layer'], 60)}"
    phase = "" if pd.isna(row["phase"]) else f" ({palette.mark(str(row['phase'])).word})"
    op = "" if pd.isna(row["op"]) else f" by {escape.plain(row['op'], 60)}"
    return f"allocated {layer}{phase}{op}"


def _series(report: LeakReport) -> list[tuple[str, str, list[float]]]:
    """Each measured series: its name, growth and levels."""
    measured = (
        ("torch's allocator", report.allocator, "allocated_bytes"),
        ("process (resident)", report.process, "process_bytes"),
    )
    return [
        (words, slope_words(slope), report.per_step[column].dropna().astype(float).tolist())
        for words, slope, column in measured
        if slope is not None
    ]


def _heights(levels: list[float], most: int) -> list[float]:
    """Levels scaled to 0 (lowest) to 1, thinned to at most `most`; all 0 if nothing changes."""
    shown = levels[:: -max(1, -(-len(levels) // most))][::-1]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    return [(level - low) / (high - low) if high > low else 0.0 for level in shown]


def _growth_lines(report: LeakReport, width: int) -> list[str]:
    lines = []
    for words, growth, levels in _series(report):
        left = f"{words:<19} {growth:<34} "
        lines.append(left + "".join(_LEVELS[round(7 * height)] for height in _heights(levels, width - len(left))))
    return ["Growth (95 % interval) and level after each step", "─" * width, *lines] if lines else []


def _growth_table(report: LeakReport) -> str:
    rows = []
    for words, growth, levels in _series(report):
        bars = "".join(
            f'<i style="flex:1;min-width:2px;height:{4 + 96 * height:.0f}%;background-color:{palette.GREY}"></i>'
            for height in _heights(levels, _MOST_BARS)
        )
        extent = f"{fmt.size(max(levels, default=0.0) - min(levels, default=0.0))} from lowest to highest"
        picture = f'<div aria-hidden="true" style="{_PICTURE}">{bars}</div>{escape.html(extent)}'
        rows.append((escape.html(words), escape.html(growth), picture))
    heads = ["memory", "growth", "level after each step"]
    return tables.table("Growth with its 95 % interval", heads, rows, last_texts=1) if rows else ""


def _rows(survivors: pd.DataFrame) -> Iterator[tuple[str, str, palette.Mark, str, tuple[str, str, str], str]]:
    """Layer, phase and its mark, op, figures and kind of those that leak most."""
    for _, row in survivors.head(MOST_OWNERS).iterrows():
        layer = "(no layer)" if pd.isna(row["layer"]) else str(row["layer"])
        mark = palette.mark("other" if pd.isna(row["phase"]) else str(row["phase"]))
        phase = fmt.UNKNOWN if pd.isna(row["phase"]) else mark.word
        op = fmt.UNKNOWN if pd.isna(row["op"]) else str(row["op"])
        figures = fmt.size(row["bytes_per_step"]), fmt.significant(row["count_per_step"]), fmt.count(row["steps"])
        yield layer, phase, mark, op, figures, row["kind"]


def _left_out(survivors: pd.DataFrame) -> list[str]:
    rest = survivors.iloc[MOST_OWNERS:]
    return [f"… {len(rest):,} more, {fmt.size(rest['bytes_per_step'].sum())} per step"] if len(rest) else []


def _survivor_lines(survivors: pd.DataFrame, width: int) -> list[str]:
    if not len(survivors):
        return []
    right = f"{'bytes per step':>14} {'count per step':>14} {'steps':>6}  kind"
    names = (width - len(right) - 20) // 2
    lines = [_TITLE, f"{'layer':<{names}} {'phase':<14} {'op':<{names}} {right}", "─" * width]
    for layer, phase, _, op, (size, count, steps), kind in _rows(survivors):
        left = f"{escape.fit(layer, names)} {escape.fit(phase, 14)} {escape.fit(op, names)}"
        lines.append(f"{left} {size:>14} {count:>14} {steps:>6}  {kind}")
    return [*lines, *_left_out(survivors)]


def _survivor_table(survivors: pd.DataFrame) -> str:
    if not len(survivors):
        return ""
    rows = [
        (tables.name(layer), tables.key(mark) + escape.html(phase), tables.name(op), *figures, escape.html(kind))
        for layer, phase, mark, op, figures, kind in _rows(survivors)
    ]
    heads = ["layer", "phase", "op", "bytes per step", "count per step", "in steps", "kind"]
    rest = "".join(f'<p class="pf-small">{escape.html(line)}</p>' for line in _left_out(survivors))
    return tables.table(_TITLE, heads, rows, texts=3, last_texts=1) + rest
