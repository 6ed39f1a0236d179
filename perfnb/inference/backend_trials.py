"""Make each backend, check what it computes against float64, and time all of them side by side."""

from __future__ import annotations

import copy
import functools
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from perfnb.bench.design import planned_rounds, warm_up
from perfnb.bench.distances import Results, differ, errors_between, kept
from perfnb.bench.rounds import Bench, mapped
from perfnb.bench.values import DIFFERENT, UNCHECKED, Values, judge_values
from perfnb.errors import CaptureError
from perfnb.inference.backend_figures import EQUAL_WITHIN, Trial
from perfnb.inference.backends import EAGER, Backend, Call, Made, RefusedError
from perfnb.step.device import random_state, set_random_state, synchronize
from perfnb.step.tracer import Tracer, exclusive

_DOUBLE = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64}
_WIDER = _DOUBLE | {torch.complex32: torch.complex128, torch.complex64: torch.complex128}


def measure(
    model: nn.Module,
    call: Call,
    chosen: Sequence[Backend],
    budget_s: float,
    progress: Callable[..., None],
    judge_own: Callable[[Callable[..., Any]], None] | None = None,
) -> tuple[list[Trial], bool | None, dict[str, Any]]:
    """Try backends on a copy of a model; the model as it is comes first.

    Parameters
    ----------
    judge_own : callable, optional
        Called with what runs the model as it is, before anything is exported, compiled or timed.

    Returns
    -------
    list of Trial, bool or None, dict
        And whether all were steady when their warm-up ended, and what may have disturbed them.

    Raises
    ------
    Exception
        Whatever the model itself raises.
    """
    __tracebackhide__ = True
    base = _copied(model)
    with exclusive(), _quiet():
        first, own_run = _tried(EAGER, base, call, None)
        if own_run is None:
            own_run = _made(EAGER, base, call).run
            own_run(*call.args, **call.kwargs)  # raises what the model raises
        yardstick = _Yardstick(base, call, own_run)
        first.values, first.error, first.max_distance = yardstick.judge(EAGER, own_run)
    if judge_own is not None:
        judge_own(own_run)
    with exclusive(), _quiet():
        trials, runs = [first], [own_run]
        for backend in chosen:
            progress(f"prepare {backend.name}", 0, None)
            trial, run = _tried(backend, base, call, yardstick)
            trials.append(trial)
            if run is not None:
                runs.append(run)
    timed = [trial for trial in trials if not trial.why_not]
    steps = [
        _named(trial.backend, functools.partial(run, *call.args, **call.kwargs))
        for trial, run in zip(timed, runs, strict=True)
    ]
    begin = time.perf_counter()
    with Bench(steps, progress=progress) as bench:
        steady = warm_up(bench, begin, budget_s)
        _, times = planned_rounds(bench, begin, budget_s, EQUAL_WITHIN)
    for trial, row in zip(timed, times, strict=True):
        trial.times_ms = tuple(row.tolist())
    return trials, steady, bench.conditions.facts


def _named(backend: str, step: Callable[[], Any]) -> Callable[[], Any]:
    """A step whose errors say which backend raised them."""

    def named() -> Any:
        __tracebackhide__ = True
        try:
            return step()
        except Exception as error:
            error.add_note(f"It was raised while perfnb timed the backend {backend}.")
            raise

    return named


def _copied(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode, so that nothing can change the user's."""
    try:
        return copy.deepcopy(model).eval()
    except Exception as error:
        raise CaptureError(
            f"perfnb compares backends on copies of the model, and this one cannot be copied ({type(error).__name__})."
        ) from error


def _made(backend: Backend, model: nn.Module, call: Call) -> Made:
    # What an engine loaded from the folder it keeps, also once the folder is gone.
    with tempfile.TemporaryDirectory(prefix="perfnb-", ignore_cleanup_errors=True) as folder:
        return backend.make(model, call, Path(folder))


def _tried(
    backend: Backend, model: nn.Module, call: Call, yardstick: _Yardstick | None
) -> tuple[Trial, Callable[..., Any] | None]:
    """Make a backend, run it once and check it; without its function if it was refused."""
    trial = Trial(backend.name, backend.words, backend.lowers, backend.refuses(model, call))
    if trial.why_not:
        return trial, None
    try:
        begin = time.perf_counter()
        made = _made(backend, model, call)
        made.run(*call.args, **call.kwargs)
        synchronize()
        trial.setup_s = time.perf_counter() - begin
        trial.size_bytes = made.size_bytes
        trial.peak_bytes = _peak_bytes(made, call)
        if yardstick is not None:
            trial.values, trial.error, trial.max_distance = yardstick.judge(backend, made.run)
    except RefusedError as error:
        trial.why_not = str(error)
        return trial, None
    except Exception as error:  # a model may hold anything; the others still run
        trial.why_not = f"it fails: {type(error).__name__}: {_first_line(error)}"
        return trial, None
    trial.run = made.run
    return trial, made.run


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "")[:200]


