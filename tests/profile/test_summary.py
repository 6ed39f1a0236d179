"""What the summary of a profile contains: the device, the heaviest path, tokens, and when the GPU is done."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import perfnb
from perfnb.diff.comparison import ProfileComparison
from perfnb.draw.document import Figure
from perfnb.errors import RecordingError
from perfnb.profile.outcome import outcome_of
from perfnb.profile.profile import Profile
from perfnb.profile.report import _figures, report_document
from perfnb.profile.summary import Summary, device_words, hot_path, summarize
from perfnb.recording.recording import Recording
from perfnb.recording.saved_profile import SavedProfile
from perfnb.recording.schema import conform
from perfnb.stats.step_times import StepTimes
from tests import summaries
from tests.recordings import ByHand


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "CPU"),
        ({"gpus": []}, "CPU"),
        ({"processor": "Fast"}, "CPU (Fast)"),
        ({"processor": "Fast", "threads": 1}, "CPU (Fast), 1 thread"),
        ({"processor": "Fast", "threads": 2}, "CPU (Fast), 2 threads"),
        ({"processor": "Fast", "gpus": ["A"]}, "A"),
        ({"gpus": ["A", "B", "A"]}, "2 × A, B"),
    ],
)
def test_the_device_is_described_by_its_gpus_or_its_processor(environment: dict[str, Any], words: str) -> None:
    assert device_words(environment) == words


def nested() -> Recording:
    """Return a step of two models, the second of which takes longer in one of its two layers."""
    hand = ByHand().step(0, 1000)
    first, second = hand.layer("first"), hand.layer("second")
    hand.layer("first.only", first)
    light, heavy = hand.layer("second.light", second), hand.layer("second.heavy", second)
    hand.call(first, 0, 400).call(second, 400, 900).call(light, 410, 600).call(heavy, 600, 890)
    return hand.recording()


def test_the_hot_path_follows_the_largest_share_from_a_model_to_a_leaf() -> None:
    recording = nested()
    layers = Profile(recording).layers
    assert hot_path(recording, layers) == ("second", "second.heavy")
    lighter = layers.assign(share=[0.5, 0.4, 0.0, 0.1, 0.1])
    assert hot_path(recording, lighter) == ("first", "first.only")
    equal = layers.assign(share=pd.array([pd.NA, 0.4, pd.NA, 0.1, 0.1], dtype="Float64"))
    assert hot_path(recording, equal) == ("second", "second.light")  # the first of equals
    assert hot_path(ByHand().step(0, 9).recording(), layers) == ()


def with_tokens(kind: str, samples: list[int | None], tokens: int | None = 600) -> float | None:
    """Return the tokens per second of timed steps of 1 ms that take so many samples, and `tokens` in all."""
    hand = ByHand().step(0, 1000)
    hand.call(hand.layer(kind), 0, 900)
    recording = hand.recording() if tokens is None else hand.recording(tokens=tokens)
    steps = pd.DataFrame({"pass": pd.Categorical(["timed"] * len(samples)), "wall_ms": 1.0, "data_ms": 0.0})
    steps["samples"] = pd.array(samples, dtype="Int64")
    return summarize(replace(recording, steps=steps)).tokens_per_s


def test_tokens_per_second_are_known_for_a_model_with_an_embedding() -> None:
    assert with_tokens("embedding", [2] * 6) == pytest.approx(100 * 1000)
    assert with_tokens("linear", [2] * 6) is None
    assert with_tokens("embedding", [2] * 6, tokens=None) is None
    assert with_tokens("embedding", [None] * 6) is None


def until_gpu(step_ms: float | None, *, timed: bool = False, traced_ms: float | None = 10.0) -> float | None:
    findings: Any = SimpleNamespace(step_ms=step_ms)
    timing = StepTimes((10.0,) if timed else ())
    return replace(summaries.small_cnn(), findings=findings, timing=timing, traced_ms=traced_ms).until_gpu_ms


def test_the_time_until_the_gpu_is_done_is_shown_if_it_is_more_than_1_percent_longer() -> None:
    assert until_gpu(10.1) is None
    assert until_gpu(10.11) == 10.11
    assert until_gpu(9.0) is until_gpu(None) is None
    assert until_gpu(20.0, timed=True) is None
    assert until_gpu(20.0, traced_ms=None) is None
    assert replace(summaries.small_cnn(), timing=StepTimes(())).until_gpu_ms is None


def figures(summary: Summary) -> dict[str, Figure]:
    return {figure.label: figure for figure in report_document(summary).figures}


def phases(**times: float) -> pd.DataFrame:
    rows = pd.DataFrame({"ms": times, "share": {name: ms / sum(times.values()) for name, ms in times.items()}})
    return conform(rows, "phases")


def test_a_step_with_a_forward_alone_is_inference() -> None:
    made = summaries.small_cnn()

    def said(made: Summary) -> tuple[str, bool]:
        document = report_document(made)
        return document.figures[0].label, any(note.startswith("This is inference") for note in document.notes)

    assert said(made) == ("step", False)
    assert said(replace(made, phases=phases(forward=3.0, other=1.0))) == ("inference step", True)
    assert said(replace(made, phases=phases(forward=3.0, backward=0.5))) == ("step", False)
    assert said(replace(made, phases=phases(forward=3.0, optimizer=0.5))) == ("step", False)
    assert said(replace(made, phases=phases(other=3.0))) == ("step", False)
    assert said(replace(made, phases=phases(forward=3.0), source="trace.json"))[1] is False
    assert said(replace(made, phases=phases(forward=3.0), by_batch=True))[0] == "inference step per batch"


def test_the_note_on_inference_asks_for_batches_only_without_a_rate() -> None:
    made = replace(summaries.small_cnn(), phases=phases(forward=3.0))
    unknown = replace(made, timing=replace(made.timing, batch_size=None))
    asks = [report_document(one).notes[-1].endswith("the report also shows samples/s.") for one in (made, unknown)]
    assert asks == [False, True]


def test_each_known_figure_is_in_the_headline_with_its_basis() -> None:
    made = summaries.small_cnn()
    assert list(figures(made)) == ["step", "throughput", "traced step"]
    full = figures(replace(made, tokens_per_s=5000.0, mfu=0.25))
    assert list(full) == ["step", "throughput", "tokens", "MFU", "traced step"]
    assert (full["tokens"].value, full["MFU"].value) == (5000.0, 0.25)
    assert full["MFU"].basis == "of the measured peak"
    roofline: Any = SimpleNamespace(dtype="bfloat16")
    (mfu,) = (each for each in _figures(replace(made, mfu=0.25, roofline=roofline)) if each.label == "MFU")
    assert mfu.basis == "of the measured bfloat16 peak"
    varies = StepTimes((1.0,) * 6, None, 12)
    assert figures(replace(made, timing=varies))["throughput"].basis == "batch size varies"


def test_the_traced_step_says_what_its_time_is() -> None:
    made = summaries.small_cnn()

    def basis(**changes: Any) -> str:
        return figures(replace(made, **changes))["traced step"].basis

    assert basis(slowdown=1.5).endswith("the timed step")
    assert basis(slowdown=None) == ""
    assert basis(traced_ms=None) == "no trace"
    assert basis(traced_ms=None, source="trace.json") == "no events"
    loaded = {"source": "trace.json", "timing": StepTimes(())}
    assert basis(**loaded, executed={"traced": 1}) == ""
    assert basis(**loaded, executed={"traced": 1200}) == "mean of 1,200"


def test_a_failure_is_the_verdict_and_leads_to_the_memory_if_it_is_known() -> None:
    failed = replace(summaries.small_cnn(), failure=("timed", "OutOfMemoryError: no memory"))
    verdict = report_document(failed).verdict
    assert verdict is not None
    assert (verdict.state, verdict.selects) == ("bad", "")
    assert verdict.sentence == "Out of memory in the timed pass, so this profile is incomplete"
    assert "step" in figures(failed)
    assert figures(replace(failed, timing=StepTimes(()))) == {}


@cache
def on_gpu() -> Profile:
    """Return the profile of a step of 1 ms with one kernel of 0.25 ms, which begins 30 µs after its launch."""
    hand = ByHand()
    model = hand.layer("net")
    hand.step(0, 1000).call(model, 100, 300).op("aten::mm", 110, 200, 1).kernel("gemm", 120, 150, 400)
    return Profile(hand.recording())


def test_each_table_is_that_of_the_recording() -> None:
    p = on_gpu()
    assert p.kernels["total_ms"].to_dict() == {"gemm": 0.25}
    assert p.kernel_ops[["op", "layer", "total_ms"]].to_numpy().tolist() == [["aten::mm", "net", 0.25]]
    assert p.gpu_time[["busy_ms", "idle_ms"]].to_numpy().tolist() == [[0.25, 0.0]]
    assert p.gpu_steps[["step", "busy_ms"]].to_numpy().tolist() == [[0, 0.25]]
    assert p.gpu_idle[["step", "idle_ms"]].to_numpy().tolist() == [[0, 0.0]]
    assert p.launches.loc["aten::mm", ["call_ms", "delay_us"]].tolist() == [0.001, 30.0]
    assert p.queue["length"].tolist() == [1, 0]
    path = p.critical_path
    assert path["duration_ns"].sum() == 1_000_000
    assert path.loc[path["op"] == "aten::mm", "layer"].tolist() == ["net"] * 3
    savings = p.path_savings.set_index("part")["path_ms"]
    assert savings[["host", "operator", "call"]].tolist() == pytest.approx([0.91, 0.089, 0.001])
    assert p.ops.loc["aten::mm", "calls"] == p.layers.loc["net", "calls"] == 1
    assert set(p.events["name"]) >= {"aten::mm", "gemm"}
    assert len(p.findings) == 1
    assert p.steps["rank"].tolist() == [0] * 7
    empty = ("samples", "collectives", "compiled", "compiled_regions", "allocations", "memory", "lines")
    assert [len(getattr(p, name)) for name in empty] == [0] * len(empty)
    assert p.roofline is p.python is None
    vars(p._analysis)["stacks"] = SimpleNamespace(record="of Python")
    python = p.python
    del vars(p._analysis)["stacks"]
    assert python is not None
    assert p.collectives.empty
    assert p._measured_here


def test_the_tables_of_what_may_be_absent_are_those_of_the_analysis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = pd.DataFrame({"self_ms": [1.0]})
    monkeypatch.setattr("perfnb.profile.profile.collective_table", lambda calls, steps: (calls, steps))
    monkeypatch.setattr("perfnb.profile.profile.roofline_result", lambda figures: figures)
    watch: Any = SimpleNamespace(samples=lines)
    p = Profile(replace(on_gpu()._recording, watch=watch))
    stacks = SimpleNamespace(record="of Python", lines=lines)
    vars(p._analysis).update(stacks=stacks, collectives="calls", roofline="figures")
    given: Any = (p.collectives, p.roofline)
    assert given == (("calls", 1), "figures")
    for table in (p.lines, p.samples):
        assert table.equals(lines)
        assert table is not lines


def test_the_step_times_are_those_of_the_timed_pass() -> None:
    recording = on_gpu()._recording
    passes = ["warmup", "warmup", "timed", "timed", "timed", "traced"]
    steps = pd.DataFrame({"pass": pd.Categorical(passes), "wall_ms": [9.0, 8.0, 1.0, 3.0, 2.0, 7.0], "data_ms": 0.0})
    steps["samples"] = pd.array([4, 4, 4, 4, 4, 9], dtype="Int64")
    meta = {**recording.meta, "steady": False, "noise": {"gc_share": 0.5}}
    timing = Profile(replace(recording, steps=steps, meta=meta)).timing
    assert (timing.samples_ms, timing.warmup_ms) == ((1.0, 3.0, 2.0), (9.0, 8.0))
    assert (timing.batch_size, timing.samples, timing.steady, timing.noise) == (4, 12, False, {"gc_share": 0.5})


def test_an_outcome_has_the_figures_of_the_report() -> None:
    memory: Any = SimpleNamespace(peak_bytes=7)
    made = replace(summaries.small_cnn(), memory=memory)
    known = outcome_of(made, {"host": "lab"})
    assert (known.name, known.host, known.verdict) == ("small CNN", "lab", None)
    assert (known.step_ms, known.step_ci_ms) == (made.timing.median_ms, made.timing.ci_ms)
    assert known.data_share == made.phases.loc["data", "share"]
    assert (known.peak_bytes, known.batch_size) == (7, 32)
    traced = outcome_of(replace(made, timing=StepTimes(()), memory=None), {})
    assert (traced.step_ms, traced.step_ci_ms, traced.peak_bytes) == (made.traced_ms, None, None)


def test_a_profile_without_traced_steps_has_empty_tables_and_no_trace(tmp_path: Path) -> None:
    recording = on_gpu()._recording
    p = Profile(replace(recording, events=recording.events.iloc[:0], steps=recording.steps.iloc[:6]))
    for name in ("events", "collectives", "findings"):
        assert getattr(p, name).empty
    with pytest.raises(RecordingError, match="no step was traced"):
        p.save_trace(tmp_path / "t.json")


def test_a_profile_is_shown_with_its_timeline_and_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr("perfnb.profile.profile.show", lambda *given: shown.extend(given))
    kept: Any = object()
    p = Profile(on_gpu()._recording, kept)
    p._ipython_display_()
    summary, timeline, again, step = shown
    assert (summary, step, again()) == (p._summary, kept, p._timeline)
    assert len(timeline.of("stream")) == 1


def test_a_trace_is_compressed_if_its_name_says_so(tmp_path: Path) -> None:
    p = on_gpu()
    plain = p.save_trace(tmp_path / "t.json").read_bytes()
    packed = p.save_trace(tmp_path / "t.json.gz").read_bytes()
    assert {"aten::mm", "gemm"} <= {event["name"] for event in json.loads(plain)["traceEvents"]}
    assert gzip.decompress(packed) == plain


def test_only_profiles_are_compared() -> None:
    p = on_gpu()
    assert isinstance(p.compare(on_gpu()), ProfileComparison)
    other: Any = 3
    with pytest.raises(TypeError):
        p.compare(other)


def test_what_a_profile_logs_and_saves_is_its_first_outcome(tmp_path: Path) -> None:
    first = Profile(SavedProfile(on_gpu().save(tmp_path / "a")))
    assert not first._measured_here
    second = Profile(SavedProfile(first.save(tmp_path / "b")))
    assert first._outcome() == second._outcome()
    assert first._outcome().step_ms == 1.0


def test_only_a_profile_that_was_measured_here_has_this_process_as_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfnb.profile.profile.origin", lambda: {"host": "here"})
    measured = Profile(on_gpu()._recording)
    assert measured._outcome().host == "here"
    saved = SavedProfile(measured.save(tmp_path / "a"))
    assert Profile(saved)._outcome().host == "here"
    saved.outcome = None  # as an earlier version saved it
    assert Profile(saved)._outcome().host is None
    trace = measured.save_trace(tmp_path / "t.json")
    loaded = perfnb.load(trace)
    assert isinstance(loaded, Profile)
    assert loaded._outcome().host is None
