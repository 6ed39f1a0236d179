"""`confirm_input_bound`: does a step wait for its data? Tried, not guessed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb.bench.design import random_orders
from perfnb.bench.input_bound_table import KINDS, InputBound
from perfnb.bench.input_bound_view import input_bound_html, input_bound_line, input_bound_text
from perfnb.draw.progress import Progress
from perfnb.draw.shown import Shown

if TYPE_CHECKING:
    from torch import nn

    from perfnb.bench.input_trial import InputTrial

    Models = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module]

#: Shares of the budget by which the warm-up, and the look at the loader's pace, have ended.
WARMUP_SHARE, PACE_SHARE = 0.15, 0.25
#: A block lasts at least so long, and is so short that the budget holds this many rounds.
BLOCK_MS, ROUNDS_WANTED = 20.0, 12
MOST_ROUNDS, MOST_WARMUP, MOST_STEPS = 40, 30, 64
#: Of the order within the rounds, so that a run can be told again.
SEED = 20260102


class InputBoundTest(Shown):
    """A step with and without its loader and its model. Shows itself in a notebook."""

    def __init__(self, figures: InputBound) -> None:
        self._figures = figures

    @property
    def verdict(self) -> str:
        """ "input-bound", "compute-bound", "balanced", or "inconclusive" where too little could be measured."""
        return self._figures.verdict

    @property
    def times(self) -> pd.DataFrame:
        """A row a kind of run, in milliseconds a step: ``together``, ``loader``, ``model``, ``rest``, ``iteration``.

        ``ran`` says what it is, ``median_ms`` with ``low_ms`` and ``high_ms`` how long it took (95 % interval, missing
        below 6 blocks), ``blocks`` and ``steps`` how many there were.
        """
        return self._figures.times.copy()

    @property
    def rounds(self) -> pd.DataFrame:
        """A row a round: the milliseconds a step of its block of each kind."""
        return pd.DataFrame({kind: self._figures.rounds_ms[kind] for kind in KINDS}).rename_axis("round")

    @property
    def saved_ms(self) -> float:
        """The most that a perfect loader would save, in milliseconds a step: together less the model alone."""
        return self._figures.saved_by_loader.estimate

    @property
    def saved_ci_ms(self) -> tuple[float, float] | None:
        """95 % interval of `saved_ms`; ``None`` below 6 rounds."""
        saved = self._figures.saved_by_loader
        return (saved.low, saved.high) if saved.bounded else None

    @property
    def saved_share(self) -> float:
        """`saved_ms` as a share of the step, 0 to 1."""
        return self.saved_ms / self._figures.together_ms

    @property
    def overlap(self) -> float | None:
        """How much of the shorter of loader and model hides behind the longer: 0 none, 1 all; ``None`` if unknown.

        0 where nothing can load meanwhile: a loader without workers, and no GPU in use.

        Below 0 they may hinder each other, as workers do that compete with the model for cores.
        """
        return self._figures.overlap

    def _text(self) -> str:
        return input_bound_text(self._figures)

    def _line(self) -> str:
        return input_bound_line(self._figures)

    def _html(self) -> str:
        return input_bound_html(self._figures)


def confirm_input_bound(
    step: Callable[[Any], Any],
    batches: Iterable[Any] | Callable[[], Iterable[Any]],
    model: Models | None = None,
    *,
    budget_s: float = 20.0,
) -> InputBoundTest:
    """Find out by trial whether a step waits for its data, and what a perfect loader would save.

    The step runs in five ways, in blocks that take turns in random order, so that drift decides nothing: *together*, as
    it is; the *loader* alone, where the model's forward gives a copy of what it gave before, and its backward and the
    optimizer have next to nothing to do; the *model* alone, on a batch that is kept in memory; the *rest*, with
    neither; and the *iteration*, only taking batches. The rest is all else in the step, such as copies to the device,
    the loss and the user's own code: it is part of the loader alone and of the model alone too, for the step does it
    either way.

    The step trains while it is tried. When the test ends, parameters, buffers, gradients and modes of the models, the
    states of optimizers, schedulers, gradient scalers and generators of random numbers, of the model and of whatever
    else the step's variables hold (an average of the weights, a second model), and the global random numbers are put
    back, which takes as much memory again. Counters of your own and other plain attributes are not, nor is what the
    step writes to files or prints.

    Parameters
    ----------
    step : callable
        ``step(batch)``. It must leave the tensors of the batch as they are, for one is used again.
    batches : iterable, or callable returning one
        A DataLoader with any number of workers, say; begun again when they run out.
    model : Module, list of Module, or dict of name to Module
        Required: what is replaced; where the step calls not a model but modules inside it, those are.
    budget_s : float
        Seconds that all may take. One round is run at least: with it some ten steps, or seven for each worker.

    Returns
    -------
    InputBoundTest

    Raises
    ------
    ValueError
        For a budget that makes no sense.
    TypeError
        If `step`, `batches` or `model` are not what they must be.
    CaptureError
        Inside a profiler, with batches that run out and cannot begin again, or if the step calls none of the models, or
        calls them only inside a function that ``torch.compile`` made.
    Exception
        Whatever `step` or `batches` raise, after everything has been removed and put back.
    """
    from perfnb.bench.input_trial import InputTrial
    from perfnb.step.budget import Plan
    from perfnb.step.given import require_steps
    from perfnb.step.namespace import chosen_models, namespace_of

    __tracebackhide__ = True
    Plan(budget_s=budget_s)  # refuses what makes no sense
    require_steps({"step": step}, batches, "confirm_input_bound(step, loader, model)")
    models, names = chosen_models(model)
    if not models:
        raise TypeError(
            "confirm_input_bound needs the model that the step calls, to replace it for a while: "
            "confirm_input_bound(step, loader, model)."
        )
    end = (begin := time.perf_counter()) + budget_s
    rounds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    kinds = list(KINDS)
    with Progress() as progress, InputTrial(step, batches, models, {**namespace_of(step), **names}) as trial:
        progress("warmup", 0)
        trial.learn()
        model_ms = _warm_up(trial, begin + WARMUP_SHARE * budget_s, progress)
        pace_ms = trial.find_pace(begin + PACE_SHARE * budget_s)
        steps = _steps_of_a_block(trial, model_ms, pace_ms, end)
        rounds_begin = time.perf_counter()
        for done, order in enumerate(random_orders(MOST_ROUNDS, len(kinds), SEED), start=1):
            row: dict[str, float] = {}
            for place in order:
                if done > 1 and time.perf_counter() > end:
                    break  # a round that is not whole says nothing
                row[kinds[place]] = trial.block(kinds[place], steps)
            if len(row) < len(kinds):
                break
            for kind in kinds:
                rounds[kind].append(row[kind])
            now = time.perf_counter()
            # Only by time, never by what was found, is it decided how many rounds there are.
            planned = min(MOST_ROUNDS, done + max(0, int((end - now) / (now - rounds_begin) * done)))
            progress("timed", done, planned)
            if planned == done:
                break
    return InputBoundTest(
        InputBound(
            rounds,
            steps,
            trial.executed,
            trial.unforeseen_ms,
            trial.conditions.facts,
            trial.batches_a_start,
            trial.parallel,
        )
    )


def _warm_up(trial: InputTrial, until: float, progress: Progress) -> float:
    """Run the model until its steps are steady; milliseconds of the last one."""
    from perfnb.step.budget import FEWEST, is_steady, require_passing_time

    __tracebackhide__ = True
    times: list[float] = []
    while len(times) < MOST_WARMUP and (len(times) < 2 or time.perf_counter() < until):
        times.append(trial.block("model", 1))
        progress("warmup", len(times))
        if len(times) >= FEWEST and is_steady(times):
            break
    require_passing_time(times)
    return times[-1]


def _steps_of_a_block(trial: InputTrial, model_ms: float, pace_ms: float, end: float) -> int:
    """How many steps a block has: whole bursts of the workers."""
    __tracebackhide__ = True
    workers = max(1, trial.workers)
    pilot, pilot_begin = max(2, workers), time.perf_counter()
    if pilot_begin + pilot * (3 * model_ms + 5 * pace_ms) / 1e3 > end:
        return workers  # not even the pilot fits
    each_ms = {kind: trial.block(kind, pilot) for kind in KINDS}
    overhead_s = max(0.0, time.perf_counter() - pilot_begin - pilot * sum(each_ms.values()) / 1e3)
    round_ms = max(1e-3, sum(each_ms.values()))
    left_s = max(0.0, end - time.perf_counter())
    wanted = max(2 * workers, 4, math.ceil(BLOCK_MS / max(1e-3, min(each_ms["together"], BLOCK_MS))))
    affordable = int(max(0.0, left_s / ROUNDS_WANTED - overhead_s) * 1e3 / round_ms)
    return max(1, min(wanted, affordable, MOST_STEPS) // workers) * workers
