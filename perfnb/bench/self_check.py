"""`selfcheck`: how small a difference this machine can detect, and what disturbs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfnb import quantities as fmt
from perfnb.bench.ab_view import ab_body
from perfnb.bench.comparison import ABTest, ab_test
from perfnb.bench.design import detectable_in
from perfnb.draw import escape, tables
from perfnb.draw.frame import framed, header
from perfnb.draw.shown import Shown
from perfnb.profile.timing import noise_facts
from perfnb.stats.step_times import Outliers

#: Lengths of a test for which the smallest detectable difference is shown.
SECONDS = (10, 60)
_LEAST = "Smallest difference that a test of this step detects in 9 of 10 runs"
_FALSE_ALARM = "a false positive, as happens in 1 of 20 runs; if it happens again, do not trust comparisons here"
_MEANING = {
    "same": "as expected",
    "inconclusive": "because the machine is too noisy at the moment",
    "faster": _FALSE_ALARM,
    "slower": _FALSE_ALARM,
}


class SelfCheck(Shown):
    """A step compared with itself on this machine. Shows itself in a notebook."""

    def __init__(self, test: ABTest) -> None:
        self._test = test

    @property
    def test(self) -> ABTest:
        """The experiment; its verdict should be ``same``."""
        return self._test

    @property
    def noise_floor(self) -> float:
        """Spread of the ratio of two equal steps: half of all pairs are within it; 0.01 is 1 %."""
        percent = self._test.pairs["ratio"].sub(1).abs()
        return float(percent.median())

    def detectable_in(self, seconds: float) -> float | None:
        """Smallest relative difference that a test this long detects in 9 of 10 runs; ``None`` if unknown."""
        return detectable_in(self._test._figures, seconds)

    @property
    def outliers(self) -> Outliers:
        """Outliers among the steps, by class."""
        return self._test.a.outliers

    def _text(self) -> str:
        lines = [line for sentence in _sentences(self) for line in escape.wrapped(sentence, 100)]
        found = ", ".join(f"{least} in {seconds}" for seconds, least in _rows(self))
        return "\n".join([*lines, f"{_LEAST}: {found}."])

    def _line(self) -> str:
        return f"{self._test.verdict}, noise floor {fmt.share(self.noise_floor)}"

    def _html(self) -> str:
        first, more, *rest = _sentences(self)
        words = header("The machine", "self-check", first, more, " ".join(rest))
        rows = [(escape.html(seconds), escape.html(least)) for seconds, least in _rows(self)]
        details = f"<details><summary>The experiment</summary>{ab_body(self._test._figures)}</details>"
        return framed(f"{words}{tables.table(_LEAST, ['length of the test', 'difference'], rows)}{details}")


def selfcheck(step: Callable[[], Any] | None = None, *, budget_s: float = 10.0) -> SelfCheck:
    """Compare a step with itself, to find out how far comparisons on this machine can be trusted.

    Parameters
    ----------
    step : callable, optional
        By default a training step of a small model, which takes a few milliseconds.
    budget_s : float
        Seconds that the check may take.
    """
    from perfnb.step.checks import require_steps

    __tracebackhide__ = True
    chosen = _small_step() if step is None else step
    require_steps({"step": chosen}, None, "")
    return SelfCheck(ab_test(_named(chosen, "a step"), _named(chosen, "itself"), budget_s=budget_s))


def _sentences(check: SelfCheck) -> list[str]:
    """The results, most important first."""
    test = check.test
    timing, count = test.a, len(test.pairs)
    sentences = [
        f"A step compared with itself: {test.verdict}, {_MEANING[test.verdict]}.",
        f"The ratio is {fmt.relative(test.ratio, test.ratio_ci)} over {fmt.counted(count, 'pair')} of steps that take "
        f"{fmt.duration(timing.median_ms)}.",
        f"Noise floor: half of all single pairs differ by more than {fmt.share(check.noise_floor)}.",
    ]
    if check.outliers.count:
        sentences.append(f"{check.outliers}.")
    noise = noise_facts(timing.noise)
    switches = timing.noise.get("involuntary_switches")
    if switches:
        noise.append(f"the system preempted the process {switches:,} times in {2 * test.turns * count:,} steps")
    told = [f"{fmt.capital(fact)}." for fact in noise]
    return [*sentences, *(told or ["No disturbance was detected."])]


def _rows(check: SelfCheck) -> list[tuple[str, str]]:
    return [(f"{seconds} s", fmt.share(check.detectable_in(seconds))) for seconds in SECONDS]


def _named(step: Callable[[], Any], name: str) -> Callable[[], Any]:
    def run() -> Any:
        __tracebackhide__ = True
        return step()

    run.__name__ = name
    return run


def _small_step() -> Callable[[], None]:
    """A training step of an MLP."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
        batch, target = torch.randn(256, 256), torch.randint(10, (256,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), target).backward()
        optimizer.step()

    return train
