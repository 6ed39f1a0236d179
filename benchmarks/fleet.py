"""Reduce a fleet of traces with a process pool and with Dask: CPU time, and the memory of the largest worker.

The fleet consists of 200 copies of the public traces, each in its own folder, with a total size of 2 GB unpacked. For
comparison, a single process reads only the largest trace.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from benchmarks.traces import FOLDER

#: The number of copies of the large traces, and the total number of copies.
_LARGE, _COPIES = {"mi300_owlv2_large.json.gz": 21, "v100_resnet50_2021.json.gz": 25}, 200

_REDUCE = """
import resource, sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
import perfnb

if __name__ == "__main__":
    kind, work, journal = sys.argv[1:]
    paths = sorted(Path(work).glob("*/*.json*"))
    if kind == "dask":
        from distributed import Client, LocalCluster
        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as one:
            opened = perfnb.load(paths, executor=one, journal=journal)
    elif kind == "pool":
        with ProcessPoolExecutor(2) as pool:
            opened = perfnb.load(paths, executor=pool, journal=journal)
    else:
        opened = perfnb.load(max(paths, key=lambda path: path.stat().st_size), journal=journal)
    own, workers = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own_kb = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
    print(len(opened), len(opened.damaged), own.ru_utime + own.ru_stime, own_kb,
          workers.ru_utime + workers.ru_stime, workers.ru_maxrss)
"""


def run() -> Iterator[str]:
    """Yield one line for each way of reading."""
    if not FOLDER.is_dir():
        yield f"fleet: {FOLDER} does not exist"
        return
    with tempfile.TemporaryDirectory() as work:
        unpacked = fill(Path(work) / "raw", _COPIES)
        script = Path(work) / "reduce.py"
        script.write_text(_REDUCE)
        yield f"fleet: {_COPIES} traces, {unpacked / 1e9:.1f} GB unpacked"
        for kind in ("alone", "pool", *(["dask"] if find_spec("distributed") else [])):
            begin = time.monotonic()
            done = subprocess.run(
                [sys.executable, str(script), kind, f"{work}/raw", f"{work}/{kind}"],
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            )
            rows, damaged, own_s, own_kb, workers_s, workers_kb = map(float, done.stdout.split()[-6:])
            yield (
                f"fleet: {kind}: {rows:.0f} rows, {damaged:.0f} damaged; {own_s + workers_s:.0f} s of CPU in "
                f"{time.monotonic() - begin:.0f} s; {own_kb / 1024:.0f} MiB at most here, "
                f"{workers_kb / 1024:.0f} MiB in a worker"
            )


def fill(folder: Path, copies: int) -> int:
    """Link the traces into folders, one folder for each copy, and return the number of bytes that they unpack to."""
    names = [name for name, count in _LARGE.items() for _ in range(count * copies // _COPIES)]
    small = sorted(path.name for path in FOLDER.iterdir() if path.name not in _LARGE)
    names += [small[place % len(small)] for place in range(copies - len(names))]
    sizes = {name: unpacked_bytes(FOLDER / name) for name in set(names)}
    for number, name in enumerate(names):
        (folder / f"{number:03d}").mkdir(parents=True)
        shutil.copyfile(FOLDER / name, folder / f"{number:03d}" / name)
    return sum(sizes[name] for name in names)


def unpacked_bytes(path: Path) -> int:
    """Return the unpacked size of a file."""
    if path.suffix != ".gz":
        return path.stat().st_size
    with subprocess.Popen(["gzip", "-dc", str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        size = 0
        while block := process.stdout.read(1 << 20):
            size += len(block)
        return size
