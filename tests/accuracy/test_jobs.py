"""Check figures on jobs of several ranks: a planted straggler, and efficiency compared with that of a plain script."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import perfnb
from tests.accuracy.judging import Figures

pytestmark = pytest.mark.usefixtures("nothing_left")

PLANTED_MS = 10.0
#: Width of the layers, their number, and the batch of all ranks: one job computes, the other exchanges gradients.
JOBS = {"compute-heavy": (256, 4, 1024), "communication-heavy": (1024, 2, 16)}
WARM, TIMED = 20, 60
#: One round is as uncertain as the limit is wide.
ROUNDS = 3

SCRIPT = """
import os, sys, time, torch, torch.distributed as dist
from torch import nn
width, layers, batch = map(int, sys.argv[2:])
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
x = torch.randn(batch // dist.get_world_size(), width)
times = []
for _ in range({warm} + {timed}):
    begin = time.perf_counter()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    times.append(time.perf_counter() - begin)
slowest = torch.tensor(times[{warm}:])
dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
if dist.get_rank() == 0:
    with open(sys.argv[1], "w") as file:
        file.write(str(1000 * float(slowest.median())))
dist.barrier()
os._exit(0)  # gloo's threads sometimes abort a process that tears them down
"""


def late_rank() -> Callable[[], None]:
    """Return a job whose rank 1 sleeps before each forward pass."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)))
    x, late = torch.randn(64, 256), torch.distributed.get_rank() == 1

    def step() -> None:
        if late:
            time.sleep(PLANTED_MS / 1e3)
        model.zero_grad()
        model(x).sum().backward()

    return step


def test_a_planted_sleep_is_the_other_ranks_waiting(figure: Figures) -> None:
    ranks = perfnb.profile_ranks(late_rank, threads=1, traced=20, memory=False, flops=False)

    waiting = ranks.times.groupby("rank")["waiting_ms"].median()
    figure(
        "a sleep of 10 ms in rank 1, as waiting of rank 0",
        float(waiting[0]) - PLANTED_MS,
        within=(-1.5, 1.5),
        unit="ms",
    )
    figure("the same, as waiting of rank 1 itself", float(waiting[1]), at_most=1.5, unit="ms")
    figure("rank 1 is the straggler", float(ranks.straggler == 1), at_least=1.0)
    for profile in ranks:
        whole = float(profile.phases["ms"].sum()) / float(
            ranks.times.groupby("rank")["wall_ms"].mean()[profile.meta["rank"]]
        )
        figure(f"phases of rank {profile.meta['rank']}, of its step", abs(whole - 1.0), at_most=0.01)


@pytest.mark.parametrize("name", JOBS)
def test_efficiency_agrees_with_a_plain_script(name: str, figure: Figures, tmp_path: Path) -> None:
    width, layers, batch = JOBS[name]

    def set_up() -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

        def step(x: torch.Tensor) -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        return step, [torch.randn(batch, width)]

    script = tmp_path / "plain.py"
    script.write_text(SCRIPT.format(warm=WARM, timed=TIMED))
    efficiency, beside = [], []
    for _ in range(ROUNDS):
        # Around perfnb's jobs, so that a machine that slows down slows both.
        before = [_plain(script, tmp_path, ranks, JOBS[name]) for ranks in (1, 2)]
        study = perfnb.rank_scaling(set_up, threads=1, ddp=True, warmup=WARM, steps=TIMED)
        after = [_plain(script, tmp_path, ranks, JOBS[name]) for ranks in (2, 1)]
        one, two = (before[0] + after[1]) / 2, (before[1] + after[0]) / 2
        efficiency.append(float(study.table.loc["2 ranks", "efficiency"]))
        beside.append(efficiency[-1] / (one / two / 2))

    figure(f"efficiency of two ranks, {name}", float(np.median(efficiency)), at_least=0.0)
    figure(
        f"the same next to torchrun and perf_counter, {name}, median of {ROUNDS} rounds",
        abs(float(np.median(beside)) - 1.0),
        at_most=0.05,
    )


def of_buckets(cap_mb: float) -> Callable[[], Callable[[], None]]:
    """Return a job whose layers have many sizes, with buckets of some size."""

    def set_up() -> Callable[[], None]:
        torch.manual_seed(0)
        widths = [64, 128, 256, 64, 512, 128, 384, 64, 256, 128, 512, 64] * 2
        layers = [nn.Linear(one, following) for one, following in pairwise(widths)]
        model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=cap_mb)
        x = torch.randn(16, 64)

        def step() -> None:
            model.zero_grad()
            model(x).sum().backward()

        return step

    return set_up


def test_larger_buckets_save_no_more_than_their_bound(figure: Figures) -> None:
    medians, bounds = {}, {}
    for cap_mb in (0.05, 25.0):
        ranks = perfnb.profile_ranks(of_buckets(cap_mb), threads=1, warmup=WARM, steps=TIMED, traced=20, memory=False)
        timed = [profile.steps.loc[profile.steps["pass"] == "timed", "wall_ms"] for profile in ranks]
        medians[cap_mb] = float(np.median(np.max([one.to_numpy(dtype=float) for one in timed], axis=0)))
        found = ranks.findings.set_index("bottleneck")["bound_ms"]
        bounds[cap_mb] = float(found.get("bucket sizes", np.nan))

    saved = medians[0.05] - medians[25.0]
    figure("many small buckets are found", float(np.isfinite(bounds[0.05])), at_least=1.0)
    figure("one bucket saves, of its bound", saved / bounds[0.05], within=(0.0, 1.0))


def _plain(script: Path, folder: Path, ranks: int, job: tuple[int, int, int]) -> float:
    """Return the median step of a script under torchrun, in milliseconds."""
    result = folder / f"result_{ranks}"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [*launcher, str(script), str(result), *map(str, job)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return float(np.float64(result.read_text()))
