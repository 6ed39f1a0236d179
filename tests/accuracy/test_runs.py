"""What recording a whole run costs."""

from __future__ import annotations

import gc
import time

import pytest

from perfnb.loop.record import RunRecorder
from tests.accuracy.judging import Figures

pytestmark = pytest.mark.usefixtures("nothing_left")

_STEP_NS = 10_000_000


def _nothing(wall_ns: int, data_ns: int, begin_ns: int) -> None:
    pass


@pytest.mark.parametrize("steps", [10_000, 300_000])
def test_recording_a_step_costs_next_to_nothing(figure: Figures, steps: int) -> None:
    costs = []
    gc.freeze()  # the collector's walk over torch's objects comes when it likes, and is not the recorder's
    try:
        for _ in range(5):
            spent = []
            for note in (_nothing, RunRecorder().step):
                begin = time.thread_time_ns()
                for step in range(steps):
                    note(_STEP_NS, 1000, step * _STEP_NS)
                spent.append(time.thread_time_ns() - begin)
            costs.append((spent[1] - spent[0]) / steps)
    finally:
        gc.unfreeze()
    figure(f"recording a step of 10 ms, in a run of {steps:,}", min(costs) / _STEP_NS, at_most=0.002)
