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
from perfnb.trace.trace_steps import _deepest, belongs_to_steps, steps_of, steps_of_events


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


def test_an_unknown_range_is_answered_with_the_most_frequent_ones() -> None:
    counts = {"f": 2, "a": 7, "e": 3, "c": 5, "b": 6, "d": 4}
    ranges = [event(f"{name} {place}", 10 * place, 5) for name, count in counts.items() for place in range(count)]

    with pytest.raises(TraceError) as caught:
        with_steps(trace_of(*ranges), "whole", "it")

    assert str(caught.value).endswith("; it has 'a' (7), 'b' (6), 'c' (5), 'd' (4), 'e' (3).")


@pytest.mark.parametrize(
    "name", ["step 12", "step_12", "step#12", "step: 12", "step=12", "step-12", "step[12]", "step (12)", "step12"]
)
def test_the_number_after_a_name_is_that_of_the_step(name: str) -> None:
    trace = trace_of(event(name, 0, 90), event(name.replace("12", "11"), 100, 90))

    assert numbers_of(with_steps(trace, "step", "it")) == [12, 11]


def test_a_range_is_also_found_by_its_whole_name() -> None:
    trace = trace_of(event("step 12", 0, 90), event("step 13", 100, 90), event("12", 200, 90))

    assert numbers_of(with_steps(trace, "step 13", "it")) == [13]
    assert numbers_of(with_steps(trace, "12", "it")) == [0]  # a number alone is a name


def test_numbers_that_repeat_are_replaced_by_the_order_in_time() -> None:
    halves = [event("step 1", 200, 90), event("step 0", 0, 90), event("step 1", 100, 90)]

    assert numbers_of(with_steps(trace_of(*halves), "step", "it")) == [0, 1, 2]
    some = [event("step 7", 100, 90), event("step", 0, 90)]
    assert sorted(numbers_of(with_steps(trace_of(*some), "step", "it"))) == [0, 1]


def test_ranges_of_any_name_must_cover_most_of_the_time() -> None:
    assert guessed(event("all", 0, 80), event("all", 120, 80)) == [0, 1]  # 160 of 200
    assert guessed(event("all", 0, 80), event("all", 121, 80)) == []
    assert guessed(event("all", 0, 100), event("all", 100, 100)) == [0, 1]
    assert guessed(event("all", 0, 101), event("all", 100, 100)) == []  # the first lasts into the second
    assert guessed(event("step", 0, 1), event("step", 199, 1)) == [0, 1]  # the name says it
    assert guessed(event("step", 0, 0), event("step", 199, 0)) == []
    named = [event("step", 0, 10), event("step", 100, 10)]
    assert guessed(event("all", 0, 100), event("all", 100, 100), *named) == [0, 1]
    trace = with_steps(trace_of(event("all", 0, 100), event("all", 100, 100), *named), None, "it", guess=True)
    assert (steps_of(trace).ends - steps_of(trace).starts).tolist() == [10_000, 10_000]


@pytest.mark.parametrize(
    ("name", "says"),
    [("train_step", True), ("Iteration", True), ("my batches", True), ("footstep", False), ("iterator", False)],
)
def test_which_names_say_that_they_are_steps(name: str, says: bool) -> None:
    assert guessed(event(name, 0, 1), event(name, 100, 1)) == ([0, 1] if says else [])


def test_of_the_ranges_that_say_it_the_longest_are_steps() -> None:
    short = [event(f"batch {number}", number * 100, 20) for number in range(3)]
    long = [event(f"step {number}", number * 100 + 20, 70) for number in range(3, 6)]

    assert guessed(*short, *long) == [3, 4, 5]
    assert with_steps(trace_of(*short), None, "it").caveats == []  # without guessing
    assert numbers_of(with_steps(trace_of(*short), None, "it")) == []


def test_loading_takes_the_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([*OPS, *(event("train", start, 90) for start in (0, 100, 200))]))

    p = perfnb.load(path, steps="train")

    assert isinstance(p, perfnb.Profile)
    assert p.steps["step"].tolist() == [0, 1, 2]
    assert p.ops.loc["aten::mm", "calls"] == 9
    with pytest.raises(TraceError, match=r"no range named 'epoch' to mark its steps; it has 'train' \(3\)"):
        perfnb.load(path, steps="epoch")
    with pytest.raises(TypeError, match="steps must be the name of a range"):
        perfnb.load(path, steps=3)  # type: ignore[arg-type]
    with pytest.raises(TraceError, match="Steps can be named only in traces"):
        perfnb.load(p.save(tmp_path / "saved"), steps="train")


def test_what_repeats_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [event(f"Train step {number}", number * 100, 30) for number in range(3)]
    for most, expected in ((3, [0, 1, 2]), (2, [])):
        with monkeypatch.context() as patch:
            patch.setattr("perfnb.trace.step_ranges.MOST_STEPS", most)
            assert guessed(*many) == expected
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


