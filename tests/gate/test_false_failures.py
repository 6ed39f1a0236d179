"""How often the gate fails without a reason, simulated on turns that were recorded on a busy machine."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from perfnb.gate.gating import confirmed
from perfnb.gate.revisions import paired

#: Several times two processes with the same step in turns, 200 pairs each, while ten other programs used two cores.
RECORDED = json.loads(Path(__file__).with_name("recorded_turns.json").read_text("utf-8"))
LIMIT, ROUNDS = 1.03, 1000


class Replayed:
    """A process whose turns are recorded ones, in order from a random place, and take `slower` times as long."""

    def __init__(self, times: list[float], start: int, slower: float) -> None:
        self._times, self._next, self._slower = times, start, slower

    def turn(self, lead: int, steps: int) -> float:
        """Return milliseconds per step."""
        self._next += 1
        return self._times[self._next % len(self._times)] * self._slower


def fails(generator: np.random.Generator, slower: float = 1.0) -> bool:
    """Return whether the gate fails on two random sets of recorded processes, one of which is slower."""

    def measure() -> object:
        chosen = RECORDED[generator.integers(len(RECORDED))]
        sides = [chosen["a_ms"], chosen["b_ms"]]
        generator.shuffle(sides)
        start = int(generator.integers(200))
        return paired(*(Replayed(side, start, by) for side, by in zip(sides, (1.0, slower), strict=True)),
                      ("a", "b"), LIMIT, 60.0)  # fmt: skip

    return confirmed(measure, LIMIT)[1]


@pytest.mark.simulation
@pytest.mark.timeout(3600)
def test_the_same_code_fails_in_less_than_one_of_a_hundred_runs() -> None:
    generator = np.random.default_rng(7)
    failed = sum(fails(generator) for _ in range(ROUNDS))
    print(f"{failed} of {ROUNDS} fail")
    assert failed < ROUNDS / 100
