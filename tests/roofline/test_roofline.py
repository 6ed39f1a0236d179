"""The roofline of real steps: intensities by hand, the machine's ceilings, what is not counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import perfnb
from perfnb.profile.profile import Profile
from perfnb.profile.report import report_document
from perfnb.profile.summary import model_flops_utilisation
from perfnb.step import kept_rates as kept
from tests import summaries
from tests.recordings import ByHand
from tests.roofline import roofline_samples as samples


def profile(step: Callable[[], object], **options: object) -> Profile:
    made = perfnb.profile_step(step, warmup=1, steps=6, traced=1, **options)  # type: ignore[arg-type]
    assert isinstance(made, Profile)
    return made


@pytest.mark.slow
def test_layers_lie_under_the_roof_and_what_has_no_formula_is_listed(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128))
    x = torch.randn(64, 128)

    p = profile(lambda: model(x).sum().backward(), model={"model": model})

    roofline = p.roofline
    assert roofline is not None
    layers = roofline.points[roofline.points["kind"] == "layer"].set_index("name")
    assert layers.loc["model.0", "flops"] == 2 * 2 * 64 * 128 * 256  # its input needs no gradient
    assert layers.loc["model.2", "flops"] == 3 * 2 * 64 * 128 * 256
    assert layers.loc["model.1", ["flops", "efficiency", "bound"]].isna().all()
    assert layers.loc["model.1", "bytes"] == 4 * 64 * 256 * (2 + 3)  # forward reads and writes one, backward three
    assert layers["ms"].sum() < p.phases.loc[["forward", "backward", "loss", "other"], "ms"].sum()
    assert roofline.flops == 5 * 2 * 64 * 128 * 256
    assert roofline.utilisation == pytest.approx(
        roofline.flops / (p.timing.median_ms / 1e3 * roofline.peaks["float32"])
    )
    assert {"aten::gelu", "aten::gelu_backward"} <= set(roofline.uncounted["op"])
    assert roofline.uncounted["share"].between(0, 1).all()
    loaded = perfnb.load(p.save(tmp_path / "p"))
    assert isinstance(loaded, Profile)
    assert loaded.roofline is not None
    pd.testing.assert_frame_equal(loaded.roofline.points, roofline.points)
    assert str(loaded.roofline) == str(roofline)


@pytest.mark.parametrize(
    ("changes", "compiled", "share"),
    [
        ({}, False, 0.34),
        ({}, True, None),
        ({"flops": 0}, False, None),
        ({"flops": None}, False, None),
        ({"refuted": {"float32": 1e9}}, False, None),
        ({"refuted": {"bfloat16": 1e9}}, False, 0.34),
        ({"utilisation": None}, False, None),
    ],
)
def test_utilisation_is_known_if_all_arithmetic_of_the_step_was_seen(
    changes: dict[str, Any], compiled: bool, share: float | None
) -> None:
    hand = ByHand()
    hand.layer("model", compiled=compiled)
    hand.step(0, 100)
    known = {"flops": 10**9, "utilisation": 0.34, "dtype": "float32", "refuted": {}} | changes

    assert model_flops_utilisation(hand.recording(), replace(samples.roofline(), **known)) == share


@pytest.mark.parametrize("share", [0.34, None])
def test_the_headline_has_the_utilisation_if_it_is_known(share: float | None) -> None:
    figures = report_document(replace(summaries.small_cnn(), roofline=samples.roofline(), mfu=share)).figures
    assert [(one.value, one.basis) for one in figures if one.label == "MFU"] == (
        [] if share is None else [(share, "of the measured float32 peak")]
    )


@pytest.mark.slow
def test_recomputation_does_not_count_as_utilization() -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    x = torch.randn(64, 256, requires_grad=True)

    def step() -> None:
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()

    p = profile(step, model={"model": model}, memory=False)

    once = 2 * 64 * 256 * 256
    ways = ["forward_flops", "backward_flops", "recompute_flops"]
    assert p.layers.loc["model.0", ways].tolist() == [once, 2 * once, once]
    assert p.layers.loc["model.2", ways].tolist() == [once, 2 * once, 0]  # its input is all that its backward needs
    assert p.roofline is not None
    assert p.roofline.flops == 7 * once
    assert p.roofline.utilisation == pytest.approx(6 * once / (p.timing.median_ms / 1e3 * p.roofline.peaks["float32"]))


@pytest.mark.deep
@pytest.mark.slow
def test_a_ceiling_that_a_step_exceeds_is_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    left, right = torch.ones(256, 256), torch.ones(256, 256)
    monkeypatch.setenv("PERFNB_CACHE", str(tmp_path))
    first = profile(lambda: left @ right, memory=False)
    assert first.roofline is not None
    (machine,) = kept._read()
    (name,) = [name for name in kept.kept(machine) if "float32" in name]
    kept.keep(machine, {name: kept.Rate(1e6, "2020-01-01T00:00:00+00:00")})

    roofline = profile(lambda: left @ right, memory=False).roofline

    assert roofline is not None
    assert kept.kept(machine)[name].at != "2020-01-01T00:00:00+00:00"
    assert kept.kept(machine)[name][0] == roofline.peaks["float32"]


def test_without_the_count_there_is_no_roofline() -> None:
    p = profile(lambda: torch.ones(8) @ torch.ones(8), memory=False, flops=False)

    assert p.roofline is None
    assert "ceilings" not in p.meta
    assert "Roofline" not in str(p)
