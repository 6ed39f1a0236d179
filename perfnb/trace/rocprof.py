"""Read rocprofv3 JSON results (``--output-format json``): the kernels, copies and calls of each process on AMD GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import field

from perfnb.errors import TraceError
from perfnb.trace.columns import MISSING, TraceColumns
from perfnb.trace.rows import FAR_NS, Rows
from perfnb.trace.trace_file import Limits, OnProgress, Reader, cut, refuse_many_values, too_deep, whole_file
from perfnb.trace_names import CALLS, COPIES, KERNELS, RANGES

_START = re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"\s*:\s*\[')
_GPU = 2
_WORDS = {"HOST_TO_DEVICE": "HtoD", "DEVICE_TO_HOST": "DtoH", "DEVICE_TO_DEVICE": "DtoD", "HOST_TO_HOST": "HtoH"}
#: The kinds of calls, and whether they launch work or wait. All other kinds are ranges that the program named.
_CALLS = ("hip_api", "hsa_api", "rccl_api")


class _Handle(msgspec.Struct, frozen=True, gc=False):
    handle: int = MISSING


class _Correlation(msgspec.Struct, frozen=True, gc=False):
    internal: int = MISSING


#: The shared default value for fields that are missing in most records.
_NOTHING, _ALONE = _Handle(), _Correlation()


class _Dispatch(msgspec.Struct, frozen=True, gc=False):
    agent_id: _Handle = _NOTHING
    queue_id: _Handle = _NOTHING
    kernel_id: int = MISSING


_NO_DISPATCH = _Dispatch()


class _Record(msgspec.Struct, gc=False):
    start_timestamp: int = MISSING
    end_timestamp: int = MISSING
    thread_id: int = MISSING
    kind: int = MISSING
    operation: int = MISSING
    correlation_id: _Correlation = _ALONE
    stream_id: _Handle | None = None
    dispatch_info: _Dispatch = _NO_DISPATCH
    src_agent_id: _Handle = _NOTHING
    dst_agent_id: _Handle = _NOTHING
    bytes: int = MISSING


class _Records(msgspec.Struct):
    kernel_dispatch: list[_Record] = field(default_factory=list)
    memory_copy: list[_Record] = field(default_factory=list)
    hip_api: list[_Record] = field(default_factory=list)
    hsa_api: list[_Record] = field(default_factory=list)
    rccl_api: list[_Record] = field(default_factory=list)
    marker_api: list[_Record] = field(default_factory=list)


class _Agent(msgspec.Struct):
    id: _Handle = _NOTHING
    type: int = 0
    logical_node_type_id: int = MISSING
    product_name: str = ""
    name: str = ""
    cu_count: int = 0


class _Symbol(msgspec.Struct):
    kernel_id: int = MISSING
    formatted_kernel_name: str = ""
    demangled_kernel_name: str = ""
    kernel_name: str = ""


class _Operations(msgspec.Struct):
    operations: list[str] = field(default_factory=list)


class _Message(msgspec.Struct):
    key: int = MISSING
    value: str = ""


class _Strings(msgspec.Struct):
    buffer_records: list[_Operations] = field(default_factory=list)
    marker_api: list[_Message] = field(default_factory=list)


class _Metadata(msgspec.Struct):
    """A process. Its command, configuration and host are not read."""

    pid: int = MISSING


class _Process(msgspec.Struct):
    metadata: _Metadata = field(default_factory=_Metadata)
    agents: list[_Agent] = field(default_factory=list)
    kernel_symbols: list[_Symbol] = field(default_factory=list)
    strings: _Strings = field(default_factory=_Strings)
    buffer_records: _Records = field(default_factory=_Records)


class _RocprofResult(msgspec.Struct):
    processes: list[_Process] = field(name="rocprofiler-sdk-tool")


_RESULT = msgspec.json.Decoder(_RocprofResult)


def read(path: Path, limits: Limits, progress: OnProgress | None = None) -> TraceColumns:
    """Read a file. This raises the same errors as `perfnb.trace.kineto.read`."""
    limits = limits.whole()  # a file with 44,000 kernels has 37 MB
    text = whole_file(path, limits, progress)
    refuse_many_values(text, str(path), limits)
    rows = Rows(str(path), limits)
    try:
        processes = _RESULT.decode(text).processes
    except RecursionError as error:
        raise too_deep(str(path)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{path} is not a rocprofv3 result that perfnb can read: {error}.") from error
    for process in processes:
        _add(rows, process)
    if not any(process.buffer_records.hip_api or process.buffer_records.hsa_api for process in processes):
        rows.caveats.append("No HIP or HSA calls were recorded (--hip-trace), so launches and host time are unknown.")
    return rows.columns()


def _add(rows: Rows, process: _Process) -> None:
    """Add a process's records."""
    records, pid = process.buffer_records, process.metadata.pid
    numbers = _number_gpus(rows, process.agents)
    names = {
        one.kernel_id: cut(one.formatted_kernel_name or one.demangled_kernel_name or one.kernel_name)
        for one in process.kernel_symbols
    }
    for record in records.kernel_dispatch:
        info = record.dispatch_info
        stream = record.stream_id.handle if record.stream_id is not None else info.queue_id.handle
        place = {"device": numbers.get(info.agent_id.handle, MISSING), "stream": stream}
        name = names.get(info.kernel_id) or f"kernel {info.kernel_id}"
        _record(rows, record, name, KERNELS[0], pid, **place)
    operations = [[cut(word) for word in kind.operations] for kind in process.strings.buffer_records]
    for record in records.memory_copy:
        agents = [numbers[one] for one in (record.dst_agent_id.handle, record.src_agent_id.handle) if one in numbers]
        direction = _operation(operations, record).removeprefix("MEMORY_COPY_")
        stream = record.stream_id.handle if record.stream_id is not None else MISSING
        place = {"device": agents[0] if agents else MISSING, "stream": stream, "bytes": record.bytes}
        _record(rows, record, f"Memcpy {_WORDS.get(direction, direction)}", COPIES[0], pid, **place)
    for kind in _CALLS:
        for record in getattr(records, kind):
            _record(rows, record, _operation(operations, record), CALLS[0], pid)
    said = {one.key: cut(one.value) for one in process.strings.marker_api}
    for record in records.marker_api:
        name = said.get(record.correlation_id.internal) or _operation(operations, record)
        _record(rows, record, name, RANGES[0], pid, correlation=MISSING)