class _Yardstick:
    """What the model computes, and the same in float64."""

    def __init__(self, model: nn.Module, call: Call, run: Callable[..., Any]) -> None:
        self._call = call
        self._own = self._results(run)
        self._random = differ(self._own, self._results(run, seed=1))
        self._truth = self._own if self._random else self._of_float64(model, run)

    def _of_float64(self, model: nn.Module, run: Callable[..., Any]) -> Results:
        default, threads = torch.get_default_dtype(), torch.get_num_threads()
        try:
            wide = copy.deepcopy(model).double()
            torch.set_default_dtype(torch.float64)
            return self._results(wide, wide=True)
        except Exception:  # an operator that has no float64: sums in another order show how far rounding goes
            torch.set_default_dtype(default)
            torch.set_num_threads(threads + 1 if threads == 1 else 1)
            return self._results(run)
        finally:
            torch.set_default_dtype(default)
            torch.set_num_threads(threads)

    def judge(self, backend: Backend, run: Callable[..., Any]) -> tuple[Values, float | None, float | None]:
        """The verdict on a backend's outputs, their distance from float64 relative to their size, and the largest."""
        if not self._own:
            return Values(UNCHECKED, None, "the model returns no floating-point numbers"), None, None
        if self._random:
            return Values(UNCHECKED, None, "the model draws random numbers in evaluation mode too"), None, None
        found = self._results(run)
        errors = errors_between(self._own, found, self._truth)
        values = judge_values(errors, backend.lowers, backend.reorders)
        if found.keys() != self._own.keys():
            values = Values(DIFFERENT, values.error, f"it returns {len(found)} outputs instead of {len(self._own)}")
        return values, errors.worst, max(_distance(found.get(name), self._truth[name]) for name in self._own)

    def _results(self, run: Callable[..., Any], seed: int = 0, wide: bool = False) -> Results:
        """Floating-point outputs by place, from the same random numbers."""
        args, kwargs = tree_map(_widened, tuple(self._call)) if wide else self._call
        before = random_state()
        try:
            torch.manual_seed(seed)
            with torch.inference_mode():
                result = run(*args, **kwargs)
        finally:
            set_random_state(before)
        found: Results = {}

        def note(value: Any) -> Any:
            if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
                found[f"output {len(found)}"] = kept(value)
            return value

        mapped(note, result)
        return found


def _widened(value: Any) -> Any:
    return value.to(_WIDER[value.dtype]) if isinstance(value, Tensor) and value.dtype in _WIDER else value


def _distance(found: Tensor | None, truth: Tensor | None) -> float:
    """The largest distance between two numbers at one place."""
    if found is None or truth is None or found.shape != truth.shape:
        return float("inf")
    return float((found - truth).abs().max()) if found.numel() else 0.0


def _peak_bytes(made: Made, call: Call) -> int | None:
    """The weights as saved, and the most that a call allocates at once; ``None`` where torch does not see it."""
    if not made.by_torch:
        return None
    tracer = Tracer(memory=True)
    try:
        with tracer:
            made.run(*call.args, **call.kwargs)
        changes = tracer.memory_changes()
    except CaptureError:
        return None
    finally:
        tracer.close()
    # A model on an accelerator allocates little on the host.
    kinds = {kind for _, _, kind in changes} - {"cpu"}
    kind = next(iter(kinds), "cpu")
    level = peak = 0
    for _, size, where in changes:
        if where == kind:
            level += size
            peak = max(peak, level)
    return made.size_bytes + peak


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings and notes that exporting and compiling print: what fails is in the table."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
