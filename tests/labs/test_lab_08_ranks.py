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


def test_both_cures_are_found_in_the_lab_s_traces() -> None:
    """Planted: rank 1 comes 3.8 ms late to an exchange, and five collectives of 1.5 ms are exposed."""
    ranks = perfnb.load([trace_file("rank_0"), trace_file("rank_1")])
    answer = {"balance_ms": np.float32(3.78), "network_ms": torch.tensor(7.5)}

    assert hint("8.9", answer, ranks=ranks) == ""
    assert "swapped" in hint("8.9", {"balance_ms": 7.5, "network_ms": 3.78}, ranks=ranks)
