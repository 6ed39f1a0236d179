"""Laws that hold of whatever is made up at random: of some examples as a rule, of many more as a simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy


def holds_of(
    *made_up: SearchStrategy[Any], some: int, many: int
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A function of values made up by `made_up` as a test of `some` examples, and as a simulation of `many`."""
    simulation = pytest.param(many, marks=[pytest.mark.simulation, pytest.mark.timeout(3600)])

    def as_test(law: Callable[..., None]) -> Callable[..., None]:
        @pytest.mark.slow
        @pytest.mark.parametrize("examples", [some, simulation])
        def test(examples: int) -> None:
            within = settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
            within(given(*made_up)(law))()

        return test

    return as_test
