"""`report`: did a change help, and are the results still right?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from perfnb.arguments import require_seconds, shown
from perfnb.bench.comparison import ABTest, ab_test
from perfnb.bench.design import ABFigures
from perfnb.bench.quality import DIFFERENCE, limits_of, losses_of, require_quality
from perfnb.diff.layers import diff_profiles
from perfnb.draw.shown import Page, Shown
from perfnb.experiments.decision import (
    ComparedResults,
    PerformanceFigures,
    Quality,
    Side,
    performance_figures,
)
from perfnb.experiments.report_files import SIDES, read_report, save_report
from perfnb.experiments.report_view import reason, report_html, report_line, report_markdown, report_page, report_text
from perfnb.profile.profile import Profile
from perfnb.profile.profiling import profile_step

#: Shares of the budget that the pairs and each of the two profiles may take.
PAIRS_SHARE, PROFILE_SHARE = 0.6, 0.2
#: Steps of each profile; few are enough, because the pairs have warmed up and timed both steps.
_STEPS: dict[str, Any] = {"warmup": 1, "steps": 3, "traced": 2}


class PerformanceReport(Page, Shown):
    """What a change does to speed, memory and quality, and whether to accept it. Shows itself in a notebook.

    Made by `report`.
    """

    def __init__(
        self, ab: ABFigures, quality: Quality, profiles: Mapping[str, Profile], meta: Mapping[str, Any]
    ) -> None:
        self._ab, self._quality, self._meta = ab, quality, meta
        self._profiles = {side: profiles[side] for side in SIDES if side in profiles}

    @property
    def decision(self) -> str:
        """``accept``, ``reject`` or ``inconclusive``."""
        return self._figures.decision.decision

    @property
    def reason(self) -> str:
        """The reason for the decision."""
        return reason(self._figures)

    @property
    def change(self) -> str:
        """What changed, as given by the user."""
        return self._figures.change

    @property
    def baseline(self) -> Side:
        """Figures of the baseline: ``median_ms``, ``p95_ms``, ``throughput_per_s`` and so on."""
        return self._figures.baseline

    @property
    def candidate(self) -> Side:
        """Figures of the candidate."""
        return self._figures.candidate

    @property
    def table(self) -> pd.DataFrame:
        """Figures of both steps, a row per metric.

        Columns: ``unit``, ``baseline``, ``candidate``, ``difference`` (candidate minus baseline), ``ratio`` (candidate
        divided by baseline; for times, that of the pairs, as in `ab`) with its 95 % interval ``ci_low`` to ``ci_high``
        if the metric varies, and ``limit`` (largest accepted value of the candidate).
        """
        return self._figures.table.copy()

    @property
    def ab(self) -> ABTest:
        """The A/B test: a is the baseline, b the candidate."""
        return ABTest(self._ab)

    @property
    def profiles(self) -> dict[str, Profile]:
        """Profiles of ``baseline`` and ``candidate``; empty with ``profile=False``."""
        return dict(self._profiles)

    @property
    def meta(self) -> dict[str, Any]:
        """Change, limits, options, and the environment: versions, device, settings, host, commit."""
        return deepcopy(dict(self._meta))

    def to_markdown(self) -> str:
        """The report as Markdown, for example for a pull request."""
        return report_markdown(self._figures)

    def _page(self) -> str:
        summaries = [profile._summary for profile in self._profiles.values()]
        return report_page(self._figures, diff_profiles(*summaries) if summaries else None)

    def save(self, path: str | Path) -> Path:
        """Save the report to the folder `path` (Parquet and JSON), atomically; `perfnb.load` reads it.

        Raises
        ------
        RecordingError
            If `path` holds something else, or cannot be written.
        """
        meta = {**self._meta, "decision": self.decision, "reason": self.reason}
        return save_report(self._ab, self._quality, self._figures.table, self._profiles, meta, path)

    @cached_property
    def _figures(self) -> PerformanceFigures:
        told = {name: self._meta[name] for name in ("limits", "change", "environment", "options")}
        summaries = [profile._summary for profile in self._profiles.values()]
        return performance_figures(self._ab, self._quality, summaries=summaries, **told)

    def _text(self, width: int = 100) -> str:
        return report_text(self._figures, width)

    def _line(self) -> str:
        return report_line(self._figures)

    def _html(self) -> str:
        return report_html(self._figures)


def report(
    baseline: Callable[..., Any],
    candidate: Callable[..., Any],
    batches: Iterable[Any] | None = None,
    *,
    change: str = "",
    quality: Callable[[], Mapping[str, Any]] | None = None,
    limits: Mapping[str, float] | None = None,
    budget_s: float = 40.0,
    equal_within: float = 0.02,
    profile: bool = True,
) -> PerformanceReport:
    """Find out whether a change helped, and whether the results are still right.

    The two steps run in randomised pairs or blocks, as in `ab_test`. Then quality is judged, and both steps are
    profiled for a few steps to measure memory and utilisation. The candidate is accepted if it is faster, its quality
    is good enough, and it stays within all limits.

    Parameters
    ----------
    baseline, candidate : callable
        One step each: ``baseline()``, or ``baseline(batch)`` with `batches`. Both must do the same work. Two training
        steps need a model each, with equal weights.
    batches : iterable, or callable returning one, optional
        Restarted when exhausted. A generator cannot restart: pass the function that makes it.
    change : str
        What the candidate does differently, in your words.
    quality : callable, optional
        Called once, without arguments, after the pairs, when both steps have run equally often on the same batches.
        Returns losses by name, where smaller is better: ``{"loss": evaluate(candidate_model)}``. These are the
        candidate's; to give those of both, return ``{"baseline": {...}, "candidate": {...}}``.

        Without it, the return values of both steps after the warm-up are compared, as the loss ``difference``: the
        largest difference between elements divided by the largest value. Tensors, numbers, arrays, and lists, mappings
        and data classes of them are compared; non-finite values must be the same. If a result is NaN throughout, or a
        part cannot be compared, quality is unknown.
    limits : mapping of str to float, optional
        Largest accepted value of each loss by name. The default is the baseline's loss plus 0.1 %; if that is unknown
        too, the report is inconclusive. The default for ``difference`` is 1e-4 for float32 and Python numbers, 1e-6 for
        float64, 0.02 for float16 and bfloat16 (of two dtypes, the coarser), and 0 for everything else.

        The candidate's ``peak_memory_bytes`` (of a profiled step), ``median_ms`` and ``p95_ms`` (which needs 59 pairs)
        can be limited too. A time must stay below its limit with its whole 95 % interval.
    budget_s : float
        Seconds that all steps together may take; 60 % are for the pairs.
    equal_within : float
        Largest relative difference of time that does not matter: 0.02 is 2 %.
    profile : bool
        Whether to profile both steps; otherwise memory and utilisation are unknown.

    Returns
    -------
    PerformanceReport

    Raises
    ------
    TypeError, ValueError
        For invalid arguments, before any step runs; for an invalid return value of `quality`, after the pairs.
    CaptureError
        Inside a profiler, or if the batches run out.
    Exception
        Whatever the steps or `quality` raise, after perfnb has removed everything it installed.
    """
    from perfnb.step.checks import require_steps
    from perfnb.step.device import random_state, set_random_state
    from perfnb.step.environment import provenance

    __tracebackhide__ = True
    require_seconds("budget_s", budget_s)
    require_steps({"baseline": baseline, "candidate": candidate}, batches, "report(baseline, candidate, loader)")
    given: Any = (change, profile)
    if not isinstance(given[0], str):
        raise TypeError(f"change must be a string, not {type(change).__name__}.")
    require_quality(quality)
    if not isinstance(given[1], bool):
        raise TypeError(f"profile must be True or False, not {shown(profile)}.")
    accepted = limits_of(limits, judged=quality is not None, profiled=profile)
    results = ComparedResults(accepted.get(DIFFERENCE))
    ab = ab_test(
        baseline,
        candidate,
        batches=batches,
        budget_s=PAIRS_SHARE * budget_s,
        equal_within=equal_within,
        check=results if quality is None else None,
    )._figures
    a_name, b_name = (str(getattr(step, "__name__", "<lambda>")) for step in (baseline, candidate))
    if a_name == b_name or "<lambda>" in (a_name, b_name):
        a_name, b_name = SIDES
    ab = replace(ab, a_name=a_name, b_name=b_name)
    found = results.quality if quality is None else Quality(losses_of(quality(), accepted), "function")
    profiles, numbers = {}, random_state()
    for side, step, name in zip(SIDES, (baseline, candidate), (ab.a_name, ab.b_name), strict=True):
        if profile:
            set_random_state(numbers)  # so that a shuffling loader gives both the same batches
            profiles[side] = profile_step(step, batches, name=name, budget_s=PROFILE_SHARE * budget_s, **_STEPS)
    meta = {
        "change": change,
        "limits": accepted,
        "options": {"budget_s": budget_s, "equal_within": equal_within, "profile": profile},
        "environment": provenance(),
    }
    return PerformanceReport(ab, found, profiles, meta)


def load_report(path: str | Path) -> PerformanceReport:
    """Read a report that `PerformanceReport.save` wrote.

    Raises
    ------
    RecordingError
        If it is missing or damaged.
    """
    ab, quality, recordings, meta = read_report(path)
    return PerformanceReport(ab, quality, {side: Profile(each) for side, each in recordings.items()}, meta)
