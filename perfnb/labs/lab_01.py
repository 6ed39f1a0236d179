"""Checks of lab 1, *Measuring honestly*."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from perfnb.labs.exercise import (
    Exercise,
    Facts,
    Hint,
    all_there,
    as_function,
    as_number,
    as_numbers,
    close,
    outcome,
    require_test,
    slip,
)
from perfnb.labs.workloads import Machine, agree, interleaved, one_thread
from perfnb.quantities import share

#: Milliseconds that the tried steps take at least, asleep and at work.
ASLEEP_MS, AT_WORK_MS = 30.0, 20.0


def measure_clock(answer: Any) -> Facts:
    time_ms = as_function(answer, "time_ms(step)")
    return {"asleep": _timed(time_ms, _sleep), "at work": _timed(time_ms, _spin)}


def _timed(time_ms: Callable[..., Any], work: Callable[[], None]) -> dict[str, float]:
    inside: list[float] = []

    def step() -> None:
        began = time.perf_counter()
        work()
        inside.append((time.perf_counter() - began) * 1e3)

    began = time.perf_counter()
    returned = outcome(time_ms, step)
    around = (time.perf_counter() - began) * 1e3
    said = as_number(returned, "The result of your function")
    return {"returned": said, "inside": sum(inside), "around": around, "calls": len(inside)}


def _sleep() -> None:
    time.sleep(ASLEEP_MS / 1e3)


def _spin() -> None:
    until = time.perf_counter() + AT_WORK_MS / 1e3
    while time.perf_counter() < until:
        pass


def judge_clock(facts: Facts) -> None:
    for name in ("asleep", "at work"):
        case = facts[name]
        if case["calls"] != 1:
            raise Hint(f"The step was run {case['calls']} times; run it once, between two readings of the clock.")
        low, high = 0.98 * case["inside"], 1.02 * case["around"]
        for factor, unit in ((1e3, "seconds"), (1e-3, "microseconds"), (1e-6, "nanoseconds")):
            if low <= factor * case["returned"] <= high:
                raise Hint(f"The number looks like {unit}; milliseconds are asked for.")
        if not low <= case["returned"] <= high:
            raise Hint(
                f"The step was {name} for at least {case['inside']:.1f} ms, and you returned {case['returned']:.3g}. "
                "Does your clock go on while the process waits, and do you take the difference of two readings?"
            )


#: The usual step, and how many steps come before the machine is warm and after, in the series that `typical` is tried
#: on; those after are odd in number, so that one of them is the median.
WARMED = ((10.0, 20, 41), (0.2, 7, 53), (300.0, 34, 29))


def measure_typical(answer: Any) -> Facts:
    typical = as_function(answer, "typical(times_ms, warmup)")
    generator = np.random.default_rng(1)
    cases = []
    for true_ms, cold, warm in WARMED:
        hiccups = np.arange(warm) % 9 == 0
        half, slow = warm // 2, int(hiccups.sum())
        # No step lies within 2 % of the median, so that what is nearly the median is told from it.
        rest = [*np.linspace(0.8, 0.98, half), 1.0, *np.linspace(1.02, 1.2, half - slow)]
        times = np.empty(warm)
        times[hiccups], times[~hiccups] = np.linspace(3.9, 4.1, slow), generator.permutation(rest)
        series = true_ms * np.concatenate([np.linspace(4.0, 1.3, cold), times])
        returned = as_number(outcome(typical, series.tolist(), cold), "The result of your function")
        cases.append({"true_ms": true_ms, "returned": returned, "of_all_ms": float(np.median(series))})
    return {"cases": cases}


def judge_typical(facts: Facts) -> None:
    for case in all_there(facts["cases"], len(WARMED)):
        returned, true = case["returned"], case["true_ms"]
        if close(returned, true, 2e-3):
            continue
        if close(returned, case["of_all_ms"], 2e-3):
            raise Hint("Your figure is too high: the warm-up steps, which come first, are still among the others.")
        if returned > 1.2 * true:
            raise Hint(
                f"You returned {returned / true:.3g} times the usual step. A few slow steps pull your figure up: which "
                "summary does not care how slow the slowest are, and are they all steps of the warm machine?"
            )
        if returned < true / 1.2:
            raise Hint(f"You returned {returned / true:.2g} times the usual step; is it the best, or in another unit?")
        raise Hint(
            f"Your figure is a little too {'high' if returned > true else 'low'}. Do you leave out the warm-up steps, "
            "as many as warmup says and no others, and are half of the rest shorter than your figure, and half longer?"
        )


#: Steps in a series on which an interval is tried; and by kind how many series there are, and their true median.
#: Every ninth step of the second kind takes six times as long, which is then the median of that mixture.
STEPS, SLOW_EVERY, SLOWER = 61, 9, 6.0
SERIES = {"plain": (200, 10.0), "with slow steps": (100, 10.8496)}


def measure_interval(answer: Any) -> Facts:
    interval = as_function(answer, "interval(times_ms)")
    generator = np.random.default_rng(2)
    return {
        name: _tried(interval, np.exp(generator.normal(0.0, 0.5, (count, STEPS))) * 10.0, median, slow=name != "plain")
        for name, (count, median) in SERIES.items()
    }


def _tried(interval: Callable[..., Any], every: Any, median: float, *, slow: bool) -> Facts:
    held, widths, narrow, ends_of = 0, [], [], set()
    if slow:
        every[:, ::SLOW_EVERY] *= SLOWER
    for series in every:
        returned = outcome(interval, series.tolist())
        if not isinstance(returned, Iterable) or len(ends := list(returned)) != 2:
            raise Hint("Return two numbers, the low end and the high end.")
        low, high = (as_number(end, "An end of the interval") for end in ends)
        if low > high:
            raise Hint("The low end comes first.")
        held += low <= median <= high
        widths.append(high - low)
        ends_of.add((low, high))
        ordered = np.sort(series)
        narrow.append(ordered[38] - ordered[22])  # holds the median of 61 steps in 95 of 100 cases
    return {
        "held": held / len(every),
        "width": float(np.mean(widths) / np.mean(narrow)),
        "different": len(ends_of),
    }


def judge_interval(facts: Facts) -> None:
    for name, (count, _) in SERIES.items():
        held, width = facts[name]["held"], facts[name]["width"]
        where = f" in which every {SLOW_EVERY}th step takes {SLOWER:g} times as long" if name != "plain" else ""
        if facts[name]["different"] < count / 2:  # of times at random, hardly two have an end in common
            raise Hint("Your interval is the same for other times: does it come from those that the function is given?")
        if held < 0.9:
            raise Hint(
                f"Of {count} series of {STEPS} skewed times with a known median{where}, your interval held it in "
                f"{share(held)}; 95 % are asked for. Is it an interval of the median (not of the mean), and wide "
                "enough?"
            )
        if held > 0.995 or width > 1.5:
            raise Hint(
                f"Your interval is {width:.1f} times as wide as it need be for series{where or ' of skewed times'} (it "
                f"held the median in {share(held)} of them). "
                + (
                    "A few slow steps make the standard deviation large, and with it any interval of the *mean*; how "
                    "sure the *median* is depends on the times next to it."
                    if where
                    else "It shows where single steps lie; the question is where the median lies."
                )
            )


#: Pairs that `compare` is asked for, and the machines and true ratios on which it is tried.
PAIRS = 1000
WEATHERS, TRUE_RATIOS = ("steady", "slower and slower", "every second run slow"), (1.0, 0.8)


def measure_compare(answer: Any) -> Facts:
    compare = as_function(answer, "compare(run_a, run_b, pairs)")
    cases = []
    for weather in WEATHERS:
        for true in TRUE_RATIOS:
            machine = Machine(weather, seed=3)
            runs: Counter[str] = Counter()
            steps = [_counting(machine.step(ms), runs, name) for name, ms in (("a", 10.0), ("b", 10.0 * true))]
            said = as_number(outcome(compare, *steps, PAIRS), "The result of your function")
            cases.append({"weather": weather, "true": true, "returned": said, "runs": [runs["a"], runs["b"]]})
    return {"cases": cases}


def _counting(step: Callable[[], float], runs: Counter[str], name: str) -> Callable[[], float]:
    def run() -> float:
        runs[name] += 1
        return step()

    return run


def judge_compare(facts: Facts) -> None:
    for case in all_there(facts["cases"], len(WEATHERS) * len(TRUE_RATIOS)):
        returned, true, weather = case["returned"], case["true"], case["weather"]
        if min(case["runs"]) < PAIRS:
            of_a, of_b = case["runs"]
            raise Hint(f"Your function ran a {of_a} times and b {of_b} times; run each {PAIRS} times.")
        if close(returned, true, 0.03):
            continue
        if weather == "steady":
            if close(returned, 1 / true, 0.03):
                raise Hint("It is the ratio the other way round: asked for is the time of b by the time of a.")
            raise Hint(
                f"On a steady machine, where b takes {share(true)} of a's time, you returned {returned:.3g}; asked for "
                "is a ratio."
            )
        raise Hint(
            f"On a machine with the weather '{weather}', where b takes {share(true)} of a's time, you returned "
            f"{returned:.3g}. In which order do you run them, and is that order the same each time?"
        )


def measure_aa(answer: Any, test: Any = None) -> Facts:
    given = require_test(test, "aa")
    said = as_numbers(answer, ("smallest_percent",))
    if not isinstance(answer.get("sees_one_percent"), (bool, np.bool_)):
        raise Hint("sees_one_percent must be True or False.")
    return {
        **said,
        "sees_one_percent": bool(answer["sees_one_percent"]),
        "detectable": as_number(given.smallest_detectable, "smallest_detectable"),
        "verdict": given.verdict,
        "ratio": given.ratio,
        "pairs": len(given.pairs),
    }


def judge_aa(facts: Facts) -> None:
    wanted = 100.0 * facts["detectable"]
    if not close(facts["smallest_percent"], wanted, 0.06):
        raise Hint(
            "smallest_percent is not what the test says of itself, in percent. "
            + slip(facts["smallest_percent"], wanted, 0.06)
        )
    if facts["sees_one_percent"] != (facts["detectable"] <= 0.01):
        raise Hint("sees_one_percent does not follow: is 1 % more or less than the smallest difference it can find?")


CLAIMS, WORDS = ("mean", "square", "spread"), ("faster", "not shown", "wrong result")
#: Times that each of two functions is run, and the ratio of their shortest times below which one is faster for sure.
ROUNDS, SURELY = 40, 0.7


def measure_claims(answer: Any, claims: Any = None) -> Facts:
    if not isinstance(claims, Mapping) or not set(claims) >= set(CLAIMS):
        raise Hint(f"Give the functions as well: claims=claims, made as in its cell, with {', '.join(CLAIMS)}.")
    if not isinstance(answer, Mapping) or set(answer) != set(claims):
        raise Hint(f"The answer is a dictionary with the keys {', '.join(map(str, claims))}.")
    cases = {}
    for name, (before, after, make) in claims.items():
        inputs = [make() for _ in range(ROUNDS + 1)]
        with one_thread():
            a_ms, b_ms = interleaved(before, after, inputs)
        cases[str(name)] = {
            "answer": str(answer[name]),
            "same": agree(before(*inputs[0]), after(*inputs[0])),
            "ratio": min(b_ms) / min(a_ms),
            "median_ratio": statistics.median(b_ms) / statistics.median(a_ms),
        }
    return {"claims": cases}


def judge_claims(facts: Facts) -> None:
    if not set(facts["claims"]) >= set(CLAIMS):
        raise Hint("The facts are incomplete.")
    for name, case in facts["claims"].items():
        if case["answer"] not in WORDS:
            raise Hint(f"The answer for {name} must be one of {', '.join(WORDS)}.")
        wanted = "wrong result" if not case["same"] else "faster" if case["ratio"] < SURELY else "not shown"
        if case["answer"] != wanted:
            raise Hint(
                f"Claim {name}: '{case['answer']}' does not agree with a trial on this machine. Look at both: what the "
                "two functions return for the same input, and the interval of a test that runs them in turns."
            )


EXERCISES = (
    Exercise("1.1", "A stopwatch", measure_clock, judge_clock),
    Exercise("1.2", "The typical step", measure_typical, judge_typical),
    Exercise("1.3", "How certain is the median?", measure_interval, judge_interval),
    Exercise("1.4", "Two steps on a noisy machine", measure_compare, judge_compare),
    Exercise("1.5", "A step against itself", measure_aa, judge_aa),
    Exercise("1.6", "Three claims", measure_claims, judge_claims, timed=True),
)
