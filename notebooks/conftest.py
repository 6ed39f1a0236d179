"""What nbval leaves to be seen to: lab 8's traces, what is judged, and that solved exercises get their points.

Lab 8's traces are of other projects, and no test fetches them: without them its cells are skipped, and say why. A
graded cell must write nothing to the error stream, for that alone makes nbgrader give it no points.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.labs.traces_at_hand import MISSING, folder

HERE = Path(__file__).parent
#: An assertion about measured times, which a busy machine may fail: `make accuracy` judges it, no other run does.
MEASURED = re.compile(r"^(\s*)assert .*# measured$", re.MULTILINE)
BUDGET = re.compile(r"(budget_s=|--budget )(\d+(?:\.\d+)?)")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--measured", action="store_true", help="judge the notebooks' assertions about measured times")
    parser.addoption("--budgets", type=float, default=1.0, metavar="FACTOR", help="shorten the notebooks' budgets")


def to_run(source: str, *, measured: bool, factor: float) -> str:
    """A cell as it is run: with its budgets times a factor, and without what only a quiet machine can promise."""
    if not measured:
        source = MEASURED.sub(r"\1pass", source)
    return source if factor == 1.0 else BUDGET.sub(lambda found: f"{found[1]}{float(found[2]) * factor:g}", source)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    options = {"measured": config.getoption("--measured"), "factor": config.getoption("--budgets")}
    for item in items:
        if (cell := getattr(item, "cell", None)) is not None:
            cell["source"] = to_run(cell["source"], **options)
    found = folder()
    if found is not None:
        os.environ["PERFNB_LAB_TRACES"] = str(found)  # the kernels inherit it
        return
    for item in items:
        if item.path.is_relative_to(HERE) and item.path.name.startswith("08_"):
            item.add_marker(pytest.mark.skip(reason=MISSING))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    yield
    demand_silence(item)


def demand_silence(item: Any) -> None:
    """Fail the cell of a notebook, which has run, if it is graded and wrote to the error stream."""
    cell = getattr(item, "cell", None)
    if cell is None or not cell["metadata"].get("nbgrader", {}).get("grade"):
        return
    wrote = "".join(each["text"] for each in item.test_outputs if each.get("name") == "stderr")
    if wrote:
        item.raise_cell_error("A graded cell wrote to the error stream, so nbgrader gives no points for it", wrote)
