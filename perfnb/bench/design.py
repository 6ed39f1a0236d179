"""Design experiments by choosing the length of the warm-up, the number of rounds or blocks, and their order.

The steps are run by a `Bench` or `InputTrial` that is passed in, so this module does not need torch.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfnb.bench.paired_times import BlockPlan
from perfnb.stats.intervals import FEWEST_PAIRS, Floats
from perfnb.stats.planning import Planned, plan_pairs, plan_pairs_blindly
from perfnb.step.budget import FEWEST, WARMUP_SHARE, is_steady, require_passing_time, steady_from

#: The maximum number of warm-up steps.
MOST_WARMUP = 200
#: The number of pilot rounds, which do not count towards the result, and the share of the budget after which the pilot
#: ends.
PILOT_PAIRS, PILOT_SHARE = 10, 0.4
#: The maximum number of pairs, however short the steps are, and the number of pairs if the pilot is a single pair,
#: which has no spread.
MOST_PAIRS, MOST_UNPLANNED = 10_000, 100
#: The minimum duration of the counted part of a block; the maximum number of turns in it (more turns average out
#: prefetched batches better) as long as this many rounds still fit; and the maximum number of rounds.
BLOCK_MS, LONGEST_BLOCK, ROUNDS_WANTED, MOST_BLOCKS = 20.0, 64, 12, 40
#: Parameters for detecting hidden prefetching: the number of pairs; the number of parts in a back-to-back run, its
#: maximum number of turns, and its share of the budget; and how many times as long a turn must take back to back.
ROW_PAIRS, ROW_PARTS, LONGEST_ROW, ROW_SHARE, SLOWER_BACK_TO_BACK = 8, 4, 64, 0.1, 1.3
#: The seeds for the order within rounds. Fixed seeds make a run repeatable.
SEED, INPUT_SEED = 20260101, 20260102
#: Parameters of an input trial: the shares of the budget after which the warm-up and the measurement of the loader's
#: pace end, and the maximum numbers of rounds, of warm-up steps, and of steps per block.
INPUT_WARMUP_SHARE, PACE_SHARE, MOST_ROUNDS, MOST_INPUT_WARMUP, MOST_STEPS = 0.15, 0.25, 40, 30, 64


@dataclass(frozen=True)
class Prefetching:
    """A mechanism that prepares batches for a step while other steps run."""

    # "worker processes", "processes", "threads", or "something" hidden that slows back-to-back turns
    who: str
    ahead: int  # the maximum number of turns that it may have prefetched batches for


def random_orders(count: int, steps: int, seed: int) -> Iterator[list[int]]:
    """Yield a random order of the steps for each of `count` rounds. All orders are equally likely."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        yield generator.permutation(steps).tolist()


def warm_up(bench: Any, begin: float, budget_s: float) -> bool | None:
    """Run rounds until every step is steady, for at most a fifth of the budget, and keep the last results."""
    __tracebackhide__ = True
    series: list[list[float]] = []
    while len(series) < MOST_WARMUP:
        order = range(bench.count) if len(series) % 2 else reversed(range(bench.count))
        series.append(bench.rounds([list(order)], pass_name="warmup", keep_results=True)[:, 0].tolist())
        if time.perf_counter() - begin > WARMUP_SHARE * budget_s and len(series) > 1:
            break
        if all(steady_from(times) is not None for times in zip(*series, strict=True)):
            return True
    for times in zip(*series, strict=True):
        require_passing_time(times)
    verdicts = [is_steady(times) for times in zip(*series, strict=True)]
    return None if None in verdicts else all(verdicts)


