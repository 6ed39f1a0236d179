"""Nsight Systems: SQLite exports of any version, and reports that ``nsys export`` turns into one.

Tables and columns come and go between versions: what a file has is taken, what it lacks is missing. Ids are per
process, so each process is read on its own; those with work on a GPU are the ranks. Tables with the command line and
the environment of the run are never read.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfnb.errors import TraceError
from perfnb.trace.columns import EVENT_COLUMNS, MISSING, Ints, TraceColumns, no_memory
from perfnb.trace.sqlite_file import MAGIC, NULL, SqliteFile, Texts, is_packed
from perfnb.trace.trace_file import Limits, OnProgress, Reader
from perfnb.trace_names import BACKWARD_NODE

_ACTIVITY = "CUPTI_ACTIVITY_KIND_"
_KERNELS, _COPIES, _SETS = f"{_ACTIVITY}KERNEL", f"{_ACTIVITY}MEMCPY", f"{_ACTIVITY}MEMSET"
_GRAPHS, _SYNCS, _EVENTS = f"{_ACTIVITY}GRAPH_TRACE", f"{_ACTIVITY}SYNCHRONIZATION", f"{_ACTIVITY}CUDA_EVENT"
_CALLS, _RANGES, _SYSTEM = f"{_ACTIVITY}RUNTIME", "NVTX_EVENTS", "OSRT_API"
_OVERHEADS = (f"{_ACTIVITY}OVERHEAD", "PROFILER_OVERHEAD")
#: A file with one of these is an export.
_KNOWN = frozenset({_KERNELS, _COPIES, _SETS, _GRAPHS, _CALLS, _RANGES, _SYSTEM})
_REPORTS = (".nsys-rep", ".qdrep")
_EXPORT = ("export", "--type", "sqlite", "--output")
_EXPORT_S = 1800

_BITS = 24
_LOW = 2**_BITS - 1
#: What CUPTI writes for an id that is not there.
_NO_ID = 2**32 - 1
_FARTHEST = 2**62
#: Kinds of NVTX events that have a length: pushed and popped on one thread; started and ended anywhere; both with a
#: payload.
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
#: Names of ops among torch's ranges with numbers; other names with numbers are ranges of the user's.
_OP = re.compile(r"[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*")
#: A module call as hooks for NVTX write it: ``{'Module': 'model.layers.0', 'Inputs': ...``.
_HOOK = re.compile(r"\{'Module': '(?P<name>[^']{1,500})'")
_LIGHTNING = "[pl][module]"
_GRAPH_LAUNCH = re.compile(r"cu(?:da)?GraphLaunch")

_SEQ, _OP_ID, _SIZES = "', seq = '", "', op_id = '", "', sizes = '"


@dataclass
class _Part:
    """Events of one kind, of all processes: columns by the names of `TraceColumns`, and `pid`."""

    category: str
    columns: dict[str, Ints]
    on_device: bool = False

    def __len__(self) -> int:
        return len(self.columns["start_ns"])

    def of_process(self, pid: int) -> _Part:
        """The events of one process."""
        rows = np.flatnonzero(self.columns["pid"] == pid)
        return replace(self, columns={name: values[rows] for name, values in self.columns.items() if name != "pid"})


@dataclass
class _Export:
    """What was read so far."""

    source: str
    file: SqliteFile
    names: Texts = field(default_factory=lambda: Texts(_name))
    shapes: Texts = field(default_factory=Texts)
    parts: list[_Part] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unplaced: int = 0

    def code(self, name: str) -> int:
        """The number of a name."""
        return self.names[name.encode("utf-8", "replace")]


def read(path: Path, limits: Limits, progress: OnProgress | None = None) -> list[TraceColumns]:
    """Read an SQLite export: one trace for each process with work on a GPU.

    Without any such work, the process with the most events is read.

    Raises
    ------
    TraceError
        If the file is damaged, no export, or exceeds a limit; the message names it.
    """
    with SqliteFile(path, limits, progress) as file:
        if not _KNOWN & file.tables.keys():
            raise TraceError(f"{path} is an SQLite database, but not an export of Nsight Systems.")
        found = _Export(str(path), file)
        _kernels(found)
        _copies_and_sets(found)
        _graphs(found)
        _synchronisation(found)
        _calls(found)
        _ranges(found)
        _other_calls(found)
        facts = _MachineFacts.of(file)
        if found.unplaced:
            found.notes.append(f"{found.unplaced:,} records without a start or an end are left out.")
    if not any(len(part) for part in found.parts):
        raise TraceError(f"{path} holds no events: Nsight Systems recorded no GPU work, CUDA calls or NVTX ranges.")
    return _by_process(found, facts)


def read_report(path: Path, limits: Limits, progress: OnProgress | None = None) -> list[TraceColumns]:
    """Read a report by running ``nsys export``, where it is installed.

    Raises
    ------
    TraceError
        If it is not, with the command; or if the export fails, or cannot be read.
    """
    program = shutil.which("nsys")
    if program is None:
        target = f"{path.stem}.sqlite"
        by_hand = shlex.join(["nsys", *_EXPORT, target, str(path)])
        raise TraceError(
            f"{path} is a report of Nsight Systems, which only nsys can open, and nsys is not on the PATH here. Where "
            f"it is, run {by_hand} and load {target}."
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
    """An NVTX range's name as perfnb shows it: hooks write a module's whole description."""
    hook = _HOOK.match(text)
    return f"{_LIGHTNING}torch.nn.Module: {hook['name']}" if hook else text


def _placed(found: _Export, columns: dict[str, Ints]) -> dict[str, Ints]:
    """Give the columns of a table ``start_ns`` and ``end_ns``, without the rows that lack one of them."""
    start, end = columns.pop("start"), columns.pop("end")
    known = (start != NULL) & (end != NULL)
    if not known.all():
        found.unplaced += int((~known).sum())
        start, end = start[known], end[known]
        columns = {name: values[known] for name, values in columns.items()}
    if len(start) and max(-int(start.min()), int(start.max()), -int(end.min()), int(end.max())) >= _FARTHEST:
        raise TraceError(f"{found.source} cannot be read as a trace: it has times beyond {_FARTHEST / 3e16:.0f} years.")
    return {"start_ns": start, "end_ns": end, **columns}


def _table(found: _Export, table: str, *names: str) -> dict[str, Ints]:
    """Columns of a table of intervals, `NULL` where the file does not tell; empty without intervals."""
    if not {"start", "end"} <= found.file.columns(table):
        return {}
    columns = _placed(found, found.file.numbers(table, ("start", "end", *names)))
    return columns if len(columns["start_ns"]) else {}


def _missing(values: Ints, *nothing: int) -> Ints:
    """Values with `MISSING` where there is none."""
    return np.where(np.isin(values, (NULL, _NO_ID, *nothing)), MISSING, values)


def _part_of(keys: Ints, bits: int = 0) -> Ints:
    """The thread in a file's numbers of threads, or the process in front of it."""
    return np.where(keys == NULL, MISSING, (keys >> bits) & _LOW)


