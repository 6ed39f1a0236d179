"""`report`: did a change help, and is the answer still right?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, astuple, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from perfnb.arguments import shown
from perfnb.bench.comparison import ABTest, ab_test
from perfnb.bench.pairs import ABFigures, Blocks, ab_figures
from perfnb.diff.layers import diff_profiles
from perfnb.draw.shown import Page, Shown
from perfnb.errors import RecordingError
from perfnb.experiments import saved
from perfnb.experiments.decision import Loss
from perfnb.experiments.quality import limits_of, losses_of, require_quality
from perfnb.experiments.report_table import (
    DIFFERENCE,
    PerformanceFigures,
    Quality,
    Side,
    performance_figures,
)
from perfnb.experiments.report_view import report_html, report_line, report_markdown, report_page, report_text
from perfnb.experiments.report_words import reason
from perfnb.profile.profile import Profile
from perfnb.profile.profiling import profile_step
from perfnb.recording.text import TEXT

#: Shares of the budget that the pairs and each of the two profiles may take.
PAIRS_SHARE, PROFILE_SHARE = 0.6, 0.2
#: Steps of each profile: the pairs have warmed both up, and have timed them better than a profile could.
_STEPS: dict[str, Any] = {"warmup": 1, "steps": 3, "traced": 2}
#: What is saved of the experiment and of quality, beside the frames.
_EXPERIMENT = ("a_name", "b_name", "planned", "needed", "seed", "check", "noise", "steady", "batch_size")
_QUALITY = ("judged_by", "said", "dtype")


class PerformanceReport(Page, Shown):
    """What a change does to speed, memory and quality, and whether to take it. Shows itself in a notebook.

    `report` makes one.
    """

    def __init__(
        self, ab: ABFigures, quality: Quality, profiles: Mapping[str, Profile], meta: Mapping[str, Any]
    ) -> None:
        self._ab, self._quality, self._meta = ab, quality, meta
        self._profiles = {side: profiles[side] for side in saved.SIDES if side in profiles}

    @property
    def decision(self) -> str:
        """``accept``, ``reject`` or ``inconclusive``."""
        return self._figures.decision.decision

    @property
    def reason(self) -> str:
        """Why, in one sentence."""
        return reason(self._figures)

    @property
    def change(self) -> str:
        """What the candidate does otherwise, as it was given."""
        return self._figures.change

    @property
    def baseline(self) -> Side:
        """The figures of the baseline: ``median_ms``, ``p95_ms``, ``throughput_per_s`` and so on."""
        return self._figures.baseline

    @property
    def candidate(self) -> Side:
        """The figures of the candidate."""
        return self._figures.candidate

    @property
    def table(self) -> pd.DataFrame:
        """The figures of both, a row a metric.

        Columns: ``unit``, ``baseline``, ``candidate``, ``difference`` (candidate less baseline), ``ratio`` (candidate
        by baseline; of the times that of the pairs, as in `ab`) with its 95 % interval ``ci_low`` and ``ci_high`` where
        the metric varies, ``limit`` (the largest value accepted of the candidate).
        """
        return self._figures.table.copy()

    @property
    def ab(self) -> ABTest:
        """The experiment in pairs: the baseline is its a, the candidate its b."""
        return ABTest(self._ab)

    @property
    def profiles(self) -> dict[str, Profile]:
        """The profiles of ``baseline`` and ``candidate``; empty where none were made."""
        return dict(self._profiles)

    @property
    def meta(self) -> dict[str, Any]:
        """Change, limits, options, and the environment: versions, device, settings, host, commit."""
        return deepcopy(dict(self._meta))

    def to_markdown(self) -> str:
        """The report as Markdown, for a pull request or a page of notes."""
        return report_markdown(self._figures)

    def _page(self) -> str:
        summaries = [profile._summary for profile in self._profiles.values()]
        return report_page(self._figures, diff_profiles(*summaries) if summaries else None)

    def save(self, path: str | Path) -> Path:
        """Write the report to the folder `path` (Parquet and JSON), whole or not at all; `perfnb.load` reads it.

        Raises
        ------
        RecordingError
            If something that is no report stands there, or it cannot be written.
        """
        ab, quality = self._ab, self._quality
        names = [field.name for field in fields(Loss)]
        types = {name: TEXT if name == "name" else "float64" for name in names}
        losses = pd.DataFrame([astuple(loss) for loss in quality.losses], columns=names).astype(types)
        experiment = {name: getattr(ab, name) for name in _EXPERIMENT} | {
            "equal_within": ab.comparison.equal_within,
            "blocks": None if ab.blocks is None else asdict(ab.blocks),
        }
        meta = {
            **self._meta,
            "experiment": experiment,
            "quality": {name: getattr(quality, name) for name in _QUALITY},
            "decision": self.decision,
            "reason": self.reason,
        }
        frames = {
            "pairs": pd.DataFrame({"a_ms": ab.a_ms, "b_ms": ab.b_ms}),
            "losses": losses,
            "table": self.table.reset_index(),
        }
        recordings = {side: profile._recording for side, profile in self._profiles.items()}
        return saved.save_report(frames, recordings, meta, path)

    @cached_property
    def _figures(self) -> PerformanceFigures:
        return performance_figures(
            self._ab,
            self._quality,
            self._meta["limits"],
            [profile._summary for profile in self._profiles.values()],
            change=self._meta["change"],
            environment=self._meta["environment"],
            options=self._meta["options"],
        )

    def _text(self) -> str:
        return report_text(self._figures)

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
    """Find out whether a change helped, and whether the answer is still right.

    The two steps run in randomised pairs, as in `ab_test`, or in blocks where workers or threads prepare for a step
    while the other one runs. Then quality is judged, and last both are profiled with
    a few steps, for memory and utilisation. The candidate is accepted where it is faster, its quality is no worse than
    accepted, and it keeps all limits.

    Parameters
    ----------
    baseline, candidate : callable
        One step each: ``baseline()``, or ``baseline(batch)`` where there are `batches`. Both must do the same work.
        Two training steps need a model each, of equal weights.
    batches : iterable, or callable returning one, optional
        Begun again when they run out, which a generator cannot: pass the function that makes it.
    change : str
        What the candidate does otherwise, in your words.
    quality : callable, optional
        Called once, without arguments, after the pairs: both steps have then run equally often, on the same batches. It
        looks at what your own names hold by then and returns losses of quality by name, of which smaller is better:
        ``{"loss": evaluate(candidate_model)}``. These are the candidate's. To give those of both, return
        ``{"baseline": {...}, "candidate": {...}}``.

        Without it, what the two steps return after the warm-up is compared, as the loss ``difference``: the largest
        difference of an element by the largest value. Tensors, numbers, arrays, and lists, mappings and data classes
        of them are compared; what is not finite has to be the same. Where all of a result is not a number, or a part
        of it does not tell whether it is equal, whether the answer is right is unknown.
    limits : mapping of str to float, optional
        The largest accepted value of each loss by name. Where one is missing, it is the baseline's loss and a
        thousandth of it; where that is not known either, the report is inconclusive. The limit of ``difference`` is by
        default 1e-4 for float32 (and numbers of Python), 1e-6 for float64, 0.02 for float16 and bfloat16, by the
        coarser of the two, and 0 for all else.

        Limits of the candidate as well: ``peak_memory_bytes`` (of a step of its profile), ``median_ms``, ``p95_ms``
        (59 pairs are needed). A time whose 95 % interval holds the limit is not shown to keep it.
    budget_s : float
        Seconds that all steps together may take, three fifths of them for the pairs.
    equal_within : float
        Largest relative difference of time that does not matter: 0.02 is 2 %.
    profile : bool
        Whether to profile both; without it, memory and utilisation are unknown.

    Returns
    -------
    PerformanceReport

    Raises
    ------
    TypeError, ValueError
        For what makes no sense, before a step has run; for what `quality` returns, after the pairs.
    CaptureError
        Inside a profiler, or with batches that run out.
    Exception
        Whatever the steps or `quality` raise, after everything that perfnb installed has been removed.
    """
    from perfnb.step.budget import Plan
    from perfnb.step.device import random_state, set_random_state
    from perfnb.step.environment import provenance
    from perfnb.step.given import require_steps

    __tracebackhide__ = True
    Plan(budget_s=budget_s)
    require_steps({"baseline": baseline, "candidate": candidate}, batches, "report(baseline, candidate, loader)")
    given: Any = (change, profile)
    if not isinstance(given[0], str):
        raise TypeError(f"change must be words, not {type(change).__name__}.")
    require_quality(quality)
    if not isinstance(given[1], bool):
        raise TypeError(f"profile must be True or False, not {shown(profile)}.")
    accepted = limits_of(limits, judged=quality is not None, profiled=profile)
    results = _Results(accepted.get(DIFFERENCE))
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
        a_name, b_name = saved.SIDES
    ab = replace(ab, a_name=a_name, b_name=b_name)
    found = results.quality if quality is None else Quality(losses_of(quality(), accepted), "function")
    profiles = {}
    numbers = random_state()
    for side, step, name in zip(saved.SIDES, (baseline, candidate), (ab.a_name, ab.b_name), strict=True):
        if profile:
            set_random_state(numbers)  # a loader that shuffles gives both the same batches
            profiles[side] = profile_step(step, batches, name=name, budget_s=PROFILE_SHARE * budget_s, **_STEPS)
    meta = {
        "change": change,
        "limits": accepted,
        "options": {"budget_s": budget_s, "equal_within": equal_within, "profile": profile},
        "environment": provenance(),
    }
    return PerformanceReport(ab, found, profiles, meta)


class _Results:
    """Compares what the two steps return, by the tolerance that fits, and keeps what was found."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self.quality = Quality((), "results", "the steps were not compared")

    def __call__(self, first: Any, second: Any) -> None:
        from perfnb.bench.agreement import Difference, holds_numbers, worst_difference

        worst = worst_difference(first, second, self._limit)
        if worst is None or not (holds_numbers(first) and holds_numbers(second)):
            worst = Difference(0.0, "a step returns no tensor and no number", known=False)
        if not worst.known:
            self.quality = Quality((), "results", worst.words)
            raise AssertionError(self.quality.said)
        wrong = worst.relative > worst.tolerance
        loss = Loss(DIFFERENCE, worst.relative, limit=worst.tolerance)
        said = worst.words if wrong else ""
        self.quality = Quality((loss,), "results", said, worst.dtype if self._limit is None else "")
        if wrong:
            raise AssertionError(said)


