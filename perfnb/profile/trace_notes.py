"""What a reader must know of a trace that was loaded, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from perfnb.memory.from_trace import CPU, memory_of_trace
from perfnb.recording.recording import Recording
from perfnb.stats.step_times import times_in_words

#: Ratio of the longest to the shortest step above which the report gives them all.
_DISAGREE = 1.5
_MOST_TIMES = 12


def of_the_trace(recording: Recording) -> Iterator[str]:
    """What the trace holds and what it lacks."""
    facts, steps = recording.meta["trace"], recording.steps
    if not facts["steps_marked"]:
        on = "on the host " if facts["host_events"] + facts["host_calls"] else ""
        yield (
            "The trace marks no steps (ProfilerStep#1, which a profiler's step() writes): all of it counts as one "
            f"step, from the begin of its first event {on}to the end of its last."
        )
    elif len(steps) > 1 and steps["wall_ms"].max() > _DISAGREE * steps["wall_ms"].min():
        times = times_in_words(steps["wall_ms"].head(_MOST_TIMES))
        more = " and more" if len(steps) > _MOST_TIMES else ""
        yield f"The steps took {times}{more}: they differ, and times by phase, layer and op are their mean."
    if facts["steps_ignored"]:
        yield (
            f"Marks of steps on other threads or inside other steps are not counted as steps: {facts['steps_ignored']}."
        )
    if recording.outside is not None:
        count, whole = len(recording.outside), facts["events"]
        yield (
            f"{count:,} of {whole:,} events belong to no step: they are in events and gpu_time, and in no figure "
            "per step."
        )
    if lines := memory_of_trace(recording):
        before = " Of the CPU's, what was alive before is left out." if lines[0].device == CPU else ""
        yield (
            "The trace tells how much memory was allocated, in the timeline and in the frame memory, but not what for: "
            f"there are no categories, and no figures by layer.{before}"
        )
    modules = recording.modules
    if len(modules) and modules["module"].isna().all():
        yield "perfnb's spans in the trace do not name modules: layers are called by their place among a step's calls."
    if not facts["host_events"] and facts["device_events"]:
        yield "The trace holds no operators and ranges of the host: it tells what GPUs did, not for what."
    if facts["unit_ns"] > 1:
        unit = "1 µs" if facts["unit_ns"] == 1000 else f"{facts['unit_ns']} ns"
        yield f"The file's times are multiples of {unit}."
    if facts["negative_durations"]:
        yield f"{facts['negative_durations']:,} events end before they begin; they count as taking no time."
    yield from facts.get("caveats", ())
    yield "Times are as traced: what tracing itself cost is not known, and nothing is corrected for it."


def without_layers(recording: Recording) -> str:
    """Why there are no layers."""
    if not recording.meta["trace"]["host_events"]:
        return "Without events of the host there are no layers."
    return (
        "The trace names no modules, so there are no layers, and forward is part of other: look at ops. With "
        "with_stack=True torch.profiler records the calls of modules."
    )