def _add(
    found: _Export, category: str, columns: dict[str, Ints], own: Mapping[str, Ints], on_device: bool = False
) -> None:
    """Add events; `own` are columns of `TraceColumns`."""
    if not len(columns["start_ns"]):
        return
    part = {name: values for name, values in own.items() if (values != MISSING).any()}
    part["pid"] = _part_of(columns["globalPid" if on_device else "globalTid"], _BITS)
    part["start_ns"] = columns["start_ns"]
    part["end_ns"] = columns["end_ns"]
    found.parts.append(_Part(category, part, on_device))


_OF_DEVICE = ("globalPid", "deviceId", "streamId", "correlationId")


def _on_device(columns: dict[str, Ints]) -> dict[str, Ints]:
    return {
        "device": _missing(columns["deviceId"]),
        "stream": _missing(columns["streamId"]),
        "correlation": _missing(columns["correlationId"], 0),
    }


def _coded(found: _Export, values: Ints, label: Callable[[Any], str]) -> Ints:
    """The numbers of the names that values, or rows of values, stand for."""
    distinct, place = np.unique(values, axis=0, return_inverse=True)
    codes = [found.code(label(value)) for value in distinct.tolist()]
    return np.array(codes, dtype=np.int64)[place.reshape(-1)]


def _named(found: _Export, ids: Ints, unknown: str, clean: re.Pattern[str] | None = None) -> Ints:
    """The numbers of the names that a column of ``StringIds`` stands for."""
    texts = found.file.texts_of("StringIds", "id", "value", np.unique(ids))
    return _coded(found, ids, lambda one: clean.sub("", texts.get(one, unknown)) if clean else texts.get(one, unknown))


