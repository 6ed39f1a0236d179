"""Read Nsight Systems files: SQLite exports of any version, and reports that ``nsys export`` converts to SQLite.

Tables and columns differ between versions of Nsight Systems, and tables and columns that do not exist are treated as
missing. Ids are only unique within a process, so each process is read separately. The processes with work on a GPU
become the ranks. Tables that contain the run's command line and environment are never read.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfnb.errors import TraceError
from perfnb.trace.columns import EVENT_COLUMNS, MISSING, Ints, TraceColumns
from perfnb.trace.rows import FAR_NS
from perfnb.trace.sqlite_file import MAGIC, NULL, SqliteFile, Texts, is_packed, opened
from perfnb.trace.trace_file import Limits, OnProgress, Reader
from perfnb.trace.trace_steps import MOST_DEVICES
from perfnb.trace_names import BACKWARD_NODE, DEVICE_WORK

_ACTIVITY = "CUPTI_ACTIVITY_KIND_"
_KERNELS, _COPIES, _SETS = f"{_ACTIVITY}KERNEL", f"{_ACTIVITY}MEMCPY", f"{_ACTIVITY}MEMSET"
_GRAPHS, _SYNCS, _EVENTS = f"{_ACTIVITY}GRAPH_TRACE", f"{_ACTIVITY}SYNCHRONIZATION", f"{_ACTIVITY}CUDA_EVENT"
_CALLS, _RANGES, _SYSTEM = f"{_ACTIVITY}RUNTIME", "NVTX_EVENTS", "OSRT_API"
_OVERHEADS = (f"{_ACTIVITY}OVERHEAD", "PROFILER_OVERHEAD")
#: A file that contains one of these tables is an export.
_KNOWN = frozenset({_KERNELS, _COPIES, _SETS, _GRAPHS, _CALLS, _RANGES, _SYSTEM})
_REPORTS = (".nsys-rep", ".qdrep")
_EXPORT = ("export", "--type", "sqlite", "--output")
_EXPORT_S = 1800

_BITS = 24
_LOW = 2**_BITS - 1
#: The value that CUPTI uses for a missing id.
_NO_ID = 2**32 - 1
#: The types of NVTX events that have a duration: those pushed and popped on one thread, those started and ended
#: anywhere, and both of these with a payload.
_PUSHED, _STARTED = (59, 70), (60, 71)
_COPY = {
    **{1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP"},
    **{11: "HtoD (unified)", 12: "DtoH (unified)", 13: "DtoD (unified)"},
}
_MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device static", 6: "Managed static"}
_SYNC = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_ON_EVENT = (1, 2)
_RUNTIME, _DRIVER = 0, 1
_VERSION = re.compile(r"_v[0-9]+(?:_ptsz|_ptds)?$|_(?:ptsz|ptds)$")
#: The names of ops among the ranges with sequence numbers that torch writes. Other such ranges are user ranges.
_OP = re.compile(r"[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*")
#: A module call in the notation that NVTX hooks use: ``{'Module': 'model.layers.0', 'Inputs': ...``.
_HOOK = re.compile(r"\{'Module': '(?P<name>[^']{1,500})'")
_LIGHTNING = "[pl][module]"
_GRAPH_LAUNCH = re.compile(r"cu(?:da)?GraphLaunch")

_SEQ, _OP_ID, _SIZES = "', seq = '", "', op_id = '", "', sizes = '"


class _Export:
    """The data that has been read so far, as columns of events.

    The columns have the same names as in `TraceColumns`. In addition, there are ``pid`` and ``end_ns``.
    """

    def __init__(self, source: str, file: SqliteFile) -> None:
        self.source, self.file = source, file
        self.names, self.shapes = Texts(file.kept, _name), Texts(file.kept)
        self.strings = file.texts("StringIds", "id", "value")
        self.categories: dict[str, int] = {}
        self.parts: list[dict[str, Ints]] = []
        self.notes: list[str] = []
        self.unplaced = 0

    def add(self, category: str, columns: dict[str, Ints], own: Mapping[str, Ints], on_device: bool = False) -> None:
        """Add events. `own` contains columns of `TraceColumns`."""
        if not (count := len(columns["start_ns"])):
            return
        pid = _part_of(columns["globalPid" if on_device else "globalTid"], _BITS)
        code = np.full(count, self.categories.setdefault(category, len(self.categories)), dtype=np.int64)
        process, thread = (own["device"], own["stream"]) if on_device else (pid, own["thread"])
        times = {"start_ns": columns["start_ns"], "end_ns": columns["end_ns"]}
        self.parts.append({**own, **times, "category": code, "process": process, "thread": thread, "pid": pid})

    def coded(self, values: Ints, label: Callable[[Any], str]) -> Ints:
        """Return the number of the name that corresponds to each value or row of values."""
        distinct, place = np.unique(values, axis=0, return_inverse=True)
        codes = [self.names[label(value).encode("utf-8", "replace")] for value in distinct.tolist()]
        return np.array(codes, dtype=np.int64)[place.reshape(-1)]

    def named(self, ids: Ints, unknown: str) -> Ints:
        """Return the numbers of the names to which a column of ids in ``StringIds`` refers."""
        return self.coded(ids, lambda key: self.strings.get(key, unknown))


def read(path: Path, limits: Limits, progress: OnProgress | None = None) -> list[TraceColumns]:
    """Read an SQLite export, and return one trace for each process with work on a GPU.

    If no process has such work, the process with the most events is read.

    Raises
    ------
    TraceError
        If the file is damaged, is not an export, or exceeds a limit. The message names the file.
    """
    with opened(path, limits, progress) as file:
        if not _KNOWN & file.tables.keys():
            raise TraceError(f"{path} is an SQLite database, but not an Nsight Systems export.")
        export = _Export(str(path), file)
        _kernels(export)
        _copies_and_sets(export)
        _graphs(export)
        _synchronisation(export)
        _calls(export)
        _ranges(export)
        _other_calls(export)
        facts = _facts(export)
    if not export.parts:
        raise TraceError(f"{path} has no events: Nsight Systems recorded no GPU work, CUDA calls or NVTX ranges.")
    if export.unplaced:
        export.notes.append(f"{export.unplaced:,} records without a start or an end were left out.")
    return _by_process(export, facts)


def read_report(path: Path, limits: Limits, progress: OnProgress | None = None) -> list[TraceColumns]:
    """Read a report by running ``nsys export``, if it is installed.

    Raises
    ------
    TraceError
        If ``nsys`` is not installed (the message then contains the command), or if the export fails or cannot be read.
    """
    program = shutil.which("nsys")
    if program is None:
        target = f"{path.stem}.sqlite"
        by_hand = shlex.join(["nsys", *_EXPORT, target, str(path)])
        raise TraceError(
            f"{path} is an Nsight Systems report, which only nsys can open, and nsys is not on the PATH. On a machine "
            f"with nsys, run {by_hand} and load {target}."
        )
    with tempfile.TemporaryDirectory(prefix="perfnb-") as folder:
        export = Path(folder, "report.sqlite")
        command = [program, *_EXPORT, str(export), str(path.absolute())]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_EXPORT_S, check=False, cwd=folder
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TraceError(f"{path} was not read: nsys export failed ({str(error)[:200]}).") from error
        if done.returncode or not export.is_file():
            said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-300:]
            raise TraceError(f"{path} was not read: nsys export failed with code {done.returncode} ({said}).")
        return read(export, limits, progress)


def _name(text: str) -> str:
    """Return the name that perfnb displays for an NVTX range.

    For modules, hooks write a whole description as the name.
    """
    hook = _HOOK.match(text)
    return f"{_LIGHTNING}torch.nn.Module: {hook['name']}" if hook else text


def _placed(export: _Export, columns: dict[str, Ints]) -> dict[str, Ints]:
    """Add ``start_ns`` and ``end_ns`` to the columns of a table, dropping the rows that lack either of them."""
    known = (columns["start"] != NULL) & (columns["end"] != NULL)
    if not known.all():
        export.unplaced += int((~known).sum())
        columns = {name: values[known] for name, values in columns.items()}
    start, end = columns.pop("start"), columns.pop("end")
    if max(start.max(initial=0), -start.min(initial=0), end.max(initial=0), -end.min(initial=0)) >= FAR_NS:
        raise TraceError(f"{export.source} cannot be read as a trace: it has times beyond {FAR_NS / 3e16:.0f} years.")
    return {"start_ns": start, "end_ns": end, **columns}


def _table(export: _Export, table: str, *names: str) -> dict[str, Ints]:
    """Return columns from a table of intervals, with `NULL` for missing values.

    The result is empty if there are no intervals.
    """
    if not {"start", "end"} <= export.file.columns(table):
        return {}
    columns = _placed(export, export.file.numbers(table, ("start", "end", *names)))
    return columns if len(columns["start_ns"]) else {}


def _missing(values: Ints, *nothing: int) -> Ints:
    """Return the values with missing ones replaced by `MISSING`."""
    return np.where(np.isin(values, (NULL, _NO_ID, *nothing)), MISSING, values)


def _part_of(keys: Ints, bits: int = 0) -> Ints:
    """Extract the thread, or the process that precedes it, from the combined numbers in a file."""
    return np.where(keys == NULL, MISSING, (keys >> bits) & _LOW)


_OF_DEVICE = ("globalPid", "deviceId", "streamId", "correlationId")


def _on_device(columns: dict[str, Ints]) -> dict[str, Ints]:
    return {
        "device": _missing(columns["deviceId"]),
        "stream": _missing(columns["streamId"]),
        "correlation": _missing(columns["correlationId"], 0),
    }


def _kernels(export: _Export) -> None:
    there = export.file.columns(_KERNELS)
    name = next((name for name in ("demangledName", "shortName", "mangledName") if name in there), "demangledName")
    if columns := _table(export, _KERNELS, *_OF_DEVICE, name):
        own = {"name": export.named(columns[name], "kernel without a name"), **_on_device(columns)}
        export.add("kernel", columns, own, True)


def _copies_and_sets(export: _Export) -> None:
    kinds = ("copyKind", "srcKind", "dstKind")
    if columns := _table(export, _COPIES, *_OF_DEVICE, "bytes", *kinds):
        names = export.coded(np.stack([columns[kind] for kind in kinds], axis=1), lambda row: _copy_name(*row))
        own = {"name": names, "bytes": _missing(columns["bytes"]), **_on_device(columns)}
        export.add("gpu_memcpy", columns, own, True)
    if columns := _table(export, _SETS, *_OF_DEVICE, "bytes", "memKind"):
        names = export.coded(columns["memKind"], lambda kind: f"Memset ({_MEMORY.get(kind, 'Unknown')})")
        own = {"name": names, "bytes": _missing(columns["bytes"]), **_on_device(columns)}
        export.add("gpu_memset", columns, own, True)


def _copy_name(kind: int, source: int, target: int) -> str:
    """Return a copy's name in torch's notation: ``Memcpy HtoD (Pageable -> Device)``."""
    where = f" ({_MEMORY[source]} -> {_MEMORY[target]})" if source in _MEMORY and target in _MEMORY else ""
    return f"Memcpy {_COPY.get(kind, 'Unknown')}{where}"


def _graphs(export: _Export) -> None:
    """Read CUDA graphs that were recorded as a whole. Each launch becomes a single kernel."""
    columns = _table(export, _GRAPHS, *_OF_DEVICE, "graphId")
    if not columns:
        return
    names = export.coded(columns["graphId"], lambda key: "CUDA graph" if key == NULL else f"CUDA graph {key}")
    export.add("kernel", columns, {"name": names, **_on_device(columns)}, True)
    export.notes.append(
        f"{len(names):,} CUDA graph launches were recorded as a whole. Each is shown as a kernel named CUDA graph, "
        "because the file does not contain the kernels inside. nsys profile --cuda-graph-trace=node records them."
    )


def _synchronisation(export: _Export) -> None:
    if columns := _table(export, _SYNCS, *_OF_DEVICE, "syncType", "eventId", "eventSyncId"):
        names = export.coded(columns["syncType"], lambda kind: _SYNC.get(kind, "Synchronization"))
        own = {"name": names, **_on_device(columns), **_recorded(export, columns)}
        export.add("cuda_sync", columns, own, True)


def _recorded(export: _Export, columns: dict[str, Ints]) -> dict[str, Ints]:
    """Return the stream and the call that recorded the CUDA event that each synchronisation waits for."""
    keys = ["globalPid", "eventId", "eventSyncId"]
    if not {*keys} <= export.file.columns(_EVENTS) & export.file.columns(_SYNCS):
        return {}
    events = export.file.numbers(_EVENTS, (*keys, "streamId", "correlationId"))
    records = pd.DataFrame(
        {
            **{key: events[key] for key in keys},
            "wait_stream": _missing(events["streamId"]),
            "wait_correlation": _missing(events["correlationId"], 0),
        }
    )
    waits = pd.DataFrame({key: columns[key] for key in keys})
    waited = waits.merge(records.drop_duplicates(keys), how="left", on=keys)
    known = np.isin(columns["syncType"], _ON_EVENT) & (columns["eventId"] != _NO_ID)
    return {
        name: np.where(known, waited[name].fillna(MISSING).to_numpy(dtype=np.int64), MISSING)
        for name in ("wait_stream", "wait_correlation")
    }


def _calls(export: _Export) -> None:
    columns = _table(export, _CALLS, "globalTid", "correlationId", "nameId", "eventClass")
    if not columns:
        return
    kind = np.where(columns["eventClass"] == NULL, _RUNTIME, columns["eventClass"])
    unknown = "CUDA call without a name"
    own = {
        "name": export.coded(columns["nameId"], lambda key: _VERSION.sub("", export.strings.get(key, unknown))),
        "correlation": _missing(columns["correlationId"], 0),
        "thread": _part_of(columns["globalTid"]),
    }
    for number, category in ((_RUNTIME, "cuda_runtime"), (_DRIVER, "cuda_driver")):  # others repeat inner calls
        rows = np.flatnonzero(kind == number)
        part = {name: values[rows] for name, values in columns.items()}
        export.add(category, part, {name: values[rows] for name, values in own.items()})


def _ranges(export: _Export) -> None:
    there = export.file.columns(_RANGES)
    if not {"start", "end", "eventType"} <= there:
        return
    text = '"text"' if "text" in there else "NULL"
    wanted = ("start", "end", "eventType", "globalTid", "textId")
    numbers = {one: f'"{one}"' if one in there else "NULL" for one in wanted}
    behind = {"sequence": _SEQ, "external_id": _OP_ID}
    for name, label in behind.items():
        digits = f"CAST(substr({text}, instr({text}, {label}) + length({label}), 20) AS INTEGER)"
        numbers[name] = f"CASE WHEN instr({text}, {label}) > 0 THEN {digits} ELSE -1 END"
    cuts = " ".join(
        f"WHEN instr({text}, {label}) > 0 THEN substr({text}, 1, instr({text}, {label}) - 1)"
        for label in (_SEQ, _OP_ID, _SIZES)
    )
    sizes = f"substr({text}, instr({text}, {_SIZES}) + length({_SIZES}), 2000)"
    texts = {
        "name": (f"CASE {cuts} ELSE {text} END", export.names),
        "shapes": (f"CASE WHEN instr({text}, {_SIZES}) > 0 THEN {sizes} END", export.shapes),
    }
    columns = export.file.rows(_RANGES, numbers, texts)
    lasting = np.isin(columns["eventType"], (*_PUSHED, *_STARTED))
    columns = _placed(export, {name: values[lasting] for name, values in columns.items()})
    if not len(columns["start_ns"]):
        return
    nameless = columns["name"] == MISSING
    columns["name"][nameless] = export.named(columns["textId"][nameless], "range without a name")
    columns["external_id"] = np.where(columns["external_id"] > 0, columns["external_id"], MISSING)
    columns["thread"] = _part_of(columns["globalTid"])
    labels, pushed = export.names.labels, np.isin(columns["eventType"], _PUSHED)
    spelled = np.array([_OP.fullmatch(name) is not None or name.startswith(BACKWARD_NODE) for name in labels])
    numbered = (columns["external_id"] != MISSING) | (columns["sequence"] != MISSING)
    is_op = numbered & spelled[columns["name"]]
    if not is_op.any():
        # Without torch's own ranges, user ranges are treated as ops. The table of ops then lists their calls and
        # kernels.
        is_module = np.array([name.startswith(_LIGHTNING) for name in labels])
        is_op = ~is_module[columns["name"]] & pushed
        if is_op.any():
            export.notes.append("The file does not contain operators, so ops lists NVTX ranges.")
    columns["forward_thread"] = _forward_threads(labels, columns)
    started = ~is_op & ~pushed
    for chosen, category in ((is_op, "cpu_op"), (~is_op & pushed, "user_annotation"), (started, "nvtx_range")):
        part = {name: values[chosen] for name, values in columns.items()}
        own = ("name", "shapes", "sequence", "external_id", "forward_thread", "thread")
        export.add(category, part, {name: part[name] for name in own})


def _forward_threads(labels: list[str], columns: Mapping[str, Ints]) -> Ints:
    """Return 1 for each backward op that has the same number as a forward op, and otherwise a missing value.

    NVTX does not record the forward op's thread, so only the number identifies the forward op.
    """
    nodes = [one.removeprefix(BACKWARD_NODE).lstrip(": ") for one in labels if one.startswith(BACKWARD_NODE)]
    inside = frozenset(nodes)
    backward = np.array([one.startswith(BACKWARD_NODE) or one in inside for one in labels], dtype=bool)
    return np.where(backward[columns["name"]] & (columns["sequence"] != MISSING), 1, MISSING)


def _other_calls(export: _Export) -> None:
    """Read operating system calls, and the profiler's overhead."""
    for table, category in ((_SYSTEM, "os_runtime"), *((table, "overhead") for table in _OVERHEADS)):
        there = {"globalTid", "nameId"} <= export.file.columns(table)
        if there and (columns := _table(export, table, "globalTid", "nameId")):
            names = export.named(columns["nameId"], "call without a name")
            export.add(category, columns, {"name": names, "thread": _part_of(columns["globalTid"])})


