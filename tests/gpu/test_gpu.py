"""A step on a GPU, built by hand: kernels belong to the layer and phase of the call that launched them.

The backward pass runs on a thread of its own, as torch's does for a GPU. No GPU is needed here.
"""

from __future__ import annotations

from functools import cache

import pandas as pd
import pytest

from perfnb.profile.profile import Profile
from tests.attribution.test_attribution import in_us
from tests.recordings import ByHand

BACKWARD = 2  # the thread of autograd's engine


@cache
def profile_of_steps() -> Profile:
    return Profile(gpu_step(2).recording())


def gpu_step(steps: int = 1, backward_threads: tuple[int, int] = (BACKWARD, BACKWARD)) -> ByHand:
    hand = ByHand()
    model = hand.layer("model")
    a, b = hand.layer("model.a", model), hand.layer("model.b", model)
    for number in range(steps):
        t, n = 2000 * number, 10 * number
        hand.step(t, t + 1000)
        hand.op("aten::to", t + 10, t + 50).op("aten::copy_", t + 20, t + 40)
        hand.kernel("Memcpy HtoD (Pinned -> Device)", t + 25, t + 30, t + 60, category="gpu_memcpy")
        hand.call(model, t + 100, t + 300)
        hand.call(a, t + 110, t + 200).op("aten::mm", t + 120, t + 180, n + 1)
        hand.kernel("gemm", t + 150, t + 160, t + 260)
        hand.call(b, t + 200, t + 290).op("aten::mm", t + 210, t + 280, n + 2)
        hand.kernel("gemm", t + 220, t + 260, t + 460).kernel("bias", t + 240, t + 460, t + 470)
        hand.op("aten::mse_loss", t + 310, t + 340, n + 3).kernel("mse", t + 320, t + 470, t + 480)
        first, second = backward_threads
        hand.node("MseLossBackward0", t + 400, t + 440, n + 3, first).kernel(
            "mse_grad", t + 410, t + 480, t + 490, first
        )
        hand.node("MmBackward0", t + 440, t + 500, n + 2, first).kernel("gemm_t", t + 450, t + 490, t + 790, first)
        hand.node("MmBackward0", t + 520, t + 600, n + 1, second).kernel("gemm_t", t + 530, t + 790, t + 890, second)
        hand.event("Optimizer.step#SGD.step", t + 700, t + 900, "user_annotation")
        hand.op("aten::_foreach_add_", t + 710, t + 750).kernel("adds", t + 720, t + 890, t + 1200)
        hand.event("cudaDeviceSynchronize", t + 900, t + 990, "cuda_runtime")
    return hand


def test_phases_are_the_hosts_and_the_copy_to_the_device_is_its_own() -> None:
    p = profile_of_steps()

    assert in_us(p.phases["ms"]) == {
        "data": 0,
        "host_to_device": 40,
        "communication": 0,
        "forward": 200,
        "loss": 100,
        "backward": 200,
        "optimizer": 200,
        "other": 260,
    }


def test_kernels_belong_to_the_layer_that_launched_them_forward_and_backward() -> None:
    layers = profile_of_steps().layers

    names = ["model", "model.a", "model.b", "(loss)", "(autograd engine)"]
    assert layers.index.tolist() == names
    assert in_us(layers["gpu_ms"]) == dict(zip(names, [710, 200, 510, 10, 0], strict=True))
    assert layers["kernels"].tolist() == [5, 2, 3, 1, 0]
    assert in_us(layers["backward_ms"]) == dict(zip(names, [140, 80, 60, 40, 20], strict=True))
    assert in_us(layers["forward_ms"]) == dict(zip(names, [200, 90, 90, None, None], strict=True))
    assert in_us(layers["self_ms"]) == dict(zip(names, [20, 170, 150, 40, 20], strict=True))


def test_the_kernels_table_sums_by_name_and_step() -> None:
    kernels = profile_of_steps().kernels

    assert in_us(kernels["total_ms"]) == {
        "gemm_t": 400,
        "adds": 310,
        "gemm": 300,
        "Memcpy HtoD (Pinned -> Device)": 30,
        "bias": 10,
        "mse": 10,
        "mse_grad": 10,
    }
    assert kernels.loc["gemm_t"].tolist() == pytest.approx([2, 0.4, 200, 300])
    assert kernels.index.name == "kernel"


def test_ops_have_the_device_time_that_they_launched_themselves() -> None:
    p = profile_of_steps()

    assert in_us(p.ops["gpu_ms"]) == {
        "MmBackward0": 400,
        "aten::_foreach_add_": 310,
        "aten::mm": 310,
        "aten::copy_": 30,
        "aten::mse_loss": 10,
        "MseLossBackward0": 10,
        "aten::to": 0,
    }
    rows = p.layer_ops.set_index(["layer", "op", "direction"])["gpu_ms"] * 1000
    assert rows["model.a", "aten::mm", "forward"] == pytest.approx(100)
    assert rows["model.b", "MmBackward0", "backward"] == pytest.approx(300)


