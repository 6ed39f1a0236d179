"""Define the pytest plugin, with the fixture `perf`, the plugin's options, and its reports.

The plugin is loaded by every pytest run in an environment with perfnb, so slow imports are deferred until the fixture
is used.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from perfnb.errors import PerfnbError

if TYPE_CHECKING:
    from perfnb.gate.gating import Perf
    from perfnb.gate.revisions import Revision

#: The other revision, if there is one.
REVISION: pytest.StashKey[Revision] = pytest.StashKey()
#: The name of the property of a test report that contains the facts about a gated step.
PROPERTY = "perf"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's options."""
    add = parser.getgroup("perf", "steps that must not become slower (perfnb)").addoption
    add("--perf-update", action="store_true", help="Record the counts of steps in the files next to their tests.")
    add("--perf-against", metavar="REV", help="Also compare the step times with this revision, in interleaved pairs.")
    add(
        "--perf-limit",
        metavar="RATIO",
        type=float,
        default=1.03,
        help="Fail if the whole interval of the time ratio is above this limit (default: 1.03).",
    )
    add(
        "--perf-budget",
        metavar="S",
        type=float,
        default=60.0,
        help="Maximum number of seconds for comparing a step (default: 60).",
    )
    add("--perf-json", metavar="FILE", help="Write times and counts in pytest-benchmark's JSON format.")
    add(
        "--perf-summary",
        metavar="FILE",
        default=os.environ.get("GITHUB_STEP_SUMMARY"),
        help="Append a summary in Markdown (default: $GITHUB_STEP_SUMMARY).",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check the options, and find the other revision."""
    if not 1 < config.getoption("--perf-limit") < 2:
        raise pytest.UsageError("--perf-limit must be between 1 and 2 (1.03 is 3 % slower).")
    if not 0 < config.getoption("--perf-budget") < 10**6:
        raise pytest.UsageError("--perf-budget must be a number of seconds above 0.")
    for option, why in (
        ("--perf-against", "compares times, which other test processes would disturb"),
        ("--perf-update", "writes files, which other test processes would overwrite"),
    ):
        distributed = hasattr(config, "workerinput") or config.getoption("numprocesses", None)
        if config.getoption(option) and distributed:
            raise pytest.UsageError(f"{option} {why}: run it in one process, without -n.")
    if (name := config.getoption("--perf-against")) is not None:
        from perfnb.gate.revisions import Revision

        try:
            revision = Revision(name, config.rootpath)
        except PerfnbError as error:
            raise pytest.UsageError(f"--perf-against: {error}") from error
        config.stash[REVISION] = revision
        config.add_cleanup(revision.close)
        _end_on_termination(config)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Reports(config), "perfnb-reports")


def _default_termination() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end_on_termination(config: pytest.Config) -> None:
    """Make a termination signal end the tests in the same way as an interrupt, so that everything is cleaned up."""
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        config.add_cleanup(_default_termination)
        signal.signal(signal.SIGTERM, lambda *_: pytest.exit("terminated", returncode=128 + signal.SIGTERM))


@pytest.fixture
def perf(request: pytest.FixtureRequest) -> Perf:
    """Gate a step: ``perf.step(step, batches)`` fails if its work differs from the record, or if it takes longer.

    See `perfnb.gate.gating.Perf`.
    """
    from perfnb.gate.gating import Perf

    return Perf(request.node)


class Reports:
    """Collector of the results, which are written at the end of the test run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._steps: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the steps of a test, even if it ran in another process."""
        if report.when == "call":
            self._steps += [facts for name, facts in report.user_properties if name == PROPERTY]  # type: ignore[misc]

    def pytest_sessionfinish(self) -> None:
        """Write the requested files."""
        from perfnb.gate.reports import benchmark_json, markdown

        if (path := self._config.getoption("--perf-json")) is not None:
            Path(path).write_text(benchmark_json(self._steps), "utf-8")
        if (path := self._config.getoption("--perf-summary")) is not None and self._steps:
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(markdown(self._steps))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Report the results of each step."""
        from perfnb.gate.reports import line

        if self._steps:
            terminalreporter.section("perf")
        for facts in self._steps:
            terminalreporter.line(line(facts))
