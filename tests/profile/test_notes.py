"""The notes of a profile: each is there for its reason, in these words, and not otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import perfnb
from perfnb.profile import notes as notes_module
from perfnb.profile.analysis import Analysis
from perfnb.recording.recording import CompiledRecord, Recording
from tests.recordings import ENVIRONMENT, ByHand
from tests.written_traces import BACKWARD, Written, training


def by_hand(*steps_us: float) -> ByHand:
    """Return steps of these lengths, in each of which one layer computes."""
    hand, begin = ByHand(), 0.0
    net = hand.layer("net")
    for length in steps_us or (1000.0,):
        hand.step(begin, begin + length).call(net, begin + 10, begin + length - 10)
        hand.op("aten::mm", begin + 20, begin + length - 20)
        begin += length
    return hand


def notes_of(recording: Recording) -> list[str]:
    return list(Analysis(recording).notes)


def passes(recording: Recording, **counts: int) -> Recording:
    """Return the recording with so many steps of each pass, which take as long as the first one."""
    names = [name for name, count in counts.items() for _ in range(count)]
    steps = pd.DataFrame({"pass": pd.Categorical(names), "wall_ms": recording.steps["wall_ms"].iloc[0], "data_ms": 0.0})
    return replace(recording, steps=steps.assign(samples=pd.array([None] * len(names), dtype="Int64")))


def test_nothing_is_noted_of_a_plain_profile() -> None:
    assert notes_of(by_hand().recording()) == []
    assert notes_of(by_hand(1000, 1400, 1500).recording()) == []


LOOP = {"loop": {"batches": 1}, "options": {"flops": False, "warmup": None, "budget_s": 30.0}}
IN_LOOP = "This was profiled in a running loop, where each step runs once: other numbers of threads were not tried"
UNCOUNTED = f"{IN_LOOP}; FLOPs were not counted, because that would run compiled code uncompiled"
UNTRACED = ENVIRONMENT | {"untraced_accelerators": ["mps", "xpu"]}


@pytest.mark.parametrize(
    ("meta", "noted"),
    [
        (
            {"failure": "no memory", "failed_in": "lead_in"},
            ["This profile is incomplete: memory ran out in the lead-in"],
        ),
        ({"failure": "no memory", "failed_in": "timed"}, ["This profile is incomplete: memory ran out in the timed"]),
        ({"optimizer_steps": {"optimizer": "adam", "times": 1200}}, ["Your step called adam.step() 1,200 times: "]),
        ({"steady": None}, ["A warm-up of 0 steps is too short"]),
        ({"steady": None, "options": {"warmup": 3, "budget_s": 30.0}}, []),
        ({"steady": False}, ["The step time was not steady after 0 steps of warm-up"]),
        ({"batches": 1}, []),
        ({"batches": 2}, ["The step uses 2 batches from its loader: "]),
        (LOOP, [f"{IN_LOOP}."]),
        (LOOP | {"options": LOOP["options"] | {"flops": True}}, [UNCOUNTED]),
        (LOOP | {"ceilings": {"flops_per_s": {"float32": 1.0}}}, [f"{IN_LOOP}."]),
        (LOOP | {"ceilings": {"flops_per_s": {}}}, [f"{IN_LOOP}; the machine's peak rates were not measured"]),
        (
            LOOP | {"loop": {"batches": 1200, "by_batch": True}},
            ["Gradients were accumulated: a step is one optimizer step on 1,200", "Each step is one batch, ", IN_LOOP],
        ),
        ({"timed_cut_short": True}, ["The budget of 30 s ended the timed pass after 6 steps. Raise it with budget_s"]),
        ({"traced_cut_short": True}, ["Because of the budget, only 1 step could be traced."]),
        ({"stacks": True}, ["Python calls were also recorded, which slows traced steps"]),
        ({"environment": UNTRACED}, ["torch's profiler cannot record work on mps and xpu."]),
        (
            {"environment": ENVIRONMENT | {"debugger_or_tracer": True}},
            ["A Python debugger or coverage tool was active"],
        ),
    ],
)
def test_what_happened_in_the_passes_is_noted(meta: dict[str, Any], noted: list[str]) -> None:
    notes = notes_of(by_hand().recording(**meta))
    assert [note.startswith(words) for note, words in zip(notes, noted, strict=True)] == [True] * len(noted)


def test_the_steps_of_a_pass_are_counted() -> None:
    recording = by_hand().recording(steady=False, traced_cut_short=True)
    assert notes_of(passes(recording, warmup=1, timed=1, traced=2)) == [
        "The step time was not steady after 1 step of warm-up and may have drifted during timing.",
        "A 95 % interval requires at least 6 timed steps, but the number of timed steps was 1.",
        "Because of the budget, only 2 steps could be traced.",
    ]
    assert notes_of(passes(by_hand().recording(), timed=6, traced=1)) == []


def test_traced_steps_that_disagree_are_noted() -> None:
    (note,) = notes_of(by_hand(1000, 1501).recording())
    assert note.startswith(
        "The traced steps took 1, 1.5 ms. These times disagree, and the times of phases and layers are averages."
    )


@pytest.mark.parametrize(("timed_ms", "noted"), [(0.953, False), (0.96, False), (0.9, True)])
def test_what_tracing_costs_is_noted_above_five_percent(timed_ms: float, noted: bool) -> None:
    recording = by_hand().recording(cost={"op_ns": 20_000, "call_ns": 10_000})
    steps = recording.steps.assign(
        wall_ms=recording.steps["wall_ms"].where(recording.steps["pass"] == "traced", timed_ms)
    )
    found = notes_of(replace(recording, steps=steps))
    assert len(found) == noted
    if noted:
        assert found[0].startswith("Traced steps took 1.11 times as long as timed ones, which is 0.100 ms more. ")
        assert "accounts for 30.0 µs of this (20.0 µs per op and 10.0 µs per module call, measured on" in found[0]


def test_what_is_known_of_layers_is_noted() -> None:
    hand = ByHand()
    names = [hand.layer(name) for name in "abcdefg"]
    inner = hand.layer("inner", parent=names[0])
    loss, compiled = hand.layer("criterion"), hand.layer("fast", compiled=True)
    hand.step(0, 1000).call(compiled, 10, 500).op("aten::mm", 20, 490).call(loss, 500, 600, loss=True)
    hand.op("aten::mse_loss", 510, 590)
    for layer in (*names, inner):
        hand.call(layer, 700, 710, thread=2)
    found = notes_of(hand.recording())
    assert found[0] == "torch.compile or TorchScript hides the layers inside these compiled regions: fast."
    assert found[1].startswith(
        "Called only from other threads, which torch's profiler does not record: a, b, c, d, e and 2 more."
    )


def test_without_layers_the_reason_is_noted() -> None:
    hand = ByHand().step(0, 1000).op("aten::mm", 10, 990)
    (none,) = notes_of(hand.recording())
    assert none.startswith("There are no layers, because the step did not call any module. ")
    (chosen,) = notes_of(hand.recording(models_chosen=True))
    assert chosen == "There are no layers, because the step did not call any of the chosen models."


def test_engines_that_are_not_supported_are_noted() -> None:
    hand = by_hand()
    hand.modules[0]["module"] = "DeepSpeedEngine"
    (note,) = notes_of(hand.recording())
    assert note.startswith("DeepSpeed is not supported, and its engine was profiled as an ordinary module.")


def test_steps_that_launched_differently_many_kernels_are_noted() -> None:
    hand = by_hand(1000, 1000)
    hand.kernel("k", 30, 40, 50).kernel("k", 1030, 1040, 1050)
    assert notes_of(hand.recording()) == []
    hand.kernel("k", 1060, 1070, 1080)
    assert notes_of(hand.recording()) == [
        "The traced steps did not launch the same number of kernels (1, 2). Either the profiler lost some, or the "
        "steps differ."
    ]


def of_steps(*updates_us: float) -> ByHand:
    """Return three steps of 1,000 µs, and an update by SGD at each of the given times."""
    hand = by_hand(1000, 1000, 1000).block(0, None, 1, 64)
    for begin in updates_us:
        hand.event("Optimizer.step#SGD.step", begin, begin + 1, "user_annotation")
    return hand


def lacking_the_update(recording: Recording, watched: Recording | None = None) -> list[str]:
    """Return the optimizers that did not run in the step whose memory was counted, according to the notes."""
    recording = recording if watched is None else replace(recording, memory=watched.memory)
    between = " ran in other steps, but not in the step whose memory was counted"
    return [note.partition(between)[0] for note in notes_of(recording) if between in note]


def test_an_optimizer_that_the_counted_step_does_not_call_is_noted() -> None:
    without = of_steps().recording()
    assert lacking_the_update(without) == []
    assert lacking_the_update(of_steps(1500).recording()) == ["SGD"]  # only in a step before the last
    assert lacking_the_update(of_steps(500).recording(), without) == ["SGD"]  # only in a traced step
    assert lacking_the_update(of_steps(500, 2500).recording()) == []
    assert lacking_the_update(without, of_steps(500).recording()) == ["SGD"]
    hand = of_steps(2500).event("Optimizer.step#Adam.step", 1200, 1300, "user_annotation")
    assert lacking_the_update(hand.recording()) == ["Adam"]
    hand.event("Optimizer.step#Lion.step", 1400, 1500, "user_annotation")
    assert lacking_the_update(hand.recording()) in (["Adam, Lion"], ["Lion, Adam"])


def test_the_counted_step_is_the_last_one_from_its_first_nanosecond() -> None:
    assert lacking_the_update(of_steps(2000).recording()) == []
    assert lacking_the_update(of_steps(1999.999).recording()) == ["SGD"]


def test_a_missing_update_is_not_noted_where_memory_was_not_recorded_or_ran_out() -> None:
    recording = of_steps(1500).recording()
    assert lacking_the_update(replace(recording, memory=None)) == []
    failed = {"failure": "no memory", "failed_in": "counted"}
    assert lacking_the_update(replace(recording, meta=recording.meta | failed)) == []


def test_a_graph_whose_kernels_have_no_annotations_is_noted() -> None:
    hand = by_hand()
    hand.event("cudaGraphLaunch", 100, 110, "cuda_runtime", correlation=5)
    assert notes_of(hand.recording()) == []  # the graph's kernels are missing from the trace
    hand.event("k", 120, 130, "kernel", thread=-1, device=0, stream=7, correlation=5)
    (note,) = notes_of(hand.recording())
    assert note.startswith("The GPU time of a CUDA graph is attributed to the layer that launches it")
    assert notes_of(by_hand().kernel("k", 100, 120, 130).recording()) == []


def compiled_by_hand(key: str = "") -> Recording:
    """Return a step that calls a compiled model, whose graph has the given key."""
    hand = ByHand()
    net = hand.layer("net", compiled=True)
    hand.step(0, 1000).call(net, 10, 990).op("aten::mm", 20, 980)
    if key:
        hand.event(f"## Call CompiledFxGraph {key} ##", 30, 970)
    columns = ("kernel", "layer", "share", "start_ns", "duration_ns")
    empty = pd.DataFrame({name: pd.Series(dtype="int64") for name in columns})
    return replace(hand.recording(), compiled=CompiledRecord(empty, empty, empty, empty))


HIDDEN = "torch.compile hides the layers inside net"


@pytest.mark.parametrize(
    ("key", "meta", "said"),
    [
        ("", {}, f"{HIDDEN}: only the default backend, Inductor, can report them."),
        ("fabc", {"compiler_lacks": "torch._x"}, f"{HIDDEN}: this version of torch has no torch._x, which is needed"),
        ("fabc", {"frozen": True}, f"{HIDDEN}: gc.freeze() hides compiled code from perfnb."),
        ("fabc", {"recompiled": []}, f"{HIDDEN}: only models that Inductor compiled as a whole can be recompiled."),
        ("None", {}, f"{HIDDEN}: they are known only for graphs that Inductor can cache"),
        ("fabc", {}, f"{HIDDEN}. To see them, call perfnb.compile_for_profiling() before"),
    ],
)
def test_the_reason_why_compiled_layers_are_hidden_is_noted(key: str, meta: dict[str, Any], said: str) -> None:
    recording = compiled_by_hand(key)
    notes = notes_of(replace(recording, meta=recording.meta | meta))
    (note,) = [note for note in notes if note.startswith(HIDDEN)]
    assert note.startswith(said)


def test_layers_of_graphs_that_report_others_are_hidden_for_another_reason() -> None:
    recording = compiled_by_hand("fabc")
    record = recording.compiled
    assert record is not None
    kernels = pd.DataFrame({"kernel": ["cpp_fused_0"]})
    with_kernels = replace(recording, compiled=replace(record, kernels=kernels))
    (note,) = [note for note in notes_of(with_kernels) if note.startswith(HIDDEN)]
    assert note == f"{HIDDEN}: their graphs do not show which kernels compute which operations."
    shares = pd.DataFrame({"layer": [0], "kernel": [0], "share": [1.0]})
    known = replace(recording, compiled=replace(record, shares=shares))
    assert not any(note.startswith(HIDDEN) for note in _of_the_layers_of(known))


def _of_the_layers_of(recording: Recording) -> list[str]:
    analysis = Analysis(recording)
    assert analysis.attribution is not None
    plain = Analysis(replace(recording, compiled=None))
    return list(notes_module._of_the_layers(recording, analysis.attribution, plain.layers))


def test_recompilation_is_noted() -> None:
    (done,) = notes_of(by_hand().recording(recompiled=["net", "other"]))
    assert done == (
        "Recompiled for the traced steps, with settings that show the layers: net, other. The timed steps ran your "
        "own compiled code."
    )
    (not_done,) = notes_of(by_hand().recording(recompiled=[]))
    assert not_done.startswith("Nothing was recompiled, because the step does not call any model")


@pytest.mark.parametrize(("outside_us", "noted"), [(50, False), (51, True)])
def test_ops_outside_every_layer_are_noted_above_five_percent_of_the_step(outside_us: int, noted: bool) -> None:
    hand = ByHand()
    net = hand.layer("net")
    hand.step(0, 1000).op("aten::mul", 0, 100, sequence=1).call(net, 100, 600).op("aten::mm", 110, 590, sequence=2)
    hand.node("MmBackward0", 700, 800, sequence=2).node("MulBackward0", 800, 800 + outside_us, sequence=1)
    found = [note for note in notes_of(hand.recording()) if note.startswith("More than 5 %")]
    said = "More than 5 % of the step is not attributed to any layer: its ops ran outside every module call."
    assert found == [said] * noted
    assert (said in _of_the_layers_of(hand.recording(trace={}))) == noted


def test_recomputation_is_noted() -> None:
    hand = ByHand()
    net = hand.layer("net")
    hand.step(0, 1000).call(net, 0, 300).op("aten::mm", 10, 290, sequence=1)
    hand.node("CheckpointBackward", 400, 800, sequence=1)
    assert not any("recomputing" in note for note in notes_of(hand.recording()))
    hand.call(net, 450, 550).op("aten::mm", 460, 540)
    assert any(
        note.startswith("The time that checkpointing spends on recomputing") for note in notes_of(hand.recording())
    )


def test_a_backward_pass_on_several_threads_is_noted() -> None:
    def threads(*numbers: int) -> list[str]:
        hand = ByHand()
        net = hand.layer("net")
        hand.step(0, 1000).call(net, 0, 300)
        for number, thread in enumerate(numbers):
            hand.op("aten::mm", 10 + 50 * number, 50 + 50 * number, sequence=number)
            hand.node("MmBackward0", 400 + 100 * number, 500 + 100 * number, sequence=number, thread=thread)
        return [note for note in notes_of(hand.recording()) if note.startswith("The backward pass ran on several")]

    assert threads(1, 1) == threads(2, 2) == threads(1, 2) == []
    assert len(threads(2, 3)) == 1


def test_a_layer_that_is_called_as_a_loss_is_noted() -> None:
    hand = by_hand()
    criterion = hand.layer("criterion")
    hand.call(criterion, 992, 996, loss=True)
    (note,) = notes_of(hand.recording())
    assert note.startswith("Called as a loss: criterion. Their time is in the loss phase")


def loaded_notes(trace: Written, tmp_path: Path) -> list[str]:
    profile = perfnb.load(trace.write(tmp_path / "trace.json"))
    assert isinstance(profile, perfnb.Profile)
    return list(profile._analysis.notes)


LAST = "Times are not corrected for the overhead of tracing, because it is unknown."


def test_what_a_trace_lacks_is_noted(tmp_path: Path) -> None:
    whole = loaded_notes(training(2), tmp_path)
    assert whole[-1] == LAST
    assert not any(word in note for note in whole for word in ("not mark", "they differ", "belong", "end before"))
    trace = training(2).step(20, 4000, 5501).module("Net_0", 4010, 5400).step(3, 4100, 4200, tid=BACKWARD)
    trace.op("aten::mm", 4020, 5390).op("aten::late", 6000, 6001).op("aten::late", 6002, 6001)
    said = loaded_notes(trace, tmp_path)
    assert "The steps took 1, 1, 1.5 ms. Because they differ, times by phase, layer and op are averages." in said
    assert "Step marks on other threads or inside other steps are not counted as steps: 1." in said
    assert (
        f"2 of {len(trace.events)} events do not belong to any step. They are included in events and gpu_time, but not "
        "in per-step figures." in said
    )
    assert "1 events end before they start. Their durations are counted as zero." in said


def test_a_trace_without_marks_or_host_is_noted(tmp_path: Path) -> None:
    unmarked = loaded_notes(Written().op("aten::mm", 0, 90), tmp_path)
    assert unmarked[0] == (
        "The trace does not mark any steps (ProfilerStep#1, written by the profiler's step()), so all of it counts as "
        "a single step, from the start of the first host event to the end of the last."
    )
    assert unmarked[1] == "Times in the file are rounded to 1 µs."
    assert unmarked[-1].startswith("The trace does not name any modules, so there are no layers, and forward time is")
    kernels = Written().event("k", 5, 8, "kernel", 7, 0, device=0, stream=7)
    without_host = loaded_notes(kernels, tmp_path)
    assert without_host[0].endswith("from the start of the first event to the end of the last.")
    assert any(note.startswith("The trace has no host ops or ranges, ") for note in without_host)
    assert "There are no layers, because the trace contains no host events." in without_host


def test_memory_in_a_trace_is_noted(tmp_path: Path) -> None:
    start = "The trace records how much memory was allocated (see the timeline and the table memory), but not for what "
    (of_cpu,) = [note for note in loaded_notes(training(1).memory(100, 64, 64), tmp_path) if note.startswith(start)]
    assert of_cpu.endswith(" CPU totals exclude memory that was allocated before the trace.")
    (of_gpu,) = [
        note for note in loaded_notes(training(1).memory(100, 64, 64, 1, 0), tmp_path) if note.startswith(start)
    ]
    assert of_gpu.endswith("there are no categories and no figures by layer.")


DIFFER = "Because they differ, times by phase, layer and op are averages."


def marked(*lengths_us: float) -> Written:
    """Return a trace of steps of these lengths."""
    trace, begin = Written(), 0.0
    for number, length in enumerate(lengths_us):
        trace.step(number, begin, begin + length).op("aten::mm", begin + 10, begin + length - 10)
        begin += length
    return trace


@pytest.mark.parametrize(
    ("lengths_us", "noted"),
    [
        ((1000, 1500), []),
        ((1000, 1501), ["The steps took 1, 1.5 ms."]),
        ((2000,), []),
        ((1000, *[2000] * 11), ["The steps took 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2 ms."]),
        ((1000, *[2000] * 12), ["The steps took 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2 ms and more."]),
    ],
)
def test_steps_of_a_trace_that_differ_by_more_than_half_are_listed(
    lengths_us: tuple[float, ...], noted: list[str], tmp_path: Path
) -> None:
    found = [note for note in loaded_notes(marked(*lengths_us), tmp_path) if DIFFER in note]
    assert found == [f"{one} {DIFFER}" for one in noted]


def test_the_unit_of_the_times_in_a_trace_is_noted_unless_it_is_a_nanosecond(tmp_path: Path) -> None:
    def rounded(begin: float) -> list[str]:
        trace = marked(1000).op("aten::relu", begin, begin + 1)
        return [note for note in loaded_notes(trace, tmp_path) if note.startswith("Times in the file are rounded")]

    assert rounded(100) == ["Times in the file are rounded to 1 µs."]
    assert rounded(100.001) == []


def test_a_layer_called_only_on_another_thread_is_noted_with_its_outermost_module_alone() -> None:
    hand = by_hand()
    outer = hand.layer("aside")
    inner = hand.layer("aside.inner", outer)
    hand.call(outer, 100, 200, thread=2).call(inner, 110, 190, thread=2)
    recording = hand.recording()
    (note,) = notes_of(recording)
    assert note.startswith("Called only from other threads, which torch's profiler does not record: aside. Their")
    (note,) = notes_of(replace(recording, compiled=compiled_by_hand().compiled))
    assert note == "Called only in compiled code that does not report its layers, or from other threads: aside."


def test_a_compiled_layer_called_on_another_thread_is_noted_unless_compiled_code_reports_its_layers() -> None:
    hand = by_hand()
    hand.call(hand.layer("fast", compiled=True), 100, 200, thread=2)
    recording = hand.recording()
    for compiled, noted in ((None, 1), (compiled_by_hand().compiled, 0)):
        notes = notes_of(replace(recording, compiled=compiled))
        assert sum(note.startswith("Called only") for note in notes) == noted
