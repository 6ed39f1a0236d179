"""Lab 8 on its own traces: what is planted is in the plain JSON, the right answers pass, and the text says the same."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfnb
from notebooks.labs import build
from perfnb.errors import LabError
from perfnb.labs.made_traces import NOTE, TRACES, trace_file
from tests.labs.judging import expect, hint
from tests.labs.lab_08_answers import WORK, late, union

Event = dict[str, Any]


class Made:
    """The lab's traces, loaded, and the plain JSON of each."""

    def __init__(self) -> None:
        files = {name: trace_file(name) for name in TRACES}
        self.json = {name: json.loads(gzip.decompress(path.read_bytes())) for name, path in files.items()}
        self.a, self.b, self.training = (perfnb.load(files[n]) for n in ("reader_a", "reader_b", "training_b"))
        self.ranks = perfnb.load([files["rank_0"], files["rank_1"]])

    def events(self, name: str, *categories: str) -> list[Event]:
        return [event for event in self.json[name]["traceEvents"] if not categories or event["cat"] in categories]

    def gpu_ms(self, name: str) -> dict[str, float]:
        """By operator: what it launched, found by correlation and by the innermost span around the call."""
        calls = {
            e["args"]["correlation"]: e["ts"]
            for e in self.events(name, "cuda_runtime", "cuda_driver")
            if "correlation" in e["args"]
        }
        ops = self.events(name, "cpu_op")
        total: Counter[str] = Counter()
        for work in self.events(name, *WORK):
            called = calls[work["args"]["correlation"]]
            around = [op for op in ops if op["ts"] <= called <= op["ts"] + op["dur"]]
            inner = min(around, key=lambda op: op["dur"], default={"name": ""})
            total[inner["name"]] += work["dur"] / 1e3
        return dict(total)

    def step_ms(self, name: str) -> float:
        (step,) = (event for event in self.events(name) if event["name"].startswith("ProfilerStep"))
        return step["dur"] / 1e3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERFNB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield Made()


FIRST = {"iterations": 6, "batch": 256, "ranks": 64}
CALLED = {"call": "hipFree", "per_iteration": 24, "share": 0.983}


def faster(made: Made, **change: Any) -> dict[str, Any]:
    gpu_ms = made.gpu_ms("reader_a")
    return {"op": "aten::addmm", "share": gpu_ms["aten::addmm"] / sum(gpu_ms.values()), "saves_ms": 0} | change


def waits(made: Made) -> list[float]:
    """By step, for how long rank 0 waits in collectives of all ranks; the clock of rank 1 is ahead."""
    starts = []
    for rank in (0, 1):
        found = [
            (e["ts"] - 150.0 * rank, e["ts"] + e["dur"] - 150.0 * rank)
            for e in made.events(f"rank_{rank}", "kernel")
            if len(json.loads(e["args"].get("Process Group Ranks", "[]"))) == 64
        ]
        starts.append(sorted(found))
    both = list(zip(*starts, strict=True))
    assert len(both) == 15
    assert all(one[1] == pytest.approx(other[1], abs=0.01) for one, other in both)  # they end together
    late_us = [max(other[0] - one[0], 0.0) for one, other in both]
    return [sum(late_us[first : first + 5]) / 1e3 for first in (0, 5, 10)]


Answer = Callable[[Made], Any]


@pytest.mark.slow
def test_right_answers_from_the_traces(made: Made) -> None:
    answers: tuple[tuple[str, Any, dict[str, Any]], ...] = (
        ("8.1", FIRST, {"profile": made.training, "ranks": made.ranks}),
        ("8.2", union, {"ranks": made.ranks}),
        ("8.3", late, {"profile": made.a, "other": made.b}),
        ("8.4", faster(made), {"profile": made.a}),
        ("8.5", CALLED, {"profile": made.training}),
        ("8.6", {"rank": 1, "waits_ms": sum(waits(made)) / 3}, {"ranks": made.ranks}),
    )
    for number, answer, evidence in answers:
        assert hint(number, answer, **evidence) == "", number


def talked(made: Made, rank: int) -> float:
    """Milliseconds of a step in communication, by the plain JSON: one at a time."""
    found = [e["dur"] for e in made.events(f"rank_{rank}", "kernel") if e["name"].startswith("nccl")]
    return sum(found) / 3e3


def test_another_trace_is_not_taken(made: Made) -> None:
    assert "Pass the profile of training_b" in hint("8.1", FIRST, profile=made.a, ranks=made.ranks)
    assert "Pass the profile of training_b" in hint("8.5", CALLED, profile=made.a)


def on_their_way(made: Made, **change: Any) -> dict[str, Any]:
    """Sums over the plain JSON."""
    said, us = {}, {}
    for kind in ("Pageable", "Pinned"):
        found = [event for event in made.events("copies") if event["name"] == f"Memcpy HtoD ({kind} -> Device)"]
        us[kind] = sum(event["dur"] for event in found)
        said[kind.lower()] = sum(event["args"]["bytes"] for event in found) / us[kind] / 1e3
    return said | {"saves_ms": (us["Pageable"] - us["Pinned"]) / 3e3} | change


def pinned_by_name(made: Made, word: str, least: int = 0) -> float:
    """GB/s of all copies with a word in their names, and of some size."""
    found = [event for event in made.events("copies", "gpu_memcpy") if word in event["name"]]
    found = [event for event in found if event["args"]["bytes"] >= least]
    return float(sum(event["args"]["bytes"] for event in found) / sum(event["dur"] for event in found) / 1e3)


