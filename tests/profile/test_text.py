"""The report as text. The golden texts are written anew with ``pytest --overwrite-golden``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfnb.draw import escape
from perfnb.profile.report import summary_text
from perfnb.stats.step_times import StepTimes
from tests import summaries

EXAMPLES = {
    "small_cnn": summaries.small_cnn,
    "gpt": summaries.gpt,
    "gpt_recompute_gpu": lambda: summaries.gpt(2, recompute=True, gpu=True),
    "two_thousand": summaries.big,
    "gan": summaries.gan,
    "hostile": summaries.hostile,
    "unknown": summaries.unknown_figures,
    "empty": summaries.empty,
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_golden(name, golden):
    golden(f"{name}.txt", summary_text(EXAMPLES[name]()) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("name", EXAMPLES)
def test_no_line_is_wider_than_asked(name, width):
    for line in summary_text(EXAMPLES[name](), width).splitlines():
        assert escape.cells(line) <= width, line


def test_a_large_model_stays_on_a_page():
    text = summary_text(summaries.big())
    assert len(text.splitlines()) <= 42
    assert "more layers" in text
    assert all(f" {label} " in text for label in ("transformer", "mlp"))


def test_recompute_is_a_column_only_where_something_is_recomputed():
    assert "recompute" not in summary_text(summaries.gpt(2))
    assert "recompute" in summary_text(summaries.gpt(2, recompute=True))


def test_the_headline_tells_how_well_the_step_is_known():
    made = summaries.small_cnn()
    assert "step 12.3 ms [12.1, 12.4] (95 % interval, median of 20 timed steps)" in summary_text(made)
    assert "median of 3 timed steps: too few for a 95 % interval" in summary_text(
        replace(made, timing=StepTimes((12.0, 12.5, 13.0)))
    )
    assert "samples/s" not in summary_text(replace(made, timing=replace(made.timing, batch_size=None)))
