"""Open a journal of 1,000 profiles and runs for the first and the second time, and measure time and memory.

Each figure is from a new process. Times exclude imports, but memory is the peak of the process including imports. The
lines marked "shown" also create the journal's table and its view. The profiles are copies of a single profile with
edited results: the step takes 5 % longer from entry 700 on, and the trend must find this change.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import torch
from torch import nn

import perfnb

COUNT, CHANGE = 1000, 700

_OPEN = """
import sys, time
import perfnb
from perfnb.experiments.journal import journal
import scipy.special
begin = time.perf_counter(), time.process_time()
opened = journal(sys.argv[1])
if sys.argv[2] == "opened":
    assert len(opened.table) == int(sys.argv[3])
else:
    str(opened)
seconds = [clock() - start for clock, start in zip((time.perf_counter, time.process_time), begin)]
places = opened.trend().changes["number"].tolist()
peak_kb = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(*seconds, int(peak_kb) / 1024, *places)
"""


def run() -> Iterator[str]:
    """Yield one line each time the journal is opened."""
    with tempfile.TemporaryDirectory() as work:
        fill(Path(work), COUNT)
        for words in ("opened", "opened", "shown"):
            done = subprocess.run(
                [sys.executable, "-c", _OPEN, work, words, str(COUNT)], capture_output=True, text=True, check=True
            )
            seconds, cpu, peak, *places = map(float, done.stdout.split())
            time = "again" if words == "shown" or (Path(work) / "read").exists() else "for the first time"
            (Path(work) / "read").touch()
            yield (
                f"journal: {COUNT:,} entries {words} {time}: {seconds:.2f} s ({cpu:.2f} s of CPU), "
                f"{peak:.0f} MiB at most; change found at entry {', '.join(f'{place:.0f}' for place in places)}"
            )


def fill(folder: Path, count: int) -> None:
    """Save the given number of profiles below a folder, with times that are an hour apart."""
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(12)))
    first = perfnb.profile_step(lambda: model(torch.ones(8, 64)).sum().backward(), warmup=1, steps=8, traced=2)
    made = first.save(folder.parent / f"{folder.name}-first")
    facts = json.loads((made / "profile.json").read_text("utf-8"))
    noise, begin = np.random.default_rng(1).lognormal(0, 0.01, count), datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(count):
        place = shutil.copytree(made, folder / f"{number // 100:02d}" / f"run_{number:04d}")
        ms = 10 * float(noise[number]) * (1.05 if number >= CHANGE else 1)
        at = begin + timedelta(hours=number)
        facts["outcome"] |= {"at": at.isoformat(), "step_ms": ms, "step_ci_ms": [0.99 * ms, 1.01 * ms]}
        (place / "profile.json").write_text(json.dumps(facts))
    shutil.rmtree(made)
