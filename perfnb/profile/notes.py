"""What a reader must know to read a profile rightly, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from perfnb.attribution.attribution import Attribution
from perfnb.attribution.blocks import Kind, marks_step
from perfnb.attribution.layers import inside_compiled
from perfnb.attribution.phases import own_losses
from perfnb.findings.doubt import disagree, traced_ms
from perfnb.profile.trace_notes import of_the_trace, without_layers
from perfnb.recording.nesting import NONE
from perfnb.recording.recording import Recording
from perfnb.recording.schema import LOSS_ROW, UNATTRIBUTED_ROW
from perfnb.stats.step_times import Timing, times_in_words
from perfnb.trace_names import stepped_optimizer

#: Slowdown of the traced steps above which the report speaks of it.
_SLOWDOWN = 1.05
_UNATTRIBUTED = 0.05
_MOST_NAMES = 5


def notes(recording: Recording, attribution: Attribution, layers: pd.DataFrame, timing: Timing) -> tuple[str, ...]:
    """The sentences that belong to this profile."""
    return (
        *(of_the_trace(recording) if recording.is_loaded else _of_the_passes(recording, timing)),
        *_of_the_tracing(recording, attribution, timing),
        *_of_the_memory(recording),
        *_of_the_layers(recording, attribution, layers),
    )


def notes_of_failure(recording: Recording) -> Iterator[str]:
    """What a reader must know first of a profile that the step's failure ended."""
    if "failure" in recording.meta:
        when = {"warmup": "warm-up", "lead_in": "lead-in"}.get(*[recording.meta["failed_in"]] * 2)
        yield (
            f"This profile is incomplete: memory ran out in the {when} pass ({recording.meta['failure']}). What was "
            "measured until then stands; the rest is missing."
        )


def _of_the_passes(recording: Recording, timing: Timing) -> Iterator[str]:
    meta = recording.meta
    executed = recording.steps["pass"].value_counts()
    warm = int(executed.get("warmup", 0))
    if looped := meta.get("optimizer_steps"):
        yield (
            f"Your step called {looped['optimizer']}.step() {looped['times']:,} times: profile one iteration, not the "
            "whole loop. All figures per step are per loop here."
        )
    if meta.get("steady") is False:
        yield (f"The step time was not steady after {_steps(warm)} of warm-up: it may have drifted while it was timed.")
    elif meta.get("steady") is None and meta["options"]["warmup"] is None:
        yield f"The warm-up of {_steps(warm)} was too short to tell whether the step time was steady."
    if meta.get("timed_cut_short"):
        yield (
            f"The budget of {meta['options']['budget_s']:g} s ended the timed pass after {_steps(timing.steps)}; raise "
            "it with budget_s or --budget."
        )
    if timing.ci_ms is None:
        yield f"A 95 % interval needs at least 6 timed steps; there were {timing.steps}."
    if meta.get("traced_cut_short"):
        yield f"The budget allowed only {_steps(int(executed.get('traced', 0)))} of tracing."


def _of_the_tracing(recording: Recording, attribution: Attribution, timing: Timing) -> Iterator[str]:
    slowdown, cost = slowdown_of(recording, timing), recording.meta.get("cost", {})
    traced = traced_ms(recording)
    if disagree(traced) and not recording.is_loaded:
        times = times_in_words(traced)
        yield (
            f"The traced steps took {times}: they disagree, and times by phase and layer are their mean. Other work "
            "on the machine or unlike batches may be the cause; profile again before you trust them."
        )
    if slowdown is not None and slowdown > _SLOWDOWN:
        cells, more_ms = attribution.cells, (slowdown - 1) * (timing.median_ms or 0.0)
        explained_ms = (cells["ns"].sum() - cells["corrected_ns"].sum()) / attribution.steps / 1e6
        yield (
            f"Traced steps took {slowdown:.3g} times as long as timed ones: {times_in_words([more_ms])} "
            f"more, of which tracing itself explains {times_in_words([explained_ms])} "
            f"({cost.get('op_ns', 0) / 1e3:.2f} µs an op, "
            f"{cost.get('call_ns', 0) / 1e3:.2f} µs a module call, as measured here). Shares are corrected for that; "
            "times are as traced."
        )
    if recording.meta.get("stacks"):
        yield "Python calls were recorded too, which slows a traced step by far more than is corrected for."
    if kind := recording.meta["environment"].get("unwatched_accelerator"):
        yield f"Work on the accelerator ({kind}) is neither traced nor waited for: a step that uses it is mistimed."
    if recording.meta["environment"].get("debugger_or_tracer"):
        yield "A Python debugger or coverage tool was active and slowed every step."


