"""What perfnb does to a user's exception on its way out: it frees its own frames and changes nothing else."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

import pytest

from perfnb import failures
from perfnb.command.script import _leave_out_own_frames
from perfnb.failures import keeps_nothing


def chained(count: int) -> ValueError:
    """Return an error with so many causes, one behind the other."""
    error = ValueError("the step's own")
    last: BaseException = error
    for _ in range(count):
        last.__cause__ = KeyError()
        last = last.__cause__
    return error


def test_an_error_with_thousands_of_causes_comes_out() -> None:
    error = chained(3000)

    @keeps_nothing
    def step() -> None:
        raise error

    with pytest.raises(ValueError, match="the step's own") as caught:
        step()

    assert caught.value is error


def test_a_script_s_error_with_thousands_of_causes_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: printed.append(error))
    _leave_out_own_frames()
    error = chained(3000)

    sys.excepthook(ValueError, error, None)

    assert printed == [error]


def test_the_frames_of_a_group_s_members_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned: list[TracebackType | None] = []
    monkeypatch.setattr(failures, "_freed", lambda trace: cleaned.append(trace))
    members: list[Exception] = []
    for kind in (KeyError, OSError):
        try:
            raise kind
        except kind as error:
            members.append(error)
    traces = [one.__traceback__ for one in members]

    @keeps_nothing
    def step() -> None:
        raise ExceptionGroup("both", members)

    with pytest.raises(ExceptionGroup):
        step()

    assert set(traces) <= set(cleaned)


def test_an_error_that_cannot_be_cleaned_comes_out() -> None:
    class Closed(Exception):
        def __setattr__(self, name: str, value: Any) -> None:
            raise TypeError("nothing can be set")

    @keeps_nothing
    def step() -> None:
        raise Closed

    with pytest.raises(Closed):
        step()
