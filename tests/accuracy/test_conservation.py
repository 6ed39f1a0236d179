"""Check the tables of real models against the clock, and how much time has no layer."""

from __future__ import annotations

import pytest

import perfnb
from tests.accuracy.judging import Figures
from tests.attribution.test_conservation import STEPS

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("name", STEPS)
def test_phases_are_the_clocks_time_and_nearly_everything_has_a_layer(name: str, figure: Figures) -> None:
    p = perfnb.profile_step(STEPS[name](), warmup=2, steps=1, traced=2)

    wall = p.steps.loc[p.steps["pass"] == "traced", "wall_ms"].mean()
    ratio = float(p.phases["ms"].sum() / wall)
    figure(f"{name}: sum of phases / wall time of the step", ratio, within=(0.99, 1.01))
    unattributed = float(p.layers["self_share"].get("(unattributed)", 0.0))
    figure(f"{name}: share of the step in no layer", unattributed, at_most=0.05, unit="%")
