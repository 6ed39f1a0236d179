"""A small watch over many steps, made without perfnb's own: torch's profiler and the memory events of its trace."""

from __future__ import annotations

import gc
import json
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from perfnb.capture.footprint import Footprint


@dataclass
class Watched:
    """Columns of the allocations, and the process's resident bytes after each of as many other steps."""

    allocations: dict[str, list[Any]]
    process_bytes: list[int]


def watch(step: Callable[[], Any], folder: Path, *, steps: int, warmup: int) -> Watched:
    """Run `step` without a profiler and read the process; then with one and read its memory events."""
    for _ in range(warmup):
        step()
    process_bytes = []
    with Footprint() as footprint:
        for _ in range(steps):
            step()
            process_bytes.append(footprint.read())
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as prof:
        for place in range(steps):
            with record_function(f"step#{place}"):
                step()
        with record_function("garbage"):
            gc.collect()
    path = folder / "trace.json"
    prof.export_chrome_trace(str(path))
    return Watched(_columns(json.loads(path.read_text("utf-8"))["traceEvents"], steps), process_bytes)


def _columns(events: list[dict[str, Any]], steps: int) -> dict[str, list[Any]]:
    begins = sorted(
        (event["ts"], steps if event["name"] == "garbage" else int(event["name"][5:]))
        for event in events
        if event.get("cat") == "user_annotation" and (event["name"] == "garbage" or event["name"].startswith("step#"))
    )
    starts = [begin for begin, _ in begins]
    ops = sorted((e["ts"], e["ts"] + e["dur"], e["name"]) for e in events if e.get("cat") == "cpu_op")
    begun = [begin for begin, _, _ in ops]
    rows: list[dict[str, Any]] = []
    alive: dict[int, dict[str, Any]] = {}
    memory = [event for event in events if event.get("name") == "[memory]"]
    for event in sorted(memory, key=lambda event: event["ts"]):
        at, size, address = event["ts"], int(event["args"]["Bytes"]), int(event["args"]["Addr"])
        place = bisect_right(starts, at) - 1
        if place < 0:
            continue
        number = begins[place][1]
        if size > 0:
            first = bisect_right(begun, at)
            # No op of these steps holds fifty others: the innermost around is among the last that began.
            around = [name for _, end, name in ops[max(0, first - 50) : first] if at <= end]
            alive[address] = {
                "bytes": size, "device": "cpu", "layer": None, "phase": "other",
                "op": around[-1] if around else None, "made_in_step": number, "freed_in_step": None,
            }  # fmt: skip
            rows.append(alive[address])
        elif address in alive:
            alive.pop(address)["freed_in_step"] = number
        else:  # made before the first step
            rows.append({"bytes": -size, "device": "cpu", "layer": None, "phase": None, "op": None,
                         "made_in_step": None, "freed_in_step": number})  # fmt: skip
    names = ("bytes", "device", "layer", "phase", "op", "made_in_step", "freed_in_step")
    return {name: [row[name] for row in rows] for name in names}


def small_model(width: int = 64) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 8))
    return model, torch.optim.Adam(model.parameters())
