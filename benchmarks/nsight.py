"""Read an Nsight Systems export of five million kernels, and compare it with ``SELECT *`` through `sqlite3`.

Ratios are based on CPU time, which is less affected by other work on the machine.

Each figure is from a separate process and excludes imports. Memory is the peak of the process (``ru_maxrss``) minus the
peak after the imports. ``SELECT *`` keeps one block of rows in memory at a time.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.nsys_files import TABLES, pid, tid

_KERNELS, _NAMES = 5_000_000, 50
_PROCESS = 77

_MEASURED = """
import json, resource, sys, time
path = sys.argv[1]
{imports}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
begin, busy = time.perf_counter(), time.process_time()
{action}
seconds, busy = time.perf_counter() - begin, time.process_time() - busy
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps([seconds, busy, peak * (1 if sys.platform == "darwin" else 1024), str(said)]))
"""
_SELECT = """
said, connection = 0, sqlite3.connect(path)
for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
    cursor = connection.execute(f"SELECT * FROM {table}")
    while rows := cursor.fetchmany(20_000):
        said += len(rows)
"""
_IMPORTS = (
    "from pathlib import Path; import perfnb, perfnb.profile.loading, pandas, scipy.stats; "
    "from perfnb.trace.nsys import read; from perfnb.trace.trace_file import LIMITS"
)
_WAYS = {
    "SELECT *": ("import sqlite3", _SELECT),
    "columns": (_IMPORTS, "said = sum(map(len, read(Path(path), LIMITS)))"),
    "load and gpu_time": (_IMPORTS, "said = perfnb.load(path).gpu_time['kernels'].sum()"),
}


def run() -> Iterator[str]:
    """Yield a line for each way of reading the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "large.sqlite")
        write(path, _KERNELS)
        least = 0.0
        for name, (imports, action) in _WAYS.items():
            code = _MEASURED.format(imports=imports, action=action)
            done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
            seconds, busy, peak, said = json.loads(done.stdout.splitlines()[-1])
            least = least or busy
            much = f"{seconds:.1f} s, {busy:.1f} s of CPU ({busy / least:.2f} of SELECT *), {peak / 2**30:.2f} GiB"
            yield f"nsight: {name}: {much} ({said}; {_KERNELS:,} kernels, {path.stat().st_size / 2**30:.2f} GiB)"


def write(path: Path, kernels: int) -> None:
    """Write an export with the given number of kernels, each with its launch call, and every hundredth with a range."""
    connection = sqlite3.connect(path)
    for pragma in ("journal_mode=OFF", "synchronous=OFF"):
        connection.execute(f"PRAGMA {pragma}")
    for table in ("StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
        connection.execute(f"CREATE TABLE {table} ({TABLES[table]})")
    names = [(number, f"void kernel_{number}<float>(float*, int)") for number in range(_NAMES)]
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", [*names, (_NAMES, "cudaLaunchKernel_v7000")])
    count = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {kernels})"
    columns = TABLES["CUPTI_ACTIVITY_KIND_KERNEL"].split(", ")
    given = {
        **{"start": "i * 9000 + 5000", "end": "i * 9000 + 13000", "deviceId": "0", "contextId": "1", "streamId": "7"},
        **{"correlationId": "i", "globalPid": str(pid(_PROCESS)), "demangledName": f"i % {_NAMES}"},
        **{"graphNodeId": "NULL", "tensorSizeMinusOneElements": "'[]'"},
    }
    values = [given.get(column.split()[0], "i % 1024") for column in columns]
    connection.execute(f"{count} INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT {', '.join(values)} FROM n")
    call = f"i * 9000, i * 9000 + 4000, 0, {tid(_PROCESS)}, i, {_NAMES}, 0, NULL"
    connection.execute(f"{count} INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT {call} FROM n")
    text = "'aten::op_' || (i % 20) || ', seq = ' || i || ', op_id = ' || i"
    ranges = f"i * 9000 - 100, i * 9000 + 4500, 59, NULL, NULL, NULL, {text}, {tid(_PROCESS)}, NULL, NULL, 0"
    connection.execute(f"{count} INSERT INTO NVTX_EVENTS SELECT {ranges} FROM n WHERE i % 100 = 0")
    connection.commit()
    connection.close()
