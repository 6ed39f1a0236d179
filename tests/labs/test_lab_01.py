"""Lab 1: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfnb.labs import lab_01, workloads
from perfnb.labs.ledger import exercise_of
from tests.labs.judging import an_ab_test, expect, hint, said_of
from tests.labs.planted import Clock, plant

Number = Callable[..., Any]


class Works(Clock):
    """One that spins is done after some hundred looks at the clock."""

    def perf_counter(self) -> float:
        self.now += 1e-4
        self.used += 1e-4
        return self.now


CLOCK = Works()


@pytest.fixture
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_01, "time", CLOCK)


def clocked(clock: Callable[[], float], factor: float, runs: int = 1) -> Number:
    def time_ms(step: Callable[[], None]) -> float:
        began = clock()
        for _ in range(runs):
            step()
        return (clock() - began) * factor

    return time_ms


def remembering() -> Number:
    """Measures once and says the same ever after."""
    known: list[float] = []

    def time_ms(step: Callable[[], None]) -> float:
        if not known:
            known.append(clocked(CLOCK.perf_counter, 1e3)(step))
        return known[0]

    return time_ms


@pytest.mark.usefixtures("_clock")
@pytest.mark.parametrize("clock", [CLOCK.perf_counter, CLOCK.monotonic])
def test_a_stopwatch_is_accepted(clock: Callable[[], float]) -> None:
    assert hint("1.1", clocked(clock, 1e3)) == ""


@pytest.mark.usefixtures("_clock")
def test_a_stopwatch_times_a_step_of_each_kind() -> None:
    facts = exercise_of("1.1").measure(clocked(CLOCK.perf_counter, 1e3))

    asleep = {"inside": 30.1, "returned": 30.3, "around": 30.5, "calls": 1}  # each look at the clock takes 0.1 ms
    at_work = {"inside": 20.2, "returned": 20.4, "around": 20.6, "calls": 1}
    assert facts["asleep"] == pytest.approx(asleep, rel=1e-6)
    assert facts["at work"] == pytest.approx(at_work, abs=0.11)  # one look more or less, by rounding


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (clocked(CLOCK.perf_counter, 1.0), "seconds"),
        (clocked(CLOCK.process_time, 1e3), "waits"),
        (clocked(CLOCK.perf_counter, 1e3, runs=2), "2 times"),
        (remembering(), "0 times"),
        (0.25, "function itself"),
    ],
)
@pytest.mark.usefixtures("_clock")
def test_a_wrong_stopwatch_is_not(answer: Any, says: str) -> None:
    assert says in hint("1.1", answer)


def test_the_usual_step_is_accepted() -> None:
    assert hint("1.2", lambda times, warmup: statistics.median(times[warmup:])) == ""
    assert hint("1.2", lambda times, warmup: np.median(times[warmup:])) == ""
    assert hint("1.2", lambda times, warmup: sorted(times[warmup:])[(len(times) - warmup) // 2]) == ""


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda times, warmup: statistics.mean(times[warmup:]), "Do a few slow steps pull your figure up"),
        (lambda times, warmup: min(times[warmup:]), "the minimum"),
        (lambda times, warmup: statistics.median(times), "still includes"),
        (lambda times, warmup: statistics.median(times[:-warmup]), "warm-up steps gone"),
        (lambda times, warmup: statistics.median(times[:warmup]), "warm-up steps gone"),
        (lambda times, warmup: statistics.median(times[warmup + 1 :]), "drop exactly"),
        (lambda times, warmup: np.quantile(times[warmup:], 0.4), "too low"),
        (lambda times, warmup: np.quantile(times[warmup:], 0.55), "too high"),
        (lambda times, warmup: statistics.median(times[warmup:]) / 1e3, "another unit"),
    ],
)
def test_another_figure_is_not(answer: Number, says: str) -> None:
    assert says in hint("1.2", answer)


def order_statistics(times: list[float]) -> tuple[float, float]:
    ordered = sorted(times)
    return ordered[22], ordered[38]


def of_logarithms(times: list[float]) -> list[float]:
    """The standard error of the mean, of logarithms: right where those are normal, as all are without slow steps."""
    logarithms = np.log(times)
    error = 1.96 * logarithms.std(ddof=1) / len(times) ** 0.5
    return np.exp(logarithms.mean() + np.array([-error, error])).tolist()


def test_the_interval_of_the_median_is_the_width_to_compare_with() -> None:
    facts = exercise_of("1.3").measure(order_statistics)

    assert [series["width"] for series in facts.values()] == [1.0, 1.0]
    assert [series["different"] for series in facts.values()] == [200, 100]


def test_an_interval_holds_its_ends() -> None:
    for ends, held in (((10.0, 10.0), 1.0), ((9.0, 9.99), 0.0), ((10.01, 11.0), 0.0)):
        facts = exercise_of("1.3").measure(lambda times, ends=ends: ends)["plain"]
        assert (facts["held"], facts["different"], facts["reversed"]) == (held, 1, 0.0)
    assert exercise_of("1.3").measure(lambda times: (11.0, 10.0))["plain"]["reversed"] == 1.0


def test_slow_steps_alone_tell_the_mean_of_logarithms_from_the_median() -> None:
    """Its interval is no wider than it need be, but lies too high."""
    found = hint("1.3", of_logarithms)

    assert "every 9th step takes 6 times as long, your interval contained the true median in 79 %" in found


def by_the_standard_error(times: list[float]) -> tuple[float, float]:
    """Near an interval of the median where no step is very slow."""
    middle, spread = statistics.median(times), 1.96 * statistics.stdev(times) / len(times) ** 0.5
    return middle - spread, middle + spread


def without_replacement(times: list[float]) -> list[float]:
    generator = np.random.default_rng(0)
    draws = [np.median(generator.choice(times, len(times), replace=False)) for _ in range(100)]
    return np.quantile(draws, [0.025, 0.975]).tolist()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda times: (times[22], times[38]), "Are the times sorted"),
        (lambda times: (times[30], times[30]), "Are the times sorted"),
        (lambda times: sorted((times[22], times[38])), "not 95 %"),
        (without_replacement, "can the same one be drawn again"),
        (lambda times: (statistics.median(times),) * 2, "always the median of the series"),
        (lambda times: tuple(reversed(order_statistics(times))), "in 100 % of the series your first end"),
        (lambda times: np.quantile(times, [0.25, 0.75]), "Is it the range of single steps"),
        (by_the_standard_error, "any interval of the *mean*"),
        (lambda times: (9.0, 11.0), "the same for different times"),
        (statistics.median, "Return two numbers"),
        (order_statistics, ""),
    ],
)
def test_the_hint_fits_the_interval(answer: Number, says: str) -> None:
    expect("1.3", says, answer)


def in_turns(choose: Callable[[int], bool], combine: Callable[[list[float], list[float]], float]) -> Number:
    """Runs a first in the pairs that `choose` names."""

    def compare(run_a: Callable[[], float], run_b: Callable[[], float], pairs: int) -> float:
        a_ms, b_ms = [], []
        for pair in range(pairs):
            for run, times in ((run_a, a_ms), (run_b, b_ms)) if choose(pair) else ((run_b, b_ms), (run_a, a_ms)):
                times.append(run())
        return combine(a_ms, b_ms)

    return compare


def paired(a_ms: list[float], b_ms: list[float]) -> float:
    return statistics.median(b / a for a, b in zip(a_ms, b_ms, strict=True))


def of_medians(a_ms: list[float], b_ms: list[float]) -> float:
    return statistics.median(b_ms) / statistics.median(a_ms)


TURNS = in_turns(lambda pair: pair % 2 == 0, paired)


def one_after_the_other(run_a: Callable[[], float], run_b: Callable[[], float], pairs: int) -> float:
    return of_medians([run_a() for _ in range(pairs)], [run_b() for _ in range(pairs)])


def tossed(seed: int) -> Callable[[int], bool]:
    generator = np.random.default_rng(seed)
    return lambda pair: bool(generator.random() < 0.5)


@pytest.mark.parametrize("answer", [TURNS, in_turns(tossed(0), paired), in_turns(tossed(1), of_medians)])
def test_pairs_in_changing_order_are_accepted(answer: Number) -> None:
    assert hint("1.4", answer) == ""


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (one_after_the_other, "order"),
        (in_turns(lambda pair: True, paired), "order"),
        (in_turns(lambda pair: pair % 2 == 0, lambda a, b: 1 / paired(a, b)), "wrong way round"),
        (in_turns(lambda pair: pair % 2 == 0, lambda a, b: statistics.median(b) - statistics.median(a)), "a ratio"),
        (lambda run_a, run_b, pairs: run_b() / run_a(), "ran a 1 times and b 1 times"),
        (lambda run_a, run_b, pairs: TURNS(run_a, run_a, pairs), "b 0 times"),
    ],
)
def test_other_comparisons_are_not(answer: Number, says: str) -> None:
    assert says in hint("1.4", answer)


def an_aa_test(detectable: float) -> Any:
    return an_ab_test(a_ms=[1.0] * 8, b_ms=[1.0] * 8, check=None, smallest_detectable=detectable)


@pytest.mark.parametrize(("percent", "sees", "says"), [(..., ..., "no answer"), (3.7, ..., "True or False")])
def test_what_it_could_not_is_not(percent: Any, sees: Any, says: str) -> None:
    assert says in hint("1.5", {"smallest_percent": percent, "sees_one_percent": sees}, test=an_aa_test(0.037))


def test_a_test_is_needed() -> None:
    answer = {"smallest_percent": 3.7, "sees_one_percent": False}
    assert hint("1.5", answer, test=an_aa_test(0.037)) == ""
    made_up = SimpleNamespace(smallest_detectable=0.037, ratio_ci=(0.9, 1.1), verdict="same", ratio=1.0, pairs=[1] * 8)

    assert "test=NAME" in hint("1.5", answer, test=made_up)
    assert "test=NAME" in hint("1.5", answer, test=0.037)


def mean_by_row(x: Any) -> Any:
    return np.stack([row.mean() for row in x])


def squares(x: Any) -> Any:
    return (x * x).sum(1)


CLAIMED: dict[str, Any] = {
    "mean": (mean_by_row, lambda x: x.mean(1), lambda: (np.random.default_rng(0).standard_normal((4, 16)),)),
    "square": (squares, lambda x: (x * x).sum(1), lambda: (np.random.default_rng(0).standard_normal((4, 16)),)),
    "spread": (lambda x: x.std(1), lambda x: x[:, ::8].std(1), lambda: (np.arange(64.0).reshape(4, 16) ** 2,)),
}
RIGHT = {"mean": "faster", "square": "not shown", "spread": "wrong result"}


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The second function of the first claim takes a tenth of the time, and those of the second as long."""

    def interleaved(a: Any, b: Any, inputs: Any) -> tuple[list[float], list[float]]:
        return [10.0] * len(inputs), [1.0 if a is mean_by_row else 10.0] * len(inputs)

    monkeypatch.setattr(workloads, "interleaved", interleaved)
    return CLAIMED


