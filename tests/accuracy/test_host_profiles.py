"""One step, seen by torch.profiler, cProfile and py-spy: a planted native call takes the same time in each."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import perfnb
from tests.accuracy.judging import Figures

_STEPS, _RATE = 60, 200
_WITHIN = 0.05  # of the call's own time; torch.profiler and cProfile note its start and end

#: The planted call compresses bytes in C; it is timed by itself, and the time is printed.
_SCRIPT = """
import cProfile, sys, time, zlib
import numpy, torch
from torch import nn

torch.set_num_threads(1)
data = numpy.random.default_rng(0).bytes(900_000)
spent = []

def planted():
    begin = time.perf_counter()
    zlib.compress(data)
    spent.append(time.perf_counter() - begin)

model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)])
x = torch.randn(256, 512)

def step():
    loss = model(x).square().mean()
    planted()
    loss.backward()

how, out, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
for _ in range(3):
    step()
spent.clear()
if how == "trace":
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True) as profiler:
        for _ in range(steps):
            step()
    profiler.export_chrome_trace(out)
elif how == "cprofile":
    with cProfile.Profile() as profiler:
        for _ in range(steps):
            step()
    profiler.dump_stats(out)
else:
    for _ in range(steps):
        step()
print(1e3 * sum(spent))
"""


def _record(how: str, folder: Path) -> tuple[Path, float]:
    """Return the file that a tool wrote, and the planted call's time in ms in that run."""
    script, out = folder / "script.py", folder / how
    script.write_text(_SCRIPT)
    command = [sys.executable, str(script), how, str(out), str(_STEPS)]
    if how.startswith("py-spy"):
        form = how.removeprefix("py-spy ")
        command = ["py-spy", "record", "--format", form, "--rate", str(_RATE), "--output", str(out), "--", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return out, next(float(line) for line in done.stdout.splitlines() if line[:1].isdigit())


def _total_ms(loaded: object) -> tuple[float, int]:
    """Time in the planted function, and the samples behind it; 0 if there are none."""
    if isinstance(loaded, perfnb.Profile):
        events = loaded.events
        calls = events[events["name"].astype(str).str.endswith(": planted")]
        return float(calls["duration_ns"].sum()) / 1e6, 0
    assert isinstance(loaded, perfnb.results.HostProfile)
    (row,) = [row for row in loaded.functions.reset_index().to_dict("records") if "planted" in str(row["function"])]
    if pd.notna(row.get("total_ms")):
        sampled = loaded.samples is not None
        return float(row["total_ms"]), round(float(row["total_ms"]) * _RATE / 1e3) if sampled else 0
    return float(row["total_samples"]) * 1e3 / _RATE, int(row["total_samples"])


@pytest.mark.parametrize("how", ["trace", "cprofile", "py-spy raw", "py-spy speedscope"])
def test_a_native_call_takes_as_long_in_each(how: str, tmp_path: Path, figure: Figures) -> None:
    if how.startswith("py-spy") and shutil.which("py-spy") is None:
        pytest.skip("py-spy is not installed: pip install py-spy")
    path, truth = _record(how, tmp_path)
    found, samples = _total_ms(perfnb.load(path))
    # Samples that fall into the call are a Poisson number at most.
    within = max(_WITHIN, 3 / math.sqrt(samples)) if samples else _WITHIN
    figure(
        f"host profiles: a native call of {truth / _STEPS:.0f} ms by {how} / its own time",
        found / truth,
        within=(1 - within, 1 + within),
    )
