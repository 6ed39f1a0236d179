"""Which losses of quality exceed what is accepted."""

from __future__ import annotations

from math import inf, nan

import pytest

from perfnb.bench.quality import SLACK, Loss


@pytest.mark.parametrize(
    ("baseline", "limit", "largest"),
    [
        (None, None, None),
        (nan, None, None),
        (-inf, None, None),
        (2.0, None, 2.0 * (1 + SLACK)),
        (-2.0, None, -2.0 * (1 - SLACK)),
        (2.0, 3.0, 3.0),
        (None, 3.0, 3.0),
    ],
)
def test_a_loss_may_be_at_most_the_limit_or_a_little_above_the_baseline(
    baseline: float | None, limit: float | None, largest: float | None
) -> None:
    def exceeded(candidate: float) -> bool:
        return Loss("loss", candidate, baseline, limit).exceeded

    assert Loss("loss", 0.0, baseline, limit).largest == pytest.approx(largest)
    assert all(map(exceeded, (nan, inf, -inf)))
    if largest is None:
        assert not exceeded(1e9)
    else:
        assert [exceeded(largest + more) for more in (-1e-6, 0.0, 1e-6)] == [False, False, True]
