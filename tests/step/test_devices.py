"""Steps on accelerators of any make: timed to the end of their work, and described by what torch's module tells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity

import perfnb
from perfnb.errors import CaptureError
from perfnb.step.device import (
    Accelerator,
    StepClock,
    accelerator_in_use,
    accelerators,
    allocator_statistics,
    capacity_bytes,
    is_out_of_memory,
    random_state,
    read_clocks,
    set_random_state,
    synchronize,
)
from perfnb.step.tracer import Tracer, device_activities, untraced
from tests.fake_clock import FakeClock
from tests.step.fake_device import KIND, FakeDevice, FakeEvent

WORK_MS, HOST_MS = 30.0, 1.0


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    return FakeDevice(FakeClock()).install(monkeypatch)


def median_ms(step: Any) -> float:
    """Return the step time that a profile shows, and that `time_step` shows: they agree."""
    profile = perfnb.profile_step(step, budget_s=5, memory=False, flops=False)
    timing = perfnb.time_step(step, budget_s=5)
    assert profile.timing.median_ms == pytest.approx(timing.median_ms, rel=0.02)
    return float(profile.timing.median_ms)


@pytest.mark.parametrize(
    ("devices", "lacks", "work"),
    [
        (1, "", [(WORK_MS, 0, 0)]),  # the step returns before its work is done
        (1, "Event", [(WORK_MS, 0, 0)]),
        (1, "", [(HOST_MS, 0, 0), (WORK_MS, 0, 1)]),  # on a stream that events do not see
        (3, "", [(HOST_MS, 0, 0), (WORK_MS, 2, 0)]),
    ],
)
def test_a_step_is_timed_to_the_end_of_all_of_its_work(
    devices: int, lacks: str, work: list[tuple[float, int, int]], device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.devices = devices
    if lacks:
        monkeypatch.delattr(FakeDevice, lacks)

    def step() -> None:
        for ms, index, stream in work:
            device.launch(ms, device=index, stream=stream)
        device.clock.pass_exactly(HOST_MS)

    assert median_ms(step) == pytest.approx(WORK_MS, rel=0.01)
    assert set(device.waits) == {index for _, index, _ in work}, "device 1 holds nothing"


def test_a_device_in_use_that_is_not_the_current_one_is_timed_by_its_own_events(device: FakeDevice) -> None:
    device.devices = 2
    device.launch(HOST_MS, device=1)

    def step() -> None:
        device.launch(WORK_MS, device=1)
        device.clock.pass_exactly(HOST_MS)

    assert median_ms(step) == pytest.approx(WORK_MS, rel=0.01)
    assert set(device.waits) == {1}
    assert (0, 0) not in device.done, "nothing was asked of device 0, where it would create a context"


def test_a_device_that_keeps_memory_only_while_it_works_is_waited_for(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its allocator keeps what the step gave back."""
    device.devices = 2
    monkeypatch.setattr(FakeDevice, "memory_allocated", lambda self, index: 1024 * (index == 0))
    monkeypatch.setattr(FakeDevice, "memory_reserved", lambda self, index: 4096, raising=False)

    def step() -> None:
        device.launch(HOST_MS, device=0)
        device.launch(WORK_MS, device=1)
        device.clock.pass_exactly(HOST_MS)

    assert median_ms(step) == pytest.approx(WORK_MS, rel=0.01)


