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
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfnb.errors import TraceError
from perfnb.trace.columns import MISSING, Ints, MemoryColumns, TraceColumns
from perfnb.trace.sqlite_file import MAGIC, NULL, SqliteFile, Texts, is_packed
from perfnb.trace.trace_file import Limits, Progress, Reader
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
_WAIT = 2
_RUNTIME, _DRIVER = 0, 1
_VERSION = re.compile(r"_v[0-9]+(?:_ptsz|_ptds)?$|_(?:ptsz|ptds)$")
#: Names of ops among torch's ranges with numbers; other names with numbers are ranges of the user's.
_OP = re.compile(r"[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*")
#: A module call as hooks for NVTX write it: ``{'Module': 'model.layers.0', 'Inputs': ...``.
_HOOK = re.compile(r"\{'Module': '(?P<name>[^']{1,500})'")
_LIGHTNING = "[pl][module]"
_GRAPH_LAUNCH = re.compile(r"cu(?:da)?GraphLaunch")

_NAME, _SEQ, _OP_ID, _SIZES = "text", "', seq = '", "', op_id = '", "', sizes = '"


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
class _File:
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


def read(path: Path, limits: Limits, progress: Progress | None = None) -> list[TraceColumns]:
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
        found = _File(str(path), file)
        _kernels(found)
        _copies_and_sets(found)
        _graphs(found)
        _synchronisation(found)
        _calls(found)
        _ranges(found)
        _system_calls(found)
        _overheads(found)
        facts = _Facts.of(found)
        if found.unplaced:
            found.notes.append(f"{found.unplaced:,} records without a start or an end are left out.")
    if not any(len(part) for part in found.parts):
        raise TraceError(f"{path} holds no events: Nsight Systems recorded no GPU work, CUDA calls or NVTX ranges.")
    return _by_process(found, facts)


def read_report(path: Path, limits: Limits, progress: Progress | None = None) -> list[TraceColumns]:
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


def _placed(found: _File, columns: dict[str, Ints]) -> dict[str, Ints]:
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


def _table(found: _File, table: str, *names: str) -> dict[str, Ints]:
    """Columns of a table of intervals, those that it has; empty if it is not there or has no times."""
    if not {"start", "end"} <= found.file.columns(table):
        return {}
    columns = found.file.numbers(table, ("start", "end", *names))
    return _placed(found, columns)


def _missing(values: Ints | None) -> Ints | None:
    """Values with `MISSING` where there is none."""
    if values is None:
        return None
    nothing = (values == NULL) | (values == _NO_ID)
    if nothing.any():
        values[nothing] = MISSING
    return values


def _process(columns: Mapping[str, Ints]) -> Ints | None:
    """The process of each row; of a file that does not tell, 0."""
    key = columns.get("globalPid", columns.get("globalTid"))
    return None if key is None else _missing(np.where(key == NULL, NULL, (key >> _BITS) & _LOW))


def _thread(columns: Mapping[str, Ints]) -> Ints | None:
    key = columns.get("globalTid")
    return None if key is None else np.where(key == NULL, MISSING, key & _LOW)


def _add(
    found: _File, category: str, columns: dict[str, Ints], own: Mapping[str, Ints | None], on_device: bool = False
) -> None:
    """Add events; `own` are columns of `TraceColumns`."""
    if not len(columns.get("start_ns", ())):
        return
    part = {name: values for name, values in own.items() if values is not None and (values != MISSING).any()}
    process = _process(columns)
    if process is not None:
        part["pid"] = process
    part["start_ns"] = columns["start_ns"]
    part["end_ns"] = columns["end_ns"]
    found.parts.append(_Part(category, part, on_device))


def _of_device(columns: dict[str, Ints]) -> dict[str, Ints | None]:
    return {
        "device": _missing(columns.get("deviceId")),
        "stream": _missing(columns.get("streamId")),
        "correlation": _correlation(columns),
    }


def _correlation(columns: dict[str, Ints]) -> Ints | None:
    """Numbers that join calls and work; 0 is none."""
    values = _missing(columns.get("correlationId"))
    if values is not None:
        values[values == 0] = MISSING
    return values


def _named(found: _File, ids: Ints, clean: re.Pattern[str] | None = None, unknown: str = "unnamed") -> Ints:
    """The numbers of the names that a column of ``StringIds`` stands for."""
    wanted, place = np.unique(ids, return_inverse=True)
    texts = found.file.texts_of("StringIds", "id", "value", wanted)
    labels = [texts.get(one, unknown) for one in wanted.tolist()]
    codes = [found.code(clean.sub("", one) if clean else one) for one in labels]
    return np.array(codes, dtype=np.int64)[place.reshape(-1)]


