"""Test properties of random values: of a few examples in `make test`, and of more or many examples in other runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy


def holds_of(
    *made_up: SearchStrategy[Any], some: int, many: int
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a function of values from `made_up` into tests of a few, `some` (deep) and `many` (simulation) examples."""
    few, deep = max(3, some // 6), pytest.param(some, marks=pytest.mark.deep)
    simulation = pytest.param(many, marks=[pytest.mark.simulation, pytest.mark.timeout(3600)])

    def as_test(law: Callable[..., None]) -> Callable[..., None]:
        @pytest.mark.slow
        @pytest.mark.parametrize("examples", [few, deep, simulation])
        def test(examples: int) -> None:
            within = settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
            within(given(*made_up)(law))()

        return test

    return as_test
