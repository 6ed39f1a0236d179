"""`confirm_input_bound`: find out by experiment whether a step waits for its data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfnb.arguments import require_seconds
from perfnb.bench.design import input_rounds
from perfnb.bench.input_figures import KINDS, InputBound
from perfnb.bench.input_view import input_bound_document
from perfnb.draw.documented import Documented
from perfnb.draw.progress import Progress

if TYPE_CHECKING:
    from torch import nn

    from perfnb.draw.document import Document

    Models = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module]


class InputBoundTest(InputBound, Documented):
    """A step with and without its loader and its model. A notebook displays it."""

    def _document(self) -> Document:
        return input_bound_document(self)


def confirm_input_bound(
    step: Callable[[Any], Any],
    batches: Iterable[Any] | Callable[[], Iterable[Any]],
    model: Models | None = None,
    *,
    budget_s: float = 20.0,
) -> InputBoundTest:
    """Find out by experiment whether a step is input-bound, and what a perfect loader would save.

    The step runs in five ways, in blocks interleaved in random order, so that drift cancels: *together*, unmodified;
    the *loader* alone, where the model's forward returns copies of earlier outputs and its backward and the optimizer
    have almost nothing to do; the *model* alone, on a batch kept in memory; the *rest*, with neither; and the
    *iteration*, which only takes batches. The rest is everything else in the step, such as copies to the device, the
    loss and the user's own code; it is also part of the loader alone and of the model alone.

    The step trains during the test. Afterwards, parameters, buffers, gradients and modes of the models; the states of
    optimizers, schedulers, gradient scalers and random generators reachable from the step's variables; other models
    found there (averaged weights, a second model); and the global random state are restored. This takes as much memory
    again. Counters of your own and other plain attributes are not restored, nor is anything that the step writes or
    prints.

    Parameters
    ----------
    step : callable
        ``step(batch)``. It must not change the tensors of the batch, because one batch is reused.
    batches : iterable, or callable returning one
        For example a DataLoader with any number of workers; restarted when exhausted.
    model : Module, list of Module, or dict of name to Module
        Required: the model to replace. If the step calls modules inside it instead, those are replaced.
    budget_s : float
        Seconds for the whole test. At least one round is run, which takes about ten steps, or seven per worker.

    Returns
    -------
    InputBoundTest

    Raises
    ------
    ValueError
        For an invalid budget.
    TypeError
        If `step`, `batches` or `model` have the wrong type.
    CaptureError
        Inside a profiler, if the batches run out and cannot restart, or if the step calls none of the models, or only
        inside a function compiled by ``torch.compile``.
    Exception
        Whatever `step` or `batches` raise, after everything has been removed and restored.
    """
    from perfnb.bench.input_trial import InputTrial
    from perfnb.step.checks import require_steps
    from perfnb.step.namespace import chosen_models, step_variables

    __tracebackhide__ = True
    require_seconds("budget_s", budget_s)
    require_steps({"step": step}, batches, "confirm_input_bound(step, loader, model)")
    models, names = chosen_models(model)
    if not models:
        raise TypeError(
            "confirm_input_bound needs the model that the step calls, because it replaces the model in some runs: "
            "confirm_input_bound(step, loader, model)."
        )
    begin = time.perf_counter()
    with Progress() as progress, InputTrial(step, batches, models, step_variables(step, names)) as trial:
        progress("warmup", 0)
        trial.learn()
        rounds, steps = input_rounds(trial, list(KINDS), begin, budget_s, progress)
    executed, noise = trial.conditions.step, trial.conditions.facts
    return InputBoundTest(rounds, steps, executed, trial.unforeseen_ms, noise, trial.batches_a_start, trial.parallel)
