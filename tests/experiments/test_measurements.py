"""Views of timings, experiments and profiles side by side: their words, and hostile names."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from perfnb.bench.ab_view import ab_html, ab_text
from perfnb.bench.paired_times import PairedTimes, paired_times
from perfnb.profile.report import notes_of, report_data, summary_html, summary_text
from perfnb.profile.timing import noise_facts, shown, timing_html
from perfnb.stats.step_times import StepTimes
from tests import summaries
from tests.pages import spaced
from tests.summaries import HOSTILE

RNG = np.random.default_rng(3)
NOISE = {
    "cpus": 2,
    "load_before": 1.9,
    "gc_pauses": [[3, 40.0]],
    "gc_share": 0.04,
    "cpu_mhz_before": 3000,
    "cpu_mhz_after": 2000,
}


def experiment(ratio: float, pairs: int = 60, a: str = "old", b: str = "new", noise: float = 0.01) -> PairedTimes:
    times = 10 * np.exp(np.random.default_rng(3).normal(0, noise, (2, pairs)))
    return paired_times(
        times[0].tolist(), (ratio * times[1]).tolist(), equal_within=0.02, a_name=a, b_name=b, planned=pairs,
        needed=pairs, steady=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ratio", "pairs", "noise", "words"),
    [
        (0.8, 60, 0.01, "new is faster than old: 0."),
        (1.3, 60, 0.01, "new is slower than old: 1."),
        (1.0, 60, 0.01, "new and old take the same time within 2.0 %: "),
        (1.0, 12, 0.3, "inconclusive: neither a difference between new and old nor"),
    ],
)
def test_the_verdict_comes_first(ratio: float, pairs: int, noise: float, words: str) -> None:
    figures = experiment(ratio, pairs, noise=noise)
    assert ab_text(figures).startswith(words)
    assert f'pf-step">{words.split(":")[0]}' in spaced(ab_html(figures))
    assert "<img alt=" in ab_html(figures)


def test_more_pairs_are_asked_for_only_where_they_would_help() -> None:
    few = experiment(1.0, 12, noise=0.3)
    assert "raise budget_s" in ab_text(replace(few, needed=5000))
    assert "raise budget_s" not in ab_text(replace(experiment(0.5), needed=5000))


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text(name: str) -> None:
    pages = [
        ab_html(experiment(0.8, a=name, b=name), name),
    ]
    for page in pages:
        assert not re.search(r"<(script|svg|img(?! alt=)|b>|iframe)|on(load|error)=[^&]*>", page), page[:300]
    assert "\x1b" not in ab_text(experiment(0.8, a=name, b=name))


def test_a_timing_tells_what_disturbed_it() -> None:
    timing = StepTimes(tuple(10 + RNG.normal(0, 0.1, 100)), 32, 3200, (30.0, 12.0), True, NOISE)
    text = " ".join(str(shown(timing)).split())
    assert re.match(r"\S+ ms \[\S+ \S+\] \(95 % interval, median of 100 timed steps\) · \S+ samples/s · p95 ", text)
    assert "steady after 2 warm-up steps" in text
    assert "garbage collection took 4" in text
    assert "the machine was already busy (load 1.9 on 2 CPUs)" in text
    assert "the CPU clock changed from 3,000 to 2,000 MHz" in text
    assert "<img alt=" in timing_html(timing)


def test_nothing_is_told_where_nothing_is_known() -> None:
    assert noise_facts({}) == []
    assert str(shown(StepTimes(()))) == "no step was timed"
    assert "<img" not in timing_html(StepTimes((1.0,)))


def test_the_notes_of_a_report_tell_what_disturbed_its_timed_steps() -> None:
    quiet = summaries.small_cnn()
    assert notes_of(quiet) == list(quiet.notes)

    busy = replace(quiet, timing=replace(quiet.timing, noise={"load_before": 3.5, "cpus": 2}))
    said = "During the timed steps: the machine was already busy (load 3.5 on 2 CPUs)."
    assert notes_of(busy) == [*quiet.notes, said]
    assert said in " ".join(summary_text(busy).split())
    assert said in report_data(busy)["notes"]
    assert said in summary_html(busy)