def load_report(path: str | Path) -> PerformanceReport:
    """Read a report that `PerformanceReport.save` wrote.

    Raises
    ------
    RecordingError
        If there is none, or a damaged one.
    """
    frames, recordings, meta = saved.load_report(path)
    try:
        pairs, losses, said = frames["pairs"], frames["losses"], meta["quality"]
        blocks = meta["experiment"].get("blocks")  # absent in what an earlier version saved
        ab = ab_figures(
            [float(value) for value in pairs["a_ms"]],
            [float(value) for value in pairs["b_ms"]],
            equal_within=float(meta["experiment"]["equal_within"]),
            blocks=None if blocks is None else Blocks(**blocks),
            **{name: meta["experiment"][name] for name in _EXPERIMENT},
        )
        quality = Quality(
            tuple(
                Loss(str(name), float(candidate), *(None if math.isnan(value) else float(value) for value in rest))
                for name, candidate, *rest in losses[[field.name for field in fields(Loss)]].itertuples(index=False)
            ),
            *(str(said[name]) for name in _QUALITY),
        )
        kept = {
            "change": str(meta["change"]),
            "limits": {str(name): float(limit) for name, limit in meta["limits"].items()},
            **{name: dict(meta[name]) for name in ("options", "environment")},
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordingError(f"{path} is damaged: its figures are not what a report writes ({error}).") from error
    return PerformanceReport(ab, quality, {side: Profile(one) for side, one in recordings.items()}, kept)
