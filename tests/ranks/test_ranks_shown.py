"""What the text and the page of several ranks say: who waited, which ranks are loaded, what is doubted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import perfnb
from perfnb.draw import palette
from perfnb.draw.document import Bars, Heat
from tests.ranks.rank_traces import rank_trace, written
from tests.samples import texts
from tests.samples.ranks import DOCUMENTS
from tests.written_traces import Written


def test_the_parts_of_a_ranks_time_add_up_and_each_has_a_look_of_its_own(tmp_path: Path) -> None:
    trace = rank_trace(0)
    trace.event("gemm", 12_900, 13_000, "kernel", 7, 0, device=0, stream=9, correlation=77)
    ranks = perfnb.load([trace.write(tmp_path / "rank0.json"), rank_trace(400).write(tmp_path / "rank1.json")])

    parts = ranks._summary.parts
    steps = ranks.gpu_steps.groupby("rank")["total_ms"].sum() / 3
    assert parts.sum(axis=1).tolist() == pytest.approx(steps.tolist())
    assert (parts["computing_ms"] + parts["both_ms"]).tolist() == pytest.approx(
        ranks.times.groupby("rank")["computation_ms"].mean().tolist()
    )
    (bars, *_) = ranks._document().sections
    assert isinstance(bars, Bars)
    assert [sum(part.value for part in bar.parts) for bar in bars.bars] == pytest.approx(steps.tolist())
    looks = [(mark.colour, mark.pattern) for mark in palette.RANK_PARTS.values()]
    assert len(set(looks)) == len({colour for colour, _ in looks}) == len(parts.columns)


def test_copies_that_nothing_hides_are_in_bar_table_and_verdict(tmp_path: Path) -> None:
    traces = [Written(), Written()]
    for trace in traces:
        trace.step(0, 0, 10_000).kernel("gemm", 0, 10, 1010)
        trace.event("Memcpy HtoD (Pageable -> Device)", 510, 9510, "gpu_memcpy", 0, 7, device=0, stream=7)

    ranks = perfnb.load(written(tmp_path, traces))

    assert ranks.times["copying_ms"].tolist() == pytest.approx([8.5, 8.5]), "half a millisecond of it is hidden"
    document = ranks._document()
    assert document.verdict.sentence == (
        "Bound by copies: removing the exposed copies could save up to 8.50 ms of 10.0 ms per step, 85 %"
    )
    assert (
        document.verdict.why
        == "In each step of 10.0 ms, the GPUs only copy data for 8.50 ms. They compute for 1.00 ms."
    )
    (bars, *_) = document.sections
    assert isinstance(bars, Bars)
    assert {part.mark.word: part.value for part in bars.bars[0].parts}["copying alone"] == pytest.approx(8.5)
    assert any("No collective could be matched" in note for note in document.notes)


def gpu(name: str) -> list[dict[str, Any]]:
    return [{"id": 0, "name": name}]


def test_the_straggler_of_a_few_ranks_is_that_of_those_loaded(tmp_path: Path) -> None:
    few = [rank_trace(ms, steps=2, distributedInfo={"rank": n, "world_size": 8}) for n, ms in ((2, 0), (5, 150))]
    ranks = perfnb.load(written(tmp_path, few))
    (waits,) = (section for section in ranks._document().sections if isinstance(section, Heat))
    assert waits.values == [pytest.approx([0.6, 0.6]), [0, 0]]

    text = " ".join(str(ranks).split())
    assert ranks.straggler == 5
    assert "Only 2 of 8 ranks are loaded. Some of the waits may be for ranks that are missing (6)." in text
    assert "Held up by rank 5: making it as fast as the others could save up to 0.600 ms of 5.00 ms per step" in text
    assert ranks._document().subject == "2 ranks of 8"
    assert "Only 1 of 8 ranks is loaded." in str(perfnb.load([tmp_path / "rank0.json"]))
    (tmp_path / "all").mkdir()
    whole = [rank_trace(late, distributedInfo={"rank": rank, "world_size": 2}) for rank, late in ((0, 0), (1, 150))]
    text = " ".join(str(perfnb.load(written(tmp_path / "all", whole))).split())
    assert "Held up by rank 1" in text
    assert "loaded" not in text


def test_ranks_of_one_number_are_named(tmp_path: Path) -> None:
    paths = written(tmp_path, [rank_trace(0, distributedInfo={"rank": 3})] * 2 + [rank_trace(7)], "trace{}.json")

    text = " ".join(str(perfnb.load(paths)).split())

    assert "Ranks 0, 1 are all rank 3 according to their traces or file names, so ranks are numbered in the" in text


def test_traces_of_other_jobs_are_doubted(tmp_path: Path) -> None:
    traces = [
        rank_trace(0, lost=tuple(range(12)), distributedInfo={"rank": 0, "world_size": 4}, deviceProperties=gpu("Big")),
        rank_trace(0, distributedInfo={"rank": 1, "world_size": 2}, deviceProperties=gpu("Small <b>GPU")),
        rank_trace(9, distributedInfo={"rank": 2, "world_size": 2}, deviceProperties=gpu("Small <b>GPU")),
    ]

    ranks = perfnb.load(written(tmp_path, traces))

    text, page = " ".join(str(ranks).split()), ranks._repr_mimebundle_()["text/html"]
    assert "so they are not from the same job: 2 (ranks 1, 2); 4 (rank 0)." in text
    assert "different GPUs, so they may not be from the same job: Big (rank 0); Small <b>GPU (ranks 1, 2)." in text
    assert "No collective of rank 0 could be matched with other ranks" in text
    assert "between these groups" not in text
    assert "different GPUs" in page
    assert "<b>" not in page
    lone = " ".join(str(perfnb.load(written(tmp_path, traces[:1] * 2))).split())
    assert "the traces may not belong to the same job" in lone


def test_one_rank_is_not_several(tmp_path: Path) -> None:
    ranks = perfnb.load(written(tmp_path, [rank_trace(0)]))

    assert isinstance(ranks, perfnb.results.Ranks)
    assert str(ranks).startswith("perfnb · ranks · 1 rank\n")
    page = ranks.to_html(tmp_path / "ranks.html").read_text("utf-8")
    assert "<title>1 rank · perfnb</title>" in page
    assert "1 ranks" not in page + str(ranks)
    assert "may not belong to the same job" not in " ".join(str(ranks).split())


def test_the_samples_as_text(golden: Callable[[str, str], None]) -> None:
    golden("samples.txt", texts(DOCUMENTS))