def test_marks_on_the_thread_with_most_are_steps_except_those_inside_others() -> None:
    marks = {1: (0, 100), 2: (20, 30), 3: (100, 52), 4: (151, 49), 5: (198, 102), 6: (299, 101), 8: (400, 50)}
    marks |= {7: (400, 100)}  # the longer of two that start at once
    trace = trace_of(
        *(event(f"ProfilerStep#{number}", 10_000 + at, lasting) for number, (at, lasting) in marks.items()),
        *(event("ProfilerStep#0", 0, 99, tid=5), event("ProfilerStep#9", 0, 99, "kernel")),
    )

    steps = steps_of(trace)

    assert steps.marked
    assert (steps.numbers.tolist(), steps.ignored) == ([1, 3, 4, 6, 7], 4)
    assert ((steps.starts - 10_000_000) // 1000).tolist() == [0, 100, 151, 299, 400]
    assert ((steps.ends - 10_000_000) // 1000).tolist() == [100, 151, 200, 400, 500]
    assert [trace.names[trace.name[row]] for row in steps.rows] == [f"ProfilerStep#{one}" for one in steps.numbers]
    assert (steps.process, steps.thread) == (1, 2)


NODE = "autograd::engine::evaluate_function: MulBackward0"


@pytest.mark.parametrize(
    ("events", "thread", "lasts"),
    [
        ([(NODE, 0, 50, 3), ("a", 10, 5, 3), ("b", 49, 9, 3), ("c", 90, 5, 4)], 4, (0, 95)),
        ([(NODE, 0, 50, 3), ("a", 10, 5, 3), ("b", 50, 9, 3), ("c", 9, 1, 4)], 3, (0, 59)),
        ([(NODE, 0, 50, 3), (NODE, 5, 9, 3), ("a", 20, 5, 3), ("b", 30, 5, 3), ("c", 9, 1, 4)], 4, (0, 50)),
        ([(NODE, 60, 9, 3), ("a", 20, 5, 3), ("b", 30, 5, 3), ("c", 9, 1, 4)], 3, (9, 69)),
        ([("a", 20, 5, 4), ("b", 30, 5, 3)], 3, (20, 35)),
    ],
)
def test_a_trace_without_marks_is_a_step_of_the_thread_with_most_events_outside_backward(
    events: list[tuple[str, int, int, int]], thread: int, lasts: tuple[int, int]
) -> None:
    kernel = event("k", 70, 200, "kernel", tid=9)
    host = [event(name, at, lasting, "cpu_op", tid) for name, at, lasting, tid in events]

    steps = steps_of(decode(json.dumps([kernel, *host]).encode()))

    assert not steps.marked
    assert (steps.process, steps.thread, steps.numbers.tolist()) == (1, thread, [0])
    assert (steps.starts[0] // 1000, steps.ends[0] // 1000) == lasts
    alone = steps_of(decode(json.dumps([kernel]).encode()))
    assert (alone.process, alone.thread, alone.starts.tolist(), alone.ends.tolist()) == (-1, -1, [70_000], [270_000])
    nothing = steps_of(decode(b"[]"))
    assert (nothing.process, nothing.thread, nothing.numbers.tolist(), nothing.ignored) == (-1, -1, [], 0)


def test_an_event_is_part_of_the_step_that_launched_it_or_in_which_it_starts() -> None:
    def launched(name: str, at: int, cat: str, correlation: int) -> dict[str, Any]:
        return event(name, at, 5, cat) | {"args": {"correlation": correlation}}

    ops = [event("op", at, 60, "cpu_op") for at in (0, 99, 100, 149, 150, 200)]
    calls = [launched("call", at, "cuda_runtime", place) for place, at in enumerate((50, 120, 160))]
    kernels = [launched("k", 170, "kernel", place) for place in (0, 1, 2, 3)]
    marks = [event("ProfilerStep#4", 0, 100), event("ProfilerStep#5", 150, 50), event("ProfilerStep#6", 10, 5)]
    trace = decode(json.dumps([*ops, *calls, *kernels, *marks]).encode())
    steps = steps_of(trace)

    found = steps_of_events(trace, steps.starts, steps.ends).tolist()

    assert found == [*(0, 0, -1, -1, 1, -1), *(0, -1, 1), *(0, -1, 1, 1), *(0, 1, 0)]
    assert belongs_to_steps(trace, steps).tolist() == [step != -1 for step in found]
    unmarked = decode(json.dumps([*kernels, *ops]).encode())
    assert belongs_to_steps(unmarked, steps_of(unmarked)).all()


@pytest.mark.parametrize(
    ("events", "levels"),
    [
        ([], 0),
        ([(1, 0, 10), (1, 10, 10)], 1),
        ([(1, 0, 10), (2, 0, 10)], 1),
        ([(1, 0, 10), (1, 0, 0)], 2),
        ([(1, 10, 0), (1, 0, 10)], 1),
        ([(1, 8, 1), (1, 3, 1), (1, 2, 5), (1, 0, 10), (2, 3, 1)], 3),
    ],
)
def test_events_of_a_thread_that_are_open_at_once_are_nested(events: list[tuple[int, int, int]], levels: int) -> None:
    assert _deepest(*(np.array([one[column] for one in events], dtype=np.int64) for column in range(3))) == levels
