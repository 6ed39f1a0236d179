"""How launches kept up with the GPU, in a few figures, and the length of the queue in pieces of time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from perfnb.recording.labels import found
from perfnb.recording.nesting import Ints

#: Pieces of time in which the length of the queue is told.
QUEUE_PIECES = 240
_COPY = re.compile("Memcpy")


@dataclass(frozen=True)
class LaunchFacts:
    """How work came to the GPUs; what the trace does not tell is ``None``.

    Attributes
    ----------
    launched, known : float
        Kernels, copies and fills per step, and how many of them have their launch in the trace.
    call_us, call_us_95, delay_us, delay_us_95 : float or None
        Median and 95th percentile: of the time in a launching call, but for copies whose call waited until they were
        done; and from its begin to that of the work.
    short_share : float or None
        Share of kernels that ran for less time than their launch took.
    longest_queue : int or None
        The most work of a device that had been launched and had not begun.
    empty_share : float or None
        Share of the devices' time, from their first work to their last, in which no launched work was left to begin.
    """

    launched: float
    known: float
    call_us: float | None
    call_us_95: float | None
    delay_us: float | None
    delay_us_95: float | None
    short_share: float | None
    longest_queue: int | None
    empty_share: float | None


@dataclass(frozen=True)
class QueueChart:
    """The length of each device's queue over time.

    Attributes
    ----------
    start_ms, piece_ms : float
        Begin, from that of the first step, and length of a piece of time.
    mean, longest : mapping of int or None to ndarray
        By device the queue in each piece, its mean over the piece's time and the longest; a device without a number is
        ``None``.
    """

    start_ms: float
    piece_ms: float
    mean: dict[int | None, npt.NDArray[np.float64]]
    longest: dict[int | None, Ints]


def launch_facts(rows: pd.DataFrame, queue: pd.DataFrame, spans: pd.DataFrame, steps: int) -> LaunchFacts:
    """Put the launches of some steps into figures.

    Parameters
    ----------
    rows : DataFrame
        As `perfnb.gpu.launches.launches` gives them.
    queue, spans : DataFrame
        The frame ``queue``, and ``device``, ``start_ns`` and ``end_ns`` of each device's first and last work.
    steps : int
    """
    known = rows[rows["call_ns"].notna()]
    # A call that launched several pieces of work counts once; a copy whose call returned when it was done is waiting.
    waited = found(known["call"], _COPY.search)
    waited &= (known["call_ns"] >= known["delay_ns"] + known["duration_ns"]).fillna(False).to_numpy(dtype=bool)
    launching = known[~waited]
    calls, weight = _floats(launching["call_ns"]) / 1e3, 1 / _floats(launching["shared"])
    delays = np.sort(_floats(rows["delay_ns"].dropna()) / 1e3)
    short = _floats(rows["short"].dropna())
    once = np.ones(len(delays))
    longest, empty = _of_queue(queue, spans)
    return LaunchFacts(
        launched=len(rows) / max(steps, 1),
        known=len(known) / max(steps, 1),
        call_us=_quantile(calls, weight, 0.5),
        call_us_95=_quantile(calls, weight, 0.95),
        delay_us=_quantile(delays, once, 0.5),
        delay_us_95=_quantile(delays, once, 0.95),
        short_share=float(short.mean()) if len(short) else None,
        longest_queue=longest,
        empty_share=empty,
    )


def queue_chart(queue: pd.DataFrame, spans: pd.DataFrame) -> QueueChart | None:
    """The queue in each of `QUEUE_PIECES` pieces of time; ``None`` where no launch is known."""
    if not len(queue):
        return None
    begin = min(int(queue["start_ns"].min()), int(spans["start_ns"].min()))
    end = max(int(spans["end_ns"].max()), begin + 1)
    edges = np.linspace(begin, end, QUEUE_PIECES + 1)
    longest: dict[int | None, Ints] = {}
    mean: dict[int | None, npt.NDArray[np.float64]] = {}
    for device, time, length in _queues(queue, spans):
        # A piece begins with the length that the one before it left.
        first = np.searchsorted(time, edges[:-1], side="right")
        last = np.searchsorted(time, edges[1:], side="left")
        known = np.concatenate(([0], length))
        longest[device] = np.array(
            [known[a : max(b, a) + 1].max() for a, b in zip(first.tolist(), last.tolist(), strict=True)], dtype=np.int64
        )
        # The length times the time that it lasted, added up until each instant; at the last one nothing is left.
        filled = np.concatenate(([0.0], np.cumsum(length[:-1] * np.diff(time)))) if len(time) else np.zeros(1)
        until = np.interp(edges, time, filled) if len(time) else np.zeros(len(edges))
        mean[device] = np.diff(until) / np.diff(edges)
    return QueueChart(begin / 1e6, (end - begin) / 1e6 / QUEUE_PIECES, mean, longest)


def _queues(queue: pd.DataFrame, spans: pd.DataFrame) -> Iterator[tuple[int | None, Ints, Ints]]:
    """Of each device the instants of changes, and from each on the length of all its queues together."""
    change = queue["length"] - queue.groupby(["rank", "device", "stream"], dropna=False)["length"].shift(fill_value=0)
    for device in spans["device"]:
        number = None if pd.isna(device) else int(device)
        mine = queue["device"].isna() if number is None else (queue["device"] == number).fillna(False)
        sums = change[mine].groupby(queue["start_ns"][mine]).sum().sort_index().cumsum()
        yield number, sums.index.to_numpy(dtype=np.int64), sums.to_numpy(dtype=np.int64)


def _of_queue(queue: pd.DataFrame, spans: pd.DataFrame) -> tuple[int | None, float | None]:
    """The longest queue, and the share of the time in which there was none."""
    if not len(queue):
        return None, None
    longest = filled = 0
    for (_, time, length), begin, end in zip(_queues(queue, spans), spans["start_ns"], spans["end_ns"], strict=True):
        longest = max(longest, int(length.max(initial=0)))
        inside = np.clip(np.append(time, end), begin, end)
        filled += int(np.diff(inside)[length > 0].sum())
    whole = int((spans["end_ns"] - spans["start_ns"]).sum())
    return longest, 1 - filled / whole if whole else None


def _quantile(values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], share: float) -> float | None:
    """The least value that at least this share of the weight lies at or below."""
    if not len(values):
        return None
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    place = int(np.searchsorted(reached, share * reached[-1] - 1e-9))  # sums of parts of one are not exact
    return float(values[order][min(place, len(values) - 1)])


def _floats(values: pd.Series) -> npt.NDArray[np.float64]:
    return np.asarray(values.to_numpy(dtype=float))
