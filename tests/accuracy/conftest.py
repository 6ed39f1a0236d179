"""Run the checks of what must be measured, for `make accuracy`, one after the other, with nothing else running.

A check that misses a limit while the machine was disturbed runs again, up to three times, unless it takes long. A miss
on an undisturbed machine is real, and fails. A check that missed in disturbed runs only is undecided, which does not
count as a failure.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.accuracy.disturbance import Disturbance
from tests.accuracy.judging import Figure, Figures, Missed, Unsettled, as_table, machine, write_table

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "accuracy.md"
#: How often a check that missed on a disturbed machine runs again.
RERUNS = 3
#: A check that took longer than this does not run again, or three of them would double the time of the whole.
WORTH_RERUN_S = 100
#: Seconds for all runs of one check together.
LIMIT_S = 3600

ROWS = pytest.StashKey[list[Figure]]()
FIGURES = pytest.StashKey[Figures]()
RAISED = pytest.StashKey[BaseException | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-table", action="store_true", help=f"write the figures' table into {PAGE.name}")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever lies in this folder is a check, so that none can get into `make test` by mistake."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.accuracy)
            item.add_marker(pytest.mark.timeout(LIMIT_S))


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figures:
    """Record a figure next to its limit, and fail the check if it lies outside."""
    figures = Figures()
    request.node.stash[FIGURES] = figures
    return figures


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """Run torch on one thread, so that no test measures threads that wait for each other."""
    torch = sys.modules.get("torch")
    threads = torch and torch.get_num_threads()
    if torch:
        torch.set_num_threads(1)
    yield
    if torch:
        torch.set_num_threads(threads)


def probe() -> Disturbance:
    """Return the check whether the machine was disturbed; tests of this facility replace it."""
    return Disturbance()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not item.path.is_relative_to(HERE):  # pytest calls this hook for the tests of every folder
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for run in range(1 + RERUNS):
        item.stash[FIGURES] = Figures()
        item.stash[RAISED] = None
        look = probe()
        look.start()
        begin = time.monotonic()
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        failed = [report for report in reports if report.failed]
        error = item.stash[RAISED]
        if not failed or not isinstance(error, (Missed, Unsettled)) or len(failed) > 1:
            break
        disturbed = look.reason()
        if isinstance(error, Unsettled) and disturbed is None:
            disturbed = "nothing else was seen to disturb it"
        if disturbed is None:
            break
        if run == RERUNS or time.monotonic() - begin > WORTH_RERUN_S:
            _undecided(item, failed[0], disturbed)
            break
    rows = item.stash[FIGURES].rows
    if run and rows and rows[-1].verdict == "held":
        for row in rows:
            row.verdict += f" (run {run + 1})"
    item.config.stash[ROWS] += rows
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    if call.excinfo is not None and call.when == "call":
        item.stash[RAISED] = call.excinfo.value
    return (yield)


def _undecided(item: pytest.Item, report: pytest.TestReport, disturbed: str) -> None:
    """A miss that says nothing: skipped, with what disturbed the last run."""
    for row in item.stash[FIGURES].rows:
        if row.verdict == "MISSED":
            row.verdict = "undecided (disturbed)"
    report.outcome = "skipped"
    path, line, _ = item.location
    report.longrepr = (path, line or 0, f"undecided (disturbed): {item.stash[RAISED]}; {disturbed}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash[ROWS]
    if not rows:
        return
    terminalreporter.section("figures")
    terminalreporter.write_line(machine())
    terminalreporter.write_line("")
    terminalreporter.write_line(as_table(rows))
    if config.getoption("--write-table", default=False):
        write_table(PAGE, rows)
        terminalreporter.write_line(f"Written into {PAGE}.")
