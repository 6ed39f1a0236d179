"""What Binder would install is what the project is tested with, and the notebooks need nothing else."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks import notebook_memory
from notebooks.publish import COLAB_CELL
from tests.test_project import IMPORT_NAMES, PROJECT, ROOT, requirements

BINDER = ROOT / "binder"
LINES = [line for line in (BINDER / "requirements.txt").read_text("utf-8").splitlines() if not line.startswith("#")]
PINNED = re.findall(r"^([\w.-]+)==(.+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
PINS = {canonicalize_name(name): version for name, version in PINNED}
CODE = sorted(path.relative_to(ROOT) for path in (ROOT / "notebooks").rglob("*.ipynb"))


def needed(names: list[str]) -> dict[str, list[Requirement]]:
    """Everything that these bring with them, as the installed versions declare it: who is asked for, and how."""
    asked: dict[str, list[Requirement]] = {}
    waiting = [Requirement(name) for name in names]
    seen = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        asked.setdefault(name, []).append(requirement)
        if (name, frozenset(requirement.extras)) in seen:
            continue
        seen.add((name, frozenset(requirement.extras)))
        for line in metadata.requires(name) or []:
            inner = Requirement(line)
            extras = ["", *requirement.extras]
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(inner)
    return asked


def imported(path: Path) -> set[str]:
    """Return the packages that a notebook imports, but for modules that it writes; its magics are left out."""
    names, written = set(), set()
    for cell in json.loads((ROOT / path).read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code" and cell["id"] != COLAB_CELL:
            code = "".join(cell["source"])
            written |= set(re.findall(r"^%%writefile .*?(\w+)\.py$", code, re.MULTILINE))
            for node in ast.walk(ast.parse(re.sub(r"^(\s*)[%!].*$", r"\1pass", code, flags=re.MULTILINE))):
                if isinstance(node, ast.Import):
                    names |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    names.add((node.module or "").partition(".")[0])
    return names - written - set(sys.stdlib_module_names)


def test_binder_installs_the_tested_versions() -> None:
    assert "--constraint ../constraints.txt" in LINES  # from this file's own folder, as pip reads it
    assert ".[lab]" in LINES  # from the project's, where Binder's builder runs pip
    assert f"torch=={PINS['torch']}+cpu" in LINES
    assert "--extra-index-url https://download.pytorch.org/whl/cpu" in LINES
    assert len(LINES) == 4


@pytest.mark.slow
def test_the_tested_versions_fit_together_and_leave_nothing_open() -> None:
    asked = needed(PROJECT["dependencies"] + PROJECT["optional-dependencies"]["lab"])

    assert "tornado" in asked  # of JupyterLab's own
    assert sorted(set(asked) - set(PINS)) == []
    refused = [
        str(each) for name, all_of in asked.items() for each in all_of if not each.specifier.contains(PINS[name])
    ]
    assert refused == []


def test_the_python_is_one_that_the_project_takes() -> None:
    python = (BINDER / "runtime.txt").read_text("utf-8").strip().removeprefix("python-")

    assert python == tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["mypy"]["python_version"]
    assert f"Programming Language :: Python :: {python}" in PROJECT["classifiers"]


def test_notebooks_import_only_what_binder_has() -> None:
    installed = {each.name for each in requirements("lab")}
    there = {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in installed} | {"perfnb", "sklearn"}

    assert "scikit-learn" in installed
    assert {str(path): sorted(foreign) for path in CODE if (foreign := imported(path) - there)} == {}
    assert "torch" in set.union(*map(imported, CODE))


@pytest.mark.parametrize(("limit", "threads"), [("0.5", "1"), ("1.0", "1"), ("2", "2"), (None, "")])
def test_a_session_takes_the_cores_it_is_given(limit: str | None, threads: str) -> None:
    environment = {"PATH": os.environ["PATH"]} | ({"CPU_LIMIT": limit} if limit else {})
    command = [BINDER / "start", "sh", "-c", 'echo "$OMP_NUM_THREADS" && ls "$JUPYTER_CONFIG_PATH"']

    said = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert said.splitlines() == [threads, "jupyter_lab_config.json"]


def test_jupyterlab_opens_a_page_that_exists() -> None:
    page = json.loads((BINDER / "jupyter" / "jupyter_lab_config.json").read_text("utf-8"))["LabApp"]["default_url"]

    assert (ROOT / page.removeprefix("/lab/tree/")).is_file()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment of what `binder` names alone, made as Binder's builder does."""
    python = tmp_path_factory.mktemp("binder") / "env" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
    install = [python, "-m", "pip", "install", "--quiet", "--requirement", "binder/requirements.txt"]
    subprocess.run(install, cwd=ROOT, check=True)
    path = {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    subprocess.run([BINDER / "postBuild"], env=os.environ | path, cwd=ROOT, check=True)
    return python


@pytest.mark.outside
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_session_begins_below_a_gigabyte(environment: Path) -> None:
    readings = dict(notebook_memory.at_start(str(environment)))

    print({name: f"{reading.total_bytes / 1e6:,.0f} MB" for name, reading in readings.items()})
    assert max(reading.total_bytes for reading in readings.values()) < 10**9, readings


@pytest.mark.outside
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("notebook", [path for path in CODE if "solutions" in path.parts or path.stem == "quickstart"])
def test_a_notebook_runs_there_below_two_gigabytes(notebook: Path, environment: Path) -> None:
    peak = notebook_memory.peak(str(environment), notebook)

    print(f"{notebook}: {peak.reading.total_bytes / 1e6:,.0f} MB")
    assert peak.troubles == []
    assert peak.reading.total_bytes < notebook_memory.LIMIT_BYTES
