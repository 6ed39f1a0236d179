"""A model that is nested as deep as Python allows runs in perfnb too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import perfnb
from perfnb.step.tracer import room_to_nest

pytestmark = pytest.mark.usefixtures("nothing_left")
X = torch.ones(2, 4)
SHORT = {"warmup": 1, "steps": 1, "traced": 1}


def nested(depth: int) -> nn.Module:
    model: nn.Module = nn.Linear(4, 4)
    for _ in range(depth):
        model = nn.Sequential(model)
    return model


def runs(depth: int) -> bool:
    try:
        nested(depth)(X).sum().backward()
    except RecursionError:
        return False
    return True


@pytest.fixture
def depth() -> Iterator[int]:
    """Yield the deepest nest of modules that runs here without perfnb."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    fits, fails = 1, 1000
    while fails - fits > 1:
        between = (fits + fails) // 2
        fits, fails = (between, fails) if runs(between) else (fits, between)
    yield fits
    sys.setrecursionlimit(limit)


def assert_whole(p: perfnb.Profile, depth: int) -> None:
    layers = p.layers[~p.layers.index.str.startswith("(")]
    assert layers["calls"].tolist() == [1] * (depth + 1)
    assert layers["depth"].tolist() == list(range(depth + 1))


@pytest.mark.slow
def test_the_deepest_model_that_runs_is_profiled(depth: int) -> None:
    model = nested(depth)

    assert_whole(perfnb.profile_step(lambda: model(X).sum().backward(), memory=False, flops=False, **SHORT), depth)


@pytest.mark.deep
def test_the_profile_of_the_deepest_model_that_runs_is_shown_saved_and_loaded(depth: int, tmp_path: Path) -> None:
    model = nested(depth)

    p = perfnb.profile_step(lambda: model(X).sum().backward(), **SHORT)

    assert_whole(p, depth)
    assert str(p)
    p.to_html(tmp_path / "report.html")
    p.save(tmp_path / "saved")
    assert_whole(perfnb.load(tmp_path / "saved"), depth)


WAYS = {
    "time_step": lambda model: perfnb.time_step(lambda: model(X), steps=3),
    "ab_test": lambda model: perfnb.ab_test(lambda: model(X), lambda: X + 1, budget_s=0.1),
    "find_leaks": lambda model: perfnb.find_leaks(lambda: model(X), steps=15, warmup=1),
    "estimate_memory": lambda model: perfnb.estimate_memory(model, X),
    "confirm_input_bound": lambda model: perfnb.confirm_input_bound(lambda x: model(x), [X] * 4, model, budget_s=0.2),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_deepest_model_that_runs_is_measured(way: str, depth: int) -> None:
    assert str(WAYS[way](nested(depth)))


def forever(n: int = 0) -> int:
    return forever(n + 1)


def test_endless_recursion_in_a_step_is_the_users_own_error() -> None:
    with pytest.raises(RecursionError) as caught:
        perfnb.profile_step(lambda: forever(), **SHORT)

    assert caught.traceback[-1].frame.code.name == "forever"


def test_a_limit_that_a_step_sets_stays() -> None:
    limit = sys.getrecursionlimit()
    try:
        with room_to_nest():
            sys.setrecursionlimit(limit + 1)
        assert sys.getrecursionlimit() == limit + 1
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize(("own", "raised"), [(1500, 3000), (3000, 6000), (5000, 8000)])
def test_the_limit_is_raised_once_and_put_back_by_the_last(own: int, raised: int) -> None:
    limit, inside = sys.getrecursionlimit(), list[int]()
    sys.setrecursionlimit(own)
    try:
        with room_to_nest():
            inside.append(sys.getrecursionlimit())
            with room_to_nest():
                inside.append(sys.getrecursionlimit())
            inside.append(sys.getrecursionlimit())
        inside.append(sys.getrecursionlimit())
    finally:
        sys.setrecursionlimit(limit)
    assert inside == [raised] * 3 + [own]
