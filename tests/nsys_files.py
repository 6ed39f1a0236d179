"""Write Nsight Systems exports by hand, with any of the tables and columns of schema 3.25."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_WORK = "start INT NOT NULL, end INT NOT NULL, deviceId INT, contextId INT, greenContextId INT, streamId INT"
_DIM = "gridX INT, gridY INT, gridZ INT, blockX INT, blockY INT, blockZ INT"
TABLES = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        f"{_WORK}, correlationId INT, globalPid INT, demangledName INT, shortName INT, mangledName INT, "
        f"launchType INT, cacheConfig INT, registersPerThread INT, {_DIM}, "
        "staticSharedMemory INT, dynamicSharedMemory INT, localMemoryPerThread INT, localMemoryTotal INT, gridId INT, "
        "sharedMemoryExecuted INT, graphNodeId INT, sharedMemoryLimitConfig INT, qmdBulkReleaseDone INT, "
        "qmdPreexitDone INT, qmdLastCtaDone INT, graphId INT, clusterX INT, clusterY INT, clusterZ INT, "
        "clusterSchedulingPolicy INT, maxPotentialClusterSize INT, maxActiveClusters INT, "
        "sharedMemoryRequestedPercentage INT, tensorSizeMinusOneElements TEXT"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        f"{_WORK}, correlationId INT, globalPid INT, bytes INT, copyKind INT, srcKind INT, dstKind INT"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_WORK}, correlationId INT, globalPid INT, value INT, bytes INT, memKind INT",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_WORK}, correlationId INT, globalPid INT, graphId INT, graphExecId INT",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        f"{_WORK}, correlationId INT, globalPid INT, syncType INT, eventId INT, eventSyncId INT"
    ),
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": (
        "timestamp INT, deviceId INT, contextId INT, streamId INT, correlationId INT, globalPid INT, eventId INT, "
        "eventSyncId INT"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start INT, end INT, eventClass INT, globalTid INT, correlationId INT, nameId INT, returnValue INT, "
        "callchainId INT"
    ),
    "NVTX_EVENTS": (
        "start INT, end INT, eventType INT, rangeId INT, category INT, color INT, text TEXT, globalTid INT, "
        "endGlobalTid INT, textId INT, domainId INT"
    ),
    "OSRT_API": "start INT, end INT, eventClass INT, globalTid INT, correlationId INT, nameId INT",
    "PROCESSES": "globalPid INT, pid INT, name TEXT",
    "ThreadNames": "nameId INT, priority INT, globalTid INT",
    "TARGET_INFO_GPU": (
        "vmId INT, id INT, name TEXT, totalMemory INT, smCount INT, uuid TEXT, cuDevice INT, computeMajor INT, "
        "computeMinor INT"
    ),
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INT, utcTime TEXT, localTime TEXT",
    "META_DATA_CAPTURE": "name TEXT, value TEXT",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INT, devStateName TEXT, name TEXT, nameEnum INT, value TEXT",
}
_MACHINE = 2**48


def tid(process: int, thread: int | None = None) -> int:
    """Return a ``globalTid``, which is that of the main thread by default."""
    return _MACHINE + process * 2**24 + (process if thread is None else thread)


def pid(process: int) -> int:
    """Return a ``globalPid``."""
    return _MACHINE + process * 2**24


def write(path: Path, tables: Mapping[str, Iterable[Mapping[str, Any]]]) -> Path:
    """Write an export with the given tables and rows. Columns that are missing in a row are NULL."""
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as connection:
        for table, rows in tables.items():
            connection.execute(f'CREATE TABLE "{table}" ({TABLES[table]})')
            for row in rows:
                names = ", ".join(f'"{name}"' for name in row)
                connection.execute(
                    f'INSERT INTO "{table}" ({names}) VALUES ({", ".join("?" * len(row))})', list(row.values())
                )
    connection.close()
    return path


KERNEL, COPY, CALL, RANGE = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
)
_NAMES = ["cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "gemm<float>(float*)", "gemm_backward<float>(float*)"]
LAUNCH, COPYING, GEMM, BACKWARD = range(4)
STEP_NS = 1_000_000


def strings(*more: str) -> list[dict[str, Any]]:
    """Return the rows of ``StringIds``: the names above, followed by the given strings."""
    return [{"id": number, "value": text} for number, text in enumerate([*_NAMES, *more])]


def launched(start: int, number: int, process: int, name: int = GEMM, length: int = 100_000) -> tuple[Any, Any]:
    """Return a launch call of 5 µs that starts at a given time, and its kernel, which starts 10 µs later."""
    call = {"start": start, "end": start + 5_000, "eventClass": 0, "globalTid": tid(process), "correlationId": number}
    work = {"start": start + 10_000, "end": start + 10_000 + length, "deviceId": process % 2, "streamId": 7}
    return {**call, "nameId": LAUNCH}, {
        **work,
        **{"correlationId": number, "globalPid": pid(process), "demangledName": name, "shortName": name},
    }


def pushed(start: int, end: int, text: str, process: int, thread: int | None = None) -> dict[str, Any]:
    """Return a range that is pushed and popped."""
    return {"start": start, "end": end, "eventType": 59, "text": text, "globalTid": tid(process, thread)}


def training(process: int = 40, steps: int = 3, at: int = 10**9) -> dict[str, list[dict[str, Any]]]:
    """Return steps with a module's forward and backward, named as by ``emit_nvtx`` and Lightning, each after a copy."""
    kernels, calls, ranges, copies = [], [], [], []
    for step in range(steps):
        zero, number = at + step * STEP_NS, 10 * step + 1
        calls.append(
            {"start": zero + 20_000, "end": zero + 25_000, "eventClass": 0, "globalTid": tid(process)}
            | {"correlationId": number, "nameId": COPYING}
        )
        copies.append(
            {"start": zero + 30_000, "end": zero + 40_000, "deviceId": process % 2, "streamId": 7, "bytes": 4096}
            | {"correlationId": number, "globalPid": pid(process), "copyKind": 1, "srcKind": 1, "dstKind": 2}
        )
        for offset, name in ((200_000, GEMM), (500_000, BACKWARD)):
            number += 1
            call, kernel = launched(zero + offset + 10_000, number, process, name)
            calls.append(call)
            kernels.append(kernel)
        node = f"autograd::engine::evaluate_function: AddmmBackward0, seq = {step + 5}, op_id = {number + 2}"
        ranges += [
            pushed(zero, zero + 900_000, f"iteration {step + 20}", process),
            pushed(zero + 10_000, zero + 50_000, f"aten::copy_, op_id = {number}", process),
            pushed(zero + 190_000, zero + 300_000, "[pl][module]torch.nn.modules.linear.Linear: head", process),
            pushed(
                zero + 200_000,
                zero + 290_000,
                f"aten::addmm, seq = {step + 5}, op_id = {number + 1}, sizes = [[8, 4], [4, 2]]",
                process,
            ),
            pushed(zero + 490_000, zero + 700_000, node, process, process + 1),
            pushed(
                zero + 500_000, zero + 690_000, f"AddmmBackward0, seq = {step + 5}, op_id = 9", process, process + 1
            ),
            pushed(zero + 505_000, zero + 680_000, "aten::mm, op_id = 10", process, process + 1),
        ]
        calls[-1]["globalTid"] = tid(process, process + 1)
    return {"StringIds": strings(), KERNEL: kernels, COPY: copies, CALL: calls, RANGE: ranges}


def joined(*files: Mapping[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of several processes in one file, with the string ids of the first process."""
    return {
        table: files[0][table] if table == "StringIds" else [row for one in files for row in one.get(table, [])]
        for table in files[0]
    }
