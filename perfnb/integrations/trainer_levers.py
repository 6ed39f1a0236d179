"""Try levers inside a trainer's run, between two of its steps. The run then continues as if nothing had happened."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from perfnb.findings.proposed_code import setting
from perfnb.quantities import duration, size
from perfnb.remedies.levers.loading import workers_for
from perfnb.remedies.try_levers import LeverRequest, LeverTrials, bounds_of, run_trials
from perfnb.step.environment import place_in_job
from perfnb.step.optimizers import tensors_of

if TYPE_CHECKING:
    from perfnb.profile.profile import Profile

#: Maximum number of a loader's batches for the trial, and the finding that suggests trying a loader with workers.
_LOADED, _LOADING = 64, "input pipeline"
#: A trial may take at most this many times its budget.
_LONGEST = 1.2
#: A trial needs memory for the state itself, a copy of it, and the model in float64 with gradients and optimizer state.
_COPIES = 3


@dataclass(frozen=True)
class TrainerStep:
    """A trainer's own step, which can be run again.

    Attributes
    ----------
    run : callable
        A function that runs one optimizer step on a list of batches.
    batches : list of list
        The batches of a few steps that the trainer has just run.
    model, optimizer
        The trainer's model and optimizer.
    loader : DataLoader or None
        The trainer's loader, as torch's own DataLoader.
    silent : context manager
        A context that preserves the trainer's counters and hides everything that runs inside it from the trainer's
        callbacks and loggers.
    prepared : callable
        A function that converts a loader's batch to the argument of `run`.
    trainer : str
        The trainer's name for `perfnb.findings.proposed_code.setting`.
    unsettable : sequence of str
        Levers whose setting does not apply to this training run.
    left : int or None
        The number of remaining steps in the run.
    """

    run: Callable[[Sequence[Any]], Any]
    batches: Sequence[Sequence[Any]]
    model: nn.Module
    optimizer: Optimizer
    loader: DataLoader[Any] | None
    silent: AbstractContextManager[Any]
    prepared: Callable[[Any], Any]
    trainer: str
    unsettable: Sequence[str]
    left: int | None


def try_on(step: TrainerStep, profile: Profile, levers: Any, budget_s: float, name: str) -> LeverTrials | str:
    """Try levers on a trainer's step and restore everything. If this is not possible, return the reason.

    Parameters
    ----------
    profile : Profile
        The profile of the same run. With ``"auto"``, the levers that its findings suggest are tried.
    levers : str or list of str
        As in `perfnb.try_levers`.
    """
    if reason := _refusal(step):
        return f"{reason}."
    bounds = bounds_of(profile.findings)
    words = partial(_words, step)
    request = LeverRequest(levers, budget_s=budget_s, words=words, budget_word="levers_budget_s")
    wants_loader = "loader_workers" in request.listed if request.listed else _LOADING in bounds
    loader = _loader(step) if wants_loader else None
    say(f"perfnb: trying levers for {duration(_LONGEST * budget_s * 1e3)} at most; the training then continues")
    run: Callable[[Any], Any] = step.run if loader is None else lambda batch: step.run([step.prepared(batch)])
    namespace = {"model": step.model, "optimizer": step.optimizer}
    try:
        with step.silent:
            return run_trials(
                *(run, list(step.batches) if loader is None else loader, request),
                namespace=namespace,
                models=[step.model],
                optimizer=step.optimizer,
                loader=loader,
                name=name,
                bounds=bounds,
            )
    except Exception as error:  # the training must not fail because of a trial
        return f"{type(error).__name__}: {error}".splitlines()[0]


def say(words: str) -> None:
    """Print a line to standard error, above the trainer's progress bar."""
    from tqdm import tqdm

    tqdm.write(words, file=sys.stderr)


def _refusal(step: TrainerStep) -> str:
    """Return the reason why levers cannot be tried at all; empty if they can."""
    if (place_in_job() or {}).get("world_size", 1) > 1:
        return "the job has several ranks, which would have to switch levers together"
    if not step.batches:
        return "the trainer has not used any batch yet"
    state = [*step.model.parameters(), *step.model.buffers(), *tensors_of(step.optimizer)]
    held: dict[torch.device, int] = {}
    for tensor in {id(tensor): tensor for tensor in state}.values():
        held[tensor.device] = held.get(tensor.device, 0) + _COPIES * tensor.numel() * tensor.element_size()
    for device, needed in held.items():
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
        if needed > free:
            return f"copies of the training state need {size(needed)} on {device}, which has {size(free)} left"
    return ""


def _words(step: TrainerStep, lever: str, subject: Any) -> list[str] | None:
    workers = workers_for(subject) if lever == "loader_workers" else ""
    words = "" if lever in step.unsettable else setting(step.trainer, lever, workers)
    return [words] if words else None


def _loader(step: TrainerStep) -> DataLoader[Any] | None:
    """Return a loader for some of the run's samples that does not draw random numbers.

    The result is ``None`` if the step uses several batches. The trainer's own loader is not used, because its samplers
    keep track of their position.
    """
    own = step.loader
    if own is None or any(len(batches) > 1 for batches in step.batches) or isinstance(own.dataset, IterableDataset):
        return None
    each = own.batch_size or getattr(own.batch_sampler, "batch_size", None)  # accelerate creates loaders like this
    if not isinstance(each, int):
        return None
    many = len(own.dataset)  # type: ignore[arg-type]
    starts: Iterable[int] = range(0, min(many - many % each, _LOADED * each), each)
    return DataLoader(
        own.dataset,
        batch_sampler=[list(range(start, start + each)) for start in starts],
        collate_fn=own.collate_fn,
        pin_memory=own.pin_memory,
        worker_init_fn=own.worker_init_fn,
    )


def tried_facts(trials: LeverTrials, left: int | None) -> list[dict[str, Any]]:
    """Return the facts about levers that are stored in a run's summary, with `left` remaining steps."""
    figures, kept = trials.figures, trials.best
    tried = [trial for trial in figures.trials if trial.verdict != "not tried"]
    combined = [figures.confirmed] if figures.confirmed is not None and len(kept) > 1 else []
    facts = [trial.as_tried(kept=trial.lever in kept, left=left) for trial in tried]
    for trial, one in zip(tried, facts, strict=True):
        one["why_not"] = "; ".join(
            filter(None, (trial.why_not, *trial.notes))
        )  # for example, that the lever was not confirmed
    return facts + [trial.as_tried(kept=True, left=left) for trial in combined]
