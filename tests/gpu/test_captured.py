"""Two profiles that perfnb captured on an NVIDIA H200 with torch 2.11, with the figures that they must have.

The steps are those of ``tests/on_gpu/steps.py`` (a transformer) and ``tests/accuracy/test_compiled_layers.py`` (an MLP,
compiled for profiling). The tables that perfnb computes were left out, and paths were shortened.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import perfnb
from perfnb.compiled.tables import compiled_kernel_table
from perfnb.trace_names import DEVICE_WORK

CAPTURED = Path(__file__).parents[1] / "captured"


@cache
def captured(name: str) -> perfnb.Profile:
    loaded = perfnb.load(CAPTURED / name)
    assert isinstance(loaded, perfnb.Profile)
    return loaded


@pytest.mark.parametrize(("name", "launched", "busy_ms"), [("transformer", 124, 1.267), ("compiled_mlp", 36, 0.1041)])
def test_the_layers_have_all_gpu_time_of_forward_and_backward(name: str, launched: int, busy_ms: float) -> None:
    p = captured(name)
    work = p.events[p.events["category"].isin(DEVICE_WORK)]
    assert len(work) == 3 * launched
    assert p.gpu_time["busy_ms"].sum() / 3 == pytest.approx(busy_ms, rel=1e-3)
    of_layers = work[work["phase"].isin(["forward", "backward"])]
    assert p.layers["self_gpu_ms"].sum() == pytest.approx(of_layers["duration_ns"].sum() / 3e6)
    assert p.kernels["calls"].sum() == launched
    assert p.findings["bottleneck"].iloc[0] == "launch overhead"
    assert p.findings["bound_ms"].le(p.timing.median_ms).all()


def test_the_bytes_of_a_step_are_the_allocators() -> None:
    p = captured("transformer")
    on_gpu = p.memory[p.memory["device"] == "cuda:0"]
    assert on_gpu["total"].max() == 147_308_032
    assert on_gpu["total"].iloc[-1] == 87_394_304


def test_the_step_stays_below_the_roofs() -> None:
    points = captured("transformer").roofline.points
    assert points["efficiency"].dropna().between(0.01, 1).all()
    assert captured("transformer").roofline.utilisation == pytest.approx(0.0804, rel=1e-2)


def test_kernels_of_compiled_code_have_their_layers_and_their_time_on_the_gpu() -> None:
    """On the host, they take as long as their launches, which is eight times as long."""
    p = captured("compiled_mlp")
    kernels = p.compiled
    assert kernels["kernel"].str.startswith("triton_").sum() == 13
    assert kernels["layers"].notna().all()
    in_graphs = p.events["name"].str.startswith("triton_") & (p.events["category"] == "kernel")
    own = kernels.loc[kernels["kernel"].str.startswith("triton_"), "ms"].sum()
    assert own == pytest.approx(p.events.loc[in_graphs, "duration_ns"].sum() / 3e6)
    assert kernels["ms"].sum() == pytest.approx(0.09585, rel=1e-3)
    assert kernels["bytes_per_s"].max() < 4.2e12  # of a large copy
    words = " ".join(str(p).split())
    assert "No graph breaks: kernels take 95.8 µs." in words
    assert "kernels 95.8 µs (per traced step, forward and backward, on the GPU)" in words


def test_kernels_of_compiled_code_that_run_on_the_host_keep_their_time_there() -> None:
    recording = captured("compiled_mlp")._recording
    record = recording.compiled
    assert record is not None
    place = int(record.calls["kernel"].iloc[0])
    names = record.kernels["kernel"].mask(record.kernels.index == place, "cpp_fused_add_0")
    mixed = replace(recording, compiled=replace(record, kernels=record.kernels.assign(kernel=names)))
    kernels = compiled_kernel_table(mixed).set_index("kernel")
    own = record.calls.loc[record.calls["kernel"] == place, "duration_ns"].sum() / 3e6
    assert kernels.loc["cpp_fused_add_0", "ms"] == pytest.approx(own)
    assert kernels["ms"].drop("cpp_fused_add_0").sum() < 0.1
