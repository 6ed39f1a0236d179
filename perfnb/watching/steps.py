"""Assign readings to the passes and phases of a profile's steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfnb.attribution.attribution import Attribution
from perfnb.attribution.blocks import Kind
from perfnb.attribution.tables import phase_stretches
from perfnb.recording.recording import Recording
from perfnb.recording.schema import METRICS, PHASES
from perfnb.recording.text import TEXT
from perfnb.watching.charts import without_limits
from perfnb.watching.summary import StepsWatched

#: The minimum number of readings in a phase for computing a mean.
FEWEST_READINGS = 5
#: If a phase is estimated, readings closer to its boundaries than this share of the step are ignored.
_MARGIN = 0.05
#: Intervals shorter than this share of a step are not estimated.
_SHORTEST = 0.01
#: The metrics that the driver averages, with the maximum number of seconds over which it averages them.
_AVERAGED_S = {"busy_percent": 1.0, "power_w": 1.0}

Floats = NDArray[np.float64]


class _Stretch(NamedTuple):
    phase: str
    start_s: float
    end_s: float
    placed: bool
    margin_s: float


def steps_watched(recording: Recording, attribution: Attribution | None) -> StepsWatched | None:
    """Return a recording's passes and phases on the clock of its samples, or ``None`` if it has no samples.

    The phases of traced steps come from the trace. Timed steps run without instruments, so only their wait for data was
    measured, and their other phases are estimated from the traced step with the median duration.
    """
    if recording.watch is None:
        return None
    samples, stretches = recording.watch.samples, list[_Stretch]()
    samples = samples[~samples["device"].isin(without_limits(recording.meta.get("watch", {}).get("devices", {})))]
    if attribution is not None and "start_s" in recording.steps:
        stretches = _stretches(recording, attribution)
    frame = pd.DataFrame(stretches, columns=list(_Stretch._fields))
    return StepsWatched(_passes(recording.steps), frame.drop(columns="margin_s"), _by_phase(samples, stretches))


def _passes(steps: pd.DataFrame) -> pd.DataFrame:
    if "start_s" not in steps or steps.empty:
        return pd.DataFrame(columns=["pass", "start_s", "end_s", "steps"])
    names = steps["pass"].astype(TEXT)
    runs = (names != names.shift()).cumsum().to_numpy()
    ends = steps["start_s"] + steps["wall_ms"] / 1e3
    rows = steps.assign(name=names, end_s=ends).groupby(runs)
    frame = rows.agg(name=("name", "first"), start_s=("start_s", "min"), end_s=("end_s", "max"), steps=("name", "size"))
    return frame.rename(columns={"name": "pass"}).reset_index(drop=True)


def _stretches(recording: Recording, attribution: Attribution) -> list[_Stretch]:
    blocks = attribution.host.blocks
    spans = blocks[blocks["kind"] == Kind.STEP].sort_values("start")
    steps = recording.steps
    traced = steps[steps["pass"] == "traced"].iloc[: len(spans)]
    if spans.empty or len(traced) != len(spans):
        return []
    first = int(spans["start"].iloc[0])
    # The trace has its own clock, whose offset from the clock of the samples is computed from the steps.
    shift = float(np.median(traced["start_s"].to_numpy(float) - (spans["start"].to_numpy(np.int64) - first) / 1e9))
    seen = [
        [
            _Stretch(phase, (start - first) / 1e9 + shift, (stop - first) / 1e9 + shift, False, 0.0)
            for phase, start, stop in phase_stretches(attribution, int(begin), int(end))
        ]
        for begin, end in zip(spans["start"], spans["end"], strict=True)
    ]
    template = seen[int(np.argsort((spans["end"] - spans["start"]).to_numpy())[len(spans) // 2])]
    timed = steps.loc[steps["pass"] == "timed", ["start_s", "wall_ms", "data_ms"]].fillna(0.0).to_numpy(float)
    placed = [_placed(template, start, wall / 1e3, data / 1e3) for start, wall, data in timed.tolist()]
    return sorted(chain(*placed, *seen), key=lambda stretch: stretch.start_s)


def _placed(template: Sequence[_Stretch], start: float, wall: float, data: float) -> list[_Stretch]:
    """Return the phases of a timed step: its wait for data, and the other phases with the template's proportions."""
    others = [stretch for stretch in template if stretch.phase != "data"]
    whole = sum(stretch.end_s - stretch.start_s for stretch in others)
    waited = min(data, wall) if any(stretch.phase == "data" for stretch in template) else 0.0
    result = [_Stretch("data", start, start + waited, False, 0.0)] if waited else []
    at = start + waited
    for stretch in others:
        length = (stretch.end_s - stretch.start_s) / whole * (wall - waited) if whole else 0.0
        if length >= _SHORTEST * wall:
            result.append(_Stretch(stretch.phase, at, at + length, True, _MARGIN * wall))
        at += length
    return result


def _by_phase(samples: pd.DataFrame, stretches: Sequence[_Stretch]) -> pd.DataFrame:
    starts = np.array([stretch.start_s + stretch.margin_s for stretch in stretches])
    ends = np.array([stretch.end_s - stretch.margin_s for stretch in stretches])
    phase = np.array([stretch.phase for stretch in stretches], dtype=object)
    names = [name for name in PHASES if name in phase]
    rows = []
    for device, own in samples.groupby("device", observed=True, sort=False):
        times = own["t_s"].to_numpy(float)
        windows = own["window_s"].to_numpy(float, na_value=0.0)
        for metric in METRICS:
            values = own[metric].to_numpy(float, na_value=np.nan)
            if metric == "energy_j" or np.isnan(values).all():
                continue
            place = _place(times, _window(metric, windows), starts, ends)
            for name in names:
                inside = (place >= 0) & (phase[place] == name) & ~np.isnan(values)
                count = int(inside.sum())
                mean = float(values[inside].mean()) if count >= FEWEST_READINGS else None
                rows.append((name, str(device), metric, mean, count))
    frame = pd.DataFrame(rows, columns=["phase", "device", "metric", "mean", "readings"])
    return frame.astype({"mean": "Float64", "readings": "Int64"}).set_index(["phase", "device", "metric"])


def _window(metric: str, windows: Floats) -> Floats:
    """Return how much time before each reading its value covers."""
    if metric in _AVERAGED_S:
        return np.full_like(windows, _AVERAGED_S[metric])
    return windows if metric.endswith(("_per_s", "_percent")) else np.zeros_like(windows)


def _place(times: Floats, windows: Floats, starts: Floats, ends: Floats) -> NDArray[np.int64]:
    """Return the index of the interval that contains the whole window of each reading, or -1 if there is none."""
    if not len(starts):
        return np.full(len(times), -1)
    place = np.searchsorted(starts, times, side="right") - 1
    holds = (place >= 0) & (times <= ends[place]) & (times - windows >= starts[place])
    return np.where(holds, place, -1)
