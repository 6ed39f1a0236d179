"""Frames of events for tests of GPU times, which are built by hand in microseconds or read from a public trace."""

from __future__ import annotations

import gzip
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb.trace.kineto import read

FOLDER = Path(os.environ.get("PERFNB_TRACES", Path(__file__).parents[2] / "shared" / "traces"))
#: The names of categories in 2021.
OLD = {
    "Operator": "cpu_op",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Runtime": "cuda_runtime",
}
COLUMNS = (
    *("process", "thread", "device", "stream", "correlation", "external_id", "sequence", "forward_thread"),
    *("wait_stream", "wait_correlation", "rank"),
)
public = pytest.mark.skipif(
    not (FOLDER / "expected.json").is_file(), reason=f"no folder of public traces at {FOLDER}; set PERFNB_TRACES"
)


class Trace:
    """Builds events by hand. Times are in microseconds, and values that are not given are missing."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.last = 0

    def event(self, name: str, begin: float, end: float, category: str = "cpu_op", **rest: Any) -> Trace:
        times = {"start_ns": round(begin * 1000), "duration_ns": round((end - begin) * 1000)}
        base = dict.fromkeys(COLUMNS, -1) | {"thread": 1, "process": 1, "rank": 0, "shapes": None}
        self.rows.append({"name": name, "category": category, **base, **times, **rest})
        return self

    def work(
        self,
        name: str,
        begin: float,
        end: float,
        launch: tuple[float, float] | None = None,
        category: str = "kernel",
        call: str = "cudaLaunchKernel",
        **rest: Any,
    ) -> Trace:
        """Add work on device 0 and stream 7, with a launch call between the given times."""
        self.last += 1
        place = {"device": 0, "stream": 7, "process": 0, "thread": 7, "correlation": self.last}
        if launch is not None:
            thread = rest.pop("launch_thread", 1)
            self.event(call, *launch, "cuda_runtime", correlation=self.last, thread=thread, rank=rest.get("rank", 0))
        return self.event(name, begin, end, category, **place | rest)

    def frame(self) -> pd.DataFrame:
        columns = ("name", "category", "start_ns", "duration_ns", *COLUMNS, "shapes")
        frame = pd.DataFrame(self.rows, columns=list(columns))
        integers = dict.fromkeys(("start_ns", "duration_ns", *COLUMNS), "int64")
        return frame.astype({"name": "category", "category": "category", "shapes": "category"} | integers)


@cache
def public_trace(name: str) -> pd.DataFrame:
    """Return the events in a public trace. Data that is not in the reader's columns is added from the event arguments.

    The same frame is returned each time, because the analysis does not change it.
    """
    path = FOLDER / "kineto" / name
    trace = read(path)
    columns = {key: getattr(trace, key) for key in ("start_ns", "duration_ns", *COLUMNS) if hasattr(trace, key)}
    events = pd.DataFrame(
        {
            "name": pd.Categorical.from_codes(trace.name, categories=pd.Index(trace.names)),
            "category": pd.Categorical(np.array([OLD.get(c, c) for c in trace.categories], object)[trace.category]),
            **columns,
        }
    )
    raw = json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    listed = raw if isinstance(raw, list) else raw["traceEvents"]
    timed = [e for e in listed if e.get("ph") == "X" and e.get("cat") not in ("Trace", "cpu_instant_event")]
    args = [event.get("args") or {} for event in timed]
    if all(float(event["ts"]).is_integer() for event in timed):  # whole microseconds are exact, however large they are
        events["start_ns"] = [int(event["ts"]) * 1000 for event in timed]
    where = {
        "external_id": ("External id", "external id"),
        "wait_stream": ("wait_on_stream",),
        "wait_correlation": ("wait_on_cuda_event_record_corr_id",),
    }
    for column, keys in where.items():
        if column not in events.columns:
            events[column] = [_number(arg, keys) for arg in args]
    return events


def _number(arg: dict[str, Any], keys: tuple[str, ...]) -> int:
    values = (arg.get(key) for key in keys)
    return next((int(value) for value in values if isinstance(value, int) and abs(value) < 2**63), -1)


def expected() -> dict[str, dict[str, Any]]:
    """Return the known facts about each public trace with GPU work, by name."""
    path = FOLDER / "expected.json"
    facts = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return {name.removeprefix("kineto/"): fact for name, fact in facts.items() if "gpu" in fact}
