"""`find_leaks`: find out whether memory grows from step to step, and what leaks it."""

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

#: Warm-up steps before watching starts: caches fill, optimizers create their state.
WARMUP = 10


class Leaks(Documented, LeakFigures):
    """The leaks of many steps. A notebook displays it; its tables are pandas frames."""

    @property
    def sentence(self) -> str:
        """The verdict in words, with its reason and a recommendation."""
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
    """Run a step many times and find out whether memory grows, and what leaks it.

    After warm-up, the step runs `steps` times with only the process's memory read, then `steps` times with every
    allocation recorded (fewer, but at least 15, if the process grows by more than 256 MiB meanwhile). If the process
    grew in the first round, its memory is read again in as many steps: only growth that continues is a leak.

    A leak is reported only if the 95 % interval of the growth excludes 0. If only the process grows while batches
    arrive in new shapes, that is not reported as a leak.

    Parameters
    ----------
    step : callable
        One step: ``step()``, or ``step(batch)`` with `batches`.
    batches : iterable, optional
        Batches for the steps; they start again when they run out.
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
