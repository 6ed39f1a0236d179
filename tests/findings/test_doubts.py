"""What speaks against the bounds of a step, on figures made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from perfnb.findings.doubts import _works_ahead


@pytest.mark.parametrize(
    ("waited", "data", "step", "ahead"),
    [
        (10.0, 4.9, 100.0, True),  # more than twice the wait of traced steps
        (10.0, 5.0, 100.0, False),
        (10.0, 4.0, 200.0, True),  # a wait of 5 % of the step
        (10.0, 4.0, 201.0, False),
    ],
)
def test_an_iterable_works_ahead_if_traced_steps_wait_less_than_timed_ones(
    waited: float, data: float, step: float, ahead: bool
) -> None:
    facts: Any = SimpleNamespace(
        loader={"class": "Feeder"},
        waits_ms=pd.Series([waited, waited]),
        typical_ms=lambda phase: {"data": data}[phase],
        share=lambda ms: ms / step,
    )

    assert _works_ahead(facts) == ahead
