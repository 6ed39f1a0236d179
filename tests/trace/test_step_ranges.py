"""Ranges that mark steps: as the user names them, or guessed where a format has no marks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfnb
from perfnb.errors import TraceError
from perfnb.trace.columns import TraceColumns
from perfnb.trace.kineto import decode
from perfnb.trace.step_ranges import with_steps
from perfnb.trace.trace_steps import steps_of


def event(name: str, ts: int, dur: int, cat: str = "user_annotation", tid: int = 2) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": {"External id": 1}}


OPS = [event("aten::mm", start, 5, "cpu_op") for start in range(0, 300, 10)]


def trace_of(*events: dict[str, Any]) -> TraceColumns:
    return decode(json.dumps([*OPS, *events]).encode())


def numbers_of(trace: TraceColumns) -> list[int]:
    return steps_of(trace).numbers.tolist() if steps_of(trace).marked else []


def guessed(*events: dict[str, Any]) -> list[int]:
    return numbers_of(with_steps(trace_of(*events), None, "it", guess=True))


def test_a_named_range_marks_steps_instead_of_the_profilers() -> None:
    marks = [event(f"ProfilerStep#{number}", number * 100, 100) for number in range(3)]
    halves = [event(f"half_{number}", number * 50, 40) for number in range(6)]
    trace = trace_of(*marks, *halves)

    assert numbers_of(with_steps(trace, None, "it")) == [0, 1, 2]
    by_half = with_steps(trace, "half", "it")
    assert numbers_of(by_half) == [0, 1, 2, 3, 4, 5]
    assert (steps_of(by_half).ends - steps_of(by_half).starts).tolist() == [40_000] * 6
    assert len(by_half) == len(trace) - 3 + 6
    with pytest.raises(TraceError, match=r"^it has no range named 'whole' to mark its steps; it has 'half' \(6\)"):
        with_steps(trace, "whole", "it")
    with pytest.raises(TraceError, match="it has no user ranges"):
        with_steps(trace_of(), "whole", "it")


@pytest.mark.parametrize(
    ("name", "says"),
    [("train_step", True), ("Iteration", True), ("my batches", True), ("footstep", False), ("iterator", False)],
)
def test_which_names_say_that_they_are_steps(name: str, says: bool) -> None:
    assert guessed(event(name, 0, 1), event(name, 100, 1)) == ([0, 1] if says else [])


def test_loading_takes_the_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([*OPS, *(event("train", start, 90) for start in (0, 100, 200))]))

    p = perfnb.load(path, steps="train")

    assert isinstance(p, perfnb.Profile)
    assert p.steps["step"].tolist() == [0, 1, 2]
    assert p.ops.loc["aten::mm", "calls"] == 9


def test_what_repeats_is_guessed() -> None:
    assert guessed() == []
    assert guessed(*(event(f"Train step {number + 7}", number * 100, 30) for number in range(3))) == [7, 8, 9]
    assert guessed(*(event("all of it", start, 95) for start in (0, 100, 200))) == [0, 1, 2]
    assert guessed(*(event("forward", start, 40) for start in (0, 100, 200))) == []  # a part of a step
    assert guessed(event("step", 0, 300), event("step", 10, 50)) == []  # one inside the other
    assert guessed(event("step", 0, 300)) == []
    assert guessed(event("ProfilerStep#4", 0, 90), event("step", 0, 90), event("step", 100, 90)) == [4]


def test_the_thread_with_the_most_ranges_counts() -> None:
    here = [event(f"batch {number}", number * 100, 90) for number in range(3)]
    there = [event("batch", start, 20, tid=5) for start in (0, 30)]

    trace = with_steps(trace_of(*there, *here), None, "it", guess=True)

    assert numbers_of(trace) == [0, 1, 2]
    assert steps_of(trace).thread == 2
    assert trace.caveats == [
        "Steps are the ranges named 'batch'; choose others with load(..., steps=) or perfnb show --steps."
    ]
    assert np.all(trace.duration_ns >= 0)
