"""Laws that hold for every kind of step on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils import benchmark

import perfnb
from tests.on_gpu.steps import KINDS, Transformer, tokens, training

#: Categories of the events of a GPU's work.
WORK = ("kernel", "gpu_memcpy", "gpu_memset")


@pytest.mark.parametrize("kind", KINDS)
def test_a_profile_adds_up(kind: str) -> None:
    p = perfnb.profile_step(KINDS[kind](), budget_s=15)
    assert p.phases["share"].sum() == pytest.approx(1, abs=0.01)
    traced_ms = p.steps.loc[p.steps["pass"] == "traced", "wall_ms"].mean()
    assert p.phases["ms"].sum() <= 1.05 * traced_ms
    assert p.layers["share"].dropna().between(0, 1).all()
    work = p.events[p.events["category"].isin(WORK) & p.events["step"].notna()]
    assert len(work)
    of_layers = work[work["phase"].isin(["forward", "backward"])]  # the loss and the optimizer have no layers
    whole_ms = of_layers["duration_ns"].sum() / work["step"].nunique() / 1e6
    assert p.layers["self_gpu_ms"].sum() == pytest.approx(whole_ms, rel=0.01, abs=0.005), "layers add up to all kernels"
    assert work["phase"].isin(["forward", "loss", "backward", "optimizer"]).mean() > 0.9
    assert p.gpu_time["busy_ms"].iloc[0] <= p.gpu_time["total_ms"].iloc[0]
    assert len(p.critical_path)
    assert "n/a" not in str(p).splitlines()[0]


@pytest.mark.parametrize("kind", ["transformer", "compiled", "CUDA graphs", "fused optimizer"])
def test_step_times_agree_with_torchs_benchmark(kind: str) -> None:
    step = KINDS[kind]()
    # perfnb times each step to the end of its work; without waiting, the host of one step overlaps the GPU of another.
    waited = benchmark.Timer("step(); wait()", globals={"step": step, "wait": torch.cuda.synchronize})
    ratios = []
    for _ in range(7):  # the host's pace changes by a third within seconds, so both are measured in turns
        timing = perfnb.time_step(step, budget_s=1)
        # A block of runs has only a mean, which slow runs raise, so each run is timed on its own.
        reference = np.median([waited.timeit(1).median for _ in range(len(timing.samples_ms))])
        ratios.append(timing.median_ms / (reference * 1e3))
    assert np.median(ratios) == pytest.approx(1, rel=0.05)


def test_gpu_time_of_a_trace_agrees_with_a_naive_count() -> None:
    p = perfnb.profile_step(KINDS["transformer"](), budget_s=10, memory=False, flops=False)
    work = p.events[p.events["category"].isin(WORK)].sort_values("start_ns")
    busy_ns = reached = 0
    for begin, length in zip(work["start_ns"].tolist(), work["duration_ns"].tolist(), strict=True):
        busy_ns += max(begin + length - max(begin, reached), 0)
        reached = max(reached, begin + length)
    assert p.gpu_time["busy_ms"].sum() == pytest.approx(busy_ns / 1e6, rel=1e-6)


def test_an_ab_test_of_equal_steps_is_not_decided() -> None:
    test = perfnb.ab_test(KINDS["transformer"](), KINDS["transformer"](), budget_s=20)
    assert test.verdict in ("same", "inconclusive")


def test_the_demo_of_readme_runs_on_a_gpu() -> None:
    p = perfnb.profile_step(training(Transformer().cuda(), tokens()), budget_s=15)
    words = str(p)
    assert torch.cuda.get_device_name() in words
    assert p.kernels["calls"].sum() > 0
    assert p._repr_mimebundle_()["text/html"]