def planned_rounds(
    bench: Any, begin: float, budget_s: float, equal_within: float, power: float = 0.9
) -> tuple[Planned, Floats]:
    """Plan, from a pilot, how many rounds distinguish any two steps with probability `power`, and run them.

    Returns
    -------
    Planned, ndarray
        The milliseconds, with a row per step and a column per round.
    """
    __tracebackhide__ = True
    count = bench.count
    orders = random_orders(PILOT_PAIRS, count, SEED + 1)
    pilot = bench.rounds(orders, pass_name="pilot", until=begin + PILOT_SHARE * budget_s)
    # Use the median, because one slow round must not reduce the experiment to a tenth of the budget.
    round_s, left_s = float(np.median(pilot.sum(axis=0))) / 1e3, max(0.0, begin + budget_s - time.perf_counter())
    logs = np.log(pilot)
    differences = [logs[b] - logs[a] for a, b in itertools.combinations(range(count), 2)] or [logs[0]]
    plans = [
        plan_pairs(each, equal_within=equal_within, power=power, budget_s=left_s, pair_s=round_s, most=MOST_PAIRS)
        if len(each) > 1
        else plan_pairs_blindly(budget_s=left_s, pair_s=round_s, most=MOST_UNPLANNED)
        for each in differences
    ]
    plan = max(plans, key=lambda each: each.needed)
    # Stop at twice the time that the pilot predicted.
    until = time.perf_counter() + 2 * max(left_s, round_s)
    return plan, bench.rounds(random_orders(plan.count, count, SEED), planned=plan.count, until=until)


def planned_blocks(
    bench: Any, begin: float, budget_s: float, found: Prefetching, turn_ms: Floats | None = None
) -> tuple[Planned, BlockPlan, Floats]:
    """Plan, from a pilot, how long blocks must be and how many of them the budget allows, and run them.

    Parameters
    ----------
    turn_ms : ndarray, optional
        Milliseconds per turn of each step when run back to back, if already measured.

    Returns
    -------
    Planned, BlockPlan, ndarray
        Milliseconds per turn, with a row per step and a column per round.
    """
    __tracebackhide__ = True
    if turn_ms is None:
        turn_ms = _pilot_blocks(bench, begin, budget_s, found.ahead)
    # Count at least twice as many turns as there may be prefetched batches. Then at least half of the batches are made
    # during the block.
    lead, turns, count, round_s = found.ahead, 2 * found.ahead, 0, None
    left_s = max(0.0, begin + budget_s - time.perf_counter())
    if turn_ms is not None:
        round_ms = float(turn_ms.sum())
        affordable = left_s * 1e3 / ROUNDS_WANTED / round_ms - lead
        wanted = max(BLOCK_MS / float(turn_ms.min()), min(affordable, LONGEST_BLOCK))
        turns = lead * max(2, math.ceil(wanted / lead))
        round_s = (lead + turns) * round_ms / 1e3
        count = min(MOST_BLOCKS, int(left_s / round_s))
    most_s = 2 * left_s
    if count == 0:  # there is no time for a block, so run one pair of turns, which allows no conclusion
        count, lead, turns = 1, 0, 1
    elif count < FEWEST_PAIRS:  # if something slowed the pilot, enough pairs for a verdict may fit after all
        count, most_s = FEWEST_PAIRS, left_s
    blocks = BlockPlan(found.who, lead, turns, round_s)
    until = time.perf_counter() + most_s
    times = bench.blocks(random_orders(count, bench.count, SEED), lead=lead, turns=turns, planned=count, until=until)
    return Planned(count, max(count, FEWEST_PAIRS)), blocks, times