def test_the_three_claims_are_judged(claims: dict[str, Any]) -> None:
    assert hint("1.6", RIGHT, claims=claims) == ""


def test_each_claim_is_tried_in_forty_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    given = plant(monkeypatch, 10.0, 5.0)
    facts = exercise_of("1.6").measure(RIGHT, claims=CLAIMED)["claims"]

    assert [*map(len, given)] == [40] * 3
    assert facts == {name: {"answer": RIGHT[name], "ratio": 0.5, "same": name != "spread"} for name in RIGHT}


def test_no_claims_are_none_judged(claims: dict[str, Any]) -> None:
    assert "mean, square, spread" in hint("1.6", {}, claims={})
    assert "mean, square, spread" in hint("1.6", {"mean": "faster"}, claims={"mean": claims["mean"]})
    assert "claims=claims" in hint("1.6", RIGHT, claims=3)


@pytest.mark.parametrize(
    ("change", "says"),
    [({"spread": "faster"}, "Claim spread"), ({"mean": "quicker"}, "one of"), ({"other": "faster"}, "keys")],
)
def test_a_misjudged_claim_gets_a_hint(claims: dict[str, Any], change: dict[str, str], says: str) -> None:
    assert says in hint("1.6", RIGHT | change, claims=claims)


def test_other_claims_do_not_stand_for_the_three(claims: dict[str, Any]) -> None:
    facts = exercise_of("1.6").measure(RIGHT, claims=claims)["claims"]
    for name in RIGHT:
        others = {f"another {key}" if key == name else key: case for key, case in facts.items()}
        assert "incomplete" in said_of("1.6", {"claims": others})
    assert said_of("1.6", {"claims": facts | {"another": facts["mean"]}}) == ""
