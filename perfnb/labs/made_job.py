"""The job in lab 10: a simulated step of the night script, a model that counts, and the traces of eight ranks.

All times are made up and none were measured, so the lab teaches the same lesson on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from perfnb.errors import LabError
from perfnb.files import write_file
from perfnb.labs.made_traces import CUDA, MadeMachine, align, exchange

#: The number of parts whose gradients a step accumulates, and the milliseconds that a card and the optimizer take.
PARTS, CARD_MS, OPTIMIZER_MS = 4, 5.0, 4.0
#: Share of a card's time that is spent in the forward pass.
FORWARD = 1 / 3
#: Minimum time of a transfer in milliseconds, and bytes per millisecond.
LATENCY_MS, BYTES_PER_MS = 0.5, 270e3


def planted_step(
    cards: Sequence[int], buckets: Sequence[float] = (), synced: Sequence[bool] = (True,) * PARTS
) -> pd.DataFrame:
    """Simulate one step of the night script, on a single process or on several ranks.

    Gradients become ready during the backward pass in proportion to their size. A bucket is sent when every rank has it
    ready and the previous bucket has been sent. The next part starts when all buckets have been sent.

    Parameters
    ----------
    cards : sequence of int
        The number of cards that each rank processes in every part. Pass a single number for a single process.
    buckets : sequence of float
        The size of each bucket in bytes, in the order of sending.
    synced : sequence of bool
        Whether gradients are sent, for each part.

    Returns
    -------
    DataFrame
        One row per piece of work, with the columns ``rank``, ``what`` (``computing``, ``sending`` or ``waiting`` for
        another rank), ``start_ms`` and ``end_ms``.

    Raises
    ------
    LabError
        If `synced` does not have one value for each part.
    """
    if len(synced) != PARTS:
        raise LabError(f"synced must have {PARTS} values, one for each part of a step.")
    rows: list[tuple[int, str, float, float]] = []
    now = 0.0
    for is_sent in synced:
        took = [CARD_MS * count for count in cards]
        rows += [(rank, "computing", now, now + ms) for rank, ms in enumerate(took)]
        if len(cards) > 1 and is_sent:
            computed = now + max(took)
            rows += [(rank, "waiting", now + ms, computed) for rank, ms in enumerate(took) if now + ms < computed]
            sent_at, ready_bytes = now, 0.0
            for size in buckets:
                ready_bytes += size
                share = FORWARD + (1 - FORWARD) * ready_bytes / sum(buckets)
                start = max(sent_at, now + share * max(took))
                sent_at = start + LATENCY_MS + size / BYTES_PER_MS
                rows += [(rank, "sending", start, sent_at) for rank in range(len(cards))]
            now = max(computed, sent_at)
        else:
            now += max(took)
    rows += [(rank, "computing", now, now + OPTIMIZER_MS) for rank in range(len(cards))]
    return pd.DataFrame(rows, columns=["rank", "what", "start_ms", "end_ms"])


class CountedModel(nn.Module):
    """A stand-in for `DistributedDataParallel` on a job's only rank, which counts when gradients would be sent.

    As in `DistributedDataParallel`, each forward pass determines whether the following backward pass sends the
    gradients.

    Attributes
    ----------
    module : Module
    synced : list of bool
        Whether gradients would have been sent, for each backward pass so far.
    forwards : int
        The number of forward passes so far.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.require_backward_grad_sync = True
        self.synced: list[bool] = []
        self.forwards = 0
        self._will_send = False
        first = next(parameter for parameter in module.parameters() if parameter.requires_grad)
        first.register_post_accumulate_grad_hook(lambda _: self.synced.append(self._will_send))

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the model."""
        self.forwards += 1
        self._will_send = torch.is_grad_enabled() and self.require_backward_grad_sync
        return self.module(*inputs, **named)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on the rank without sending them."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before


NOTE = "Made up by perfnb for lab 10. None of its figures were measured."
#: The job's ranks and steps, the rank that is late in every step, and the rank that is late once.
RANKS, STEPS, LATE, LATE_ONCE = 8, tuple(range(10, 18)), 5, 2
#: The delays of these two ranks in microseconds, and the step where the second one is late.
LATE_US, ONCE_US, ONCE = 3200.0, 6000.0, 12
#: The model's blocks, and the microseconds of a block's forward and backward pass and of the optimizer's update.
BLOCKS, FORWARD_US, BACKWARD_US, UPDATE_US = 3, 1800.0, 3400.0, 400.0
#: Microseconds that it takes to send a block's gradients and to exchange the norm of all gradients.
BUCKET_US, NORM_US = 8000.0, 150.0


def made_job() -> list[MadeMachine]:
    """Simulate eight ranks with one GPU each that train a larger Reader.

    Each block's gradients are sent while the backward pass of the remaining blocks runs, and sending takes longer than
    computing. At the end of a step, all ranks exchange the norm of the gradients, where they wait for the last rank.
    """
    machines = []
    for rank in range(RANKS):
        job = {"backend": "nccl", "rank": rank, "world_size": RANKS}
        properties = [{"id": 0, "name": "rented GPU (made up)"}]
        machines.append(MadeMachine(CUDA, seed=20 + rank, note=NOTE, distributedInfo=job, deviceProperties=properties))
    for number in STEPS:
        align(machines, 300)
        with ExitStack() as steps:
            for machine in machines:
                steps.enter_context(machine.span(f"ProfilerStep#{number}"))
            _step(machines, number)
            align(machines)
    return machines


def _step(machines: Sequence[MadeMachine], number: int) -> None:
    for machine in machines:
        machine.works(100)
        machine.moves("Memcpy HtoD (Pinned -> Device)", 200)
        for block in range(BLOCKS):
            with machine.module(f"Block_{block}"), machine.op("aten::linear", us=30):
                machine.launch("gemm_256x128_forward", FORWARD_US)
    sent = 0.0
    for _ in range(BLOCKS):
        done = []
        for machine in machines:
            with machine.op("aten::mm", us=30):
                done.append(machine.launch("gemm_256x128_backward", BACKWARD_US))
        sent = _together(machines, [max(each, sent) for each in done], BUCKET_US)
    late = []
    for rank, machine in enumerate(machines):
        late.append(sent)
        us = {LATE: LATE_US}.get(rank, 0.0) + (ONCE_US if rank == LATE_ONCE and number == ONCE else 0.0)
        if us:
            with machine.op("aten::histc", us=20):
                late[-1] = machine.launch("histogram_of_weights", us, after=sent)
    after = _together(machines, late, NORM_US)
    for machine in machines:
        with machine.span("Optimizer.step#SGD.step"), machine.op("aten::_foreach_add_", us=40):
            machine.launch("multi_tensor_add", UPDATE_US, after=after)
        machine.call("cudaDeviceSynchronize", 5, waits=True)


def _together(machines: Sequence[MadeMachine], ready: Sequence[float], us: float) -> float:
    """Run an all-reduce that each rank enters when it is ready, and return its end, which is the same for all ranks."""
    return exchange(machines, ready, us, "allreduce", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", RANKS)


def write_job(folder: str | Path) -> list[Path]:
    """Write the traces of a job with eight ranks to one file per rank, and return the paths of the files.

    Parameters
    ----------
    folder : str or Path
        An existing folder.
    """
    paths: list[Path] = []
    for rank, machine in enumerate(made_job()):
        paths.append(Path(folder) / f"rank_{rank}.json.gz")
        write_file([machine.text()], paths[-1])
    return paths