def _kernels(found: _Export) -> None:
    there = found.file.columns(_KERNELS)
    name = next((one for one in ("demangledName", "shortName", "mangledName") if one in there), "demangledName")
    if columns := _table(found, _KERNELS, *_OF_DEVICE, name):
        names = _named(found, columns[name], "kernel without a name")
        _add(found, "kernel", columns, {"name": names, **_on_device(columns)}, True)


def _copies_and_sets(found: _Export) -> None:
    kinds = ("copyKind", "srcKind", "dstKind")
    if columns := _table(found, _COPIES, *_OF_DEVICE, "bytes", *kinds):
        names = _coded(found, np.stack([columns[one] for one in kinds], axis=1), lambda row: _copy_name(*row))
        own = {"name": names, "bytes": _missing(columns["bytes"]), **_on_device(columns)}
        _add(found, "gpu_memcpy", columns, own, True)
    if columns := _table(found, _SETS, *_OF_DEVICE, "bytes", "memKind"):
        names = _coded(found, columns["memKind"], lambda kind: f"Memset ({_MEMORY.get(kind, 'Unknown')})")
        own = {"name": names, "bytes": _missing(columns["bytes"]), **_on_device(columns)}
        _add(found, "gpu_memset", columns, own, True)


def _copy_name(kind: int, source: int, target: int) -> str:
    """As torch names copies: ``Memcpy HtoD (Pageable -> Device)``."""
    where = f" ({_MEMORY[source]} -> {_MEMORY[target]})" if source in _MEMORY and target in _MEMORY else ""
    return f"Memcpy {_COPY.get(kind, 'Unknown')}{where}"


def _graphs(found: _Export) -> None:
    """CUDA graphs recorded as wholes: each launch is one piece of work."""
    columns = _table(found, _GRAPHS, *_OF_DEVICE, "graphId")
    if not columns:
        return
    names = _coded(found, columns["graphId"], lambda one: "CUDA graph" if one == NULL else f"CUDA graph {one}")
    _add(found, "kernel", columns, {"name": names, **_on_device(columns)}, True)
    found.notes.append(
        f"{len(names):,} launches of CUDA graphs were recorded as wholes: each counts as one kernel, CUDA graph, and "
        "the kernels inside are not in the file. nsys profile --cuda-graph-trace=node records them."
    )


def _synchronisation(found: _Export) -> None:
    if columns := _table(found, _SYNCS, *_OF_DEVICE, "syncType", "eventId", "eventSyncId"):
        names = _coded(found, columns["syncType"], lambda kind: _SYNC.get(kind, "Synchronization"))
        own = {"name": names, **_on_device(columns), **_recorded(found, columns)}
        _add(found, "cuda_sync", columns, own, True)


def _recorded(found: _Export, columns: dict[str, Ints]) -> dict[str, Ints]:
    """The stream on which the event that a synchronisation waits for was recorded, and the call that recorded it."""
    keys = ("globalPid", "eventId", "eventSyncId")
    if not {*keys} <= found.file.columns(_EVENTS) & found.file.columns(_SYNCS):
        return {}
    events = found.file.numbers(_EVENTS, (*keys, "streamId", "correlationId"))
    size = len(events["eventId"])
    if not size:
        return {}
    both = np.stack([np.concatenate([events[one], columns[one]]) for one in keys])
    code = np.unique(both, axis=1, return_inverse=True)[1].reshape(-1)
    order = np.argsort(code[:size], kind="stable")
    sorted_codes = code[:size][order]
    place = np.minimum(np.searchsorted(sorted_codes, code[size:]), size - 1)
    known = (sorted_codes[place] == code[size:]) & np.isin(columns["syncType"], _ON_EVENT)
    known &= columns["eventId"] != _NO_ID
    row = order[place]
    return {
        "wait_stream": np.where(known, _missing(events["streamId"])[row], MISSING),
        "wait_correlation": np.where(known, _missing(events["correlationId"], 0)[row], MISSING),
    }


