"""What nbval leaves to be seen to: which traces lab 8 reads, and that solved exercises would get their points.

Lab 8's traces are of other projects, and no test fetches them: without them its cells are skipped, and say why. A
graded cell must write nothing to the error stream, for that alone makes nbgrader give it no points.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.labs.traces_at_hand import MISSING, folder

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
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
