"""Lab 8: the right answers pass, and plausible wrong ones do not. What is read by hand is tried on small traces too."""

from __future__ import annotations

import itertools
from typing import Any

import pandas as pd
import pytest

import perfnb
from perfnb import Profile
from perfnb.labs.exercise import Facts
from perfnb.labs.lab_08 import LATE
from perfnb.results import Ranks
from tests.labs.judging import expect, expect_of, hint, said_of
from tests.labs.lab_08_answers import WORK, late, union
from tests.written_traces import Written

ORIGIN: Facts = {
    "said": {"iterations": 5, "batch": 512, "ranks": 128},
    "iterations": 5,
    "shape": [512, 3, 224, 224],
    "ranks": 128,
    "loaded": 2,
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"iterations": 1}, "made of the trace"),
        ({"iterations": 10}, "twice"),
        ({"iterations": 2375}, "not how often the model was called"),
        ({"batch": 3}, "another dimension"),
        ({"batch": 224}, "another dimension"),
        ({"batch": 2560}, "all iterations"),
        ({"batch": 64}, "first dimension"),
        ({"ranks": 2}, "loaded"),
        ({"ranks": 127}, "not the number"),
    ],
)
def test_what_ran_it(change: dict[str, float], says: str) -> None:
    expect_of("8.1", says, ORIGIN | {"said": ORIGIN["said"] | change})


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Profile, Profile, Ranks]:
    """Two traces that are called as those of the lab, and two ranks."""
    folder = tmp_path_factory.mktemp("traces")
    for name in ("reader_a", "reader_b"):
        trace = Written().step(1, 0, 1000)
        trace.kernel("a", 10, 20, 50).kernel("b", 40, 50, 60).kernel("c", 100, 110, 130).write(folder / f"{name}.json")
    for rank in (0, 1):
        trace = Written(distributedInfo={"rank": rank, "world_size": 4}).step(1, 0, 1000)
        trace.kernel("a", 10, 20, 80).kernel("nccl", 15, 30, 60, stream=9).kernel("b", 90, 100, 120)
        trace.write(folder / f"rank{rank}.json")
    first, second, ranks = (
        perfnb.load(folder / "reader_a.json"),
        perfnb.load(folder / "reader_b.json"),
        perfnb.load([folder / "rank0.json", folder / "rank1.json"]),
    )
    assert isinstance(ranks, Ranks)
    return first, second, ranks


def spanned(work: pd.DataFrame) -> float:
    return ((work["start_ns"] + work["duration_ns"]).max() - work["start_ns"].min()) / 1e6


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (union, ""),
        (lambda work: work["duration_ns"].sum() / 1e6, "It is the sum"),
        (spanned, "including the gaps"),
        (lambda work: union(work, latest=False), "latest end so far"),
        (lambda work: union(work, sort=False), "sort them by their start"),
        (lambda work: union(work) * 1e6, "million times too large"),
        (lambda work: union(work) / 1e3, "thousand times too small"),
        (lambda work: union(work) * 2, "twice"),
        (lambda work: 547.656, "the result is wrong"),
        (lambda work: work.groupby("stream")["duration_ns"].sum(), "KeyError"),
        (lambda work: None, "no value yet"),
        (3.0, "function itself"),
    ],
)
def test_busy(small: tuple[Profile, Profile, Ranks], answer: Any, says: str) -> None:
    expect("8.2", says, answer, ranks=small[2])


def by_the_work(events: pd.DataFrame) -> float:
    """When the GPU began, instead of when the host made the call."""
    done = events[events["category"].isin(WORK)].sort_values("start_ns")
    ended = (done["start_ns"] + done["duration_ns"]).cummax().shift()
    return float((done["start_ns"] > ended).iloc[1:].mean())


def test_each_mistake_changes_the_share_of_the_made_up_frame() -> None:
    mistakes = [
        late(LATE),
        1 - late(LATE),
        late(LATE, calls=["cuda_runtime"]),
        late(LATE, work=["kernel"]),
        late(LATE, latest=False),
        late(LATE, ended=True),
        by_the_work(LATE),
    ]

    assert min(after - before for before, after in itertools.pairwise(sorted(mistakes))) > 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (late, ""),
        (lambda events: late(events, calls=["cuda_runtime"]), "one of them is missing"),
        (lambda events: late(events, work=["kernel"]), "Copies and fills"),
        (lambda events: late(events, latest=False), "Other streams"),
        (lambda events: late(events, ended=True), "end of the call"),
        (lambda events: 1 - late(events), "in time"),
        (by_the_work, "start of the work itself"),
        (lambda events: 0.4, "the result is wrong"),
        (lambda events: 100 * late(events), "percent"),
        (lambda events: late(events) * 2, "twice"),
        (lambda events: late(events, by_place=True), "by its correlation"),
        (lambda events: 0.948387, "the result is wrong"),
        (lambda events: events["stream"].mean(), "KeyError"),
        (0.95, "function itself"),
    ],
)
def test_late_launches(small: tuple[Profile, Profile, Ranks], answer: Any, says: str) -> None:
    expect("8.3", says, answer, profile=small[0], other=small[1])


def test_the_traces_of_the_exercise_are_needed(small: tuple[Profile, Profile, Ranks]) -> None:
    assert "Pass the profile of reader_a" in hint("8.3", late, profile=small[1], other=small[0])
    assert "Pass the ranks" in hint("8.2", union, ranks=small[0])
    assert "no profile yet" in hint("8.3", late, profile=None, other=small[1])


FASTER: Facts = {
    "op": "aten::addmm",
    "share": 0.6,
    "saves_ms": 0.0,
    "gpu_ms": {"aten::addmm": 0.735, "aten::gelu": 0.49},
    "kernel_ms": [0.399, 0.336, 0.49],
    "step_ms": 7.9,
    "path_gpu_ms": 0.0,
    "path_host_ms": 1.9,
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"op": "aten::gelu"}, "another op"),
        ({"op": "cutlass"}, "no row"),
        ({"share": 60.0}, "percent"),
        ({"share": 0.4}, "one kernel"),
        ({"share": 0.093}, "share of the step"),
        ({"share": 0.3}, "half"),
        ({"saves_ms": 0.3675}, "Does the end of the step wait"),
        ({"saves_ms": 0.735}, "Does the end of the step wait"),
        ({"saves_ms": 1.9}, "host's time"),
        ({"saves_ms": 0.95}, "host's time"),
        ({"saves_ms": 4.0}, "critical path"),
    ],
)
def test_a_faster_kernel(change: dict[str, Any], says: str) -> None:
    expect_of("8.4", says, FASTER | change)


def test_a_faster_kernel_where_the_gpu_is_waited_for() -> None:
    """What lies on the path is what counts, whatever it is of."""
    waited = FASTER | {"path_gpu_ms": 0.5}

    assert said_of("8.4", waited | {"saves_ms": 0.25}) == ""
    assert "critical path" in said_of("8.4", waited)
