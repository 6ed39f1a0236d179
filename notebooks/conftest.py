"""Extend nbval: shorten the notebooks' budgets, and check that solved exercises would get their points.

A graded cell must write nothing to the error stream, because nbgrader gives no points to a cell that does. Exercises
about times may be refused on a busy machine; they only count if ``PERFNB_JUDGE_TIMES`` is set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

from perfnb.labs.ledger import exercise_of

#: What `check` writes for a wrong answer, and what `progress` shows for an unsolved exercise.
NOT_YET, NOT_SOLVED = (
    re.compile(r"^(\d+\.\d+) .*?: not yet\. "),
    re.compile(r"^ +not (yet|tried) +(\d+\.\d+) ", re.MULTILINE),
)
#: The budget named in a cell, a profile without one, and the default budget of a profile.
BUDGET = re.compile(r"(budget_s=|--budget )(\d+(?:\.\d+)?)")
NO_BUDGET = re.compile(r"^%%profile_step(?!.*--budget)", re.MULTILINE)
USUAL_BUDGET_S = 30.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budgets", type=float, default=1.0, metavar="FACTOR", help="shorten the notebooks' budgets")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    factor = config.getoption("--budgets")
    for item in items:
        if (cell := getattr(item, "cell", None)) is not None and factor != 1.0:
            source = NO_BUDGET.sub(f"%%profile_step --budget {USUAL_BUDGET_S:g}", cell["source"])
            cell["source"] = BUDGET.sub(lambda found: f"{found[1]}{float(found[2]) * factor:g}", source)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    try:
        yield
    except Exception:
        if not lacks_only_times(item):
            raise
    else:
        demand_silence(item)


def demand_silence(item: Any) -> None:
    """Fail a cell that has run if it is graded and wrote to the error stream."""
    if not graded(item):
        return
    wrote = "".join(each["text"] for each in item.test_outputs if each.get("name") == "stderr")
    if wrote and not ((refused := NOT_YET.match(wrote)) and may_be_refused(refused[1])):
        item.raise_cell_error("A graded cell wrote to the error stream, so nbgrader gives no points for it", wrote)


def lacks_only_times(item: Any) -> bool:
    """Check whether a cell failed because a lab is incomplete, with only exercises about times unsolved."""
    errors = [each for each in item.test_outputs or () if each.get("ename") == "AssertionError"] if graded(item) else []
    left = [found for error in errors for found in NOT_SOLVED.findall(error["evalue"])]
    return bool(left) and all(state == "yet" and may_be_refused(number) for state, number in left)


def graded(item: Any) -> bool:
    cell = getattr(item, "cell", None)
    return cell is not None and bool(cell["metadata"].get("nbgrader", {}).get("grade"))


def may_be_refused(number: str) -> bool:
    """Check whether the exercise is about times, which are not judged in this run."""
    return exercise_of(number).timed and not os.environ.get("PERFNB_JUDGE_TIMES")
