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

#: If traced steps are slower than timed steps by more than this factor, a note mentions it.
_SLOWDOWN = 1.05
_UNATTRIBUTED = 0.05
_MOST_NAMES = 5
#: If the ratio of the longest to the shortest step in a loaded trace exceeds this value, a note lists their times.
_DISAGREE = 1.5
_MOST_TIMES = 12


def notes(recording: Recording, attribution: Attribution, layers: pd.DataFrame, timing: StepTimes) -> tuple[str, ...]:
    """Return the notes for a profile."""
    return (
        *(_of_the_trace(recording) if recording.is_from_trace else _of_the_passes(recording, timing)),
        *_of_the_tracing(recording, attribution, timing),
        *_of_the_memory(recording),
        *_of_engines(recording),
        *_of_the_layers(recording, attribution, layers),
        *_of_replays(recording),
    )


def notes_of_failure(recording: Recording) -> Iterator[str]:
    """Yield the first note for a profile that is incomplete because a step failed."""
    if "failure" in recording.meta:
        yield (
            f"This profile is incomplete: memory ran out in the {failed_pass(recording)} pass. "
            "Measurements up to that point are valid; the rest is missing."
        )


def failed_pass(recording: Recording) -> str:
    """Return the name of the pass where a step failed."""
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
        yield f"The step time was not steady after {_steps(warm)} of warm-up and may have drifted during timing."
    elif meta.get("steady") is None and meta["options"]["warmup"] is None:
        yield f"A warm-up of {_steps(warm)} is too short to determine whether the step time was steady."
    if (batches := meta.get("batches", meta.get("loop", {}).get("batches", 1))) > 1:
        yield (
            f"Gradients were accumulated: a step is one optimizer step on {batches:,} batches."
            if "loop" in meta
            else f"The step uses {batches:,} batches from its loader: waits, samples and rates include all of them."
        )
    if meta.get("loop", {}).get("by_batch"):
        yield (
            "Each step is one batch, because there is no optimizer step to show where a step ends. If gradients are "
            "accumulated, the work of one optimizer step is spread over several batches."
        )
    if "loop" in meta:
        yield f"This was profiled in a running loop, where each step runs once: {'; '.join(_left_out(recording))}."
    if meta.get("timed_cut_short"):
        yield (
            f"The budget of {meta['options']['budget_s']:g} s ended the timed pass after {_steps(timing.steps)}. Raise "
            "it with budget_s or --budget."
        )
    if timing.ci_ms is None:
        yield f"A 95 % interval requires at least 6 timed steps, but the number of timed steps was {timing.steps}."
    if meta.get("traced_cut_short"):
        yield f"Because of the budget, only {_steps(int(executed.get('traced', 0)))} could be traced."


def _left_out(recording: Recording) -> Iterator[str]:
    """Yield the measurements that `profile_step` makes but a loop does not."""
    yield "other numbers of threads were not tried"
    if recording.arithmetic is None and recording.meta["options"]["flops"]:
        yield "FLOPs were not counted, because that would run compiled code uncompiled and change the training"
    elif "ceilings" in recording.meta and not recording.meta["ceilings"]["flops_per_s"]:
        yield "the machine's peak rates were not measured (profile_step measures and saves them once)"


def _of_the_tracing(recording: Recording, attribution: Attribution, timing: StepTimes) -> Iterator[str]:
    slowdown, cost = slowdown_of(recording, timing), recording.meta.get("cost", {})
    traced = traced_ms(recording)
    if disagree(traced) and not recording.is_from_trace:
        times = fmt.durations(traced)
        yield (
            f"The traced steps took {times}. These times disagree, and the times of phases and layers are averages. "
            "Other work on the machine or uneven batches may be the cause, so profile again before you trust them."
        )
    if slowdown is not None and slowdown > _SLOWDOWN:
        cells, more_ms = attribution.cells, (slowdown - 1) * (timing.median_ms or 0.0)
        explained_ms = (cells["ns"].sum() - cells["corrected_ns"].sum()) / attribution.steps / 1e6
        yield (
            f"Traced steps took {slowdown:.3g} times as long as timed ones, which is {fmt.duration(more_ms)} more. "
            f"Tracing accounts for {fmt.duration(explained_ms)} of this ({fmt.duration(cost.get('op_ns', 0) / 1e6)} "
            f"per op and {fmt.duration(cost.get('call_ns', 0) / 1e6)} per module call, measured on this machine). "
            "Shares are corrected for it, but times are not."
        )
    environment = recording.meta["environment"]
    if recording.meta.get("stacks"):
        yield "Python calls were also recorded, which slows traced steps by far more than the correction accounts for."
    if kinds := environment.get("untraced_accelerators"):
        yield (
            f"torch's profiler cannot record work on {' and '.join(kinds)}. Step times include this work, because "
            "steps are timed until their work has ended. Phases and layers only show the host's work, and kernels and "
            "allocations on this device are n/a."
        )
    if environment.get("debugger_or_tracer"):
        yield "A Python debugger or coverage tool was active and slowed down every step."


