"""Documents of `diff`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from perfnb.diff.layers import diff_profiles
from perfnb.diff.step_times import step_change
from perfnb.diff.traces import diff_traces
from perfnb.diff.view import comparison_document, step_document
from perfnb.draw.document import Document
from perfnb.profile.summary import summarize
from perfnb.stats.step_times import StepTimes
from tests import summaries
from tests.diff.test_traces import conv
from tests.samples import HOSTILE

TIMES = StepTimes(tuple(10 + place / 10 for place in range(-10, 11)))
SHORTER = StepTimes(tuple(0.145 * ms for ms in TIMES.samples_ms))
CHANGE = step_change(TIMES, SHORTER)


def _profiles() -> Document:
    return comparison_document(diff_profiles(summaries.small_cnn(), summaries.gan(), CHANGE))


def _hostile() -> Document:
    return comparison_document(diff_profiles(summaries.hostile(), replace(summaries.gan(), name=HOSTILE)))


def _traces() -> Document:
    a, b = conv("aten::cudnn_convolution", [HOSTILE], 60, steps=3), conv(HOSTILE, ["transpose", "igemm"], 50, True)
    diff = diff_profiles(summarize(a), summarize(b))
    return comparison_document(diff, diff_traces(a, b, diff.layers))


DOCUMENTS: dict[str, Callable[[], Document]] = {
    "profiles compared": _profiles,
    "hostile profiles compared": _hostile,
    "traces compared": _traces,
    "step times compared": lambda: step_document(CHANGE, ("before", HOSTILE)),
    "too few step times": lambda: step_document(step_change(StepTimes((1.0,)), StepTimes((2.0,) * 50)), ("a", "b")),
}
