"""Build each backend, check its results against float64, and time all backends in turn."""

from __future__ import annotations

import copy
import functools
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from perfnb.bench.design import planned_rounds, warm_up
from perfnb.bench.distances import Results, differ, errors_between, kept
from perfnb.bench.rounds import Bench, mapped
from perfnb.bench.values import DIFFERENT, UNCHECKED, Values, judge_values
from perfnb.errors import CaptureError
from perfnb.inference.backend_figures import EQUAL_WITHIN, BackendRounds, BackendTrial
from perfnb.inference.backends import EAGER, Backend, ModelCall, ReadyBackend, RefusedError, call_of
from perfnb.step.data_waits import common_size
from perfnb.step.device import random_state, set_random_state, synchronize
from perfnb.step.tracer import Tracer, exclusive

_DOUBLE = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64}
_WIDER = _DOUBLE | {torch.complex32: torch.complex128, torch.complex64: torch.complex128}
_Losses = TypeVar("_Losses")


def measure(
    model: nn.Module,
    example: Any,
    chosen: Sequence[Backend],
    budget_s: float,
    progress: Callable[..., None],
    losses_of_own: Callable[[Callable[..., Any]], _Losses],
) -> tuple[BackendRounds, _Losses]:
    """Try several backends on a copy of a model, starting with the unmodified model.

    Parameters
    ----------
    losses_of_own : callable
        Called with the function that runs the unmodified model, before anything is exported, compiled or timed. Its
        result is returned.

    Raises
    ------
    Exception
        Any exception that the model itself raises.
    """
    __tracebackhide__ = True
    base, call = _copied(model), call_of(example)
    with exclusive(), _quiet():
        first = _prepared(EAGER, base, call)
        yardstick = _Yardstick(base, call, first.run)
        trials = [yardstick.judged(EAGER, first)]
    own_losses = losses_of_own(first.run)
    with exclusive(), _quiet():
        for backend in chosen:
            progress(f"prepare {backend.name}", 0, None)
            trials.append(_tried(backend, base, call, yardstick))
    timed = [trial for trial in trials if trial.run is not None]
    steps = [functools.partial(trial.run, *call.args, **call.kwargs) for trial in timed]
    begin = time.perf_counter()
    with Bench(steps, progress=progress) as bench:
        steady = warm_up(bench, begin, budget_s)
        _, rows = planned_rounds(bench, begin, budget_s, EQUAL_WITHIN)
    times = {trial.backend: tuple(row.tolist()) for trial, row in zip(timed, rows, strict=True)}
    trials = [replace(trial, times_ms=times.get(trial.backend, ())) for trial in trials]
    name, noise = type(model).__name__, bench.conditions.facts
    return BackendRounds(tuple(trials), name, common_size(example), steady, noise), own_losses


def _copied(model: nn.Module) -> nn.Module:
    """Return a copy of the model in evaluation mode. Using a copy ensures that the user's model does not change."""
    try:
        return copy.deepcopy(model).eval()
    except Exception as error:
        raise CaptureError(
            "perfnb compares backends on copies of the model, but this model cannot be copied "
            f"({type(error).__name__})."
        ) from error


def _tried(backend: Backend, model: nn.Module, call: ModelCall, yardstick: _Yardstick) -> BackendTrial:
    """Build a backend, run it once and check its outputs, or return the reason why it cannot run."""
    why_not = backend.refuses(model, call)
    if not why_not:
        try:
            return yardstick.judged(backend, _prepared(backend, model, call))
        except RefusedError as error:
            why_not = str(error)
        except Exception as error:  # models can raise anything; try the other backends
            first_line = next((line for line in str(error).splitlines() if line.strip()), "")
            why_not = f"it fails: {type(error).__name__}: {first_line[:200]}"
    return BackendTrial(backend.name, why_not)


