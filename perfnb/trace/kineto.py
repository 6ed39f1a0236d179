"""Chrome traces as torch.profiler (Kineto) writes them, read into columns."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from perfnb.errors import TraceError
from perfnb.trace.chrome_columns import Codes, EventColumns, resolution, whole_number
from perfnb.trace.chrome_json import ChromeJson, odd_time
from perfnb.trace.columns import MISSING, Ints, MemoryColumns, TraceColumns
from perfnb.trace.readers import Reader
from perfnb.trace.trace_file import GZIP, LIMITS, Limits, Progress, blocks_of_bytes, blocks_of_file
from perfnb.trace_names import DEVICE_EVENTS, HOST_EVENTS

__all__ = ["MISSING", "Ints", "Limits", "MemoryColumns", "Progress", "TraceColumns", "decode", "read"]

#: Names of categories in 2021, and their current ones.
_TODAYS_NAME = {
    "Operator": "cpu_op",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Runtime": "cuda_runtime",
}
#: The categories that torch.profiler gives to events with a duration, on any device.
_WRITTEN = {
    *(*HOST_EVENTS, *DEVICE_EVENTS, "collective_comm", "glow_runtime", "hpu_op"),
    *("cuda_event", "cuda_profiler_range", "mtia_runtime", "mtia_ccp_events", "mtia_insight", "mtia_counters"),
    *("mtia_workloadd", "xpu_runtime", "xpu_driver", "xpu_sync", "privateuse1_runtime", "privateuse1_driver"),
}
_MOST_RANKS = 2**31


def read(path: str | Path, limits: Limits = LIMITS, progress: Progress | None = None) -> TraceColumns:
    """Read a trace file, plain or compressed with gzip, whatever its name.

    The text is unpacked and decoded piece by piece, never held whole.

    Parameters
    ----------
    path : str or Path
    limits : Limits
        What the file may ask for before it is refused.
    progress : callable, optional
        Called with the bytes of the file done so far and its size, a few times a second after two seconds.

    Raises
    ------
    TraceError
        If the file cannot be read, is not a trace, comes from a program other than torch.profiler, is incomplete, or
        exceeds a limit; the message names the file.
    """
    with closing(blocks_of_file(Path(path), limits, progress)) as blocks:
        trace = _columns(blocks, str(path), limits)
    if len(trace) and not len(trace.memory) and _WRITTEN.isdisjoint(trace.categories):
        raise _other_program(str(path), trace.categories)
    return trace


def _other_program(source: str, categories: Sequence[str]) -> TraceError:
    found = [ascii(name)[:40] for name in categories if name][:3]
    said = f"categories such as {', '.join(found)}" if found else "no categories"
    return TraceError(
        f"{source} is not a trace of torch.profiler: its events have {said}, none of which torch.profiler writes; give "
        "a file that its export_chrome_trace wrote."
    )


def decode(data: bytes, source: str = "the trace") -> TraceColumns:
    """Decode the JSON of a trace: an object with ``traceEvents``, or a bare list of events.

    Raises
    ------
    TraceError
        If `data` is not such JSON; the message names `source` and, if known, the byte.
    """
    return _columns(blocks_of_bytes(data), source, LIMITS)


def _columns(blocks: Iterable[bytes | memoryview], source: str, limits: Limits) -> TraceColumns:
    collecting = gc.isenabled()
    gc.disable()  # millions of small objects and no cycles: collection would only traverse them
    try:
        text, columns = ChromeJson(blocks, source, limits), EventColumns(source)
        for piece in text.pieces():
            columns.add(piece)
        return _trace(columns, text.facts, source)
    except MemoryError as error:
        raise TraceError(f"{source} was not read: there is not enough memory for it.") from error
    finally:
        if collecting:
            gc.enable()


def _trace(columns: EventColumns, facts: dict[str, Any], source: str) -> TraceColumns:
    timed = columns.timed()
    categories = Codes()
    todays = [categories[_TODAYS_NAME.get(name, name)] for name in columns.categories]
    timed["category"] = np.array(todays, dtype=np.int64)[timed["category"]]
    base = facts.get("base")
    base_ns = 0 if base is None else whole_number(base)
    memory = columns.memory()
    ends = np.append(timed["start_ns"] + timed["duration_ns"], memory.time_ns)
    latest = int(ends.max()) if len(ends) else 0
    if base_ns is None or not -(2**63) <= base_ns + latest < 2**63:
        raise odd_time(source, "its baseTimeNanoseconds", ascii(base)[:40])
    earliest = int(min(timed["start_ns"].min(initial=latest), memory.time_ns.min(initial=latest)))
    if latest - earliest >= 2**63:
        span = f"from {earliest / 1e3:.6g} to {latest / 1e3:.6g} µs"
        raise odd_time(source, "the span of its events", span)
    job = facts.get("distributed")
    devices = facts.get("devices") or facts.get("old_devices")
    return TraceColumns(
        **timed,
        names=list(columns.names),
        categories=list(categories),
        memory=memory,
        shape_texts=list(columns.shapes.codes),
        collective_names=list(columns.collectives.codes),
        group_names=list(columns.groups),
        base_ns=base_ns,
        unit_ns=resolution(timed["start_ns"], timed["duration_ns"]),
        negative_durations=columns.negative_durations,
        devices=[device for device in devices if isinstance(device, dict)] if isinstance(devices, list) else [],
        rank=_count(job, "rank"),
        world_size=_count(job, "world_size"),
        process_names=columns.process_names,
        process_labels=columns.process_labels,
        thread_names=columns.thread_names,
        perfnb=facts.get("perfnb"),
    )


def _count(job: Any, key: str) -> int | None:
    number = whole_number(job.get(key)) if isinstance(job, dict) else None
    return number if number is not None and 0 <= number < _MOST_RANKS else None


def _recognise(path: Path, head: bytes) -> bool:
    """Accept anything that might be JSON in some encoding, empty or damaged: `read` says what is wrong with it."""
    text = head.removeprefix(b"\xef\xbb\xbf").removeprefix(b"\xff\xfe").removeprefix(b"\xfe\xff")
    text = text.replace(b"\0", b"").lstrip(b" \t\r\n")
    return not text or text[:1] in (b"{", b"[") or head.startswith(GZIP)


READER = Reader("traces of torch.profiler (Chrome JSON, plain or gzip)", (".json", ".json.gz"), _recognise, read)
