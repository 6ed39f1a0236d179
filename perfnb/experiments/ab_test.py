"""Determine whether a candidate is faster and still correct, and whether to keep it (`ab_test`)."""

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
#: The number of steps per profile. A few are enough, because the pairs have already warmed up and timed both steps.
_STEPS: dict[str, Any] = {"warmup": 1, "steps": 3, "traced": 2}


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ABTest(PairedTimes, Documented):
    """The result of `ab_test`: the comparison of step b, the candidate, with step a, the baseline.

    If `quality`, `check`, `limits` or `profile` was given, the result shows whether to accept the change. Otherwise, it
    shows which step is faster. Notebooks display the result.

    Attributes
    ----------
    quality : Quality
        The losses of the results, and how they were judged.
    limits : mapping of str to float
        The largest accepted values, as passed to `ab_test`.
    change : str
        A description of the change, as passed to `ab_test`.
    options, environment : mapping
        The options of the test, and its environment: versions, device, settings, host and commit.
    profiles : mapping of str to Profile
        The profiles of ``baseline`` and ``candidate``, or an empty mapping without ``profile=True``.
    """

    quality: Quality = NOT_COMPARED
    limits: Mapping[str, float] = field(default_factory=dict)
    change: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    profiles: Mapping[str, Profile] = field(default_factory=dict)

    @property
    def a(self) -> Timing:
        """The times of a, the baseline."""
        return shown_timing(super().a)

    @property
    def b(self) -> Timing:
        """The times of b, the candidate."""
        return shown_timing(super().b)

    @property
    def check(self) -> str | None:
        """How b's results differ from a's: empty if they agree, or ``None`` if they were not compared."""
        return self.quality.said if self.quality.judged_by in ("results", "check") else None

    @property
    def decision(self) -> str:
        """The decision: ``accept``, ``reject`` or ``inconclusive``. Unjudged results are never accepted."""
        return self.outcome.decision

    @property
    def reason(self) -> str:
        """The reason for the decision."""
        sentence, advice = reason(self)
        return escape.plain(f"{fmt.capital(sentence)}. {advice}".strip(), 2000)

    @cached_property
    def outcome(self) -> Decision:
        """The decision, its cause, and the losses or resources to which the cause refers."""
        known = {*RESOURCES, *(loss.name for loss in self.quality.losses)}
        unmatched = [name for name in self.limits if name not in known]
        return decide(self.verdict, self.quality.losses, self.resources, unmatched)

    @cached_property
    def resources(self) -> tuple[Resource, ...]:
        """The candidate's usage of each resource that has a limit."""
        return limited_resources(self.candidate, self.limits)

    @cached_property
    def baseline(self) -> ABTestSide:
        """The baseline's figures: ``median_ms``, ``p95_ms``, ``throughput_per_s`` and so on."""
        return side_of(self.a_name, super().a, self._summary("baseline"))

    @cached_property
    def candidate(self) -> ABTestSide:
        """The candidate's figures."""
        return side_of(self.b_name, super().b, self._summary("candidate"))

    @property
    def table(self) -> pd.DataFrame:
        """The figures of both steps, with one row per metric.

        The columns are ``unit``, ``baseline``, ``candidate``, ``difference`` (candidate minus baseline), ``ratio``
        (candidate divided by baseline; for times, the ratio from the pairs) with its 95 % interval from ``ci_low`` to
        ``ci_high`` if the metric varies, and ``limit`` (the largest accepted value for the candidate).
        """
        return self._metrics.copy()

    @property
    def judged(self) -> bool:
        """Whether a decision was requested by passing `quality`, `check`, `limits` or `profile`."""
        return self.quality.judged_by != "nothing" or bool(self.limits or self.profiles)

    def to_markdown(self) -> str:
        """Return the decision, the table and the caveats as Markdown, for example for a pull request."""
        return document_markdown(ab_document(self))

    def save(self, path: str | Path) -> Path:
        """Save the test atomically to the folder `path`, as Parquet and JSON files that `perfnb.load` reads.

        Raises
        ------
        RecordingError
            If `path` contains something else, or if it cannot be written.
        """
        return save_report(self, path)

    def log_to(self, target: Any, step: int | None = None) -> list[str]:
        """Log the figures, the report and the decision to a run of an experiment tracker, like `Profile.log_to`.

        The names of the figures start with ``perfnb/ab_test/``, as in ``perfnb/ab_test/ratio``. Step time, throughput
        and memory are those of the candidate.
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
        """The profiles of both steps, layer by layer."""
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
    """Run a randomised experiment to determine whether a candidate is faster than a baseline, and whether to keep it.

    In each pair, both steps run once in random order, on the same batch and with the same random numbers. A pilot
    determines the number of pairs that is needed to detect a difference of `equal_within` in 9 of 10 experiments. This
    number is then fixed.

    A step with its own loader would appear too fast in such pairs, because the loader's workers prefetch batches while
    the other step runs. perfnb therefore looks for loader workers, other processes and threads, and for steps that are
    slower back to back than interleaved. If it finds any, each pair consists of two blocks of many turns, all on one
    batch from `batches`. Turns that use up prefetched batches do not count. In this case, the budget determines the
    number of pairs, which is at most 40. If there are fewer than 6 pairs, there is no verdict.

    With `quality`, `check`, `limits` or `profile`, the result includes a decision: the candidate is accepted if it is
    faster, if its results are good enough, and if it stays within all limits.

    Parameters
    ----------
    baseline, candidate : callable
        One step each: ``baseline()``, or ``baseline(batch)`` with `batches`. Both must do the same work. Two training
        steps need separate models with equal weights. If they share a model, the second step continues where the first
        one stopped, and their results therefore differ.
    batches : iterable, or callable returning one, optional
        The batches, which are restarted when they are exhausted. Generators cannot be restarted, so pass the function
        that creates the generator instead. The time spent waiting for a batch does not count for either step, no matter
        how many workers the loader has.
    quality : callable, optional
        Called once, without arguments, after the last pair, when both steps have run equally often on the same batches.
        It returns the candidate's losses by name, where smaller is better: ``{"loss": evaluate(candidate_model)}``. To
        provide the losses of both steps, return ``{"baseline": {...}, "candidate": {...}}``.

        If `limits` or `profile` is given without `quality`, the steps' return values after the warm-up are compared
        instead. The result is the loss ``difference``, the largest difference between elements divided by the largest
        value. The comparison supports tensors, numbers and arrays, as well as lists, mappings and data classes that
        contain them. Non-finite values must be identical. If a result consists entirely of NaN, or if a part cannot be
        compared, the quality is unknown.
    limits : mapping of str to float, optional
        The largest accepted value of each loss by name. The default is the baseline's loss plus 0.1 %. If the
        baseline's loss is unknown, the decision is inconclusive. The default for ``difference`` is 1e-4 for float32 and
        Python numbers, 1e-6 for float64, 0.02 for float16 and bfloat16, and 0 for everything else. If the dtypes of the
        two results differ, the less precise dtype determines the limit.

        You can also limit the candidate's ``peak_memory_bytes`` (in a profiled step), ``median_ms`` and ``p95_ms``
        (which requires 59 pairs). For a time, the whole 95 % interval must be below the limit.
    change : str
        Your description of how the candidate differs from the baseline.
    profile : bool
        Whether to profile a few executions of both steps, to measure memory and utilisation.
    budget_s : float
        The time limit for all steps together, in seconds. With `profile`, the pairs use 60 % of it.
    equal_within : float
        The largest relative time difference that does not matter (0.02 is 2 %).
    check : float or callable, optional
        How to compare the two steps' return values after the warm-up. A number is the limit on ``difference``. A
        function is called with the two results, and must raise `AssertionError` or return ``False`` if they differ. It
        may also compare the models' parameters.

    Returns
    -------
    ABTest

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, which is checked before any step runs, or if `quality` returns an invalid value after
        the last pair.
    CaptureError
        If another profiler is active, or if the batches run out.
    Exception
        Any exception raised by the steps, `quality` or `check`, after perfnb has removed everything that it installed.
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
            set_random_state(numbers)  # a shuffling loader then returns the same batches for both steps
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
        raise TypeError(f"check must be a tolerance such as 1e-5 or a function of both results, not {shown(check)}.")
    if isinstance(check, Real) and (finite(check) is None or check < 0):
        raise ValueError(f"check must be a finite number that is at least 0, not {shown(check)}.")
    if check is not None and quality is not None:
        raise TypeError("check and quality cannot be combined, because both judge the results: pass only one of them.")


def load_ab_test(path: str | Path) -> ABTest:
    """Load a test that was saved with `ABTest.save`.

    Raises
    ------
    RecordingError
        If the folder is missing or damaged.
    """
    times, recordings, rest = read_report(path)
    return ABTest(**vars(times), profiles={side: Profile(each) for side, each in recordings.items()}, **rest)
