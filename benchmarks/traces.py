"""Measure time and memory from trace files to tables, compared with HTA (``traceinsight``), ``json`` and ``orjson``.

Each figure is the median of interleaved runs in new processes. Times are from the file to the result, without imports.
Memory is the peak of the process (``ru_maxrss``) minus the peak after the imports.

HTA runs without its process pool and without its own memory measurement (``tracemalloc``). This makes it faster, and
neither is necessary for a single file. These are HTA's closest equivalents:

=========  ==================================================================
events     ``Trace.parse_traces`` and ``align_and_filter_trace``, which create its frame of events
kernels    ``get_gpu_kernel_breakdown``, without charts
gpu_time   ``get_temporal_breakdown`` and ``get_comm_comp_overlap``, without charts
ops        none, because it has no table of operator times
=========  ==================================================================

HTA's time for the tables therefore excludes operators. A separate line adds ``get_aten_op_kernels_and_delay``, which is
closest to ``ops``. It is timed only once and stopped after two minutes, because it loops over the operators.

A last line per trace compares the CPU time of the reader alone, from file to columns, with the least it could take:
reading the file and decoding it with msgspec, whole and into the same types.

If HTA fails in one of these calls, as it does without a GPU, the output contains a note, and the time until the failure
counts.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("PERFNB_TRACES") or Path(__file__).parents[2] / "shared" / "traces") / "kineto"
_PUBLIC = ("mi300_owlv2_large.json.gz", "v100_resnet50_2021.json.gz")
_LEAST_BYTES, _LEAST_EVENTS = 300_000_000, 800_000
_RUNS, _RUNS_LARGE = 5, 3
_MOST_OF_LEAST = 1.3
_MOST_CAPTURES = 5
#: HTA is stopped after this time, because it loops over the operators, which takes too long for a large trace.
_PATIENCE_S = 120

_CAPTURE = """
import sys, torch
from torch.profiler import ProfilerActivity, profile, schedule
model = torch.nn.Sequential(*[part for _ in range(8)
                              for part in (torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.ReLU())])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
batch, updates, steps = torch.randn(16, 64), int(sys.argv[2]), 10
with profile(activities=[ProfilerActivity.CPU], record_shapes=True,
             schedule=schedule(wait=0, warmup=1, active=steps, repeat=1)) as profiler:
    for _ in range(steps + 1):
        for _ in range(updates):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        profiler.step()
profiler.export_chrome_trace(sys.argv[1])
"""
_MEASURED = """
import json, resource, sys, time
path, folder = sys.argv[1], sys.argv[2]
{imports}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
begin = time.perf_counter()
said = ""
{action}
seconds = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps([seconds, peak * (1 if sys.platform == "darwin" else 1024), str(said)]))
"""
_OURS = "import perfnb, perfnb.profile.loading, pandas, pyarrow.parquet, scipy.stats"
_HTA = """
import logging, os, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
from hta.common.trace import Trace
from hta.trace_analysis import TraceAnalysis
"""
_HTA_EVENTS = """
trace = Trace({0: path}, os.path.dirname(path))
trace.parse_traces(use_multiprocessing=False, use_memory_profiling=False)
trace.align_and_filter_trace(include_last_profiler_step=True)
trace.is_parsed = True
said = len(trace.get_trace(0))
"""
_HTA_TABLES = (
    _HTA_EVENTS
    + """
analysis = TraceAnalysis.__new__(TraceAnalysis)
analysis.t, said = trace, []
for name in ("get_gpu_kernel_breakdown", "get_temporal_breakdown", "get_comm_comp_overlap"):
    try:
        getattr(analysis, name)(visualize=False)
    except Exception as error:
        said.append(f"{name} ({type(error).__name__})")
said = ", ".join(said)
"""
)
_HTA_OPS = (
    _HTA_EVENTS
    + """
analysis = TraceAnalysis.__new__(TraceAnalysis)
analysis.t, begin = trace, time.perf_counter()
try:
    analysis.get_aten_op_kernels_and_delay()
except Exception as error:
    said = f"failed ({type(error).__name__})"
