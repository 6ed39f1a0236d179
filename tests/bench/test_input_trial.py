"""Blocks of a trial, with a loader that prepares batches ahead by plan."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from perfnb.bench.design import _steps_of_a_block, input_rounds
from perfnb.bench.input_trial import InputTrial
from perfnb.errors import CaptureError
from tests.fake_clock import LOOK_NS, FakeClock

pytestmark = pytest.mark.usefixtures("nothing_left", "clock")


class Ahead:
    """Batches of which one is made at a time, each in `pace_ms`, and up to `depth` lie prepared."""

    def __init__(self, pace_ms: float, depth: int) -> None:
        self._pace_s, self._depth = pace_ms / 1e3, depth
        self._ready = time.perf_counter()
        self._taken: list[float] = []

    def __iter__(self) -> Ahead:
        return self

    def __next__(self) -> Tensor:
        room = self._taken[-self._depth] if len(self._taken) >= self._depth else 0.0
        self._ready = max(self._ready, room) + self._pace_s
        time.sleep(max(0.0, self._ready - time.perf_counter()))
        self._taken.append(time.perf_counter())
        return torch.ones(2, 4)


class Slow(nn.Linear):
    """A layer that takes a while."""

    def __init__(self, ms: float) -> None:
        super().__init__(4, 1)
        self.ms = ms

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.ms / 1e3)
        return super().forward(x)


def medians(loader: Ahead, model: nn.Module, kinds: list[str], steps: int, rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    with InputTrial(lambda x: model(x).sum().backward(), loader, [model], {}) as trial:
        trial.learn()
        trial.find_pace(time.perf_counter() + 0.3)
        for _ in range(rounds):
            for kind in kinds:
                times[kind].append(trial.block(kind, steps))
    return {kind: statistics.median(values) for kind, values in times.items()}


def test_prepared_batches_do_not_count_for_the_loader() -> None:
    # Each block of the model leaves 8 batches prepared: more than the block after it takes.
    times = medians(Ahead(20, 8), Slow(60), ["model", "loader", "model", "iteration"], 4, 3)

    assert times["loader"] == pytest.approx(20, rel=0.01)
    assert times["iteration"] == pytest.approx(20, rel=0.01)


def test_a_loader_that_prefetches_hides_the_model_also_in_blocks_of_one_step() -> None:
    times = medians(Ahead(40, 2), Slow(30), ["together", "rest"], 1, 7)

    assert times["together"] == pytest.approx(40, rel=0.01)  # one after the other they take 70
    assert times["rest"] < 30


def test_the_pace_is_that_of_the_second_half_of_the_batches(clock: FakeClock) -> None:
    def batches() -> Iterator[Tensor]:
        for ms in (50, 1, 20, 30):
            clock.pass_exactly(ms)
            yield torch.ones(2, 4)

    with InputTrial(Slow(0), batches, [Slow(0)], {}) as trial:
        assert trial.find_pace(0.0) == (20 + 30) / 2 + LOOK_NS / 1e6


@pytest.mark.parametrize(("until_s", "count"), [(0.0, 4), (0.095, 10), (9.0, 64)])
def test_between_4_and_64_batches_are_taken_to_find_the_pace(until_s: float, count: int, clock: FakeClock) -> None:
    def batches() -> Iterator[Tensor]:
        while True:
            clock.pass_exactly(10)
            made.append(1)
            yield torch.ones(2, 4)

    made = list[int]()
    with InputTrial(Slow(0), batches, [Slow(0)], {}) as trial:
        trial.find_pace(clock.perf_counter() + until_s)
    assert len(made) == count


@pytest.mark.parametrize(
    ("kind", "pace_ns", "workers", "counts"),
    [
        ("together", 49_999, 3, (2, 2)),  # too fast to gain anything from prefetching
        ("together", 50_000, 0, (64 + 1 + 2, 1 + 2)),
        ("loader", 50_000, 3, (64 + 3 + 2, 3 + 2)),
        ("iteration", 50_000, 3, (64 + 2, 0)),
        ("model", 50_000, 3, (0, 2)),
        ("rest", 50_000, 3, (0, 2)),
    ],
)
def test_prepared_batches_and_a_burst_of_the_workers_come_before_a_block(
    kind: str, pace_ns: int, workers: int, counts: tuple[int, int]
) -> None:
    model, made = Slow(0), [0]

    def batches() -> Iterator[Tensor]:
        while True:
            made[0] += 1
            yield torch.ones(2, 4)

    with InputTrial(model, batches, [model], {}) as trial:
        trial.learn()
        trial._pace_ns, trial.workers = pace_ns, workers
        before = made[0], trial.conditions.step
        trial.block(kind, 2)
        assert (made[0] - before[0], trial.conditions.step - before[1]) == counts


def test_a_block_starts_and_ends_when_the_device_is_idle(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that is still queued on the device belongs to what came before, and the block's own work to the block."""
    ran, x = list[str](), torch.ones(2, 4)

    class Queued(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            ran.append("model")
            clock.pass_exactly(30)
            return super().forward(x)

    def synchronize() -> None:
        ran.append("wait")
        clock.pass_exactly(8)

    model, inputs = Queued(4, 1), [x]
    monkeypatch.setattr("perfnb.bench.input_trial.synchronize", synchronize)
    with InputTrial(lambda x: model(inputs[-1]), [x], [model], {}) as trial:
        trial.learn()
        ran.clear()
        together = trial.block("together", 2)
        assert ran == ["wait", "model", "model", "wait"]
        assert together == pytest.approx(30 + 8 / 2, abs=0.01)

        ran.clear()
        inputs.append(torch.ones(3, 4))  # the stand-in runs the real model once for a new shape
        rest = trial.block("rest", 2)
        assert ran == ["wait", "wait", "model", "wait", "wait"]
        assert rest == pytest.approx((8 + 8) / 2, abs=0.01)
        assert trial.unforeseen_ms == pytest.approx(30 + 8, abs=0.01)


def test_the_model_is_learnt_in_one_step_or_in_a_second_by_what_is_inside_it() -> None:
    model, ran = nn.Sequential(nn.Linear(4, 1)), list[str]()

    def learnt(step: Callable[[Tensor], Any]) -> int:
        ran.clear()
        with InputTrial(lambda x: [ran.append("step"), step(x)], [torch.ones(2, 4)], [model], {}) as trial:
            trial.learn()
        return len(ran)

    assert learnt(model) == 1
    assert learnt(lambda x: model[0](x)) == 2
    with pytest.raises(CaptureError, match="calls neither the given model nor any module inside it"):
        learnt(lambda x: None)
    assert len(ran) == 2


def test_a_model_inside_a_compiled_function_cannot_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Slow(0)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with (
        InputTrial(model, [torch.ones(2, 4)], [model], {}) as trial,
        pytest.raises(CaptureError, match="inside a function compiled by torch"),
    ):
        trial.learn()


@pytest.mark.parametrize(
    ("workers", "persistent", "starts", "each"),
    [(2, False, 2, 3.5), (2, False, 1, None), (0, False, 2, None), (2, True, 2, None)],
)
def test_batches_of_a_start_are_counted_for_workers_that_start_again(
    workers: int, persistent: bool, starts: int, each: float | None
) -> None:
    loader = loading(workers)
    vars(loader)["persistent_workers"] = persistent  # torch forbids to set it later
    trial = InputTrial(Slow(0), loader, [Slow(0)], {})
    trial._source.taken, trial._source.starts = 7, starts  # type: ignore[union-attr]
    assert trial.batches_a_start == each


class Told:
    """Batches of a loader that tells the number of its workers."""

    def __init__(self, workers: Any) -> None:
        self.num_workers = workers

    def __iter__(self) -> Iterator[Tensor]:
        return iter([torch.ones(2, 4)])


def loading(workers: int) -> DataLoader[Tensor]:
    """Return a loader whose workers never start. torch warns where they are more than the machine has cores."""
    loader: DataLoader[Tensor] = DataLoader([torch.ones(4)])  # type: ignore[arg-type]
    loader.num_workers = workers
    return loader


def through_a_function(loader: DataLoader[Tensor]) -> Callable[[], Iterator[Tensor]]:
    return lambda: iter(loader)


@pytest.mark.parametrize(
    ("batches", "workers"),
    [
        (Told(3), 3),
        (Told(True), 0),  # a setting of the same name
        (Told("3"), 0),
        (Told(None), 0),
        (Told(2.5), 0),
        ([torch.ones(2, 4)], 0),
        (loading(0), 0),
        (loading(2), 2),
        ((loading(1), loading(4), loading(2)), 4),
        (through_a_function(loading(2)), 2),
    ],
)
def test_workers_are_those_that_a_loader_tells_of_itself(batches: Any, workers: int) -> None:
    model = Slow(0)

    assert InputTrial(model, batches, [model], {}).workers == workers


def endless() -> Iterator[Tensor]:
    while True:
        yield torch.ones(2, 4)


@pytest.mark.parametrize(
    ("batches", "parallel"),
    [
        (lambda: [torch.ones(2, 4)], False),
        (lambda: (torch.ones(2, 4),), False),
        (lambda: loading(0), False),
        (lambda: Told(1), True),
        (endless, True),  # its effects are unknown
    ],
)
def test_lists_and_loaders_without_workers_load_nothing_while_the_model_runs(
    batches: Callable[[], Any], parallel: bool
) -> None:
    model = Slow(0)

    with InputTrial(model, batches(), [model], {}) as trial:
        trial.learn()
        assert trial.parallel == parallel


@pytest.mark.parametrize(
    ("accelerator", "workers", "found", "parallel"),
    [(True, 0, None, True), (False, 1, None, True), (False, 0, "threads", True), (False, 0, None, False)],
)
def test_a_list_is_loaded_while_the_model_runs_if_something_can_do_so(
    accelerator: bool, workers: int, found: str | None, parallel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfnb.bench.input_trial.accelerator_in_use", lambda: accelerator)
    monkeypatch.setattr("perfnb.bench.input_trial.prefetching", lambda _: found)
    model = Slow(0)
    with InputTrial(model, [torch.ones(2, 4)], [model], {}) as trial:
        trial.workers = workers
        trial.learn()
        assert trial.parallel == parallel


def input_trial(
    monkeypatch: pytest.MonkeyPatch,
    step_ms: dict[str, float],
    *,
    workers: int = 0,
    pace_ms: float = 1.0,
    extra_s: float = 0,
) -> Any:
    """Return a trial whose blocks take so long and a constant time more, on a clock that only they advance."""
    trial = SimpleNamespace(workers=workers, now=50.0, ran=list[tuple[str, int]]())

    def block(kind: str, steps: int) -> float:
        trial.ran.append((kind, steps))
        trial.now += steps * step_ms[kind] / 1e3 + extra_s
        return step_ms[kind]

    trial.block, trial.find_pace = block, lambda until: pace_ms
    monkeypatch.setattr("perfnb.bench.design.time", SimpleNamespace(perf_counter=lambda: trial.now))
    return trial


EVEN = {"together": 4.0, "model": 4.0}


@pytest.mark.parametrize(
    ("step_ms", "budget_s", "options", "steps"),
    [
        (EVEN, 10.0, {}, 5),  # 20 ms
        ({"together": 4.1, "model": 1.0}, 10.0, {}, 5),
        ({"together": 3.9, "model": 9.0}, 10.0, {}, 6),
        ({"together": 100.0, "model": 100.0}, 100.0, {}, 4),
        (EVEN, 10.0, {"workers": 2}, 4),  # a multiple of the workers
        (EVEN, 10.0, {"workers": 3}, 6),  # twice the workers
        ({"together": 0.1, "model": 0.1}, 100.0, {}, 64),
        ({"together": 0.1, "model": 0.1}, 0.05, {}, 20),
        (EVEN, 0.401, {}, 4),  # after the pilot, 12 rounds take 384 ms
        (EVEN, 0.399, {}, 3),
        (EVEN, 1.051, {"extra_s": 0.025}, 4),  # 50 ms of a round of 82 ms are for other work
        (EVEN, 1.049, {"extra_s": 0.025}, 3),
        (EVEN, 0.03, {}, 1),  # the pilot fits
        (EVEN, 0.03, {"pace_ms": 2.0, "workers": 7}, 7),  # it does not
        (EVEN, 0.034, {"workers": 2}, 2),
        (EVEN, 0.0339, {"workers": 2}, 2),
    ],
)
def test_blocks_are_of_20_ms_if_12_rounds_of_them_fit(
    step_ms: dict[str, float], budget_s: float, options: dict[str, Any], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = input_trial(monkeypatch, step_ms, **options)
    end = trial.now + budget_s

    assert _steps_of_a_block(trial, list(step_ms), step_ms["model"], options.get("pace_ms", 1.0), end) == steps
    pilot = max(2, options.get("workers", 0))
    fits = pilot * (3 * step_ms["model"] + 5 * options.get("pace_ms", 1.0)) / 1e3 <= budget_s
    assert trial.ran == [(kind, pilot) for kind in step_ms] * fits


def test_input_rounds_have_a_block_of_each_kind_in_random_order(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = input_trial(monkeypatch, {"together": 6.0, "model": 4.0})
    told: list[tuple[Any, ...]] = []

    rounds, steps = input_rounds(trial, ["together", "model"], 50.0, 30.0, lambda *told_now: told.append(told_now))

    assert steps == 4
    assert rounds == {"together": [6.0] * 40, "model": [4.0] * 40}
    assert told == [("warmup", done) for done in range(1, 7)] + [("timed", done, 40) for done in range(1, 41)]
    timed = [kind for kind, _ in trial.ran[-80:]]
    orders = {tuple(timed[place : place + 2]) for place in range(0, 80, 2)}
    assert orders == {("together", "model"), ("model", "together")}
    assert trial.ran[:8] == [("model", 1)] * 6 + [("together", 2), ("model", 2)]


def test_input_rounds_end_with_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = input_trial(monkeypatch, {"together": 60.0, "model": 40.0})
    told: list[tuple[Any, ...]] = []

    # The warm-up takes 4 steps of 40 ms, the pilot 200 ms, and a round, of a step of each, 100 ms.
    rounds, steps = input_rounds(trial, ["together", "model"], 50.0, 1.0, lambda *told_now: told.append(told_now))

    assert steps == 1
    assert len(rounds["together"]) == len(rounds["model"]) == told[-1][1]
    assert told[:4] == [("warmup", done) for done in range(1, 5)]
    assert told[4:] == [("timed", done, 6) for done in range(1, 7)]
    assert trial.now == pytest.approx(50.96)


def test_an_input_round_that_the_budget_ends_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    step_ms = {"together": 60.0, "model": 40.0}

    def slow_down(pass_name: str, *_: Any) -> None:
        if pass_name == "timed":
            step_ms.update(together=5000.0, model=5000.0)

    trial = input_trial(monkeypatch, step_ms)
    rounds, _ = input_rounds(trial, ["together", "model"], 50.0, 1.0, slow_down)
    assert rounds == {"together": [60.0], "model": [40.0]}


def test_a_first_input_round_is_always_whole_and_the_clock_must_move(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = input_trial(monkeypatch, {"together": 600.0, "model": 400.0})
    rounds, steps = input_rounds(trial, ["together", "model"], 50.0, 0.1, lambda *_: None)
    assert (rounds, steps) == ({"together": [600.0], "model": [400.0]}, 1)

    with pytest.raises(CaptureError, match="The clock stood still for 30 steps"):
        input_rounds(input_trial(monkeypatch, {"model": 0.0}), ["model"], 50.0, 1.0, lambda *_: None)
