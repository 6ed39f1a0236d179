"""A checkout of another revision, the processes that run a step in it, and how they take turns."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfnb.bench import design
from perfnb.errors import PerfnbError
from perfnb.gate import revisions
from perfnb.gate.gating import confirmed
from perfnb.gate.revisions import MissingTestError, Revision, StepPair, StepProcess, compare_revisions
from tests.gate.repositories import git, nothing_is_left, repository, write_step

#: The start of a fake of the script that runs a test's step.
CHILD = """\
import json, os, socket, sys
order = json.loads(sys.argv[1])
channel = socket.socket(fileno=order["channel"]).makefile("rw")
def say(**facts):
    print(json.dumps(facts), file=channel, flush=True)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def item_of(folder: Path, file: str = "tests/test_step.py", ini: str | None = "pyproject.toml") -> Any:
    """Return a test of a class, as far as the gate reads it."""
    config = SimpleNamespace(
        getoption={"importmode": "append"}.__getitem__,
        rootpath=folder,
        inipath=None if ini is None else folder / ini,
        invocation_params=SimpleNamespace(dir=folder),
    )
    return SimpleNamespace(config=config, path=folder / file, nodeid=f"{file}::TestIt::test_step[1]")


def test_a_revision_is_checked_out_until_it_is_closed(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "working"
    folder.mkdir()
    repository(folder, 5.0)
    committed = (folder / "package.py").read_text()
    write_step(folder, 7.0)
    (folder / "new.py").touch()
    hook = folder / ".git" / "hooks" / "post-checkout"
    hook.write_text("#!/bin/sh\ntouch hooked\n")
    hook.chmod(0o755)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))  # as a git hook sets it

    revision = Revision("main", folder / "tests")
    assert (revision.name, revision.top.resolve()) == ("main", folder.resolve())
    assert revision.commit == git(folder, "rev-parse", "HEAD").strip()
    assert not any(temporary.iterdir())  # not before it is needed
    revision.close()

    tree = revision.tree
    assert revision.tree is tree
    assert (tree / "package.py").read_text() == committed
    assert not (tree / "hooked").exists()
    assert revision.moved(folder / "package.py") == tree / "package.py"
    assert revision.moved(folder / "new.py") == folder / "new.py"
    assert revision.moved(str(tmp_path)) == tmp_path
    revision.close()
    assert nothing_is_left(folder, temporary)


def test_what_git_says_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PerfnbError, match=r"^no folder \(fatal: .*\)\.$"):
        revisions._git(tmp_path, "cat-file", "-t", "nothing", wrong="no folder")
    with pytest.raises(PerfnbError, match=r"^nothing$|^nothing\.$"):
        revisions._git(tmp_path, "config", "no.such", wrong="nothing")  # git says nothing
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PerfnbError, match=r"^git is not installed\.$"):
        revisions._git(tmp_path, "version", wrong="")


def test_a_process_gets_the_same_test_from_the_tree_of_its_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working, tree, site = tmp_path / "working", tmp_path / "tree", tmp_path / "site"
    for folder in (working / "src", working / "tests", tree / "src", site):
        folder.mkdir(parents=True)
    (tree / "pyproject.toml").touch()
    revision = Revision.__new__(Revision)
    vars(revision).update(name="main", top=working, tree=tree)
    monkeypatch.setattr(sys, "path", ["", str(working / "src"), str(site)])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), "", str(working)]))
    for name in ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "KEPT"):
        monkeypatch.setenv(name, "7")

    left_out = ["-p", "no:cacheprovider", "-p", "no:perfnb", "-p", "no:perfnb.gate.plugin"]
    start = ["-q", "-o", "addopts=", "--import-mode=append", *left_out]
    assert revisions._order(item_of(working), None) == {
        "arguments": [
            *start,
            *(f"--rootdir={working}", "-c", str(working / "pyproject.toml")),
            f"{working / 'tests/test_step.py'}::TestIt::test_step[1]",
        ],
        "path": ["", str(working / "src"), str(site)],
        "elsewhere": "",
    }
    assert revisions._order(item_of(working, ini=None), revision) == {
        "arguments": [*start, f"--rootdir={tree}", f"{tree / 'tests/test_step.py'}::TestIt::test_step[1]"],
        "path": ["", str(tree / "src"), str(site)],
        "elsewhere": str(working),
    }
    here, there = revisions._environment(None), revisions._environment(revision)
    assert (here["KEPT"], here["PYTHONPATH"]) == ("7", os.environ["PYTHONPATH"])
    assert "PERFNB_TREE" not in here
    assert there["PERFNB_TREE"] == str(tree)
    assert there["PYTHONPATH"].split(os.pathsep) == [str(tree / "src"), str(tree), str(site), str(working)]
    left = {"PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER"}
    assert left.isdisjoint(here)
    assert left.isdisjoint(there)


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], StepProcess]:
    """Return a function that starts a process that runs a script instead of a test."""

    def start(code: str) -> StepProcess:
        (tmp_path / "child.py").write_text(CHILD + code)
        monkeypatch.setattr(revisions, "__file__", str(tmp_path / "revisions.py"))
        return StepProcess(item_of(tmp_path), "mine")

    return start


