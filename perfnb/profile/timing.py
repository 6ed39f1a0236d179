"""Provide `Timing`, which are step times that can be displayed, saved and loaded, and describe disturbances."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Required, TypedDict

import pandas as pd
from msgspec import Meta

from perfnb import quantities as fmt
from perfnb.draw import escape
from perfnb.draw.document import Document
from perfnb.draw.documented import Documented
from perfnb.errors import RecordingError
from perfnb.profile.outcome import origin
from perfnb.recording import store
from perfnb.recording.frame_files import SavedColumn
from perfnb.recording.loadable import Loadable
from perfnb.recording.outcome import Outcome, make_outcome
from perfnb.recording.saved_facts import Count, Noise
from perfnb.recording.store import SavedFolder, SavedKind
from perfnb.recording.text import TEXT
from perfnb.stats.step_times import StepTimes

#: Garbage collection is reported if it takes more than this share of the step time.
_TELL_GC = 0.005


class TimingFacts(TypedDict, total=False):
    """The contents of saved step times, apart from the data frame. Earlier versions did not save ``block``."""

    batch_size: Required[Count | None]
    samples: Required[Count | None]
    steady: Required[bool | None]
    noise: Required[Noise]
    wanted: Required[Count | None]
    block: Annotated[int, Meta(ge=1, le=2**62)]


_STEPS = {"pass": SavedColumn(TEXT), "wall_ms": SavedColumn("float64", low=0, high=1e15)}
TIMING = SavedKind("timing", TimingFacts, {"steps": _STEPS})


class Timing(StepTimes, Documented):
    """Step times that were measured without a profiler or hooks, and that notebooks can display."""

    #: The outcome at the time when the step times were first saved, if they were loaded.
    _first_outcome: ClassVar[Outcome | None] = None

    def save(self, path: str | Path) -> Path:
        """Save the step times atomically to the folder `path`, as Parquet and JSON files that `perfnb.load` reads.

        Raises
        ------
        RecordingError
            If `path` contains anything else or cannot be written.
        """
        parts = (("warmup", self.warmup_ms), ("timed", self.samples_ms))
        steps = pd.DataFrame([(name, ms) for name, times in parts for ms in times], columns=["pass", "wall_ms"])
        return store.save(
            TIMING,
            {"steps": steps.astype({"pass": TEXT, "wall_ms": "float64"})},
            {name: getattr(self, name) for name in TimingFacts.__annotations__},
            path,
            outcome=self._first_outcome or _outcome_of(self, origin()),
        )

    def _document(self) -> Document:
        from perfnb.profile.timing_view import timing_document  # imported here because it uses noise_sentences

        return timing_document(self)


def shown(timing: StepTimes) -> Timing:
    """Convert step times to a `Timing`, which notebooks can display."""
    return Timing(**{name: getattr(timing, name) for name in StepTimes.__dataclass_fields__})


def load_timing(path: str | Path) -> Timing:
    """Read step times that were written by `Timing.save`.

    Raises
    ------
    RecordingError
        If the folder is missing or damaged.
    """
    saved = SavedFolder(TIMING, path)
    steps = saved.frame("steps")
    try:
        warmup, timed = (
            tuple(float(ms) for ms in steps.loc[steps["pass"] == name, "wall_ms"]) for name in ("warmup", "timed")
        )
        facts = {name: saved.facts[name] for name in TimingFacts.__annotations__ if name in saved.facts}
        timing = Timing(samples_ms=timed, warmup_ms=warmup, **facts)
    except (KeyError, TypeError, ValueError) as error:
        raise RecordingError(f"{path} is damaged: its steps are not valid step times ({error}).") from error
    object.__setattr__(timing, "_first_outcome", saved.outcome or _outcome_of(timing, {}))
    return timing


def _outcome_of(timing: Timing, environment: Mapping[str, Any]) -> Outcome:
    """Return the outcome that is displayed in lists of saved results."""
    return make_outcome(
        "", environment, step_ms=timing.median_ms, interval_ms=timing.ci_ms, batch_size=timing.batch_size
    )


def noise_facts(noise: Mapping[str, Any]) -> list[str]:
    """Describe the disturbances during the steps. The result is empty if none are known."""
    facts = []
    if noise.get("gc_share", 0.0) > _TELL_GC:
        facts.append(f"garbage collection took {fmt.share(noise['gc_share'])}")
    load, cpus = noise.get("load_before"), noise.get("cpus")
    if load is not None and cpus and load > 0.5 * cpus:
        facts.append(f"the machine was already busy (load {load:.1f} on {cpus} CPUs)")
    before, after = noise.get("cpu_mhz_before"), noise.get("cpu_mhz_after")
    if before and after and abs(after / before - 1) > 0.1:
        facts.append(f"the CPU clock changed from {before:,} to {after:,} MHz")
    if noise.get("throttled_periods"):
        facts.append(f"the CPU limit paused the process for {fmt.duration(noise['throttled_ms'])}")
    if noise.get("gpu_throttle_reasons"):
        facts.append(f"the GPU was throttled: {escape.plain(', '.join(noise['gpu_throttle_reasons']), 200)}")
    return facts


def noise_sentences(noise: Mapping[str, Any]) -> list[str]:
    """Return the disturbances from `noise_facts` as sentences for the notes of a result."""
    return [f"{fmt.capital(fact)}." for fact in noise_facts(noise)]


LOADABLE = Loadable(TIMING.is_at, lambda path, *_: load_timing(path))