def _prepared(backend: Backend, model: nn.Module, call: ModelCall) -> BackendTrial:
    """Build a backend and run it once."""
    __tracebackhide__ = True
    begin = time.perf_counter()
    # Files from the folder that the engine has loaded. The engine can still use them after the folder is deleted.
    with tempfile.TemporaryDirectory(prefix="perfnb-", ignore_cleanup_errors=True) as folder:
        ready = backend.make(model, call, Path(folder))
    ready.run(*call.args, **call.kwargs)
    synchronize()
    setup_s = time.perf_counter() - begin
    peak_bytes = _peak_bytes(ready, call)
    return BackendTrial(backend.name, "", ready.run, setup_s, ready.size_bytes, peak_bytes)


class _Yardstick:
    """The model's results and, for reference, the same results computed in float64."""

    def __init__(self, model: nn.Module, call: ModelCall, run: Callable[..., Any]) -> None:
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
        except Exception:  # no float64: adding in another order shows the size of rounding errors
            torch.set_default_dtype(default)
            torch.set_num_threads(threads + 1 if threads == 1 else 1)
            return self._results(run)
        finally:
            torch.set_default_dtype(default)
            torch.set_num_threads(threads)

    def judged(self, backend: Backend, trial: BackendTrial) -> BackendTrial:
        """Return a copy of a trial that includes the verdict on its outputs and their distance from float64."""
        if not self._own:
            return replace(trial, values=Values(UNCHECKED, None, "the model returns no floating-point numbers"))
        if self._random:
            why = "the model uses random numbers even in evaluation mode"
            return replace(trial, values=Values(UNCHECKED, None, why))
        outputs = self._results(trial.run)
        errors = errors_between(self._own, outputs, self._truth)
        values = judge_values(errors, backend.lowers, backend.reorders)
        if outputs.keys() != self._own.keys():
            values = Values(DIFFERENT, values.error, f"it returns {len(outputs)} outputs instead of {len(self._own)}")
        farthest = max(_distance(outputs.get(name), self._truth[name]) for name in self._own)
        return replace(trial, values=values, error=errors.worst, max_distance=farthest)

    def _results(self, run: Callable[..., Any], seed: int = 0, wide: bool = False) -> Results:
        """Return the floating-point outputs by position, always starting from the same random seed."""
        args, kwargs = tree_map(_widened, tuple(self._call)) if wide else self._call
        before = random_state()
        try:
            torch.manual_seed(seed)
            with torch.inference_mode():
                result = run(*args, **kwargs)
        finally:
            set_random_state(before)
        outputs: Results = {}

        def note(value: Any) -> Any:
            if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
                outputs[f"output {len(outputs)}"] = kept(value)
            return value

        mapped(note, result)
        return outputs


def _widened(value: Any) -> Any:
    return value.to(_WIDER[value.dtype]) if isinstance(value, Tensor) and value.dtype in _WIDER else value


def _distance(output: Tensor | None, truth: Tensor | None) -> float:
    """Return the largest absolute difference between two corresponding numbers."""
    if output is None or truth is None or output.shape != truth.shape:
        return float("inf")
    return float((output - truth).abs().max()) if output.numel() else 0.0


def _peak_bytes(ready: ReadyBackend, call: ModelCall) -> int | None:
    """Return the size of the weights plus the peak allocation of a call, or ``None`` if torch does not track it."""
    if not ready.by_torch:
        return None
    tracer = Tracer(memory=True)
    try:
        with tracer:
            ready.run(*call.args, **call.kwargs)
        changes = tracer.memory_changes()
    except CaptureError:
        return None
    finally:
        tracer.close()
    # A model on an accelerator allocates only a little memory on the host.
    device = next((kind for _, _, kind in changes if kind != "cpu"), "cpu")
    levels = accumulate(size for _, size, kind in changes if kind == device)
    return ready.size_bytes + max([0, *levels])


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the warnings and messages printed during export and compilation.

    Failures appear in the table instead.
    """
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
