"""Small git repositories with a gated step, whose time passes only as its own code says."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

#: A package whose step takes a number of milliseconds on a clock of its own. The clock is only patched in the processes
#: that take turns, and not in the one that compares them.
STEP = """\
import random, sys, time

clock, noise = [0], random.Random({seed})

def work():
    clock[0] += int({ms} * 1e6 * (1 + noise.uniform(-0.01, 0.01)))

if sys.argv[0].endswith("child.py"):
    time.perf_counter_ns = lambda: clock[0]
"""
TEST = """\
import package

def test_step(perf):
    perf.step(package.work)
"""


def git(folder: Path, *words: str) -> str:
    """Run git."""
    who = {
        f"GIT_{role}_{what}": "someone@example.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(
        ["git", "-c", "init.defaultBranch=main", *words],
        cwd=folder,
        env={**environment, **who},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def commit(folder: Path, message: str = "a change") -> None:
    """Commit everything."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)


def repository(folder: Path, ms: float = 5.0) -> Path:
    """Make a repository with a step that takes `ms`, in its first commit."""
    git(folder, "init", "--quiet")
    (folder / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\naddopts = ["-m", "not x"]\n')
    (folder / ".gitignore").write_text("__pycache__\n")
    (folder / "tests").mkdir()
    (folder / "tests" / "test_step.py").write_text(TEST)
    write_step(folder, ms)
    commit(folder)
    return folder


def write_step(folder: Path, ms: float) -> None:
    """Make the step take `ms`."""
    # Python keeps the code of a file by its second and size, which two of these may have in common.
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    (folder / "package.py").write_text(STEP.format(ms=ms, seed=int(ms * 1000)))


def nothing_is_left(folder: Path, temporary: Path) -> bool:
    """Return whether neither a worktree, nor its folder, nor a process is there any more."""
    alone = len(git(folder, "worktree", "list").splitlines()) == 1
    return alone and not any(temporary.glob("perfnb_gate_*"))
