"""`ab_test`: find out whether a candidate is faster and still right, and whether to keep it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any

import pandas as pd

from perfnb import quantities as fmt
from perfnb.arguments import finite, require_seconds, shown
from perfnb.bench.acceptance import Decision, Resource, decide
from perfnb.bench.paired_times import PairedTimes
from perfnb.bench.pairs import time_pairs
from perfnb.bench.quality import DIFFERENCE, RESOURCES, limits_of, losses_of, require_quality
from perfnb.diff.layers import diff_profiles
from perfnb.diff.view import comparison_document
from perfnb.draw import escape
from perfnb.draw.as_markdown import document_markdown
from perfnb.draw.document import Document
from perfnb.draw.documented import Documented
from perfnb.experiments.ab_view import ab_document, reason
from perfnb.experiments.compared_figures import (
    NOT_COMPARED,
    SIDES,
    ABTestSide,
    Quality,
    compare_results,
    limited_resources,
    metrics,
    side_of,
)
from perfnb.experiments.report_files import outcome_of_test, read_report, save_report
from perfnb.profile.profile import Profile
from perfnb.profile.profiling import profile_step
from perfnb.profile.timing import Timing
from perfnb.profile.timing import shown as shown_timing
from perfnb.profile.trackers import Logged, log_result

#: The shares of the budget for the pairs and for each of the two profiles, if both steps are profiled.
PAIRS_SHARE, PROFILE_SHARE = 0.6, 0.2
#: The steps of each profile; few are enough, because the pairs have warmed up and timed both steps.
_STEPS: dict[str, Any] = {"warmup": 1, "steps": 3, "traced": 2}


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ABTest(PairedTimes, Documented):
    """Step b, the candidate, compared with step a, the baseline. A notebook displays it.

    With `quality`, `check`, `limits` or `profile`, it shows whether to accept the change; without, which is faster.

    Attributes
    ----------
    quality : Quality
        Losses of the results, and how they were judged.
    limits : mapping of str to float
        Largest accepted values, as given.
    change : str
        What changed, as given.
    options, environment : mapping
        Options of the test; versions, device, settings, host and commit.
    profiles : mapping of str to Profile
        Profiles of ``baseline`` and ``candidate``; empty without ``profile=True``.
    """

    quality: Quality = NOT_COMPARED
    limits: Mapping[str, float] = field(default_factory=dict)
    change: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    profiles: Mapping[str, Profile] = field(default_factory=dict)

    @property
    def a(self) -> Timing:
        """Times of a, the baseline."""
        return shown_timing(super().a)

    @property
    def b(self) -> Timing:
        """Times of b, the candidate."""
        return shown_timing(super().b)

    @property
    def check(self) -> str | None:
        """The difference between the results of b and a; empty if they agree, ``None`` if they were not compared."""
        return self.quality.said if self.quality.judged_by in ("results", "check") else None

    @property
    def decision(self) -> str:
        """``accept``, ``reject`` or ``inconclusive``; never ``accept`` if the results were not judged."""
        return self.outcome.decision

    @property
    def reason(self) -> str:
        """The reason for the decision."""
        sentence, advice = reason(self)
        return escape.plain(f"{fmt.capital(sentence)}. {advice}".strip(), 2000)

    @cached_property
    def outcome(self) -> Decision:
        """The decision with its cause, and the losses or resources that the cause is about."""
        known = {*RESOURCES, *(loss.name for loss in self.quality.losses)}
        unmatched = [name for name in self.limits if name not in known]
        return decide(self.verdict, self.quality.losses, self.resources, unmatched)

    @cached_property
    def resources(self) -> tuple[Resource, ...]:
        """The candidate's usage of everything that is limited."""
        return limited_resources(self.candidate, self.limits)

    @cached_property
    def baseline(self) -> ABTestSide:
        """Figures of the baseline: ``median_ms``, ``p95_ms``, ``throughput_per_s`` and so on."""
        return side_of(self.a_name, super().a, self._summary("baseline"))

    @cached_property
    def candidate(self) -> ABTestSide:
        """Figures of the candidate."""
        return side_of(self.b_name, super().b, self._summary("candidate"))

    @property
    def table(self) -> pd.DataFrame:
        """Figures of both steps, a row per metric.

        Columns: ``unit``, ``baseline``, ``candidate``, ``difference`` (candidate minus baseline), ``ratio`` (candidate
        divided by baseline; for times, that of the pairs) with its 95 % interval ``ci_low`` to ``ci_high`` if the
        metric varies, and ``limit`` (largest accepted value of the candidate).
        """
        return self._metrics.copy()

    @property
    def judged(self) -> bool:
        """Whether a decision was requested, with `quality`, `check`, `limits` or `profile`."""
        return self.quality.judged_by != "nothing" or bool(self.limits or self.profiles)

    def to_markdown(self) -> str:
        """Return the decision, the table and caveats as Markdown, for example for a pull request."""
        return document_markdown(ab_document(self))

    def save(self, path: str | Path) -> Path:
        """Save the test to the folder `path` atomically, as Parquet and JSON; `perfnb.load` reads it.

        Raises
        ------
        RecordingError
            If `path` holds something else, or cannot be written.
        """
        return save_report(self, path)

    def log_to(self, target: Any, step: int | None = None) -> list[str]:
        """Log the figures, the report and the decision to the run of an experiment tracker, as `Profile.log_to` does.

        The names of the figures start with ``perfnb/ab_test/``, as in ``perfnb/ab_test/ratio``; step time, throughput
        and memory are the candidate's.
        """
        more = {"samples_per_s": self.candidate.throughput_per_s}
        return log_result(Logged("ab_test", self, outcome_of_test(self), more), target, step)

    @cached_property
    def _metrics(self) -> pd.DataFrame:
        return metrics(self, self.baseline, self.candidate, self.quality.losses, self.limits)

    def _summary(self, side: str) -> Any:
        return self.profiles[side]._summary if side in self.profiles else None

    def _document(self) -> Document:
        return ab_document(self, self._layers)

    @cached_property
    def _layers(self) -> tuple[Document, ...]:
        """The profiles of both, layer by layer."""
        sides = [self._summary(side) for side in SIDES if side in self.profiles]
        return (comparison_document(diff_profiles(*sides)),) if sides else ()


