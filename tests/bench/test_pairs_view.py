"""Figures of steps that were timed in pairs, and what is said of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from perfnb.bench.paired_times import BlockPlan, PairedTimes, paired_times
from perfnb.bench.pairs_view import effect_words, pairs_answer, pairs_notes, pairs_strip, pairs_words
from perfnb.stats.planning import MOST_NEEDED, smallest_detectable


def timed(ratio: float, pairs: int = 20, *, spread: float = 0.01, within: float = 0.02, **more: Any) -> PairedTimes:
    """Return pairs of a step of 10 ms and one that takes `ratio` times as long, give or take `spread`."""
    off = np.random.default_rng(5).permutation(np.linspace(-spread, spread, pairs)) if pairs > 1 else np.zeros(pairs)
    known: dict[str, Any] = {"a_name": "old", "b_name": "new", "planned": pairs, "needed": pairs}
    times = 10 * ratio * np.exp(off)
    return paired_times([10.0] * pairs, times.tolist(), equal_within=within, **(known | more))


def test_figures_are_those_of_the_pairs() -> None:
    times = timed(0.5, batch_size=16, steady=False)

    assert times.verdict == "faster"
    assert times.ratio == pytest.approx(0.5, rel=1e-3)
    low, high = times.ratio_ci or (0, 0)
    assert 0.49 < low <= times.ratio <= high < 0.51
    assert times.p_value < 0.001
    assert times.pairs["a_ms"].tolist() == [10.0] * 20
    assert times.pairs["ratio"].tolist() == pytest.approx((times.pairs["b_ms"] / 10).tolist())
    assert times.pairs.index.name == "pair"
    assert (times.a.samples_ms, times.b.samples_ms) == (times.a_ms, times.b_ms)
    assert times.a.batch_size == times.b.batch_size == 16
    assert times.a.steady is times.b.steady is False
    assert times.turns == 1
    assert timed(0.5, blocks=BlockPlan("threads", 3, 7, None)).turns == 7


@pytest.mark.parametrize(("blocks", "pair_s"), [(None, 0.015), (BlockPlan("threads", 2, 4, None), 6 * 0.015)])
def test_a_test_of_the_same_length_detects_the_same_difference(blocks: BlockPlan | None, pair_s: float) -> None:
    times = timed(0.5, 20, blocks=blocks)
    least = times.smallest_detectable

    assert times.detectable_in(20.5 * pair_s) == pytest.approx(least, rel=1e-3)
    longer, shorter = times.detectable_in(80.5 * pair_s), times.detectable_in(19.5 * pair_s)
    assert longer == pytest.approx(least / 2, rel=0.1)
    assert shorter is not None
    assert shorter > 1.01 * least
    deviation = math.log1p(least) / math.log1p(smallest_detectable(1.0, 20))
    assert times.detectable_in(1000.5 * pair_s) == smallest_detectable(deviation, 1000)
    assert times.detectable_in(0.0) == times.detectable_in(2.5 * pair_s) == times.detectable_in(1.5 * pair_s)


def test_one_pair_or_very_different_ones_do_not_tell_what_a_longer_test_detects() -> None:
    assert timed(0.5, 2).detectable_in(100) is not None
    for times in (timed(0.5, 1), timed(0.5, 2, spread=300.0)):
        assert (times.smallest_detectable, times.detectable_in(100)) == (math.inf, None)


@pytest.mark.parametrize(
    ("ratio", "words"), [(0.9, "0.900 × [0.899, 0.901], 10 % less time"), (1.25, "1.25 × [1.25, 1.25], 25 % more time")]
)
def test_an_effect_has_its_sign(ratio: float, words: str) -> None:
    assert effect_words(timed(ratio, spread=0.003)) == words


def test_without_a_difference_only_the_ratio_is_shown() -> None:
    assert effect_words(timed(1.0)).endswith("]")
    assert effect_words(timed(1.0, 5)) == "1.00 ×"


BLOCKS, NO_BLOCKS = BlockPlan("threads", 2, 4, 0.5), BlockPlan("threads", 0, 1, None)
RAISE = "Raise budget_s"


@pytest.mark.parametrize(
    ("times", "state", "sentence", "advice"),
    [
        (timed(0.5), "good", "the candidate is faster: 0.500 ×", ""),
        (timed(2.0), "bad", "the candidate is slower: 2.00 ×", ""),
        (timed(1.0), "none", "baseline and candidate take the same time within 2.0 %: 1.00 ×", ""),
        (
            timed(1.0, spread=0.5),
            "open",
            "neither a difference nor equality within 2.0 %",
            f"{RAISE}, or use a quieter machine.",
        ),
        (timed(0.5, 5), "open", "too few pairs for a verdict: 5 of the 6 that", "Raise budget_s."),
        (
            timed(0.5, 5, blocks=BLOCKS),
            "open",
            "too few pairs for a verdict: 5 of the 6 that",
            f"{RAISE}: 6 pairs take about 3.00 s.",
        ),
        (timed(0.5, 1, blocks=NO_BLOCKS), "open", "too few pairs for a verdict: a fair comparison needs", f"{RAISE}."),
    ],
)
def test_the_answer_is_that_of_the_pairs(times: PairedTimes, state: str, sentence: str, advice: str) -> None:
    found = pairs_answer(times)

    assert (found[0], found[2]) == (state, advice)
    assert found[1].startswith(sentence)


def test_pairs_are_counted_with_what_they_detect() -> None:
    assert pairs_words(timed(0.5, 5)) == "5 pairs in random order"
    few = pairs_words(timed(0.5, 20, blocks=BlockPlan("threads", 2, 4, None)))
    assert few.startswith("20 pairs of blocks in random order, which detect a difference of 0.")
    wide = timed(0.5, 6, spread=9.0)
    assert wide.smallest_detectable > 9
    assert pairs_words(wide) == "6 pairs in random order, which vary too much to detect even a factor of 10"


def test_each_pair_is_a_dot() -> None:
    strip = pairs_strip(timed(0.5, 3))

    assert strip.axis.label == "time of new divided by that of old"
    (mark, dots), *others = strip.groups
    assert not others
    assert mark.word == "pair"
    assert dots == timed(0.5, 3).pairs["ratio"].tolist()


def notes(times: PairedTimes) -> str:
    return " ".join(pairs_notes(times))


def test_blocks_are_explained() -> None:
    told = notes(timed(0.5, blocks=BlockPlan("worker processes", 1, 8, 0.1)))

    assert "Worker processes prefetch batches" in told
    assert "two blocks of 8 turns back to back, each after 1 turn that" in told
    assert "Each pair" not in notes(timed(0.5, blocks=BlockPlan("processes", 0, 1, None)))


@pytest.mark.parametrize(
    ("needed", "words"),
    [
        (21, "The pilot suggests 21 pairs"),
        (MOST_NEEDED - 1, f"suggests {MOST_NEEDED - 1:,} pairs"),
        (MOST_NEEDED, f"suggests more than {MOST_NEEDED:,} pairs"),
        (20, ""),
    ],
)
def test_more_pairs_are_suggested_where_they_would_help(needed: int, words: str) -> None:
    unclear = timed(1.0, spread=0.5, needed=needed)
    assert unclear.verdict == "inconclusive"

    assert words in notes(unclear)
    assert ("The pilot suggests" in notes(unclear)) == bool(words)
    assert "The pilot suggests" not in notes(timed(0.5, needed=needed))
    assert "The pilot" not in notes(timed(1.0, spread=0.5, needed=needed, blocks=BlockPlan("threads", 1, 2, None)))


@pytest.mark.parametrize(("steady", "noted"), [(False, True), (True, False), (None, False)])
def test_steps_that_were_not_steady_are_noted(steady: bool | None, noted: bool) -> None:
    assert ("steady state" in notes(timed(0.5, steady=steady))) == noted


def test_pairs_that_resemble_their_neighbours_are_noted() -> None:
    drifting = paired_times(
        [10.0] * 40,
        (10 * np.exp(np.linspace(-0.1, 0.1, 40))).tolist(),
        equal_within=0.02,
        a_name="old",
        b_name="new",
        planned=40,
        needed=40,
    )

    assert "autocorrelated" in notes(drifting)
    assert "autocorrelated" not in notes(timed(0.5))
    assert math.isfinite(drifting.smallest_detectable)
