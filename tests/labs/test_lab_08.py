"""Lab 8: the right answers pass, and plausible wrong ones do not. What is read by hand is tried on small traces too."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import perfnb
from perfnb import Profile
from perfnb.labs import lab_08
from perfnb.labs.exercise import Facts
from perfnb.labs.lab_08 import LATE
from perfnb.labs.ledger import exercise_of
from perfnb.results import Ranks
from tests.labs.judging import expect, hint
from tests.labs.lab_08_answers import WORK, late, union
from tests.written_traces import Written

ORIGIN: Facts = {
    "said": {"iterations": 5, "batch": 512, "ranks": 128},
    "iterations": 5,
    "shape": [512, 3, 224, 224],
    "ranks": 128,
    "loaded": 2,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Profile, Profile, Ranks]:
    """Two traces that are called as those of the lab, and two ranks."""
    folder = tmp_path_factory.mktemp("traces")
    for name, longer in (("reader_a", 0), ("reader_b", 100)):
        trace = Written().step(1, 0, 1000).op("aten::mm", 5, 60).op("aten::relu", 90, 115)
        trace.kernel("a", 10, 20, 50).kernel("b", 40, 50, 60).kernel("c", 100, 110, 130 + longer)
        trace.event("cudaDeviceSynchronize", 120, 140 + longer, "cuda_runtime").write(folder / f"{name}.json")
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
        (lambda work: work.groupby("stream")["duration_ns"].sum(), "KeyError"),
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

    assert mistakes == pytest.approx([3 / 11, 8 / 11, 1 / 11, 5 / 9, 5 / 11, 4 / 11, 7 / 11])
    assert min(after - before for before, after in itertools.pairwise(sorted(mistakes))) > 0.05


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (late, ""),
        (lambda events: late(events, calls=["cuda_runtime"]), "one of them is missing"),
        (lambda events: late(events, work=["kernel"]), "Copies and fills"),
        (lambda events: late(events, latest=False), "Other streams"),
        (lambda events: late(events, ended=True), "end of the call"),
        (by_the_work, "start of the work itself"),
        (lambda events: late(events, by_place=True), "by its correlation"),
        (lambda events: events["stream"].mean(), "KeyError"),
    ],
)
def test_late_launches(small: tuple[Profile, Profile, Ranks], answer: Any, says: str) -> None:
    expect("8.3", says, answer, profile=small[0], other=small[1])


def test_what_is_measured_in_small_traces(small: tuple[Profile, Profile, Ranks], tmp_path: Path) -> None:
    first, second, ranks = small
    trace = Written().step(1, 0, 3000).event("hipFree", 600, 900, "cuda_driver")
    for t, images in ((0, 16), (1000, 5)):
        trace.module("Net_0", t + 10, t + 900)
        shapes: dict[str, Any] = {"Input Dims": [[images, 3, 8, 9], [4, 3, 5, 5]]}
        trace.event("aten::conv2d", t + 20, t + 50, **shapes)
        trace.kernel("conv", t + 30, t + 40, t + 140)
    trace.event("hipFree", 2600, 2650, "cuda_runtime")
    training = perfnb.load(trace.write(tmp_path / "training_b.json"))

    called = {"call": "hipFree", "per_iteration": 1.0, "share": 0.1}
    faster = {"op": "aten::relu", "share": 0.5, "saves_ms": 0.0}
    machines = {"op": "aten::mm", "op_ratio": 1.0, "busy_ratio": 2.0}
    facts = {
        "8.1": exercise_of("8.1").measure(ORIGIN["said"], profile=training, ranks=ranks),
        "8.2": exercise_of("8.2").measure(lambda work: len(work), ranks=ranks),
        "8.4": exercise_of("8.4").measure(faster, profile=first),
        "8.5": exercise_of("8.5").measure(called, profile=training),
        "8.7": exercise_of("8.7").measure(machines, profile=first, other=second),
    }

    assert facts["8.1"] == ORIGIN | {"iterations": 2, "shape": [16, 3, 8, 9], "ranks": 4}
    of_rank = {"said": 3.0, "union": 0.08, "sum": 0.11, "span": 0.1, "neighbours": 0.08, "unsorted": 0.08}
    of_made = {"said": 6.0, "union": 0.55, "sum": 0.7, "span": 0.95, "neighbours": 0.65, "unsorted": 0.05}
    frames = {"the made-up frame": of_made, "the events of rank 0": of_rank, "the events of rank 1": of_rank}
    assert facts["8.2"]["cases"] == {name: pytest.approx(of) for name, of in frames.items()}
    # The host waits for the kernel of relu, which ran 20 µs and started 10 µs after its launch.
    on_path = {"path_gpu_ms": 0.03, "path_host_ms": 0.01}
    ms = {"kernel_ms": [0.03, 0.02, 0.01], "gpu_ms": {"aten::mm": 0.04, "aten::relu": 0.02}, "step_ms": 1.0}
    assert facts["8.4"] == faster | ms | on_path
    calls = {"calls": {"cudaLaunchKernel": 2, "hipFree": 2}, "ms": {"cudaLaunchKernel": 0.002, "hipFree": 0.35}}
    assert facts["8.5"] == called | calls | {"iterations": 2, "step_ms": 3.0, "idle_ms": pytest.approx(0.9)}
    assert facts["8.7"] == machines | {
        "gpu_ms": {"aten::mm": [0.04, 0.04], "aten::relu": [0.02, 0.12]},
        "busy_ms": pytest.approx([0.06, 0.16]),
        "wall_ms": [1.0, 1.0],
    }


def test_copies_are_read_from_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"Memcpy HtoD ({kind} -> Device)" for kind in ("Pageable", "Pinned")]
    names += [names[1], "Memcpy DtoH (Device -> Pageable)", "ProfilerStep#1", "gemm"]
    measured = zip(names, (4.0, 2.0, 1.0, 3.0, 2500.0, 7.0), (8000, 8000, 16, 500, 0, 0), strict=True)
    events = [{"name": name, "dur": us, "args": {"bytes": size}} for name, us, size in measured]
    (tmp_path / "copies").write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    monkeypatch.setattr(lab_08, "trace_file", lambda name: tmp_path / name)

    said = {"pageable": 2.0, "pinned": 4.0, "saves_ms": 1.0}
    assert exercise_of("8.10").measure(said) == {
        "said": said,
        "copied": {"Pageable": [[8000.0, 4.0]], "Pinned": [[8000.0, 2.0], [16.0, 1.0]]},
        "back": [[500.0, 3.0]],
        "steps_ms": [2.5],
    }


def test_the_traces_of_the_exercise_are_needed(small: tuple[Profile, Profile, Ranks]) -> None:
    assert "Pass the profile of reader_a" in hint("8.3", late, profile=small[1], other=small[0])
    assert "Pass the ranks" in hint("8.2", union, ranks=small[0])
    assert "no profile yet" in hint("8.3", late, profile=None, other=small[1])


def test_ranks_without_collectives_of_both_have_no_straggler(small: tuple[Profile, Profile, Ranks]) -> None:
    assert small[2].times["waiting_ms"].isna().all()
    expect("8.6", "do not show how long each rank waits", {"rank": 1, "waits_ms": 1.0}, ranks=small[2])
