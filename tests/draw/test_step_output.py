"""A step that prints does not flood the cell, and standard output is the user's again in any case."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout

import pytest

from perfnb.draw.step_output import StepOutput


@pytest.fixture
def out() -> io.StringIO:
    """Return a standard output of the test's own."""
    return io.StringIO()


@pytest.mark.parametrize(
    ("printed", "said"), [(10, ""), (11, "[perfnb: 1 more line printed by the step]\n"), (1234, "1,224 more lines")]
)
def test_the_first_ten_lines_are_shown_and_the_others_counted(out: io.StringIO, printed: int, said: str) -> None:
    with redirect_stdout(out), StepOutput():
        for line in range(printed):
            print("loss", line)

    shown = out.getvalue()
    assert shown.startswith("".join(f"loss {line}\n" for line in range(10)))
    assert "loss 10\n" not in shown
    assert (said in shown) if said else shown.count("\n") == 10


def test_lines_are_shown_at_once_and_counted_as_they_are_written(out: io.StringIO) -> None:
    with redirect_stdout(out), StepOutput():
        sys.stdout.write("a")
        assert out.getvalue() == "a"
        sys.stdout.writelines(["b\n", *["c\n"] * 9, "d\ne", "f\n", "g"])

    assert out.getvalue() == "ab\n" + "c\n" * 9 + "[perfnb: 3 more lines printed by the step]\n"


def test_an_exception_shows_what_was_printed_before_it(out: io.StringIO) -> None:
    def step() -> None:
        for line in range(100):
            print("loss", line)
        print("nan in layer 3", end="")
        raise KeyError("loss")

    with pytest.raises(KeyError), redirect_stdout(out), StepOutput():
        step()

    last = [f"loss {line}" for line in range(91, 100)]
    assert out.getvalue().split("\n")[10:] == [
        "[perfnb: 81 more lines printed by the step]",
        *last,
        "nan in layer 3",
        "",
    ]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_standard_output_is_the_users_object_again(out: io.StringIO, error: type[BaseException]) -> None:
    def step() -> None:
        assert sys.stdout is not out
        assert sys.stdout.isatty() is False  # and whatever else it is asked
        sys.stdout = io.StringIO()
        raise error

    with redirect_stdout(out):
        with pytest.raises(error), StepOutput():
            step()
        assert sys.stdout is out


def test_without_standard_output_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with StepOutput():
        print("nobody hears")
    assert sys.stdout is None
