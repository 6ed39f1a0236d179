"""The machine's figures: ceilings against products and copies measured here, telemetry against nvidia-smi."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable

import pytest
import torch

import perfnb
from perfnb.step.ceilings import measure_ceilings


def best_s(run: Callable[[], object], times: int = 10) -> float:
    found = []
    for _ in range(times):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1e3)
    return min(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_ceiling_of_arithmetic_is_a_plain_products(dtype: torch.dtype) -> None:
    found = measure_ceilings([str(dtype).removeprefix("torch.")], "cuda", refresh=True)
    assert found["device"] == torch.cuda.get_device_name()
    left, right = (torch.randn(8192, 8192, device="cuda").to(dtype) for _ in range(2))
    rate = 2 * 8192**3 / best_s(lambda: left @ right)
    assert found["flops_per_s"][str(dtype).removeprefix("torch.")] == pytest.approx(rate, rel=0.1)


def test_the_ceiling_of_memory_is_a_plain_copys() -> None:
    found = measure_ceilings(["float32"], "cuda", refresh=True)
    source = torch.ones(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    rate = 2 * 2**30 / best_s(lambda: target.copy_(source))
    assert found["bytes_per_s"] == pytest.approx(rate, rel=0.1)


def smi(*fields: str) -> list[float]:
    words = subprocess.run(
        ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", "--id=0"],
        capture_output=True, text=True, check=True, timeout=30,
    ).stdout  # fmt: skip
    return [float(word) for word in words.split(",")]


@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no nvidia-smi")
def test_telemetry_agrees_with_nvidia_smi(sleep: Callable[[float], None]) -> None:
    with perfnb.watch(interval_s=0.1) as watch:
        end = time.monotonic() + 2
        while time.monotonic() < end:
            sleep(50)
            torch.cuda.synchronize()
        for _ in range(60):  # nvidia-smi needs a while; the GPU is busy meanwhile
            sleep(50)
        used_mib, degrees, watts, clock_mhz = smi("memory.used", "temperature.gpu", "power.draw", "clocks.sm")
    rows = watch.samples[watch.samples["device"] == "gpu0"]
    last = rows.iloc[-5:]
    assert last["busy_percent"].max() > 80
    assert last["memory_bytes"].iloc[-1] / 2**20 == pytest.approx(used_mib, rel=0.02, abs=64)
    assert last["temperature_c"].median() == pytest.approx(degrees, abs=4)
    assert last["power_w"].median() == pytest.approx(watts, rel=0.25)
    assert last["sm_clock_mhz"].median() == pytest.approx(clock_mhz, rel=0.1)
    assert rows["torch_allocated_bytes"].dropna().iloc[-1] == torch.cuda.memory_allocated()


def test_readings_of_the_chips_counters_or_why_there_are_none(sleep: Callable[[float], None]) -> None:
    """A sleeping kernel keeps one multiprocessor active and no Tensor Core; a product keeps them busy."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    with perfnb.watch(interval_s=0.2) as watch:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            a @ a
        torch.cuda.synchronize()
    rows = watch.samples[watch.samples["device"] == "gpu0"]
    if rows["tensor_active_percent"].isna().all():
        pytest.skip("this GPU or driver has no GPM counters")
    assert rows["tensor_active_percent"].max() > 20
    assert rows["sm_active_percent"].max() > 50


def test_the_system_check_sees_the_gpu() -> None:
    words = str(perfnb.system_check())
    assert torch.cuda.get_device_name() in words
