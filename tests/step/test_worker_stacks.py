"""Stacks of loader workers: whose line takes the time, that batches stay the same, and that nothing stays behind."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, dataloader

import perfnb
from perfnb.flame.step_stacks import step_stacks
from perfnb.step import worker_stacks
from perfnb.step.stack_sampler import StackSampler
from perfnb.step.worker_stacks import IDLE, WorkerStacks
from tests.fake_clock import FakeClock
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")

ITERATORS = (dataloader._MultiProcessingDataLoaderIter.__init__, dataloader._BaseDataLoaderIter.__next__)


class Slow(Dataset[Tensor]):
    """Items of random numbers that take their time."""

    def __init__(self, length: int = 8) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: int) -> Tensor:
        sleep(0.03)  # the planted line
        if place == 99:
            raise ValueError("a bad file")
        return torch.tensor([float(torch.rand(())), float(np.random.random()), random.random()])


class Threads(Dataset[int]):
    """How many sampling threads the worker has."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, _: int) -> int:
        return sum(thread.name == "perfnb-stacks" for thread in threading.enumerate())


def seeded(worker: int) -> None:
    random.seed(worker)


def loader(dataset: Dataset[Any], context: str = "fork", **settings: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=2, num_workers=2, multiprocessing_context=context, **settings)


def line_of(words: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if words in line and "line_of" not in line)


def profile_of(batches: Any) -> perfnb.Profile:
    net = nn.Linear(3, 1)

    def step(batch: Tensor) -> None:
        net(batch).sum().backward()

    plan: dict[str, Any] = {"warmup": 1, "steps": 2, "traced": 1, "memory": False, "flops": False, "budget_s": 4}
    return perfnb.profile_step(step, batches, stacks=True, **plan)


def require_restored() -> None:
    assert (dataloader._MultiProcessingDataLoaderIter.__init__, dataloader._BaseDataLoaderIter.__next__) == ITERATORS
    assert not list(Path(tempfile.gettempdir()).glob("perfnb-stacks-*"))


@pytest.fixture(scope="module")
def made() -> DataLoader[Any]:
    return loader(Slow(64), worker_init_fn=seeded)


@pytest.fixture(scope="module")
def profile(made: DataLoader[Any]) -> perfnb.Profile:
    return profile_of(made)


def test_each_worker_is_a_root_of_its_own_and_the_slow_line_of_the_dataset_is_named(profile: perfnb.Profile) -> None:
    lines = profile.lines
    widest = lines[lines["process"] == "loader workers"].iloc[0]
    assert (widest["phase"], widest["function"]) == ("data", "Slow.__getitem__")
    assert (widest["file"], widest["line"]) == (__file__, line_of("# the planted line"))
    assert widest["code"] == "sleep(0.03)  # the planted line"
    assert 0 < widest["share"] <= 1
    assert profile.meta["python"] | {"workers": 2, "unreached_workers": 0} == profile.meta["python"]
    assert profile.python is not None
    stacks = profile.python.stacks["stack"]
    inside = stacks[stacks.str.contains("Slow.__getitem__")]
    assert set(inside.str.partition(";")[0]) == {"loader worker 0", "loader worker 1"}
    assert not set(profile.python.functions["function"]) & {"loader worker 0", "data"}
    assert "data (workers)" in str(profile)


@pytest.mark.parametrize(
    ("facts", "note"),
    [
        ({}, "Loader workers run alongside the step"),
        ({"steps": 4}, "keeps up to 4 batches ready. The 4 steps"),  # two workers make two batches each ahead
        ({"steps": 5}, None),
        ({"workers": 0}, "n/a: the Python code of the loader's workers"),
        ({"workers": 0, "unreached_workers": 2}, "n/a: the Python code of 2 loader workers that started before"),
    ],
)
def test_notes_say_what_samples_mean(facts: dict[str, int], note: str | None, profile: perfnb.Profile) -> None:
    recording = profile._recording
    python = {**recording.meta["python"], "samples": 1, **facts}
    stacks = step_stacks(replace(recording, meta={**recording.meta, "python": python}))
    assert stacks is not None
    notes = " ".join(stacks.record.notes)
    assert (note in notes) if note else ("batches ready" not in notes)