def _of_the_memory(recording: Recording) -> Iterator[str]:
    """Yield a note if an optimizer was called in other steps but not in the step whose memory was recorded."""
    if recording.memory is None or recording.is_from_trace or "failure" in recording.meta:
        return
    watched = recording.memory.events
    begins = watched.loc[marks_step(watched), "start_ns"]
    counted = watched[watched["start_ns"] >= begins.max()] if len(begins) else watched
    there = _stepped(counted)
    stepped = dict.fromkeys([*_stepped(recording.events), *_stepped(watched)])
    if others := [name for name in stepped if name not in there]:
        yield (
            f"{', '.join(others)} ran in other steps, but not in the step whose memory was counted, so the peak does "
            "not include the update. perfnb.estimate_memory(step=step) covers all steps from one optimizer step to "
            "the next."
        )


def _stepped(events: pd.DataFrame) -> list[str]:
    """Return the classes of all optimizers that were called."""
    found = map(stepped_optimizer, map(str, events["name"].drop_duplicates()))
    return [kind for kind in dict.fromkeys(found) if kind is not None]


def _of_engines(recording: Recording) -> Iterator[str]:
    if (recording.modules["module"] == "DeepSpeedEngine").any():
        yield (
            "DeepSpeed is not supported, and its engine was profiled as an ordinary module. Rely only on the timed "
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
            "The GPU time of a CUDA graph is attributed to the layer that launches it, because the graph's kernels are "
            "not annotated in the trace. With torch 2.12 or later, use torch.cuda.graph(..., enable_annotations=True) "
            "to annotate them."
        )


def _of_hidden(names: str, recording: Recording) -> str:
    if recording.compiled is None:
        return f"torch.compile or TorchScript hides the layers inside these compiled regions: {names}."
    hidden = f"torch.compile hides the layers inside {names}"
    if lacks := recording.meta.get("compiler_lacks"):
        return f"{hidden}: this version of torch has no {lacks}, which is needed to report them."
    keys = graph_keys(recording.events)
    if not keys:
        return f"{hidden}: only the default backend, Inductor, can report them."
    if keys == [UNCACHED]:
        return (
            f"{hidden}: they are known only for graphs that Inductor can cache, and its cache was disabled or bypassed."
        )
    if recording.is_from_trace or len(recording.compiled.kernels):
        return f"{hidden}: their graphs do not show which kernels compute which operations."
    if recording.meta.get("frozen"):
        return f"{hidden}: gc.freeze() hides compiled code from perfnb. Call gc.unfreeze() before profiling."
    if "recompiled" in recording.meta:
        return f"{hidden}: only models that Inductor compiled as a whole can be recompiled."
    return (
        f"{hidden}. To see them, call perfnb.compile_for_profiling() before the compiled code runs for the first time "
        "(models of the same class share it). For models compiled as a whole, you can also profile with recompile=True."
    )