def _facts(export: _Export) -> dict[str, Any]:
    """Return facts about the machine and its processes.

    The command line and the environment are never read.
    """
    file = export.file
    base = file.numbers("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))["utcEpochNs"][:1].tolist()
    columns = file.numbers("ThreadNames", ("globalTid", "nameId"))
    threads = {
        ((key >> _BITS) & _LOW, key & _LOW): export.strings[name]
        for key, name in zip(columns["globalTid"].tolist(), columns["nameId"].tolist(), strict=True)
        if name in export.strings and key != NULL
    }
    named = file.texts("PROCESSES", "globalPid", "name")
    return {
        "base_ns": base[0] if base and 0 <= base[0] < FAR_NS else 0,
        "devices": _devices(file),
        "processes": {(key >> _BITS) & _LOW: Path(name).name for key, name in named.items()},
        "threads": threads,
    }


def _devices(file: SqliteFile) -> list[dict[str, Any]]:
    """Return the GPUs, with the same keys as in torch's traces."""
    keys = {
        **{"totalMemory": "totalGlobalMem", "computeMajor": "computeMajor", "computeMinor": "computeMinor"},
        **{"smCount": "numSms"},
    }
    table = "TARGET_INFO_GPU"
    # CUDA's device numbers differ from the machine's.
    key = "cuDevice" if "cuDevice" in file.columns(table) else "id"
    columns = file.numbers(table, (key, *keys))
    named, devices = file.texts(table, key, "name"), []
    for row, number in enumerate(columns[key][:1000].tolist()):
        facts = {theirs: int(columns[name][row]) for name, theirs in keys.items() if columns[name][row] != NULL}
        devices.append({"id": number, "name": named.get(number, ""), **facts})
    return devices


def _by_process(export: _Export, facts: dict[str, Any]) -> list[TraceColumns]:
    """Return one trace for each process with work on a GPU.

    If there is no such process, return a trace for the process with the most events.
    """
    columns = _joined(export.parts)
    pid = columns.pop("pid")
    kinds = [code for category, code in export.categories.items() if category in DEVICE_WORK]
    work = np.isin(columns["category"], kinds)
    pids, counts = np.unique(pid, return_counts=True)
    known = pids != MISSING
    placed = np.unique(columns["category"][pid != MISSING])
    if known.sum() < 2 or (pid[work] == MISSING).any() or len(placed) < len(export.categories):
        # There is only one process, or the file does not record each event's process. Everything is treated as one
        # process.
        return [_trace(export, facts, columns, pids[known].tolist())]
    lowest = pd.Series(columns["device"][work]).groupby(pid[work]).min()
    chosen = lowest.sort_values(kind="stable").index.tolist() or [int(pids[(counts * known).argmax()])]
    left_out = ~np.isin(pids, chosen)
    if left_out.any():
        others = pids[left_out].tolist()
        who = ", ".join(f"{facts['processes'].get(number, 'process')} {number}" for number in others[:5])
        export.notes.append(
            f"{counts[left_out].sum():,} events from processes without work on a GPU were left out: "
            f"{ascii(who)[1:-1]}{', ...' if len(others) > 5 else ''}."
        )
    if len(chosen) > MOST_DEVICES:
        raise TraceError(
            f"{export.source} was not read: {len(chosen):,} processes use GPUs, and the maximum is {MOST_DEVICES}."
        )
    traces = []
    for number in chosen:
        rows = np.flatnonzero(pid == number)
        # Columns with a single value remain broadcast and do not need memory.
        own = {name: values[rows] if values.strides[0] else values[: len(rows)] for name, values in columns.items()}
        traces.append(_trace(export, facts, own, [number]))
    return traces


def _none(count: int) -> Ints:
    return np.broadcast_to(np.int64(MISSING), count)


def _joined(parts: list[dict[str, Ints]]) -> dict[str, Ints]:
    """Concatenate the columns of all parts, emptying the parts.

    A column that is in none of the parts needs no memory.
    """
    lengths = [len(part["start_ns"]) for part in parts]
    columns: dict[str, Ints] = {}
    for name in ("pid", "end_ns", *EVENT_COLUMNS):
        known = any(name in part for part in parts)
        own = [part.pop(name, _none(length)) for part, length in zip(parts, lengths, strict=True)]
        columns[name] = np.concatenate(own) if known else _none(sum(lengths))
    columns["duration_ns"] = columns.pop("end_ns") - columns["start_ns"]
    return columns


def _trace(export: _Export, facts: dict[str, Any], columns: dict[str, Any], pids: list[int]) -> TraceColumns:
    negative = columns["duration_ns"] < 0
    columns["duration_ns"] = np.where(negative, 0, columns["duration_ns"])
    categories = list(export.categories)
    return TraceColumns(
        **columns,
        names=export.names.labels,
        categories=categories,
        shape_texts=export.shapes.labels,
        negative_durations=int(negative.sum()),
        base_ns=facts["base_ns"],
        devices=facts["devices"],
        process_names={pid: name for pid, name in facts["processes"].items() if pid in pids},
        thread_names={key: name for key, name in facts["threads"].items() if key[0] in pids},
        caveats=[*export.notes, *_missing_work(export, columns, categories)],
    )


def _missing_work(export: _Export, columns: Mapping[str, Ints], categories: list[str]) -> list[str]:
    """Add a note if the file lacks the work of CUDA graph launches, because the GPU was actually busy at that time."""
    graphs = np.array([_GRAPH_LAUNCH.match(one) is not None for one in export.names.labels], dtype=bool)
    calls = [place for place, one in enumerate(categories) if one in ("cuda_runtime", "cuda_driver")]
    launches = np.flatnonzero(graphs[columns["name"]] & np.isin(columns["category"], calls))
    if not len(launches):
        return []
    work = [place for place, one in enumerate(categories) if one in ("kernel", "gpu_memcpy", "gpu_memset")]
    done = np.unique(columns["correlation"][np.isin(columns["category"], work)])
    lost = int((~np.isin(columns["correlation"][launches], done)).sum())
    if not lost:
        return []
    return [
        f"The file does not contain the work of {lost:,} of {len(launches):,} CUDA graph launches, so the GPU's busy "
        "time is too low. nsys profile --cuda-graph-trace=node records their kernels."
    ]


def _recognise(path: Path, head: bytes) -> bool:
    """Accept any SQLite file that may be an export. `read` raises an error if it is damaged."""
    if not head.startswith(MAGIC):
        return False
    if is_packed(path):
        return True  # only `read` unpacks it
    try:
        with opened(path, Limits(max_bytes=2**62)) as file:
            return bool(_KNOWN & file.tables.keys())
    except TraceError:
        return True


def _recognise_report(path: Path, head: bytes) -> bool:
    """Recognise a report by its file name, because the proprietary format's first bytes are not documented."""
    return path.name.lower().endswith(_REPORTS) and not head.startswith(MAGIC)


_CAVEATS = (
    "Nsight Systems does not record module calls, memory totals or process groups. Layers require NVTX ranges that "
    "name modules. Operators require torch.autograd.profiler.emit_nvtx or nsys profile --pytorch=autograd-nvtx.",
)
READER = Reader((".sqlite", ".sqlite.gz"), _recognise, read, _CAVEATS, guess_steps=True)
# Reports in folders are ignored, because there is usually an export next to a report.
REPORT = replace(READER, endings=(), recognise=_recognise_report, read=read_report)
