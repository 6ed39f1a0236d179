"""`ab_test`: is b faster than a, by how much, and how sure is that?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd

from perfnb.bench.ab_view import ab_html, ab_line, ab_text
from perfnb.bench.design import (
    SEED,
    ABFigures,
    ab_figures,
    planned_blocks,
    planned_rounds,
    slower_back_to_back,
    warm_up,
)
from perfnb.draw.progress import Progress
from perfnb.draw.shown import Shown
from perfnb.profile.timing import Timing, shown

#: Says how two results differ: nothing or ``True`` if they agree, else ``False`` or an `AssertionError`.
Check = Callable[[Any, Any], Any]


class ABTest(Shown):
    """Step b against step a, measured in randomised, interleaved pairs or blocks. Shows itself in a notebook."""

    def __init__(self, figures: ABFigures) -> None:
        self._figures = figures

    @property
    def verdict(self) -> str:
        """``faster``, ``slower``, ``same`` or ``inconclusive``, of b against a."""
        return self._figures.verdict

    @property
    def ratio(self) -> float:
        """Time of b divided by time of a: below 1, b is faster."""
        return self._figures.comparison.ratio

    @property
    def ratio_ci(self) -> tuple[float, float] | None:
        """95 % confidence interval of the ratio; ``None`` below 6 pairs, which cannot support one."""
        return self._figures.comparison.ratio_ci

    @property
    def p_value(self) -> float:
        """p-value of the hypothesis that the ratio is 1 (Wilcoxon signed-rank test)."""
        return self._figures.comparison.p_value

    @property
    def smallest_detectable(self) -> float:
        """Smallest relative difference that this many pairs detect with 90 % power: 0.01 is 1 %."""
        return self._figures.comparison.smallest_detectable

    @property
    def check(self) -> str | None:
        """How the results of b differ from those of a; empty if they agree, ``None`` without `check`."""
        return self._figures.check

    @property
    def pairs(self) -> pd.DataFrame:
        """A row per pair, in the order of execution: ``a_ms``, ``b_ms``, ``ratio``; for blocks, means per turn."""
        a, b = np.asarray(self._figures.a_ms), np.asarray(self._figures.b_ms)
        return pd.DataFrame({"a_ms": a, "b_ms": b, "ratio": b / a}).rename_axis("pair")

    @property
    def turns(self) -> int:
        """Counted turns of each step in a pair: 1, or the length of a block."""
        return 1 if self._figures.blocks is None else self._figures.blocks.turns

    @property
    def a(self) -> Timing:
        """Times of a."""
        return shown(self._figures.a)

    @property
    def b(self) -> Timing:
        """Times of b."""
        return shown(self._figures.b)

    def _text(self) -> str:
        return ab_text(self._figures)

    def _line(self) -> str:
        return ab_line(self._figures)

    def _html(self) -> str:
        return ab_html(self._figures)


def ab_test(
    a: Callable[..., Any],
    b: Callable[..., Any],
    batches: Iterable[Any] | None = None,
    *,
    budget_s: float = 20.0,
    equal_within: float = 0.02,
    check: float | Check | None = None,
) -> ABTest:
    """Find out whether step b is faster than step a, with a randomised experiment.

    Both run once in each pair, in random order, on the same batch and with the same random numbers. The number of pairs
    is planned from a pilot, to detect a difference of `equal_within` in 9 of 10 experiments, and is then fixed.

    A step with its own loader would look too fast in such pairs, because the loader's workers prefetch batches while
    the other step runs. So if loader workers, other processes or threads are seen, or a step is slower back to back
    than interleaved, each pair consists of two blocks of many turns, all on one batch of `batches`; the turns that use
    up prefetched batches do not count. The budget then sets the number of pairs, at most 40; below 6 there is no
    verdict.

    Parameters
    ----------
    a, b : callable
        One step each: ``a()``, or ``a(batch)`` with `batches`.
    batches : iterable, optional
        Restarted when exhausted. Waiting for a batch counts for neither step, however many workers the loader has.
    budget_s : float
        Seconds that all steps together may take.
    equal_within : float
        Largest relative difference that does not matter: 0.02 is 2 %.
    check : float or callable, optional
        Compares what the two steps return after the warm-up, when both have run equally often. A number is the
        tolerance, relative to the largest value, for the returned tensors and numbers. A function gets the two results
        and raises `AssertionError` or returns ``False`` if they differ; it may also compare the models' parameters.
        Give two training steps a model each, with equal weights: with a shared model, the second step continues where
        the first stopped, so their results differ.

    Returns
    -------
    ABTest

    Raises
    ------
    TypeError
        If a step is not callable, `batches` is a single batch, or steps and batches do not fit.
    ValueError
        For an invalid budget or `equal_within`.
    CaptureError
        Inside a profiler, or if the batches run out.
    Exception
        Whatever the steps raise, after perfnb has removed everything it installed.
    """
    from perfnb.arguments import finite, require_seconds, shown
    from perfnb.bench.rounds import Bench
    from perfnb.step.checks import require_steps

    __tracebackhide__ = True
    require_seconds("budget_s", budget_s)
    require_steps({"a": a, "b": b}, batches, "ab_test(a, b, loader)")
    given: Any = check
    if isinstance(given, bool) or not (given is None or callable(given) or isinstance(given, Real)):
        raise TypeError(f"check must be a tolerance such as 1e-5 or a function of the two results, not {shown(check)}.")
    within = finite(equal_within)
    if within is None or not 0 < within < 1:
        raise ValueError(f"equal_within must be between 0 and 1 (0.02 is 2 %), not {shown(equal_within)}.")
    begin = time.perf_counter()
    with Progress() as progress, Bench([a, b], batches, progress) as bench:
        steady = warm_up(bench, begin, budget_s)
        said = None if check is None else _said(check, *bench.results)
        bench.results = []
        blocks, turn_ms, found = None, None, bench.prefetching()
        if found is None and (slower := slower_back_to_back(bench, budget_s)) is not None:
            found, turn_ms = slower
        if found is None:
            plan, times = planned_rounds(bench, begin, budget_s, equal_within)
        else:
            steady = None  # the warm-up was interleaved, which says nothing about turns back to back
            plan, blocks, times = planned_blocks(bench, begin, budget_s, found, turn_ms)
    sizes = set(bench.sizes)
    a_name, b_name = step_names(a, b)
    return ABTest(
        ab_figures(
            times[0].tolist(),
            times[1].tolist(),
            equal_within=equal_within,
            a_name=a_name,
            b_name=b_name,
            planned=plan.count,
            needed=plan.needed,
            seed=SEED,
            check=said,
            noise=bench.conditions.facts,
            steady=steady,
            batch_size=sizes.pop() if len(sizes) == 1 else None,
            blocks=blocks,
        )
    )


def _said(check: float | Check, first: Any, second: Any) -> str:
    """How the results differ; empty if they agree."""
    from perfnb.bench.agreement import disagreement, holds_numbers

    if not callable(check):
        if not holds_numbers(first) or not holds_numbers(second):
            return "nothing was compared: a step returned no tensor or number; return the loss or pass a function"
        return disagreement(first, second, float(check))
    try:
        agrees = check(first, second)
    except AssertionError as error:
        return " ".join(str(error).split()) or "the check failed"
    return "check says that the results differ" if agrees is False else ""


def step_names(a: Callable[..., Any], b: Callable[..., Any]) -> tuple[str, str]:
    """Names of the two steps: their own, made distinct, or a and b."""
    first, second = (str(getattr(step, "__name__", "<lambda>")) for step in (a, b))
    if first == second != "<lambda>":
        return f"{first} (a)", f"{second} (b)"
    return ("a" if first == "<lambda>" else first), ("b" if second == "<lambda>" else second)
