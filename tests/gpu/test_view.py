"""What the GPUs did, without scripts, and as data for the browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from perfnb.draw import escape, palette
from perfnb.gpu.launches import LaunchFacts
from perfnb.gpu.summary import GpuSummary
from perfnb.gpu.tab import gpu_data, gpu_html, gpu_text, headline, launch_sentence, path_title, shape_words
from perfnb.profile.report import report_data, report_script, report_style
from tests import summaries
from tests.gpu import gpu_samples as samples
from tests.pages import Seen
from tests.written_traces import Written

EXAMPLES = {"two_gpus": samples.two_gpus, "hostile": samples.hostile}


def gpu_of(trace: Written, folder: Path) -> GpuSummary:
    made = samples.summary_of(trace, folder).gpu
    assert made is not None
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_golden(name, golden, tmp_path):
    golden(f"gpu_{name}.txt", "\n".join(gpu_text(gpu_of(EXAMPLES[name](), tmp_path))) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("name", EXAMPLES)
def test_no_line_is_wider_than_asked(name, width, tmp_path):
    for line in gpu_text(gpu_of(EXAMPLES[name](), tmp_path), width):
        assert escape.cells(line) <= width, line


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_html_is_whole_and_holds_no_name_as_markup(name, tmp_path):
    seen = Seen(gpu_html(gpu_of(EXAMPLES[name](), tmp_path)))

    known = {"p", "strong", "i", "div", "table", "caption", "thead", "tbody", "tr", "th", "td", "bdi"}
    assert {tag for tag, _ in seen.tags} <= known
    assert {key for _, attributes in seen.tags for key in attributes} <= {
        *("class", "style", "scope", "title", "align", "aria-hidden")
    }


def test_html_says_in_words_what_the_bars_show(tmp_path):
    page = gpu_html(gpu_of(samples.two_gpus(), tmp_path))

    words = " ".join(Seen(page).text)
    # GPU 0 runs from 30 to 2280: in each step gemm 100, alone the allreduce 50 more, relu 7, the copy 30.
    for mark, ms in (("computation", 0.321), ("communication", 0.150), ("copies", "90.0 µs")):
        assert re.search(rf"GPU 0 *{mark} *{ms}", words), mark
    assert "16 × 4, 4 × 8" in words
    assert "Critical path of step" in words
    for heading in ("Launches", "Kernels, copies and fills per step"):
        assert heading in words


def test_data_are_json_and_parts_add_up(tmp_path):
    data = gpu_data(gpu_of(samples.two_gpus(), tmp_path))

    json.dumps(data, allow_nan=False)
    assert [mark["word"] for mark in data["marks"]] == [mark.word for mark in palette.GPU.values()]
    for bar in (*data["devices"], *data["steps"]):
        assert sum(bar["parts"]) == pytest.approx(bar["total_ms"], rel=1e-5)
    assert [bar["word"] for bar in data["devices"]] == ["GPU 0", "GPU 1"]
    assert [bar["word"] for bar in data["steps"][:2]] == ["step 4, GPU 0", "step 5, GPU 0"]
    assert data["devices"][0]["overlap_ms"] == pytest.approx(3 * 0.05)
    assert len(data["queue"]["devices"]) == 2
    names = data["names"]
    assert names[data["kernels"]["op"][0]] == "Net_0" or names[data["kernels"]["kernel"][0]] == "far"


def test_hostile_names_become_plain_text(tmp_path):
    data = gpu_data(gpu_of(samples.hostile(), tmp_path))

    for name in data["names"]:
        assert escape.plain(name, 1000) == name
        assert escape.cells(name) <= 400
    json.dumps(data, allow_nan=False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[16, 4], [4, 8], []]", "16 × 4, 4 × 8"),
        ("[[[4, 1], [4, 196]], []]", "4 × 1, 4 × 196"),
        ("[[], []]", "scalars"),
        ("[[5]]", "5"),
        ("<b>[1, 2]</b>", "<b>[1, 2]</b>"),
        ("", ""),
        (None, None),
    ],
)
def test_shapes_in_words(text, words):
    assert shape_words(text) == words


def test_the_sentence_says_whether_launches_keep_up(tmp_path):
    gpu = gpu_of(samples.two_gpus(), tmp_path)
    assert launch_sentence(gpu).startswith("The GPU waited for the host: ")
    assert headline(gpu).startswith("2 GPUs were busy ")

    # From 30 to 2280 GPU 0 and to 2400 GPU 1; nothing is left out.
    busy = gpu.devices.assign(host=0.0, total_ms=gpu.devices["total_ms"] - gpu.devices["host"])
    near = replace(gpu, devices=busy, whole_ms=float(busy["total_ms"].max()))
    assert launch_sentence(near) == "Launches keep up with the GPU: it was never idle because the host was late."
    assert "between its first and last activity" in launch_sentence(replace(near, whole_ms=1000.0))
    assert headline(replace(near, whole_ms=1000.0)).count("of the steps, 1.00 s)") == 1
    none = LaunchFacts(5, 0, None, None, None, None, None, None, None)
    assert "launch overhead is unknown" in launch_sentence(replace(gpu, launches=none))
    slow = replace(gpu, launches=replace(gpu.launches, call_us_95=463_000.0))
    slow = replace(slow, devices=gpu.devices.assign(call=gpu.devices["host"]))
    assert launch_sentence(slow).endswith("the 95th percentile is 463 ms.")
    short = replace(gpu.launches, short_share=0.4)
    assert "40 % of the kernels were shorter than their launch: " in launch_sentence(replace(gpu, launches=short))


@pytest.mark.slow
def test_whether_launches_keep_up_is_not_said_without_evidence(tmp_path):
    gpu = gpu_of(samples.two_gpus(), tmp_path)
    quiet = gpu.devices.assign(host=0.0)

    few = replace(gpu, devices=quiet, launches=replace(gpu.launches, launched=8, known=1))
    assert "it lacks the launches of 88 % of the kernels" in launch_sentence(few)
    lost = replace(gpu, devices=quiet.assign(unknown=quiet["total_ms"] / 2))
    assert "the GPU was idle 50 % of its time before them" in launch_sentence(lost)

    alone = gpu_of(Written().step(1, 0, 5000).op("aten::mm", 10, 30).kernel("gemm", 12, 20, 30), tmp_path)
    assert "keep up with the GPU: only one kernel" in launch_sentence(alone)
    assert headline(alone) == (
        "The GPU was busy 100 % of 10.0 µs from first to last activity (0.2 % of the step, 5.00 ms)."
    )


def test_the_path_is_of_a_step_that_launched_work(tmp_path):
    trace = Written().step(1, 0, 900).step(2, 900, 1000).step(3, 1000, 1010)
    trace.kernel("gemm", 12, 20, 30).kernel("gemm", 910, 920, 930)

    path = gpu_of(trace, tmp_path).path

    assert path is not None
    assert (path.step, path.steps, path.steps_in_all) == (1, 2, 3)
    assert path_title(path) == "Critical path of step 1, the longer of 2 steps with GPU work: 0.900 ms"


def test_the_parts_of_waiting_for_the_host_are_named(tmp_path):
    trace = Written().step(1, 0, 1000).kernel("a", 10, 20, 100)
    trace.event("cudaLaunchKernel", 150, 200, "cuda_runtime", correlation=77)
    trace.event("b", 220, 420, "kernel", 7, 0, device=0, stream=7, correlation=77)

    # Of 400: 50 until the call, 50 in it, 20 until the work began.
    assert launch_sentence(gpu_of(trace, tmp_path)).startswith(
        "The GPU waited for the host: it was idle 30 % of its time until the next launch (12 % before the call, "
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
    trace = Written().event("gemm", 10, 30, "kernel", 7, 0, device=0, stream=7)
    gpu = gpu_of(trace, tmp_path)

    assert gpu.queue is None
    assert gpu_data(gpu)["queue"] is None
    assert any("launches of 1 of 1" in note for note in gpu.notes)
    page = gpu_html(gpu)
    assert "n/a" in page
    assert "launch overhead is unknown" in page


def test_work_of_graphs_is_said_to_be(tmp_path):
    trace = Written().op("aten::mm", 5, 60).event("cudaGraphLaunch", 10, 20, "cuda_runtime", correlation=5)
    for begin in (30, 42):
        trace.event("graphed", begin, begin + 10, "kernel", 7, 0, device=0, stream=7, correlation=5)

    gpu = gpu_of(trace, tmp_path)

    assert any(note.startswith("CUDA graphs launched 2 of 2 kernels") for note in gpu.notes)
    assert (gpu.launches.call_us, gpu.launches.longest_queue) == (10, 2)
    assert gpu.kernels["kernel"].tolist() == ["graphed"]


def test_a_profile_without_a_gpu_has_neither_tab_nor_script():
    assert report_data(summaries.small_cnn())["gpu"] is None
    assert "gpuTab" not in report_script(["layers", "memory"])
    assert "pf-gpu-step" not in report_style(["layers", "memory"])
    assert "function gpuTab(data)" in report_script(["gpu"])
