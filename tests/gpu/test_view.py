"""The GPU tab's account of the GPUs' work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from perfnb.draw.as_text import document_text
from perfnb.draw.document import Bars, Choice, Document, Series, Table
from perfnb.gpu.summary import GpuSummary, PathFacts
from perfnb.gpu.tab import gpu_document, gpu_verdict, launch_sentence, path_title, shape_words
from tests.gpu import gpu_samples as samples
from tests.gpu.gpu_samples import gpu_of
from tests.samples import texts
from tests.samples.gpu import DOCUMENTS
from tests.written_traces import Written


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> GpuSummary:
    return gpu_of(samples.two_gpus(), tmp_path_factory.mktemp("two"))


def said(gpu: GpuSummary) -> str:
    return gpu_verdict(gpu).sentence


def tables(document: Document) -> dict[str, Table]:
    return {section.title: section for section in document.sections if isinstance(section, Table)}


def test_the_bars_hold_the_whole_time_of_each_gpu(two: GpuSummary) -> None:
    shown = gpu_document(two)

    choice = shown.sections[0]
    assert isinstance(choice, Choice)
    (whole,), (steps,) = choice.options.values()
    assert isinstance(whole, Bars)
    assert isinstance(steps, Bars)
    # GPU 0 runs from 30 to 2280 of 3000: in each step gemm 100, alone the allreduce 50 more, relu 7, the copy 30.
    first, second = ({part.mark.word: part.value for part in bar.parts} for bar in whole.bars)
    known = {"computation": 0.321, "communication": 0.150, "copies": 0.090, "idle: no work": 0.750}
    assert {word: first[word] for word in known} == pytest.approx(known)
    assert second["computation"] == pytest.approx(0.870)
    assert [bar.total for bar in whole.bars] == [3.0, 3.0]
    assert [bar.label for bar in steps.bars[:2]] == ["step 4, GPU 0", "step 5, GPU 0"]
    assert "0.150 ms of communication ran during computation and counts as computation." in shown.notes
    queues = [section for section in shown.sections if isinstance(section, Series)]
    assert len(queues) == 2
    assert max(value or 0 for value in queues[0].lines[0].values) == 2


def test_kernels_lead_to_their_op_and_their_layers(two: GpuSummary) -> None:
    shown = gpu_document(two)

    (kernels,) = [table for table in tables(shown).values() if table.key == "kernels by op"]
    by_op = {str(row[0]): row for row in kernels.rows}
    assert by_op["aten::mm"][1:3] == ("16 × 4, 4 × 8", "gemm")
    assert by_op["aten::mm"][5:7] == pytest.approx((0.1, 0.1), abs=1e-12)
    assert kernels.names is not None
    assert kernels.names[list(by_op).index("aten::mm")] == "gemm"
    assert kernels.selects[0][0] == "ops"
    assert kernels.inner is not None
    assert kernels.inner.selects == "layers"
    place = list(kernels.inner.owner).index(list(by_op).index("aten::mm"))
    assert kernels.inner.rows[place] == ("Net_0", pytest.approx(0.1, abs=1e-12))


def test_kernels_are_listed_by_their_own_names(tmp_path: Path) -> None:
    trace = Written().step(1, 0, 500).step(2, 500, 1000).op("aten::mm", 0, 90).op("aten::add", 100, 190)
    trace.kernel("gemm", 2, 10, 50).kernel("splitK", 20, 50, 60).kernel("gemm", 102, 110, 120)
    shown = gpu_document(gpu_of(trace, tmp_path))

    (named,) = [table for table in tables(shown).values() if table.key == "kernels"]
    assert [row[:3] for row in named.rows] == [("gemm", "aten::mm", 1.0), ("splitK", "aten::mm", 0.5)]
    assert [row[3] for row in named.rows] == [0.025, 0.005]
    assert "gemm " in document_text(shown)
    alone = Written().step(1, 0, 500).kernel("gemm", 2, 10, 50)
    assert "kernels by op" not in {table.key for table in tables(gpu_document(gpu_of(alone, tmp_path))).values()}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[16, 4], [4, 8], []]", "16 × 4, 4 × 8"),
        ("[[[4, 1], [4, 196]], []]", "4 × 1, 4 × 196"),
        ("[[], []]", "scalars"),
        ("[[5]]", "5"),
        ("<b>[1, 2]</b>", "<b>[1, 2]</b>"),
        ("", ""),
        (None, ""),
    ],
)
def test_shapes_in_words(text, words):
    assert shape_words(text) == words


def test_the_verdict_says_how_idle_the_gpus_are_and_why(tmp_path: Path, two: GpuSummary) -> None:
    assert (
        said(two)
        == "2 GPUs are idle for 76 % of 3 traced steps, mostly because the host launched the next work too late."
    )
    assert gpu_verdict(two).state == "bad"

    one = gpu_of(Written().step(1, 0, 100).op("aten::mm", 0, 30).kernel("gemm", 2, 4, 99), tmp_path)
    assert said(one) == (
        "The GPU is busy 95 % of the traced step, and idle because there was no work before the first and after the "
        "last kernel."
    )
    assert gpu_verdict(one).state == "good"
    assert said(gpu_of(samples.unlaunched(), tmp_path)) == "The GPU is busy 100 % of the trace."


def divided(gpu: GpuSummary, **percent: float) -> GpuSummary:
    """Return a summary whose one GPU spent so many percent of its time idle for each reason, and the rest busy."""
    reasons, within = ("host", "dependency", "other", "outside"), ("call", "latency", "unknown")
    parts = dict.fromkeys((*reasons, *within), 0.0) | percent
    idle = sum(parts[name] for name in reasons)
    return replace(gpu, devices=gpu.devices.head(1).assign(total_ms=100.0, **parts), busy=1 - idle / 100)


@pytest.mark.parametrize(
    ("percent", "state", "words"),
    [
        ({"host": 29}, "good", "busy 71 % of 3 traced steps, and idle because the host launched the next work too"),
        ({"host": 31}, "bad", "idle for 31 % of 3 traced steps, because the host launched the next work too late."),
        ({"host": 40, "latency": 20}, "bad", "because the host launched"),
        ({"host": 40, "latency": 21}, "bad", "because work starts late after its launch."),
        ({"other": 40, "unknown": 21}, "bad", "because of something unknown"),
        ({"other": 40, "unknown": 20}, "bad", "because of something that the trace does not show"),
        ({"dependency": 39, "host": 11, "latency": 11}, "bad", "50 % of 3 traced steps, mostly because launched work"),
        ({"dependency": 40, "host": 10}, "bad", "50 % of 3 traced steps, mostly because launched work"),
        ({"dependency": 41, "host": 9}, "bad", "50 % of 3 traced steps, because launched work waited"),
        ({"dependency": 20, "host": 20}, "bad", "mostly because the host"),
        ({"outside": 1}, "good", "and idle because there was no work before the first"),
        ({"outside": 0.9}, "good", "The GPU is busy 99 % of 3 traced steps."),
    ],
)
def test_the_verdict_names_the_largest_part_of_idle_time(
    two: GpuSummary, percent: dict[str, float], state: str, words: str
) -> None:
    verdict = gpu_verdict(divided(two, **percent))

    assert verdict.state == state
    assert words in verdict.sentence


@pytest.mark.parametrize(
    ("known", "short", "percent", "words"),
    [
        (3, 0.0, {}, "it lacks the launches of 62 % of the kernels, copies and fills."),
        (4, 0.0, {}, "Launches keep up with the GPU: it was idle 0 %"),
        (8, 0.0, {"other": 6, "unknown": 4.9}, "Launches keep up"),
        (8, 0.0, {"other": 6, "unknown": 5}, "of 0 % of the kernels, copies and fills, and the GPU was idle 5.0 % of"),
        (8, None, {"host": 4.9}, "Launches keep up with the GPU: it was idle 4.9 %"),
        (8, None, {"host": 5}, "until the next launch (5.0 % before the call). The critical path shows what the host"),
        (8, 0.19, {"host": 9, "call": 3, "latency": 2}, "(4.0 % before the call, 3.0 % inside it, 2.0 % from its ret"),
        (8, 0.2, {"host": 9, "call": 8.5, "latency": 0.4}, "(8.5 % inside it). 20 % of the kernels were shorter than"),
        (8, 0.2, {"host": 9, "call": 0.4, "latency": 0.5}, "(8.1 % before the call, 0.5 % from its return until the"),
    ],
)
def test_whether_launches_keep_up(
    two: GpuSummary, known: int, short: float | None, percent: dict[str, float], words: str
) -> None:
    gpu = divided(two, **percent)
    facts = replace(gpu.launches, launched=8, known=known, short_share=short)

    assert words in launch_sentence(replace(gpu, launches=facts))


@pytest.mark.parametrize(
    ("change", "title"),
    [
        ({"step": None}, "Critical path of the whole trace, 2.00 ms"),
        ({}, "Critical path of step 4: 2.00 ms"),
        ({"steps": 2}, "Critical path of step 4, the longer of 2 steps with GPU work: 2.00 ms"),
        ({"steps": 3}, "Critical path of step 4, the median of 3 steps with GPU work: 2.00 ms"),
        ({"tail_ms": 1}, "Critical path of step 4: 2.00 ms, including 1.00 ms on the GPU after the host had finished"),
    ],
)
def test_the_title_of_a_path(change: dict[str, Any], title: str) -> None:
    facts = {"step": 4, "steps": 1, "total_ms": 2.0, "tail_ms": 0.0, "kinds": pd.DataFrame(), "ops": pd.DataFrame()}

    assert path_title(PathFacts(**facts | change)).removesuffix(" the step") == title


def test_steps_that_have_no_bar_are_counted(two: GpuSummary) -> None:
    for more, title in ((0, "From the first work of a step to its last"), (2, "; 2 later steps not shown")):
        shown = gpu_document(replace(two, steps_in_all=3 + more)).sections[0]
        assert isinstance(shown, Choice)
        assert shown.options["step by step"][0].title.endswith(title)
    for count, kind in ((2, Bars), (3, Choice)):
        assert isinstance(gpu_document(replace(two, steps=two.steps.head(count))).sections[0], kind)


def test_the_path_is_of_a_step_that_launched_work(tmp_path):
    trace = Written().step(1, 0, 900).step(2, 900, 1000).step(3, 1000, 1010)
    trace.kernel("gemm", 12, 20, 30).kernel("gemm", 910, 920, 930)

    path = gpu_of(trace, tmp_path).path

    assert path is not None
    assert (path.step, path.steps, path.total_ms) == (1, 2, 0.9)


def test_the_parts_of_waiting_for_the_host_are_named(tmp_path):
    trace = Written().step(1, 0, 400).kernel("a", 0, 0, 100)
    trace.event("cudaLaunchKernel", 150, 200, "cuda_runtime", correlation=77)
    trace.event("b", 220, 400, "kernel", 7, 0, device=0, stream=7, correlation=77)

    # Of 400: 50 until the call, 50 in it, 20 until the work began.
    assert launch_sentence(gpu_of(trace, tmp_path)).startswith(
        "The GPU waited for the host: it was idle 30 % of the time until the next launch (12 % before the call, "
        "12 % inside it, 5.0 % from its return until the work started)."
    )


def test_a_copy_whose_call_waits_until_it_is_done_is_not_a_long_launch(tmp_path):
    trace = Written().step(1, 0, 1000).kernel("gemm", 10, 20, 800)
    for number, end in ((77, 900), (78, 812)):  # the second call returns before its copy begins
        trace.event("hipMemcpyWithStream", 12, end, "cuda_runtime", correlation=number)
        trace.event("copy", 850, 860, "gpu_memcpy", 7, 0, device=0, stream=7, correlation=number)

    facts = gpu_of(trace, tmp_path).launches

    assert (facts.call_us, facts.call_us_95) == (1, 800)


def test_a_trace_that_takes_no_time_has_no_path(tmp_path: Path) -> None:
    gpu = gpu_of(Written().event("gemm", 10, 10, "kernel", 7, 0, device=0, stream=7), tmp_path)

    assert (gpu.path, gpu.whole_ms, gpu.busy, gpu.steps_marked, gpu.steps_in_all) == (None, 0.0, 1.0, 0, 1)
    assert gpu.by_name["share"].isna().all()
    assert gpu.kernels["share"].isna().all()
    assert said(gpu) == "The GPU is busy 100 % of the trace."


def test_a_trace_without_steps_lasts_until_its_last_event_has_ended(tmp_path: Path) -> None:
    assert gpu_of(Written().op("aten::mm", 5, 60).kernel("k", 30, 35, 40), tmp_path).whole_ms == 0.055


def test_unknown_launches_are_mentioned(tmp_path):
    gpu = gpu_of(samples.unlaunched(), tmp_path)

    assert gpu.queue is None
    assert any("launches of 1 of 1" in note for note in gpu.notes)
    shown = gpu_document(gpu)
    assert "launch overhead is unknown" in shown.verdict.why
    assert "launch call" not in [figure.label for figure in shown.figures]


def test_a_kernel_that_appears_to_start_before_its_launch_is_reported(tmp_path: Path) -> None:
    trace = Written().op("aten::mm", 5, 60).kernel("early", 30, 20, 40).kernel("late", 41, 50, 55)

    (note,) = (note for note in gpu_of(trace, tmp_path).notes if "clocks" in note)

    assert note.startswith("1 of 2 kernels, copies and fills appear to start before their launch")


def test_without_a_path_there_is_no_table_of_it(two: GpuSummary) -> None:
    assert two.path is not None
    empty = replace(two.path, kinds=two.path.kinds.head(0))
    shown = {title for path in (None, empty) for title in tables(gpu_document(replace(two, path=path)))}
    assert not any(title.startswith("Critical path") for title in shown)
    assert sum(title.startswith("Critical path") for title in tables(gpu_document(two))) == 2


def test_work_of_graphs_is_marked_as_such(tmp_path):
    trace = Written().op("aten::mm", 5, 60).event("cudaGraphLaunch", 10, 20, "cuda_runtime", correlation=5)
    for begin in (30, 42):
        trace.event("graphed", begin, begin + 10, "kernel", 7, 0, device=0, stream=7, correlation=5)

    gpu = gpu_of(trace, tmp_path)

    assert any(note.startswith("CUDA graphs launched 2 of 2 kernels") for note in gpu.notes)
    assert (gpu.launches.call_us, gpu.launches.longest_queue) == (10, 2)
    assert gpu.kernels["kernel"].tolist() == ["graphed"]


def test_the_samples_as_text(golden: Callable[[str, str], None]) -> None:
    golden("samples.txt", texts(DOCUMENTS))


def test_a_path_is_replayed_unless_it_has_too_many_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two: GpuSummary
) -> None:
    assert two.path is not None
    segments = int(two.path.kinds["segments"].sum())
    for most, replayed in ((segments, True), (segments - 1, False)):
        monkeypatch.setattr("perfnb.gpu.summary.MOST_SEGMENTS", most)
        path = gpu_of(samples.two_gpus(), tmp_path).path
        assert path is not None
        for parts in (path.kinds, path.ops):
            assert parts["saves_ms"].notna().tolist() == [replayed] * len(parts)
            assert parts["path_ms"].notna().all()
