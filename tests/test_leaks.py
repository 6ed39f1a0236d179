"""`find_leaks` from the step to the verdict, on torch's own allocator and the process's own memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import perfnb.capture.memory
from perfnb.leaks import Leaks, find_leaks
from tests.watched import small_model, watch

MIB = 2**20


@pytest.fixture
def found(monkeypatch, tmp_path) -> Iterator[Callable[[Callable[[], Any]], Leaks]]:
    """`find_leaks` of a step, with a watch that is not perfnb's."""
    torch.set_num_threads(1)

    def watch_steps(step, batches, *, steps, warmup, model):
        assert batches is None
        return watch(step, tmp_path, steps=steps, warmup=warmup)

    monkeypatch.setattr(perfnb.capture.memory, "watch_steps", watch_steps, raising=False)
    yield lambda step: find_leaks(step, steps=40, name="a step")
    torch.set_num_threads(2)


def training(extra: Callable[[torch.Tensor], Any] = lambda output: None, vary: bool = False) -> Callable[[], None]:
    model, optimizer = small_model()
    last: dict[str, Any] = {}

    def step() -> None:
        optimizer.zero_grad()
        last["output"] = output = model(torch.randn(random.randint(4, 64) if vary else 16, 64))
        output.square().mean().backward()
        optimizer.step()
        extra(output)

    return step


def test_a_training_step_leaks_nothing(found) -> None:
    leaks = found(training())
    assert leaks.verdict == "no leak seen", str(leaks)
    assert leaks.allocator is not None
    assert leaks.allocator.bytes_per_step == 0
    assert len(leaks.survivors) == 0


def test_batches_of_varying_size_are_no_leak(found) -> None:
    leaks = found(training(vary=True))
    assert leaks.verdict == "no leak seen", str(leaks)


def test_images_of_varying_size_are_no_leak(found) -> None:
    # Convolutions of each new shape are prepared and kept by oneDNN, where torch uses it: the process does grow.
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3))
    last: dict[str, Any] = {}

    def step() -> None:
        model.zero_grad()
        last["output"] = output = model(torch.randn(random.randint(1, 8), 3, *random.choices(range(16, 48), k=2)))
        output.square().mean().backward()

    leaks = found(step)
    assert leaks.verdict != "leak", str(leaks)
    assert leaks.allocator is not None
    assert not leaks.allocator.excludes_zero


@pytest.mark.parametrize("vary", [False, True])
def test_a_tensor_of_1_mib_kept_of_each_step(found, vary: bool) -> None:
    kept = []
    leaks = found(training(lambda output: kept.append(torch.ones(MIB // 4)), vary))
    assert leaks.verdict == "leak", str(leaks)
    for slope in (leaks.allocator, leaks.process):
        assert slope is not None
        assert slope.bytes_per_step == pytest.approx(MIB, rel=0.02)
        assert slope.grows
    assert leaks.survivors["bytes_per_step"].sum() == MIB
    assert leaks.survivors["op"].tolist() == ["aten::empty"]
    assert "1.00 MiB a step" in repr(leaks)


def test_an_array_of_1_mib_kept_of_each_step_lies_outside_torch(found) -> None:
    kept = []
    leaks = found(training(lambda output: kept.append(np.ones(MIB // 8))))
    assert leaks.verdict == "leak", str(leaks)
    assert leaks.allocator is not None
    assert not leaks.allocator.excludes_zero
    assert leaks.process is not None
    assert leaks.process.bytes_per_step == pytest.approx(MIB, rel=0.02)
    assert "outside torch" in leaks.sentence


def test_outputs_kept_with_their_graph(found) -> None:
    kept = []
    model, _ = small_model(256)
    leaks = found(lambda: kept.append(model(torch.randn(64, 256)).sum()))
    assert leaks.verdict == "leak", str(leaks)
    # The input, the first layer's output after ReLU, of 64 KiB each, and the sum; the second output is not saved.
    assert leaks.survivors["bytes_per_step"].sum() == 2 * 64 * 1024 + 4


def test_cycles_are_garbage(found) -> None:
    def ring(output: torch.Tensor) -> None:
        held: dict[str, Any] = {"tensor": torch.ones(MIB // 4)}
        held["itself"] = held

    leaks = found(training(ring))
    assert leaks.verdict == "no leak seen", str(leaks)
    assert "reference cycles" in leaks.sentence


def test_the_object_shows_itself_and_gives_frames_away(found) -> None:
    leaks = found(training())
    bundle = leaks._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert bundle["text/plain"] == str(leaks)
    assert "a step" in bundle["text/html"]
    steps = leaks.steps
    steps["step"] = 0
    assert leaks.steps["step"].tolist() == list(range(40))
