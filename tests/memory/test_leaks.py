"""`find_leaks` from the step to the verdict, on torch's own allocator and the process's own memory."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import perfnb
from perfnb.errors import NestedProfilerError
from perfnb.memory.leaks.find import Leaks, find_leaks

pytestmark = pytest.mark.usefixtures("nothing_left")

MIB = 2**20


@pytest.fixture(autouse=True, scope="module")
def _earlier_tests_set_apart() -> None:
    """What they have made would be walked over at each reading of the process. `thawed` is the other way."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _one_thread(_seeded: None) -> None:
    """Run torch on one thread: its others take memory when they first work."""
    torch.set_num_threads(1)


class Between(nn.Module):
    """Calls `what` with each input, and lets it pass."""

    def __init__(self, what: Callable[[Tensor], Any] = lambda x: None) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: Tensor) -> Tensor:
        self.what(x)
        return x

    def __len__(self) -> int:
        return 0  # as a container without modules


def training(what: Callable[[Tensor], Any] = lambda x: None, vary: bool = False) -> Callable[[], None]:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), Between(what), nn.Linear(64, 8))
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(random.randint(4, 64) if vary else 16, 64)).square().mean().backward()
        optimizer.step()

    return step


IN_A_PROCESS_OF_ITS_OWN = """
import numpy as np, torch
from perfnb.memory.leaks.find import find_leaks
from tests.memory.test_leaks import MIB, training
torch.set_num_threads(1)
kept = []
for make in (lambda: torch.ones(MIB // 4)), (lambda: np.ones(MIB // 8)):
    slope = find_leaks(training(lambda x: kept.append(make()))).process
    print(slope.bytes_per_step, int(slope.grows))
"""


@pytest.mark.deep
@pytest.mark.slow
def test_the_process_s_own_memory_tells_1_mib_within_2_percent() -> None:
    """A process that has run a thousand tests hands memory back meanwhile: this one is fresh."""
    command = [sys.executable, "-c", IN_A_PROCESS_OF_ITS_OWN]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    for line in done.stdout.splitlines()[-2:]:  # tensors and arrays, all of which are kept
        bytes_per_step, grows = map(float, line.split())
        assert bytes_per_step == pytest.approx(MIB, rel=0.02)
        assert grows


@pytest.mark.slow
def test_a_training_step_leaks_nothing() -> None:
    leaks = perfnb.find_leaks(training())
    assert leaks.verdict == "no leak seen", str(leaks)
    assert leaks.allocator is not None
    assert leaks.allocator.bytes_per_step == 0
    assert not leaks.allocator.excludes_zero
    assert len(leaks.survivors) == 0


