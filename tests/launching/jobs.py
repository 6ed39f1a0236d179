"""Functions that set small jobs up."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

FAST = {"warmup": 1, "steps": 2, "traced": 1, "memory": False, "flops": False}


def small() -> tuple[Callable[[Any], None], list[Any]]:
    """Return a step of a small model under DDP, and its batches."""
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return step, [torch.ones(6, 8)]


def failing() -> tuple[Callable[[Any], None], list[Any]]:
    """Return such a step, which fails in rank 1, and its batches."""
    step, batches = small()

    def fails(batch: Any) -> None:
        if torch.distributed.get_rank() == 1:
            {}["gone"]
        step(batch)

    return fails, batches


def endless(folder: Path) -> Callable[[], Callable[[], None]]:
    """Return a job whose ranks tell of each of their steps in a folder."""

    def set_up() -> Callable[[], None]:
        step, (batch,) = small()
        (folder / f"rank_{torch.distributed.get_rank()}").write_text(str(os.getpid()))

        def run() -> None:
            step(batch)
            time.sleep(0.001)

        return run

    return set_up


class Ones(torch.utils.data.Dataset[torch.Tensor]):
    """Samples whose worker tells of itself in a folder."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._count = folder, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> torch.Tensor:
        if place >= self._count:
            raise IndexError(place)
        worker = torch.utils.data.get_worker_info()
        rank = torch.distributed.get_rank()
        told = self._folder / f"worker_{rank}_{'none' if worker is None else worker.id}"
        if not told.exists():
            told.write_text(str(os.getpid()))
        return torch.ones(8)


def with_workers(folder: Path, count: int) -> Callable[[], Any]:
    """Return a job whose batches come from a worker process of a loader."""

    def set_up() -> Any:
        step, _ = small()
        loader = torch.utils.data.DataLoader(Ones(folder, count), batch_size=4, num_workers=1)
        (folder / f"rank_{torch.distributed.get_rank()}").write_text(str(os.getpid()))
        return step, loader

    return set_up


def processes_of_jobs(pid: int | None = None) -> list[psutil.Process]:
    """Return the processes of any job that a process, which is this one by default, has started."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):
            if "perfnb.launching" in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def interrupt_soon(delay_s: float) -> Callable[[], None]:
    """Return what sends this process an interrupt after a delay, in a thread."""

    def send() -> None:
        time.sleep(delay_s)
        os.kill(os.getpid(), signal.SIGINT)

    return send
