"""Two ranks of a job, each with a callback, save their profiles side by side; together they are loaded as ranks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import perfnb

ROOT = Path(__file__).parents[2]

LIGHTNING = """
from perfnb.integrations.lightning import ProfileCallback
from tests.integrations.trainings import fitted

fitted(folder / "out", ProfileCallback(at=3, steps=2, save=folder / "runs"), steps=40, strategy="ddp", devices=2)
torch.distributed.destroy_process_group()  # otherwise gloo's threads may abort a rank that ends after the other
"""

TRANSFORMERS = """
from perfnb.integrations.transformers import ProfileCallback
from tests.integrations.trainings import trained

reduced = ProfileCallback(at=3, every=100, steps=2, save=folder / "runs")  # several are reduced to their tables
trained(folder / "out", reduced, ddp_backend="gloo")
"""

BEGIN = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
folder = Path(sys.argv[1])
"""


@pytest.mark.deep
@pytest.mark.parametrize("script", [LIGHTNING, TRANSFORMERS], ids=["lightning", "transformers"])
def test_each_rank_saves_its_own_and_load_gives_ranks(script: str, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in (0, 1):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0}
        job = {**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "tests"}
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        environment |= {name: str(value) for name, value in job.items()}
        command = [sys.executable, "-W", "ignore", "-c", BEGIN + script, str(tmp_path)]
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    try:
        said = [process.communicate(timeout=600)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], said

    ranks = perfnb.load(tmp_path / "runs" / "step_000003")

    assert isinstance(ranks, perfnb.results.Ranks)
    assert ranks.ranks == [0, 1]
    assert [profile.meta["job"] for profile in ranks] == [{"rank": rank, "world_size": 2} for rank in (0, 1)]
    assert ["reduced" in profile.meta for profile in ranks] == [script is TRANSFORMERS] * 2
    assert (ranks.layers.groupby("rank")["calls"].max() == 1).all()
    passes = ranks.steps.groupby("rank")["pass"].apply(list)
    assert passes[0] == passes[1]  # what one counts while the other does not, the other waits for
    runs = perfnb.load(tmp_path / "runs")
    assert isinstance(runs, perfnb.results.RankRuns)
    assert runs.ranks == [0, 1]