def _kernels(found: _File) -> None:
    there = found.file.columns(_KERNELS)
    name = next((one for one in ("demangledName", "shortName", "mangledName") if one in there), None)
    columns = _table(found, _KERNELS, "globalPid", "deviceId", "streamId", "correlationId", *([name] if name else []))
    if not columns:
        return
    count = len(columns["start_ns"])
    ids = columns.pop(name) if name else np.full(count, MISSING, dtype=np.int64)
    names = _named(found, ids, unknown="kernel without a name")
    _add(found, "kernel", columns, {"name": names, **_of_device(columns)}, True)


def _copies_and_sets(found: _File) -> None:
    both = ("globalPid", "deviceId", "streamId", "correlationId", "bytes")
    copies = _table(found, _COPIES, *both, "copyKind", "srcKind", "dstKind")
    if copies:
        count = len(copies["start_ns"])
        nothing = np.full(count, MISSING, dtype=np.int64)
        kinds = np.stack([copies.get(one, nothing) for one in ("copyKind", "srcKind", "dstKind")], axis=1)
        distinct, place = np.unique(kinds, axis=0, return_inverse=True)
        codes = [found.code(_copy_name(*row)) for row in distinct.tolist()]
        names = np.array(codes, dtype=np.int64)[place.reshape(-1)]
        own = {"name": names, "bytes": _missing(copies.get("bytes")), **_of_device(copies)}
        _add(found, "gpu_memcpy", copies, own, True)
    sets = _table(found, _SETS, *both, "memKind")
    if sets:
        kind = sets.get("memKind", np.full(len(sets["start_ns"]), MISSING, dtype=np.int64))
        distinct, place = np.unique(kind, return_inverse=True)
        codes = [found.code(f"Memset ({_MEMORY.get(one, 'Unknown')})") for one in distinct.tolist()]
        names = np.array(codes, dtype=np.int64)[place.reshape(-1)]
        own = {"name": names, "bytes": _missing(sets.get("bytes")), **_of_device(sets)}
        _add(found, "gpu_memset", sets, own, True)


def _copy_name(kind: int, source: int, target: int) -> str:
    """As torch names copies: ``Memcpy HtoD (Pageable -> Device)``."""
    where = f" ({_MEMORY[source]} -> {_MEMORY[target]})" if source in _MEMORY and target in _MEMORY else ""
    return f"Memcpy {_COPY.get(kind, 'Unknown')}{where}"


def _graphs(found: _File) -> None:
    """CUDA graphs recorded as wholes: each launch is one piece of work."""
    columns = _table(found, _GRAPHS, "globalPid", "deviceId", "streamId", "correlationId", "graphId")
    if not columns or not len(columns["start_ns"]):
        return
    graph = columns.get("graphId", np.full(len(columns["start_ns"]), NULL, dtype=np.int64))
    distinct, place = np.unique(graph, return_inverse=True)
    codes = [found.code("CUDA graph" if one == NULL else f"CUDA graph {one}") for one in distinct.tolist()]
    names = np.array(codes, dtype=np.int64)[place.reshape(-1)]
    _add(found, "kernel", columns, {"name": names, **_of_device(columns)}, True)
    found.notes.append(
        f"{len(names):,} launches of CUDA graphs were recorded as wholes: each counts as one kernel, CUDA graph, and "
        "the kernels inside are not in the file. nsys profile --cuda-graph-trace=node records them."
    )


def _synchronisation(found: _File) -> None:
    names = ("globalPid", "deviceId", "streamId", "correlationId", "syncType", "eventId", "eventSyncId")
    columns = _table(found, _SYNCS, *names)
    if not columns or not len(columns["start_ns"]):
        return
    count = len(columns["start_ns"])
    kind = columns.get("syncType", np.zeros(count, dtype=np.int64))
    distinct, place = np.unique(kind, return_inverse=True)
    codes = [found.code(_SYNC.get(one, "Synchronization")) for one in distinct.tolist()]
    waits = _recorded(found, columns, kind)
    name = np.array(codes, dtype=np.int64)[place.reshape(-1)]
    _add(found, "cuda_sync", columns, {"name": name, **_of_device(columns), **waits}, True)


def _recorded(found: _File, columns: dict[str, Ints], kind: Ints) -> dict[str, Ints]:
    """The stream on which the event that a synchronisation waits for was recorded, and the call that recorded it."""
    keys = ("globalPid", "eventId", "eventSyncId")
    if not {*keys, "streamId", "correlationId"} <= found.file.columns(_EVENTS) or not {*keys} <= columns.keys():
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
    known = (sorted_codes[place] == code[size:]) & np.isin(kind, (1, _WAIT)) & (columns["eventId"] != _NO_ID)
    row = order[place]
    stream, call = _missing(events["streamId"]), _correlation(events)
    assert stream is not None
    assert call is not None
    return {
        "wait_stream": np.where(known, stream[row], MISSING),
        "wait_correlation": np.where(known, call[row], MISSING),
    }