def _number_gpus(rows: Rows, agents: list[_Agent]) -> Mapping[int, int]:
    """Number the GPUs by their handles. These are HIP's numbers if no GPUs are hidden from the process."""
    numbers: dict[int, int] = {}
    for agent in agents:
        if agent.type == _GPU:
            number = agent.logical_node_type_id if agent.logical_node_type_id >= 0 else len(numbers)
            numbers[agent.id.handle] = number
            facts: dict[str, Any] = {"name": cut(agent.product_name or agent.name)}
            if agent.cu_count > 0:
                facts["numSms"] = agent.cu_count
            rows.devices.setdefault(number, facts)
    return numbers


def _operation(operations: list[list[str]], record: _Record) -> str:
    """Return a record's operation."""
    if 0 <= record.kind < len(operations):
        words = operations[record.kind]
        if 0 <= record.operation < len(words):
            return words[record.operation]
    return f"operation {record.operation}"


def _record(rows: Rows, record: _Record, name: str, category: str, pid: int, **place: int) -> None:
    start, end = record.start_timestamp, record.end_timestamp
    if not 0 <= start <= end < FAR_NS:
        raise TraceError(
            f"{rows.source} is not a rocprofv3 result that perfnb can read: {ascii(name)[:60]} lasts from {start} "
            f"to {end} ns; record it again."
        )
    place.setdefault("correlation", record.correlation_id.internal)
    rows.add(name, category, start, end - start, pid, record.thread_id, **place)


def _recognise(path: Path, head: bytes) -> bool:
    return _START.match(head.removeprefix(b"\xef\xbb\xbf")) is not None


READER = Reader(
    ("_results.json", "_results.json.gz"),
    _recognise,
    read,
    ("rocprofv3 does not record ops or layers, so kernels are not assigned to any.",),
)
