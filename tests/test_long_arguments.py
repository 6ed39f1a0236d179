"""What is given in the place of an argument is quoted in an error, but never all of it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import nn

import perfnb
from perfnb.errors import PerfnbError

#: Characters of an error, with what torch says of a number that is too large.
MOST = 2_000
#: Each of far more characters.
LONG: dict[str, Any] = {
    "text": "x" * 100_000,
    "bytes": b"x" * 100_000,
    "list": ["x"] * 50_000,
    "list of a long text": ["x" * 100_000],
    "mapping": {"x" * 100_000: "x" * 100_000},
    "mapping of a number": {"x" * 100_000: 1.0},
    "number": 10**4_000,
}


class Ran(Exception):
    """A step ran: nothing was wrong with the argument."""


def step(*_: Any) -> NoReturn:
    raise Ran


class Model(nn.Module):
    """Does not run either."""

    def forward(self, *_: Any, **__: Any) -> NoReturn:
        raise Ran


X = torch.ones(2, 4)
#: What is called, with what it needs.
CALLS: dict[str, dict[str, Any]] = {
    "ab_test": {"baseline": step, "candidate": step},
    "compare_architectures": {"models": {"a": Model()}, "batch": X},
    "confirm_input_bound": {"step": step, "batches": [X]},
    "estimate_memory": {"model": Model(), "batch": X},
    "find_leaks": {"step": step},
    "journal": {"path": "there is none"},
    "load": {"path": "there is none"},
    "profile_step": {"step": step},
    "scaling_study": {"make_step": lambda size: step, "sizes": [1, 2, 4]},
    "system_check": {},
    "time_step": {"step": step},
    "watch": {},
}


def cases() -> Iterator[Any]:
    for name in CALLS:
        for argument in inspect.signature(getattr(perfnb, name)).parameters:
            yield pytest.param(name, argument, id=f"{name}-{argument}")


def refused(name: str, arguments: dict[str, Any]) -> str:
    """Return what a function says of its arguments; empty where it takes them."""
    try:
        made = getattr(perfnb, name)(**arguments)
    except Ran:
        return ""
    except (TypeError, ValueError, OSError, LookupError, PerfnbError) as error:
        return str(error)
    if isinstance(made, perfnb.Watch):
        made.stop()
    return ""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "argument"), list(cases()))
def test_no_long_argument_is_quoted_whole(
    name: str, argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in LONG.values():
        assert len(refused(name, {**CALLS[name], argument: value})) < MOST


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        ("load", "max_bytes", "x" * 100_000),
        ("load", "executor", "x" * 100_000),
        ("load", "path", ["x" * 100_000, 5]),
        ("watch", "metrics", "x" * 100_000),
        ("watch", "metrics", {"x" * 100_000: 1}),
        ("estimate_memory", "optimizer", "x" * 100_000),
        ("estimate_memory", "loss", "x" * 100_000),
        ("ab_test", "profile", "x" * 100_000),
        ("ab_test", "limits", {"x" * 100_000: 1.0}),
        ("ab_test", "check", "x" * 100_000),
    ],
)
def test_a_long_argument_is_shortened(name: str, argument: str, value: Any) -> None:
    assert 0 < len(refused(name, {**CALLS[name], argument: value})) < MOST


@pytest.mark.parametrize("training", ["no", [], None, 2])
def test_training_is_true_or_false(training: Any) -> None:
    for name in ("compare_architectures", "estimate_memory"):
        assert "training must be True or False, not " in refused(name, {**CALLS[name], "training": training})
