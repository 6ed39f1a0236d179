"""Real loaders with workers, compared: no gain that pairs alone would show is believed."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import perfnb
from perfnb.results import ABTest
from tests.accuracy.judging import Figures

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


class Slow(Dataset[torch.Tensor]):
    """Samples that take time without using a core, like those from a disk."""

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
            for batch in self._loader:  # noqa: UP028 - as users write it, without a variable for the iterator
                yield batch

    def __call__(self) -> float:
        total = float(next(self._batches).sum())
        time.sleep(self._model_ms / 1e3)
        return total

    def __enter__(self) -> Loading:
        return self

    def __exit__(self, *_: Any) -> None:
        self._batches = None  # the threads that feed the workers end soon afterwards


def judged(figure: Figures, what: str, test: ABTest, within: tuple[float, float], verdict: str | None = None) -> None:
    figure(f"{what}: ratio", test.ratio, within=within)
    if verdict is not None:
        figure(f"{what}: verdict is {verdict} (1 = yes)", test.verdict == verdict, at_least=1)


def test_a_worker_without_benefit(figure: Figures) -> None:
    with Loading(12.0, 0) as none, Loading(12.0, 1) as one:
        # In truth it gains a few percent: it spares the step what else loading costs. In turns it would be about 0.1.
        report = perfnb.ab_test(none, one, limits={}, change="a worker", budget_s=5, equal_within=0.15)

    judged(figure, "one worker for a loader that sleeps", report, (0.85, 1.2))
    figure("one worker for a loader that sleeps: accepted (0 = no)", report.decision == "accept", at_most=0)


def test_four_workers_of_a_loader_that_waits(figure: Figures) -> None:
    with Loading(12.0, 0) as none, Loading(12.0, 4) as four:
        test = perfnb.ab_test(none, four, budget_s=7)

    judged(figure, "four workers for a loader that sleeps", test, (0.2, 0.5), "faster")  # in turns about 0.05


def test_a_gain_of_the_model_where_both_have_workers_of_their_own(figure: Figures) -> None:
    with Loading(2.0, 1, model_ms=9.0) as slow, Loading(2.0, 1, model_ms=6.0) as fast:
        test = perfnb.ab_test(slow, fast, budget_s=4)

    judged(figure, "6 ms model / 9 ms model, both with workers", test, (0.55, 0.85), "faster")


def test_a_loader_that_begins_again_and_again(figure: Figures) -> None:
    with Loading(2.0, 0, count=20) as none, Loading(2.0, 1, count=20) as one:
        test = perfnb.ab_test(none, one, budget_s=4)

    figure("a worker that restarts every 20 batches: ratio", test.ratio, at_least=0.8)  # the starts cost


def test_workers_of_a_loader_that_feeds_both(figure: Figures) -> None:
    loader = DataLoader(Slow(6.0), num_workers=2)

    def sleeping(ms: float) -> Callable[[torch.Tensor], float]:
        def step(batch: torch.Tensor) -> float:
            time.sleep(ms / 1e3)
            return float(batch.sum())

        return step

    test = perfnb.ab_test(sleeping(4.0), sleeping(2.0), batches=loader, budget_s=4)

    judged(figure, "half the sleep, shared loader", test, (0.4, 0.7), "faster")


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


def test_a_thread_that_nobody_sees(figure: Figures) -> None:
    def waiting() -> float:
        time.sleep(4e-3)
        return 1.0

    with Unseen(4.0) as take:
        test = perfnb.ab_test(waiting, lambda: take(), budget_s=5)

    figure("batches from an unseen thread: ratio", test.ratio, at_least=0.8)  # in turns about 0.01
