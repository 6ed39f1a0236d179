"""The result of a trace reader: columns of numbers, and the texts to which their codes refer."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

#: In an integer column, a value that the event does not have.
MISSING = -1

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MemoryColumns:
    """A trace's allocations and frees (``[memory]``), column by column, in chronological order.

    Attributes
    ----------
    time_ns, process, thread : ndarray of int64
        The time and place, with the same numbers as in `TraceColumns`.
    address, bytes : ndarray of int64
        The block's address and size. `bytes` is negative for a free.
    device_type, device : ndarray of int64
        torch's number for the kind of device (0 is the CPU, 1 CUDA), and the number of the device.
    allocated, reserved : ndarray of int64
        The allocator's totals in bytes after the event. For the CPU, they start from 0 at the beginning of the session,
        and no memory is reserved.
    """

    time_ns: Ints
    process: Ints
    thread: Ints
    address: Ints
    bytes: Ints
    device_type: Ints
    device: Ints
    allocated: Ints
    reserved: Ints

    def __len__(self) -> int:
        return len(self.time_ns)


def no_memory() -> MemoryColumns:
    """Return the columns for a trace that does not record memory."""
    return MemoryColumns(*(np.array([], dtype=np.int64) for _ in fields(MemoryColumns)))


@dataclass(frozen=True)
class TraceColumns:
    """A trace's complete events (``ph: X``), column by column, in file order.

    Every column is an array of int64, which contains `MISSING` where an event does not have a value.

    Attributes
    ----------
    names, categories : list of str
        The labels of the codes. Categories have their current names, even in a trace from 2021.
    name, category : ndarray of int64
        Codes.
    start_ns, duration_ns : ndarray of int64
        Nanoseconds. `start_ns` is relative to `base_ns`. No duration is negative (see `negative_durations`).
    thread, process : ndarray of int64
        Names, and numbers that exceed int64, are numbered from -2 downwards, in the same way in both columns.
    device, stream, correlation, sequence, forward_thread : ndarray of int64
        From the event's arguments.
    external_id : ndarray of int64
        The number of the operator that the event belongs to. Older traces call it ``external id``.
    python_id, python_parent : ndarray of int64
        The id of a Python call, and the id of the call around it.
    shapes, collective, group : ndarray of int64
        Codes into `shape_texts`, `collective_names` and `group_names`.
    wait_stream, wait_correlation : ndarray of int64
        The target of a synchronisation: the stream, and the correlation of the call that recorded the event.
    bytes : ndarray of int64
        The number of bytes that a copy or fill on a device moves.
    elements, dtype : ndarray of int64
        For a collective's message, the number of elements in its largest argument, and a code into `dtype_names`.
    module : ndarray of int64
        The annotation of work in a CUDA graph, as a code into `module_names`.
    memory : MemoryColumns
        Allocations and frees, if the profiler recorded them.
    shape_texts : list of str
        The shapes of an operator's inputs, such as ``[[8, 16], [16, 4]]``.
    collective_names, group_names : list of str
        Names of collectives, such as ``allreduce``, and the name and ranks of process groups, such as ``0 [0, 1]``.
    dtype_names : list of str
        torch's names, such as ``float32``.
    module_names : list of str
        Paths of modules, such as ``layers.0.attention``, or other words.
    base_ns : int
        The number to add to `start_ns` to get nanoseconds since 1970.
    unit_ns : int
        The resolution of the file's times in ns: 1, 1000 if all are whole microseconds, 250 if they went through
        float64.
    negative_durations : int
        The number of events that, according to the file, end before they start. Their duration is set to 0.
    devices : list of dict
        The GPUs, as described in the trace.
    rank, world_size : int or None
        From the trace's description of the distributed job.
    process_names, process_labels : dict of int to str
        By number in `process`.
    thread_names : dict of (int, int) to str
        By numbers in `process` and `thread`.
    perfnb : object
        perfnb's own data next to the events, unchanged.
    caveats : list of str
        Notes on data that is missing from this file, in addition to data that its format cannot record.
    of_torch : bool
        Whether torch.profiler wrote the file, although the reader is one for other traces.
    """

    names: list[str]
    categories: list[str]
    name: Ints
    category: Ints
    start_ns: Ints
    duration_ns: Ints
    thread: Ints
    device: Ints
    stream: Ints
    correlation: Ints
    sequence: Ints
    forward_thread: Ints
    process: Ints
    external_id: Ints
    python_id: Ints
    python_parent: Ints
    shapes: Ints
    collective: Ints
    group: Ints
    wait_stream: Ints
    wait_correlation: Ints
    bytes: Ints
    elements: Ints
    dtype: Ints
    module: Ints
    memory: MemoryColumns = field(default_factory=no_memory)
    shape_texts: list[str] = field(default_factory=list)
    collective_names: list[str] = field(default_factory=list)
    group_names: list[str] = field(default_factory=list)
    dtype_names: list[str] = field(default_factory=list)
    module_names: list[str] = field(default_factory=list)
    base_ns: int = 0
    unit_ns: int = 1
    negative_durations: int = 0
    devices: list[dict[str, Any]] = field(default_factory=list)
    rank: int | None = None
    world_size: int | None = None
    process_names: dict[int, str] = field(default_factory=dict)
    process_labels: dict[int, str] = field(default_factory=dict)
    thread_names: dict[tuple[int, int], str] = field(default_factory=dict)
    perfnb: Any = None
    caveats: list[str] = field(default_factory=list)
    of_torch: bool = False

    def __len__(self) -> int:
        return len(self.name)


#: The columns of events, in any order.
EVENT_COLUMNS = tuple(column.name for column in fields(TraceColumns) if column.type == "Ints")