def test_the_loader_is_as_it_was(made: DataLoader[Any], profile: perfnb.Profile) -> None:
    assert made.worker_init_fn is seeded
    require_restored()


def worker_loop(work: Callable[[], Any]) -> Any:
    """Stands for the function that torch runs in a worker."""
    return work()


@pytest.fixture
def _in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_stacks, "_LOOP", worker_loop.__code__)


def frames_here() -> Any:
    return worker_stacks._frames(sys._getframe(1))


@pytest.mark.usefixtures("_in_a_worker")
def test_a_workers_frames_are_those_inside_its_loop_outermost_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def outer() -> Any:
        return inner()

    def inner() -> Any:
        return frames_here()

    def place(function: Any) -> tuple[str, str, int, int]:
        first = function.__code__.co_firstlineno
        return (function.__qualname__, __file__, first, first + 1)

    assert frames_here() is None
    assert worker_loop(outer) == (place(outer), place(inner))
    monkeypatch.setattr(worker_stacks, "DEEPEST", 2)
    assert worker_loop(outer) == (place(outer), place(inner))
    monkeypatch.setattr(worker_stacks, "DEEPEST", 1)
    assert worker_loop(outer) == (place(outer),)
    assert worker_stacks._frames(None) is None


@pytest.mark.usefixtures("_in_a_worker")
@pytest.mark.parametrize(
    ("name", "file", "idle"),
    [("get", "queues.py", True), ("put", "queues.py", False), ("get", "other.py", False), ("get", "", False)],
)
def test_a_worker_that_gets_from_a_queue_waits_for_work(name: str, file: str, idle: bool) -> None:
    scope: dict[str, Any] = {"frames_here": frames_here}
    path = str(Path("lib", "multiprocessing", file)) if file else "queues.py"
    exec(compile(f"def {name}():\n    return frames_here()", path, "exec"), scope)
    assert worker_loop(scope[name]) == ((IDLE,) if idle else ((name, path, 1, 2),))
    # A queue that the dataset itself reads is work.
    found = worker_loop(lambda: scope[name]())
    assert len(found) == 2


