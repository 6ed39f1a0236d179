"""List the oldest versions in pyproject.toml for pip: ``python -m tests.lowest FOLDER [NAME[=VERSION] ...]``.

The script writes ``requirements.txt`` and ``constraints.txt`` to the folder. Packages declared by perfnb and its extras
for labs and executors get their lower bounds. Test tools and indirect dependencies keep the versions in the project's
own constraints.txt, except for packages that an old version pins. Linters and stubs are left out, because they belong
to the tested versions.

Use ``NAME=VERSION`` to choose a version other than the lower bound. With ``NAME`` alone, only the packages with these
names get their lower bounds, and all others get the versions in constraints.txt. This finds new packages that do not
work with an old version of a dependency without declaring it, which is not visible if both are old.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
#: The extras whose lower bounds are tested, in addition to those of the package itself.
EXTRAS = ("lab", "dask", "ipyparallel")
#: Linters, and ONNX, which requires a newer version of NumPy and is not a dependency.
_NOT_RUN = re.compile(
    r"onnx.*|ml_dtypes|flatbuffers|protobuf|ruff|import-linter|grimp|mypy.*|types-.*|.*-stubs|optype|numpy-typing-compat"
)
#: The packages that old versions of distributed and torch pin.
_PINNED_BY_OTHERS = {"dask", "sympy"}


def bound(requirement: str) -> tuple[str, str]:
    """Return the name and the lower bound of a requirement.

    Raises
    ------
    ValueError
        If the requirement has no lower bound.
    """
    found = re.match(r"([\w.-]+) *>= *([\w.]+)", requirement)
    if not found:
        raise ValueError(f"{requirement!r} in pyproject.toml has no lower bound")
    return found[1], found[2]


def bounds(project: dict[str, Any]) -> dict[str, str]:
    """Return the lower bound of each package that perfnb and its `EXTRAS` declare."""
    extras = project["optional-dependencies"]
    return dict(map(bound, [*project["dependencies"], *(each for name in EXTRAS for each in extras[name])]))


def chosen_by(words: Collection[str], project: dict[str, Any], tested: str) -> dict[str, str]:
    """Return the versions to use instead of lower bounds, given the words on the command line.

    Raises
    ------
    ValueError
        If a package named without a version is not declared.
    """
    given, names = dict(each.split("=") for each in words if "=" in each), {each for each in words if "=" not in each}
    declared, pins = bounds(project), dict(re.findall(r"^([\w.-]+)==(.+)$", tested, re.MULTILINE))
    if unknown := sorted(names - declared.keys()):
        raise ValueError(f"pyproject.toml does not declare {', '.join(unknown)}")
    return {name: pins[name] for name in declared if names and name not in names} | given


def lowest(project: dict[str, Any], tested: str, chosen: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return requirements and constraints, one per line.

    Parameters
    ----------
    project : dict
        The table ``project`` of pyproject.toml.
    tested : str
        The text of constraints.txt.
    chosen : dict of str to str
        The versions to use instead of lower bounds.
    """
    oldest, extra = bounds(project) | chosen, project["optional-dependencies"]["test"]
    names = {re.match(r"[\w.-]+", each)[0] for each in extra} - {project["name"]}  # type: ignore[index]
    versions = {
        name: version
        for name, version in re.findall(r"^([\w.-]+)==(.+)$", tested, re.MULTILINE)
        if name not in oldest and name not in _PINNED_BY_OTHERS and not _NOT_RUN.fullmatch(name)
    }
    tools = {name: version for name, version in versions.items() if name.lower() in names}
    requirements = [f"{name}=={version}" for name, version in (oldest | tools).items()]
    return requirements, [f"{name}=={version}" for name, version in versions.items() if name not in tools]


def main(folder: str, *words: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    tested = (ROOT / "constraints.txt").read_text("utf-8")
    requirements, constraints = lowest(project, tested, chosen_by(words, project, tested))
    Path(folder, "requirements.txt").write_text("\n".join(["--constraint constraints.txt", *requirements, ""]), "utf-8")
    Path(folder, "constraints.txt").write_text("\n".join([*constraints, ""]), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
