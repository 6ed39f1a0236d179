"""Documents of `launching`."""

from __future__ import annotations

from collections.abc import Callable

from perfnb.draw.document import Document
from perfnb.launching.scaling_figures import ScalingJob
from tests.launching.test_rank_scaling import OF_TWO, job, jobs, study_of
from tests.samples import HOSTILE


def _four(**shares: float | None) -> list[ScalingJob]:
    return [*jobs(), job("ranks", 4, 70.0, {**OF_TWO, **shares})]


DOCUMENTS: dict[str, Callable[[], Document]] = {
    "rank scaling": lambda: study_of(_four())._document(),
    "rank scaling that is partly unknown": lambda: study_of(
        [*_four(imbalance=None, communication=0.2)[:2], ScalingJob("plain", 1, 1, failed=HOSTILE)], "weak"
    )._document(),
}
