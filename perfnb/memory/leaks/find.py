"""Provide `find_leaks`, which finds out whether memory grows from step to step and what causes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfnb.draw.document import Document
from perfnb.draw.documented import Documented
from perfnb.draw.progress import Progress
from perfnb.memory.allocations import allocations_by_step, watched_memory
from perfnb.memory.leaks.judge import LeakFigures, leak_figures, process_grows
from perfnb.memory.leaks.view import leak_verdict, leaks_document, slope_words

if TYPE_CHECKING:
    from torch import nn

#: The number of warm-up steps. They fill caches and let optimizers create their state.
WARMUP = 10


class Leaks(Documented, LeakFigures):
    """The memory leaks found over many steps. Notebooks display them, and all tables are pandas DataFrames."""

    @property
    def sentence(self) -> str:
        """The verdict in words, including the reason and a recommendation."""
        verdict = leak_verdict(self)
        return " ".join(filter(None, (verdict.sentence, verdict.why, verdict.next)))

    def _line(self) -> str:
        slope = self.process if self.reason in ("outside", "shapes") else self.allocator or self.process
        return ", ".join(filter(None, (self.verdict, slope_words(slope))))

    def _document(self) -> Document:
        return leaks_document(self)


def find_leaks(
    step: Callable[..., Any],
    batches: Iterable[Any] | None = None,
    *,
    steps: int = 40,
    warmup: int | None = None,
    model: nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module] | None = None,
    name: str | None = None,
) -> Leaks:
    """Run a step many times to find out whether memory grows, and what causes it.

    After the warm-up, the step runs `steps` times while only the process's memory is read. It then runs `steps` times
    while every allocation is recorded. This round ends early, but not before 15 steps, if the process grows by more
    than 256 MiB. If the process grew in the first round, its memory is read again over the same number of steps,
    because growth is a leak only if it continues.

    A leak is reported only if the 95 % interval of the growth excludes 0. If only the process grows and batches with
    new shapes keep arriving, this is not reported as a leak.

    Parameters
    ----------
    step : callable
        A function that runs one step. It is called as ``step()`` or, if `batches` are given, as ``step(batch)``.
    batches : iterable, optional
        The batches for the steps. When they run out, iteration starts again from the beginning.
    steps : int
        The number of steps to watch, which must be at least 15. If memory varies between steps, 40 or more steps are
        required to detect a leak.
    warmup : int, optional
        The number of steps to run before watching. The default is 10.
    model : Module, list of Module, or dict of name to Module, optional
        The models to break down into layers. By default, these are all modules that the step calls.
    name : str, optional
        The title of the result.

    Returns
    -------
    Leaks

    Raises
    ------
    TypeError
        If `step` is not callable, if `batches` is a single batch, or if `step` cannot be called with these batches.
    CaptureError
        If another profiler is active, if `batches` run out, or if the step itself runs a profiler.
    Exception
        Any exception raised by `step` or `batches`, after perfnb has removed everything that it installed.
    """
    from perfnb.step.checks import require_name, require_steps
    from perfnb.step.namespace import chosen_models, step_variables
    from perfnb.step.pass_order import watch_steps
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
            namespace=step_variables(step, names),
            progress=progress,
        )
        watched = watched_memory(recording_of(capture, title))
        assert watched is not None
        figures = leak_figures(allocations_by_step(watched), process_bytes, steps=recorded, later_bytes=later)
        return Leaks(**vars(figures) | {"after": before + steps + recorded + len(later), "name": title})