@pytest.mark.usefixtures("_in_a_worker")
def test_samples_are_written_while_the_pass_lasts_and_read_with_their_times(
    monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    naps: list[float] = []
    workers = WorkerStacks()
    with workers:
        folder = Path(workers._folder)
        path, go = folder / "4-3.stacks", folder / "go"
        path.touch()

        def nap(seconds: float) -> None:
            naps.append(seconds)
            clock.now_ns += 1_000_000 * len(naps)
            if len(naps) == 2:
                go.touch()
            if len(naps) == 6:
                go.unlink()

        monkeypatch.setattr(time, "sleep", nap)
        write = worker_stacks._write_samples
        worker_loop(lambda: write(str(path), str(go), threading.get_ident()))
        lines = path.read_text().splitlines()
        entries = [json.loads(line) for line in lines]
        assert [number for _, number, *_ in entries] == [0, 0, 0, 0]
        assert [len(new) for _, _, *new in entries] == [1, 0, 0, 0]  # each stack is written once
        times = [weight for weight, *_ in entries]
        assert times == pytest.approx([3e6, 4e6, 5e6, 6e6], abs=5_000)
        assert naps[:2] == [worker_stacks._LOOKS_S] * 2
        assert all(0.005 <= seconds <= 0.015 for seconds in naps[2:])

        (folder / "0-1.stacks").write_text('[5, 0, [["a", "f", 1, 2]]]\n[7, 1, [["b", "f", 3, 4]]]\n[9, 0]\n[1, 0')
        first, second, third = workers.read()
        assert first == (1, (("a", "f", 1, 2),), 2, 14)
        assert second == (1, (("b", "f", 3, 4),), 1, 7)
        assert (third.worker, third.samples, third.weight_ns) == (3, 4, sum(times))
        assert [name.rpartition(".")[2] for name, *_ in third.frames] == ["<lambda>", "_write_samples", "nap"][:2]

        write(str(folder / "gone.stacks"), str(go), 0)  # the capture has ended
        assert len(naps) == 6
        go.touch()
        write(str(folder / "gone.stacks"), str(go), 0)
        assert not (folder / "gone.stacks").exists()


def test_a_worker_starts_its_thread_before_the_users_function(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[Any] = []
    monkeypatch.setattr(worker_stacks, "_write_samples", lambda *args: said.append(args))
    sampled = worker_stacks._Sampled(lambda worker: said.append(worker), str(tmp_path), 2)
    sampled(5)
    wait_until(lambda: len(said) == 2)
    assert 5 in said
    assert (str(tmp_path / "2-5.stacks"), str(tmp_path / "go"), threading.get_ident()) in said

    def none(*_: Any, **__: Any) -> Any:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading, "Thread", none)
    sampled(6)
    assert said[-1] == 6
    worker_stacks._Sampled(None, str(tmp_path), 2)(7)


@pytest.mark.deep
def test_spawned_workers_are_sampled() -> None:
    made = loader(Slow(12), "spawn", worker_init_fn=seeded)
    with WorkerStacks() as workers, workers.sampling():
        list(made)
        found = workers.read()
    assert {stack.worker for stack in found} == {0, 1}
    lines = {(name, file, line) for stack in found for name, file, _, line in stack.frames}
    assert ("Slow.__getitem__", __file__, line_of("# the planted line")) in lines
    require_restored()


def batches(sampled: bool) -> Tensor:
    torch.manual_seed(3)
    random.seed(3)
    made = loader(Slow(), worker_init_fn=seeded, shuffle=True)
    if not sampled:
        return torch.cat(list(made))
    with WorkerStacks() as workers, workers.sampling(), StackSampler() as sampler, sampler.step():
        found = torch.cat(list(made))
        assert {stack.worker for stack in workers.read()} == {0, 1}
    return torch.cat([found, torch.tensor([[random.random()] * 3])])


def test_batches_are_the_same_bit_by_bit() -> None:
    without = batches(False)
    of_step = random.random()
    found = batches(True)
    assert torch.equal(found[:-1], without)
    # The step's own random numbers are the same too.
    assert found[-1, 0] == torch.tensor(of_step)


@pytest.fixture
def alive() -> Iterator[DataLoader[Any]]:
    made = loader(Threads(), persistent_workers=True)
    yield made
    made._iterator = None


def test_an_interrupt_ends_the_threads_of_workers_that_live_on(alive: DataLoader[Any]) -> None:
    seen = []

    def interrupted() -> None:
        with WorkerStacks() as workers, workers.sampling():
            seen.extend(next(iter(alive)).tolist())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    require_restored()
    assert seen == [1, 1]
    wait_until(lambda: next(iter(alive)).tolist() == [0, 0])


def test_an_error_in_a_worker_is_the_users() -> None:
    made = loader(Slow(100), sampler=[0, 99], worker_init_fn=seeded)
    with pytest.raises(ValueError, match="a bad file"):
        profile_of(made)
    assert made.worker_init_fn is seeded
    require_restored()


def test_only_workers_that_started_here_and_meanwhile_are_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    class Single:
        def __init__(self, loader: Any) -> None:
            self.init = loader.worker_init_fn

        def __next__(self) -> str:
            return "batch"

    class Several(Single):
        def __init__(self, loader: Any) -> None:
            super().__init__(loader)
            self._workers = [None] * loader.num_workers

    monkeypatch.setattr(dataloader, "_BaseDataLoaderIter", Single)
    monkeypatch.setattr(dataloader, "_MultiProcessingDataLoaderIter", Several)
    loader, elsewhere = SimpleNamespace(num_workers=2, worker_init_fn=print), list[Any]()

    def on_a_thread(function: Callable[[], Any]) -> None:
        thread = threading.Thread(target=lambda: elsewhere.append(function()))
        thread.start()
        thread.join()

    before = Several(loader)
    with WorkerStacks() as workers:
        started = Several(loader)
        on_a_thread(lambda: Several(loader))
        other: Any = elsewhere[0]
        with workers.sampling():
            assert [next(each) for each in (started, Single(loader))] == ["batch"] * 2
            on_a_thread(lambda: next(before))
        assert workers.unreached == 0
        with workers.sampling():
            assert {next(each) for each in (before, before, other, started)} == {"batch"}
        assert workers.unreached == 4
    assert (loader.worker_init_fn, before.init, other.init) == (print, print, print)
    assert isinstance(started.init, worker_stacks._Sampled)
