"""Check out another revision for the duration of a test run, and run the same step from both in new processes."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from perfnb.errors import PerfnbError

if TYPE_CHECKING:
    import pytest

#: The minimum duration of the counted part of a turn, the maximum number of steps in it, and the share of additional
#: steps that run first.
_TURN_MS, _MOST_STEPS, _LEAD = 40.0, 10_000, 0.25
#: The number of turns per process from which the number of steps in later turns is planned.
_FIRST = 3
#: The probability of detecting a step whose slowdown exceeds the limit by as much as the limit allows.
_POWER = 0.95
#: The number of seconds that a process has to clean up.
_PATIENCE_S = 10.0
#: The pytest plugins that are disabled in the process, which has its own fixture.
_LEFT_OUT = ("cacheprovider", "perfnb", "perfnb.gate.plugin")
#: Variables that belong only to this test run.
_NOT_PASSED_ON = ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "PYTEST_XDIST")
#: pytest's exit codes if a test does not exist.
_NOT_THERE = (4, 5)


class MissingTestError(PerfnbError):
    """Raised if the other revision does not have the test, or if the test does not call `perf.step`."""


class Revision:
    """Another revision of the repository to which a folder belongs.

    Parameters
    ----------
    name : str
        The name given by the user, such as ``origin/main``, ``HEAD~1`` or a commit.
    folder : Path

    Raises
    ------
    PerfnbError
        If git is not installed, or if the repository or revision does not exist.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.top = Path(_git(folder, "rev-parse", "--show-toplevel", wrong=f"{folder} is not in a git repository"))
        self.commit = _git(
            self.top,
            *("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"),
            wrong=f"{name} is not a revision of the repository {self.top}. A shallow clone must include its history "
            "(actions/checkout: fetch-depth: 0)",
        )
        self._made = ExitStack()

    @cached_property
    def tree(self) -> Path:
        """The folder where the revision is checked out, as a worktree of the repository."""
        folder = Path(tempfile.mkdtemp(prefix="perfnb_gate_")).resolve()
        self._made.callback(self._remove, folder)
        command = ("-c", f"core.hooksPath={os.devnull}", "worktree", "add", "--quiet", "--detach")
        wrong = f"{self.name} cannot be checked out"
        _git(self.top, *command, str(folder / "tree"), self.commit, wrong=wrong)
        return folder / "tree"

    def close(self) -> None:
        """Remove the checkout."""
        self._made.close()

    def _remove(self, folder: Path) -> None:
        with suppress(PerfnbError):
            _git(self.top, "worktree", "remove", "--force", str(folder / "tree"), wrong="")
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(PerfnbError):
            _git(self.top, "worktree", "prune", wrong="")

    def moved(self, path: str | Path) -> Path:
        """Return the corresponding path in this revision, or the path itself if it is outside the working tree."""
        try:
            there = self.tree / Path(path).resolve().relative_to(self.top.resolve())
        except ValueError:
            return Path(path)
        return there if there.exists() else Path(path)


def _git(folder: Path, *words: str, wrong: str) -> str:
    # A git hook sets variables that refer to another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-c", "core.fsmonitor=false", *words]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True
        )
    except FileNotFoundError as error:
        raise PerfnbError("git is not installed.") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines()
        raise PerfnbError(f"{wrong}{f' ({said[-1]})' if said else ''}.") from error
    return done.stdout.strip()