def _pilot_blocks(bench: Any, begin: float, budget_s: float, lead: int) -> Floats | None:
    """Return each step's milliseconds per turn once prefetched batches are used up, or ``None`` if time runs short."""
    __tracebackhide__ = True
    size = 1
    while True:  # blocks become longer and longer, because the duration of a turn is not known yet
        order = list(range(bench.count)) if size.bit_length() % 2 else list(reversed(range(bench.count)))
        pilot: Floats = bench.blocks([order], lead=size // 2, turns=size - size // 2, pass_name="pilot")
        if size >= 2 * lead:
            return pilot[:, 0]
        if time.perf_counter() - begin > PILOT_SHARE * budget_s:
            return None
        size *= 2


def slower_back_to_back(bench: Any, budget_s: float) -> tuple[Prefetching, Floats] | None:
    """Detect hidden prefetching, which makes a step take longer back to back than interleaved with another step.

    A busy machine slows turns as well. A step must therefore be slower twice: each of its back-to-back runs must be
    slower than the interleaved turns before, between and after them. The check is skipped if steps are so long that it
    would take more than a small share of the budget.

    Returns
    -------
    Prefetching, ndarray
        The array contains each step's milliseconds per turn when run back to back.
    """
    __tracebackhide__ = True

    def interleaved(seed: int) -> Floats:
        until = time.perf_counter() + ROW_SHARE * budget_s
        times = bench.rounds(random_orders(ROW_PAIRS, bench.count, seed), pass_name="pilot", until=until)
        return np.asarray(np.maximum(times.mean(axis=1), np.median(times, axis=1)))

    usual = interleaved(SEED + 2)
    half = int(min(LONGEST_ROW, ROW_SHARE * budget_s * 1e3 / float(usual.sum())) / 2)
    if half < ROW_PARTS:
        return None
    slower = np.ones(bench.count, dtype=bool)
    for attempt in range(2):
        orders, part = random_orders(1, bench.count, SEED + 4 + attempt), half // ROW_PARTS
        row = bench.blocks(orders, lead=half, turns=part, parts=ROW_PARTS, pass_name="pilot")
        slower &= row.min(axis=1) > SLOWER_BACK_TO_BACK * usual
        if not slower.any():
            return None
        usual = np.maximum(usual, interleaved(SEED + 6 + attempt))
        slower &= row.min(axis=1) > SLOWER_BACK_TO_BACK * usual
    return (Prefetching("something", half), row.mean(axis=1)) if slower.any() else None


def input_rounds(
    trial: Any, kinds: Sequence[str], begin: float, budget_s: float, progress: Callable[..., object]
) -> tuple[dict[str, list[float]], int]:
    """Warm up, choose the block length, and run rounds that consist of one block of each kind in random order.

    Returns
    -------
    dict of str to list of float, int
        Milliseconds per step in each round, by kind, and the number of steps in a block.
    """
    __tracebackhide__ = True
    end = begin + budget_s
    model_ms = _warm_up_input(trial, begin + INPUT_WARMUP_SHARE * budget_s, progress)
    pace_ms = trial.find_pace(begin + PACE_SHARE * budget_s)
    steps = _steps_of_a_block(trial, kinds, model_ms, pace_ms, end)
    rounds: dict[str, list[float]] = {kind: [] for kind in kinds}
    started = time.perf_counter()
    for done, order in enumerate(random_orders(MOST_ROUNDS, len(kinds), INPUT_SEED), start=1):
        row: dict[str, float] = {}
        for place in order:
            if done > 1 and time.perf_counter() > end:
                return rounds, steps  # an incomplete round does not count
            row[kinds[place]] = trial.block(kinds[place], steps)
        for kind in kinds:
            rounds[kind].append(row[kind])
        now = time.perf_counter()
        # The number of rounds depends only on time, never on the results.
        planned = min(MOST_ROUNDS, done + max(0, int((end - now) / (now - started) * done)))
        progress("timed", done, planned)
        if planned == done:
            break
    return rounds, steps


def _warm_up_input(trial: Any, until: float, progress: Callable[..., object]) -> float:
    """Run the model until its steps are steady, and return the milliseconds of the last step."""
    __tracebackhide__ = True
    times: list[float] = []
    while len(times) < MOST_INPUT_WARMUP and (len(times) < 2 or time.perf_counter() < until):
        times.append(trial.block("model", 1))
        progress("warmup", len(times))
        if len(times) >= FEWEST and is_steady(times):
            break
    require_passing_time(times)
    return times[-1]


def _steps_of_a_block(trial: Any, kinds: Sequence[str], model_ms: float, pace_ms: float, end: float) -> int:
    """Choose the number of steps per block. It is a multiple of the number of workers, which deliver in bursts."""
    __tracebackhide__ = True
    workers: int = max(1, trial.workers)
    pilot, pilot_begin = max(2, workers), time.perf_counter()
    if pilot_begin + pilot * (3 * model_ms + 5 * pace_ms) / 1e3 > end:
        return workers  # there is not even enough time for the pilot
    each_ms: dict[str, float] = {kind: trial.block(kind, pilot) for kind in kinds}
    overhead_s = max(0.0, time.perf_counter() - pilot_begin - pilot * sum(each_ms.values()) / 1e3)
    round_ms = max(1e-3, sum(each_ms.values()))
    left_s = max(0.0, end - time.perf_counter())
    wanted = max(2 * workers, 4, math.ceil(BLOCK_MS / max(1e-3, min(each_ms["together"], BLOCK_MS))))
    affordable = int(max(0.0, left_s / ROUNDS_WANTED - overhead_s) * 1e3 / round_ms)
    return max(1, min(wanted, affordable, MOST_STEPS) // workers) * workers