def mean_rate(made: Made, kind: str) -> float:
    found = [event for event in made.events("copies") if event["name"] == f"Memcpy HtoD ({kind} -> Device)"]
    return float(np.mean([event["args"]["bytes"] / event["dur"] for event in found])) / 1e3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda made: {}, ""),
        (lambda made: {"pageable": 51.0, "pinned": 11.9}, "pageable: that is the bandwidth from the other kind"),
        (lambda made: {"pageable": mean_rate(made, "Pageable")}, "mean of the copies' bandwidths"),
        (lambda made: {"pinned": pinned_by_name(made, "Pinned")}, "DtoH in their names"),
        (lambda made: {"pinned": pinned_by_name(made, "HtoD (Pinned", least=4096)}, "leaves out the labels"),
        (lambda made: {"pageable": on_their_way(made)["pageable"] / 1.073741824}, "GiB/s"),
        (lambda made: {"pageable": on_their_way(made)["pageable"] * 8}, "gigabits"),
        (lambda made: {"saves_ms": on_their_way(made)["saves_ms"] * 3}, "all three steps"),
        (lambda made: {"saves_ms": on_their_way(made)["saves_ms"] / 2}, "only three of the six steps"),
        (lambda made: {"saves_ms": 0.766}, "that is a share"),
        (lambda made: {"saves_ms": 0.706}, "pinned copies take time, too"),
        (lambda made: {"saves_ms": 1.104}, "how much shorter the step becomes"),
        (lambda made: {"saves_ms": 0.9}, "difference between the two kinds"),
    ],
)
def test_cards_on_their_way(made: Made, change: Answer, words: str) -> None:
    expect("8.10", words, on_their_way(made, **change(made)))


def test_what_the_text_says_of_the_traces(made: Made) -> None:
    a, training, ranks = made.a, made.training, made.ranks
    assert (made.step_ms("reader_a"), made.step_ms("reader_b")) == (
        pytest.approx(4.3, abs=0.05),
        pytest.approx(4.0, abs=0.05),
    )
    assert a.gpu_time["idle_pct"].sum() == pytest.approx(84, abs=0.6)
    assert training.gpu_time["idle_pct"].sum() == pytest.approx(74, abs=0.5)
    assert a.launches["call_ms"].sum() < 1 < 3 < a.gpu_idle["host_ms"].sum()
    kernels = made.events("reader_a", "kernel")
    assert made.step_ms("reader_a") / len(kernels) == pytest.approx(0.024, abs=0.001)
    assert np.mean([kernel["dur"] for kernel in kernels]) == pytest.approx(4, abs=0.4)
    assert faster(made)["share"] == pytest.approx(2 / 3, abs=0.02)
    frees = [event for event in made.events("training_b", "cuda_runtime") if event["name"] == "hipFree"]
    assert len(frees) == 24 * 6
    assert 1_800 < np.median([event["dur"] for event in frees]) < 2_200
    assert talked(made, 0) > talked(made, 1)  # the straggler is not the one that communicates longest
    assert set(waits(made)) > {0} or min(waits(made)) > 2
    assert "communication" not in set(ranks[0].critical_path["kind"])
    calls = ranks[0].events.query("category in ['cuda_runtime', 'cuda_driver']")["name"]
    assert set(calls) == {"cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync"}
    own = ranks.times.query("rank == 0")
    assert own["exposed_ms"].mean() == pytest.approx(11, abs=0.6)
    assert ranks[0].gpu_idle["host_ms"].mean() == pytest.approx(5, abs=0.6)
    assert ranks.clocks.loc[1, "ahead_us"] == pytest.approx(150, abs=1)


@pytest.mark.parametrize("name", sorted(TRACES.keys() - {"copies"}))
def test_a_trace_says_that_it_is_made_up_and_is_small(made: Made, name: str) -> None:
    assert made.json[name]["note"] == NOTE
    assert "(made up)" in made.json[name]["deviceProperties"][0]["name"]
    assert trace_file(name).stat().st_size < 50_000
    ids = Counter(event["args"]["correlation"] for event in made.events(name, *WORK))
    assert set(ids.values()) == ({1, 184} if name == "reader_a_again" else {1})


def test_the_same_trace_is_written_each_time(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trace_file("reader_b").read_bytes()
    monkeypatch.setenv("PERFNB_CACHE", str(tmp_path / "another folder"))

    path = trace_file("reader_b")

    assert path == tmp_path / "another folder" / "lab_traces" / "reader_b.json.gz"
    assert path.read_bytes() == first
    assert [each.name for each in path.parent.iterdir()] == ["reader_b.json.gz"]
    assert trace_file("reader_b").read_bytes() == first


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PERFNB_CACHE", str(tmp_path / "file"))

    with pytest.raises(LabError, match=r"rank_0 could not be written to .*lab_traces .*PERFNB_CACHE to"):
        trace_file("rank_0")
    monkeypatch.setattr("perfnb.labs.made_traces.cache_folder", lambda: None)
    with pytest.raises(LabError, match="no folder to write the trace rank_0 to"):
        trace_file("rank_0")
    with pytest.raises(LabError, match="There is no trace 'h100'; there are reader_a, "):
        trace_file("h100")


def test_the_lab_needs_no_network() -> None:
    text = build.built()[build.HERE / "08_someone_elses_trace.ipynb"]

    assert set(re.findall(r"trace_file\(\\\"(\w+)\\\"\)", text)) == set(TRACES)
    assert "download" not in text
    assert "github.com" not in text
