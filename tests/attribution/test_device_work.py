"""GPU work has the call, the operator and the step that launched it, and plain columns of its events."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb.attribution.device_work import (
    column,
    device_work,
    is_in,
    known_or_na,
    launches_of,
    matching,
    named,
    nested_ends,
    pairs,
    step_windows,
    texts,
    work_alone,
)
from perfnb.recording.text import TEXT


def table(*rows: tuple[str, str, int, int], **columns: list[Any]) -> pd.DataFrame:
    """Return events with a name, a category, a start and a duration, and possibly more columns."""
    events = pd.DataFrame(rows, columns=["name", "category", "start_ns", "duration_ns"]).assign(**columns)
    return events.astype({"name": "category", "category": "category"})


def ints(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def test_work_has_its_place_and_kind() -> None:
    work = work_alone(
        table(
            ("gemm", "kernel", 10, 5),
            ("aten::mm", "cpu_op", 0, 5),
            ("ncclDevKernel_AllReduce", "kernel", 20, 0),
            ("_Z4ncclAllReduce", "kernel", 21, -5),
            ("my_rcclKernel", "kernel", 22, 1),
            ("funccl", "kernel", 22, 1),
            ("Memcpy DtoD nccl", "gpu_memcpy", 30, 1),
            ("Memset nccl", "gpu_memset", 40, 1),
            device=[0, -1, 1, 1, 1, 1, 2, 2],
        )
    )

    assert work.rows.tolist() == [0, 2, 3, 4, 5, 6, 7]
    assert len(work) == 7
    assert work.start.tolist() == [10, 20, 21, 22, 22, 30, 40]
    assert work.end.tolist() == [15, 20, 21, 23, 23, 31, 41]
    assert work.sort.tolist() == [0, 1, 1, 1, 0, 2, 0]
    assert work.device.tolist() == [0, 1, 1, 1, 1, 2, 2]
    assert set(work.rank) == set(work.stream) == {-1}


def test_work_belongs_to_the_call_the_op_and_the_step_that_launched_it() -> None:
    events = table(
        ("ProfilerStep#4", "user_annotation", 0, 100),
        ("ProfilerStep#5", "user_annotation", 100, 100),
        ("aten::linear", "cpu_op", 10, 50),
        ("aten::mm", "cpu_op", 20, 10),
        ("cudaLaunchKernel", "cuda_runtime", 25, 2),
        ("cudaLaunchKernel", "cuda_runtime", 80, 2),
        ("launched in mm", "kernel", 150, 10),
        ("launched by the step", "kernel", 160, 10),
        ("of an external id", "kernel", 170, 10),
        ("of no op", "kernel", 180, 10),
        ("late", "kernel", 200, 10),
        correlation=[-1, -1, -1, -1, 1, 2, 1, 2, 3, 9, 4],
        external_id=[-1, -1, 7, 8, -1, -1, 8, 7, 7, 9, 99],
    )

    work = device_work(events)

    assert work.rows.tolist() == [6, 7, 8, 9, 10]
    assert work.call.tolist() == [4, 5, -1, -1, -1]
    assert work.op.tolist() == [3, -1, 2, -1, -1]
    assert work.step.tolist() == [4, 4, 5, 5, -1]
    alone = device_work(events.drop(columns=["correlation", "external_id"]))
    assert (set(alone.call), set(alone.op)) == ({-1}, {-1})
    assert alone.step.tolist() == [5, 5, 5, 5, -1]


def test_equal_numbers_of_other_ranks_are_other_calls_and_ops() -> None:
    events = table(
        *[("ProfilerStep#1", "user_annotation", 0, 100), ("ProfilerStep#2", "user_annotation", 0, 100)],
        *[("aten::mm", "cpu_op", 10, 50), ("aten::mm", "cpu_op", 10, 50)],
        *[("cudaLaunchKernel", "cuda_runtime", 25, 2), ("cudaLaunchKernel", "cuda_runtime", 25, 2)],
        *[("k", "kernel", 50, 10), ("k", "kernel", 50, 10), ("k", "kernel", 60, 10)],
        rank=[0, 1, 0, 1, 0, 1, 1, 0, 1],
        thread=[1, 1, 1, 1, 1, 1, -1, -1, -1],
        correlation=[-1, -1, -1, -1, 5, 5, 5, 5, 6],
        external_id=[-1, -1, 3, 3, -1, -1, -1, -1, 3],
    )

    work = device_work(events)

    assert work.call.tolist() == [5, 4, -1]
    assert work.op.tolist() == [3, 2, 3]
    assert work.step.tolist() == [2, 1, 2]
    assert launches_of(events, ints(8, 7)).tolist() == [-1, 4]


def test_steps_are_in_the_order_of_ranks_and_times() -> None:
    events = table(
        ("ProfilerStep#7", "user_annotation", 50, 9),
        ("pf_step#2", "cpu_op", 10, 5),
        ("ProfilerStep#1", "kernel", 0, 5),
        ("pf_step#x", "cpu_op", 0, 5),
        ("ProfilerStep#3", "user_annotation", 90, 1),
        rank=[1, 1, 0, 0, 0],
    )

    assert step_windows(events).to_dict("list") == {
        **{"event": [4, 1, 0], "number": [3, 2, 7], "rank": [0, 1, 1]},
        **{"start": [90, 10, 50], "end": [91, 15, 59]},
    }
    assert step_windows(events.iloc[2:4]).empty


@pytest.mark.parametrize("missing", [None, pd.NA])
def test_a_column_has_minus_one_for_what_is_missing(missing: Any) -> None:
    events = pd.DataFrame({"a": pd.array([3, missing, 0], dtype="Int64"), "b": [1, 2, 3]})

    assert column(events, "a").tolist() == [3, -1, 0]
    assert column(events, "b").tolist() == [1, 2, 3]
    assert column(events, "c").tolist() == [-1, -1, -1]
    assert {column(events, name).dtype for name in "abc"} == {np.dtype("int64")}


@pytest.mark.parametrize("kind", ["category", TEXT])
def test_texts_of_rows_are_missing_where_the_row_the_text_or_the_column_is(kind: Any) -> None:
    events = pd.DataFrame({"name": pd.Series(["b", "a", None, "b", "unused"], dtype=kind)})

    found = named(events, ints(0, -1, 2, 1, 0))

    assert found.categories.tolist() == ["a", "b"]
    assert found.codes.tolist() == [1, -1, -1, 0, 1]
    absent = named(events, ints(0, -1), "other")
    assert (absent.categories.tolist(), absent.codes.tolist()) == ([], [-1, -1])
    assert texts(events, "name", ints(0, 2, 2), ints(1, 3, 2)).tolist() == ["b", "b", ""]
    assert texts(events, "name", ints(1)).tolist() == ["a"]
    assert texts(events, "other", ints(0, 1)).tolist() == ["", ""]


def test_events_are_chosen_by_category_and_by_the_start_of_their_name() -> None:
    events = table(("aten::mm", "cpu_op", 0, 1), ("my aten::mm", "kernel", 0, 1), ("aten", "cpu_op", 0, 1))

    assert is_in(events, ("cpu_op", "other")).tolist() == [True, False, True]
    assert matching(events, re.compile("aten::")).tolist() == [True, False, False]
    assert known_or_na(ints(3, -1, 0)).tolist() == [3, pd.NA, 0]


@pytest.mark.parametrize(
    ("columns", "numbers"),
    [
        ([[], []], []),
        ([[5, 5]], [0, 0]),
        ([[5, 3, 5]], [0, 1, 0]),
        ([[1, 1, 1, 1], [2, 3, 2, 4]], [0, 1, 0, 2]),
        ([[1, 2, 1, 2], [3, 3, 4, 3]], [0, 1, 2, 1]),
        ([[1, 2, 1], [1, 1, 2], [1, 1, 1]], [0, 1, 2]),
    ],
)
def test_equal_combinations_have_equal_numbers(columns: list[list[int]], numbers: list[int]) -> None:
    assert pairs(*(ints(*values) for values in columns)).tolist() == numbers


def test_intervals_that_cross_are_cut_and_lose_no_parent() -> None:
    end, parent = nested_ends(ints(0, 0, 0, 1), ints(0, 10, 60, 0), ints(50, 60, 70, 9))

    assert end.tolist() == [50, 50, 70, 9]
    assert parent.tolist() == [-1, 0, -1, -1]