def _calls(found: _Export) -> None:
    columns = _table(found, _CALLS, "globalTid", "correlationId", "nameId", "eventClass")
    if not columns:
        return
    kind = np.where(columns["eventClass"] == NULL, _RUNTIME, columns["eventClass"])
    own = {
        "name": _named(found, columns["nameId"], "CUDA call without a name", _VERSION),
        "correlation": _missing(columns["correlationId"], 0),
        "thread": _part_of(columns["globalTid"]),
    }
    for number, category in ((_RUNTIME, "cuda_runtime"), (_DRIVER, "cuda_driver")):  # others repeat the calls inside
        mine = np.flatnonzero(kind == number)
        part = {name: values[mine] for name, values in columns.items()}
        _add(found, category, part, {name: values[mine] for name, values in own.items()})


def _ranges(found: _Export) -> None:
    there = found.file.columns(_RANGES)
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
        "name": (f"CASE {cuts} ELSE {text} END", found.names),
        "shapes": (f"CASE WHEN instr({text}, {_SIZES}) > 0 THEN {sizes} END", found.shapes),
    }
    columns = found.file.rows(_RANGES, numbers, texts)
    kind = columns.pop("eventType")
    lasting = np.isin(kind, (*_PUSHED, *_STARTED))
    columns = {name: values[lasting] for name, values in columns.items()}
    columns["kind"] = kind[lasting]
    columns = _placed(found, columns)
    if not len(columns["start_ns"]):
        return
    nameless = columns["name"] == MISSING
    if nameless.any():
        columns["name"][nameless] = _named(found, columns["textId"][nameless], "range without a name")
    columns["external_id"] = np.where(columns["external_id"] > 0, columns["external_id"], MISSING)
    columns["thread"] = _part_of(columns["globalTid"])
    labels = found.names.labels
    spelled = np.array([_OP.fullmatch(one) is not None or one.startswith(BACKWARD_NODE) for one in labels], dtype=bool)
    numbered = (columns["external_id"] != MISSING) | (columns["sequence"] != MISSING)
    is_op = numbered & spelled[columns["name"]]
    if not is_op.any():
        # Without torch's own ranges, the user's stand for ops: each has its calls and kernels in the table of ops.
        is_module = np.array([one.startswith(_LIGHTNING) for one in labels], dtype=bool)
        is_op = ~is_module[columns["name"]] & np.isin(columns["kind"], _PUSHED)
        if is_op.any():
            found.notes.append("The file has no operators: ops lists NVTX ranges.")
    columns["forward_thread"] = _forward_threads(labels, columns)
    started = ~is_op & np.isin(columns["kind"], _STARTED)
    for chosen, category in ((is_op, "cpu_op"), (~is_op & ~started, "user_annotation"), (started, "nvtx_range")):
        part = {name: values[chosen] for name, values in columns.items()}
        own = ("name", "shapes", "sequence", "external_id", "forward_thread", "thread")
        _add(found, category, part, {name: part[name] for name in own})


def _forward_threads(labels: list[str], columns: Mapping[str, Ints]) -> Ints:
    """1 for what runs in a backward pass with the number of a forward op, else missing.

    NVTX does not tell the thread on which the forward op ran; the number of the op finds it.
    """
    nodes = [one.removeprefix(BACKWARD_NODE).lstrip(": ") for one in labels if one.startswith(BACKWARD_NODE)]
    inside = frozenset(nodes)
    backward = np.array([one.startswith(BACKWARD_NODE) or one in inside for one in labels], dtype=bool)
    return np.where(backward[columns["name"]] & (columns["sequence"] != MISSING), 1, MISSING)


def _other_calls(found: _Export) -> None:
    """Calls of the operating system, and what the profiler itself took."""
    for table, category in ((_SYSTEM, "os_runtime"), *((table, "overhead") for table in _OVERHEADS)):
        there = {"globalTid", "nameId"} <= found.file.columns(table)
        if there and (columns := _table(found, table, "globalTid", "nameId")):
            names = _named(found, columns["nameId"], "call without a name")
            _add(found, category, columns, {"name": names, "thread": _part_of(columns["globalTid"])})


