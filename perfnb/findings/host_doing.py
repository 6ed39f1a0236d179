"""What the host did in some time: calls of the GPU's runtime, operators, Python functions, or nothing on record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfnb.attribution.device_work import DeviceWork, column, is_in, named, step_rows, thread_keys
from perfnb.attribution.interval_sets import IntervalSet, difference, intersection, union
from perfnb.recording.nesting import NONE
from perfnb.recording.text import TEXT
from perfnb.trace_names import CALLS, OPS, PYTHON_CALLS

#: Where the host can be seen, from what says most.
PLACES = {"calls": CALLS, "ops": OPS, "functions": PYTHON_CALLS}
#: Share of the longest from which on an event lies in it, instead of being another.
_SAME = 0.9


@dataclass(frozen=True)
class Doing:
    """What the host did, in nanoseconds.

    Attributes
    ----------
    whole : float
        Length of the time that is looked at.
    by : dict
        `PLACES`: the part in each, outside those before it.
    longest : dict
        The innermost name that takes most of each; empty where there is none.
    """

    whole: float
    by: dict[str, float]
    longest: dict[str, str]

    @property
    def seen(self) -> float:
        """The share of the time of which the trace says what the host did."""
        return sum(self.by.values()) / self.whole if self.whole else 0.0


def doing(events: pd.DataFrame, work: DeviceWork, time: IntervalSet) -> Doing:
    """What the threads that launch work did in the given time."""
    by, longest = dict.fromkeys(PLACES, 0.0), dict.fromkeys(PLACES, "")
    keys = thread_keys(events)
    launch = np.unique(keys[work.call[work.call != NONE]])
    here = np.isin(keys, launch) & ~step_rows(events)
    begin = column(events, "start_ns")
    end = begin + column(events, "duration_ns")
    rest = time
    for place, categories in PLACES.items():
        rows = np.flatnonzero(here & is_in(events, categories))
        overlap = time.within(begin[rows], end[rows])
        rows, overlap = rows[overlap > 0], overlap[overlap > 0]
        if len(rows) == 0:
            continue
        spans = union(begin[rows], end[rows])
        by[place] = float(intersection(rest, spans).length)
        rest = difference(rest, spans)
        lengths = pd.DataFrame({"name": named(events, rows).astype(TEXT), "ns": overlap}).groupby("name")["ns"]
        whole, each = lengths.sum(), lengths.mean()
        longest[place] = str(each[whole >= _SAME * whole.max()].idxmin())
    return Doing(float(time.length), by, longest)
