"""Functions that set small jobs up."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

FAST = {"warmup": 1, "steps": 2, "traced": 1, "memory": False, "flops": False}


def small() -> tuple[Callable[[Any], None], list[Any]]:
    """A step of a small model under DDP, and its batches."""
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return step, [torch.ones(6, 8)]


def endless(folder: Path) -> Callable[[], Callable[[], None]]:
    """A job whose ranks tell of each of their steps in a folder."""

    def set_up() -> Callable[[], None]:
        step, (batch,) = small()
        (folder / f"rank_{torch.distributed.get_rank()}").write_text(str(os.getpid()))

        def run() -> None:
            step(batch)
            time.sleep(0.001)

        return run

    return set_up


def processes_of_jobs() -> list[psutil.Process]:
    """The processes of any job that this process has started."""
    found = []
    for process in psutil.process_iter():
        try:
            if "perfnb.launching" in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return [one for one in found if os.getpid() in _ancestors(one)]


def _ancestors(process: psutil.Process) -> list[int]:
    try:
        return [one.pid for one in process.parents()]
    except psutil.Error:
        return []


def interrupt_soon(delay_s: float) -> Callable[[], None]:
    """What sends this process an interrupt after a delay, in a thread."""

    def send() -> None:
        time.sleep(delay_s)
        os.kill(os.getpid(), signal.SIGINT)

    return send


def jobs_of(kernel: Any) -> list[psutil.Process]:
    """The processes of jobs that a kernel has started."""
    pid = kernel.value("__import__('os').getpid()")
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if "perfnb.launching" in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found
