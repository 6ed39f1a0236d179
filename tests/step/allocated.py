"""The peak of allocator memory in a real step, watched by torch's own profiler."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._pytree import tree_leaves


def measured_peak(step: Callable[[], Any], resident: Iterable[Any]) -> int:
    """Return bytes at the peak of a steady step.

    The allocator reports no end of what was made before the session, so that two steps are watched, of which the second
    counts, and what lives on (`resident`: parameters, buffers, state, inputs) is added.
    """
    step()
    storages = {}
    for tensor in resident:
        if isinstance(tensor, Tensor):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
        with record_function("watched"):
            step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    begin = next(e["ts"] for e in events if e.get("name") == "watched" and e.get("cat") == "user_annotation")
    memory = sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"])
    alive: set[int] = set()
    now = peak = 0
    for event in memory:
        address, size = event["args"]["Addr"], event["args"]["Bytes"]
        if size > 0:
            alive.add(address)
        elif address in alive:
            alive.discard(address)
        else:
            continue
        now += size
        if event["ts"] >= begin:
            peak = max(peak, now)
    return sum(storages.values()) + peak


def state_of(optimizer: Any) -> list[Any]:
    return tree_leaves([list(values.values()) for values in optimizer.state.values()])
