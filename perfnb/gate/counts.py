"""Count a step's work. The counts are identical whenever the same code runs on the same kind of machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from perfnb import quantities as fmt
from perfnb.compiled.tables import region_table
from perfnb.findings.gpu_facts import WAITS
from perfnb.memory.allocations import BEFORE, Watched
from perfnb.profile.analysis import Analysis
from perfnb.recording.recording import Recording
from perfnb.recording.text import found
from perfnb.trace_names import KERNELS

#: The number of steps before the counted ones. The first steps allocate memory that is kept, such as optimizer state.
WARMUP = 3
#: Operators that copy a result to the host, which means waiting for the GPU. Others, such as ``item``, call the first
#: one.
_READS = ("aten::_local_scalar_dense", "aten::nonzero")


def counts_of(step: Callable[..., Any], batches: Any = None) -> tuple[dict[str, int | None], str]:
    """Count the work of one step, and describe the environment on which the counts depend.

    Returns
    -------
    dict of str to int or None, str
        The ``peak_bytes``, ``flops``, ``ops``, ``kernels``, ``synchronisations`` and ``graph_breaks`` of one step
        (``kernels`` is ``None`` without a GPU), and a description of torch's version, the device and the number of
        threads.
    """
    from perfnb.step.checks import require_steps
    from perfnb.step.device import random_state, set_random_state
    from perfnb.step.namespace import step_variables
    from perfnb.step.pass_order import count_step
    from perfnb.step.to_recording import recording_of

    __tracebackhide__ = True
    require_steps({"step": step}, batches, "perf.step(step, loader)")
    numbers = random_state()
    try:
        capture = count_step(step, batches, warmup=WARMUP, namespace=step_variables(step, {}, batches))
    finally:
        set_random_state(numbers)
    recording = recording_of(capture, "step")
    return _figures(recording), environment_of(recording.meta["environment"])


def environment_of(facts: Mapping[str, Any]) -> str:
    """Describe the environment that a step's counts depend on, in addition to the step's code."""
    device = ", ".join(facts["gpus"]) or f"CPU ({facts['machine']})"
    return f"torch {facts['torch']}, {device}, {fmt.counted(facts['threads'], 'thread')}"


def _figures(recording: Recording) -> dict[str, int | None]:
    analysis, events = Analysis(recording), recording.events
    ops = analysis.ops["calls"]
    on_gpu = bool(recording.meta["environment"]["gpus"])
    waits = int(found(events["name"], WAITS.match).sum()) if on_gpu else int(ops.reindex(_READS).sum())
    allocates = recording.memory is not None and len(recording.memory.changes) > 0
    watched, counted = analysis.watched if allocates else None, analysis.counted
    return {
        "peak_bytes": 0 if watched is None else peak_bytes(watched),
        "flops": 0 if counted is None else int(counted[2]["flops"].sum()),
        "ops": int(ops.sum()),
        "kernels": int(events["category"].isin(KERNELS).sum()) if on_gpu else None,
        "synchronisations": waits,
        "graph_breaks": int(region_table(recording)["broke"].notna().sum()),
    }


def peak_bytes(watched: Watched) -> int:
    """Return the step's peak memory on one device, including the memory that it used before the step started.

    Other memory that was allocated earlier is excluded, because it may belong to other tests in the same process.
    """
    blocks = watched.counted
    blocks = blocks[~((blocks["start"] == BEFORE) & (blocks["category"] == "other"))]
    return max((_peak(of_device) for _, of_device in blocks.groupby("device", observed=True)), default=0)


def _peak(blocks: pd.DataFrame) -> int:
    times = np.concatenate([blocks["start"], blocks["end"]])
    changes = np.concatenate([blocks["bytes"], -blocks["bytes"]])
    # Memory that is freed and memory that is allocated at the same time never existed together.
    order = np.lexsort((changes, times))
    return int(np.cumsum(changes[order]).max(initial=0))
