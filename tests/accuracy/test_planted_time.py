"""A sleep planted in one place of a step is found there, whole, and next to nothing elsewhere."""

from __future__ import annotations

import pytest

from tests.accuracy.judging import Figures
from tests.step.test_planted_time import PLANTED
from tests.step.timed import Sleep

pytestmark = pytest.mark.usefixtures("nothing_left")

#: Traced steps: enough that one of them disturbed by other work does not spoil the mean.
TRACED = 10
#: Most that a time in a table may differ from the planted one, and most that a row without one may have.
TOLERANCE_MS = 1.5


@pytest.mark.parametrize("place", PLANTED)
def test_a_sleep_is_found_whole_and_nowhere_else(place: str, figure: Figures) -> None:
    profiled, layer, phase = PLANTED[place]
    sleep = Sleep(20)
    p = profiled(sleep, TRACED)
    planted = sleep.mean_ms(TRACED)

    layers = {str(name): float(ms) - planted * (name == layer) for name, ms in p.layers["self_ms"].items()}
    phases = {str(name): float(ms) - planted * (name == phase) for name, ms in p.phases["ms"].items()}
    for kind, off in (("layers", layers), ("phases", phases)):
        worst = max(map(abs, off.values()))
        figure(f"20 ms planted, {place}: largest error of the {kind}", worst, at_most=TOLERANCE_MS, unit="ms")
    if phase == "data":
        waited = p.steps["data_ms"].to_numpy(float)
        worst = max(abs(waited - sleep.slept_ms))
        figure(f"20 ms planted, {place}: largest error of data_ms", worst, at_most=TOLERANCE_MS, unit="ms")
