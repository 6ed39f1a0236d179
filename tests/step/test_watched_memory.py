"""Whose memory a block is, by the live objects of a step, and that watching it ends with the step."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from typing import Any

import psutil
import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from perfnb.step import memory
from perfnb.step.budget import Plan
from perfnb.step.memory import Known, LiveObjects, MemoryWatch, inputs, resident_memory, storages
from perfnb.step.pass_order import capture_step
from perfnb.step.steps import SkippedStep
from perfnb.step.to_recording import recording_of
from perfnb.trace_names import MARK_SPAN

pytestmark = pytest.mark.usefixtures("nothing_left")


def trained() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """Return a model after a step of Adam: six parameters, of which four have gradients, and three buffers."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    model[2].requires_grad_(False)
    adam = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 2)).sum().backward()
    adam.step()
    return model, adam


def named(blocks: list[Known], model: nn.Module) -> dict[str, list[tuple[str, str | None, int]]]:
    """Layer, name and bytes of each block, by category."""
    layers = {id(module): name for name, module in model.named_modules()}
    found: dict[str, list[tuple[str, str | None, int]]] = {}
    for block in blocks:
        found.setdefault(block.category, []).append((layers.get(block.module or 0, "?"), block.name, block.bytes))
    return {category: sorted(entries, key=str) for category, entries in found.items()}


def test_every_block_of_a_training_step_has_its_owner() -> None:
    model, adam = trained()
    objects = LiveObjects()
    objects.add_model(model)
    objects.add_model(model[0])  # is known already
    objects.add_optimizer(adam)
    found = named(list(objects.blocks()), model)
    sizes = {("0", "weight"): 24, ("0", "bias"): 12, ("1", "weight"): 12, ("1", "bias"): 12}
    frozen = {("2", "weight"): 12, ("2", "bias"): 4}
    buffers = {("1", "running_mean"): 12, ("1", "running_var"): 12, ("1", "num_batches_tracked"): 8}
    assert found["parameters"] == sorted(((*key, size) for key, size in (sizes | frozen | buffers).items()), key=str)
    assert found["gradients"] == sorted(((*key, size) for key, size in sizes.items()), key=str)
    of_adam = {"exp_avg": None, "exp_avg_sq": None, "step": 4}
    state = [
        (layer, f"{name} ({word})", size if own is None else own)
        for (layer, name), size in sizes.items()
        for word, own in of_adam.items()
    ]
    assert found["optimizer_state"] == sorted(state, key=str)


def test_if_no_optimizer_steps_that_of_the_known_models_is_used() -> None:
    model, _adam = trained()
    other, _of_other = trained()
    objects = LiveObjects()
    objects.add_model(model)
    objects.add_optimizers_not_seen()
    theirs = {id(parameter) for parameter in other.parameters()}
    assert not theirs & {id(parameter) for parameter in objects.parameters}
    assert len(objects.parameters) == 6
    assert sum(block.category == "optimizer_state" for block in objects.blocks()) == 12
    objects.add_model(other)
    objects.add_optimizers_not_seen()  # one is known
    assert sum(block.category == "optimizer_state" for block in objects.blocks()) == 12


def test_parameters_of_no_model_are_known_through_their_optimizer() -> None:
    alone = nn.Parameter(torch.ones(5))
    objects = LiveObjects()
    objects.add_optimizer(torch.optim.SGD([alone]))
    assert list(objects.blocks()) == [Known(alone.data_ptr(), 20, "cpu", "parameters")]
    assert list(objects.gradient(alone)) == []


class Broken(list[Any]):
    """A batch whose items cannot be read."""

    def __iter__(self) -> Any:
        raise RuntimeError("no items")


def test_inputs_are_what_no_layer_made() -> None:
    x, weight = torch.ones(6), nn.Parameter(torch.ones(2))
    found = list(inputs({"x": [x, weight], "y": (weight * 2,), "name": "a"}))
    assert found == [Known(x.data_ptr(), 24, "cpu", "inputs")]
    assert list(inputs(Broken([x]))) == []


def test_tensors_without_data_have_no_storage() -> None:
    x = torch.ones(3)
    assert list(storages(x[1:])) == [(x.data_ptr(), 12, "cpu")]
    for empty in (torch.ones(3, device="meta"), torch.eye(2).to_sparse(), torch.ones(0)):
        assert list(storages(empty)) == []


def test_resident_memory_is_read_until_the_end_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    read = psutil.Process.memory_info

    def slowly(process: psutil.Process) -> Any:
        time.sleep(0.05)
        return read(process)

    monkeypatch.setattr(psutil.Process, "memory_info", slowly)
    begin = time.time_ns()
    with resident_memory() as readings:
        pass
    assert "perfnb-resident-memory" not in {thread.name for thread in threading.enumerate()}
    assert readings
    assert all(begin <= at <= time.time_ns() and size > 2**20 for at, size in readings)


