"""The GPU frames of a profile."""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfnb.gpu.critical_path import Run, Window, critical_paths, path_in, prepare, window_of
from perfnb.gpu.device_time import gpu_time, gpu_time_by_step
from perfnb.gpu.events import GpuEvents
from perfnb.gpu.idle import idle_time
from perfnb.gpu.kernels import kernels_by_op
from perfnb.gpu.launches import launches_by_op, queue_lengths
from perfnb.gpu.path_savings import By, savings_in
from perfnb.recording.schema import conform
from perfnb.recording.text import TEXT

_KEY = ["rank", "device", "step"]
#: How the frame ``path_savings`` splits a critical path.
_PARTS: tuple[By, ...] = ("kind", "op")
#: Totals over all steps, divided by the number of steps.
_SUMS = {
    "launches": ("calls", "launched", "call_ms", "gpu_ms", "short"),
    "kernel_ops": ("op_calls", "calls", "total_ms"),
}


def step_table(gpu: GpuEvents) -> pd.DataFrame:
    """The frame ``gpu_steps``; a trace without step marks counts as one step."""
    if gpu.only_step is None:
        return conform(gpu_time_by_step(gpu.events, gpu.work), "gpu_steps")
    return conform(gpu_time(gpu.events, gpu.work).assign(step=gpu.only_step), "gpu_steps")


def idle_table(gpu: GpuEvents) -> pd.DataFrame:
    """The frame ``gpu_idle``: why each device was idle, by step; a device's rows add up to its idle time."""
    idle = idle_time(gpu.events, by_step=gpu.only_step is None, work=gpu.work)
    if gpu.only_step is not None:
        idle["step"] = gpu.only_step
    idle = conform(idle, "gpu_idle")
    # A device that was never idle in a step has a row of zeros.
    steps = step_table(gpu)[_KEY]
    table = steps.merge(idle, on=_KEY, how="outer", sort=True)
    figures = table.columns.difference(_KEY)
    table[figures] = table[figures].fillna(0)
    return conform(table, "gpu_idle")


def launch_table(gpu: GpuEvents) -> pd.DataFrame:
    """The frame ``launches``: by launching op, per step."""
    return conform(_per_step(launches_by_op(gpu.of_steps.events, gpu.of_steps.work), "launches", gpu), "launches")


def kernel_op_table(gpu: GpuEvents) -> pd.DataFrame:
    """The frame ``kernel_ops``: by op and input shapes, per step."""
    return conform(_per_step(kernels_by_op(gpu.of_steps.events, gpu.of_steps.work), "kernel_ops", gpu), "kernel_ops")


def queue_table(gpu: GpuEvents) -> pd.DataFrame:
    """The frame ``queue``: launched work that had not started, at each change, by stream."""
    return conform(queue_lengths(gpu.events, gpu.work).rename(columns={"time_ns": "start_ns"}), "queue")


def path_table(gpu: GpuEvents) -> pd.DataFrame:
    """The frame ``critical_path``: the path of each step, device work after the host's step included."""
    if gpu.events.empty:  # only ranges that the user marked
        return conform(pd.DataFrame(), "critical_path")
    if gpu.only_step is None:
        table = critical_paths(gpu.events, tail=True)
        table = table[table["step"].isin(gpu.steps)]
    else:
        run = prepare(gpu.events, work=gpu.work)
        rank = gpu.events["rank"].iloc[0]
        table = path_in(run, window_of(run, None, None, tail=True)).assign(rank=rank, step=gpu.only_step)
    return conform(table.drop(columns="event").reset_index(drop=True), "critical_path")


def saving_table(gpu: GpuEvents) -> pd.DataFrame:
    """The frame ``path_savings``: the parts of each step's path, by kind and by op."""
    if gpu.events.empty:
        return conform(pd.DataFrame(), "path_savings")
    parts = []
    run = prepare(gpu.events, work=gpu.work)
    for number in gpu.steps:
        window = window_of_step(run, gpu, number)
        path = path_in(run, window)
        for by in _PARTS:
            table = savings_in(run, window, by, path=path).rename(columns={by: "part"})
            table["part"] = table["part"].astype(TEXT)
            parts.append(table.assign(rank=gpu.events["rank"].iloc[0], step=number, by=by))
    whole = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    if len(whole):
        whole["by"] = pd.Categorical(whole["by"], categories=list(_PARTS))
    return conform(whole, "path_savings")


def window_of_step(run: Run, gpu: GpuEvents, number: int) -> Window:
    """From a step's start until its work is done, on host and devices."""
    return window_of(run, None if gpu.only_step is not None else number, None, tail=True)


def _per_step(table: pd.DataFrame, name: str, gpu: GpuEvents) -> pd.DataFrame:
    steps = np.float64(max(len(gpu.steps), 1))
    return table.assign(**{column: table[column].astype("Float64") / steps for column in _SUMS[name]})
