"""Rounds of steps: each runs once in each, on the same batch and random numbers, and nothing is left behind."""

from __future__ import annotations

import queue
import random
import signal
import threading
import time
from collections import UserDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from perfnb.bench.design import Prefetching
from perfnb.bench.rounds import UNKNOWN_AHEAD, Bench, batches_ready, prefetching
from perfnb.errors import NestedProfilerError
from tests.fake_clock import LOOK_NS, FakeClock

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_each_step_runs_once_a_round_in_the_order_asked_for() -> None:
    seen: list[tuple[str, int]] = []
    steps = [lambda batch, name=name: seen.append((name, batch)) for name in "ab"]

    with Bench(steps, [1, 2, 3]) as bench:
        times = bench.rounds([(0, 1), (1, 0), (0, 1), (1, 0)])

    assert seen == [("a", 1), ("b", 1), ("b", 2), ("a", 2), ("a", 3), ("b", 3), ("b", 1), ("a", 1)]
    assert [len(each) for each in times] == [4, 4]


def test_the_steps_of_a_round_draw_the_same_random_numbers_and_those_of_the_next_others() -> None:
    drawn: list[tuple[float, ...]] = []

    def step() -> None:
        drawn.append((random.random(), float(np.random.rand()), float(torch.rand(()))))

    with Bench([step, step]) as bench:
        bench.rounds([(0, 1), (1, 0)])

    assert drawn[0] == drawn[1] != drawn[2] == drawn[3]
    step()
    assert drawn[4] != drawn[3]


def test_durations_are_those_of_the_steps(clock: FakeClock) -> None:
    with Bench([lambda: clock.pass_exactly(20), lambda: clock.pass_exactly(1)]) as bench:
        slow, fast = bench.rounds([(0, 1), (1, 0)] * 3)

    assert slow.tolist() == [(20_000_000 + LOOK_NS) / 1e6] * 6
    assert fast.tolist() == [(1_000_000 + LOOK_NS) / 1e6] * 6


def test_every_counted_time_is_passed_to_the_watch_for_disturbances(clock: FakeClock) -> None:
    spans, state = list[float](), SimpleNamespace(step=0)

    def ended(begin: int, end: int) -> None:
        spans.append(round((end - begin) / 1e6))
        assert state.running
        state.running = False

    state.ended = ended
    steps = [lambda: clock.pass_exactly(20), lambda: clock.pass_exactly(1)]
    pair, alone = Bench(steps), Bench(steps[:1])
    pair.conditions = alone.conditions = state  # type: ignore[assignment]
    pair.rounds([(0, 1)])
    pair.blocks([(1, 0)], lead=1, turns=3, parts=2)
    alone.rounds([(0,)], repeat=4)
    assert spans == [20, 1, 3, 3, 60, 60, 80]


def test_batches_are_closed_with_the_bench() -> None:
    closed: list[bool] = []

    def batches() -> Iterator[int]:
        try:
            yield from (1, 2, 3)
        finally:
            closed.append(True)

    with Bench([lambda batch: None], batches) as bench:
        bench.rounds([(0,)])
        assert closed == []
    assert closed == [True]


def test_what_switches_steps_on_and_off_is_around_each_turn_and_takes_no_time(clock: FakeClock) -> None:
    ran: list[str] = []

    @contextmanager
    def switched(name: str) -> Iterator[None]:
        clock.pass_exactly(50)
        ran.append(f"+{name}")
        yield
        ran.append(f"-{name}")
        clock.pass_exactly(50)

    steps = [lambda batch, name=name: ran.append(name) for name in "ab"]
    switches = [partial(switched, name) for name in "ab"]
    with Bench(steps, [torch.ones(4), torch.ones(5)], switches=switches) as bench:
        assert bench.rounds([(1, 0)]).max() < 1
        assert bench.blocks([(0, 1)], lead=0, turns=2).max() < 1
    assert " ".join(ran) == "+b b -b +a a -a +a a a -a +b b b -b"
    assert bench.sizes == [4, 5]