"""
)
_READ = "data = (gzip.open if path.endswith('.gz') else open)(path, 'rb').read()\n"
#: A script that measures the CPU time of the minimum and of the reader in the same process.
_LEAST = """
import gc, gzip, json, sys, time
import msgspec
from perfnb.trace import kineto
from perfnb.trace.chrome_json import Event, Quick, Top
path = sys.argv[1]
decoder = msgspec.json.Decoder(Top[Event[Quick]])
begin = time.process_time()
data = (gzip.open if path.endswith(".gz") else open)(path, "rb").read()
gc.disable()
events = decoder.decode(data)
least = time.process_time() - begin
gc.enable()
del data, events
begin = time.process_time()
kineto.read(path)
print(json.dumps([least, time.process_time() - begin]))
"""
#: The imports and the code to run, by name.
_ACTIONS = {
    "events": (_OURS, "said = len(perfnb.load(path).events)"),
    "tables": (_OURS, "profile = perfnb.load(path); profile.kernels; profile.gpu_time; profile.ops"),
    "second events": (_OURS, "perfnb.load(folder).events"),
    "second tables": (_OURS, "profile = perfnb.load(folder); profile.kernels; profile.gpu_time; profile.ops"),
    "json": ("import gzip, json", _READ + "json.loads(data)"),
    "orjson": ("import gzip, orjson", _READ + "orjson.loads(data)"),
    "hta events": (_HTA, _HTA_EVENTS),
    "hta tables": (_HTA, _HTA_TABLES),
    "hta ops": (_HTA, _HTA_OPS),
}


def run() -> Iterator[str]:
    """Yield a few lines per trace, for events, for tables, and for both from the saved profile."""
    with tempfile.TemporaryDirectory(prefix="perfnb-") as work:
        yield from _measure(_captured(Path(work)), Path(work), _RUNS_LARGE)
        for name in _PUBLIC:
            if (FOLDER / name).is_file():
                yield from _measure(FOLDER / name, Path(work), _RUNS)
            else:
                yield f"traces: {name}: skipped, it is not in {FOLDER}; set PERFNB_TRACES to the parent folder"


def _captured(work: Path) -> Path:
    """Record a large CPU trace with shapes. It has only a few steps, because HTA takes minutes for a thousand steps."""
    path, updates = work / "cpu_with_shapes.json", 130
    for _ in range(_MOST_CAPTURES):
        subprocess.run([sys.executable, "-c", _CAPTURE, str(path), str(updates)], check=True, capture_output=True)
        text = path.read_bytes()
        if len(text) >= _LEAST_BYTES and text.count(b'"ph": "X"') >= _LEAST_EVENTS:
            return path
        updates += updates // 4
    raise RuntimeError(f"No capture was large enough; the last of {_MOST_CAPTURES} has {len(text):,} bytes.")


def _measure(path: Path, work: Path, runs: int) -> Iterator[str]:
    folder = work / f"{path.name}.perfnb"
    save = "import sys, perfnb; perfnb.load(sys.argv[1]).save(sys.argv[2])"
    subprocess.run([sys.executable, "-c", save, str(path), str(folder)], check=True, capture_output=True)
    absent = {name for name, module in (("hta", "hta"), ("orjson", "orjson")) if find_spec(module) is None}
    actions = [name for name in _ACTIONS if name != "hta ops" and name.split()[0] not in absent]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in actions}
    said: dict[str, str] = {}
    for _ in range(runs):
        for name in actions:
            seconds, used, said[name] = _fresh(name, path, folder)
            found[name].append((seconds, used))
    time = {name: statistics.median(one for one, _ in values) for name, values in found.items()}
    peak = {name: statistics.median(one for _, one in values) for name, values in found.items()}
    yield (
        f"traces: {path.name}: {path.stat().st_size / 1e6:.0f} MB, {int(said['events']):,} events; medians of {runs} "
        "alternations"
    )
    for other, words in (("hta events", "HTA"), ("json", "json.loads alone"), ("orjson", "orjson.loads alone")):
        if other in time:
            yield f"traces:   file to events / {words}: {_ratio(time['events'], time[other])}"
    if "hta events" in peak:
        ours, theirs = peak["events"], peak["hta events"]
        yield (
            f"traces:   peak memory to events / HTA: 1/{theirs / ours:.1f} "
            f"({ours / 2**20:.0f} MiB / {theirs / 2**20:.0f} MiB, on top of the imports)"
        )
        refused = f"; HTA failed in {said['hta tables']}" if said["hta tables"] else ""
        yield f"traces:   file to kernels, gpu_time, ops / HTA: {_ratio(time['tables'], time['hta tables'])}{refused}"
        yield f"traces:   the same / HTA with its operators: {_hta_operators(path, folder, time)}"
    for what in ("events", "tables"):
        yield f"traces:   second load to {what} / first: {_ratio(time[f'second {what}'], time[what])}"
    both = [_printed([sys.executable, "-c", _LEAST, str(path)]) for _ in range(runs)]
    least, reader = (min(one) for one in zip(*both, strict=True))
    yield (
        f"traces:   CPU time of file to columns / reading and bare decoding: {reader / least:.2f} "
        f"({reader:.3f} s / {least:.3f} s, least of {runs}; limit {_MOST_OF_LEAST})"
    )
    for name in sorted(absent):
        yield f"traces:   {name} is not installed"


def _ratio(ours: float, theirs: float) -> str:
    return f"1/{theirs / ours:.1f} ({ours:.3f} s / {theirs:.3f} s)"


def _hta_operators(path: Path, folder: Path, time: Mapping[str, float]) -> str:
    try:
        seconds, _, said = _fresh("hta ops", path, folder, _PATIENCE_S)
    except subprocess.TimeoutExpired:
        return f"not finished after {_PATIENCE_S} s, including its events"
    if said.startswith("failed"):
        return said
    return _ratio(time["tables"], time["hta tables"] + seconds)


def _fresh(name: str, path: Path, folder: Path, patience_s: float | None = None) -> tuple[float, float, str]:
    imports, action = _ACTIONS[name]
    code = _MEASURED.replace("{imports}", imports).replace("{action}", action)
    command = [sys.executable, "-c", code, str(path), str(folder)]
    seconds, peak, said = _printed(command, patience_s)
    return float(seconds), float(peak), str(said)


def _printed(command: list[str], patience_s: float | None = None) -> list[Any]:
    """Run a process, and return the JSON in the last line of its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=patience_s)
    printed: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return printed
