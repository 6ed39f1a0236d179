"""Write the caveats that readers need to know when they interpret a profile."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.attribution.attribution import Attribution
from perfnb.attribution.blocks import Kind, marks_step
from perfnb.attribution.tables import inside_compiled, own_losses
from perfnb.findings.doubts import disagree, traced_ms
from perfnb.memory.from_trace import CPU, memory_of_trace
from perfnb.quantities import PASS_WORDS
from perfnb.recording.compiled_layers import UNCACHED, annotated_work, graph_keys, graph_launches
from perfnb.recording.nesting import NONE, forest_of, innermost
from perfnb.recording.recording import Recording
from perfnb.recording.schema import LOSS_ROW, UNATTRIBUTED_ROW
from perfnb.recording.text import is_one_of
from perfnb.stats.step_times import StepTimes
from perfnb.trace_names import DEVICE_WORK, stepped_optimizer

#: Slowdown of traced steps above which a note mentions it.
_SLOWDOWN = 1.05
_UNATTRIBUTED = 0.05
_MOST_NAMES = 5
#: Ratio of longest to shortest step of a loaded trace above which a note lists their times.
_DISAGREE = 1.5
_MOST_TIMES = 12


def notes(recording: Recording, attribution: Attribution, layers: pd.DataFrame, timing: StepTimes) -> tuple[str, ...]:
    """Return the notes of this profile."""
    return (
        *(_of_the_trace(recording) if recording.is_from_trace else _of_the_passes(recording, timing)),
        *_of_the_tracing(recording, attribution, timing),
        *_of_the_memory(recording),
        *_of_engines(recording),
        *_of_the_layers(recording, attribution, layers),
        *_of_replays(recording),
    )


def notes_of_failure(recording: Recording) -> Iterator[str]:
    """Yield the first note of a profile that is incomplete because a step failed."""
    if "failure" in recording.meta:
        yield (
            f"This profile is incomplete: memory ran out in the {failed_pass(recording)} pass. "
            "Measurements up to then are valid; the rest is missing."
        )


def failed_pass(recording: Recording) -> str:
    """Name the pass where a step failed."""
    name = str(recording.meta["failed_in"])
    return PASS_WORDS.get(name, name)


def _of_the_passes(recording: Recording, timing: StepTimes) -> Iterator[str]:
    meta = recording.meta
    executed = recording.steps["pass"].value_counts()
    warm = int(executed.get("warmup", 0))
    if looped := meta.get("optimizer_steps"):
        yield (
            f"Your step called {looped['optimizer']}.step() {looped['times']:,} times: profile one iteration, not the "
            "whole loop. Every per-step figure here refers to the whole loop."
        )
    if meta.get("steady") is False:
        yield f"Step time was not steady after {_steps(warm)} of warm-up and may have drifted during timing."
    elif meta.get("steady") is None and meta["options"]["warmup"] is None:
        yield f"A warm-up of {_steps(warm)} is too short to tell whether the step time was steady."
    if (batches := meta.get("batches", meta.get("loop", {}).get("batches", 1))) > 1:
        yield (
            f"Gradients were accumulated: a step is one optimizer step on {batches:,} batches."
            if "loop" in meta
            else f"The step takes {batches:,} batches from its loader: waits, samples and rates include all of them."
        )
    if meta.get("loop", {}).get("by_batch"):
        yield (
            "Each step is one batch, because no optimizer step shows where a step ends. If gradients are accumulated, "
            "the work of one optimizer step is spread over several of them."
        )
    if "loop" in meta:
        yield f"Profiled in a running loop, where each step runs once: {'; '.join(_left_out(recording))}."
    if meta.get("timed_cut_short"):
        yield (
            f"The budget of {meta['options']['budget_s']:g} s ended the timed pass after {_steps(timing.steps)}; raise "
            "it with budget_s or --budget."
        )
    if timing.ci_ms is None:
        yield f"A 95 % interval needs at least 6 timed steps; there were {timing.steps}."
    if meta.get("traced_cut_short"):
        yield f"The budget allowed only {_steps(int(executed.get('traced', 0)))} of tracing."


def _left_out(recording: Recording) -> Iterator[str]:
    """Yield the measurements that `profile_step` makes but a loop does not."""
    yield "other numbers of threads were not tried"
    if recording.arithmetic is None and recording.meta["options"]["flops"]:
        yield "FLOPs were not counted, because counting runs compiled code uncompiled, which would change the training"
    elif "ceilings" in recording.meta and not recording.meta["ceilings"]["flops_per_s"]:
        yield "the machine's peak rates were not measured (profile_step does that once, and perfnb keeps them)"


def _of_the_tracing(recording: Recording, attribution: Attribution, timing: StepTimes) -> Iterator[str]:
    slowdown, cost = slowdown_of(recording, timing), recording.meta.get("cost", {})
    traced = traced_ms(recording)
    if disagree(traced) and not recording.is_from_trace:
        times = fmt.durations(traced)
        yield (
            f"The traced steps took {times}: they disagree, and times by phase and layer are their mean. Other work on "
            "the machine or uneven batches may be the cause; profile again before trusting them."
        )
    if slowdown is not None and slowdown > _SLOWDOWN:
        cells, more_ms = attribution.cells, (slowdown - 1) * (timing.median_ms or 0.0)
        explained_ms = (cells["ns"].sum() - cells["corrected_ns"].sum()) / attribution.steps / 1e6
        yield (
            f"Traced steps took {slowdown:.3g} times as long as timed ones: {fmt.duration(more_ms)} more. Tracing "
            f"itself explains {fmt.duration(explained_ms)} of that ({fmt.duration(cost.get('op_ns', 0) / 1e6)} per op "
            f"and {fmt.duration(cost.get('call_ns', 0) / 1e6)} per module call, measured here). Shares are corrected "
            "for it; times are as traced."
        )
    environment = recording.meta["environment"]
    if recording.meta.get("stacks"):
        yield "Python calls were recorded too, which slows traced steps by far more than the correction covers."
    if kinds := environment.get("untraced_accelerators"):
        yield (
            f"torch's profiler cannot record work on {' and '.join(kinds)}. Step times include it, because steps "
            "are timed to the end of their work; phases and layers show only the work of the host, and kernels and "
            "allocations there are n/a."
        )
    if environment.get("debugger_or_tracer"):
        yield "A Python debugger or coverage tool was active and slowed every step."


def _of_the_memory(recording: Recording) -> Iterator[str]:
    """Yield a note if an optimizer stepped in other steps but not in the step whose memory was recorded."""
    if recording.memory is None or recording.is_from_trace or "failure" in recording.meta:
        return
    watched = recording.memory.events
    begins = watched.loc[marks_step(watched), "start_ns"]
    counted = watched[watched["start_ns"] >= begins.max()] if len(begins) else watched
    there = _stepped(counted)
    stepped = dict.fromkeys([*_stepped(recording.events), *_stepped(watched)])
    if others := [name for name in stepped if name not in there]:
        yield (
            f"{', '.join(others)} stepped in other steps, but not in the one whose memory was counted, so its peak "
            "leaves that out; perfnb.estimate_memory(step=step) covers all steps from one optimizer step to the next."
        )


def _stepped(events: pd.DataFrame) -> list[str]:
    """Return the classes of all optimizers that stepped."""
    found = map(stepped_optimizer, map(str, events["name"].drop_duplicates()))
    return [kind for kind in dict.fromkeys(found) if kind is not None]


def _of_engines(recording: Recording) -> Iterator[str]:
    if (recording.modules["module"] == "DeepSpeedEngine").any():
        yield (
            "DeepSpeed is not supported, and its engine was profiled as an ordinary module: rely only on the timed "
            "step, the operators and the collectives."
        )


def _of_replays(recording: Recording) -> Iterator[str]:
    """Yield a note if CUDA graphs replay kernels that have no annotations."""
    events = recording.events
    work = events["correlation"][is_one_of(events["category"], DEVICE_WORK)]
    if not recording.is_foreign and not set(work[work.isin(graph_launches(events))]) <= set(
        annotated_work(events)["correlation"]
    ):
        yield (
            "The GPU time of a CUDA graph counts in the layer that launches it, because the trace does not annotate "
            "the graph's kernels. From torch 2.12 on, torch.cuda.graph(..., enable_annotations=True) does."
        )


def _of_hidden(names: str, recording: Recording) -> str:
    if recording.compiled is None:
        return f"Compiled by torch.compile or TorchScript, which hide the layers inside: {names}."
    hidden = f"torch.compile hides the layers inside {names}"
    if lacks := recording.meta.get("compiler_lacks"):
        return f"{hidden}: this torch has no {lacks}, which reports them."
    keys = graph_keys(recording.events)
    if not keys:
        return f"{hidden}: of its backends, only Inductor, the default, can report them."
    if keys == [UNCACHED]:
        return f"{hidden}: they are known only for graphs that Inductor can cache, and its cache was off or bypassed."
    if recording.is_from_trace or len(recording.compiled.kernels):
        return f"{hidden}: their graphs do not show which kernel computes what."
    if recording.meta.get("frozen"):
        return f"{hidden}: gc.freeze() hides compiled code from perfnb. Call gc.unfreeze() before profiling."
    if "recompiled" in recording.meta:
        return f"{hidden}: only models that Inductor compiled as a whole can be compiled once more."
    return (
        f"{hidden}. To see them, call perfnb.compile_for_profiling() before the compiled code runs for the first time "
        "(models of one class share it), or, for models compiled as a whole, profile with recompile=True."
    )


def _of_the_layers(recording: Recording, attribution: Attribution, layers: pd.DataFrame) -> Iterator[str]:
    modules = recording.modules
    again = recording.meta.get("recompiled")
    if again:
        yield (
            f"Compiled once more for the traced steps, with settings that show the layers: {_first_of(again)}. The "
            "timed steps ran your own compiled code."
        )
    elif again is not None:
        yield "Nothing was compiled once more: the step calls no model that Inductor compiled as a whole."
    known = layers["total_ms"].notna().to_numpy()[: len(modules)] & inside_compiled(modules)
    compiled, parents = modules["compiled"].to_numpy(), modules["parent"].to_numpy()
    around = innermost(forest_of(parents), compiled)
    hidden = np.setdiff1d(np.flatnonzero(compiled), around[known])
    if recording.compiled is not None and len(recording.compiled.shares):
        told = np.isin(hidden, recording.compiled.shares["layer"])
        hidden = hidden[~told]  # a model without layers inside
    if len(hidden):
        yield _of_hidden(_first_of(modules["name"].iloc[hidden].tolist()), recording)
    unseen = layers["calls"].isna().to_numpy()[: len(modules)] & ~inside_compiled(modules)
    if recording.compiled is not None:
        unseen &= ~compiled  # the step's own thread called them, in compiled functions
    if unseen.any():
        which = " than the step's" if recording.is_from_trace else ", which torch's profiler does not record"
        outermost = _first_of(modules["name"][unseen & ~((parents != NONE) & unseen[parents])].tolist())
        if recording.compiled is not None:
            yield f"Called only in compiled code that does not report its layers, or from other threads: {outermost}."
        else:
            yield (
                f"Called only from other threads{which}: {outermost}. Their forward counts only as "
                "the time the step waits for it, and their backward is unattributed."
            )
    losses = ((layers["calls"].fillna(0) > 0) & layers["total_ms"].isna()).to_numpy(dtype=bool)[: len(modules)]
    if losses.any():
        names = _first_of(modules.loc[losses, "name"].tolist())
        yield f"Called as a loss: {names}. Their time is in the loss phase and, for backward, in the row {LOSS_ROW}."
    if modules.empty and recording.is_from_trace and not recording.meta["trace"]["host_events"]:
        yield "There are no layers, because the trace contains no host events."
    elif modules.empty and recording.is_foreign:
        work = " and kernels" if recording.meta["trace"]["device_events"] else ""
        yield f"There are no layers: look at ops{work}."  # another program's trace: torch's options are no help
    elif modules.empty and recording.is_from_trace:
        yield (
            "The trace names no modules, so there are no layers, and forward time is in other: look at ops. With "
            "with_stack=True, torch.profiler records module calls."
        )
    elif modules.empty and recording.meta.get("models_chosen"):
        yield "None of the chosen models was called in the step, so there are no layers."
    elif modules.empty:
        yield (
            "No module was called in the step, so there are no layers; those inside a compiled function are seen only "
            "in a counted pass (flops=True)."
        )
    if models := own_losses(recording, attribution):
        yield (
            f"Backward starts from what {_first_of(models)} computed in forward: a loss that the model computes itself "
            "counts as forward, and the loss phase holds only the time between forward and backward."
        )
    if (layers["recompute_ms"] > 0).any():
        yield "Time that checkpointing spends recomputing layers in the backward pass is listed as recompute."
    unattributed = layers.loc[layers.index == UNATTRIBUTED_ROW, "share"].sum()
    if unattributed > _UNATTRIBUTED and not (recording.is_from_trace and modules.empty):
        calls = "module call on the step's own thread" if unseen.any() else "module call"
        yield f"More than 5 % of the step is not attributed to any layer: its ops ran outside every {calls}."
    nodes = attribution.host.blocks[attribution.host.blocks["kind"] == Kind.NODE]
    if nodes.loc[~nodes["main"], "thread"].nunique() > 1:
        yield (
            "The backward pass ran on several threads at once: layers that ran concurrently share the elapsed time, so "
            "that they add up to the phase."
        )
    kernels = attribution.cells.groupby("step")["kernels"].sum()
    if kernels.nunique() > 1:
        counts = ", ".join(map(str, kernels))
        yield (
            f"The traced steps did not launch equally many kernels ({counts}): the profiler lost some, or the steps "
            "differ."
        )


def _first_of(names: list[str]) -> str:
    return fmt.named(names, _MOST_NAMES)


def slowdown_of(recording: Recording, timing: StepTimes) -> float | None:
    """Return the mean traced step time, which phases and layers add up to, divided by the median timed step time."""
    traced = traced_ms(recording)
    return None if traced.empty or not timing.median_ms else float(traced.mean() / timing.median_ms)


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"


def _of_the_trace(recording: Recording) -> Iterator[str]:
    """Yield notes on the contents of the trace, and on what is missing."""
    facts, steps = recording.meta["trace"], recording.steps
    if not facts["steps_marked"]:
        host = "host " if facts["host_events"] + facts["host_calls"] else ""
        marks = "" if recording.is_foreign else " (ProfilerStep#1, written by the profiler's step())"
        yield (
            f"The trace marks no steps{marks}: all of it counts as one step, from the start of its first {host}event "
            "to the end of its last."
        )
    elif len(steps) > 1 and steps["wall_ms"].max() > _DISAGREE * steps["wall_ms"].min():
        times = fmt.durations(steps["wall_ms"].head(_MOST_TIMES))
        more = " and more" if len(steps) > _MOST_TIMES else ""
        yield f"The steps took {times}{more}: they differ, and times by phase, layer and op are their mean."
    if facts["steps_ignored"]:
        yield (f"Step marks on other threads or inside other steps are not counted as steps: {facts['steps_ignored']}.")
    if recording.outside is not None:
        count, whole = len(recording.outside), facts["events"]
        yield (
            f"{count:,} of {whole:,} events belong to no step: they are in events and gpu_time, but in no per-step "
            "figure."
        )
    if lines := memory_of_trace(recording):
        before = " CPU totals leave out what was alive before the trace." if lines[0].device == CPU else ""
        yield (
            "The trace records how much memory was allocated (in the timeline and the frame memory), but not what for: "
            f"there are no categories and no figures by layer.{before}"
        )
    modules = recording.modules
    if len(modules) and modules["module"].isna().all():
        yield "perfnb's spans in this trace do not name modules: layers are numbered in the order of a step's calls."
    if not facts["host_events"] and facts["device_events"]:
        yield "The trace has no host ops or ranges: it shows the work of the GPUs, but not the ops behind it."
    if facts["unit_ns"] > 1:
        unit = "1 µs" if facts["unit_ns"] == 1000 else f"{facts['unit_ns']} ns"
        yield f"Times in the file are rounded to {unit}."
    if facts["negative_durations"]:
        yield f"{facts['negative_durations']:,} events end before they start; they count as taking no time."
    yield from facts.get("caveats", ())
    yield "Times are as traced: the overhead of tracing is unknown, and nothing is corrected for it."
