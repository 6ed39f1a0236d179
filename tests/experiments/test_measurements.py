"""Views of studies of sizes and of profiles side by side: their words, and hostile names."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from perfnb.diff.layers import diff_profiles
from perfnb.diff.view import diff_html, diff_text
from perfnb.models.scaling_view import scaling_data, scaling_html, scaling_text
from perfnb.models.size_laws import ScalingFigures, scaling_figures
from tests import summaries
from tests.summaries import HOSTILE

RNG = np.random.default_rng(3)


def study(exponent: float = 2.0) -> ScalingFigures:
    sizes = (32, 64, 128, 256, 512)
    samples = {size: (1e-4 * size**exponent * np.exp(RNG.normal(0, 0.01, 20))).tolist() for size in sizes}
    return scaling_figures(samples, {s: 4 * s * s for s in sizes}, {s: 2 * s**3 for s in sizes}, device="CPU")


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text(name: str) -> None:
    a, b = summaries.small_cnn(), summaries.hostile()
    pages = [
        diff_html(diff_profiles(replace(a, name=name), b)),
        scaling_html(replace(study(), device=name, notes=(name,))),
    ]
    for page in pages:
        assert not re.search(r"<(script|svg|img(?! alt=)|b>|iframe)|on(load|error)=[^&]*>", page), page[:300]
    assert "\x1b" not in diff_text(diff_profiles(replace(a, name=name), b))
    json.dumps(scaling_data(replace(study(), device=name)), allow_nan=False)


def test_a_study_tells_its_law_and_where_it_does_not_hold() -> None:
    figures = study()
    assert "The time grows as size^2.0" in scaling_text(figures)
    assert "does not hold" not in scaling_text(figures)
    sizes = (8, 16, 32, 64, 128, 256, 512, 1024)
    jump = {size: [size * (1.0 if size < 100 else 3.0)] * 20 for size in sizes}
    broken = scaling_figures(jump, dict.fromkeys(sizes), dict.fromkeys(sizes), device="CPU")
    assert scaling_text(broken).count("One law does not hold") == 1
    assert "n/a" in scaling_text(broken)


def test_profiles_side_by_side_name_what_only_one_has() -> None:
    text = diff_text(diff_profiles(summaries.small_cnn(), summaries.gan()))
    assert "only in the first" in text
    assert "only second" in text
    assert "use perfnb.ab_test" in " ".join(text.split())
    for line in text.splitlines():
        assert len(line) <= 100