def test_steps_are_waited_for_once_events_have_lagged(monkeypatch: pytest.MonkeyPatch) -> None:
    lagged, waits, marks = iter([False, True, False, False]), list[bool](), list[str]()
    clock = SimpleNamespace(begin=lambda: marks.append("begin"), end=lambda ns: marks.append("end"))
    monkeypatch.setattr("perfnb.bench.rounds.StepClock", lambda wait: waits.append(wait) or clock)
    monkeypatch.setattr("perfnb.bench.rounds.read_clocks", lambda *_: ([[1e6]], next(lagged)))
    with Bench([lambda: None]) as bench:
        bench.rounds([(0,)])
        bench.rounds([(0,)])
        bench.blocks([(0,)], lead=0, turns=1)
        bench.rounds([(0,)], repeat=2)
    assert marks == ["begin", "end"] * 4
    assert waits == [False, False, True, True]


def test_the_wait_for_data_belongs_to_a_step_alone(clock: FakeClock) -> None:
    def batches() -> object:
        for _ in range(3):
            clock.pass_exactly(20)
            yield torch.ones(4, 2)

    with Bench([lambda batch: None], batches) as bench:
        (times,) = bench.rounds([(0,)] * 3)

    assert times.tolist() == [(20_000_000 + LOOK_NS) / 1e6] * 3
    assert bench.sizes == [4, 4, 4]


def test_turns_wait_for_the_device_and_each_step_of_a_block_draws_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran = list[Any]()
    monkeypatch.setattr("perfnb.bench.rounds.synchronize", lambda: ran.append("wait"))
    steps = [lambda name=name: ran.append((name, random.random())) for name in "ab"]
    with Bench(steps) as bench:
        bench.rounds([(0, 1)])
        assert [one[0] for one in ran] == ["w", "a", "b"]
        ran.clear()
        assert bench.blocks([(1, 0)], lead=1, turns=2, parts=2).shape == (2, 2)
    assert "".join(one[0] for one in ran) == "w" + "bwbbwbb" + "awaawaa"
    drawn = [one[1] for one in ran if one != "wait"]
    assert drawn[:5] == drawn[5:]
    assert len(set(drawn)) == 5