@pytest.mark.parametrize("recorded", [True, False])
def test_owners_are_recorded_around_a_step_and_at_each_event_inside(
    recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch, made = nn.Linear(2, 1, bias=False), torch.ones(3, 2), nn.Linear(5, 1, bias=False)
    sgd = torch.optim.SGD([*model.parameters(), *made.parameters()], momentum=0.5)
    labels: list[str] = []
    called = [model]
    monkeypatch.setattr(memory, "profiler_active", lambda: recorded)
    monkeypatch.setattr(memory, "everything", lambda: iter([Known(1, 2, "cpu", "other")]))
    monkeypatch.setattr(memory, "function_span", lambda label: labels.append(label) or nullcontext())
    with MemoryWatch(lambda: called) as watch, watch.step():
        called.append(made)
        watch.inputs([batch])
        model(batch).sum().backward()
        sgd.step()
    sgd.step()

    seen: dict[int, list[tuple[str, str | None, int]]] = {}
    for mark, block in watch.watched.known:
        seen.setdefault(mark, []).append((block.category, block.name, block.bytes))
    weight, gradient = ("parameters", "weight", 8), ("gradients", "weight", 8)
    momentum, other = ("optimizer_state", "weight (momentum_buffer)", 8), ("parameters", None, 20)
    assert seen == (
        {
            0: [weight, ("other", None, 2)],
            1: [("inputs", None, 24)],
            2: [gradient],
            3: [weight, other, gradient],
            4: [weight, other, gradient, momentum],
            5: [weight, ("parameters", "weight", 20), gradient, momentum],
        }
        if recorded
        else {}
    )
    assert labels == ([f"{MARK_SPAN}{mark}" for mark in range(6)] if recorded else [])
    assert len(watch.watched.step_begins) == 1
    assert watch.watched.resident


def test_only_parameters_that_accumulate_a_gradient_are_watched_for_it() -> None:
    model = nn.Linear(2, 1)
    model.bias.requires_grad_(False)
    model.register_parameter("scale", nn.Parameter(torch.ones(1)))
    model._parameters["made"] = model.weight * 2  # type: ignore[assignment]
    with MemoryWatch(lambda: [model]):
        watched = [name for name, each in model.named_parameters() if each._post_accumulate_grad_hooks]
    assert watched == ["weight", "scale"]


def test_the_parts_of_a_tensor_that_wraps_others_have_the_storages() -> None:
    inner, other = torch.ones(2), torch.ones(3)
    nested = TwoTensor(inner, inner.clone())
    wrapper = TwoTensor(inner, other[:2])
    assert [size for _, size, _ in storages(nested)] == [8, 8]
    assert [address for address, *_ in storages(wrapper)] == [inner.data_ptr(), other.data_ptr()]


@pytest.mark.parametrize(("frozen", "freezes"), [(0, True), (1, False)])
def test_a_footprint_freezes_objects_unless_the_user_did(
    frozen: int, freezes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)
    for name in ("collect", "freeze", "unfreeze"):
        monkeypatch.setattr(gc, name, lambda name=name: done.append(name))
    monkeypatch.setattr(memory, "_malloc_trim", lambda: lambda pad: done.append(f"trim {pad}"))
    with memory.footprint() as read:
        assert done == ["collect", *["freeze"] * freezes]
        assert read() > 2**20
        assert done[-2:] == ["collect", "trim 0"]
    assert done[-1] == ("unfreeze" if freezes else "trim 0")
    monkeypatch.setattr(memory, "_malloc_trim", lambda: None)
    done.clear()
    with pytest.raises(KeyboardInterrupt), memory.footprint() as read:  # noqa: PT012
        assert read() > 2**20
        raise KeyboardInterrupt
    assert done == (["collect", "freeze", "collect", "unfreeze"] if freezes else ["collect"] * 2)


#: Many small blocks with one kept at the top: without a trim, the freed ones would stay resident.
KEEPS_ONE = f"""
import numpy as np
from perfnb.step.memory import footprint
with footprint() as read:
    before = read()
    blocks = [np.ones(4096) for _ in range({(HOLDS := 2**26)} // (4096 * 8))]
    top = np.ones(4096)
    held = read()
    del blocks
    print(held - before, read() - before)
"""


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.skipif(memory._malloc_trim() is None, reason="needs glibc")
def test_what_is_kept_shows_and_what_was_freed_does_not() -> None:
    # In a process of its own: one that ran other tests has free pages, which new blocks take first.
    told = subprocess.run([sys.executable, "-c", KEEPS_ONE], capture_output=True, text=True, check=True).stdout
    held, after = map(int, told.split())
    assert held == pytest.approx(HOLDS, rel=0.1)
    assert after < HOLDS / 10


def test_another_c_library_cannot_return_free_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    assert memory._malloc_trim() is None


def test_a_skipped_step_is_not_among_the_watched_ones_and_a_failed_one_is() -> None:
    watch = MemoryWatch(lambda: ())
    with watch:
        for error in (SkippedStep, ValueError):
            with pytest.raises(error), watch.step():
                raise error
        with watch.step():
            pass
    assert len(watch.watched.step_begins) == 2
    assert watch.watched.step_begins == sorted(watch.watched.step_begins)


def test_resident_memory_is_on_the_clock_of_the_trace() -> None:
    model = nn.Linear(4, 4)

    def step() -> None:
        model(torch.ones(2, 4)).sum().backward()
        time.sleep(0.05)

    plan = Plan(warmup=0, steps=1, traced=1, flops=False)
    record = recording_of(capture_step(step, plan=plan, namespace={"model": model}), "step").memory
    assert record is not None
    assert len(record.resident)
    at = record.changes["time_ns"]
    assert record.resident["time_ns"].between(at.min() - 10**10, at.max() + 10**10).all()
