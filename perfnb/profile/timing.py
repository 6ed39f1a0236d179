"""`Timing`: step times that show, save and load themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Required, TypedDict

import pandas as pd
from msgspec import Meta

from perfnb.draw.shown import Shown
from perfnb.errors import RecordingError
from perfnb.files import usable
from perfnb.profile.timing_view import timing_html, timing_text
from perfnb.recording import folder, raw_columns
from perfnb.recording.folder import Kind
from perfnb.recording.loaders import Loader
from perfnb.recording.saved_facts import Count, Noise
from perfnb.recording.text import TEXT
from perfnb.stats import step_times as analysis

#: What is saved of a timing, besides its steps.
_FACTS = ("batch_size", "samples", "steady", "noise", "wanted")
#: What earlier versions did not save, with its value then.
_LATER = {"block": 1}


class TimingFacts(TypedDict, total=False):
    """What saved step times contain besides their frame."""

    batch_size: Required[Count | None]
    samples: Required[Count | None]
    steady: Required[bool | None]
    noise: Required[Noise]
    wanted: Required[Count | None]
    block: Annotated[int, Meta(ge=1, le=2**62)]


TIMING = Kind("timing", frozenset({"steps"}), frozenset({"noise"}), TimingFacts)


class Timing(analysis.Timing, Shown):
    """Step times, measured without profiler and hooks. Shows itself in a notebook."""

    def save(self, path: str | Path) -> Path:
        """Save the step times to the folder `path` (Parquet and JSON), atomically; `perfnb.load` reads it.

        Raises
        ------
        RecordingError
            If `path` holds something else, or cannot be written.
        """
        parts = (("warmup", self.warmup_ms), ("timed", self.samples_ms))
        steps = pd.DataFrame([(name, ms) for name, times in parts for ms in times], columns=["pass", "wall_ms"])
        return folder.save(
            TIMING,
            {"steps": steps.astype({"pass": TEXT, "wall_ms": "float64"})},
            {name: getattr(self, name) for name in (*_FACTS, *_LATER)},
            path,
        )

    def _text(self) -> str:
        return timing_text(self)

    def _html(self) -> str:
        return timing_html(self)


def shown(timing: analysis.Timing) -> Timing:
    """Turn figures into a `Timing` that shows itself."""
    return Timing(**{name: getattr(timing, name) for name in analysis.Timing.__dataclass_fields__})


def load_timing(path: str | Path) -> Timing:
    """Read step times that `Timing.save` wrote.

    Raises
    ------
    RecordingError
        If it is missing or damaged.
    """
    source = usable(path)
    meta = folder.load_meta(TIMING, source)
    steps = folder.load_frame("steps", raw_columns.TIMED, source)
    try:
        warmup, timed = (
            tuple(float(ms) for ms in steps.loc[steps["pass"] == name, "wall_ms"]) for name in ("warmup", "timed")
        )
        facts = {name: meta[name] for name in _FACTS} | {name: meta.get(name, old) for name, old in _LATER.items()}
        return Timing(samples_ms=timed, warmup_ms=warmup, **facts)
    except (KeyError, TypeError, ValueError) as error:
        raise RecordingError(f"{path} is damaged: its steps are not those of a timing ({error}).") from error


LOADER = Loader("saved step times", TIMING.is_at, lambda path, *_: load_timing(path))