def test_a_process_takes_turns_until_it_is_closed(starts: Callable[[str], StepProcess], tmp_path: Path) -> None:
    process = starts(
        "say(ready=True, foreign=None)\nfor line in channel:\n    asked = json.loads(line)\n"
        "    say(ms=asked['lead'] + asked['steps'] / 10)\n"
        "open('ended', 'w').write(order['name'] + os.getcwd())\nprint('to the log', file=sys.stderr)\n"
    )
    process.wait()
    assert [process.turn(3, 5), process.turn(0, 1)] == [3.5, 0.1]
    process.close()
    assert (tmp_path / "ended").read_text() == f"mine{tmp_path}"
    assert process._process.returncode == 0


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        ("say(ended=0)", MissingTestError, "the test does not reach this step at the working tree"),
        ("say(ended=4)", MissingTestError, "the test does not exist at the working tree"),
        ("say(ended=5)", MissingTestError, "the test does not exist at the working tree"),
        ("print('E   No module\\n\\n'); say(ended=4)", PerfnbError, "The test fails at the working tree: No module"),
        (
            "print('E   first\\nE   second\\n1 failed\\n'); say(ended=1)",
            PerfnbError,
            "The test fails at the working tree: first",
        ),
        ("print('one\\nlast\\n')", PerfnbError, "The test fails at the working tree: last"),
        (
            "say(ready=True, foreign='package')",
            PerfnbError,
            "the working tree cannot be measured: its test imports package from the working tree. Install the project "
            "as editable, or put its folder on pytest's pythonpath.",
        ),
    ],
)
def test_why_a_process_does_not_reach_the_step(
    code: str, kind: type[Exception], reason: str, starts: Callable[[str], StepProcess]
) -> None:
    process = starts(code)
    try:
        with pytest.raises(PerfnbError) as raised:
            process.wait()
    finally:
        process.close()
    assert (type(raised.value), str(raised.value)) == (kind, reason)


def test_a_process_that_ends_during_its_turns_is_a_failure(starts: Callable[[str], StepProcess]) -> None:
    process = starts("say(ready=True, foreign=None)\nchannel.readline()\nprint('E   broken')")
    process.wait()
    for _ in range(2):  # at the second time, nobody reads the request
        with pytest.raises(PerfnbError, match=r"^The test fails at the working tree: broken$"):
            process.turn(1, 1)
        process._channel = SimpleNamespace(  # type: ignore[assignment]
            write=lambda _: (_ for _ in ()).throw(BrokenPipeError()),
            readline=lambda: (_ for _ in ()).throw(ConnectionResetError()),
            close=lambda: None,
        )
    process.close()


