"""Steps for which something works while the other one runs: no gain that pairs alone would show is believed."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import perfnb
from perfnb.analysis.ab import Blocks, ab_figures
from perfnb.capture.prefetching import Prefetching, prefetching, prepared
from perfnb.comparison import ABTest
from perfnb.views.ab import ab_sentences

pytestmark = [
    pytest.mark.alone,
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


class Slow(Dataset[torch.Tensor]):
    """Samples that must be waited for, as those of a disk: waiting needs no core of its own."""

    def __init__(self, ms: float, count: int = 10_000) -> None:
        self._ms, self._count = ms, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> torch.Tensor:
        time.sleep(self._ms / 1e3)
        return torch.ones(4)


class Loading:
    """A step that takes its batches from a loader of its own."""

    def __init__(self, loader_ms: float, workers: int, model_ms: float = 0.0, count: int = 10_000) -> None:
        self._loader = DataLoader(Slow(loader_ms, count), num_workers=workers)
        self._model_ms = model_ms
        self._batches: Any = self._endless()

    def _endless(self) -> Iterator[torch.Tensor]:
        while True:
            for batch in self._loader:  # noqa: UP028 - as users write it: the iterator lies in no variable
                yield batch

    def __call__(self) -> float:
        total = float(next(self._batches).sum())
        time.sleep(self._model_ms / 1e3)
        return total

    def __enter__(self) -> Loading:
        return self

    def __exit__(self, *_: Any) -> None:
        self._batches = None  # the threads that feed the workers end soon after them: `nothing_left` waits for that


def told(run: Callable[[], ABTest]) -> ABTest:
    """An experiment that could tell something: on a busy machine one in a few cannot."""
    for _ in range(4):
        if (test := run()).verdict != "inconclusive":
            break
    return test


def test_a_worker_that_is_no_gain_is_not_accepted(tmp_path: Path) -> None:
    with Loading(12.0, 0) as none, Loading(12.0, 1) as one:
        # In truth it gains a few percent: it spares the step what else loading costs.
        report = perfnb.report(none, one, change="a worker", budget_s=8, equal_within=0.15, profile=False)

    assert report.decision != "accept"
    assert 0.85 < report.ab.ratio < 1.2  # in turns it would be about 0.1
    assert report.ab.turns > 1
    assert "Worker processes prepare batches for a step while the other one runs" in str(report)
    loaded = perfnb.load(report.save(tmp_path / "report"))
    assert isinstance(loaded, perfnb.PerformanceReport)
    assert str(loaded) == str(report)
    assert loaded.ab.turns == report.ab.turns
    pd.testing.assert_frame_equal(loaded.ab.pairs, report.ab.pairs)


def test_four_workers_of_a_loader_that_waits_are_a_gain() -> None:
    with Loading(12.0, 0) as none, Loading(12.0, 4) as four:
        test = told(lambda: perfnb.ab_test(none, four, budget_s=7))

    assert test.verdict == "faster", test
    assert 0.2 < test.ratio < 0.5  # in turns it would be about 0.05
    assert len(test.pairs) >= 6


def test_a_gain_of_the_model_is_found_where_both_have_workers_of_their_own() -> None:
    with Loading(2.0, 1, model_ms=9.0) as slow, Loading(2.0, 1, model_ms=6.0) as fast:
        test = told(lambda: perfnb.ab_test(slow, fast, budget_s=4))

    assert test.turns > 1
    assert test.verdict == "faster", test
    assert 0.55 < test.ratio < 0.85


def test_a_loader_that_begins_again_and_again_is_no_harm() -> None:
    with Loading(2.0, 0, count=20) as none, Loading(2.0, 1, count=20) as one:
        test = perfnb.ab_test(none, one, budget_s=4)

    assert test.turns > 1
    assert test.ratio > 0.8  # its workers start anew, which costs


def test_workers_of_a_loader_that_feeds_both_favour_none() -> None:
    loader = DataLoader(Slow(6.0), num_workers=2)

    def sleeping(ms: float) -> Callable[[torch.Tensor], float]:
        def step(batch: torch.Tensor) -> float:
            assert len(loader) == 10_000  # a step that knows the loader takes nothing from it
            time.sleep(ms / 1e3)
            return float(batch.sum())

        return step

    test = told(lambda: perfnb.ab_test(sleeping(4.0), sleeping(2.0), batches=loader, budget_s=4))

    assert test.turns == 1
    assert test.verdict == "faster"
    assert 0.4 < test.ratio < 0.7


def test_where_there_is_no_time_for_blocks_there_is_no_verdict() -> None:
    with Loading(40.0, 0) as none, Loading(40.0, 4) as four:
        report = perfnb.report(none, four, budget_s=1, profile=False)

    assert report.decision == "inconclusive"
    assert "only blocks can tell, and there was no time for one" in report.reason
    assert report.reason.endswith("raise budget_s.")


class Unseen:
    """Batches from a thread whose queue lies where nobody looks."""

    __slots__ = ("_queue", "_stop", "_thread")

    def __init__(self, ms: float) -> None:
        self._queue: queue.Queue[float] = queue.Queue(3)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(ms,), daemon=True)
        self._thread.start()

    def _fill(self, ms: float) -> None:
        while not self._stop.is_set():
            time.sleep(ms / 1e3)
            self._queue.put(1.0)

    def __enter__(self) -> Callable[[], float]:
        return self.take

    def take(self) -> float:
        return self._queue.get()

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        while self._thread.is_alive():
            while not self._queue.empty():
                self._queue.get()
            self._thread.join(0.01)


def test_a_thread_that_nobody_sees_is_felt() -> None:
    def waiting() -> float:
        time.sleep(4e-3)
        return 1.0

    with Unseen(4.0) as take:
        test = perfnb.ab_test(waiting, lambda: take(), budget_s=5)

    assert test.turns > 1
    assert test.ratio > 0.8  # in turns it would be about 0.01
    assert "A step takes longer in a row than in turns with the other" in str(test)


def test_steps_that_nobody_works_for_run_in_pairs() -> None:
    assert perfnb.ab_test(lambda: time.sleep(2e-3), lambda: time.sleep(1e-3), budget_s=1).turns == 1


def test_what_works_for_a_step_is_found_where_it_lies() -> None:
    filled: queue.Queue[int] = queue.Queue(5)
    filled.put(1)

    assert prefetching([lambda: filled.get()]) == Prefetching("threads", 6)
    assert prefetching([lambda: 1]) is None
    with Loading(0.0, 2) as step:
        assert prefetching([step]) is None  # a generator has nothing before its first turn
        step()
        assert prefetching([lambda: step()]) == Prefetching("worker processes", 4)
        assert prefetching([lambda: 1], step._batches) is None
        assert prefetching([lambda: 1]) == Prefetching("processes", 16)  # somebody's
        time.sleep(0.3)
        ready = prepared(step)
        assert ready is None or ready == 4


def test_blocks_say_how_they_were_made() -> None:
    def words(pairs: int, blocks: Blocks) -> str:
        times = [10.0 + 0.01 * place for place in range(pairs)]
        figures = ab_figures(
            times, times[::-1], equal_within=0.02, a_name="a", b_name="b", planned=pairs, needed=6, seed=1,
            blocks=blocks,
        )  # fmt: skip
        return " ".join(ab_sentences(figures))

    said = words(8, Blocks("threads", 4, 16, 1.5))
    assert "so each pair is of two blocks, each of 16 turns in a row; 4 turns before them use up" in said
    assert "8 pairs of blocks in random order" in said
    few = words(3, Blocks("processes", 4, 16, 1.5))
    assert "3 pairs of blocks are too few to tell anything (6 are needed, which take about 9.00 s)" in few
    none = words(1, Blocks("processes", 0, 1, None))
    assert "only blocks can tell, and there was no time for one; raise budget_s." in none


def test_more_pairs_than_are_counted_and_large_differences_are_said_in_words() -> None:
    times, others = [1.0, 10.0] * 4, [10.0, 1.0] * 4
    few = ab_figures(times, others, equal_within=0.02, a_name="a", b_name="b", planned=8, needed=100_000, seed=1)
    said = " ".join(ab_sentences(few))

    assert "The pilot asked for more than 100,000 pairs" in said
    assert "they find a difference of a factor of " in said
