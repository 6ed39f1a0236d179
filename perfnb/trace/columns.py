"""The result of reading a trace: columns of numbers, and the texts to which codes in these columns refer."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

#: Represents a missing value in an integer column.
MISSING = -1

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MemoryColumns:
    """The allocations and frees in a trace (``[memory]``) as columns, in chronological order.

    Attributes
    ----------
    time_ns, process, thread : ndarray of int64
        The time, process and thread. Processes and threads have the same numbers as in `TraceColumns`.
    address, bytes : ndarray of int64
        The block's address and size. `bytes` is negative for a free.
    device_type, device : ndarray of int64
        torch's number for the type of device (0 is CPU, 1 is CUDA), and the device's index.
    allocated, reserved : ndarray of int64
        The allocator's totals in bytes after the event. For the CPU, they start at 0 when profiling begins, and no
        memory is reserved.
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
    """The complete events in a trace (``ph: X``) as columns, in file order.

    Every column is an array of int64. Missing values are represented by `MISSING`.

    Attributes
    ----------
    names, categories : list of str
        The texts to which the codes refer. Categories have their current names, even in a trace from 2021.
    name, category : ndarray of int64
        Codes into `names` and `categories`.
    start_ns, duration_ns : ndarray of int64
        Times in nanoseconds. `start_ns` is relative to `base_ns`. No duration is negative (see `negative_durations`).
    thread, process : ndarray of int64
        The thread and process ids. Names, and numbers that exceed int64, are replaced by numbers from -2 downwards,
        which are the same in both columns.
    device, stream, correlation, sequence, forward_thread : ndarray of int64
        Values from the event's arguments.
    external_id : ndarray of int64
        The number of the operator to which the event belongs. It is called ``external id`` in older traces.
    python_id, python_parent : ndarray of int64
        The id of a Python call, and the id of the call around it.
    shapes, collective, group : ndarray of int64
        Codes into `shape_texts`, `collective_names` and `group_names`.
    wait_stream, wait_correlation : ndarray of int64
        The stream that a synchronisation waits for, and the correlation of the call that recorded the CUDA event.
    bytes : ndarray of int64
        The number of bytes that are moved by a copy or fill on a device.
    elements, dtype : ndarray of int64
        The number of elements in a collective's largest argument, and their dtype as a code into `dtype_names`.
    module : ndarray of int64
        The annotation of work in a CUDA graph, as a code into `module_names`.
    memory : MemoryColumns
        Allocations and frees, if the profiler recorded them.
    shape_texts : list of str
        The shapes of an operator's inputs, such as ``[[8, 16], [16, 4]]``.
    collective_names, group_names : list of str
        Names of collectives, such as ``allreduce``, and names and ranks of process groups, such as ``0 [0, 1]``.
    dtype_names : list of str
        torch's names for dtypes, such as ``float32``.
    module_names : list of str
        Paths of modules, such as ``layers.0.attention``, or other annotations.
    base_ns : int
        The number to add to `start_ns` to get nanoseconds since 1970.
    unit_ns : int
        The resolution of the times in the file in ns. It is 1000 if all of them are whole microseconds, 250 if they
        were converted to float64, and otherwise 1.
    negative_durations : int
        The number of events that end before they start, according to the file. Their duration is set to 0.
    devices : list of dict
        The GPUs, as described in the trace.
    rank, world_size : int or None
        The rank and the number of ranks, from the trace's description of the distributed job.
    process_names, process_labels : dict of int to str
        Names and descriptions of processes, by the numbers in `process`.
    thread_names : dict of (int, int) to str
        Names of threads, by the numbers in `process` and `thread`.
    perfnb : object
        The unmodified data that perfnb wrote next to the events.
    caveats : list of str
        Notes on data that is missing from this file. Data that the format cannot record is not mentioned.
    of_torch : bool
        Whether torch.profiler wrote the file, even though it was read with a reader for other traces.
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


#: The names of the event columns, in any order.
EVENT_COLUMNS = tuple(column.name for column in fields(TraceColumns) if column.type == "Ints")
