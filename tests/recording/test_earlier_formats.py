"""A profile in every format that a release wrote still loads: one of each is kept in the folder `saved`.

A new `VERSION` of the format needs a profile of the format before it there. If perfnb is to read that no longer, its
error has to name the last release that does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import perfnb
from perfnb.recording.store import VERSION

SAVED = Path(__file__).parent / "saved"


def test_one_profile_of_every_format_is_kept() -> None:
    assert sorted(path.name for path in SAVED.iterdir()) == [f"format_{number}" for number in range(1, VERSION + 1)]


@pytest.mark.parametrize("number", range(1, VERSION + 1))
def test_a_profile_in_this_format_loads_with_all_that_it_holds(number: int) -> None:
    """The figures are those of a linear layer with 4 inputs and 2 outputs on a batch of 8."""
    profile = perfnb.load(SAVED / f"format_{number}")

    assert isinstance(profile, perfnb.Profile)
    assert profile.timing.steps == 6
    layer = profile.layers.loc["model"]
    assert (layer["module"], layer["parameters"]) == ("Linear", 10)
    assert layer["forward_flops"] == 2 * 8 * 4 * 2
    assert layer["forward_ms"] > 0
    assert layer["backward_ms"] > 0
    assert profile.phases["share"].sum() == pytest.approx(1)
    assert set(profile.steps["pass"]) == {"warmup", "timed", "lead_in", "traced", "counted"}
    assert profile.memory["total"].max() == 436
    assert not profile.allocations.empty
    assert profile.roofline is not None
    assert "first release" in str(profile)
