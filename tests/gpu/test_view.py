"""The GPU tab's account of the GPUs' work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perfnb.draw.as_text import document_text
from perfnb.draw.document import Bars, Choice, Document, Series, Table
from perfnb.gpu.launches import LaunchFacts
from perfnb.gpu.summary import GpuSummary
from perfnb.gpu.tab import gpu_document, gpu_verdict, launch_sentence, path_title, shape_words
from tests.gpu import gpu_samples as samples
from tests.samples import texts
from tests.samples.gpu import DOCUMENTS
from tests.written_traces import Written


def gpu_of(trace: Written, folder: Path) -> GpuSummary:
    made = samples.summary_of(trace, folder).gpu
    assert made is not None
    return made


def said(gpu: GpuSummary) -> str:
    return gpu_verdict(gpu).sentence


def tables(document: Document) -> dict[str, Table]:
    return {section.title: section for section in document.sections if isinstance(section, Table)}


def test_the_bars_hold_the_whole_time_of_each_gpu(tmp_path: Path) -> None:
    shown = gpu_document(gpu_of(samples.two_gpus(), tmp_path))

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


def test_kernels_lead_to_their_op_and_their_layers(tmp_path: Path) -> None:
    shown = gpu_document(gpu_of(samples.two_gpus(), tmp_path))

    (kernels,) = [table for table in tables(shown).values() if table.key == "kernels by op"]
    by_op = {str(row[0]): row for row in kernels.rows}
    assert by_op["aten::mm"][1:3] == ("16 × 4, 4 × 8", "gemm")
    assert by_op["aten::mm"][5:7] == (pytest.approx(0.1), pytest.approx(0.1))
    assert kernels.names is not None
    assert kernels.names[list(by_op).index("aten::mm")] == "gemm"
    assert kernels.selects[0][0] == "ops"
    assert kernels.inner is not None
    assert kernels.inner.selects == "layers"
    place = list(kernels.inner.owner).index(list(by_op).index("aten::mm"))
    assert kernels.inner.rows[place] == ("Net_0", pytest.approx(0.1))


def test_kernels_are_listed_by_their_own_names(tmp_path: Path) -> None:
    trace = Written().step(1, 0, 500).step(2, 500, 1000).op("aten::mm", 0, 90).op("aten::add", 100, 190)
    trace.kernel("gemm", 2, 10, 50).kernel("splitK", 20, 50, 60).kernel("gemm", 102, 110, 120)
    shown = gpu_document(gpu_of(trace, tmp_path))

    (named,) = [table for table in tables(shown).values() if table.key == "kernels"]
    assert [row[:3] for row in named.rows] == [("gemm", "aten::mm", 1.0), ("splitK", "aten::mm", 0.5)]
    assert [row[3] for row in named.rows] == [pytest.approx(0.025), pytest.approx(0.005)]
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


def test_the_verdict_says_how_idle_the_gpus_are_and_why(tmp_path: Path) -> None:
    gpu = gpu_of(samples.two_gpus(), tmp_path)
    assert (
        said(gpu)
        == "2 GPUs are idle for 76 % of 3 traced steps, mostly because the host launched the next work too late."
    )
    assert gpu_verdict(gpu).state == "bad"

    one = gpu_of(Written().step(1, 0, 100).op("aten::mm", 0, 30).kernel("gemm", 2, 4, 99), tmp_path)
    assert said(one) == (
        "The GPU is busy 95 % of the traced step, and idle because there was no work before the first and after the "
        "last kernel."
    )
    assert gpu_verdict(one).state == "good"
    alone = gpu_of(Written().step(1, 0, 5000).op("aten::mm", 10, 30).kernel("gemm", 12, 20, 30), tmp_path)
    assert said(alone).startswith("The GPU is idle for 100 % of the traced step, because there was no work")
    assert said(gpu_of(samples.unlaunched(), tmp_path)) == "The GPU is busy 100 % of the trace."


def test_the_sentence_says_whether_launches_keep_up(tmp_path: Path) -> None:
    gpu = gpu_of(samples.two_gpus(), tmp_path)
    assert launch_sentence(gpu).startswith("The GPU waited for the host: ")

    near = replace(gpu, devices=gpu.devices.assign(host=0.0))
    assert (
        launch_sentence(near) == "Launches keep up with the GPU: it was idle 0 % of the time because the host was late."
    )
    none = LaunchFacts(5, 0, None, None, None, None, None, None, None)
    assert "launch overhead is unknown" in launch_sentence(replace(gpu, launches=none))
    assert launch_sentence(gpu).endswith("The critical path shows what the host was doing.")
    short = replace(gpu.launches, short_share=0.4)
    assert "40 % of the kernels were shorter than their launch: " in launch_sentence(replace(gpu, launches=short))


def test_whether_launches_keep_up_is_not_said_without_evidence(tmp_path):
    gpu = gpu_of(samples.two_gpus(), tmp_path)
    quiet = gpu.devices.assign(host=0.0)

    few = replace(gpu, devices=quiet, launches=replace(gpu.launches, launched=8, known=3))
    assert launch_sentence(few).endswith("it lacks the launches of 62 % of the kernels, copies and fills.")
    half = replace(few, launches=replace(few.launches, known=4))
    assert launch_sentence(half).startswith("Launches keep up with the GPU")
    lost = replace(gpu, devices=quiet.assign(unknown=quiet["total_ms"] / 2))
    assert "the GPU was idle 50 % of the time before them" in launch_sentence(lost)


def test_the_path_is_of_a_step_that_launched_work(tmp_path):
    trace = Written().step(1, 0, 900).step(2, 900, 1000).step(3, 1000, 1010)
    trace.kernel("gemm", 12, 20, 30).kernel("gemm", 910, 920, 930)

    path = gpu_of(trace, tmp_path).path

    assert path is not None
    assert (path.step, path.steps) == (1, 2)
    assert path_title(path) == "Critical path of step 1, the longer of 2 steps with GPU work: 0.900 ms"


def test_the_parts_of_waiting_for_the_host_are_named(tmp_path):
    trace = Written().step(1, 0, 400).kernel("a", 0, 0, 100)
    trace.event("cudaLaunchKernel", 150, 200, "cuda_runtime", correlation=77)
    trace.event("b", 220, 400, "kernel", 7, 0, device=0, stream=7, correlation=77)

    # Of 400: 50 until the call, 50 in it, 20 until the work began.
    assert launch_sentence(gpu_of(trace, tmp_path)).startswith(
        "The GPU waited for the host: it was idle 30 % of the time until the next launch (12 % before the call, "
        "12 % inside it, 5.0 % from its return until the work started)."
    )


def test_a_copy_whose_call_waits_until_it_is_done_is_no_long_launch(tmp_path):
    trace = Written().step(1, 0, 1000).kernel("gemm", 10, 20, 800)
    for number, end in ((77, 900), (78, 812)):  # the second call returns before its copy begins
        trace.event("hipMemcpyWithStream", 12, end, "cuda_runtime", correlation=number)
        trace.event("copy", 850, 860, "gpu_memcpy", 7, 0, device=0, stream=7, correlation=number)

    facts = gpu_of(trace, tmp_path).launches

    assert (facts.call_us, facts.call_us_95) == (1, 800)


def test_what_is_not_known_is_said(tmp_path):
    gpu = gpu_of(samples.unlaunched(), tmp_path)

    assert gpu.queue is None
    assert any("launches of 1 of 1" in note for note in gpu.notes)
    shown = gpu_document(gpu)
    assert "launch overhead is unknown" in shown.verdict.why
    assert "launch call" not in [figure.label for figure in shown.figures]


def test_a_kernel_that_appears_to_start_before_its_launch_is_said_to(tmp_path: Path) -> None:
    trace = Written().op("aten::mm", 5, 60).kernel("early", 30, 20, 40).kernel("late", 41, 50, 55)

    (note,) = (note for note in gpu_of(trace, tmp_path).notes if "clocks" in note)

    assert note.startswith("1 of 2 kernels, copies and fills appear to start before their launch")


def test_without_a_path_there_is_no_table_of_it(tmp_path: Path) -> None:
    gpu = gpu_of(samples.two_gpus(), tmp_path)
    assert gpu.path is not None
    empty = replace(gpu.path, kinds=gpu.path.kinds.head(0))
    shown = {title for path in (None, empty) for title in tables(gpu_document(replace(gpu, path=path)))}
    assert not any(title.startswith("Critical path") for title in shown)
    assert sum(title.startswith("Critical path") for title in tables(gpu_document(gpu))) == 2


def test_work_of_graphs_is_said_to_be(tmp_path):
    trace = Written().op("aten::mm", 5, 60).event("cudaGraphLaunch", 10, 20, "cuda_runtime", correlation=5)
    for begin in (30, 42):
        trace.event("graphed", begin, begin + 10, "kernel", 7, 0, device=0, stream=7, correlation=5)

    gpu = gpu_of(trace, tmp_path)

    assert any(note.startswith("CUDA graphs launched 2 of 2 kernels") for note in gpu.notes)
    assert (gpu.launches.call_us, gpu.launches.longest_queue) == (10, 2)
    assert gpu.kernels["kernel"].tolist() == ["graphed"]


def test_the_samples_as_text(golden: Callable[[str, str], None]) -> None:
    golden("samples.txt", texts(DOCUMENTS))


def test_a_path_is_replayed_unless_it_has_too_many_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gpu_of(samples.two_gpus(), tmp_path).path
    assert path is not None
    segments = int(path.kinds["segments"].sum())
    for most, replayed in ((segments, True), (segments - 1, False)):
        monkeypatch.setattr("perfnb.gpu.summary.MOST_SEGMENTS", most)
        path = gpu_of(samples.two_gpus(), tmp_path).path
        assert path is not None
        for parts in (path.kinds, path.ops):
            assert parts["saves_ms"].notna().tolist() == [replayed] * len(parts)
            assert parts["path_ms"].notna().all()
