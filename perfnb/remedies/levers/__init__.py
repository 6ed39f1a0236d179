"""The levers, each an object with its conditions, the way to switch it on and off, and the lines that keep it.

To add one, write one object in the file of its subject, and its name in `LEVERS`. Most levers are switched between
single steps, so switching is cheap; a lever prepares what it must (compile, convert) when it is first switched on.
"""

from __future__ import annotations

from perfnb.remedies.lever import Lever
from perfnb.remedies.levers.attention import ATTENTION, SDPA
from perfnb.remedies.levers.compiling import COMPILE, MAX_AUTOTUNE, REDUCE_OVERHEAD
from perfnb.remedies.levers.inference import INFERENCE_MODE, QUANTIZE_DYNAMIC
from perfnb.remedies.levers.layout import CHANNELS_LAST
from perfnb.remedies.levers.loading import LOADER_WORKERS
from perfnb.remedies.levers.memory import CHECKPOINTING
from perfnb.remedies.levers.optimizers import FOREACH_OPTIMIZER, FUSED_OPTIMIZER, SET_TO_NONE
from perfnb.remedies.levers.precision import AUTOCAST, AUTOCAST_FLOAT16, FLOAT32, FLOAT32_PRECISION
from perfnb.remedies.levers.runtime import CUDNN_BENCHMARK, GC_FREEZE
from perfnb.remedies.levers.threads import THREADS

LEVERS: tuple[Lever, ...] = (
    THREADS,
    COMPILE,
    REDUCE_OVERHEAD,
    MAX_AUTOTUNE,
    FLOAT32,
    AUTOCAST,
    AUTOCAST_FLOAT16,
    FLOAT32_PRECISION,
    CHANNELS_LAST,
    FUSED_OPTIMIZER,
    FOREACH_OPTIMIZER,
    SET_TO_NONE,
    ATTENTION,
    *SDPA,
    INFERENCE_MODE,
    QUANTIZE_DYNAMIC,
    GC_FREEZE,
    CUDNN_BENCHMARK,
    LOADER_WORKERS,
    CHECKPOINTING,
)


def by_name() -> dict[str, Lever]:
    """Return the levers by name."""
    return {lever.name: lever for lever in LEVERS}
