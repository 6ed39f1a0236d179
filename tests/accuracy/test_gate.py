"""The gate of pull requests, live: it does not fail on the same code next to a busy process, and finds 10 %."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.accuracy.judging import Figures
from tests.gate.repositories import commit, git

RUNS = 8
PROJECT = Path(__file__).parents[2]

#: A step of 20 equal layers, of which some run twice.
STEP = """\
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
layers = nn.ModuleList(nn.Linear(384, 384) for _ in range(20))


@torch.no_grad()
def work():
    x = torch.ones(64, 384)
    for place, layer in enumerate(layers):
        if place < {twice}:
            layer(x)
        x = layer(x)
"""
TEST = "import package\n\ndef test_step(perf):\n    perf.step(package.work)\n"


def spin() -> None:
    while True:
        sum(range(1000))


@contextmanager
def busy() -> Iterator[None]:
    """Keep one core busy."""
    process = multiprocessing.get_context("spawn").Process(target=spin, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def repository(folder: Path, twice: int) -> Path:
    """Return a repository whose working tree runs some layers twice, unlike its commit; its counts are recorded."""
    git(folder, "init", "--quiet")
    (folder / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    (folder / "test_step.py").write_text(TEST)
    (folder / "package.py").write_text(STEP.format(twice=0))
    commit(folder)
    (folder / "package.py").write_text(STEP.format(twice=twice))
    assert gate(folder, "--perf-update").returncode == 0
    return folder


def gate(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "perfnb.gate.plugin", "-p", "no:cacheprovider", "-q", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(autouse=True)
def _plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def failures(folder: Path) -> int:
    """Return how many of the live runs fail; a run that does anything else is an error."""
    failed = 0
    for _ in range(RUNS):
        done = gate(folder, "--perf-against=HEAD")
        print(done.stdout)
        assert done.returncode in (0, 1), done.stdout + done.stderr
        assert "9 of 10 such runs would detect" in done.stdout
        failed += done.returncode
    return failed


def test_the_same_code_next_to_a_busy_process(figure: Figures, tmp_path: Path) -> None:
    folder = repository(tmp_path, twice=0)
    with busy():
        figure(f"gate: failures of the same code, of {RUNS} runs next to a busy process", failures(folder), at_most=0)


def test_a_tenth_of_the_work_done_twice(figure: Figures, tmp_path: Path) -> None:
    folder = repository(tmp_path, twice=2)
    figure(f"gate: failures of a step that is 10 % slower, of {RUNS} runs", failures(folder), at_least=7)
