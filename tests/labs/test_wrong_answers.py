"""For each exercise at least three wrong answers are refused in these tests.

They are counted where they stand: the rows of a test that gets an answer, or facts, and what the check says of it
(`says` or `words`, empty where the answer is right) or asserts of each answer that there is a hint, and the lines
``assert "..." in hint("2.3", ...)``. What is merely no answer (``None``, a number where a function is asked for) does
not count, but where a prediction is asked for, of which only the form is judged.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfnb.labs.exercise import Exercise
from perfnb.labs.ledger import exercises_of, known_labs
from tests.labs.judging import hint

LEAST = 3
#: How the tests put an answer, or facts measured of one, to a check.
JUDGING = {"hint", "said_of", "expect", "expect_of"}
REASON = {"says", "words"}
NO_ANSWER = re.compile(
    r"itself|nothing yet|no value|no answer|must be a number|one number|True or False|dictionary|lacks|"
    r"needed|Give |=\w+|\w+Error|Return |whole number"
)


def every_test() -> Iterator[Any]:
    folder = Path(__file__).parent
    for path in sorted([*folder.glob("test_lab_*.py"), *folder.glob("test_boundaries*.py")]):
        module = importlib.import_module(f"{__package__}.{path.stem}")
        yield from (each for name, each in vars(module).items() if name.startswith("test_"))


def refused(test: Any) -> Iterator[tuple[str, str]]:
    """For each wrong answer in a test the exercise, and what the check must say of it (empty for anything)."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(test)))
    named, bare = set(), set()
    for node in ast.walk(tree):
        if is_judging(node):
            named.add(constant(node.args[0]))
        if isinstance(node, ast.Assert) and is_judging(node.test):
            bare.add(constant(node.test.args[0]))
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In) and is_judging(node.comparators[0]):
            number, reason = constant(node.comparators[0].args[0]), constant(node.left)
            if number and reason:
                yield number, reason
    for mark in getattr(test, "pytestmark", []):
        if mark.name != "parametrize":
            continue
        names = mark.args[0].split(", ") if isinstance(mark.args[0], str) else list(mark.args[0])
        for each in mark.args[1]:
            row = each.values if hasattr(each, "marks") else each if len(names) > 1 else [each]
            values = dict(zip(names, row, strict=True))
            reason = next((values[name] for name in REASON if name in values), "")
            if reason and len(named) == 1:
                yield values.get("number", *named), reason
            yield from ((number, "") for number in bare)


def is_judging(node: Any) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in JUDGING


def constant(node: Any) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@pytest.fixture(scope="module")
def wrong() -> list[tuple[str, str]]:
    return [each for test in every_test() for each in refused(test)]


@pytest.mark.parametrize(
    "exercise", [each for lab in known_labs() for each in exercises_of(lab)], ids=lambda exercise: exercise.number
)
def test_three_wrong_answers(wrong: list[tuple[str, str]], exercise: Exercise) -> None:
    form = exercise.accepted != "right"
    reasons = [reason for number, reason in wrong if number == exercise.number]
    counted = [reason for reason in reasons if form or not NO_ANSWER.search(reason)]

    assert len(counted) >= LEAST, counted


@pytest.mark.parametrize(("answer", "says"), [(1, ""), (2, "twice"), (3, "no value")])
def a_test_of_rows(answer: int, says: str) -> None:
    assert says in hint("9.1", answer)


@pytest.mark.parametrize("answer", [1, pytest.param(2, marks=pytest.mark.slow)])
def a_test_of_refusals(answer: int) -> None:
    assert hint("9.2", answer)
    assert "half" in hint("9.3", answer)
    assert hint("9.4", answer) == ""


def test_what_is_counted() -> None:
    assert list(refused(a_test_of_rows)) == [("9.1", "twice"), ("9.1", "no value")]
    assert list(refused(a_test_of_refusals)) == [("9.3", "half"), ("9.2", ""), ("9.2", "")]
    assert not NO_ANSWER.search("twice")
    assert NO_ANSWER.search("no value")
