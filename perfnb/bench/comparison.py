"""`ab_test`: is b faster than a, by how much, and how sure is that?"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from perfnb.bench.ab_view import ab_html, ab_line, ab_text
from perfnb.bench.pairs import ABFigures, Blocks, ab_figures, random_orders
from perfnb.bench.timing import MOST_WARMUP, WARMUP_SHARE
from perfnb.draw.progress import Progress
from perfnb.draw.shown import Shown
from perfnb.profile.timing import Timing, shown
from perfnb.stats.intervals import Floats
from perfnb.stats.planning import Planned, plan_pairs, plan_pairs_blindly
from perfnb.stats.signed_rank import FEWEST_PAIRS

if TYPE_CHECKING:
    from perfnb.bench.prefetching import Prefetching

#: Rounds of the pilot, which the result does not rest on, and the share of the budget by which it has ended.
PILOT_PAIRS, PILOT_SHARE = 10, 0.4
#: Greatest number of pairs, however short the steps; and where a pilot of one pair tells nothing of their spread.
MOST_PAIRS, MOST_UNPLANNED = 10_000, 100
#: What counts of a block lasts at least so long; more turns, up to these, make it more exact by what lay prepared, if
#: so many rounds fit nevertheless. There are at most so many rounds.
BLOCK_MS, LONGEST_BLOCK, ROUNDS_WANTED, MOST_BLOCKS = 20.0, 64, 12, 40
#: To feel what works on unseen: pairs, parts of a row, its turns at most, its share of the budget, and by how much
#: a turn must take longer in a row.
ROW_PAIRS, ROW_PARTS, LONGEST_ROW, ROW_SHARE, SLOWER_IN_A_ROW = 8, 4, 64, 0.1, 1.3
#: Of the order within the pairs, so that a run can be told again.
SEED = 20260101

#: Tells how two results differ: nothing or ``True`` if they agree, else ``False`` or an `AssertionError`.
Check = Callable[[Any, Any], Any]


class ABTest(Shown):
    """Step b against step a, from randomised, interleaved pairs (of blocks, if need be). Shows itself in a notebook."""

    def __init__(self, figures: ABFigures) -> None:
        self._figures = figures

    @property
    def verdict(self) -> str:
        """``faster``, ``slower``, ``same`` or ``inconclusive``, of b against a."""
        return self._figures.verdict

    @property
    def ratio(self) -> float:
        """Time of b by time of a: below 1, b is faster."""
        return self._figures.comparison.ratio

    @property
    def ratio_ci(self) -> tuple[float, float] | None:
        """95 % confidence interval of the ratio; ``None`` below 6 pairs, which cannot support one."""
        return self._figures.comparison.ratio_ci

    @property
    def p_value(self) -> float:
        """Of the hypothesis that the ratio is 1 (Wilcoxon's signed ranks)."""
        return self._figures.comparison.p_value

    @property
    def smallest_detectable(self) -> float:
        """The smallest relative difference that these pairs find with a probability of 90 %: 0.01 is 1 %."""
        return self._figures.comparison.smallest_detectable

    @property
    def check(self) -> str | None:
        """How the results of b differ from those of a; empty where they agree, ``None`` where it was not asked."""
        return self._figures.check

    @property
    def pairs(self) -> pd.DataFrame:
        """A row a pair, in the order of execution: ``a_ms``, ``b_ms``, ``ratio``; of blocks milliseconds a turn."""
        a, b = np.asarray(self._figures.a_ms), np.asarray(self._figures.b_ms)
        return pd.DataFrame({"a_ms": a, "b_ms": b, "ratio": b / a}).rename_axis("pair")

    @property
    def turns(self) -> int:
        """Turns of each step in a pair: 1, or of blocks as many as count in each."""
        return 1 if self._figures.blocks is None else self._figures.blocks.turns

    @property
    def a(self) -> Timing:
        """The times of a."""
        return shown(self._figures.a)

    @property
    def b(self) -> Timing:
        """The times of b."""
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
    """Find out whether step b is faster than step a, by a randomised experiment.

    Both run once in each pair, in random order, on the same batch and with the same random numbers. How many pairs are
    run is planned from a pilot, to find a difference of `equal_within` in 9 of 10 experiments, and not changed after.

    Where a step takes batches from a loader of its own whose workers prepare some while the other step runs, its turns
    in such pairs would be too short. So where workers of loaders, other processes or threads are seen, or a step is
    slower in a row than in turns, a pair is of two blocks of many turns each, all on one batch of `batches`; those that
    use up what lay prepared are not counted. There are as many pairs as the budget allows, 40 at most, and below 6
    there is no verdict.

    Parameters
    ----------
    a, b : callable
        One step each: ``a()``, or ``a(batch)`` where there are `batches`.
    batches : iterable, optional
        Begun again when they run out; the wait for a batch counts for neither, whatever workers a loader has.
    budget_s : float
        Seconds that all steps together may take.
    equal_within : float
        Largest relative difference that does not matter: 0.02 is 2 %.
    check : float or callable, optional
        Compares what the two return after the warm-up, in which both have run equally often. A number is the tolerance,
        relative to the largest value, within which the tensors and numbers that the steps return must agree. A function
        is given the two results and raises `AssertionError`, or returns ``False``, where they differ; it may compare
        the parameters of the steps' models as well. Two training steps need a model each, of equal weights: on one
        model the second goes on where the first has stopped, and their results differ rightly.

    Returns
    -------
    ABTest

    Raises
    ------
    TypeError
        If a step is none or `batches` are one batch, or one does not fit the other.
    ValueError
        For a budget or a band that makes no sense.
    CaptureError
        Inside a profiler, or with batches that run out.
    Exception
        Whatever the steps raise, after everything that perfnb installed has been removed.
    """
    from perfnb.arguments import finite, shown
    from perfnb.bench.rounds import Bench
    from perfnb.step.budget import Plan
    from perfnb.step.given import require_steps

    __tracebackhide__ = True
    Plan(budget_s=budget_s)
    require_steps({"a": a, "b": b}, batches, "ab_test(a, b, loader)")
    given: Any = check
    if isinstance(given, bool) or not (given is None or callable(given) or isinstance(given, Real)):
        raise TypeError(
            f"check must be a tolerance such as 1e-5, or a function of the two results, not {shown(check)}."
        )
    within = finite(equal_within)
    if within is None or not 0 < within < 1:
        raise ValueError(f"equal_within must lie between 0 and 1, and 0.02 is 2 %; it is {shown(equal_within)}.")
    begin = time.perf_counter()
    with Progress() as progress, Bench([a, b], batches, progress) as bench:
        steady = warm_up(bench, begin, budget_s)
        said = None if check is None else _said(check, *bench.results)
        bench.results = []
        blocks = None
        found = bench.prefetching()
        turn_ms = _pilot_blocks(bench, begin, budget_s, found.ahead) if found else None
        if found is None and (felt := _carried_over(bench, budget_s)) is not None:
            found, turn_ms = felt
        if found is None:
            plan, times = planned_rounds(bench, begin, budget_s, equal_within)
        else:
            steady = None  # the warm-up ran in turns, which say nothing here
            plan, blocks, times = _planned_blocks(bench, begin + budget_s, found, turn_ms)
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


def warm_up(bench: Any, begin: float, budget_s: float) -> bool | None:
    """Run rounds until every step is steady, for a fifth of the budget at most; what they return last is kept."""
    from perfnb.step.steady import is_steady, require_passing_time, steady_from

    __tracebackhide__ = True
    series: list[list[int]] = []
    while len(series) < MOST_WARMUP:
        order = range(bench.count) if len(series) % 2 else reversed(range(bench.count))
        series.append([times[0] for times in bench.rounds([list(order)], pass_name="warmup", keep_results=True)])
        if time.perf_counter() - begin > WARMUP_SHARE * budget_s and len(series) > 1:
            break
        if all(steady_from(times) is not None for times in zip(*series, strict=True)):
            return True
    for times in zip(*series, strict=True):
        require_passing_time(times)
    verdicts = [is_steady(times) for times in zip(*series, strict=True)]
    return None if None in verdicts else all(verdicts)


def planned_rounds(bench: Any, begin: float, budget_s: float, equal_within: float) -> tuple[Planned, Floats]:
    """Plan from a pilot how many rounds tell apart any two of the steps, and run them.

    Returns
    -------
    Planned, ndarray
        Milliseconds: a row a step, a column a round.
    """
    __tracebackhide__ = True
    count = bench.count
    orders = random_orders(PILOT_PAIRS, count, SEED + 1)
    pilot = milliseconds(bench.rounds(orders, pass_name="pilot", until=begin + PILOT_SHARE * budget_s))
    # The median: one round that something held up is no reason to measure a tenth of what there is time for.
    round_s, left_s = float(np.median(pilot.sum(axis=0))) / 1e3, max(0.0, begin + budget_s - time.perf_counter())
    logs = np.log(pilot)
    differences = [logs[b] - logs[a] for a, b in itertools.combinations(range(count), 2)] or [logs[0]]
    plans = [
        plan_pairs(each, equal_within=equal_within, budget_s=left_s, pair_s=round_s, most=MOST_PAIRS)
        if len(each) > 1
        else plan_pairs_blindly(budget_s=left_s, pair_s=round_s, most=MOST_UNPLANNED)
        for each in differences
    ]
    plan = max(plans, key=lambda each: each.needed)
    # More than twice the time that the pilot foretold is not waited for.
    until = time.perf_counter() + 2 * max(left_s, round_s)
    return plan, milliseconds(bench.rounds(random_orders(plan.count, count, SEED), planned=plan.count, until=until))


def _carried_over(bench: Any, budget_s: float) -> tuple[Prefetching, Floats] | None:
    """Something that cannot be seen, but is felt: a step takes longer in a row than in turns with the other.

    A busy machine slows turns as well. So every part of the row must be slower, of the same step, twice, than the turns
    before, between and after. Steps so long that a row does not fit into a small share of the budget are not tried.

    Returns
    -------
    Prefetching, ndarray
        And of each step milliseconds a turn in a row.
    """
    from perfnb.bench.prefetching import Prefetching

    __tracebackhide__ = True

    def in_turns(seed: int) -> Floats:
        until = time.perf_counter() + ROW_SHARE * budget_s
        times = milliseconds(bench.rounds(random_orders(ROW_PAIRS, bench.count, seed), pass_name="pilot", until=until))
        return np.asarray(np.maximum(times.mean(axis=1), np.median(times, axis=1)))

    usual = in_turns(SEED + 2)
    half = int(min(LONGEST_ROW, ROW_SHARE * budget_s * 1e3 / float(usual.sum())) / 2)
    if half < ROW_PARTS:
        return None
    slower = np.ones(bench.count, dtype=bool)
    for attempt in range(2):
        orders, part = random_orders(1, bench.count, SEED + 4 + attempt), half // ROW_PARTS
        row = milliseconds(bench.blocks(orders, lead=half, turns=part, parts=ROW_PARTS, pass_name="pilot"))
        slower &= row.min(axis=1) > SLOWER_IN_A_ROW * usual
        if not slower.any():
            return None
        usual = np.maximum(usual, in_turns(SEED + 6 + attempt))
        slower &= row.min(axis=1) > SLOWER_IN_A_ROW * usual
    return (Prefetching("something", half), row.mean(axis=1)) if slower.any() else None


def _pilot_blocks(bench: Any, begin: float, budget_s: float, lead: int) -> Floats | None:
    """Of each step milliseconds a turn in a row, when what lay prepared is used up; ``None`` if there is no time."""
    __tracebackhide__ = True
    size = 1
    while True:  # ever longer blocks, for nobody knows yet how long one takes
        order = list(range(bench.count)) if size.bit_length() % 2 else list(reversed(range(bench.count)))
        pilot = bench.blocks([order], lead=size // 2, turns=size - size // 2, pass_name="pilot")
        if size >= 2 * lead:
            return milliseconds(pilot)[:, 0]
        if time.perf_counter() - begin > PILOT_SHARE * budget_s:
            return None
        size *= 2


def _planned_blocks(
    bench: Any, end: float, found: Prefetching, turn_ms: Floats | None
) -> tuple[Planned, Blocks, Floats]:
    """Plan by time alone how long blocks must be and how many the budget allows, and run them.

    Returns
    -------
    Planned, Blocks, ndarray
        Milliseconds a turn: a row a step, a column a round.
    """
    __tracebackhide__ = True
    # What counts is at least twice what may lie prepared, so that half of it was made meanwhile.
    lead, turns, count, round_s = found.ahead, 2 * found.ahead, 0, None
    left_s = max(0.0, end - time.perf_counter())
    if turn_ms is not None:
        round_ms = float(turn_ms.sum())
        affordable = left_s * 1e3 / ROUNDS_WANTED / round_ms - lead
        wanted = max(BLOCK_MS / float(turn_ms.min()), min(affordable, LONGEST_BLOCK))
        turns = lead * max(2, math.ceil(wanted / lead))
        round_s = (lead + turns) * round_ms / 1e3
        count = min(MOST_BLOCKS, int(left_s / round_s))
    most_s = 2 * left_s
    if count == 0:  # too little for one: a pair of turns, of which nothing follows
        count, lead, turns = 1, 0, 1
    elif count < FEWEST_PAIRS:  # if the pilot was held up, the fewest of which something follows fit nevertheless
        count, most_s = FEWEST_PAIRS, left_s
    blocks = Blocks(found.who, lead, turns, round_s)
    until = time.perf_counter() + most_s
    times = bench.blocks(random_orders(count, bench.count, SEED), lead=lead, turns=turns, planned=count, until=until)
    return Planned(count, max(count, FEWEST_PAIRS)), blocks, milliseconds(times)


def _said(check: float | Check, first: Any, second: Any) -> str:
    """How the results differ, in words; empty if they do not."""
    from perfnb.bench.agreement import disagreement, holds_numbers

    if not callable(check):
        if not holds_numbers(first) or not holds_numbers(second):
            return (
                "nothing was compared, for a step returns no tensor and no number: return the loss, or give a function"
            )
        return disagreement(first, second, float(check))
    try:
        agrees = check(first, second)
    except AssertionError as error:
        return " ".join(str(error).split()) or "the check failed"
    return "the check says that they differ" if agrees is False else ""


def milliseconds(times: Sequence[Sequence[float]]) -> Floats:
    """Durations in nanoseconds, a row a step, as milliseconds."""
    return np.asarray(times, dtype=np.float64) / 1e6


def step_names(a: Callable[..., Any], b: Callable[..., Any]) -> tuple[str, str]:
    """What the two steps are called: a and b where they have no names, and with these where they have the same."""
    first, second = (str(getattr(step, "__name__", "<lambda>")) for step in (a, b))
    if first == second != "<lambda>":
        return f"{first} (a)", f"{second} (b)"
    return ("a" if first == "<lambda>" else first), ("b" if second == "<lambda>" else second)
