"""Recordings of steps with watched memory, built by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfnb.memory.allocations import Watched, watched_memory
from tests.attribution.test_attribution import training_step
from tests.recordings import ByHand

#: The start of the counted step in `training_step(2)`, in microseconds. Relative to this time, the phases are data from
#: 0 to 100, forward to 400, loss to 450, backward to 760, optimizer from 800 to 950, and the step to 1000.
C = 2000


def watch(hand: ByHand, **meta: Any) -> Watched:
    watched = watched_memory(hand.recording(**meta))
    assert watched is not None
    return watched


def step_with_memory() -> ByHand:
    """Return a step whose layers have parameters, a gradient and an activation each, with a peak of 1,777 bytes at 515.

    There is a temporary at the peak.
    """
    hand = training_step(2)
    for layer, size in ((1, 100), (2, 200)):
        hand.known(C - 1, layer, size, "parameters", layer, "weight")
    hand.block(C + 130, C + 700, 11, 300).block(C + 250, C + 620, 12, 500).block(C + 420, C + 960, 13, 4)
    hand.block(C + 512, None, 14, 200).known(C + 755, 14, 200, "gradients", 2, "weight")
    hand.block(C + 515, C + 520, 15, 473)
    return hand.block(C + 660, None, 16, 100).known(C + 755, 16, 100, "gradients", 1, "weight")


def random_blocks(count: int) -> ByHand:
    """Return blocks with all lifetimes and sizes. Larger blocks have shorter lifetimes."""
    hand, random = ByHand().step(0, 10_000), np.random.default_rng(5)
    sizes = random.permutation(count)
    for number in range(count):
        begin = random.uniform(1, 9990)
        hand.block(begin, min(begin + random.exponential(300), 9999), number, int(sizes[number]) + 1)
    return hand.block(5000, 5000.5, count, 10**9)
