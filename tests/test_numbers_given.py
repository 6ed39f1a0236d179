"""Numbers that make no sense are refused in a sentence that names them, before anything runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import torch
from torch import nn

import perfnb

pytestmark = pytest.mark.usefixtures("nothing_left")
MODEL, X = nn.Linear(4, 4), torch.ones(2, 4)


def never() -> None:
    pytest.fail("a step ran")


def never_on(batch: Any) -> None:
    pytest.fail("a step ran")


NO_NUMBERS = (math.inf, -math.inf, math.nan, -1, 10**400, -(10**400), 10**5000, "3", "x" * 300, True, [1], 1j, b"3")
NOT_ABOVE_0 = (*NO_NUMBERS, 0, None, 1e308, Decimal(3), object())
NO_COUNTS = (*NO_NUMBERS, 2.5, Decimal(3), 10**10)
NO_FLAGS = ("yes", 2, 10**400, None, [1])

GIVEN: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...]]] = {
    "profile_step budget_s": (lambda v: perfnb.profile_step(never, budget_s=v), NOT_ABOVE_0),
    "profile_step warmup": (lambda v: perfnb.profile_step(never, warmup=v), NO_COUNTS),
    "profile_step steps": (lambda v: perfnb.profile_step(never, steps=v), (*NO_COUNTS, 0)),
    "profile_step traced": (lambda v: perfnb.profile_step(never, traced=v), (*NO_COUNTS, 0, None)),
    "profile_step memory": (lambda v: perfnb.profile_step(never, memory=v), NO_FLAGS),
    "profile_step flops": (lambda v: perfnb.profile_step(never, flops=v), NO_FLAGS),
    "profile_step stacks": (lambda v: perfnb.profile_step(never, stacks=v), NO_FLAGS),
    "profile_step watch": (lambda v: perfnb.profile_step(never, watch=v), NO_FLAGS),
    "time_step budget_s": (lambda v: perfnb.time_step(never, budget_s=v), NOT_ABOVE_0),
    "time_step steps": (lambda v: perfnb.time_step(never, steps=v), (*NO_COUNTS, 0)),
    "ab_test budget_s": (lambda v: perfnb.ab_test(never, never, budget_s=v), NOT_ABOVE_0),
    "ab_test equal_within": (lambda v: perfnb.ab_test(never, never, equal_within=v), (*NOT_ABOVE_0, 1)),
    "find_leaks steps": (lambda v: perfnb.find_leaks(never, steps=v), (*NO_COUNTS, 0)),
    "find_leaks warmup": (lambda v: perfnb.find_leaks(never, warmup=v), NO_COUNTS),
    "system_check budget_s": (lambda v: perfnb.system_check(resolution=never, budget_s=v), NOT_ABOVE_0),
    "scaling_study sizes": (lambda v: perfnb.scaling_study(lambda n: never, [1, v]), (10**400, math.inf, "3", -1, 0)),
    "confirm_input_bound budget_s": (
        lambda v: perfnb.confirm_input_bound(never_on, [X], MODEL, budget_s=v),
        NOT_ABOVE_0,
    ),
    "compare_architectures budget_s": (
        lambda v: perfnb.compare_architectures({"a": MODEL, "b": MODEL}, X, budget_s=v),
        NOT_ABOVE_0,
    ),
    "watch interval_s": (perfnb.watch, (*NOT_ABOVE_0, 10**6)),
    "largest_batch bytes": (lambda v: perfnb.estimate_memory(MODEL, X).largest_batch(v), (math.nan, 10**400, "3", -1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", GIVEN)
def test_a_number_that_makes_no_sense_is_refused_in_a_sentence_that_names_it(what: str) -> None:
    use, values = GIVEN[what]
    name = what.split()[1]
    for value in values:
        with pytest.raises((TypeError, ValueError), match=rf"^{name} .*\.$") as caught:
            use(value)
        assert len(str(caught.value)) < 200
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("take", [perfnb.profile_step, perfnb.find_leaks])
@pytest.mark.parametrize("name", [3, b"run", ["run"], True, X])
def test_a_name_that_is_not_text_is_refused(take: Callable[..., Any], name: Any) -> None:
    with pytest.raises(TypeError, match="name must be text, not "):
        take(never, name=name)
