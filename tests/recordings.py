"""Build recordings by hand, event by event, so that every figure in their tables is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from perfnb.recording.recording import MemoryRecord, Recording
from perfnb.recording.text import TEXT

US = 1000
NODE = "autograd::engine::evaluate_function: "
ENVIRONMENT = {"processor": "made up", "threads": 1, "gpus": [], "debugger_or_tracer": False}


class ByHand:
    """Builds a recording. Times are in microseconds since its start, and the main thread is 1."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.modules: list[dict[str, Any]] = []
        self.spans: list[tuple[int, bool]] = []
        self.changes: list[dict[str, Any]] = []
        self.seen: list[dict[str, Any]] = []
        self.resident: list[tuple[int, int]] = []

    def event(self, name: str, begin: float, end: float, category: str = "cpu_op", **rest: int) -> ByHand:
        columns = ("device", "stream", "correlation", "sequence", "forward_thread", "span")
        row = {"name": name, "category": category, "thread": 1, **dict.fromkeys(columns, -1), **rest}
        self.rows.append(row | {"start_ns": round(begin * US), "duration_ns": round((end - begin) * US)})
        return self

    def step(self, begin: float, end: float) -> ByHand:
        number = sum(row["name"].startswith("pf_step#") for row in self.rows)
        return self.event(f"pf_step#{number}", begin, end)

    def layer(self, name: str, parent: int = -1, compiled: bool = False) -> int:
        depth = 0 if parent == -1 else self.modules[parent]["depth"] + 1
        row = {"name": name, "module": name.title(), "parent": parent, "depth": depth, "compiled": compiled}
        self.modules.append(row | {"parameters": 10, "parameter_bytes": 40})
        return len(self.modules) - 1

    def call(self, layer: int, begin: float, end: float, loss: bool = False, thread: int = 1) -> ByHand:
        self.spans.append((layer, loss))
        return self.event("pf#", begin, end, span=len(self.spans) - 1, thread=thread)

    def op(self, name: str, begin: float, end: float, sequence: int = -1, **rest: int) -> ByHand:
        return self.event(name, begin, end, sequence=sequence, **rest)

    def node(self, name: str, begin: float, end: float, sequence: int, thread: int = 1) -> ByHand:
        """Add a backward node for the forward op with a given number, and inside it the op that does its work."""
        event = {"sequence": sequence, "forward_thread": 1 if sequence != -1 else -1, "thread": thread}
        self.event(NODE + name, begin, end, **event)
        return self.event(name, begin + 1, end - 1, **event)

    def kernel(
        self, name: str, launch: float, begin: float, end: float, thread: int = 1, category: str = "kernel"
    ) -> ByHand:
        """Add work on the device, and the 1 µs call that launches it."""
        number = 1000 + len(self.rows)
        self.event("cudaLaunchKernel", launch, launch + 1, "cuda_runtime", thread=thread, correlation=number)
        return self.event(name, begin, end, category, thread=-1, device=0, stream=7, correlation=number)

    def alloc(
        self, at: float, address: int, size: int, device: str = "cpu", *, allocated: int = -1, reserved: int = -1
    ) -> ByHand:
        """Allocate a block of memory in the main thread, or free it if `size` is negative."""
        change = {"time_ns": round(at * US), "address": address, "bytes": size, "device": device}
        self.changes.append(change | {"allocated": allocated, "reserved": reserved, "row": len(self.rows)})
        return self.event("[memory]", at, at, "memory")

    def block(self, begin: float, end: float | None, address: int, size: int, device: str = "cpu") -> ByHand:
        """Add a block of memory with its lifetime. Without an end, it is never freed."""
        self.alloc(begin, address, size, device)
        return self if end is None else self.alloc(end, address, -size, device)

    def known(
        self, at: float, address: int, size: int, category: str, layer: int = -1, name: str | None = None
    ) -> ByHand:
        """Record that a live object has the given block on the CPU."""
        block = {"time_ns": round(at * US), "address": address, "bytes": size, "device": "cpu", "category": category}
        self.seen.append(block | {"layer": layer, "name": name})
        return self

    def process(self, at: float, size: int) -> ByHand:
        self.resident.append((round(at * US), size))
        return self

    def recording(self, **meta: Any) -> Recording:
        events = pd.DataFrame(self.rows)
        events = events.sample(frac=1, random_state=3)  # events may be in any order
        memory = self._memory(events) if self.changes or self.seen else None
        events = _frame_of_events(events[events["category"] != "memory"])
        modules = pd.DataFrame(self.modules, columns=[*MODULES]).astype(MODULES)
        spans = pd.DataFrame(self.spans, columns=["layer", "loss"]).astype({"layer": np.int64, "loss": bool})
        spans = spans.assign(derived=False).rename_axis("span")
        steps = [row["duration_ns"] / 1e6 for row in self.rows if row["name"].startswith("pf_step#")]
        timed = steps * math.ceil(6 / max(len(steps), 1))  # as many as an interval requires
        passes = pd.DataFrame(
            {
                "pass": pd.Categorical(["timed"] * len(timed) + ["traced"] * len(steps)),
                "wall_ms": timed + steps,
                "data_ms": 0.0,
                "samples": pd.array([None] * (len(timed) + len(steps)), dtype="Int64"),
            }
        )
        options = {"warmup": None, "steps": None, "traced": len(steps), "budget_s": 30.0}
        known = {
            "name": "by hand",
            "options": options,
            "environment": ENVIRONMENT,
            "rank": 0,
            "base_ns": 0,
            "steady": True,
        }
        return Recording(events, passes, modules, spans, known | meta, memory)

    def _memory(self, events: pd.DataFrame) -> MemoryRecord:
        place = pd.Series(np.arange(len(events)), index=events.index)
        changes = pd.DataFrame(self.changes, columns=[*CHANGES]).sort_values("time_ns", kind="stable")
        changes.insert(0, "event", place.reindex(changes["row"]).to_numpy(dtype=np.int64))
        return MemoryRecord(
            _frame_of_events(events),
            changes.drop(columns="row").astype({"device": "category"}).reset_index(drop=True),
            pd.DataFrame(self.seen, columns=[*SEEN]).astype(SEEN),
            pd.DataFrame(self.resident, columns=["time_ns", "bytes"]).astype("int64"),
        )


def _frame_of_events(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.reset_index(drop=True).astype({"name": "category", "category": "category"})


CHANGES = ("time_ns", "address", "bytes", "device", "allocated", "reserved", "row")
SEEN = {
    "time_ns": "int64",
    "address": "int64",
    "bytes": "int64",
    "device": "category",
    "category": "category",
    "layer": "int64",
    "name": "object",
}
MODULES = {
    "name": TEXT,
    "module": TEXT,
    "parent": "int64",
    "depth": "int64",
    "parameters": "int64",
    "parameter_bytes": "int64",
    "compiled": "bool",
}
