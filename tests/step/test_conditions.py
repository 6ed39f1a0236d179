"""What disturbed the steps, and which optimizers and spans they used."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from perfnb.step import environment
from perfnb.step.environment import Conditions
from perfnb.step.layers import Calls
from perfnb.step.optimizers import cannot_foreach, cannot_fuse, has_sparse_gradients, tensors_of
from perfnb.step.pass_order import spans_of
from tests.fake_clock import FakeClock

MS = 1_000_000


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Keep Python from collecting garbage by itself."""
    was = gc.isenabled()
    gc.disable()
    yield
    if was:
        gc.enable()


def pauses_of(clock: FakeClock, steps: list[tuple[int, int]], collections: list[tuple[int, int, bool]]) -> Any:
    """Return the facts of steps from and until these times in ms.

    Each collection has a beginning, an end, and whether it ends while a step is running.
    """
    start = clock.now_ns
    with Conditions() as conditions:
        waiting = list(collections)
        for number, (begin, end) in enumerate(steps):
            conditions.step = number
            while waiting and waiting[0][0] < end:
                first, last, running = waiting.pop(0)
                conditions.running = running
                (collects,) = [each for each in gc.callbacks if getattr(each, "__self__", None) is conditions]
                clock.now_ns = start + first * MS
                collects("start", {})
                clock.now_ns = start + last * MS
                collects("stop", {})
            conditions.ended(start + begin * MS, start + end * MS)
    return conditions.facts


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize(
    ("collection", "pauses"),
    [
        ((120, 150, True), [[0, 30]]),
        ((80, 150, True), [[0, 50]]),  # it began before the step
        ((180, 250, True), [[0, 20]]),  # it ended after the step
        ((80, 250, True), [[0, 100]]),
        ((50, 99, True), []),
        ((120, 150, False), []),
    ],
)
def test_a_collection_counts_as_far_as_it_lies_in_a_step(
    collection: tuple[int, int, bool], pauses: list[list[float]], clock: FakeClock
) -> None:
    facts = pauses_of(clock, [(100, 200)], [collection])
    assert [step for step, _ in facts["gc_pauses"]] == [step for step, _ in pauses]
    assert [ms for _, ms in facts["gc_pauses"]] == pytest.approx([ms for _, ms in pauses], abs=0.01)
    assert facts["gc_share"] == pytest.approx(sum(ms for _, ms in pauses) / 100, abs=1e-4)


@pytest.mark.usefixtures("no_collections")
def test_the_share_of_collections_is_that_of_all_steps(clock: FakeClock) -> None:
    facts = pauses_of(clock, [(0, 100), (100, 200), (300, 500)], [(10, 20, True), (110, 130, True), (400, 470, True)])
    assert [step for step, _ in facts["gc_pauses"]] == [0, 1, 2]
    assert facts["gc_share"] == pytest.approx(100 / 400, abs=1e-4)


@pytest.mark.usefixtures("no_collections")
def test_without_steps_there_is_no_share_and_the_callback_is_removed() -> None:
    before = list(gc.callbacks)
    with Conditions() as conditions:
        assert len(gc.callbacks) == len(before) + 1
    assert gc.callbacks == before
    assert "gc_share" not in conditions.facts
    assert conditions.facts["gc_pauses"] == []


def test_interruptions_are_those_since_the_first_step_if_they_were_counted_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for before, more in (({"throttled_ms": 1.25}, {"throttled_ms": 3.25}), ({}, {})):
        counts = iter([{"involuntary_switches": 5} | before, {"involuntary_switches": 8, "throttled_ms": 4.5004}])
        monkeypatch.setattr(environment, "_interruptions", lambda counts=counts: next(counts))
        with Conditions() as conditions:
            pass
        found = {name: value for name, value in conditions.facts.items() if name.startswith(("inv", "throttled"))}
        assert found == {"involuntary_switches": 3} | more


def test_the_load_and_the_clock_of_the_cpu_are_left_out_if_they_are_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1.2349, 8.0, 9.0), raising=False)
    frequencies = iter([SimpleNamespace(current=2345.6), SimpleNamespace(current=0.0), None])
    monkeypatch.setattr("psutil.cpu_freq", lambda: next(frequencies))
    assert environment._now("before") == {"load_before": 1.23, "cpu_mhz_before": 2346}
    monkeypatch.delattr(os, "getloadavg")
    assert environment._now("after") == environment._now("after") == {}


@pytest.mark.parametrize(("affinity", "limit", "usable"), [(4, None, 4.0), (4, 1.5, 1.5), (2, 8.0, 2.0), (2, 2.0, 2.0)])
def test_usable_cpus_are_limited_by_affinity_and_cgroup(
    affinity: int, limit: float | None, usable: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "available_cpus", lambda: affinity)
    monkeypatch.setattr(environment, "cpu_limit", lambda: limit)
    assert environment.usable_cpus() == usable