def _of_the_layers(recording: Recording, attribution: Attribution, layers: pd.DataFrame) -> Iterator[str]:
    modules = recording.modules
    again = recording.meta.get("recompiled")
    if again:
        yield (
            f"Recompiled for the traced steps, with settings that show the layers: {_first_of(again)}. The timed steps "
            "ran your own compiled code."
        )
    elif again is not None:
        yield "Nothing was recompiled, because the step does not call any model that Inductor compiled as a whole."
    known = layers["total_ms"].notna().to_numpy()[: len(modules)] & inside_compiled(modules)
    compiled, parents = modules["compiled"].to_numpy(), modules["parent"].to_numpy()
    around = innermost(forest_of(parents), compiled)
    hidden = np.setdiff1d(np.flatnonzero(compiled), around[known])
    if recording.compiled is not None and len(recording.compiled.shares):
        told = np.isin(hidden, recording.compiled.shares["layer"])
        hidden = hidden[~told]  # the rest are models without layers inside
    if len(hidden):
        yield _of_hidden(_first_of(modules["name"].iloc[hidden].tolist()), recording)
    unseen = layers["calls"].isna().to_numpy()[: len(modules)] & ~inside_compiled(modules)
    if recording.compiled is not None:
        unseen &= ~compiled  # these were called in compiled functions, on the step's own thread
    if unseen.any():
        which = " than the step's" if recording.is_from_trace else ", which torch's profiler does not record"
        outermost = _first_of(modules["name"][unseen & ~((parents != NONE) & unseen[parents])].tolist())
        if recording.compiled is not None:
            yield f"Called only in compiled code that does not report its layers, or from other threads: {outermost}."
        else:
            yield (
                f"Called only from other threads{which}: {outermost}. Their forward pass is counted only as the time "
                "that the step waits for it, and their backward pass is not attributed."
            )
    losses = ((layers["calls"].fillna(0) > 0) & layers["total_ms"].isna()).to_numpy(dtype=bool)[: len(modules)]
    if losses.any():
        names = _first_of(modules.loc[losses, "name"].tolist())
        yield f"Called as a loss: {names}. Their time is in the loss phase and, for backward, in the row {LOSS_ROW}."
    if modules.empty and recording.is_from_trace and not recording.meta["trace"]["host_events"]:
        yield "There are no layers, because the trace contains no host events."
    elif modules.empty and recording.is_foreign:
        work = " and kernels" if recording.meta["trace"]["device_events"] else ""
        yield f"There are no layers. See ops{work} instead."  # torch's options do not apply to other programs' traces
    elif modules.empty and recording.is_from_trace:
        yield (
            "The trace does not name any modules, so there are no layers, and forward time is in other. See ops "
            "instead. With with_stack=True, torch.profiler records module calls."
        )
    elif modules.empty and recording.meta.get("models_chosen"):
        yield "There are no layers, because the step did not call any of the chosen models."
    elif modules.empty:
        yield (
            "There are no layers, because the step did not call any module. Modules inside a compiled function are "
            "visible only in a counted pass (flops=True)."
        )
    if models := own_losses(recording, attribution):
        yield (
            f"The backward pass starts from a result that {_first_of(models)} computed in forward. A loss that the "
            "model computes itself counts as forward, and the loss phase contains only the time between forward and "
            "backward."
        )
    if (layers["recompute_ms"] > 0).any():
        yield "The time that checkpointing spends on recomputing layers in the backward pass is listed as recompute."
    unattributed = layers.loc[layers.index == UNATTRIBUTED_ROW, "share"].sum()
    if unattributed > _UNATTRIBUTED and not (recording.is_from_trace and modules.empty):
        calls = "module call on the step's own thread" if unseen.any() else "module call"
        yield f"More than 5 % of the step is not attributed to any layer: its ops ran outside every {calls}."
    nodes = attribution.host.blocks[attribution.host.blocks["kind"] == Kind.NODE]
    if nodes.loc[~nodes["main"], "thread"].nunique() > 1:
        yield (
            "The backward pass ran on several threads at once. Layers that ran concurrently share the elapsed time, "
            "which means that they add up to the phase."
        )
    kernels = attribution.cells.groupby("step")["kernels"].sum()
    if kernels.nunique() > 1:
        counts = ", ".join(map(str, kernels))
        yield (
            f"The traced steps did not launch the same number of kernels ({counts}). Either the profiler lost some, or "
            "the steps differ."
        )


def _first_of(names: list[str]) -> str:
    return fmt.named(names, _MOST_NAMES)


def slowdown_of(recording: Recording, timing: StepTimes) -> float | None:
    """Return the mean time of a traced step, which its phases add up to, divided by the median time of a timed step."""
    traced = traced_ms(recording)
    return None if traced.empty or not timing.median_ms else float(traced.mean() / timing.median_ms)


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"


def _of_the_trace(recording: Recording) -> Iterator[str]:
    """Yield notes about the contents of the trace, and about missing information."""
    facts, steps = recording.meta["trace"], recording.steps
    if not facts["steps_marked"]:
        host = "host " if facts["host_events"] + facts["host_calls"] else ""
        marks = "" if recording.is_foreign else " (ProfilerStep#1, written by the profiler's step())"
        yield (
            f"The trace does not mark any steps{marks}, so all of it counts as a single step, from the start of the "
            f"first {host}event to the end of the last."
        )
    elif len(steps) > 1 and steps["wall_ms"].max() > _DISAGREE * steps["wall_ms"].min():
        times = fmt.durations(steps["wall_ms"].head(_MOST_TIMES))
        more = " and more" if len(steps) > _MOST_TIMES else ""
        yield f"The steps took {times}{more}. Because they differ, times by phase, layer and op are averages."
    if facts["steps_ignored"]:
        yield (f"Step marks on other threads or inside other steps are not counted as steps: {facts['steps_ignored']}.")
    if recording.outside is not None:
        count, whole = len(recording.outside), facts["events"]
        yield (
            f"{count:,} of {whole:,} events do not belong to any step. They are included in events and gpu_time, but "
            "not in per-step figures."
        )
    if lines := memory_of_trace(recording):
        before = " CPU totals exclude memory that was allocated before the trace." if lines[0].device == CPU else ""
        yield (
            "The trace records how much memory was allocated (see the timeline and the table memory), but not for what "
            f"purpose, so there are no categories and no figures by layer.{before}"
        )
    modules = recording.modules
    if len(modules) and modules["module"].isna().all():
        yield "perfnb's spans in this trace do not name modules, so layers are numbered in the order of their calls."
    if not facts["host_events"] and facts["device_events"]:
        yield "The trace has no host ops or ranges, so it shows the GPUs' work but not the ops that launched it."
    if facts["unit_ns"] > 1:
        unit = "1 µs" if facts["unit_ns"] == 1000 else f"{facts['unit_ns']} ns"
        yield f"Times in the file are rounded to {unit}."
    if facts["negative_durations"]:
        yield f"{facts['negative_durations']:,} events end before they start. Their durations are counted as zero."
    yield from facts.get("caveats", ())
    yield "Times are not corrected for the overhead of tracing, because it is unknown."