@dataclass(frozen=True)
class _MachineFacts:
    """What the file says of the machine and of its processes; never the command line or the environment."""

    base_ns: int
    devices: list[dict[str, Any]]
    processes: dict[int, str]
    threads: dict[tuple[int, int], str]

    @classmethod
    def of(cls, file: SqliteFile) -> _MachineFacts:
        base = file.numbers("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))["utcEpochNs"]
        columns = file.numbers("ThreadNames", ("globalTid", "nameId"))
        texts = file.texts_of("StringIds", "id", "value", np.unique(columns["nameId"]))
        threads = {
            ((key >> _BITS) & _LOW, key & _LOW): texts[name]
            for key, name in zip(columns["globalTid"].tolist(), columns["nameId"].tolist(), strict=True)
            if name in texts and key != NULL
        }
        keys = np.unique(file.numbers("PROCESSES", ("globalPid",))["globalPid"])
        named = file.texts_of("PROCESSES", "globalPid", "name", keys)
        processes = {(key >> _BITS) & _LOW: Path(name).name for key, name in named.items()}
        return cls(int(base[0]) if len(base) and base[0] != NULL else 0, _devices(file), processes, threads)


def _devices(file: SqliteFile) -> list[dict[str, Any]]:
    """The GPUs, with the keys that torch's traces use."""
    keys = {
        **{"totalMemory": "totalGlobalMem", "computeMajor": "computeMajor", "computeMinor": "computeMinor"},
        **{"smCount": "numSms"},
    }
    table = "TARGET_INFO_GPU"
    # CUDA numbers its devices otherwise than the machine does.
    key = "cuDevice" if "cuDevice" in file.columns(table) else "id"
    columns = file.numbers(table, (key, *keys))
    named = file.texts_of(table, key, "name", np.unique(columns[key]))
    found = []
    for row, one in enumerate(columns[key][:1000].tolist()):
        if one in named:
            facts = {keys[name]: int(columns[name][row]) for name in keys}
            found.append({"id": one, "name": named[one], **{k: v for k, v in facts.items() if v != NULL}})
    return found


def _by_process(found: _Export, facts: _MachineFacts) -> list[TraceColumns]:
    """One trace for each process with work on a GPU; without any, of the process with the most events."""
    pids = [{*pd.unique(part.columns["pid"]).tolist()} - {MISSING} for part in found.parts]
    if len(known := set.union(*pids)) < 2 or not all(pids):
        # One process, or a file that does not say whose each event is: all of it counts as one.
        for part in found.parts:
            del part.columns["pid"]
        return [_trace(found, facts, known.pop() if len(known) == 1 else 0, found.parts)]
    counts: dict[int, int] = {}
    working: dict[int, int] = {}
    for part in found.parts:
        of_rows = part.columns["pid"]
        for pid, many in zip(*(one.tolist() for one in np.unique(of_rows, return_counts=True)), strict=True):
            counts[pid] = counts.get(pid, 0) + many
            if part.on_device and part.category != "cuda_sync":
                lowest = int(part.columns["device"][of_rows == pid].min()) if "device" in part.columns else 0
                working[pid] = min(working.get(pid, lowest), lowest)
    chosen = sorted(working, key=lambda pid: (working[pid], pid)) or [max(counts, key=lambda pid: (counts[pid], -pid))]
    others = {pid: many for pid, many in counts.items() if pid not in chosen}
    if others:
        who = ", ".join(f"{facts.processes.get(pid, 'process')} {pid}" for pid in sorted(others)[:5])
        more = ", ..." if len(others) > 5 else ""
        found.notes.append(
            f"{sum(others.values()):,} events of processes without work on a GPU are left out: "
            f"{ascii(who)[1:-1]}{more}."
        )
    if len(chosen) > 256:
        raise TraceError(f"{found.source} was not read: {len(chosen):,} processes work on GPUs, and 256 is the most.")
    return [_trace(found, facts, pid, [part.of_process(pid) for part in found.parts]) for pid in chosen]


def _trace(found: _Export, facts: _MachineFacts, pid: int, parts: list[_Part]) -> TraceColumns:
    """The trace of one process. Its parts are used up on the way: they are as large as it."""
    parts = [part for part in parts if len(part)]
    categories = list(dict.fromkeys(part.category for part in parts))
    lengths = [len(part) for part in parts]
    negative = 0
    for part in parts:
        columns = part.columns
        length = columns.pop("end_ns")
        length -= columns["start_ns"]
        backwards = length < 0
        negative += int(backwards.sum())
        length[backwards] = 0
        columns["duration_ns"] = length
    latest = max(int((part.columns["start_ns"] + part.columns["duration_ns"]).max()) for part in parts)
    if not -(2**63) <= facts.base_ns + latest < 2**63:
        raise TraceError(f"{found.source} cannot be read as a trace: its times do not fit in 64 bits.")
    filled: dict[str, Any] = {}
    for name in EVENT_COLUMNS:
        filled[name] = _filled([_column(part, name, categories, pid) for part in parts], lengths)
        for part in parts:
            if name not in ("device", "stream"):  # these name the tracks of work on a GPU too
                part.columns.pop(name, None)
    notes = [*found.notes, *_missing_work(found, filled, categories)]
    return TraceColumns(
        **filled,
        names=found.names.labels,
        categories=categories,
        memory=no_memory(),
        shape_texts=found.shapes.labels,
        collective_names=[],
        group_names=[],
        dtype_names=[],
        base_ns=facts.base_ns,
        negative_durations=negative,
        devices=facts.devices,
        process_names={pid: facts.processes[pid]} if pid in facts.processes else {},
        thread_names={key: name for key, name in facts.threads.items() if key[0] == pid},
        caveats=notes,
    )


def _filled(values: list[Ints | int], lengths: list[int]) -> Ints:
    """One column of the parts' values, without memory of its own if all events have the same."""
    whole = sum(lengths)
    if all(isinstance(one, int) for one in values) and len({str(one) for one in values}) == 1:
        return np.broadcast_to(np.int64(values[0]), whole)
    filled, done = np.empty(whole, dtype=np.int64), 0
    for one, length in zip(values, lengths, strict=True):
        filled[done : done + length] = one
        done += length
    return filled


def _column(part: _Part, name: str, categories: list[str], pid: int) -> Ints | int:
    """A column of events, or the one value that all have."""
    if name == "category":
        return categories.index(part.category)
    if name == "process":
        return part.columns.get("device", MISSING) if part.on_device else pid
    if name == "thread" and part.on_device:
        return part.columns.get("stream", MISSING)
    return part.columns.get(name, MISSING)


def _missing_work(found: _Export, columns: Mapping[str, Ints], categories: list[str]) -> list[str]:
    """Say that launches of CUDA graphs have no work in the file: the GPU was not idle then."""
    graphs = np.array([_GRAPH_LAUNCH.match(one) is not None for one in found.names.labels], dtype=bool)
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
        f"{lost:,} of {len(launches):,} launches of CUDA graphs have no work in the file: the GPU was not idle then, "
        "and its busy time is too low. nsys profile --cuda-graph-trace=node records their kernels."
    ]