def test_a_process_may_run_on_all_cpus_where_it_has_no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3}, raising=False)
    assert environment.available_cpus() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    for count, available in ((7, 7), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert environment.available_cpus() == available


def test_the_processor_is_named_by_python_if_the_system_does_not_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.open", failing(OSError()))
    for word in ("processor", "machine"):
        monkeypatch.setattr(f"platform.{word}", lambda word=word: word)
        assert environment._processor() == word
        monkeypatch.setattr(f"platform.{word}", lambda: "")


def test_the_commit_is_left_out_where_git_does_not_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def facts(commit: str | None, changes: str | None) -> dict[str, Any]:
        monkeypatch.setattr(environment, "_git", lambda *words: commit if words[0] == "rev-parse" else changes)
        return environment._commit()

    assert facts(None, "") == {}
    assert facts("abc", None) == {"commit": "abc"}
    assert facts("abc", "") == {"commit": "abc", "uncommitted": False}
    assert facts("abc", " M file") == {"commit": "abc", "uncommitted": True}


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("error", [OSError(), subprocess.TimeoutExpired("git", 1), UnicodeError()])
def test_what_git_or_a_package_does_not_tell_is_unknown(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", failing(error))
    assert environment._git("status") is None
    assert environment._version("no-such-package-anywhere") is None
    assert environment._version("numpy") == np.__version__


def test_what_git_says_has_no_line_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda command, **_: SimpleNamespace(stdout=f" {command[-1]}\n"))
    assert environment._git("rev-parse", "HEAD") == "HEAD"


@pytest.mark.parametrize(
    ("kind", "cuda", "bf16", "amx", "dtype"),
    [
        ("cuda", True, False, False, "bfloat16"), ("cuda", False, True, True, None), ("cpu", True, False, False, None),
        ("cpu", False, True, False, "bfloat16"), ("cpu", False, False, True, "bfloat16"),
    ],
)  # fmt: skip
def test_a_lower_precision_needs_native_instructions(
    kind: str, cuda: bool, bf16: bool, amx: bool, dtype: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: cuda and not including_emulation)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)
    assert environment.lower_precision(kind) == dtype
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", failing(RuntimeError()), raising=False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", failing(TypeError()))
    assert environment.lower_precision(kind) is None


def test_the_place_in_a_job_is_that_of_the_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    assert environment.place_in_job() == {"rank": 3, "world_size": 4}
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    assert environment.place_in_job() is None
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert environment.place_in_job() is None


@pytest.mark.parametrize("known", [True, False])
def test_a_gpu_in_use_is_asked_why_it_is_slow(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []

    def reasons(device: bytes) -> int:
        said.append(device)
        if not known:
            raise OSError
        return 0x001 | 0x004 | 0x040

    library = SimpleNamespace(
        nvmlInit=lambda: said.append("begin"),
        nvmlShutdown=lambda: said.append("end"),
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetCurrentClocksThrottleReasons=reasons,
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)  # type: ignore[arg-type]
    monkeypatch.setattr(environment, "cuda_in_use", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"a-{index}"))
    with Conditions() as conditions:
        pass
    assert said == ["begin", b"GPU-a-1", "end"]
    expected = {"gpu_throttle_reasons": ["HwThermalSlowdown", "SwPowerCap"]} if known else {}
    assert {name: value for name, value in conditions.facts.items() if "gpu" in name} == expected
    facts = environment.describe_environment()
    assert {"cuda", "cudnn_benchmark"} <= set(facts)
    monkeypatch.setattr(environment, "cuda_in_use", lambda: False)
    assert set(facts) - set(environment.describe_environment()) == {"cuda", "cudnn_benchmark"}


@pytest.mark.parametrize(("tracer", "profiler", "noted"), [(None, None, False), (1, None, True), (None, 1, True)])
def test_a_debugger_or_tracer_is_reported(
    tracer: Any, profiler: Any, noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment.sys, "gettrace", lambda: tracer)
    monkeypatch.setattr(environment.sys, "getprofile", lambda: profiler)
    assert environment.describe_environment()["debugger_or_tracer"] == noted


def one_of(kind: Callable[..., torch.optim.Optimizer], *values: torch.Tensor, **options: Any) -> torch.optim.Optimizer:
    return kind([nn.Parameter(value) for value in values or (torch.ones(2),)], **options)


SGD, ADAM, ADAGRAD = torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad


def test_why_an_optimizer_cannot_be_fused() -> None:
    class Own(torch.optim.SGD):
        pass

    assert cannot_fuse(one_of(SGD), sparse=False) == cannot_fuse(one_of(ADAGRAD), sparse=False) == ""
    assert cannot_fuse(one_of(Own), False) == "Own has no fused implementation"
    assert cannot_fuse(one_of(torch.optim.RMSprop), False) == "RMSprop has no fused implementation"
    assert cannot_fuse(one_of(ADAM, fused=True), False) == "the optimizer is already fused"
    for option in ("differentiable", "capturable"):
        made = one_of(ADAM)
        made.param_groups[0][option] = True
        assert cannot_fuse(made, False) == "a differentiable or capturable optimizer cannot be fused"
    real = "a fused update requires real floating-point parameters on a CPU or CUDA device"
    assert cannot_fuse(one_of(ADAM, torch.ones(2, device="meta")), False) == real
    assert cannot_fuse(one_of(ADAM, torch.ones(2), torch.ones(2, dtype=torch.complex64)), False) == real
    assert cannot_fuse(one_of(SGD), sparse=True) == "a fused update does not support sparse gradients"


def test_one_group_of_several_is_enough_to_be_fused_already() -> None:
    made = one_of(SGD)
    made.add_param_group({"params": [nn.Parameter(torch.ones(1))], "fused": True})
    assert cannot_fuse(made, False) == "the optimizer is already fused"
    assert cannot_foreach(made, False) == "the optimizer already updates all parameters at once"
    assert [len(tensor) for tensor in tensors_of(made)] == [2, 1]


def test_why_an_optimizer_cannot_update_lists() -> None:
    assert cannot_foreach(one_of(SGD), sparse=False) == cannot_foreach(one_of(SGD, foreach=False), sparse=False) == ""
    at_once = "has no implementation that updates all parameters at once"
    assert cannot_foreach(one_of(torch.optim.SparseAdam), False) == f"SparseAdam {at_once}"
    already = "the optimizer already updates all parameters at once"
    assert cannot_foreach(one_of(SGD, foreach=True), False) == already
    assert cannot_foreach(one_of(SGD, fused=True), False) == already
    differentiable = one_of(SGD, differentiable=True)
    assert cannot_foreach(differentiable, False) == "a differentiable optimizer cannot update all parameters at once"
    sparse = "updating all parameters at once is not supported with sparse gradients"
    assert cannot_foreach(one_of(SGD), sparse=True) == sparse


@pytest.mark.parametrize("foreach", [None, False])
def test_where_the_parameters_are_matters(foreach: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    on_cuda = [SimpleNamespace(device=torch.device("cuda"), is_floating_point=lambda: True)]
    monkeypatch.setattr("perfnb.step.optimizers.tensors_of", lambda _: on_cuda)
    default = "on CUDA the optimizer already updates all parameters at once by default"
    assert cannot_foreach(one_of(SGD, foreach=foreach), False) == (default if foreach is None else "")
    assert cannot_fuse(one_of(ADAGRAD), False) == "Adagrad has a fused implementation only for CPUs"
    assert cannot_fuse(one_of(ADAM), False) == ""
    on_cuda += [SimpleNamespace(device=torch.device("cpu"), is_floating_point=lambda: True)]
    assert cannot_foreach(one_of(SGD, foreach=foreach), False) == ""


def test_sparse_gradients_are_known_from_modules_or_from_gradients() -> None:
    dense, optimizer = nn.Embedding(3, 2), one_of(SGD)
    assert not has_sparse_gradients([optimizer], [dense, nn.Linear(1, 1)])
    assert has_sparse_gradients([], [dense, nn.Embedding(3, 2, sparse=True)])
    (parameter,) = tensors_of(optimizer)
    parameter.grad = torch.ones(2)
    assert not has_sparse_gradients([optimizer], [])
    parameter.grad = torch.ones(2).to_sparse()
    assert has_sparse_gradients([optimizer], [])


def test_each_span_has_the_layer_of_its_module_or_of_the_call_around_it() -> None:
    model, inner, unknown, criterion, part, aside, unnamed = (nn.Identity() for _ in range(7))
    calls = Calls()
    calls.records += [
        *[(0, model, None), (1, unknown, 0), (2, inner, 1)],
        *[(3, criterion, None), (4, part, 3), (5, unknown, None)],
    ]
    calls.loss.add(3)
    calls.elsewhere = {id(module): weakref.ref(module) for module in (aside, model, unnamed)}
    places = {id(model): 0, id(inner): 1, id(part): 2, id(aside): 3}
    assert spans_of(calls, places) == [
        (0, 0, False),
        (1, 0, False),  # the layer around it
        (2, 1, False),
        (3, None, True),
        (4, 2, True),  # inside a loss
        (5, None, False),
        (6, 3, False),  # on another thread
    ]
