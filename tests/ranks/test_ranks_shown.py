"""What the text and the page of several ranks say: who waited, which ranks are loaded, what is doubted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import perfnb
from perfnb.draw import palette
from perfnb.errors import RecordingError
from tests.ranks.rank_traces import rank_trace, written
from tests.trace.test_public_traces import FOLDER
from tests.written_traces import Written


def test_the_page_stands_alone_and_draws_what_each_rank_did(tmp_path: Path) -> None:
    trace = rank_trace(0)
    trace.event("gemm", 12_900, 13_000, "kernel", 7, 0, device=0, stream=9, correlation=77)
    paths = [trace.write(tmp_path / "rank0 <script>x.json"), rank_trace(400).write(tmp_path / "rank1.json")]
    ranks = perfnb.load(paths)

    page = ranks.to_html(tmp_path / "ranks.html").read_text("utf-8")

    assert page.startswith("<!DOCTYPE html>")
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert "http://" not in page.replace("http-equiv", "")
    assert page.count('class="pf-bar"') == 2
    assert "waited for by the others" in page
    assert "idle: of a GPU, between its first and last work in the step; n/a: not known" in page
    parts = ranks._summary.parts
    gpu = ranks.gpu_time.set_index("rank")
    assert (parts["computing_ms"] + parts["both_ms"]).tolist() == pytest.approx(
        ranks.times.groupby("rank")["computation_ms"].mean().tolist()
    )
    assert (parts > 0).any().all() or gpu["overlap_ms"].sum() == 0
    for name, mark in palette.RANK_PARTS.items():
        assert f"{mark.word}" in page, name
    with pytest.raises(RecordingError, match="cannot be written"):
        ranks.to_html(tmp_path / "ranks.html" / "inside")


def test_ranks_without_a_gpu_have_no_bars(tmp_path: Path) -> None:
    paths = [Written().step(0, 0, 90).op("aten::mm", 0, 10).write(tmp_path / f"rank{n}.json") for n in range(2)]

    page = perfnb.load(paths).to_html(tmp_path / "ranks.html").read_text("utf-8")

    assert 'class="pf-bar"' not in page
    assert "n/a" in page


def gpu(name: str) -> list[dict[str, Any]]:
    return [{"id": 0, "name": name}]


def test_the_straggler_of_a_few_ranks_is_that_of_those_loaded(tmp_path: Path) -> None:
    few = [rank_trace(late, distributedInfo={"rank": rank, "world_size": 8}) for rank, late in ((2, 0), (5, 150))]
    ranks = perfnb.load(written(tmp_path, few))

    text = " ".join(str(ranks).split())
    assert ranks.straggler == 5
    assert "2 of 8 ranks are loaded: any of the other 6 may have held these up." in text
    assert "Rank 5 is the straggler among those loaded: in collectives the others waited 0.600 ms per step" in text
    page = ranks.to_html(tmp_path / "ranks.html").read_text("utf-8")
    assert '<p class="pf-head"><strong>2 ranks of 8</strong>' in page
    assert "any of the other 6 may have held these up" in page
    (tmp_path / "all").mkdir()
    whole = [rank_trace(late, distributedInfo={"rank": rank, "world_size": 2}) for rank, late in ((0, 0), (1, 150))]
    text = " ".join(str(perfnb.load(written(tmp_path / "all", whole))).split())
    assert "Rank 1 is the straggler: " in text
    assert "loaded" not in text


def test_times_in_notes_are_written_as_everywhere(tmp_path: Path) -> None:
    slow = rank_trace(0), rank_trace(0, clock=2_500_000.0)
    for trace in slow:  # steps and collectives of seconds
        for event in trace.events:
            event["ts"], event["dur"] = event["ts"] * 1e4, event["dur"] * 1e4
    slow[1].events[:] = [
        {**event, "ts": event["ts"] + 1.5e6, "dur": event["dur"] - 1.5e6} if event["name"].startswith("nccl") else event
        for event in slow[1].events
    ]

    text = " ".join(str(perfnb.load(written(tmp_path, list(slow)))).split())

    assert "waited 6.00 s per step, it waited 0 ms" in text
    assert "e+0" not in text


@pytest.mark.slow
def test_ranks_of_one_number_are_told(tmp_path: Path) -> None:
    paths = written(tmp_path, [rank_trace(0, distributedInfo={"rank": 3})] * 2 + [rank_trace(7)], "trace{}.json")

    ranks = perfnb.load(paths)
    text = " ".join(str(ranks).split())

    assert "Ranks 0, 1 all are rank 3 by their traces or file names, so ranks are numbered in the order given." in text
    again = perfnb.load(ranks.save(tmp_path / "saved"))
    assert str(again) == str(ranks)
    text = str(perfnb.load(written(tmp_path, [rank_trace(0), rank_trace(0, clock=5)])))
    assert "all are rank" not in text


def test_traces_of_other_jobs_are_doubted(tmp_path: Path) -> None:
    traces = [
        rank_trace(0, distributedInfo={"rank": 0, "world_size": 2}, deviceProperties=gpu("Small <b>GPU")),
        rank_trace(9, distributedInfo={"rank": 1, "world_size": 2}, deviceProperties=gpu("Small <b>GPU")),
        rank_trace(0, lost=tuple(range(12)), distributedInfo={"rank": 2, "world_size": 4}, deviceProperties=gpu("Big")),
    ]

    ranks = perfnb.load(written(tmp_path, traces))

    text, page = " ".join(str(ranks).split()), ranks._repr_mimebundle_()["text/html"]
    assert "The traces disagree on the number of ranks, so they are not from one job: 2 (ranks 0, 1); 4" in text
    assert "different GPUs, so they may not be from one job: Small <b>GPU (ranks 0, 1); Big (rank 2)." in text
    assert "No collective of rank 2 could be matched with other ranks" in text
    assert "different GPUs" in page
    assert "<b>" not in page
    assert "the traces may not belong to one job" in str(
        " ".join(str(perfnb.load(written(tmp_path, [traces[2], traces[2]]))).split())
    )


def test_one_rank_is_not_several(tmp_path: Path) -> None:
    ranks = perfnb.load(written(tmp_path, [rank_trace(0)]))

    assert isinstance(ranks, perfnb.results.Ranks)
    assert "perfnb · 1 rank · " in str(ranks)
    page = ranks.to_html(tmp_path / "ranks.html").read_text("utf-8")
    assert "<title>1 rank · perfnb</title>" in page
    assert "1 ranks" not in page + str(ranks)


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no folder of public traces at {FOLDER}; set PERFNB_TRACES")
def test_public_traces_of_two_makers_are_no_ranks_of_one_job() -> None:
    ranks = perfnb.load([FOLDER / "kineto" / f"{name}_vit.json.gz" for name in ("h100", "mi300")])

    text = " ".join(str(ranks).split())

    assert "NVIDIA H100 80GB HBM3 (rank 0); AMD Instinct MI300X VF (rank 1)" in text
    assert "the traces may not belong to one job" in text
