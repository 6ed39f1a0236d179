"""What a step time says of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from perfnb.draw.as_text import document_text
from perfnb.draw.document import Series, Strip
from perfnb.profile.timing import noise_facts, shown
from perfnb.stats.step_times import StepTimes
from tests.samples import texts
from tests.samples.bench import DOCUMENTS

NOISE = {"cpus": 2, "load_before": 1.9, "gc_share": 0.04, "cpu_mhz_before": 3000, "cpu_mhz_after": 2000}
TIMES = StepTimes((10.0, 10.2, 10.1, 40.0) * 25, 32, 3200, (30.0, 12.0), True, NOISE)


def test_the_time_comes_first_and_what_disturbed_it_last() -> None:
    document = shown(TIMES)._document()
    assert (document.verdict.state, document.verdict.sentence) == ("good", "A step takes 10.1 ms [10.1, 10.2]")
    assert [figure.label for figure in document.figures] == ["step", "throughput", "p95"]
    assert document.figures[0].basis == "95 % interval, median of 100 timed steps"
    assert document.facts == ("steady after 2 warm-up steps", "25 outliers among 100 steps: 25 high mild")
    assert document.notes == (
        "Garbage collection took 4.0 %.",
        "The machine was already busy (load 1.9 on 2 CPUs).",
        "The CPU clock changed from 3,000 to 2,000 MHz.",
    )
    strip, order = document.sections
    assert isinstance(strip, Strip)
    assert isinstance(order, Series)
    assert [*strip.groups[0][1]] == [*order.lines[0].values] == [*TIMES.samples_ms]


@pytest.mark.parametrize(
    ("given", "why", "advice"),
    [
        ({"steady": False}, "The steps had not reached a steady state when the warm-up ended.", ""),
        ({"wanted": 400}, "The budget ended before the required 400 steps had run.", "Raise budget_s."),
    ],
)
def test_what_makes_a_time_uncertain_is_in_the_verdict(given: dict[str, object], why: str, advice: str) -> None:
    verdict = shown(replace(TIMES, **given))._document().verdict  # type: ignore[arg-type]
    assert (verdict.state, verdict.why, verdict.next) == ("open", why, advice)


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert noise_facts({}) == []
    assert document_text(shown(StepTimes(()))._document()) == "perfnb · step time\nNo step was timed"
    assert not shown(StepTimes((1.0,)))._document().sections


def test_the_samples_as_text(golden: Callable[[str, str], None]) -> None:
    golden("samples.txt", texts(DOCUMENTS))