@pytest.mark.slow
def test_a_tensor_of_1_mib_kept_in_a_layer_is_a_leak_with_its_owner() -> None:
    kept = []
    leaks = find_leaks(training(lambda x: kept.append(torch.ones(MIB // 4)), vary=True))
    assert leaks.verdict == "leak", str(leaks)
    assert leaks.allocator is not None
    assert leaks.allocator.bytes_per_step == pytest.approx(MIB, rel=0.02)
    assert leaks.survivors.drop(columns="device").to_dict("records") == [
        {
            "layer": "model.2",
            "phase": "forward",
            "op": "aten::ones",
            "bytes_per_step": MIB,
            "count_per_step": 1,
            "steps": 32,
            "kind": "kept",
        }
    ]
    assert "allocated in model.2 (forward) by aten::ones" in leaks.sentence
    assert "1.00 MiB [1.00, 1.00] per step" in repr(leaks)
    assert len(kept) == 10 + 40 + 40 + 40


def test_outputs_kept_with_their_graph() -> None:
    kept = []
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))
    leaks = find_leaks(lambda: kept.append(model(torch.randn(64, 256)).sum()), steps=15, warmup=1)
    assert leaks.verdict == "leak", str(leaks)
    # The input, the first layer's output after ReLU, of 64 KiB each, and the sum; the second output is not saved.
    assert leaks.survivors["bytes_per_step"].sum() == 2 * 64 * 1024 + 4
    assert set(leaks.survivors["layer"].dropna()) == {"model.1"}


def test_gradients_that_pile_up_are_made_in_backward() -> None:
    kept = []
    model = nn.Linear(512, 512, bias=False)

    def step() -> None:
        model(torch.ones(2, 512)).sum().backward()
        kept.append(model.weight.grad)
        model.weight.grad = None

    leaks = find_leaks(step, steps=15, warmup=1)
    assert leaks.verdict == "leak", str(leaks)
    assert leaks.survivors[["layer", "phase", "bytes_per_step"]].to_numpy().tolist() == [["model", "backward", MIB]]


@pytest.mark.slow
def test_a_cache_that_fills_and_then_stops_is_not_a_leak() -> None:
    cache: list[Tensor] = []
    leaks = find_leaks(training(lambda x: cache.append(torch.ones(MIB // 4)) if len(cache) < 80 else None))
    assert leaks.verdict == "no leak seen", str(leaks)
    assert "a cache that is being filled" in leaks.sentence


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.usefixtures("thawed")
@pytest.mark.parametrize("automatic", [False, True])
def test_cycles_are_garbage(automatic: bool) -> None:
    def ring(x: Tensor) -> None:
        held: dict[str, Any] = {"tensor": torch.ones(MIB // 4)}
        held["itself"] = held

    if not automatic:  # else it may come in any step, also in the last one
        gc.disable()
    try:
        leaks = find_leaks(training(ring))
    finally:
        gc.enable()
    assert leaks.verdict == "no leak seen", str(leaks)
    assert automatic or "reference cycles" in leaks.sentence


@pytest.mark.slow
def test_a_model_that_each_step_makes_anew_is_not_kept_by_the_watch() -> None:
    def step() -> None:
        model = nn.Sequential(nn.Linear(512, 512), nn.Sequential(), nn.Linear(512, 8))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(4, 512)).sum().backward()
        optimizer.step()

    leaks = find_leaks(step, steps=15, warmup=1)
    assert leaks.verdict == "no leak seen", str(leaks)
    assert leaks.steps["allocated_bytes"].eq(0).all()


def test_layers_within_a_model_made_anew_are_named_by_their_class() -> None:
    kept = []
    leaks = find_leaks(lambda: Between(lambda x: kept.append(x * 2))(torch.ones(MIB // 4)), steps=15, warmup=1)
    assert leaks.survivors[["layer", "op"]].to_numpy().tolist() == [["Between", "aten::mul"]]


@pytest.mark.slow
def test_older_tensors_that_go_one_by_one_are_no_leak() -> None:
    kept: deque[Tensor] = deque(maxlen=60)
    kept.extend(torch.ones(MIB // 4) for _ in range(60))
    for _ in range(2):  # what torch knows of one watch misleads it in the next
        leaks = find_leaks(training(lambda x: kept.append(torch.ones(MIB // 4))))
        assert leaks.allocator is not None
        assert leaks.allocator.bytes_per_step == MIB
        assert leaks.verdict == "inconclusive", str(leaks)
        assert "older allocations may be freed" in leaks.sentence


@pytest.mark.slow
def test_a_recording_that_grows_too_large_ends_early(monkeypatch) -> None:
    monkeypatch.setattr("perfnb.step.session.MOST_RECORDED_BYTES", 1)
    kept = []
    leaks = find_leaks(training(lambda x: kept.append(torch.ones(MIB // 4))))
    assert len(kept) == 10 + 40 + 15 + 15
    assert leaks.verdict == "leak", str(leaks)
    assert leaks.steps["allocated_bytes"].notna().sum() == 15
    assert leaks.steps["process_bytes"].notna().sum() == 15


def test_batches_reach_the_step_and_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    leaks = find_leaks(lambda batch: seen.append(batch), range(7), steps=20, warmup=3)
    assert seen == [place % 7 for place in range(3 + 20 + 20)]
    assert leaks.verdict == "no leak seen", str(leaks)
    assert (len(leaks.steps), leaks.after) == (20, 43)
    monkeypatch.setattr("perfnb.memory.leaks.find.process_grows", lambda _: True)  # so there is a third round
    assert find_leaks(lambda batch: seen.append(batch), range(7), steps=15, warmup=3).after == len(seen) - 43 == 48


def test_a_layer_has_the_name_that_its_model_is_given_and_no_other_is_named() -> None:
    kept = []
    inner, outer = Between(lambda x: kept.append(x + 1)), nn.Linear(8, 8)
    leaks = find_leaks(lambda: inner(outer(torch.ones(4, 8))), model={"<b>mine</b>": inner}, steps=15, warmup=1)
    assert set(leaks.survivors["layer"].dropna()) == {"<b>mine</b>"}
    assert "<b>mine" not in leaks._repr_mimebundle_()["text/html"]


class Interrupted:
    """Interrupts itself, or fails, when it is called for the n-th time."""

    def __init__(self, at: int, how: Callable[[], None]) -> None:
        self.left, self.how = at, how

    def __call__(self, x: object = None) -> None:
        self.left -= 1
        if self.left == 0:
            self.how()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(100):  # Python runs the handler between two of these
        pass


def fail() -> None:
    raise ZeroDivisionError


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "how", "error"),
    [(1, fail, ZeroDivisionError), (5, interrupt, KeyboardInterrupt), (20, interrupt, KeyboardInterrupt)],
    ids=["warm-up", "process", "allocations"],
)
def test_interrupts_and_exceptions_reach_the_caller_and_the_next_watch_is_whole(
    at: int, how: Callable[[], None], error: type[BaseException]
) -> None:
    fails = Interrupted(at, how)

    with pytest.raises(error):
        find_leaks(training(fails), steps=15, warmup=2)

    assert fails.left == 0
    kept = []
    leaks = find_leaks(training(lambda x: kept.append(torch.ones(MIB // 4))), steps=15, warmup=2)
    assert leaks.verdict == "leak", str(leaks)


def test_an_interrupt_between_two_steps_waits_for_the_next(monkeypatch) -> None:
    ran = Interrupted(0, interrupt)
    reading = Interrupted(3, interrupt)
    monkeypatch.setattr("perfnb.step.memory._malloc_trim", lambda: lambda _: reading())  # a part of each reading

    with pytest.raises(KeyboardInterrupt):
        find_leaks(ran, steps=15, warmup=2)

    assert (-ran.left, reading.left) == (2 + 3, 0)


def test_no_watch_runs_inside_another_or_a_profiler() -> None:
    with pytest.raises(NestedProfilerError):
        find_leaks(lambda: perfnb.find_leaks(training()))
    with torch.profiler.profile(), pytest.raises(NestedProfilerError):
        find_leaks(training())


@pytest.mark.parametrize(
    ("step", "options", "message"),
    [
        (None, {}, "step must be a function that runs one step, not NoneType"),
        (lambda: None, {"steps": 0}, "steps must be a whole number of at least 1, not 0"),
        (lambda: None, {"warmup": -1}, "warmup must be a whole number of at least 0, not -1"),
        (lambda: None, {"model": 3}, "model must be a torch module, a list of modules or a dict"),
        (lambda x: None, {"batches": []}, "batches is empty"),
        (lambda: None, {"name": 3}, "name must be text, not 3"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_sentence(step: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError, perfnb.PerfnbError), match=message):
        find_leaks(step, **options)


@pytest.fixture(scope="module")
def few() -> Leaks:
    return find_leaks(lambda: None, steps=5, warmup=0, name="a step")


def test_too_few_steps_are_inconclusive(few: Leaks) -> None:
    assert few.verdict == "inconclusive"
    assert "Too few steps" in few.sentence


def test_the_object_shows_itself(few: Leaks) -> None:
    bundle = few._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert bundle["text/plain"] == str(few)
    assert "a step" in bundle["text/html"]


@pytest.mark.deep
def test_images_of_varying_size_are_no_leak() -> None:
    # Convolutions of each new shape are prepared and kept by oneDNN, where torch uses it: the process does grow.
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))

    def step() -> None:
        model.zero_grad()
        model(torch.randn(random.randint(1, 8), 3, *random.choices(range(16, 48), k=2))).square().mean().backward()

    leaks = find_leaks(step)
    assert leaks.verdict != "leak", str(leaks)
    assert leaks.allocator is not None
    assert not leaks.allocator.excludes_zero
