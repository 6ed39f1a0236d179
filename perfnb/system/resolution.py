"""How small a difference this machine can detect, and what disturbs it: a step compared with itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfnb import quantities as fmt
from perfnb.bench.paired_times import PairedTimes
from perfnb.bench.pairs import time_pairs
from perfnb.bench.pairs_view import pairs_strip
from perfnb.draw import escape, tables
from perfnb.draw.as_html import section_html
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


class Resolution(PairedTimes, Shown):
    """A step compared with itself on this machine: the verdict should be ``same``. Shows itself in a notebook."""

    @property
    def noise_floor(self) -> float:
        """Spread of the ratio of two equal steps: half of all pairs are within it; 0.01 is 1 %."""
        return float(self.pairs["ratio"].sub(1).abs().median())

    @property
    def outliers(self) -> Outliers:
        """Outliers among the steps, by class."""
        return self.a.outliers

    def _text(self) -> str:
        lines = [line for sentence in _sentences(self) for line in escape.wrapped(sentence, 100)]
        found = ", ".join(f"{least} in {seconds}" for seconds, least in _rows(self))
        return "\n".join([*lines, f"{_LEAST}: {found}."])

    def _line(self) -> str:
        return f"{self.verdict}, noise floor {fmt.share(self.noise_floor)}"

    def _html(self) -> str:
        first, more, *rest = _sentences(self)
        words = header("The machine", "resolution", first, more, " ".join(rest))
        rows = [(escape.html(seconds), escape.html(least)) for seconds, least in _rows(self)]
        details = f"<details><summary>The experiment</summary>{section_html(pairs_strip(self))}</details>"
        return framed(f"{words}{tables.table(_LEAST, ['length of the test', 'difference'], rows)}{details}")


def find_resolution(step: Callable[[], Any] | None, budget_s: float) -> Resolution:
    """Compare a step with itself, by default a training step of a small model, which takes a few milliseconds."""
    __tracebackhide__ = True
    chosen = _small_step() if step is None else step
    return Resolution(**vars(time_pairs(chosen, chosen, None, ("a step", "itself"), budget_s=budget_s)))


def _sentences(found: Resolution) -> list[str]:
    """The results, most important first."""
    count = len(found.a_ms)
    sentences = [
        f"A step compared with itself: {found.verdict}, {_MEANING[found.verdict]}.",
        f"The ratio is {fmt.relative(found.ratio, found.ratio_ci)} over {fmt.counted(count, 'pair')} of steps that "
        f"take {fmt.duration(found.a.median_ms)}.",
        f"Noise floor: half of all single pairs differ by more than {fmt.share(found.noise_floor)}.",
    ]
    if found.outliers.count:
        sentences.append(f"{found.outliers}.")
    noise = noise_facts(found.noise)
    switches = found.noise.get("involuntary_switches")
    if switches:
        noise.append(f"the system preempted the process {switches:,} times in {2 * found.turns * count:,} steps")
    disturbances = [f"{fmt.capital(fact)}." for fact in noise]
    return [*sentences, *(disturbances or ["No disturbance was detected."])]


def _rows(found: Resolution) -> list[tuple[str, str]]:
    return [(f"{seconds} s", fmt.share(found.detectable_in(seconds))) for seconds in SECONDS]


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
