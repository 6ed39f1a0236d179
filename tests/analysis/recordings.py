"""Recordings built by hand, event by event, so that every figure of their tables is known beforehand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from perfnb.frames.recording import Recording

US = 1000
NODE = "autograd::engine::evaluate_function: "
ENVIRONMENT = {"processor": "made up", "threads": 1, "gpus": [], "debugger_or_tracer": False}


class ByHand:
    """A recording in the making; times are in microseconds from its begin, the main thread is 1."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.modules: list[dict[str, Any]] = []
        self.spans: list[tuple[int, bool]] = []

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
        """A backward node for the forward op of that number, with the op inside that does its work."""
        event = {"sequence": sequence, "forward_thread": 1 if sequence != -1 else -1, "thread": thread}
        self.event(NODE + name, begin, end, **event)
        return self.event(name, begin + 1, end - 1, **event)

    def kernel(
        self, name: str, launch: float, begin: float, end: float, thread: int = 1, category: str = "kernel"
    ) -> ByHand:
        """Work on the device, and the call of 1 µs that launches it."""
        number = 1000 + len(self.rows)
        self.event("cudaLaunchKernel", launch, launch + 1, "cuda_runtime", thread=thread, correlation=number)
        return self.event(name, begin, end, category, thread=-1, device=0, stream=7, correlation=number)

    def recording(self, **meta: Any) -> Recording:
        events = pd.DataFrame(self.rows)
        events = events.sample(frac=1, random_state=3, ignore_index=True)  # no order is promised
        for name in ("name", "category"):
            events[name] = pd.Categorical(events[name])
        modules = pd.DataFrame(self.modules, columns=[*MODULES]).astype(MODULES)
        spans = pd.DataFrame(self.spans, columns=["layer", "loss"]).astype({"layer": np.int64, "loss": bool})
        spans.index = spans.index.rename("span")
        steps = [row["duration_ns"] / 1e6 for row in self.rows if row["name"].startswith("pf_step#")]
        passes = pd.DataFrame(
            {
                "pass": pd.Categorical(["timed"] * len(steps) + ["traced"] * len(steps)),
                "wall_ms": steps * 2,
                "data_ms": 0.0,
                "samples": pd.array([None] * 2 * len(steps), dtype="Int64"),
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
        return Recording(events, passes, modules, spans, known | meta)


MODULES = {
    "name": "str",
    "module": "str",
    "parent": "int64",
    "depth": "int64",
    "parameters": "int64",
    "parameter_bytes": "int64",
    "compiled": "bool",
}
