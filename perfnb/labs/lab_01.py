"""Checks for lab 1, *Measuring honestly*."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from perfnb.labs.answers import as_fields, as_function, as_number, as_pair, evidence, outcome, result_of
from perfnb.labs.exercise import Exercise, Facts, Hint
from perfnb.labs.judging import Number, Numbers, all_there, close, hint_if
from perfnb.labs.workloads import Machine, agree, time_ratio
from perfnb.quantities import share
from perfnb.results import ABTest

#: Minimum times of the test steps in milliseconds, for a step that sleeps and a step that computes.
ASLEEP_MS, AT_WORK_MS = 30.0, 20.0


def measure_clock(answer: Any) -> Facts:
    time_ms = as_function(answer, "time_ms(step)")
    return {"asleep": _timed(time_ms, lambda: time.sleep(ASLEEP_MS / 1e3)), "at work": _timed(time_ms, _spin)}


def _timed(time_ms: Callable[..., Any], work: Callable[[], None]) -> dict[str, float]:
    inside: list[float] = []

    def step() -> None:
        began = time.perf_counter()
        work()
        inside.append((time.perf_counter() - began) * 1e3)

    began = time.perf_counter()
    returned = result_of(time_ms, step)
    around = (time.perf_counter() - began) * 1e3
    return {"returned": returned, "inside": sum(inside), "around": around, "calls": len(inside)}


def _spin() -> None:
    until = time.perf_counter() + AT_WORK_MS / 1e3
    while time.perf_counter() < until:
        pass


def judge_clock(facts: Facts) -> None:
    for name in ("asleep", "at work"):
        case = facts[name]
        if case["calls"] != 1:
            raise Hint(f"The step ran {case['calls']} times; run it once, between two readings of the clock.")
        low, high = 0.98 * case["inside"], 1.02 * case["around"]
        for factor, unit in ((1e3, "seconds"), (1e-3, "microseconds"), (1e-6, "nanoseconds")):
            hint_if(low <= factor * case["returned"] <= high, f"The number looks like {unit}; return milliseconds.")
        if not low <= case["returned"] <= high:
            raise Hint(
                f"The step was {name} for at least {case['inside']:.1f} ms, but you returned {case['returned']:.3g}."
                " Does your clock keep running while the process waits, and do you subtract two readings?"
            )


#: True step time, cold steps and warm steps of each series that `typical` is tested on. The number of warm steps is
#: odd, so one of them is the median.
WARMED = ((10.0, 20, 41), (0.2, 7, 53), (300.0, 34, 29))


def measure_typical(answer: Any) -> Facts:
    typical = as_function(answer, "typical(times_ms, warmup)")
    generator = np.random.default_rng(1)
    cases = []
    for true_ms, cold, warm in WARMED:
        hiccups = np.arange(warm) % 9 == 0
        half, slow = warm // 2, int(hiccups.sum())
        # No other step is within 2 % of the median, so even the closest wrong value is clearly different.
        rest = [*np.linspace(0.8, 0.98, half), 1.0, *np.linspace(1.02, 1.2, half - slow)]
        times = np.empty(warm)
        times[hiccups], times[~hiccups] = np.linspace(3.9, 4.1, slow), generator.permutation(rest)
        series = true_ms * np.concatenate([np.linspace(4.0, 1.3, cold), times])
        said = result_of(typical, series.tolist(), cold)
        cases.append({"wanted": true_ms, "said": said, "of_all_ms": float(np.median(series))})
    return {"cases": cases}


def judge_typical(facts: Facts) -> None:
    every = Numbers(facts["cases"], len(WARMED), 2e-3)
    with_all = "Your figure is too high: it still includes the warm-up steps, which come first."
    every.slip(lambda case: case["of_all_ms"], with_all)
    for case in facts["cases"]:
        ratio = case["said"] / case["wanted"]
        if close(ratio, 1.0, 2e-3):
            continue
        if ratio > 1.2:
            raise Hint(
                f"You returned {ratio:.3g} times the typical step. Do a few slow steps pull your figure up? Which "
                "summary ignores how slow the slowest are, and are the warm-up steps gone?"
            )
        if ratio < 1 / 1.2:
            raise Hint(f"You returned {ratio:.2g} times the typical step; is it the minimum, or in another unit?")
        raise Hint(
            f"Your figure is slightly too {'high' if ratio > 1 else 'low'}. Do you drop exactly the warm-up steps, "
            "and are half of the others below your figure and half above?"
        )


#: Steps in a series that an interval is tested on, and, for each kind, the number of series and their true median. In
#: the second kind, every ninth step takes six times as long, which shifts the median of the mixture to this value.
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
    if slow:
        every[:, ::SLOW_EVERY] *= SLOWER
    ends = np.array([as_pair(outcome(interval, series.tolist()), "the low end and the high end") for series in every])
    low, high = ends.T
    ordered = np.sort(every)
    narrow = ordered[:, 38] - ordered[:, 22]  # a 95 % interval of the median of 61 steps
    at_one_place = [bool((every == end[:, None]).all(axis=0).any()) for end in (low, high)]
    return {
        "held": float(((low <= median) & (median <= high)).mean()),
        "width": float((high - low).mean() / narrow.mean()),
        "different": len(np.unique(ends, axis=0)),
        "reversed": float((low > high).mean()),
        "unsorted": all(at_one_place),
        "medians": bool(np.allclose(ends, np.median(every, axis=1)[:, None], rtol=1e-9, atol=0.0)),
    }


def judge_interval(facts: Facts) -> None:
    for name, (count, _) in SERIES.items():
        tried = facts[name]
        held, width = tried["held"], tried["width"]
        where = f" where every {SLOW_EVERY}th step takes {SLOWER:g} times as long" if name != "plain" else ""
        if tried["different"] < count / 2:  # random series hardly ever share an end
            raise Hint("Your interval is the same for different times: is it computed from the function's argument?")
        if tried["unsorted"]:
            raise Hint(
                "Your ends are always the times at the same two places of the series, in the order that the steps "
                "ran. Are the times sorted before you take two of them?"
            )
        if tried["reversed"]:
            above = share(tried["reversed"])
            raise Hint(f"The low end comes first; in {above} of the series your first end is above the second.")
        if tried["medians"]:
            raise Hint(
                "Both ends are always the median of the series itself. If you draw times at random, can the same one "
                "be drawn again, so that the draws differ?"
            )
        if held < 0.9:
            raise Hint(
                f"In {count} series of {STEPS} skewed times{where}, your interval contained the true median in "
                f"{share(held)}, not 95 %. Is it an interval of the median, not the mean, and wide enough?"
            )
        if held > 0.995 or width > 1.5:
            why = "Is it the range of single steps? The question is about the median."
            if where:
                why = "Slow steps inflate the standard deviation and thus any interval of the *mean*; an interval of "
                why += "the *median* depends only on the times around it."
            raise Hint(
                f"Your interval is {width:.1f} times as wide as necessary for series{where or ' of skewed times'} "
                f"(it contained the median in {share(held)} of them). {why}"
            )


#: The number of pairs that `compare` is asked to run, and the machines and true ratios that it is tested on.
PAIRS = 1000
WEATHERS, TRUE_RATIOS = ("steady", "slower and slower", "every second run slow"), (1.0, 0.8)


def measure_compare(answer: Any) -> Facts:
    compare = as_function(answer, "compare(run_a, run_b, pairs)")
    cases = []
    for weather in WEATHERS:
        for true in TRUE_RATIOS:
            machine = Machine(weather, seed=3)
            said = result_of(compare, machine.step(10.0, "a"), machine.step(10.0 * true, "b"), PAIRS)
            runs = [machine.runs[name] for name in ("a", "b")]
            cases.append({"weather": weather, "true": true, "returned": said, "runs": runs})
    return {"cases": cases}


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
                raise Hint("Your ratio is the wrong way round: give b's time divided by a's.")
            raise Hint(
                f"On a steady machine, where b takes {share(true)} of a's time, you returned {returned:.3g}. Is it "
                "a ratio, b's time divided by a's?"
            )
        raise Hint(
            f"On a '{weather}' machine, where b takes {share(true)} of a's time, you returned {returned:.3g}. In"
            " which order do they run, and is it the same each time?"
        )


def measure_aa(answer: Any, test: Any = None) -> Facts:
    detectable = as_number(evidence(test, ABTest).smallest_detectable, "smallest_detectable")
    return as_fields(answer, smallest_percent=float, sees_one_percent=bool) | {"detectable": detectable}


def judge_aa(facts: Facts) -> None:
    percent = Number(facts["smallest_percent"], 100.0 * facts["detectable"], 0.06)
    percent.wrong("smallest_percent is not the test's own figure, in percent.")
    if facts["sees_one_percent"] != (facts["detectable"] <= 0.01):
        raise Hint("sees_one_percent does not follow: is 1 % above or below the smallest detectable difference?")


CLAIMS, WORDS = ("mean", "square", "spread"), ("faster", "not shown", "wrong result")
#: Number of runs of each of the two functions. Below this ratio of their shortest times, one is certainly faster.
ROUNDS, SURELY = 40, 0.7


def measure_claims(answer: Any, claims: Any = None) -> Facts:
    if not isinstance(claims, Mapping) or not set(claims) >= set(CLAIMS):
        raise Hint(f"Pass the functions as well: claims=claims, made as in its cell, with {', '.join(CLAIMS)}.")
    if not isinstance(answer, Mapping) or set(answer) != set(claims):
        raise Hint(f"The answer must be a dictionary with the keys {', '.join(map(str, claims))}.")
    cases = {}
    for name, (before, after, make) in claims.items():
        inputs = [make() for _ in range(ROUNDS + 1)]
        cases[str(name)] = {
            "answer": str(answer[name]),
            "ratio": time_ratio(after, before, inputs),
            "same": agree(before(*inputs[0]), after(*inputs[0])),
        }
    return {"claims": cases}


def judge_claims(facts: Facts) -> None:
    hint_if(not set(facts["claims"]) >= set(CLAIMS), "The facts are incomplete.")
    for name, case in facts["claims"].items():
        hint_if(case["answer"] not in WORDS, f"The answer for {name} must be one of {', '.join(WORDS)}.")
        wanted = "wrong result" if not case["same"] else "faster" if case["ratio"] < SURELY else "not shown"
        if case["answer"] != wanted:
            raise Hint(
                f"Claim {name}: '{case['answer']}' contradicts a trial on this machine. Compare what both functions "
                "return for the same input, and look at the interval of an interleaved test."
            )


EXERCISES = (
    Exercise("1.1", "A stopwatch", measure_clock, judge_clock),
    Exercise("1.2", "The typical step", measure_typical, judge_typical),
    Exercise("1.3", "How certain is the median?", measure_interval, judge_interval),
    Exercise("1.4", "Two steps on a noisy machine", measure_compare, judge_compare),
    Exercise("1.5", "A step against itself", measure_aa, judge_aa),
    Exercise("1.6", "Three claims", measure_claims, judge_claims, timed=True),
)