class StepProcess:
    """A process that runs a test's step on request, either in the working tree or at another revision.

    Parameters
    ----------
    item : pytest.Item
        The test.
    name : str
        The name of the step within the test.
    revision : Revision, optional

    Raises
    ------
    MissingTestError
        If the revision does not have this step.
    PerfnbError
        If the test fails, or if it imports code from the other side.
    """

    def __init__(self, item: pytest.Item, name: str, revision: Revision | None = None) -> None:
        self._where = "the working tree" if revision is None else revision.name
        with ExitStack() as stack:
            self._log: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())
            self._socket, theirs = socket.socketpair()
            self._channel = self._socket.makefile("rw", encoding="utf-8")
            stack.callback(self._hang_up)
            order = json.dumps({"name": name, "channel": theirs.fileno(), **_order(item, revision)})
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", str(Path(__file__).with_name("child.py")), order],
                    cwd=_moved(item.config.invocation_params.dir, revision),
                    env=_environment(revision),
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # an interrupt reaches only this process, which ends the other one
                )
            stack.callback(self._end)
            self._stack = stack.pop_all()

    def wait(self) -> None:
        """Wait until the process has reached the step."""
        answer = self._answer()
        if not answer.get("ready"):
            raise self._failed(answer)
        if answer["foreign"]:
            raise PerfnbError(
                f"{self._where} cannot be measured: its test imports {answer['foreign']} from the working tree. "
                "Install the project as editable, or put its folder on pytest's pythonpath."
            )

    def turn(self, lead: int, steps: int) -> float:
        """Run steps back to back, and return the milliseconds per step."""
        with suppress(BrokenPipeError):
            self._channel.write(json.dumps({"lead": lead, "steps": steps}) + "\n")
            self._channel.flush()
        answer = self._answer()
        if "ms" not in answer:
            raise self._failed(answer)
        return float(answer["ms"])

    def close(self) -> None:
        """Ask the process to end its test. If it does not, terminate the process."""
        self._stack.close()

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._channel.readline()
        except ConnectionError:
            line = ""
        return json.loads(line) if line else {}

    def _failed(self, answer: Mapping[str, Any]) -> PerfnbError:
        code = answer.get("ended")
        if code == 0:
            return MissingTestError(f"the test does not reach this step at {self._where}")
        self._end()
        self._log.seek(0)
        lines = [line for line in self._log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        errors = [line.removeprefix("E").strip() for line in lines if line.startswith("E  ")]
        if code in _NOT_THERE and not errors:
            return MissingTestError(f"the test does not exist at {self._where}")
        return PerfnbError(f"The test fails at {self._where}: {[*lines, *errors[:1]][-1]}")

    def _hang_up(self) -> None:
        with suppress(OSError):  # any output that has not been written yet
            self._channel.close()
        self._socket.close()  # the other side only notices after this

    def _end(self) -> None:
        self._hang_up()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(ProcessLookupError, PermissionError):  # also terminate its child processes
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _moved(path: str | Path, revision: Revision | None) -> str:
    return str(path if revision is None else revision.moved(path))


def _order(item: pytest.Item, revision: Revision | None) -> dict[str, Any]:
    """Return the arguments for pytest, the import path, and the folder from which nothing may be imported."""
    config, file = item.config, item.path
    if revision is not None:  # even if it does not exist
        file = revision.tree / file.resolve().relative_to(revision.top.resolve())
    arguments = ["-q", "-o", "addopts=", f"--import-mode={config.getoption('importmode')}"]
    arguments += [word for name in _LEFT_OUT for word in ("-p", f"no:{name}")]
    arguments += [f"--rootdir={_moved(config.rootpath, revision)}"]
    arguments += [] if config.inipath is None else ["-c", _moved(config.inipath, revision)]
    return {
        "arguments": [*arguments, f"{file}::{item.nodeid.partition('::')[2]}"],
        "path": [_moved(entry, revision) if entry else "" for entry in sys.path],
        "elsewhere": "" if revision is None else str(revision.top.resolve()),
    }


def _environment(revision: Revision | None) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_PASSED_ON)}
    if revision is not None:
        environment["PERFNB_TREE"] = str(revision.tree)
        given = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
        moved = [str(revision.moved(part)) for part in [*filter(None, sys.path), *given]]
        own = [part for part in moved if part.startswith(str(revision.tree))]
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*own, *given]))
    return environment


class StepPair:
    """A pair of processes that take turns running the same step, for the experiments in `perfnb.bench.design`."""

    count = 2

    def __init__(self, baseline: Any, candidate: Any) -> None:
        self._sides = (baseline, candidate)
        first = [side.turn(0, 1) for _ in range(_FIRST) for side in self._sides]
        self._steps = min(math.ceil(_TURN_MS / max(min(first), 1e-6)), _MOST_STEPS)
        self._lead = int(_LEAD * self._steps)
        self.results: list[Any] = []  # return values are not kept

    def rounds(self, orders: Iterable[Sequence[int]], *, until: float | None = None, **_: Any) -> Any:
        """Run rounds in the same way as `perfnb.bench.rounds.Bench`.

        Return the milliseconds, with a row per side and a column per round.
        """
        import numpy as np

        rounds: list[list[float]] = []
        for order in orders:
            if rounds and until is not None and time.perf_counter() > until:
                break
            times = {number: self._sides[number].turn(self._lead, self._steps) for number in order}
            rounds.append([times[0], times[1]])
        return np.array(rounds).T


def paired(baseline: Any, candidate: Any, names: tuple[str, str], limit: float, budget_s: float) -> Any:
    """Compare two sides in interleaved pairs, enough to detect a step that exceeds the limit by the limit's own margin.

    Returns
    -------
    PairedTimes
    """
    from perfnb.bench.design import planned_rounds, warm_up
    from perfnb.bench.paired_times import paired_times

    begin, within = time.perf_counter(), limit - 1
    pair = StepPair(baseline, candidate)
    steady = warm_up(pair, begin, budget_s)
    plan, times = planned_rounds(pair, begin, budget_s, within, power=_POWER)
    (a_ms, b_ms), (a_name, b_name) = times.tolist(), names
    plan_of = {"planned": plan.count, "needed": plan.needed, "steady": steady}
    return paired_times(a_ms, b_ms, equal_within=within, a_name=a_name, b_name=b_name, **plan_of)


def compare_revisions(item: pytest.Item, name: str, revision: Revision, limit: float, budget_s: float) -> Any:
    """Compare a test's step in the working tree with another revision. Raises the same errors as `StepProcess`.

    Returns
    -------
    PairedTimes
        The comparison. The revision is the baseline.
    """
    with ExitStack() as stack:
        sides = []
        for of in (revision, None):  # both start at the same time
            sides.append(StepProcess(item, name, of))
            stack.callback(sides[-1].close)
        for side in sides:
            side.wait()
        return paired(sides[0], sides[1], (revision.name, "working tree"), limit, budget_s)
