"""Snapshots of the CUDA allocator made by hand, with truths that are known."""

from __future__ import annotations

import pickle
from typing import Any

MIB = 1 << 20
HOSTILE = '<script>alert("$x^2$")</script>\n\x1b[31m\u202e'
BASE_US = 1_700_000_000_000_000


def frame(filename: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": filename, "line": line, "name": name}


#: Innermost first, as torch records them: the allocator, operators, the library, the user's code.
STACK = [
    frame("CUDACachingAllocator.cpp", 0, "c10::cuda::CUDACachingAllocator::malloc(void**)"),
    frame("??", 0, "at::_ops::empty_memory_format::redispatch(c10::DispatchKeySet)"),
    frame("??", 0, "at::_ops::add_Tensor::call(at::Tensor const&)"),
    frame("/x/lib/python3.12/site-packages/torch/nn/modules/linear.py", 125, "forward"),
    frame("??", 0, "at::_ops::mm::call(at::Tensor const&)"),
    frame("/code/my/train.py", 42, "forward"),
    frame("/code/my/train.py", 99, "<module>"),
]


def block(address: int, size: int, state: str = "active_allocated", requested: int | None = None, **more: Any) -> dict:
    asked = size if requested is None else requested
    return {"address": address, "size": size, "requested_size": asked, "state": state, "frames": [], **more}


def segment(address: int, blocks: list[dict], device: int = 0, kind: str = "large") -> dict[str, Any]:
    by_state = {state: sum(b["size"] for b in blocks if b["state"] == state) for state in ("active_allocated",)}
    return {
        "device": device,
        "address": address,
        "total_size": sum(b["size"] for b in blocks),
        "allocated_size": by_state["active_allocated"],
        "active_size": sum(b["size"] for b in blocks if b["state"] != "inactive"),
        "stream": 0,
        "segment_type": kind,
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": blocks,
    }


def entry(action: str, address: int, size: int, at_us: int, frames: list | None = None) -> dict[str, Any]:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": BASE_US + at_us,
        "frames": STACK if frames is None else frames,
    }


def snapshot(segments: list[dict], *traces: list[dict], **more: Any) -> dict[str, Any]:
    return {
        "segments": segments,
        "device_traces": list(traces),
        "allocator_settings": {"expandable_segments": False, "max_split_size": -1, "roundup": {"1": 0}},
        **more,
    }


def small() -> dict[str, Any]:
    """Return a segment of 4 MiB: 1 MiB is kept, 1 MiB older than the history was freed in it, 0.5 MiB came and went."""
    first = 0x7F0000000000
    blocks = [
        block(first, MIB, requested=MIB - 100, frames=STACK),
        block(first + MIB, 3 * MIB, "inactive", requested=0),
    ]
    trace = [
        entry("segment_alloc", first, 4 * MIB, 0),
        entry("alloc", first, MIB - 100, 10),
        entry("free_requested", first + 2 * MIB, MIB, 20),
        entry("free_completed", first + 2 * MIB, MIB, 20),
        entry("alloc", first + MIB, MIB // 2, 30),
        entry("free_requested", first + MIB, MIB // 2, 50),
        entry("free_completed", first + MIB, MIB // 2, 55),
    ]
    return snapshot([segment(first, blocks)], trace)


def two_devices() -> dict[str, Any]:
    """3 MiB of 8 MiB on one device, with a history; 5 MiB of 5 MiB on another, without."""
    address = 0x7F0000000000
    first = segment(address, [block(address, 3 * MIB, frames=STACK), block(0, 5 * MIB, "inactive")])
    second = segment(address, [block(address, 5 * MIB, requested=4 * MIB)], device=1)
    trace = [entry("segment_alloc", address, 8 * MIB, 0), entry("alloc", address, 3 * MIB, 1500)]
    return snapshot([first, second], [*trace, entry("oom", 0, 9 * MIB, 2500)])


def strange() -> dict[str, Any]:
    """Return every name that a stranger could choose, chosen."""
    address = 0x7F0000000000
    hostile = [frame("??", 0, f"at::_ops::{HOSTILE}::"), frame(f"{HOSTILE}.py", 3, HOSTILE)]
    blocks = [block(address, MIB, frames=hostile), block(address + MIB, MIB, HOSTILE, frames=hostile)]
    return snapshot([segment(address, blocks, kind=HOSTILE)], [entry(HOSTILE, address, 1, 0, hostile)])


def dumped(data: Any, protocol: int = 4) -> bytes:
    return pickle.dumps(data, protocol=protocol)
