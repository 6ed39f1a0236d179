"""The project as a whole names nobody's machine, and declares and pins its dependencies."""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import perfnb
from tests.lowest import EXTRAS, bound, bounds, chosen_by, lowest
from tests.project_files import project_files
from tests.test_architecture import PACKAGE, imports, sources

ROOT = PACKAGE.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

# Put together from pieces, so that this file does not name what it forbids.
MACHINE_PATH = re.compile(
    r"(?<![\w.:/-])/(?:" + "wor" + r"k|ro" + r"ot|hom" + r"e/(?!jovyan\b)\w+|User" + r"s/\w+|tm" + r"p/ipykernel_\d+)\b"
    r"(?=/)|[A-Z]:\\+User" + r"s\\"
)

IMPORT_NAMES = {"ipython": "IPython", "nvidia-ml-py": "pynvml", "pillow": "PIL"}
# Part of a dependency's own public face.
COMES_WITH = {"traitlets": "ipywidgets"}
# Installed with a driver, whose version it must fit.
OF_THE_MACHINE = {"amdsmi"}
# Used if the user has them; without one, its feature explains how to install it. pytest loads its plugin itself.
OF_THE_USER = {"onnxruntime", "openvino", "pytest", "torchao", "transformers"}
# In the extra `lab`, which also installs JupyterLab: only the labs use it.
OF_THE_LABS = {"sklearn"}


def machine_paths(path: Path) -> list[str]:
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError):
            return []  # a damaged file, kept to test the readers
    return sorted({found[0] for found in MACHINE_PATH.finditer(content.decode("utf-8", "replace"))})


def requirements(*extras: str) -> list[Requirement]:
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    return [requirement for line in lines if (requirement := Requirement(line)).name != PROJECT["name"]]


@pytest.mark.slow
def test_no_file_names_a_path_of_a_machine() -> None:
    files = list(project_files())
    assert ROOT / "pyproject.toml" in files

    assert {str(path.relative_to(ROOT)): found for path in files if (found := machine_paths(path))} == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("at /wor" + "k/main/x.py", 1),
        ('"/hom' + 'e/ada/x"', 1),
        ("C:\\User" + "s\\ada", 1),
        ("/tm" + "p/ipykernel_12/3.py", 1),
        ("https://example.org/wor" + "k/x and notes/hom" + "e/ada/x, /hom" + "e/jovyan/x", 0),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_a_machine_path_is_found(tmp_path: Path, text: str, found: int, zipped: bool) -> None:
    content = text.encode()
    (tmp_path / "x").write_bytes(gzip.compress(content) if zipped else content)

    assert len(machine_paths(tmp_path / "x")) == found


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_lab_opens_the_map_with_the_whole_project_as_root() -> None:
    command = ["make", "--no-print-directory", "--dry-run", "lab"]
    outside = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    done = subprocess.run(command, cwd=ROOT, env=outside, capture_output=True, text=True, check=True)
    flags = dict(flag.split("=", 1) for flag in shlex.split(done.stdout.splitlines()[-1]) if "=" in flag)

    assert Path(flags["--ServerApp.root_dir"]).samefile(ROOT)
    page = flags["--LabApp.default_url"].removeprefix("/lab/tree/")
    assert (ROOT / page).samefile(ROOT / "notebooks" / "index.ipynb")


@pytest.mark.slow
def test_what_is_imported_is_declared() -> None:
    declared = {IMPORT_NAMES.get(each.name, each.name.replace("-", "_")) for each in requirements()}
    used = dict[str, set[str]]()  # by the folder of the files
    for path in sources(PACKAGE):
        names = (name.partition(".")[0] for name in imports(path.read_text("utf-8")))
        used.setdefault(path.parent.name, set()).update(names)
    foreign = {
        COMES_WITH.get(name, name) for name in set().union(*used.values()) - set(sys.stdlib_module_names) - {"perfnb"}
    }

    assert "torch" in foreign
    assert foreign - declared == OF_THE_MACHINE | OF_THE_USER | OF_THE_LABS
    assert all(OF_THE_LABS.isdisjoint(names) for folder, names in used.items() if folder != "labs")