def test_a_process_that_does_not_end_is_killed(
    starts: Callable[[str], StepProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revisions, "_PATIENCE_S", 0.01)
    process = starts("say(ready=True, foreign=None)\nimport time\ntime.sleep(600)")
    process.wait()
    process.close()
    assert process._process.returncode == -9


class Side:
    """A process whose turns take a given time per step, and which records its requests."""

    def __init__(self, *ms: float) -> None:
        self._ms, self.asked = itertools.cycle(ms), list[tuple[int, int]]()

    def turn(self, lead: int, steps: int) -> float:
        """Return milliseconds per step."""
        self.asked.append((lead, steps))
        return next(self._ms)


@pytest.mark.parametrize(
    ("ms", "lead", "steps"),
    [
        ((5.0, 8.0, 6.0), 2, 8),
        ((9.0, 7.0, 39.9), 1, 6),
        ((40.0,), 0, 1),
        ((0.002,), 2500, 10_000),
        ((0.0,), 2500, 10_000),
    ],
)
def test_a_turn_has_steps_for_40_ms_of_the_fastest_and_a_quarter_before_them(
    ms: tuple[float, ...], lead: int, steps: int
) -> None:
    baseline, candidate = Side(*ms), Side(50.0)
    pair = StepPair(baseline, candidate)
    assert (pair.count, pair.results) == (2, [])
    assert baseline.asked == candidate.asked == [(0, 1)] * 3

    pair.rounds([(0, 1)])
    assert baseline.asked[3:] == candidate.asked[3:] == [(lead, steps)]


def test_rounds_have_a_row_per_side_whatever_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(1.0)
    monkeypatch.setattr(revisions, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    pair = StepPair(Side(1.0, 2.0, 3.0), Side(4.0, 5.0, 6.0))
    assert np.array_equal(pair.rounds([(0, 1), (1, 0), (0, 1)]), [[1, 2, 3], [4, 5, 6]])
    assert next(now) == 1.0  # nobody asked for the time
    assert np.array_equal(pair.rounds([(0, 1)] * 9, until=3.0), [[1, 2, 3], [4, 5, 6]])  # at 2 and 3, but not at 4
    assert np.array_equal(pair.rounds([(1, 0)] * 9, until=0.0), [[1], [4]])  # always one


@pytest.mark.parametrize("fails", [False, True])
def test_the_revision_is_the_baseline_and_both_processes_are_closed(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Process(Side):
        def __init__(self, item: Any, name: str, revision: Any) -> None:
            super().__init__(*((5.0, 5.01) if revision else (6.0, 6.01)))
            self._side = f"{item} {name} of {revision.name if revision else 'here'}"
            done.append(f"start {self._side}")

        def wait(self) -> None:
            done.append(f"wait {self._side}")
            if fails:
                raise MissingTestError("not there")

        def close(self) -> None:
            done.append(f"close {self._side}")

    def rounds(*given: Any, **more: Any) -> Any:
        asked.append((given[2:], more))
        return planned(*given, **more)

    asked, planned = list[Any](), design.planned_rounds
    monkeypatch.setattr(design, "planned_rounds", rounds)
    monkeypatch.setattr(revisions, "StepProcess", Process)
    main: Any = SimpleNamespace(name="main")
    of = ["item step of main", "item step of here"]
    started, ended = [f"start {side}" for side in of], [f"close {side}" for side in reversed(of)]
    if fails:
        with pytest.raises(MissingTestError):
            compare_revisions("item", "step", main, 1.03, 1.0)  # type: ignore[arg-type]
        assert done == [*started, f"wait {of[0]}", *ended]
        return
    times = compare_revisions("item", "step", main, 1.03, 1.0)  # type: ignore[arg-type]
    assert (times.a_name, times.b_name) == ("main", "working tree")
    assert times.ratio == pytest.approx(1.2, rel=0.01)
    assert times.verdict == "slower"
    assert asked == [((1.0, pytest.approx(0.03)), {"power": 0.95})]
    assert done == [*started, *(f"wait {side}" for side in of), *ended]


@pytest.mark.parametrize(
    ("intervals", "used", "slower"),
    [
        ([(1.02, 1.05)], 1, False),
        ([(1.03, 1.05)], 1, False),  # at the limit
        ([None], 1, False),
        ([(1.04, 1.05), (1.01, 1.02)], 2, False),
        ([(1.04, 1.05), None], 2, False),
        ([(1.04, 1.05), (1.031, 1.06)], 2, True),
    ],
)
def test_only_a_step_that_is_too_slow_twice_is_slower(
    intervals: list[tuple[float, float] | None], used: int, slower: bool
) -> None:
    measured = iter([SimpleNamespace(ratio_ci=interval) for interval in [*intervals, (9.0, 9.0)]])
    times, found = confirmed(lambda: next(measured), 1.03)  # type: ignore[arg-type, return-value]
    assert (times.ratio_ci, found) == (intervals[used - 1], slower)
    assert len(list(measured)) == 1  # nothing more was measured