@pytest.mark.parametrize("missing", ["elapsed_time", "memory_allocated"])
def test_what_a_build_or_an_allocator_refuses_is_done_without(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    def refuse(*_: Any) -> None:
        raise NotImplementedError("not in this build, or not with this allocator")

    monkeypatch.setattr(FakeEvent if missing == "elapsed_time" else FakeDevice, missing, refuse)
    monkeypatch.setattr(FakeDevice, "memory_stats", refuse)
    monkeypatch.setattr(FakeDevice, "memory_snapshot", refuse, raising=False)

    def step() -> None:
        device.launch(WORK_MS)
        device.clock.pass_exactly(HOST_MS)

    assert median_ms(step) == pytest.approx(WORK_MS, rel=0.01)
    assert allocator_statistics() == {}


def test_the_wait_that_looks_for_hidden_work_does_not_count_the_question_what_is_in_use(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch needs a while to tell how much memory each device holds."""

    def slow(self: FakeDevice, index: int) -> int:
        self.clock.pass_exactly(5)
        return 1024

    monkeypatch.setattr(FakeDevice, "memory_allocated", slow)
    device.launch(1)
    clock = StepClock()
    for _ in range(3):
        clock.begin()
        device.launch(1)
        clock.end(0)
    durations, lagged = read_clocks(clock)
    assert sum(durations[0]) == pytest.approx(3e6)
    assert not lagged


@pytest.mark.parametrize(
    ("steps_ms", "wait_ns", "lagged"),
    [
        *(([[6, 7], [7]], 400_000, False), ([[6, 7], [7]], 400_001, True)),
        *(([[2]], 100_000, False), ([[2]], 100_001, True), ([], 100_000, False)),
    ],
)
def test_work_lags_behind_by_more_than_a_fiftieth_of_all_steps_and_a_tenth_of_a_millisecond(
    steps_ms: list[list[int]], wait_ns: int, lagged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfnb.step.device._wait_for", lambda used: wait_ns)
    durations = [[ms * 10**6 for ms in of_clock] for of_clock in steps_ms]
    clocks: list[Any] = [SimpleNamespace(durations_ns=lambda own=own: own) for own in durations]
    assert read_clocks(*clocks) == (durations, lagged)


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mtia", "privateuseone"])
def test_torchs_profiler_records_each_device_that_it_can(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    used = [Accelerator(kind, None, (0,)), Accelerator("mps", None, ())]
    monkeypatch.setattr("perfnb.step.tracer.accelerators", lambda: used)
    name = {"privateuseone": "PrivateUse1"}.get(kind, kind.upper())
    supported = {ProfilerActivity.CPU, getattr(ProfilerActivity, name)}
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: supported)
    assert [activity.name for activity in device_activities()] == [name]
    assert untraced() == ["mps"]


_REGISTERED = """
import pytest, torch
from tests.fake_clock import FakeClock
from tests.step.fake_device import FakeDevice
import perfnb
from perfnb.step.tracer import device_activities

torch.utils.rename_privateuse1_backend("fakegpu")
device = FakeDevice(FakeClock())
torch._register_device_module("fakegpu", device)
device.clock.install(pytest.MonkeyPatch())

def step():
    device.launch(30)
    device.clock.pass_exactly(1)

profile = perfnb.profile_step(step, budget_s=5, memory=False, flops=False)
print(round(profile.timing.median_ms), profile.meta["environment"]["gpus"])
print(device_activities() == [torch.profiler.ProfilerActivity.PrivateUse1])
"""


@pytest.mark.deep
@pytest.mark.slow
def test_a_backend_that_registered_itself_has_a_name_of_its_own() -> None:
    """In a process of its own: a backend is named once and for all."""
    done = subprocess.run(
        [sys.executable, "-c", _REGISTERED], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines()[-2:] == ["30 ['Stand-in 0']", "True"], done.stderr


def test_work_of_one_step_does_not_burden_the_other(device: FakeDevice) -> None:
    def hidden() -> None:
        device.launch(WORK_MS, stream=1)
        device.clock.sleep(HOST_MS / 1e3)

    def plain() -> None:
        device.launch(10.0)
        device.clock.sleep(HOST_MS / 1e3)

    test = perfnb.ab_test(hidden, plain, budget_s=20)
    assert test.a.median_ms == pytest.approx(WORK_MS, rel=0.02)
    assert test.b.median_ms == pytest.approx(10.0, rel=0.02)


def test_a_device_without_the_usual_functions_is_waited_for(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch's module for MPS, which numbers no devices and tells only how much memory is in use."""
    for name in ("is_initialized", "current_device", "memory_allocated", "memory_stats", "get_device_name"):
        monkeypatch.delattr(FakeDevice, name)
    monkeypatch.setattr(FakeDevice, "current_allocated_memory", lambda self: 0, raising=False)
    assert not accelerator_in_use()
    monkeypatch.setattr(FakeDevice, "current_allocated_memory", lambda self: 5, raising=False)
    device.launch(WORK_MS)
    begin = device.clock.now_ns
    synchronize()
    assert device.clock.now_ns - begin >= WORK_MS * 1e6
    assert device.waits == [None]
    assert [accelerator.names() for accelerator in accelerators()] == [[KIND]]
    assert allocator_statistics() == {}


def test_asking_starts_no_device(device: FakeDevice) -> None:
    assert not accelerator_in_use()
    assert accelerators() == []
    synchronize()
    profile = perfnb.profile_step(lambda: device.clock.pass_exactly(2), budget_s=5, memory=False, flops=False)
    assert profile.meta["environment"]["gpus"] == []
    assert device.waits == []
    assert not device.initialized


def test_work_on_a_device_that_cannot_be_recorded_is_reported(device: FakeDevice) -> None:
    def step() -> None:
        device.launch(WORK_MS)
        torch.ones(8).sum()

    profile = perfnb.profile_step(step, budget_s=5)
    assert profile.meta["environment"]["gpus"] == ["Stand-in 0"]
    assert profile.meta["environment"]["untraced_accelerators"] == [KIND]
    assert f"cannot record work on {KIND}" in str(profile)
    assert profile.meta["allocator"][f"{KIND}:0"] == {
        "allocated_bytes": 1024,
        "reserved_bytes": 4096,
        "retries": 3,
        "ooms": 0,
    }
    assert profile.kernels.empty


def test_random_numbers_of_every_accelerator_are_restored(device: FakeDevice) -> None:
    device.launch(1)
    state = random_state()
    device.random += 1
    set_random_state(state)
    assert device.random.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 17 GiB)"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True),
        (MemoryError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (KeyError("out of memory"), False),
    ],
)
def test_errors_of_every_device_that_mean_out_of_memory(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_the_memory_of_a_device_is_what_its_module_tells(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    assert capacity_bytes(KIND) is None, "torch's module does not tell"
    monkeypatch.setattr(FakeDevice, "mem_get_info", lambda self: (70, 100), raising=False)
    monkeypatch.setattr(FakeDevice, "memory_reserved", lambda self: 20, raising=False)
    assert capacity_bytes(KIND) == 90
    monkeypatch.setattr(FakeDevice, "recommended_max_memory", lambda self: 64, raising=False)  # as on MPS
    assert capacity_bytes(KIND) == 64
    monkeypatch.setattr(FakeDevice, "is_available", lambda self: False)
    assert capacity_bytes(KIND) is None
    assert capacity_bytes("unheard of") is None
    assert 2**30 < (capacity_bytes("cpu") or 0) < 2**50


def test_the_largest_batch_is_by_default_that_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = perfnb.estimate_memory(torch.nn.Linear(64, 64), torch.randn(8, 64))
    monkeypatch.setattr("perfnb.step.device.capacity_bytes", lambda kind: 2**20 if kind == "cpu" else None)
    assert estimate.largest_batch() == estimate.largest_batch(2**20)
    monkeypatch.setattr("perfnb.step.device.capacity_bytes", lambda kind: None)
    with pytest.raises(CaptureError, match="cpu memory is unknown: pass the number of bytes"):
        estimate.largest_batch()


def test_the_trace_of_a_device_is_read_before_the_next_session_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, torch discards the kernels of a finished session when another one starts."""
    happened: list[str] = []
    make, start, export = Tracer.__init__, Tracer.__enter__, Tracer.export

    def as_if_of_a_gpu(self: Tracer, *, devices: bool = False, **options: Any) -> None:
        make(self, **options)
        self.devices = [ProfilerActivity.CUDA] if devices else []

    monkeypatch.setattr(Tracer, "__init__", as_if_of_a_gpu)
    monkeypatch.setattr(Tracer, "__enter__", lambda self: (happened.append("start"), start(self))[1])
    monkeypatch.setattr(Tracer, "export", lambda self, **how: (happened.append("read"), export(self, **how))[1])
    layer, x = torch.nn.Linear(4, 4), torch.ones(2, 4)

    profile = perfnb.profile_step(lambda: layer(x).sum().backward(), warmup=1, steps=2, traced=1)

    assert happened[:3] == ["start", "read", "start"]
    assert happened.count("read") == happened.count("start")
    assert "layer" in profile.layers.index


def test_the_largest_free_block_of_a_device_lies_inside_a_segment(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = [
        {"device": 0, "blocks": [{"size": 10, "state": "inactive"}, {"size": 90, "state": "active_allocated"}]},
        {"device": 0, "blocks": [{"size": 30, "state": "inactive"}, {"size": 20, "state": "inactive"}]},
        {"device": 1, "blocks": [{"size": 50, "state": "active_allocated"}]},
        {"device": 3, "blocks": [{"size": 70, "state": "inactive"}]},
    ]
    monkeypatch.setattr(FakeDevice, "memory_snapshot", lambda self: segments, raising=False)
    device.devices = 4
    for index in range(3):
        device.launch(1, device=index)
    found = allocator_statistics()
    free = {name: figures.get("largest_free_bytes") for name, figures in found.items()}
    assert free == {f"{KIND}:0": 30, f"{KIND}:1": 0, f"{KIND}:2": None}
    assert [figures["allocated_bytes"] for figures in found.values()] == [1024, 2048, 3072]


@pytest.mark.parametrize("streams", [True, False])
def test_events_that_are_not_on_streams_measure_time_as_well(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch, streams: bool
) -> None:
    if not streams:
        monkeypatch.delattr(FakeDevice, "current_stream")
    device.launch(7)
    clock = StepClock()
    begin = device.clock.now_ns
    for ms in (2, 3):
        clock.begin()
        device.launch(ms)
        clock.end(0)
    assert device.clock.now_ns == begin, "waited after a step"
    assert clock.durations_ns() == [2_000_000, 3_000_000]
