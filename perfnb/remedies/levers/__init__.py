"""The levers. Each is an object with its conditions, its switch, and the lines of code that make it permanent.

To add a lever, create an object in the module for its subject and add its name to `LEVERS`. Most levers are switched
between individual steps, so switching must be cheap. Expensive preparations, such as compiling or converting, are done
when a lever is first switched on.
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