def test_constraints_pin_what_is_declared() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []

    versions = {canonicalize_name(name): version for name, version in (line.split("==") for line in pins)}
    for requirement in requirements(*PROJECT["optional-dependencies"]):
        version = versions.get(canonicalize_name(requirement.name))
        assert version, f"{requirement.name} is not pinned"
        assert requirement.specifier.contains(version), f"{requirement} excludes the pinned {version}"


def test_the_lowest_versions_are_those_that_are_promised() -> None:
    tested = (ROOT / "constraints.txt").read_text("utf-8")
    lines, constraints = lowest(PROJECT, tested, {"torch": "2.99"})

    wanted = dict(line.split("==") for line in lines)
    for requirement in requirements(*EXTRAS):
        (least,) = (each.version for each in requirement.specifier if each.operator == ">=")
        assert wanted.pop(requirement.name) == ("2.99" if requirement.name == "torch" else least)
    tools = {canonicalize_name(requirement.name) for requirement in requirements("test")}
    assert {canonicalize_name(name) for name in wanted} < tools
    assert {"pytest", "hypothesis", "nbval"} <= set(wanted)
    assert not {"ruff", "mypy", "scipy-stubs"} & set(wanted)
    assert {f"{name}=={version}" for name, version in wanted.items()} < set(tested.splitlines())
    assert set(constraints) < set(tested.splitlines())
    assert not {line.split("==")[0] for line in lines} & {line.split("==")[0] for line in constraints}


def test_one_package_alone_is_tried_at_its_lowest_version() -> None:
    """With the tested versions of all others, which may refuse it without declaring so."""
    tested = (ROOT / "constraints.txt").read_text("utf-8")
    chosen = chosen_by(["numpy"], PROJECT, tested)
    lines, constraints = lowest(PROJECT, tested, chosen)

    pins = set(tested.splitlines())
    assert [line for line in lines if line not in pins] == [f"numpy=={bounds(PROJECT)['numpy']}"]
    assert not [line for line in constraints if line.startswith("numpy==")]
    assert "pyarrow" in chosen
    assert chosen_by(["numpy", "torch=2.99"], PROJECT, tested) == chosen | {"torch": "2.99"}
    assert chosen_by(["torch=2.99"], PROJECT, tested) == {"torch": "2.99"}
    with pytest.raises(ValueError, match=r"does not declare nunpy"):
        chosen_by(["nunpy"], PROJECT, tested)


def test_a_requirement_without_a_lower_bound_is_named() -> None:
    with pytest.raises(ValueError, match=r"'torch<3' in pyproject.toml has no lower bound"):
        bound("torch<3")


def test_the_citation_names_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))

    assert (cited["cff-version"], cited["type"], cited["title"]) == ("1.2.0", "software", PROJECT["name"])
    assert cited["message"]
    assert cited["authors"] == PROJECT["authors"]
    assert cited["license"] == PROJECT["license"]
    assert str(cited["version"]) == PROJECT["version"]
    line = f"{cited['authors'][0]['name']}: {cited['title']}, version {cited['version']}. "
    assert line in (ROOT / "README.md").read_text("utf-8")


def built(kind: str, folder: Path) -> Path:
    """Return what hatchling builds of the project: a wheel or an sdist."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (file,) = folder.iterdir()
    return file


def test_the_wheel_holds_the_whole_package(tmp_path: Path) -> None:
    wheel = built("wheel", tmp_path)

    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("perfnb/")}
    there = {str(path.relative_to(ROOT)) for path in project_files() if PACKAGE in path.parents}
    assert "perfnb/py.typed" in there
    assert packed == there


@pytest.mark.slow
def test_the_sdist_holds_the_whole_project(tmp_path: Path) -> None:
    with tarfile.open(built("sdist", tmp_path)) as sdist:
        packed = {member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()}

    there = {str(path.relative_to(ROOT)) for path in project_files()}
    assert packed - there == {"PKG-INFO"}
    assert {name for name in there - packed if not name.startswith((".ci/", ".git"))} == set()


def test_the_version_is_the_same_everywhere() -> None:
    assert perfnb.__version__ == PROJECT["version"]
    assert f"## [{PROJECT['version']}] - " in (ROOT / "CHANGELOG.md").read_text("utf-8")