def ab_test(
    baseline: Callable[..., Any],
    candidate: Callable[..., Any],
    batches: Iterable[Any] | None = None,
    *,
    quality: Callable[[], Mapping[str, Any]] | None = None,
    limits: Mapping[str, float] | None = None,
    change: str = "",
    profile: bool = False,
    budget_s: float = 20.0,
    equal_within: float = 0.02,
    check: float | Callable[[Any, Any], Any] | None = None,
) -> ABTest:
    """Find out whether the candidate is faster than the baseline, and whether to accept it, in a randomised experiment.

    Both run once in each pair, in random order, on the same batch and with the same random numbers. The number of pairs
    is planned from a pilot, to detect a difference of `equal_within` in 9 of 10 experiments, and is then fixed.

    A step with its own loader would look too fast in such pairs, because the loader's workers prefetch batches while
    the other step runs. So if loader workers, other processes or threads are seen, or a step is slower back to back
    than interleaved, each pair consists of two blocks of many turns, all on one batch of `batches`; the turns that use
    up prefetched batches do not count. The budget then sets the number of pairs, at most 40; below 6 there is no
    verdict.

    With `quality`, `check`, `limits` or `profile` the result shows a decision: the candidate is accepted if it is
    faster, its results are good enough, and it stays within all limits.

    Parameters
    ----------
    baseline, candidate : callable
        One step each: ``baseline()``, or ``baseline(batch)`` with `batches`. Both must do the same work. Give two
        training steps a model each, with equal weights: with a shared model, the second step continues where the first
        stopped, so their results differ.
    batches : iterable, or callable returning one, optional
        Restarted when exhausted. A generator cannot restart: pass the function that makes it. Waiting for a batch
        counts for neither step, however many workers the loader has.
    quality : callable, optional
        Called once, without arguments, after the pairs, when both steps have run equally often on the same batches.
        Returns losses by name, where smaller is better: ``{"loss": evaluate(candidate_model)}``. These are the
        candidate's; to give those of both, return ``{"baseline": {...}, "candidate": {...}}``.

        With `limits` or `profile` but without `quality`, the return values of both steps after the warm-up are
        compared, as the loss ``difference``: the largest difference between elements divided by the largest value.
        Tensors, numbers, arrays, and lists, mappings and data classes of them are compared; non-finite values must be
        the same. If a result is NaN throughout, or a part cannot be compared, quality is unknown.
    limits : mapping of str to float, optional
        Largest accepted value of each loss by name. The default is the baseline's loss plus 0.1 %; if that is unknown
        too, the decision is inconclusive. The default for ``difference`` is 1e-4 for float32 and Python numbers, 1e-6
        for float64, 0.02 for float16 and bfloat16 (of two dtypes, the coarser), and 0 for everything else.

        The candidate's ``peak_memory_bytes`` (of a profiled step), ``median_ms`` and ``p95_ms`` (which needs 59 pairs)
        can be limited too. A time must stay below its limit with its whole 95 % interval.
    change : str
        The difference of the candidate, in your words.
    profile : bool
        Whether to profile both steps for a few steps, to measure memory and utilisation.
    budget_s : float
        Seconds that all steps together may take; with `profile`, 60 % are for the pairs.
    equal_within : float
        Largest relative difference of time that does not matter: 0.02 is 2 %.
    check : float or callable, optional
        Compares the return values of the two steps after the warm-up. A number is the limit of ``difference``. A
        function gets the two results and raises `AssertionError` or returns ``False`` if they differ; it may also
        compare the models' parameters.

    Returns
    -------
    ABTest

    Raises
    ------
    TypeError, ValueError
        For invalid arguments, before any step runs; for an invalid return value of `quality`, after the pairs.
    CaptureError
        Inside a profiler, or if the batches run out.
    Exception
        Whatever the steps, `quality` or `check` raise, after perfnb has removed everything it installed.
    """
    from perfnb.step.checks import require_steps
    from perfnb.step.device import random_state, set_random_state
    from perfnb.step.environment import provenance

    __tracebackhide__ = True
    require_seconds("budget_s", budget_s)
    require_steps({"baseline": baseline, "candidate": candidate}, batches, "ab_test(baseline, candidate, loader)")
    _require_check(check, quality)
    within = finite(equal_within)
    if within is None or not 0 < within < 1:
        raise ValueError(f"equal_within must be between 0 and 1 (0.02 is 2 %), not {shown(equal_within)}.")
    given: Any = (change, profile)
    if not isinstance(given[0], str):
        raise TypeError(f"change must be a string, not {type(change).__name__}.")
    require_quality(quality)
    if not isinstance(given[1], bool):
        raise TypeError(f"profile must be True or False, not {shown(profile)}.")
    accepted = limits_of(limits, judged=quality is not None, profiled=profile)
    judgement = NOT_COMPARED

    def compare(first: Any, second: Any) -> None:
        nonlocal judgement
        judgement = compare_results(first, second, check, accepted.get(DIFFERENCE))

    times = time_pairs(
        baseline,
        candidate,
        batches,
        _names(baseline, candidate),
        budget_s=PAIRS_SHARE * budget_s if profile else budget_s,
        equal_within=equal_within,
        compare=compare if quality is None and (check is not None or limits is not None or profile) else None,
    )
    if quality is not None:
        judgement = Quality(losses_of(quality(), accepted), "function")
    profiles, numbers = {}, random_state()
    for side, step, name in zip(SIDES, (baseline, candidate), (times.a_name, times.b_name), strict=True):
        if profile:
            set_random_state(numbers)  # so that a shuffling loader gives both the same batches
            profiles[side] = profile_step(step, batches, name=name, budget_s=PROFILE_SHARE * budget_s, **_STEPS)
    return ABTest(
        **vars(times),
        quality=judgement,
        limits=accepted,
        change=change,
        options={"budget_s": budget_s, "equal_within": equal_within, "profile": profile},
        environment=provenance(),
        profiles=profiles,
    )


def _names(baseline: Any, candidate: Any) -> tuple[str, str]:
    """Return the steps' own names, if both have one and they differ."""
    first, second = (str(getattr(step, "__name__", "<lambda>")) for step in (baseline, candidate))
    return SIDES if first == second or "<lambda>" in (first, second) else (first, second)


def _require_check(check: Any, quality: Any) -> None:
    if isinstance(check, bool) or not (check is None or callable(check) or isinstance(check, Real)):
        raise TypeError(f"check must be a tolerance such as 1e-5 or a function of the two results, not {shown(check)}.")
    if isinstance(check, Real) and (finite(check) is None or check < 0):
        raise ValueError(f"check must be a finite number of 0 or more, not {shown(check)}.")
    if check is not None and quality is not None:
        raise TypeError("check and quality both judge the results: pass one of them.")


def load_ab_test(path: str | Path) -> ABTest:
    """Read a test that `ABTest.save` wrote.

    Raises
    ------
    RecordingError
        If it is missing or damaged.
    """
    times, recordings, rest = read_report(path)
    return ABTest(**vars(times), profiles={side: Profile(each) for side, each in recordings.items()}, **rest)
