"""Convert a watch into two tables: the samples, and the marks, which name periods of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfnb.recording.recording import WatchRecord
from perfnb.recording.schema import conform
from perfnb.recording.text import TEXT
from perfnb.telemetry.history import WatchMark, throttle_words

Columns = Mapping[str, Mapping[str, NDArray[np.float64]]]


def watch_record(columns: Columns, marks: Sequence[WatchMark], shift_s: float = 0.0) -> WatchRecord:
    """Create a watch's tables.

    Parameters
    ----------
    columns : mapping
        The readings by device and column, as returned by `perfnb.telemetry.watcher.Watcher.columns`.
    marks : sequence of WatchMark
    shift_s : float
        The number of seconds to add to all times.
    """
    parts = [_device_frame(device, own) for device, own in columns.items() if len(own["t_s"])]
    samples = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    if len(samples):
        samples["device"] = pd.Categorical(samples["device"], categories=list(columns))
        samples["mark"] = _mark_at(samples["t_s"].to_numpy(float), marks)
        samples["t_s"] += shift_s
        samples = samples.sort_values("t_s", kind="stable", ignore_index=True)
    table = pd.DataFrame(marks, columns=list(WatchMark._fields))
    table[["start_s", "end_s"]] = table[["start_s", "end_s"]].astype("Float64") + shift_s
    return WatchRecord(conform(samples, "samples"), conform(table, "marks"))


def _device_frame(device: str, columns: Mapping[str, NDArray[np.float64]]) -> pd.DataFrame:
    frame = pd.DataFrame({name: values for name, values in columns.items() if name != "throttle_reasons"})
    for name in ("missed_ticks", "readings"):
        frame[name] = frame[name].astype("int64")
    if "throttle_reasons" in columns:
        words = {bits: ", ".join(throttle_words(int(bits))) for bits in set(columns["throttle_reasons"]) if bits >= 0}
        frame["throttle_reasons"] = pd.Series([words.get(bits) for bits in columns["throttle_reasons"]], dtype=TEXT)
    numbers = [name for name in frame.columns if name not in ("throttle_reasons", "t_s")]
    # Missing readings are NA, regardless of how this version of pandas represents NaN.
    frame[numbers] = frame[numbers].astype("Float64").mask(frame[numbers].isna())
    return frame.assign(device=device)


def _mark_at(times: NDArray[np.float64], marks: Sequence[WatchMark]) -> NDArray[np.object_]:
    """Return the name of the innermost mark at each time."""
    order = np.argsort(times, kind="stable")
    ordered = times[order]
    names = np.full(len(times), None, dtype=object)
    for mark in sorted(marks, key=lambda mark: mark.depth):
        first = np.searchsorted(ordered, mark.start_s, side="left")
        last = len(ordered) if mark.end_s is None else np.searchsorted(ordered, mark.end_s, side="right")
        names[order[first:last]] = mark.name
    return names