def _calls(found: _File) -> None:
    columns = _table(found, _CALLS, "globalTid", "correlationId", "nameId", "eventClass")
    if not columns or not len(columns["start_ns"]):
        return
    kind = columns.pop("eventClass", None)
    if kind is not None:  # other classes repeat the calls inside them
        kept = np.isin(kind, (_RUNTIME, _DRIVER))
        if not kept.all():
            columns, kind = {name: values[kept] for name, values in columns.items()}, kind[kept]
    ids = columns.pop("nameId", np.full(len(columns["start_ns"]), MISSING, dtype=np.int64))
    names = _named(found, ids, _VERSION, "CUDA call without a name")
    own = {"name": names, "correlation": _correlation(columns), "thread": _thread(columns)}
    for number, category in ((_RUNTIME, "cuda_runtime"), (_DRIVER, "cuda_driver")):
        if kind is None or (kind == number).all():
            if number == _RUNTIME or kind is not None:
                _add(found, category, columns, own)
            continue
        mine = np.flatnonzero(kind == number)
        part = {name: values[mine] for name, values in columns.items()}
        _add(found, category, part, {one: None if values is None else values[mine] for one, values in own.items()})


def _ranges(found: _File) -> None:
    there = found.file.columns(_RANGES)
    if not {"start", "end", "eventType"} <= there:
        return
    text = '"text"' if "text" in there else "NULL"
    numbers: dict[str, str] = {
        one: f'"{one}"' for one in ("start", "end", "eventType", "globalTid", "textId") if one in there
    }
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
    ids = columns.pop("textId", None)
    nameless = columns["name"] == MISSING
    if nameless.any():
        unnamed = np.full(int(nameless.sum()), MISSING, dtype=np.int64) if ids is None else ids[nameless]
        columns["name"][nameless] = _named(found, unnamed, unknown="range without a name")
    thread = _thread(columns)
    for name in behind:
        columns[name] = np.where(columns[name] > 0, columns[name], MISSING) if name == "external_id" else columns[name]
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
        own = {name: part[name] for name in ("name", "shapes", "sequence", "external_id", "forward_thread")}
        _add(found, category, part, {"thread": None if thread is None else thread[chosen], **own})


def _forward_threads(labels: list[str], columns: Mapping[str, Ints]) -> Ints:
    """1 for what runs in a backward pass with the number of a forward op, else missing.

    NVTX does not tell the thread on which the forward op ran; the number of the op finds it.
    """
    nodes = [one.removeprefix(BACKWARD_NODE).lstrip(": ") for one in labels if one.startswith(BACKWARD_NODE)]
    inside = frozenset(nodes)
    backward = np.array([one.startswith(BACKWARD_NODE) or one in inside for one in labels], dtype=bool)
    return np.where(backward[columns["name"]] & (columns["sequence"] != MISSING), 1, MISSING)


def _system_calls(found: _File) -> None:
    columns = _table(found, _SYSTEM, "globalTid", "nameId")
    if columns and len(columns["start_ns"]) and "nameId" in columns:
        names = _named(found, columns.pop("nameId"), unknown="system call without a name")
        _add(found, "os_runtime", columns, {"name": names, "thread": _thread(columns)})


def _overheads(found: _File) -> None:
    for table in _OVERHEADS:
        columns = _table(found, table, "globalTid", "nameId")
        if columns and len(columns["start_ns"]) and {"nameId", "globalTid"} <= columns.keys():
            names = _named(found, columns.pop("nameId"), unknown="overhead")
            _add(found, "overhead", columns, {"name": names, "thread": _thread(columns)})