def _recognise(path: Path, head: bytes) -> bool:
    """Any SQLite file that could be an export, damaged ones too: `read` says what is wrong with them."""
    if not head.startswith(MAGIC):
        return False
    if is_packed(path):
        return True  # unpacked only once, by `read`
    try:
        with SqliteFile(path, Limits(max_bytes=2**62)) as file:
            return bool(_KNOWN & file.tables.keys())
    except TraceError:
        return True


def _recognise_report(path: Path, head: bytes) -> bool:
    """By its name: the format is closed, and says nothing about its first bytes."""
    return path.name.lower().endswith(_REPORTS) and not head.startswith(MAGIC)


_CAVEATS = (
    "Nsight Systems records no module calls, memory totals or groups of collectives: layers need NVTX ranges that name "
    "modules, and operators torch.autograd.profiler.emit_nvtx or nsys profile --pytorch=autograd-nvtx.",
)
READER = Reader(
    "SQLite exports of Nsight Systems", (".sqlite", ".sqlite.gz"), _recognise, read, _CAVEATS, guess_steps=True
)
# Not looked for in folders: an export usually stands beside its report.
REPORT = Reader(
    "reports of Nsight Systems (.nsys-rep, where nsys is installed)",
    (),
    _recognise_report,
    read_report,
    _CAVEATS,
    guess_steps=True,
)