def test_events_on_the_device_have_layer_phase_and_step_of_their_launch() -> None:
    events = profile_of_steps().events

    device = events[events["category"].isin(["kernel", "gpu_memcpy"])].set_index("name")
    assert device["device"].tolist() == [0] * len(device)
    assert device["stream"].tolist() == [7] * len(device)
    assert device.loc["gemm", "layer"].tolist() == ["model.a", "model.b"] * 2
    assert device.loc["gemm_t", "layer"].tolist() == ["model.b", "model.a"] * 2
    assert device.loc["gemm_t", "phase"].tolist() == ["backward"] * 4
    assert device.loc["adds", "phase"].tolist() == ["optimizer"] * 2
    assert device.loc["adds", "step"].tolist() == [0, 1]  # although it runs past the step's end
    assert device.loc["mse", "phase"].tolist() == ["loss"] * 2
    assert device.loc["Memcpy HtoD (Pinned -> Device)", "phase"].tolist() == ["host_to_device"] * 2


def test_a_kernel_that_seems_to_begin_before_its_launch_still_belongs_to_it() -> None:
    hand = ByHand()
    layer = hand.layer("layer")
    hand.step(0, 1000).call(layer, 100, 200).op("aten::mm", 110, 190).kernel("gemm", 150, 140, 240)

    assert in_us(Profile(hand.recording()).layers["gpu_ms"]) == {"layer": 100}


def test_a_kernel_without_a_launch_is_in_the_kernels_and_in_no_layer() -> None:
    hand = ByHand()
    layer = hand.layer("layer")
    hand.step(0, 1000).call(layer, 100, 200).op("aten::mm", 110, 190).kernel("gemm", 150, 200, 300)
    hand.event("orphan", 400, 500, "kernel", thread=-1, device=0, stream=7)
    hand.event("lost", 500, 600, "kernel", thread=-1, device=0, stream=7, correlation=99)

    p = Profile(hand.recording())

    assert in_us(p.layers["gpu_ms"]) == {"layer": 100}
    assert in_us(p.kernels["total_ms"]) == {"gemm": 100, "orphan": 100, "lost": 100}
    assert p.events.set_index("name").loc[["orphan", "lost"], ["layer", "phase", "step"]].isna().all(axis=None)


def test_a_copy_back_to_the_host_is_not_host_to_device() -> None:
    hand = ByHand()
    hand.step(0, 1000).op("aten::item", 100, 300)
    hand.kernel("Memcpy DtoH (Device -> Pageable)", 150, 160, 260, category="gpu_memcpy")

    assert in_us(Profile(hand.recording()).phases["ms"])["host_to_device"] == 0


def test_a_range_around_a_copy_and_other_work_is_not_a_copy() -> None:
    hand = ByHand()
    hand.step(0, 1000).event("my job", 50, 950, "user_annotation")
    hand.op("aten::to", 100, 300).op("aten::_to_copy", 110, 290)
    hand.kernel("Memcpy HtoD (Pageable -> Device)", 150, 160, 260, category="gpu_memcpy")
    hand.op("aten::conv2d", 400, 900).kernel("conv", 500, 550, 650)
    hand.op("mine::forward", 910, 940).op("aten::copy_", 915, 925)
    hand.kernel("Memcpy HtoD (Pageable -> Device)", 920, 921, 922, category="gpu_memcpy")

    p = Profile(hand.recording())

    phases = in_us(p.phases["ms"])
    assert (phases["host_to_device"], phases["other"]) == (210, 790)
    events = p.events.set_index("name")
    assert events.loc[["my job", "aten::conv2d", "mine::forward", "conv"], "phase"].tolist() == ["other"] * 4


def test_a_copy_inside_a_layer_is_the_layers() -> None:
    hand = ByHand()
    layer = hand.layer("layer")
    hand.step(0, 1000).call(layer, 100, 400).op("aten::to", 110, 390)
    hand.kernel("Memcpy HtoD (Pageable -> Device)", 150, 160, 260, category="gpu_memcpy")

    p = Profile(hand.recording())

    assert in_us(p.phases["ms"])["host_to_device"] == 0
    assert in_us(p.layers["gpu_ms"]) == {"layer": 100}


def test_two_backward_threads_are_summed_by_layer_and_a_note_says_so() -> None:
    p = Profile(gpu_step(backward_threads=(2, 3)).recording())

    assert in_us(p.layers["backward_ms"])["model.a"] == 80
    assert in_us(p.phases["ms"])["backward"] == 200
    assert "backward pass ran on several threads" in " ".join(str(p).split())


def test_without_a_gpu_there_are_no_kernels_and_device_times_are_unknown() -> None:
    hand = ByHand()
    hand.step(0, 10).op("aten::mm", 1, 2)

    p = Profile(hand.recording())

    assert p.kernels.empty
    assert p.ops["gpu_ms"].isna().all()
    assert isinstance(p.kernels, pd.DataFrame)