@pytest.mark.parametrize(
    ("before", "after", "counted"),
    [(3, 3, 4), (3, 2, 3), (3, 4, 5), (3, 1, 2), (5, 0, 2), (None, 3, 4), (3, None, 4), (None, None, 4)],
)
def test_batches_that_a_block_takes_from_a_queue_do_not_count_but_at_most_half(
    before: int | None, after: int | None, counted: int, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = iter([before, after])
    monkeypatch.setattr("perfnb.bench.rounds.batches_ready", lambda step: next(ready))
    with Bench([lambda: clock.pass_exactly(3)]) as bench:
        times = bench.blocks([(0,)], lead=0, turns=4)
    assert times.tolist() == [[pytest.approx(12 / counted, rel=1e-3)]]


class Loader:
    """Stands for the iterator of a loader with workers."""

    def __init__(self, *waiting: int, early: int = 0, workers: Any = 2, factor: Any = 3, over: bool = False) -> None:
        self._num_workers, self._prefetch_factor, self._shutdown = workers, factor, over
        queues = [SimpleNamespace(qsize=lambda count=count: count) for count in waiting]
        if queues:
            self._data_queue, self._worker_result_queue = queues[0], queues[-1]
        self._task_info = {number: (0, "batch") if number < early else (0,) for number in range(9)}


def test_batches_are_prefetched_by_workers_and_counted_in_their_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfnb.bench.rounds._MultiProcessingDataLoaderIter", Loader)

    def takes(*sources: Any) -> Callable[[], Any]:
        return lambda: sources

    over = Loader(7, over=True)
    assert prefetching([takes(Loader(), Loader(workers=4))]) == Prefetching("worker processes", 12)
    for unknown in (Loader(workers=None), Loader(factor=None)):
        assert prefetching([takes(unknown)]) == Prefetching("worker processes", UNKNOWN_AHEAD)
    assert prefetching([takes(over)]) is None
    assert prefetching([takes(over), takes(Loader(1))]) == Prefetching("worker processes", 6)

    assert batches_ready(takes(Loader(3))) == 3  # both names are of the same queue
    assert batches_ready(takes(Loader(3, 2, early=4))) == 9
    assert batches_ready(takes(Loader(3), Loader(2), over)) == 2
    assert batches_ready(takes(Loader(3), Loader())) is None  # one cannot be read
    assert batches_ready(takes(over)) is None


def test_results_are_kept_where_they_are_wanted() -> None:
    with Bench([lambda: 1, lambda: 2]) as bench:
        bench.rounds([(1, 0)])
        assert bench.results == []
        bench.rounds([(1, 0)], keep_results=True)
        assert bench.results == [1, 2]


def test_the_end_of_the_time_ends_the_rounds_after_the_first_and_each_is_reported(clock: FakeClock) -> None:
    told: list[tuple[Any, ...]] = []

    def tell(*progress: Any) -> None:
        told.append(progress)

    with Bench([lambda: clock.pass_exactly(1)], progress=tell) as bench:
        assert len(bench.rounds([(0,)] * 5, until=0.0, planned=5)[0]) == 1
        assert len(bench.rounds([(0,)] * 5, until=time.perf_counter() + 0.0025, pass_name="pilot")[0]) == 3
        assert len(bench.blocks([(0,)] * 5, lead=1, turns=2, until=0.0, planned=5)[0]) == 1
        assert len(bench.blocks([(0,)] * 5, lead=1, turns=2, until=time.perf_counter() + 0.005)[0]) == 2

    assert told == [
        ("timed", 1, 5),
        *(("pilot", done, None) for done in (1, 2, 3)),
        ("timed", 1, 5),
        *(("timed", done, None) for done in (1, 2)),
    ]
    assert bench.conditions.step == 1 + 3 + 3 + 6


def test_a_step_in_no_round_has_no_times_and_a_repeated_one_counts_once(clock: FakeClock) -> None:
    with Bench([lambda: clock.pass_exactly(2), lambda: clock.pass_exactly(1)]) as bench:
        assert np.isnan(bench.rounds([(1,)] * 2)[0]).tolist() == [True, True]
        first, second = bench.blocks([(1,)] * 2, lead=0, turns=4, parts=3)
    assert np.isnan(first).tolist() == [True] * 6
    assert second.tolist() == [(4_000_000 + LOOK_NS) / 4e6] * 6

    with Bench([lambda: clock.pass_exactly(2)]) as bench:
        assert bench.rounds([(0,)] * 2, repeat=5).tolist() == [[(10_000_000 + LOOK_NS) / 1e6] * 2]
    assert bench.conditions.step == 2
    assert bench.sizes == [None, None]


@pytest.mark.slow
@pytest.mark.parametrize("error", [ValueError("boom"), KeyboardInterrupt()])
def test_what_a_step_raises_comes_through(error: BaseException) -> None:
    def step() -> None:
        raise error

    with pytest.raises(type(error)), Bench([step]) as bench:
        bench.rounds([(0,)])


def test_an_interrupt_between_steps_waits_for_the_next() -> None:
    handler = signal.getsignal(signal.SIGINT)
    ran = []

    def interrupted() -> None:
        with Bench([lambda: ran.append(1)]) as bench:
            bench.rounds([(0,)])
            signal.raise_signal(signal.SIGINT)
            bench.rounds([(0,)])

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert ran == [1]
    assert signal.getsignal(signal.SIGINT) is handler


def test_benches_do_not_nest() -> None:
    def step() -> None:
        with Bench([lambda: None]):
            pass

    with pytest.raises(NestedProfilerError), Bench([step]) as bench:
        bench.rounds([(0,)])


def test_a_result_is_kept_as_it_was_though_the_next_step_writes_to_its_memory() -> None:
    shared = torch.zeros(2)
    array, parameter = shared.numpy(), torch.nn.Parameter(torch.zeros(1))

    @dataclass
    class Output:
        logits: torch.Tensor

    class Pair(NamedTuple):
        first: torch.Tensor

    def writes(value: float) -> Callable[[], Any]:
        def step() -> Any:
            shared.fill_(value)
            own = UserDict(a=shared)
            return shared, [array], own, Output(shared), Pair(shared), MappingProxyType({"a": 1}), parameter

        return step

    with Bench([writes(1.0), writes(2.0)]) as bench:
        bench.rounds([(0, 1), (1, 0)], keep_results=True)
        first, second = bench.results

    for result, value in ((first, 1.0), (second, 2.0)):
        plain, (of_numpy,), mapping, output, pair, _, kept = result
        assert (plain is shared) == (value == 1.0)  # nothing is written to the last one
        for tensor in (plain, mapping["a"], output.logits, pair.first):
            assert tensor.tolist() == [value, value]
        assert of_numpy.tolist() == [value, value]
        assert kept is parameter


def test_queues_and_threads_prefetch_and_those_common_to_all_do_not_count() -> None:
    bounded, unbounded = queue.Queue[int](3), queue.SimpleQueue[int]()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)

    def step() -> None: ...

    def takes(*sources: Any) -> Callable[[], Any]:
        return lambda: sources

    four, sixteen = Prefetching("threads", 4), Prefetching("threads", UNKNOWN_AHEAD)
    assert prefetching([step]) is None
    assert prefetching([step, takes(bounded)]) == four
    assert prefetching([takes(unbounded)]) == sixteen
    assert prefetching([takes(unbounded, bounded)]) == four
    assert prefetching([takes(bounded)], bounded) is None
    assert prefetching([takes(thread)]) is None  # it has not started
    thread.start()
    assert prefetching([takes(thread)]) == sixteen
    assert prefetching([takes(threading.current_thread(), threading.main_thread())]) is None
    monitor = type("TMonitor", (threading.Thread,), {"__module__": "tqdm._monitor"})(target=stop.wait)
    monitor.start()
    assert prefetching([takes(monitor)]) is None
    stop.set()
    for one in (thread, monitor):
        one.join()
    assert prefetching([takes(thread)]) is None


class Child(SimpleNamespace):
    """Stands for a child process, which is closed if nobody knows whether it is alive."""

    def is_alive(self) -> bool:
        if self.alive is None:
            raise ValueError("process object is closed")
        return bool(self.alive)


def test_child_processes_prefetch_while_they_are_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfnb.bench.rounds.BaseProcess", Child)
    monkeypatch.setattr("multiprocessing.active_children", lambda: children)
    children: list[Any] = []
    alive = Child(pid=7, alive=True)

    def takes(*sources: Any) -> Callable[[], Any]:
        return lambda: sources

    assert prefetching([takes(alive)]) == Prefetching("processes", UNKNOWN_AHEAD)
    assert prefetching([takes(alive, queue.Queue(3))]) == Prefetching("processes", 4)
    for child in (Child(pid=7, alive=False), Child(pid=None, alive=True), Child(pid=7, alive=None)):
        assert prefetching([takes(child)]) is None
    children.append(SimpleNamespace(pid=7))
    assert prefetching([takes()]) == Prefetching("processes", UNKNOWN_AHEAD)
    assert prefetching([takes()], alive) is None  # it works for all steps
    assert prefetching([takes()], Child(pid=8, alive=True)) == Prefetching("processes", UNKNOWN_AHEAD)
