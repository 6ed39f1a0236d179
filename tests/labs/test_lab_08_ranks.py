"""Lab 8, ranks, machines and the verdict: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import perfnb
from perfnb.labs.exercise import Facts
from perfnb.labs.lab_08 import LEVERS
from perfnb.labs.ledger import exercise_of
from perfnb.labs.made_traces import trace_file
from tests.labs.judging import expect_of, hint
from tests.labs.lab_08_answers import SAID, bounds
from tests.written_traces import Written

IDLE: Facts = {
    "call": "hipFree",
    "per_iteration": 272,
    "share": 0.9861,
    "calls": {"hipFree": 1360, "hipMalloc": 1460, "hipExtModuleLaunchKernel": 1510},
    "ms": {"hipFree": 3346.15, "hipMalloc": 11.9, "hipExtModuleLaunchKernel": 4.7},
    "iterations": 5,
    "step_ms": 3393.19,
    "idle_ms": 3032.41,
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"call": "hipMalloc"}, "more time in another call"),
        ({"call": "hipExtModuleLaunchKernel"}, "most frequent call"),
        ({"call": "aten::convolution_backward"}, "no event"),
        ({"per_iteration": 1360}, "whole trace"),
        ({"per_iteration": 544}, "twice"),
        ({"per_iteration": 292}, "not the number of calls"),
        ({"share": 98.61}, "percent"),
        ({"share": 3346.15}, "that is its time"),
        ({"share": 3.346}, "that is its time"),
        ({"share": 1.1035}, "idle time"),
        ({"share": 0.8942}, "what the question asks"),
    ],
)
def test_idle_again(change: dict[str, Any], says: str) -> None:
    expect_of("8.5", says, IDLE | change)


STRAGGLER: Facts = {
    "said": {"rank": 1, "waits_ms": 15.93},
    "straggler": 1,
    "waiting_ms": {"0": [8.245, 23.62], "1": [0.0, 0.0]},
    "communication_ms": {"0": 198.1, "1": 189.53},
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"waits_ms": 15.51}, ""),  # from the kernels' begins, without the clocks
        ({"rank": 0}, "waits inside it"),
        ({"rank": 2}, "no rank 2"),
        ({"rank": 0.5}, "no rank 0.5"),
        ({"waits_ms": 31.865}, "all steps together"),
        ({"waits_ms": 23.62}, "one step"),
        ({"waits_ms": 8.57}, "not waiting"),
        ({"waits_ms": 198.1}, "how much of it"),
        ({"waits_ms": 7.966}, "half"),
        ({"waits_ms": 15930.0}, "units"),
        ({"waits_ms": 0.0}, "how long rank 1 itself waits"),
        ({"waits_ms": 4.0}, "not the other rank's"),
    ],
)
def test_the_straggler(change: dict[str, float], says: str) -> None:
    expect_of("8.6", says, STRAGGLER | {"said": STRAGGLER["said"] | change})


MACHINES: Facts = {
    "op": "aten::scaled_dot_product_attention",
    "op_ratio": 3.05,
    "busy_ratio": 1.4007,
    "gpu_ms": {
        "aten::scaled_dot_product_attention": [0.122848, 0.374687],
        "aten::linear": [0.735, 0.9423],
        "aten::conv2d": [0.1296, 0.0531],
    },
    "busy_ms": [1.2253, 1.7163],
    "wall_ms": [7.894, 7.453],
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"op": "aten::linear"}, "grew less"),
        ({"op": "aten::conv2d"}, "shrank"),
        ({"op": "attn_fwd"}, "no op"),
        ({"op_ratio": 0.3279}, "inverse"),
        ({"op_ratio": 0.2518}, "difference"),
        ({"op_ratio": 305.0}, "percent"),
        ({"op_ratio": 2.05}, "what the question asks"),
        ({"busy_ratio": 0.944}, "step lengths"),
        ({"busy_ratio": 0.714}, "inverse"),
        ({"busy_ratio": 0.491}, "difference"),
    ],
)
def test_two_machines(change: dict[str, Any], says: str) -> None:
    expect_of("8.7", says, MACHINES | change)


VERDICT: Facts = {
    "bounds": {
        "reader_a": bounds(0.0, 6.326, 0.0, 0.0),
        "training_b": bounds(0.0, 0.0, 3032.3, 0.0),
        "rank_0": bounds(0.67, 141.6, 0.0, 168.49),
    },
    "idle_ms": {"reader_a": 6.669, "training_b": 3034.2, "rank_0": 341.3},
    "wall_ms": {"reader_a": 7.894, "training_b": 3393.19, "rank_0": 615.12},
    "communication_ms": 198.1,
    "steps": 2,
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"reader_a": ["fewer launches", 6.66]}, ""),
        ({"reader_a": ["faster kernels", 1.2]}, "What does the GPU do"),
        ({"reader_a": ["fewer launches", 0.84]}, "bound is not"),
        ({"reader_a": ["fewer launches", 7.894]}, "What would remain"),
        ({"reader_a": ["fewer launches", 3.25]}, "half"),
        ({"training_b": ["fewer launches", 3032.0]}, "In which call"),
        ({"training_b": ["no allocation", 3346.0]}, "that work remains"),
        ({"training_b": ["no allocation", 3.0323]}, "thousand times too small"),
        ({"rank_0": ["faster kernels", 105.0]}, "mostly does one kind of work"),
        ({"rank_0": ["fewer launches", 141.6]}, "mostly does one kind of work"),
        ({"rank_0": ["hidden communication", 341.3]}, "twice"),
        ({"rank_0": ["hidden communication", 198.1]}, "overlapped communication"),
        ({"rank_0": ["hidden communication", 336.98]}, "per step"),
    ],
)
def test_a_verdict(change: dict[str, Any], says: str) -> None:
    expect_of("8.8", says, VERDICT | {"said": SAID | change})


@pytest.mark.parametrize(
    ("lever", "says"),
    [
        ("faster kernels", "How much of the GPU's work is on the critical path"),
        ("fewer launches", "what is on the critical path"),
        ("no allocation", "In which call"),
        ("hidden communication", "mostly does one kind of work"),
    ],
)
def test_the_right_lever_follows_from_the_bounds(lever: str, says: str) -> None:
    """Whichever of them is the largest in the trace."""
    largest = {"reader_a": bounds(1, 1, 1, 1) | {lever: 6.326}}
    facts = VERDICT | {"bounds": VERDICT["bounds"] | largest}

    for other in LEVERS:
        said = SAID | {"reader_a": [other, 6.326]}
        expect_of("8.8", "" if other == lever else says, facts | {"said": said})


def test_the_bounds_are_those_of_the_traces(tmp_path: Path) -> None:
    """By hand: a launch comes 0.41 ms late, for 0.1 of which the host gave memory back; 0.02 ms are communication."""
    trace = Written(distributedInfo={"rank": 0, "world_size": 4}).step(1, 0, 1000)
    trace.kernel("a", 10, 20, 80).event("hipFree", 100, 200, "cuda_runtime")
    trace.kernel("b", 480, 490, 500).kernel("nccl", 485, 495, 520, stream=9)
    trace.event("hipDeviceSynchronize", 530, 531, "cuda_runtime")
    paths = {name: trace.write(tmp_path / f"{name}.json") for name in SAID}
    profile, training = (perfnb.load(paths[name]) for name in ("reader_a", "training_b"))
    ranks = perfnb.load([paths["rank_0"], Written(distributedInfo={"rank": 1, "world_size": 4}).step(1, 0, 1000)
                         .kernel("a", 10, 20, 80).write(tmp_path / "rank_1.json")])  # fmt: skip

    facts = exercise_of("8.8").measure(SAID, profile=profile, training=training, ranks=ranks)

    for name in SAID:
        assert facts["bounds"][name] == pytest.approx(bounds(0.0, 0.31, 0.1, 0.02))


@pytest.mark.parametrize(
    ("number", "answer", "says"),
    [
        ("8.1", 5, "dictionary"),
        ("8.4", {"share": 0.6, "saves_ms": 0}, "missing op"),
        ("8.5", ("hipFree", 272, 0.99), "dictionary with the keys call"),
        ("8.7", {"op": ...}, "no answer yet"),
        ("8.8", {"reader_a": ("fewer launches", 6.3)}, "dictionary with reader_a, training_b"),
        ("8.8", dict.fromkeys(SAID, 6.3), "give two things"),
        ("8.8", dict.fromkeys(SAID, ("a faster GPU", 6.3)), "no lever"),
        ("8.8", dict.fromkeys(SAID, ("fewer launches", "much")), "must be a number"),
    ],
)
def test_an_answer_misformed(number: str, answer: Any, says: str) -> None:
    assert says in hint(number, answer)


CURES: Facts = {
    "said": {"balance_ms": 4.0, "network_ms": 7.0},
    "ranks": {
        "0": {"ms": 12.5, "exposed_ms": 11.0, "waiting_ms": 4.0},
        "1": {"ms": 9.0, "exposed_ms": 6.0, "waiting_ms": 0.5},
    },
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"balance_ms": 0.5}, "another rank waits"),
        ({"balance_ms": 4.5}, "all ranks together"),
        ({"balance_ms": 7.0, "network_ms": 4.0}, "swapped"),
        ({"balance_ms": 11.0}, "how much of this is waiting"),
        ({"balance_ms": 12.0}, "not rank 0's waiting"),
        ({"network_ms": 11.0}, "makes the last rank come earlier"),
        ({"network_ms": 12.5}, "already hidden"),
        ({"network_ms": 8.5}, "already hidden"),
        ({"network_ms": 5.5}, "of another rank"),
        ({"network_ms": 3.0}, "without its waiting"),
    ],
)
def test_two_cures_for_one_wait(change: dict[str, float], says: str) -> None:
    expect_of("8.9", says, CURES | {"said": CURES["said"] | change})


def test_both_cures_are_found_in_the_lab_s_traces() -> None:
    """Planted: rank 1 comes 3.8 ms late to an exchange, and five collectives of 1.5 ms are exposed."""
    ranks = perfnb.load([trace_file("rank_0"), trace_file("rank_1")])
    answer = {"balance_ms": np.float32(3.78), "network_ms": torch.tensor(7.5)}

    assert hint("8.9", answer, ranks=ranks) == ""
    assert "swapped" in hint("8.9", {"balance_ms": 7.5, "network_ms": 3.78}, ranks=ranks)
