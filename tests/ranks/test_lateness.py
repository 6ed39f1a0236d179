"""A straggler is named if the evidence is enough, and otherwise the reason against it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import perfnb
from perfnb.ranks.lateness import judge_lateness
from tests.ranks.rank_traces import rank_trace, written


def differences(*steps: tuple[float, ...]) -> pd.DataFrame:
    """Return how much longer another rank waited, in ms: collectives of each step."""
    rows = [(number, ms) for number, one in enumerate(steps) for ms in one]
    return pd.DataFrame(rows, columns=["step", "more_ms"])


@pytest.mark.parametrize(
    ("steps", "certain", "too_few"),
    [
        ([(10.0, 9.0, 11.0)], False, True),  # three collectives, however long
        ([(10.0, 9.0, 11.0, 8.0)], False, True),
        ([(10.0, 0.1, 11.0, 8.0, 2.0)], True, False),  # all of five
        ([(10.0, 9.0, 11.0, 8.0, -1.0)], False, False),
        ([(1.0,) * 6 + (-1.0,)], False, False),  # as likely as 8 of 128
        ([(1.0,) * 7 + (-1.0,)], True, False),  # 9 of 256
        ([(5.0, 3.0, 0.0), (0.1, 22.0, 1.0, 0.0)], True, False),  # equal waits do not count
        ([(10.0,), (10.5,), (9.6,)], True, False),  # three steps that agree
        ([(0.1,), (0.5,), (9.0,)], False, False),  # and three that do not
        ([(10.0, 0.0), (10.5, 0.0)], False, True),
        ([], False, True),
    ],
)
def test_the_verdict_needs_evidence(steps: list[tuple[float, ...]], certain: bool, too_few: bool) -> None:
    found = judge_lateness(1, differences(*steps), 2)

    assert (found.certain, found.too_few) == (certain, too_few)
    assert found.longer == sum(ms > 0 for each in steps for ms in each)
    assert (found.low_ms is not None) == (certain and len(steps) > 2)


def test_the_interval_is_students() -> None:
    found = judge_lateness(1, differences((10.0,), (11.0,), (12.0,)), 2)

    half = 2.919986 / np.sqrt(3)  # of 90 %, with two degrees of freedom
    assert (found.low_ms, found.high_ms) == pytest.approx((11 - half, 11 + half))


def test_more_ranks_need_more_evidence() -> None:
    five = differences((1.0,) * 5)

    assert judge_lateness(1, five, 2).certain
    assert not judge_lateness(1, five, 8).certain


def test_equal_ranks_are_rarely_found_to_differ() -> None:
    chance = np.random.default_rng(20261123)
    verdicts = 0
    for _ in range(400):
        more = differences(*((float(ms),) for ms in chance.exponential(size=3) - chance.exponential(size=3)))
        if more["more_ms"].sum() < 0:  # the other is the candidate
            more["more_ms"] *= -1
        verdicts += judge_lateness(1, more, 2).certain

    assert verdicts <= 48


def test_three_collectives_of_one_step_name_no_straggler(tmp_path: Path) -> None:
    ranks = perfnb.load(written(tmp_path, [rank_trace(0, steps=1, lost=(3,)), rank_trace(150, steps=1, lost=(3,))]))

    assert isinstance(ranks, perfnb.results.Ranks)
    assert ranks.clocks["collectives"].tolist() == [3, 3]
    assert ranks.straggler is None
    said = " ".join(str(ranks).split())
    assert "Other ranks waited 0.450 ms longer per step than rank 1 on average, but 3 collectives in 1 step are" in said
    assert "straggler" not in set(ranks.findings["bottleneck"])
    assert "Waiting in collectives for the last rank" not in said  # a single step needs no matrix