@dataclass(frozen=True)
class _Facts:
    """What the file says of the machine and of its processes; never the command line or the environment."""

    base_ns: int
    devices: list[dict[str, Any]]
    processes: dict[int, str]
    threads: dict[tuple[int, int], str]

    @classmethod
    def of(cls, found: _File) -> _Facts:
        file = found.file
        base = file.numbers("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)).get("utcEpochNs", np.array([NULL]))
        threads: dict[tuple[int, int], str] = {}
        columns = file.numbers("ThreadNames", ("globalTid", "nameId"))
        if {"globalTid", "nameId"} <= columns.keys():
            texts = file.texts_of("StringIds", "id", "value", np.unique(columns["nameId"]))
            for key, name in zip(columns["globalTid"].tolist(), columns["nameId"].tolist(), strict=True):
                if name in texts and key != NULL:
                    threads[(key >> _BITS) & _LOW, key & _LOW] = texts[name]
        processes: dict[int, str] = {}
        if "globalPid" in file.columns("PROCESSES"):
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
    there = file.columns(table)
    if "name" not in there or not there & {"id", "cuDevice"}:
        return []
    columns = file.numbers(table, ("id", "cuDevice", *keys))
    # CUDA numbers its devices otherwise than the machine does.
    number = columns.get("cuDevice", columns.get("id"))
    assert number is not None
    key = "cuDevice" if "cuDevice" in columns else "id"
    named = file.texts_of(table, key, "name", np.unique(number))
    found = []
    for row, one in enumerate(number[:1000].tolist()):
        if one in named:
            facts = {keys[name]: int(columns[name][row]) for name in keys if name in columns}
            found.append({"id": one, "name": named[one], **{k: v for k, v in facts.items() if v != NULL}})
    return found


def _by_process(found: _File, facts: _Facts) -> list[TraceColumns]:
    """One trace for each process with work on a GPU; without any, of the process with the most events."""
    told = {pid for part in found.parts for pid in pd.unique(part.columns.get("pid", np.array([MISSING]))).tolist()}
    if len(told - {MISSING}) < 2 or not all("pid" in part.columns for part in found.parts):
        # One process, or a file that does not say whose each event is: all of it counts as one.
        for part in found.parts:
            part.columns.pop("pid", None)
        return [_trace(found, facts, max(told, default=0) if len(told - {MISSING}) == 1 else 0, found.parts)]
    counts: dict[int, int] = {}
    working: dict[int, int] = {}
    for part in found.parts:
        pids = part.columns["pid"]
        for pid, many in zip(*(one.tolist() for one in np.unique(pids, return_counts=True)), strict=True):
            counts[pid] = counts.get(pid, 0) + many
            if part.on_device and part.category != "cuda_sync":
                lowest = int(part.columns["device"][pids == pid].min()) if "device" in part.columns else 0
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


_FILLED = (
    *("name", "category", "start_ns", "duration_ns", "thread", "device", "stream", "correlation", "sequence"),
    *("forward_thread", "process", "external_id", "python_id", "python_parent", "shapes", "collective", "group"),
    *("wait_stream", "wait_correlation", "bytes", "elements", "dtype"),
)


def _trace(found: _File, facts: _Facts, pid: int, parts: list[_Part]) -> TraceColumns:
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
    starts, ends = _extent(parts)
    if not -(2**63) <= facts.base_ns + ends < 2**63 or ends - starts >= 2**63:
        raise TraceError(f"{found.source} cannot be read as a trace: its times do not fit in 64 bits.")
    filled = {}
    for name in _FILLED:
        filled[name] = _filled([_column(part, name, categories, pid) for part in parts], lengths)
        for part in parts:
            if name not in ("device", "stream"):  # these name the tracks of work on a GPU too
                part.columns.pop(name, None)
    none = np.array([], dtype=np.int64)
    notes = [*found.notes, *_missing_work(found, filled, categories)]
    return TraceColumns(
        **filled,
        names=found.names.labels,
        categories=categories,
        memory=MemoryColumns(*[none] * 9),
        shape_texts=found.shapes.labels,
        collective_names=[],
        group_names=[],
        dtype_names=[],
        base_ns=facts.base_ns,
        negative_durations=negative,
        devices=facts.devices,
        process_names={pid: facts.processes[pid]} if pid in facts.processes else {},
        thread_names={key: name for key, name in facts.threads.items() if key[0] == pid},
        rank=None,
        world_size=None,
        process_labels={},
        perfnb=None,
        unit_ns=1,
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


def _extent(parts: list[_Part]) -> tuple[int, int]:
    starts = [int(part.columns["start_ns"].min()) for part in parts]
    ends = [int((part.columns["start_ns"] + part.columns["duration_ns"]).max()) for part in parts]
    return min(starts), max(ends)


def _column(part: _Part, name: str, categories: list[str], pid: int) -> Ints | int:
    """A column of events, or the one value that all have."""
    if name == "category":
        return categories.index(part.category)
    if name == "process":
        return part.columns.get("device", MISSING) if part.on_device else pid
    if name == "thread" and part.on_device:
        return part.columns.get("stream", MISSING)
    return part.columns.get(name, MISSING)


def _missing_work(found: _File, columns: Mapping[str, Ints], categories: list[str]) -> list[str]:
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