def _of_the_memory(recording: Recording) -> Iterator[str]:
    """Whether an optimizer stepped in other steps, but not in the last watched one, whose memory is shown."""
    if recording.memory is None or recording.is_loaded or "failure" in recording.meta:
        return
    watched = recording.memory.events
    begins = watched.loc[marks_step(watched), "start_ns"]
    counted = watched[watched["start_ns"] >= begins.max()] if len(begins) else watched
    there = _stepped(counted)
    if others := [
        name for name in dict.fromkeys([*_stepped(recording.events), *_stepped(watched)]) if name not in there
    ]:
        yield (
            f"{', '.join(others)} stepped in other steps, but not in the one whose memory was counted, so its peak "
            "lacks what that takes; perfnb.estimate_memory(step=step) counts all steps from one to the next."
        )


def _stepped(events: pd.DataFrame) -> list[str]:
    """Classes of the optimizers that stepped."""
    found = [stepped_optimizer(str(name)) for name in events["name"].drop_duplicates()]
    return [kind for kind in dict.fromkeys(found) if kind is not None]


def _of_the_layers(recording: Recording, attribution: Attribution, layers: pd.DataFrame) -> Iterator[str]:
    modules = recording.modules
    compiled = modules.loc[modules["compiled"], "name"].tolist()
    if compiled:
        yield f"Compiled by torch.compile or TorchScript, which hide the layers inside: {', '.join(compiled)}."
    unseen = layers["calls"].isna().to_numpy()[: len(modules)] & ~inside_compiled(modules)
    if unseen.any():
        which = " than the step's" if recording.is_loaded else ", which torch's profiler does not record"
        yield (
            f"Called only from other threads{which}: {_outermost_of(modules, unseen)}. Their forward counts only as "
            "the time that the step waits for it, their backward is unattributed."
        )
    losses = ((layers["calls"].fillna(0) > 0) & layers["total_ms"].isna()).to_numpy(dtype=bool)[: len(modules)]
    if losses.any():
        names = ", ".join(modules.loc[losses, "name"].head(5))
        yield (
            f"Called as a loss: {names}. The time is in the phase loss and, for the backward, in the row {LOSS_ROW}."
        )
    if modules.empty and recording.is_loaded:
        yield without_layers(recording)
    elif modules.empty and recording.meta.get("models_chosen"):
        yield "None of the chosen models was called in the step, so there are no layers."
    elif modules.empty:
        yield (
            "No module was called in the step, so there are no layers; a model compiled in place (model.compile()) or "
            "a compiled function cannot be seen."
        )
    if models := own_losses(recording, attribution):
        yield (
            f"Backward starts from what {_first_of(models)} computed in forward: a loss that a model computes itself "
            "is in the phase forward, and the phase loss holds only what lies between forward and backward."
        )
    if (layers["recompute_ms"] > 0).any():
        yield "Layers that checkpointing ran again in the backward pass have that time in recompute."
    unattributed = layers.loc[layers.index == UNATTRIBUTED_ROW, "share"].sum()
    if unattributed > _UNATTRIBUTED and not (recording.is_loaded and modules.empty):
        calls = "module call of the step's own thread" if unseen.any() else "module call"
        yield f"More than 5 % of the step could not be attributed to a layer: its ops ran outside every {calls}."
    nodes = attribution.host.blocks[attribution.host.blocks["kind"] == Kind.NODE]
    if nodes.loc[~nodes["main"], "thread"].nunique() > 1:
        yield (
            "The backward pass ran on several threads at once: what ran at the same time shares the time that passed, "
            "so that layers add up to the phase."
        )
    cells = attribution.cells
    kernels = cells.groupby("step")["kernels"].sum()
    if kernels.nunique() > 1:
        counts = ", ".join(str(count) for count in kernels)
        yield (
            f"The traced steps did not launch equally many kernels ({counts}): the profiler lost some, or the steps "
            "differ."
        )


def _outermost_of(modules: pd.DataFrame, chosen: npt.NDArray[np.bool_]) -> str:
    """The names of chosen layers that lie in no chosen one, the first of them."""
    parent = modules["parent"].to_numpy()
    return _first_of(modules["name"][chosen & ~((parent != NONE) & chosen[parent])].tolist())


def _first_of(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def slowdown_of(recording: Recording, timing: Timing) -> float | None:
    """Mean traced step time, which phases and layers add up to, by the median timed one."""
    traced = traced_ms(recording)
    return None if traced.empty or not timing.median_ms else float(traced.mean() / timing.median_ms)


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"
