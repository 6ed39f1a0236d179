"""What tracing itself costs on this machine, so that shares can be corrected for it.

Each traced op costs about a microsecond more than an untraced one, each traced module call a few. A layer of many
tiny ops would look heavier than it is. The costs are measured on ops and calls that do almost nothing, once with
and once without the tracer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from perfnb.step.layers import LayerSpans, others_listen

_REPEATS, _BLOCKS = 100, 7


class Costs(NamedTuple):
    """Time of one op and of one module call that do almost nothing."""

    op_ns: float
    call_ns: float

    def least(self, other: Costs) -> Costs:
        """The smaller of two measurements: other work can only add to one, and may last longer than it."""
        return Costs(min(self.op_ns, other.op_ns), min(self.call_ns, other.call_ns))

    def beyond(self, bare: Costs) -> Costs:
        """What these cost more than `bare`, never below 0."""
        return Costs(max(0.0, self.op_ns - bare.op_ns), max(0.0, self.call_ns - bare.call_ns))


def measure_costs(spans: LayerSpans | None = None) -> Costs:
    """Least cost over a few blocks of ops and calls, which other work disturbs least; under the tracer active now.

    Parameters
    ----------
    spans : LayerSpans, optional
        The layer spans that are entered, if any.
    """
    number, module = torch.zeros(1), nn.Identity()
    call: Callable[[Any], Any] = module
    if others_listen():  # the user's hooks are not to hear of these calls
        call = module.forward if spans is None else partial(spans.call, module)
    with torch.no_grad():
        return Costs(_per_call(torch.neg_, number), _per_call(call, number))


def _per_call(function: Callable[[Any], Any], argument: Any) -> float:
    blocks = []
    for _ in range(_BLOCKS):
        begin = time.perf_counter_ns()
        for _ in range(_REPEATS):
            function(argument)
        blocks.append((time.perf_counter_ns() - begin) / _REPEATS)
    return min(blocks)
