"""Determine by experiment whether a step waits for its data (`confirm_input_bound`)."""

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
    """The result of `confirm_input_bound`, with a step's times with and without its loader and its model."""

    def _document(self) -> Document:
        return input_bound_document(self)


def confirm_input_bound(
    step: Callable[[Any], Any],
    batches: Iterable[Any] | Callable[[], Iterable[Any]],
    model: Models | None = None,
    *,
    budget_s: float = 20.0,
) -> InputBoundTest:
    """Determine by experiment whether a step is input-bound, and how much time a perfect loader would save.

    The step runs in five ways, in blocks that are interleaved in random order, so that drift cancels out:

    - *together*: the unmodified step.
    - *loader*: the loader alone. The model's forward returns copies of earlier outputs, so its backward and the
      optimizer have almost nothing to do.
    - *model*: the model alone, on a batch that is kept in memory.
    - *rest*: neither of the two. This leaves everything else in the step, such as copies to the device, the loss and
      your own code. The rest is also part of *loader* and *model*.
    - *iteration*: only taking batches from the loader.

    The step trains during the test. Afterwards, perfnb restores the models' parameters, buffers, gradients and modes;
    the states of optimizers, schedulers, gradient scalers and random generators that are reachable from the step's
    variables; other models found there (such as averaged weights or a second model); and the global random state. This
    requires the same amount of memory again. Your own counters and other plain attributes are not restored, and neither
    is anything that the step writes or prints.

    Parameters
    ----------
    step : callable
        Called as ``step(batch)``. It must not modify the batch's tensors, because one batch is reused.
    batches : iterable, or callable returning one
        For example, a DataLoader with any number of workers. It is restarted when exhausted.
    model : Module, list of Module, or dict of name to Module
        The model to replace. This argument is required. If the step calls modules inside the model rather than the
        model itself, those modules are replaced.
    budget_s : float
        The time limit for the whole test, in seconds. At least one round is run, which takes about ten steps, or seven
        steps per worker.

    Returns
    -------
    InputBoundTest

    Raises
    ------
    ValueError
        If the budget is invalid.
    TypeError
        If `step`, `batches` or `model` have the wrong type.
    CaptureError
        If another profiler is active, if the batches run out and cannot be restarted, or if the step calls none of the
        models or calls them only inside a function compiled by ``torch.compile``.
    Exception
        Any exception that `step` or `batches` raise, after everything has been removed and restored.
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
